"""Streams and memory that the application shares, on Windows: handles that it has duplicated into this process.

This process owns a handle from the moment it has read the request that names it, also if the request fails.
Opening a share takes the handle out of the share; a handle left in there when the request is answered is closed
(`drop`), so each is closed once.
"""

from __future__ import annotations

import _winapi
import contextlib
import ctypes
import msvcrt
import os
import sys
import weakref
from ctypes import wintypes
from typing import Any

assert sys.platform == "win32"

from qnnbridge_os._win32_api import kernel32  # noqa: E402 - type checkers find it empty on Linux

AVAILABLE = True

_INVALID_HANDLE = 2**64 - 1


def open_stream(where: dict[str, Any], *, write: bool) -> int:
    """A descriptor for one end of a pipe of the application. Raises `OSError`, `ValueError`."""
    access = os.O_WRONLY if write else os.O_RDONLY
    handle = _take_handle(where)
    try:
        return msvcrt.open_osfhandle(handle, access | os.O_BINARY | os.O_NOINHERIT)
    except BaseException:
        _close(handle)
        raise


def map_memory(where: dict[str, Any], size: int, *, write: bool) -> memoryview:
    """Shared memory of the application, mapped and touched. It is unmapped when nothing refers to it any more."""
    section = _take_handle(where)
    try:
        return map_shared(section, size, writable=write)
    finally:
        # The view keeps the section. Its handle is not needed any more.
        _close(section)


def drop(where: dict[str, Any]) -> None:
    """Close the handle if it is still in there."""
    with contextlib.suppress(ValueError):
        _close(_take_handle(where))


def _take_handle(where: dict[str, Any]) -> int:
    handle = where.pop("handle", None)
    if type(handle) is not int or not 0 < handle < _INVALID_HANDLE:
        raise ValueError("a shared object is named by its handle in this process")
    return handle


def _close(handle: int) -> None:
    with contextlib.suppress(OSError):  # the application has named something that there is not
        _winapi.CloseHandle(handle)


_FILE_MAP_WRITE = 0x2
_FILE_MAP_READ = 0x4

kernel32.MapViewOfFile.argtypes = (
    *(wintypes.HANDLE, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD),
    ctypes.c_size_t,
)
kernel32.MapViewOfFile.restype = ctypes.c_void_p
kernel32.UnmapViewOfFile.argtypes = (ctypes.c_void_p,)


def map_shared(section: int, size: int, *, writable: bool) -> memoryview:
    """All of it, and touched. It is unmapped when nothing refers to the view any more. Raises `OSError`."""
    # FILE_MAP_WRITE includes reading.
    address = kernel32.MapViewOfFile(section, _FILE_MAP_WRITE if writable else _FILE_MAP_READ, 0, 0, size)
    if not address:
        raise ctypes.WinError(ctypes.get_last_error())
    memory = (ctypes.c_ubyte * size).from_address(address)
    # Not at the end of the program: arrays may still be read then, and Windows unmaps the memory.
    weakref.finalize(memory, kernel32.UnmapViewOfFile, address).atexit = False
    view = memoryview(memory).cast("B")
    # Touched now: a page that is missing costs a microsecond when it is met in a call.
    # A page of Windows on x86, x64 and ARM64.
    for offset in range(0, size, 4096):
        view[offset]
    return view if writable else view.toreadonly()
