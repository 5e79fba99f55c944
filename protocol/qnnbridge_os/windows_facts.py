"""Information that only Windows provides: registry, processor, devices, drives, libraries, and the last change
and short path of files. If a query fails, the result is empty."""

from __future__ import annotations

import _winapi
import ctypes
import ntpath
import os
import sys
import winreg
from ctypes import wintypes

assert sys.platform == "win32"

from qnnbridge_os._win32_api import job_flags as job_flags  # noqa: E402 - type checkers find it empty on Linux
from qnnbridge_os._win32_api import kernel32, open_file  # noqa: E402

_ROOTS = {"HKLM": winreg.HKEY_LOCAL_MACHINE, "HKCU": winreg.HKEY_CURRENT_USER}
_PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
_MAX_RESOURCE_BYTES = 1024 * 1024
_DRIVE_REMOTE = 4
_CR_SUCCESS = 0
_DN_HAS_PROBLEM = 0x400


class _VersionInfo(ctypes.Structure):
    _fields_ = (
        ("size", wintypes.DWORD),
        ("major", wintypes.DWORD),
        ("minor", wintypes.DWORD),
        ("build", wintypes.DWORD),
        ("platform", wintypes.DWORD),
        ("service_pack", wintypes.WCHAR * 128),
    )


class _FixedFileInfo(ctypes.Structure):
    """First fields of the structure VS_FIXEDFILEINFO."""

    _fields_ = (
        ("signature", wintypes.DWORD),
        ("struct_version", wintypes.DWORD),
        ("file_version_high", wintypes.DWORD),
        ("file_version_low", wintypes.DWORD),
    )


def build() -> int | None:
    """Return the kernel's build number. `sys.getwindowsversion` returns 9200 (Windows 8) if the program's manifest
    does not list newer versions of Windows."""
    info = _VersionInfo(size=ctypes.sizeof(_VersionInfo))
    return None if ctypes.WinDLL("ntdll").RtlGetVersion(ctypes.byref(info)) else int(info.build)


def value(root: str, key: str, name: str) -> str | int | bytes | None:
    """Return a value from the registry's 64-bit view, which describes drivers and devices, in any process."""
    try:
        with _opened(root, key, winreg.KEY_WOW64_64KEY) as opened:
            found = winreg.QueryValueEx(opened, name)[0]
    except OSError:
        return None
    return found if isinstance(found, (str, int, bytes)) else None


def subkeys(root: str, key: str, view: int = winreg.KEY_WOW64_64KEY) -> tuple[str, ...]:
    try:
        with _opened(root, key, view) as opened:
            return tuple(winreg.EnumKey(opened, index) for index in range(winreg.QueryInfoKey(opened)[0]))
    except OSError:
        return ()


def texts(root: str, key: str, view: int) -> dict[str, str]:
    """Return all values of a key that are strings."""
    try:
        with _opened(root, key, view) as opened:
            found = [winreg.EnumValue(opened, index) for index in range(winreg.QueryInfoKey(opened)[1])]
    except OSError:
        return {}
    return {name: text for name, text, _ in found if isinstance(text, str)}


def _opened(root: str, key: str, view: int) -> winreg.HKEYType:
    return winreg.OpenKey(_ROOTS[root], key, 0, winreg.KEY_READ | view)


def processor_name() -> str | None:
    """Return the name of the processor from Windows. Under emulation the environment and `platform` report a
    different processor."""
    found = value("HKLM", _PROCESSOR, "ProcessorNameString")
    return found if isinstance(found, str) else None


def wine_version() -> str | None:
    """Return Wine's version; ``None`` on Windows itself."""
    try:
        ask = ctypes.WinDLL("ntdll").wine_get_version
    except (AttributeError, OSError):
        return None
    ask.restype = ctypes.c_char_p
    version = ask()
    return version.decode("ascii", "replace") if isinstance(version, bytes) else None


def is_network(path: str) -> bool:
    drive = ntpath.splitdrive(ntpath.abspath(path))[0]
    if drive.startswith("\\\\"):
        if drive.upper().startswith("\\\\?\\UNC"):
            return True
        return not drive.startswith(("\\\\?\\", "\\\\.\\"))
    kind: int = kernel32.GetDriveTypeW(drive + "\\")
    return kind == _DRIVE_REMOTE


def device_problem(instance: str) -> int | None:
    """Return the problem code that the device manager shows for a device; ``None`` if the query fails."""
    try:
        manager = ctypes.WinDLL("cfgmgr32")
        node, status, problem = wintypes.DWORD(), wintypes.ULONG(), wintypes.ULONG()
        # 0 (CM_LOCATE_DEVNODE_NORMAL) finds only devices that are present.
        if manager.CM_Locate_DevNodeW(ctypes.byref(node), ctypes.c_wchar_p(instance), 0) != _CR_SUCCESS:
            return None
        asked = manager.CM_Get_DevNode_Status(ctypes.byref(status), ctypes.byref(problem), node, 0)
    except (OSError, AttributeError):
        return None
    if asked != _CR_SUCCESS:
        return None
    return int(problem.value) if status.value & _DN_HAS_PROBLEM else 0


def file_version(path: str) -> str | None:
    """Return the version from the version resource of a library."""
    library = ctypes.WinDLL("version")
    size = library.GetFileVersionInfoSizeW(ctypes.c_wchar_p(path), None)
    # The size comes from the file, so limit it before memory is allocated.
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


# --- files ----------------------------------------------------------------------------------------------
# Python's ``st_ctime`` is the time of creation on Windows. The short path is an alternative name that Windows keeps
# for a path: it consists of characters that every program can open.

_FILE_READ_ATTRIBUTES = 0x0080
_SHARE_ALL = 0x1 | 0x2 | 0x4
_BACKUP_SEMANTICS = 0x02000000
_FILE_BASIC_INFO = 0
_NS_PER_TICK = 100
# Units of 100 ns between the start of Windows' file times (1601) and 1970.
_EPOCH_TICKS = 116_444_736_000_000_000


class _FileTimes(ctypes.Structure):
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
    """Return the time of the last change of a file (on FAT, of the last write) in nanoseconds since 1970."""
    try:
        # Without BACKUP_SEMANTICS Windows does not open folders.
        handle = open_file(path, _FILE_READ_ATTRIBUTES, _SHARE_ALL, _winapi.OPEN_EXISTING, _BACKUP_SEMANTICS)
    except OSError:
        return status.st_mtime_ns
    try:
        info = _FileTimes()
        if not _get_information(handle, _FILE_BASIC_INFO, ctypes.byref(info), ctypes.sizeof(info)):
            return status.st_mtime_ns
        return (info.ChangeTime - _EPOCH_TICKS) * _NS_PER_TICK if info.ChangeTime else status.st_mtime_ns
    finally:
        _winapi.CloseHandle(handle)


def short_path(path: str) -> str:
    """Return the short name of an existing path; the path itself if the volume stores no short names."""
    length = _get_short_path(path, None, 0)
    buffer = ctypes.create_unicode_buffer(length + 1)
    written = _get_short_path(path, buffer, length + 1)
    return buffer.value if 0 < written <= length else path
