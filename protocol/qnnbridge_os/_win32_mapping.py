"""Maps a section of shared memory on Windows: what the application makes and the host is given a handle of."""

from __future__ import annotations

import ctypes
import sys
import weakref
from ctypes import wintypes

assert sys.platform == "win32"

from qnnbridge_os._win32_api import kernel32  # noqa: E402 - type checkers find it empty on Linux

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
    address = kernel32.MapViewOfFile(section, _FILE_MAP_WRITE if writable else _FILE_MAP_READ, 0, 0, size)
    if not address:
        raise ctypes.WinError(ctypes.get_last_error())
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, kernel32.UnmapViewOfFile, address).atexit = False
    view = memoryview(memory).cast("B")
    # Touched now: a page that is missing costs a microsecond when it is met in a call.
    for offset in range(0, size, 4096):
        view[offset]
    return view if writable else view.toreadonly()
