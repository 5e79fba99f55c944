"""Streams and memory that the application shares, on Windows: handles that it has duplicated into this process."""

from __future__ import annotations

import _winapi
import ctypes
import msvcrt
import os
import sys
import weakref
from collections.abc import Mapping
from ctypes import wintypes
from typing import Any

assert sys.platform == "win32"

AVAILABLE = True
"""Whether this host can open what an application shares."""

_FILE_MAP_WRITE = 0x2
_FILE_MAP_READ = 0x4

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel32.MapViewOfFile.argtypes = (
    *(wintypes.HANDLE, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD),
    ctypes.c_size_t,
)
_kernel32.MapViewOfFile.restype = ctypes.c_void_p
_kernel32.UnmapViewOfFile.argtypes = (ctypes.c_void_p,)


def open_stream(where: Mapping[str, Any], *, write: bool) -> int:
    """A descriptor for one end of a pipe of the application. Raises `OSError`, `ValueError`."""
    access = os.O_WRONLY if write else os.O_RDONLY
    return msvcrt.open_osfhandle(_handle(where), access | os.O_BINARY | os.O_NOINHERIT)


def map_memory(where: Mapping[str, Any], size: int, *, write: bool) -> memoryview:
    """Shared memory of the application, mapped and touched. It is unmapped when nothing refers to it any more."""
    section = _handle(where)
    try:
        address = _kernel32.MapViewOfFile(section, _FILE_MAP_WRITE if write else _FILE_MAP_READ, 0, 0, size)
    finally:
        _winapi.CloseHandle(section)
    if not address:
        raise ctypes.WinError(ctypes.get_last_error())
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _kernel32.UnmapViewOfFile, address).atexit = False
    view = memoryview(memory).cast("B")
    # Touched now: a page that is missing costs a microsecond when it is met in a call.
    for offset in range(0, size, 4096):
        view[offset]
    return view if write else view.toreadonly()


def _handle(where: Mapping[str, Any]) -> int:
    handle = where.get("handle")
    if type(handle) is not int or handle <= 0:
        raise ValueError("a shared object is named by its handle in this process")
    return handle
