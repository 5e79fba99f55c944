"""The registry and the version resource of a library, for `npu_driver`."""

from __future__ import annotations

import ctypes
import os
import sys
import winreg
from ctypes import wintypes

assert sys.platform == "win32"

_MAX_RESOURCE_BYTES = 1024 * 1024


class _FixedFileInfo(ctypes.Structure):
    """VS_FIXEDFILEINFO, its beginning."""

    _fields_ = (
        ("signature", wintypes.DWORD),
        ("struct_version", wintypes.DWORD),
        ("file_version_high", wintypes.DWORD),
        ("file_version_low", wintypes.DWORD),
    )


class RealWindows:
    """See `npu_driver.Windows`."""

    def value(self, key: str, name: str) -> str | None:
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
                found = winreg.QueryValueEx(opened, name)[0]
        except OSError:
            return None
        return found if isinstance(found, str) else None

    def system_root(self) -> str:
        return os.environ.get("SYSTEMROOT", r"C:\Windows")

    def file_version(self, path: str) -> str | None:
        library = ctypes.WinDLL("version")
        size = library.GetFileVersionInfoSizeW(ctypes.c_wchar_p(path), None)
        if not 0 < size <= _MAX_RESOURCE_BYTES:
            return None
        resource = ctypes.create_string_buffer(size)
        if not library.GetFileVersionInfoW(ctypes.c_wchar_p(path), 0, size, resource):
            return None
        block, length = ctypes.c_void_p(), wintypes.UINT()
        if not library.VerQueryValueW(resource, "\\", ctypes.byref(block), ctypes.byref(length)):
            return None
        if not block.value or length.value < ctypes.sizeof(_FixedFileInfo):
            return None
        info = _FixedFileInfo.from_address(block.value)
        high, low = int(info.file_version_high), int(info.file_version_low)
        return f"{high >> 16}.{high & 0xFFFF}.{low >> 16}.{low & 0xFFFF}"


def windows() -> RealWindows:
    return RealWindows()
