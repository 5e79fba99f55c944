"""Names of processes that also say on which system their number means anything.

Application and host may live on different systems: a host in a container, behind ssh, or under Wine. There the
number of the application belongs to another process, or to none.
"""

from __future__ import annotations

import os
import sys

# What Linux calls a host's process, at most 15 letters: the only thing that tells what a zombie was.
HOST_NAME = "qnnbridge-host"


def is_frozen() -> bool:
    """Whether this program was made one with its Python (PyInstaller, cx_Freeze, Nuitka): `sys.executable` is the
    application then, and there is nowhere to install a package."""
    return bool(getattr(sys, "frozen", False)) or "__compiled__" in globals()  # Nuitka's mark of a module


def this_system() -> str:
    """Names the system whose process numbers this process sees: two processes there get the same name."""
    if sys.platform == "win32":
        return "win32:" + os.environ.get("COMPUTERNAME", "")
    return f"{sys.platform}:{_boot()}:{_number_space()}"


def name_of(pid: int) -> str:
    """The name of a process of this system."""
    return f"{pid}@{this_system()}"


def number_here(name: str) -> int | None:
    """The process number, or ``None`` for a process of another system; a number alone is of this one.

    Raises:
        ValueError: `name` names no process.
    """
    number, separator, system = name.partition("@")
    if not (number.isascii() and number.isdecimal()):
        raise ValueError(f"{name!r} names no process")
    return int(number) if not separator or system == this_system() else None


def _boot() -> str:
    """A number of this start of this machine; empty where the kernel does not report it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:
            return file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _number_space() -> str:
    """The process namespace: containers have one each."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
