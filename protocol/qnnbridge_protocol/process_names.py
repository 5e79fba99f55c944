"""Names of processes, which include the system on which their process id is valid.

Application and host may run on different systems: a host in a container, behind ssh, or under Wine. There the
process id of the application belongs to another process, or to none.
"""

from __future__ import annotations

import os
import sys

# Name of a host's process on Linux, at most 15 letters: the only information about a zombie.
HOST_NAME = "qnnbridge-host"


def is_frozen() -> bool:
    """Return whether this program was frozen together with its Python (PyInstaller, cx_Freeze, Nuitka).

    Then `sys.executable` is the application, and packages cannot be installed.
    """
    return bool(getattr(sys, "frozen", False)) or "__compiled__" in globals()  # Nuitka's mark of a module


def this_system() -> str:
    """Return the name of the system whose process ids this process sees; equal in all its processes."""
    if sys.platform == "win32":
        return "win32:" + os.environ.get("COMPUTERNAME", "")
    return f"{sys.platform}:{_boot()}:{_number_space()}"


def name_of(pid: int) -> str:
    """Return the name of a process of this system."""
    return f"{pid}@{this_system()}"


def number_here(name: str) -> int | None:
    """Return the process id; ``None`` for a process of another system. A bare id means this system.

    Raises:
        ValueError: `name` is not the name of a process.
    """
    number, separator, system = name.partition("@")
    if not (number.isascii() and number.isdecimal()):
        raise ValueError(f"{name!r} is not the name of a process")
    return int(number) if not separator or system == this_system() else None


def _boot() -> str:
    """Return the id of this boot of the machine; '' if the kernel does not report it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:
            return file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _number_space() -> str:
    """Return the process namespace: each container has its own."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
