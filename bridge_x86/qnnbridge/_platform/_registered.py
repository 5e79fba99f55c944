"""A Python as an installer has registered it (PEP 514), without asking the registry."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping


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


def no_registered_pythons() -> list[RegisteredPython]:
    """Only Windows has such a list."""
    return []
