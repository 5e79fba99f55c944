"""Watching the parent on Linux."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time

from qnnbridge_protocol.process_names import HOST_NAME

assert sys.platform != "win32"

_PR_SET_PDEATHSIG = 1
# Not from `signal`, whose enums cost the host half a millisecond of its start.
_SIGKILL = 9

_POLL_INTERVAL_S = 1.0


def error_dialogs_off() -> None:
    """Only Windows shows any."""


class ParentHandle:
    """A process to wait for. Raises `ProcessLookupError` if it is gone already.

    means: see `parent_watch.arm`.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pidfd: int | None = None
        means: list[str] = []
        # Only if it is the real parent: behind a wrapper the signal would come when the wrapper ends, which may be
        # long before the application does.
        self._is_parent = os.getppid() == pid
        if self._is_parent:
            _name_me()
            if _kill_me_with_my_parent():
                means.append("pdeathsig")
        # Before the look at the parent: a parent that was dead when the signal was armed sends none, and is noticed
        # there.
        if self._gone():
            raise ProcessLookupError(f"process {pid} is gone")
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
        """Until the process has ended, noticed within a second."""
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
            return os.getppid() != self._pid  # another process has adopted the orphan
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # it runs for another user
        return False


def _name_me() -> None:
    """A program that the application becomes by `exec` finds its dead hosts by that name."""
    try:
        with open("/proc/self/comm", "wb", buffering=0) as file:
            file.write(HOST_NAME.encode())
    except OSError:
        pass  # no Linux


def _kill_me_with_my_parent() -> bool:
    """By SIGKILL, when the *thread* that started this process ends; the client has one that lives for ever."""
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        return bool(prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False  # no Linux, or an emulator that does not know it
