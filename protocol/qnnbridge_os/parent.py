"""A host waits for the end of its parent process, and disables the dialogs that Windows shows after a crash."""

from __future__ import annotations

import ctypes
import sys

if sys.platform == "win32":
    import _winapi
    import msvcrt
    from ctypes import wintypes

    from qnnbridge_os._win32_api import NO_DIALOGS, kernel32

    _QUERY_LIMITED_INFORMATION = 0x1000
    _ERROR_INVALID_PARAMETER = 87  # error code of OpenProcess for an unused process id

    _WRITE_ABORT_MSG, _CALL_REPORTFAULT = 1, 2

    kernel32.GetProcessTimes.argtypes = (wintypes.HANDLE, *[ctypes.POINTER(wintypes.FILETIME)] * 4)

    def error_dialogs_off() -> None:
        """Disable error dialogs and error reports, so that a crash ends the process without delay."""
        msvcrt.SetErrorMode(NO_DIALOGS)
        try:
            # Clear both flags, so that `abort` neither shows a message box nor starts Windows Error Reporting.
            ctypes.CDLL("ucrtbase")._set_abort_behavior(0, _WRITE_ABORT_MSG | _CALL_REPORTFAULT)
        except (OSError, AttributeError):
            pass  # this Python uses another C runtime
        # The checks in a debug build of Python open windows. A release build does not have this function.
        set_report_mode = getattr(msvcrt, "CrtSetReportMode", None)
        if set_report_mode is not None:
            for kind in (0, 1, 2):  # warnings, errors, assertions
                set_report_mode(kind, 0)

    class ParentHandle:
        """A process to wait for. Raises `ProcessLookupError` if the process has already ended."""

        means: tuple[str, ...] = ("handle",)

        def __init__(self, pid: int) -> None:
            try:
                handle = _winapi.OpenProcess(_winapi.SYNCHRONIZE | _QUERY_LIMITED_INFORMATION, False, pid)
            except OSError as error:
                if error.winerror == _ERROR_INVALID_PARAMETER:
                    raise ProcessLookupError(f"process {pid} does not exist") from None
                raise
            # Keep the handle until this process ends: Windows does not reuse the process id while a handle of the
            # process is open.
            self._handle = handle
            # A process that has ended can be opened as long as other processes have a handle of it.
            if _winapi.WaitForSingleObject(handle, 0) == _winapi.WAIT_OBJECT_0:
                raise ProcessLookupError(f"process {pid} has ended")
            # Windows may reuse process ids immediately. A parent that is younger than its child is a different
            # process.
            if _created(handle) > _created(_winapi.GetCurrentProcess()):
                raise ProcessLookupError(f"process {pid} has ended, and its id belongs to another process")

        def wait(self) -> None:
            """Wait until the process has ended."""
            _winapi.WaitForSingleObject(self._handle, _winapi.INFINITE)

    def _created(process: int) -> int:
        times = [wintypes.FILETIME() for _ in range(4)]
        if not kernel32.GetProcessTimes(process, *map(ctypes.byref, times)):
            return 0
        return int(times[0].dwHighDateTime) << 32 | int(times[0].dwLowDateTime)

else:
    import os
    import select
    import time

    from qnnbridge_protocol.process_names import HOST_NAME

    _PR_SET_PDEATHSIG = 1
    # The module `signal` is not imported, because its enums would add half a millisecond to the host's start.
    _SIGKILL = 9

    _POLL_INTERVAL_S = 1.0

    def error_dialogs_off() -> None:
        """Do nothing, because only Windows shows dialogs."""

    class ParentHandle:
        """A process to wait for. Raises `ProcessLookupError` if the process has already ended.

        `means` lists the methods that detect the end of the process; see `parent_watch.arm`.
        """

        def __init__(self, pid: int) -> None:
            self._pid = pid
            self._pidfd: int | None = None
            means: list[str] = []
            # Use the parent-death signal only for the direct parent. With a wrapper in between, the signal would be
            # sent when the wrapper ends, which may be long before the application ends.
            self._is_parent = os.getppid() == pid
            if self._is_parent:
                _name_me()
                if _kill_me_with_my_parent():
                    means.append("pdeathsig")
            # Check the parent after enabling the signal: the kernel sends no signal for a parent that was already
            # dead.
            if self._gone():
                raise ProcessLookupError(f"process {pid} does not exist")
            if sys.platform == "linux":
                try:
                    self._pidfd = os.pidfd_open(pid)
                except ProcessLookupError:
                    raise
                except (OSError, AttributeError):
                    pass  # before Linux 5.3, or forbidden by a sandbox
            means.append("polling" if self._pidfd is None else "pidfd")
            self.means = tuple(means)

        def wait(self) -> None:
            """Wait until the process has ended. The end is noticed within a second."""
            # A pidfd becomes readable when its process ends.
            if self._pidfd is not None:
                poll = select.poll()
                poll.register(self._pidfd, select.POLLIN)
                poll.poll()
                return
            while not self._gone():
                time.sleep(_POLL_INTERVAL_S)

        def _gone(self) -> bool:
            if self._is_parent:
                return os.getppid() != self._pid  # the parent has ended: another process has adopted this process
            try:
                os.kill(self._pid, 0)
            except ProcessLookupError:
                return True
            except PermissionError:
                pass  # the process exists and belongs to another user
            return False

    def _name_me() -> None:
        """Set the process name. If `exec` replaces the application by another program with qnnbridge, the new
        program finds dead hosts by this name."""
        try:
            with open("/proc/self/comm", "wb", buffering=0) as file:
                file.write(HOST_NAME.encode())
        except OSError:
            pass  # not Linux

    def _kill_me_with_my_parent() -> bool:
        """Make the kernel send SIGKILL to this process when the *thread* that started it ends. That thread lives
        as long as the client."""
        try:
            prctl = ctypes.CDLL(None, use_errno=True).prctl
            return bool(prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) == 0)
        except (OSError, AttributeError):
            return False  # not Linux, or an emulator that does not support `prctl`
