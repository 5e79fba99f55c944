"""Maps a file into memory without keeping a descriptor for it, as ``mmap.mmap`` does: there may be hundreds."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import weakref
from collections.abc import Callable

assert sys.platform != "win32"

_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_long,
)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def map_shared(
    fd: int,
    size: int,
    *,
    writable: bool,
    when_gone: Callable[[object, Callable[[], object]], object] = weakref.finalize,
) -> memoryview:
    """All of it, and touched. It is unmapped when nothing refers to the view any more. Raises `OSError`.

    when_gone: calls its second argument when its first is gone.
    """
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    # Touched now: a page that is missing costs a microsecond when it is met in a call.
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    address = _libc.mmap(None, size, access, flags, fd, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * size).from_address(address)
    ended = when_gone(memory, functools.partial(_libc.munmap, address, size))
    if isinstance(ended, weakref.finalize):
        ended.atexit = False
    view = memoryview(memory).cast("B")
    return view if writable else view.toreadonly()
