"""What machine this process was built for, and what machine the computer really is.

Neither `platform.machine()` nor the environment tells on Windows on ARM, where x64 and x86 programs are emulated:
both name now the one, now the other, by the version of Python. Names: "ARM64", "x64", "x86", "ARM64EC" on Windows;
"aarch64", "x86_64" ... on Linux.
"""

from __future__ import annotations

import os
import sysconfig

from qnnbridge._platform import Executable, executable_machine, native_machine, read_executable

_WINDOWS_PLATFORMS = {"win32": "x86", "win-amd64": "x64", "win-arm64": "ARM64"}


def process_machine() -> str:
    """What this interpreter was built for; no emulation changes that."""
    name = sysconfig.get_platform()
    if name in _WINDOWS_PLATFORMS:
        return _WINDOWS_PLATFORMS[name]
    # On Linux that name comes from the kernel, which a 32-bit program shares with 64-bit ones.
    try:
        machine = executable_machine("/proc/self/exe")
    except OSError:
        machine = None
    return machine or name.rpartition("-")[2]


def computer_machine() -> str:
    """What the computer is, also for a process that runs emulated (except by qemu, which hides it completely)."""
    return native_machine()


def interpreter_machine(path: str) -> str | None:
    """The machine of the interpreter that `path` starts in the end; ``None`` for a script.

    python.exe of a virtual environment on Windows is a small program that starts the real one, and may have been
    built for another machine.
    """
    base = base_interpreter(path)
    return executable_machine(base if base is not None else path)


def base_interpreter(path: str) -> str | None:
    """The interpreter behind a Windows virtual environment's python.exe, if `path` is one and names it."""
    if not path.lower().endswith(".exe"):
        return None
    folder = os.path.dirname(path)
    for candidate in (folder, os.path.dirname(folder)):
        settings = _read_settings(os.path.join(candidate, "pyvenv.cfg"))
        named = (
            settings.get("executable", ""),
            os.path.join(settings.get("home", ""), os.path.basename(path)) if "home" in settings else "",
        )
        for base in named:
            if base and os.path.isfile(base):
                return base
    return None


def _read_settings(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            pairs = [line.partition("=") for line in file if "=" in line]
    except OSError:
        return {}
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


__all__ = [
    "Executable",
    "base_interpreter",
    "computer_machine",
    "executable_machine",
    "interpreter_machine",
    "process_machine",
    "read_executable",
]
