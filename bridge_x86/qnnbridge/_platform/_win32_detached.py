"""Starting a program that outlives this one, on Windows. Any thread."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from ctypes import wintypes
from typing import Final

from qnnbridge._platform._fds import OwnedFds
from qnnbridge_protocol.errors import HostStartFailed

assert sys.platform == "win32"

_BREAKAWAY: Final = subprocess.CREATE_BREAKAWAY_FROM_JOB
_FLAGS: Final = subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP
_EXTENDED_LIMITS: Final = 9
_LIMIT_FLAGS_OFFSET: Final = 16
_LIMITS_BYTES: Final = 256
_KILL_ON_CLOSE: Final = 0x2000
_ACCESS_DENIED: Final = 5

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel32.QueryInformationJobObject.argtypes = (
    *(wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD),
    ctypes.c_void_p,
)


class Detached:
    """A program that leads a life of its own. stderr_fd: to read what it says until it closes its end."""

    def __init__(self, process: subprocess.Popen[bytes], fds: OwnedFds, stderr_fd: int) -> None:
        self._process = process
        self._fds = fds
        self.stderr_fd = stderr_fd

    def close(self) -> None:
        """Listen no more."""
        self.stderr_fd = -1
        self._fds.close_all()
        if self._process.poll() is None:
            self._process.returncode = 0  # or Popen would call it a forgotten one; it is meant to live


def start_detached(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Detached:
    """Without a console, and outside of the job of this program where that is allowed. Raises `OSError`, and
    `HostStartFailed` where the program would be ended together with this one."""
    try:
        return _start(argv, env, cwd, _FLAGS | _BREAKAWAY)
    except OSError as error:
        if error.winerror != _ACCESS_DENIED:
            raise
    if in_job_that_kills():
        raise _would_die_with_us()
    return _start(argv, env, cwd, _FLAGS)


def in_job_that_kills() -> bool:
    """Whether this process is in a job that ends all its processes when it is closed."""
    limits = ctypes.create_string_buffer(_LIMITS_BYTES)
    returned = wintypes.DWORD()
    for size in (144, 112):  # of JOBOBJECT_EXTENDED_LIMIT_INFORMATION, 64 and 32 bit
        if _kernel32.QueryInformationJobObject(None, _EXTENDED_LIMITS, limits, size, ctypes.byref(returned)):
            flags = int.from_bytes(limits.raw[_LIMIT_FLAGS_OFFSET : _LIMIT_FLAGS_OFFSET + 4], "little")
            return bool(flags & _KILL_ON_CLOSE)
    return False  # in no job


def _start(argv: Sequence[str], env: Mapping[str, str], cwd: str, flags: int) -> Detached:
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=dict(env),
        cwd=cwd,
        close_fds=True,
        creationflags=flags,
    )
    assert process.stderr is not None
    fds = OwnedFds()
    copy = fds.adopt(os.dup(process.stderr.fileno()))
    process.stderr.close()
    return Detached(process, fds, copy)


def _would_die_with_us() -> HostStartFailed:
    error = HostStartFailed(
        "The daemon cannot be started from here: it would end together with this program.",
        cause="This program is in a job of Windows that ends all its processes, and does not let them leave. "
        "Terminals, editors and test runners make such jobs.",
        fix="Start the daemon from another terminal (qnnbridge host start), or let the Task Scheduler do it "
        "(qnnbridge host service).",
    )
    error.retry = "pointless"
    return error
