"""Questions that only Windows answers: registry, devices, drives. A failed question gives an empty answer."""

from __future__ import annotations

import ctypes
import ntpath
import sys
import winreg
from ctypes import wintypes

from qnnbridge_tools.doctor.machine import RegistryValue, Root

assert sys.platform == "win32"

_ROOTS = {"HKLM": winreg.HKEY_LOCAL_MACHINE, "HKCU": winreg.HKEY_CURRENT_USER}
_DRIVE_REMOTE = 4
_CR_SUCCESS = 0
_DN_HAS_PROBLEM = 0x400
_JOB_EXTENDED_LIMITS = 9
_JOB_EXTENDED_LIMITS_BYTES = 144 if ctypes.sizeof(ctypes.c_void_p) == 8 else 112
_JOB_FLAGS_OFFSET = 16


class _VersionInfo(ctypes.Structure):
    _fields_ = (
        ("size", wintypes.DWORD),
        ("major", wintypes.DWORD),
        ("minor", wintypes.DWORD),
        ("build", wintypes.DWORD),
        ("platform", wintypes.DWORD),
        ("service_pack", wintypes.WCHAR * 128),
    )


def build() -> int | None:
    """From the kernel: `sys.getwindowsversion` says 9200 (Windows 8) in a program without a newer manifest."""
    info = _VersionInfo(size=ctypes.sizeof(_VersionInfo))
    return None if ctypes.WinDLL("ntdll").RtlGetVersion(ctypes.byref(info)) else int(info.build)


def value(root: Root, key: str, name: str) -> RegistryValue | None:
    try:
        # The 64-bit view, also for a 32-bit process: drivers and devices are described there.
        with winreg.OpenKey(_ROOTS[root], key, 0, winreg.KEY_READ | winreg.KEY_WOW64_64KEY) as opened:
            found = winreg.QueryValueEx(opened, name)[0]
    except OSError:
        return None
    return found if isinstance(found, (str, int, bytes)) else None


def subkeys(root: Root, key: str) -> tuple[str, ...]:
    try:
        with winreg.OpenKey(_ROOTS[root], key, 0, winreg.KEY_READ | winreg.KEY_WOW64_64KEY) as opened:
            return tuple(winreg.EnumKey(opened, index) for index in range(winreg.QueryInfoKey(opened)[0]))
    except OSError:
        return ()


def is_network(path: str) -> bool:
    drive = ntpath.splitdrive(ntpath.abspath(path))[0]
    if drive.startswith("\\\\"):
        return not drive.startswith("\\\\?\\") and not drive.startswith("\\\\.\\")
    kind: int = ctypes.WinDLL("kernel32").GetDriveTypeW(ctypes.c_wchar_p(drive + "\\"))
    return kind == _DRIVE_REMOTE


def device_problem(instance: str) -> int | None:
    """Number of the problem that the device manager shows for a device; ``None`` if it cannot be asked."""
    try:
        manager = ctypes.WinDLL("cfgmgr32")
        node, status, problem = wintypes.DWORD(), wintypes.ULONG(), wintypes.ULONG()
        if manager.CM_Locate_DevNodeW(ctypes.byref(node), ctypes.c_wchar_p(instance), 0) != _CR_SUCCESS:
            return None
        asked = manager.CM_Get_DevNode_Status(ctypes.byref(status), ctypes.byref(problem), node, 0)
    except (OSError, AttributeError):
        return None
    if asked != _CR_SUCCESS:
        return None
    return int(problem.value) if status.value & _DN_HAS_PROBLEM else 0


def job_flags() -> int | None:
    """Limits of the job that this process is in; ``None`` if it is in none. Of nested jobs, the innermost one's."""
    limits = ctypes.create_string_buffer(_JOB_EXTENDED_LIMITS_BYTES)
    try:
        asked = ctypes.WinDLL("kernel32").QueryInformationJobObject(
            None, _JOB_EXTENDED_LIMITS, limits, ctypes.sizeof(limits), None
        )
    except (OSError, AttributeError):
        return None
    return int.from_bytes(limits.raw[_JOB_FLAGS_OFFSET : _JOB_FLAGS_OFFSET + 4], "little") if asked else None
