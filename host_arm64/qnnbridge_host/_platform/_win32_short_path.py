"""The other name that Windows keeps for a path: short, and of characters that every program can open."""

from __future__ import annotations

import ctypes
import sys
from ctypes import wintypes

assert sys.platform == "win32"

_get_short_path = ctypes.WinDLL("kernel32", use_last_error=True).GetShortPathNameW
_get_short_path.argtypes = (wintypes.LPCWSTR, wintypes.LPWSTR, wintypes.DWORD)
_get_short_path.restype = wintypes.DWORD


def short_path(path: str) -> str:
    """The short name of an existing path; the path itself where the volume keeps no short names."""
    length = _get_short_path(path, None, 0)
    buffer = ctypes.create_unicode_buffer(length + 1)
    written = _get_short_path(path, buffer, length + 1)
    return buffer.value if 0 < written <= length else path
