"""Streams and memory that the application shares, on Linux: opened through its entry in /proc.

That needs no socket and no inherited descriptor, only that the two processes belong to the same user. The
application says which file it means (device and inode), so a descriptor that was closed and given away meanwhile
is noticed.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Mapping
from typing import Any

assert sys.platform != "win32"

from qnnbridge_os._posix_mapping import map_shared  # noqa: E402 - type checkers find it empty on Windows

# Whether this host can open streams and memory of an application.
AVAILABLE = sys.platform == "linux"


def open_stream(where: Mapping[str, Any], *, write: bool) -> int:
    """A descriptor of our own for one end of a pipe of the application. Raises `OSError`, `ValueError`."""
    return _open(where, os.O_WRONLY if write else os.O_RDONLY)


def map_memory(where: Mapping[str, Any], size: int, *, write: bool) -> memoryview:
    """Shared memory of the application, mapped and touched. It is unmapped when nothing refers to it any more."""
    fd = _open(where, os.O_RDWR if write else os.O_RDONLY)
    try:
        if os.fstat(fd).st_size != size:
            raise ValueError(f"the memory has {os.fstat(fd).st_size} bytes, not {size}")
        return map_shared(fd, size, writable=write)
    finally:
        os.close(fd)


def drop(_where: dict[str, Any]) -> None:
    """Release an unopened share: it names an object of the application, so nothing is to be closed here."""


def check_sealed(where: Mapping[str, Any]) -> None:
    """Raises `OSError`, `ValueError` for memory that can be shrunk: an access to a removed page is fatal to
    look at. For a process that serves several applications (and not in an emulated one, which cannot ask)."""
    fd = _open(where, os.O_RDONLY)
    try:
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("the memory is not sealed against shrinking")
    finally:
        os.close(fd)


def _open(where: Mapping[str, Any], access: int) -> int:
    pid, number, device, inode = (where.get(key) for key in ("pid", "fd", "device", "inode"))
    if not all(type(value) is int for value in (pid, number, device, inode)):
        raise ValueError("a shared file is named by pid, fd, device and inode")
    fd = os.open(f"/proc/{pid}/fd/{number}", access | os.O_CLOEXEC)
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != (device, inode):
        os.close(fd)
        raise ValueError(f"descriptor {number} of process {pid} is not the file that was meant")
    return fd
