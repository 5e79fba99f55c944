"""The daemon's door on Windows: a named pipe, whose other end Windows names.

Every call has a deadline, so all of it is overlapped I/O. A stream belongs to one thread; `drop` may be called by
any. The client lets the daemon know who it is, and not act in its name (identification level).
"""

from __future__ import annotations

import _winapi
import ctypes
import errno
import msvcrt
import os
import sys
import time
from ctypes import wintypes
from pathlib import Path
from typing import Any, Final

from qnnbridge._platform import _win32_api as api
from qnnbridge._platform._fds import OwnedFds

assert sys.platform == "win32"

from qnnbridge._platform._win32_pipes import stop_writing, wait_readable  # noqa: E402 - type checkers find it empty on Linux
from qnnbridge._platform._win32_security import user_sid  # noqa: E402

PIPE_PREFIX: Final = "\\\\.\\pipe\\qnnbridge-"

_IDENTIFICATION: Final = 0x00100000 | 0x00010000  # SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION
_BUSY_WAIT_MS: Final = 200
_ERROR_PIPE_BUSY: Final = 231
_ERROR_SEM_TIMEOUT: Final = 121

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
for _function in (_kernel32.GetNamedPipeClientProcessId, _kernel32.GetNamedPipeServerProcessId):
    _function.argtypes = (wintypes.HANDLE, ctypes.POINTER(wintypes.ULONG))


class PipeStream:
    """One connection at the door. peer_pid: as Windows tells it."""

    def __init__(self, handle: int, *, client: bool) -> None:
        self._handle = handle
        self._dropped = False
        asked = _kernel32.GetNamedPipeServerProcessId if client else _kernel32.GetNamedPipeClientProcessId
        pid = wintypes.ULONG()
        self.peer_pid = int(pid.value) if asked(handle, ctypes.byref(pid)) else 0

    def check_peer(self) -> None:
        """Raises `PermissionError` if somebody else is at the other end, or that cannot be found out."""
        if not self.peer_pid:
            raise PermissionError("Windows does not tell who is at the other end")
        try:
            theirs = user_sid(self.peer_pid)
        except OSError as error:
            raise PermissionError(
                f"process {self.peer_pid} belongs to somebody else, or runs as administrator ({error})"
            ) from error
        check_peer(theirs, user_sid())

    def receive(self, count: int, deadline: float) -> bytes:
        """So many bytes. Raises `TimeoutError`, `ConnectionError`."""
        data = b""
        while len(data) < count:
            pending, _ = _winapi.ReadFile(self._handle, count - len(data), overlapped=True)
            self.finish(pending, deadline)
            data += bytes(pending.getbuffer() or b"")
        return data

    def receive_with_ends(self, count: int, fds: OwnedFds, deadline: float) -> bytes:
        """`receive`; the handles are in the record, see `ends`."""
        return self.receive(count, deadline)

    def ends(self, handles: tuple[int, int], fds: OwnedFds) -> tuple[int, int]:
        """Descriptors for the two handles that the daemon has given to this process."""
        if not all(handles):
            raise ConnectionError("the daemon sent no streams")
        read_fd = fds.adopt(msvcrt.open_osfhandle(handles[0], os.O_RDONLY | os.O_BINARY | os.O_NOINHERIT))
        write_fd = fds.adopt(msvcrt.open_osfhandle(handles[1], os.O_WRONLY | os.O_BINARY | os.O_NOINHERIT))
        return read_fd, write_fd

    def send(self, data: bytes, deadline: float) -> None:
        """All of it. Raises `TimeoutError`, `ConnectionError`."""
        while data:
            pending, _ = _winapi.WriteFile(self._handle, data, overlapped=True)
            data = data[self.finish(pending, deadline) :]

    def drop(self) -> None:
        """Whoever waits in it is sent away. The handle stays until `close`."""
        self._dropped = True
        api.cancel_io(self._handle)

    def close(self) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            _winapi.CloseHandle(handle)

    def finish(self, pending: Any, deadline: float) -> int:
        """Wait for an operation; its count of bytes."""
        left_ms = int(max(0.0, deadline - time.monotonic()) * 1000)
        try:
            in_time = _winapi.WaitForMultipleObjects([pending.event], False, left_ms) == _winapi.WAIT_OBJECT_0
        except BaseException:
            pending.cancel()
            pending.GetOverlappedResult(True)
            raise
        if not in_time:
            pending.cancel()
        try:
            count, _ = pending.GetOverlappedResult(True)
        except OSError as error:
            raise ConnectionResetError(f"the other side closed the door ({error})") from error
        if count:
            return int(count)
        # It was cancelled, or the stream has ended.
        if self._dropped:
            raise ConnectionAbortedError("others were waiting")
        if not in_time:
            raise TimeoutError("the other side did not answer in time")
        raise ConnectionResetError("the other side closed the door")


def check_peer(user: str, own: str) -> None:
    """Raises `PermissionError` unless both ends belong to the same user."""
    if user != own:
        raise PermissionError(f"the other end belongs to user {user}, not to {own}")


def open_door(endpoint: str, folder: Path, deadline: float) -> PipeStream:
    """A connection to the daemon at this pipe. Raises `OSError` if there is none."""
    if not endpoint.startswith(PIPE_PREFIX):
        raise FileNotFoundError(errno.ENOENT, f"{endpoint} is no pipe of qnnbridge")
    access = _winapi.GENERIC_READ | _winapi.GENERIC_WRITE
    flags = _winapi.FILE_FLAG_OVERLAPPED | _IDENTIFICATION
    while True:
        try:
            handle = _winapi.CreateFile(
                endpoint, access, 0, _winapi.NULL, _winapi.OPEN_EXISTING, flags, _winapi.NULL
            )
            return PipeStream(handle, client=True)
        except OSError as error:
            if error.winerror != _ERROR_PIPE_BUSY:
                raise
        if time.monotonic() >= deadline:
            raise TimeoutError("the daemon lets nobody in")
        try:
            _winapi.WaitNamedPipe(endpoint, _BUSY_WAIT_MS)
        except OSError as error:
            if error.winerror not in (_ERROR_SEM_TIMEOUT, _ERROR_PIPE_BUSY):
                raise


def connection_ended(read_fd: int, timeout_s: float | None) -> bool:
    """Whether nobody holds the other end of this pipe any more. Waits for at most the given time for that."""
    if not wait_readable(read_fd, timeout_s):
        return False
    try:
        _winapi.PeekNamedPipe(msvcrt.get_osfhandle(read_fd), 0)
    except OSError:
        return True
    return False  # there is something to read


def abandon_stream(write_fd: int) -> None:
    """Let the other side see the end, and keep the number: somebody may be about to write to it."""
    stop_writing(write_fd)
    api.cancel_io(msvcrt.get_osfhandle(write_fd))
    null = os.open(os.devnull, os.O_WRONLY | os.O_BINARY | os.O_NOINHERIT)
    try:
        os.dup2(null, write_fd, inheritable=False)
    finally:
        os.close(null)


def release_stream(write_fd: int, read_fd: int) -> None:
    """They are about to be closed: nobody may be left waiting in them."""
    stop_writing(write_fd)
    for fd in (write_fd, read_fd):
        api.cancel_io(msvcrt.get_osfhandle(fd))
