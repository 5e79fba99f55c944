"""Names of processes. A name contains the process id and the system on which the id is valid.

Application and host may run on different systems: a host in a container, behind ssh, or under Wine. On the host's
system the application's process id belongs to another process, or to no process.
"""

from __future__ import annotations

import os
import sys

# Name of host processes on Linux (at most 15 characters). For a zombie it is the only available information.
HOST_NAME = "qnnbridge-host"


def is_frozen() -> bool:
    """Return whether this program was built together with its Python (PyInstaller, cx_Freeze, Nuitka).

    In such a program `sys.executable` is the application, and packages cannot be installed.
    """
    # Nuitka sets this name in each module
    return bool(getattr(sys, "frozen", False)) or "__compiled__" in globals()


def this_system() -> str:
    """Return the name of the system (machine boot and container) whose process ids this process can use. All
    processes on that system get the same name."""
    if sys.platform == "win32":
        return "win32:" + os.environ.get("COMPUTERNAME", "")
    return f"{sys.platform}:{_boot()}:{_number_space()}"


def name_of(pid: int) -> str:
    """Return the name of a process of this system."""
    return f"{pid}@{this_system()}"


def number_here(name: str) -> int | None:
    """Return the process id in a name; ``None`` for a process of another system. A name without a system is an id
    of this system.

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
    """Return the process id namespace, which differs between containers."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
