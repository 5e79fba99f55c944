"""Reads from the Windows registry which Pythons are installed (PEP 514)."""

from __future__ import annotations

import sys
import winreg

from qnnbridge._platform._registered import RegisteredPython, registered_python

assert sys.platform == "win32"

_PYTHONS = r"Software\Python"
_NOT_AN_INSTALLATION = "PyLauncher"
_PLACES = (
    (winreg.HKEY_CURRENT_USER, 0),
    (winreg.HKEY_LOCAL_MACHINE, winreg.KEY_WOW64_64KEY),
    (winreg.HKEY_LOCAL_MACHINE, winreg.KEY_WOW64_32KEY),
)


def registered_pythons() -> list[RegisteredPython]:
    """All of them, of any machine type, the user's own first; each executable once."""
    found: dict[str, RegisteredPython] = {}
    for root, view in _PLACES:
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
