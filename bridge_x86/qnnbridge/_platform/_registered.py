"""Which Pythons are installed, as the Windows registry says (PEP 514). Other systems have no such list."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping

_PYTHONS = r"Software\Python"
_NOT_AN_INSTALLATION = "PyLauncher"


@dataclasses.dataclass(frozen=True, slots=True)
class RegisteredPython:
    """company: "PythonCore" for python.org's. tag: what ``py -V:tag`` takes, such as "3.13-arm64"."""

    company: str
    tag: str
    version: tuple[int, int]
    executable: str
    prefix: str

    @property
    def launcher_tag(self) -> str:
        return self.tag if self.company == "PythonCore" else f"{self.company}/{self.tag}"


def registered_python(
    company: str, tag: str, values: Mapping[str, str], install: Mapping[str, str]
) -> RegisteredPython | None:
    """Make sense of one registry key: its own values and those of its InstallPath (the default one named "")."""
    prefix = install.get("", "").strip().strip('"')
    executable = install.get("ExecutablePath", "").strip().strip('"')
    if not executable:
        if not prefix:
            return None
        executable = os.path.join(prefix, "python.exe")
    for text in (values.get("SysVersion"), values.get("Version"), tag):
        found = re.match(r"(\d+)\.(\d+)", text or "")
        if found:
            version = (int(found[1]), int(found[2]))
            return RegisteredPython(company, tag, version, executable, prefix or os.path.dirname(executable))
    return None


if sys.platform == "win32":
    import winreg

    _HIVES = (
        (winreg.HKEY_CURRENT_USER, 0),
        (winreg.HKEY_LOCAL_MACHINE, winreg.KEY_WOW64_64KEY),
        (winreg.HKEY_LOCAL_MACHINE, winreg.KEY_WOW64_32KEY),
    )

    def registered_pythons() -> list[RegisteredPython]:
        """All of them, of any machine type, the user's own first; each executable once."""
        found: dict[str, RegisteredPython] = {}
        for root, view in _HIVES:
            for company in _subkeys(root, _PYTHONS, view):
                if company == _NOT_AN_INSTALLATION:
                    continue
                for tag in _subkeys(root, rf"{_PYTHONS}\{company}", view):
                    key = rf"{_PYTHONS}\{company}\{tag}"
                    python = registered_python(
                        company, tag, _values(root, key, view), _values(root, rf"{key}\InstallPath", view)
                    )
                    if python is not None:
                        found.setdefault(python.executable.lower(), python)
        return list(found.values())

    def _subkeys(root: int, path: str, view: int) -> list[str]:
        try:
            with winreg.OpenKey(root, path, 0, winreg.KEY_READ | view) as key:
                return [winreg.EnumKey(key, index) for index in range(winreg.QueryInfoKey(key)[0])]
        except OSError:
            return []

    def _values(root: int, path: str, view: int) -> dict[str, str]:
        try:
            with winreg.OpenKey(root, path, 0, winreg.KEY_READ | view) as key:
                count = winreg.QueryInfoKey(key)[1]
                values = [winreg.EnumValue(key, index) for index in range(count)]
        except OSError:
            return {}
        return {name: value for name, value, _ in values if isinstance(value, str)}

else:

    def registered_pythons() -> list[RegisteredPython]:
        """None: only Windows has such a list."""
        return []
