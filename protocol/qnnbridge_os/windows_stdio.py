"""Standard streams on Windows. This module is imported before all others, so it uses only built-in modules."""

import _winapi
import ctypes
import msvcrt
import os
import sys

assert sys.platform == "win32"

_STD_HANDLES = {0: -10, 1: -11, 2: -12}


def make_binary(*fds: int) -> None:
    """Disable the conversion of line ends."""
    for fd in fds:
        msvcrt.setmode(fd, os.O_BINARY)


def set_standard_handles() -> None:
    """Set the standard handles of Windows to the handles of the descriptors 0, 1 and 2.

    Libraries with a separate C runtime read the standard handles when they are loaded.
    """
    us = _winapi.GetCurrentProcess()
    set_std_handle = ctypes.WinDLL("kernel32").SetStdHandle
    set_std_handle.argtypes = (ctypes.c_uint32, ctypes.c_void_p)
    for fd, name in _STD_HANDLES.items():
        # Use a duplicate that is never closed, because the descriptor's own handle may be closed and its number
        # reused.
        handle = _winapi.DuplicateHandle(us, msvcrt.get_osfhandle(fd), us, 0, False, _winapi.DUPLICATE_SAME_ACCESS)
        # Windows defines these constants as (DWORD)-10 to (DWORD)-12.
        set_std_handle(name & 0xFFFFFFFF, handle)
