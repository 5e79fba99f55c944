"""Watching the parent and crashing quietly on Windows."""

from __future__ import annotations

import _winapi
import ctypes
import msvcrt
import sys
from ctypes import wintypes

assert sys.platform == "win32"

from qnnbridge_os._win32_api import NO_DIALOGS, kernel32  # noqa: E402 - type checkers find it empty on Linux

_QUERY_LIMITED_INFORMATION = 0x1000
_ERROR_INVALID_PARAMETER = 87  # OpenProcess of an unused process id

_WRITE_ABORT_MSG, _CALL_REPORTFAULT = 1, 2

kernel32.GetProcessTimes.argtypes = (wintypes.HANDLE, *[ctypes.POINTER(wintypes.FILETIME)] * 4)


def error_dialogs_off() -> None:
    """A crash ends the process at once: no dialog, and no error reporting that holds it for seconds."""
    msvcrt.SetErrorMode(NO_DIALOGS)
    try:
        # 0 for both flags: no message box, and no Windows Error Reporting.
        ctypes.CDLL("ucrtbase")._set_abort_behavior(0, _WRITE_ABORT_MSG | _CALL_REPORTFAULT)
    except (OSError, AttributeError):
        pass  # another C runtime
    # The checks of a debug build of Python open windows; a release build has no such function.
    set_report_mode = getattr(msvcrt, "CrtSetReportMode", None)
    if set_report_mode is not None:
        for kind in (0, 1, 2):  # warnings, errors, assertions
            set_report_mode(kind, 0)


class ParentHandle:
    """A process to wait for. Raises `ProcessLookupError` if it is gone already."""

    means: tuple[str, ...] = ("handle",)

    def __init__(self, pid: int) -> None:
        try:
            handle = _winapi.OpenProcess(_winapi.SYNCHRONIZE | _QUERY_LIMITED_INFORMATION, False, pid)
        except OSError as error:
            if error.winerror == _ERROR_INVALID_PARAMETER:
                raise ProcessLookupError(f"process {pid} is gone") from None
            raise
        # Kept until this process ends: Windows does not give the number away while a handle of the process is open.
        self._handle = handle
        # A process that has ended can be opened as long as others hold a handle of it.
        if _winapi.WaitForSingleObject(handle, 0) == _winapi.WAIT_OBJECT_0:
            raise ProcessLookupError(f"process {pid} has ended")
        # Windows reuses process ids at once: no parent is younger than its child.
        if _created(handle) > _created(_winapi.GetCurrentProcess()):
            raise ProcessLookupError(f"process {pid} is gone and its number belongs to another one")

    def wait(self) -> None:
        """Until the process has ended."""
        _winapi.WaitForSingleObject(self._handle, _winapi.INFINITE)


def _created(process: int) -> int:
    times = [wintypes.FILETIME() for _ in range(4)]
    if not kernel32.GetProcessTimes(process, *map(ctypes.byref, times)):
        return 0
    return int(times[0].dwHighDateTime) << 32 | int(times[0].dwLowDateTime)
