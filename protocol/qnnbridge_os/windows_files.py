"""Facts of Windows about files that Python does not offer: the time of the last change, and the short path.

Python's ``st_ctime`` is the time of creation there. The short path is the other name that Windows keeps for a path:
of characters that every program can open.
"""

from __future__ import annotations

import _winapi
import ctypes
import os
import sys
from ctypes import wintypes

assert sys.platform == "win32"

from qnnbridge_os._win32_api import kernel32, open_file  # noqa: E402 - type checkers find it empty on Linux

_FILE_READ_ATTRIBUTES = 0x0080
_SHARE_ALL = 0x1 | 0x2 | 0x4
_BACKUP_SEMANTICS = 0x02000000
_FILE_BASIC_INFO = 0
_NS_PER_TICK = 100
# From 1601 to 1970.
_EPOCH_TICKS = 116_444_736_000_000_000


class _BasicInfo(ctypes.Structure):
    _fields_ = (
        ("CreationTime", ctypes.c_int64),
        ("LastAccessTime", ctypes.c_int64),
        ("LastWriteTime", ctypes.c_int64),
        ("ChangeTime", ctypes.c_int64),
        ("FileAttributes", wintypes.DWORD),
    )


_get_information = kernel32.GetFileInformationByHandleEx
_get_information.argtypes = (wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD)
_get_information.restype = wintypes.BOOL
_get_short_path = kernel32.GetShortPathNameW
_get_short_path.argtypes = (wintypes.LPCWSTR, wintypes.LPWSTR, wintypes.DWORD)
_get_short_path.restype = wintypes.DWORD


def change_time_ns(path: str, status: os.stat_result) -> int:
    """Nanoseconds since 1970. The time of the last write where the file system keeps no other (FAT)."""
    try:
        # Without BACKUP_SEMANTICS Windows opens no folder.
        handle = open_file(path, _FILE_READ_ATTRIBUTES, _SHARE_ALL, _winapi.OPEN_EXISTING, _BACKUP_SEMANTICS)
    except OSError:
        return status.st_mtime_ns
    try:
        info = _BasicInfo()
        if not _get_information(handle, _FILE_BASIC_INFO, ctypes.byref(info), ctypes.sizeof(info)):
            return status.st_mtime_ns
        return (info.ChangeTime - _EPOCH_TICKS) * _NS_PER_TICK if info.ChangeTime else status.st_mtime_ns
    finally:
        _winapi.CloseHandle(handle)


def short_path(path: str) -> str:
    """The short name of an existing path; the path itself where the volume keeps no short names."""
    length = _get_short_path(path, None, 0)
    buffer = ctypes.create_unicode_buffer(length + 1)
    written = _get_short_path(path, buffer, length + 1)
    return buffer.value if 0 < written <= length else path
