"""The daemon's named pipe on Windows, both ends; what is handed out through it, and the daemon's place among
processes.

The pipe is opened for overlapped calls, so that each has a deadline. Raises `OSError` (`ctypes.WinError`)
throughout. A stream belongs to one thread, and so does `accept`; any may
call `drop`, and `close` of the endpoint.
"""

from __future__ import annotations

import _winapi
import contextlib
import ctypes
import errno
import msvcrt
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from ctypes import wintypes
from pathlib import Path
from typing import Any, Final

from qnnbridge_os import _win32_api as api
from qnnbridge_os.fds import OwnedFds

assert sys.platform == "win32"

from qnnbridge_os._win32_api import kernel32  # noqa: E402 - type checkers find it empty on Linux
from qnnbridge_os._win32_streams import (  # noqa: E402
    BUFFER_BYTES,
    ShareHandle,
    give_handle,
    reclaim,
    stop_writing,
    wait_readable,
)
from qnnbridge_os.private import OwnerOnly, user_sid  # noqa: E402

PIPE_PREFIX: Final = "\\\\.\\pipe\\qnnbridge-"

# The server may learn who we are, and not act in our name: another's pipe could do that otherwise.
_IDENTIFICATION: Final = 0x00100000 | 0x00010000  # SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION
# One wait. The deadline is looked at in between.
_BUSY_WAIT_MS: Final = 200
_ERROR_PIPE_BUSY: Final = 231
_ERROR_SEM_TIMEOUT: Final = 121
for _function in (kernel32.GetNamedPipeClientProcessId, kernel32.GetNamedPipeServerProcessId):
    _function.argtypes = (wintypes.HANDLE, ctypes.POINTER(wintypes.ULONG))


class DaemonStream:
    """One connection at the door. peer_pid: as Windows reports it."""

    def __init__(self, handle: int, *, client: bool) -> None:
        self._handle = handle
        self._dropped = False
        asked = kernel32.GetNamedPipeServerProcessId if client else kernel32.GetNamedPipeClientProcessId
        pid = wintypes.ULONG()
        # With 0, `check_peer` refuses the connection.
        self.peer_pid = int(pid.value) if asked(handle, ctypes.byref(pid)) else 0

    def check_peer(self) -> None:
        """Raises `PermissionError` if another user is at the other end, or the user cannot be found out."""
        if not self.peer_pid:
            raise PermissionError("Windows does not tell which user is at the other end")
        try:
            theirs = user_sid(self.peer_pid)
        except OSError as error:
            raise PermissionError(
                f"process {self.peer_pid} belongs to another user, or runs as administrator ({error})"
            ) from error
        check_peer(theirs, user_sid())

    def receive(self, count: int, deadline: float) -> bytes:
        """Receive this many bytes. Raises `TimeoutError`, `ConnectionError`."""
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
        read_fd = fds.adopt(api.descriptor_of(handles[0], os.O_RDONLY))
        write_fd = fds.adopt(api.descriptor_of(handles[1], os.O_WRONLY))
        return read_fd, write_fd

    def send(self, data: bytes, deadline: float) -> None:
        """All of it. Raises `TimeoutError`, `ConnectionError`."""
        while data:
            pending, _ = _winapi.WriteFile(self._handle, data, overlapped=True)
            data = data[self.finish(pending, deadline) :]

    def drop(self) -> None:
        """Waiting calls fail. The handle stays until `close`."""
        # First the mark: `finish` looks at it when its call was cancelled.
        self._dropped = True
        api.cancel_io(self._handle)

    def close(self) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            _winapi.CloseHandle(handle)

    def finish(self, pending: Any, deadline: float) -> int:
        """Wait for an operation; its count of bytes."""
        left_ms = int(max(0.0, deadline - time.monotonic()) * 1000)
        # Not WaitForSingleObject: Python lets Ctrl+C end only the wait for several.
        try:
            in_time = _winapi.WaitForMultipleObjects([pending.event], False, left_ms) == _winapi.WAIT_OBJECT_0
        except BaseException:
            # The kernel writes into the buffer until the operation has ended, so it must not be freed before.
            pending.cancel()
            pending.GetOverlappedResult(True)
            raise
        if not in_time:
            pending.cancel()
        # Also after a cancel: bytes that were transferred until then count, or the place in the stream would be
        # lost.
        try:
            count, _ = pending.GetOverlappedResult(True)
        except OSError as error:
            raise ConnectionResetError(f"the other side closed the connection ({error})") from error
        if count:
            return int(count)
        # It was cancelled, or the stream has ended.
        if self._dropped:
            raise ConnectionAbortedError("others were waiting")
        if not in_time:
            raise TimeoutError("the other side did not answer in time")
        raise ConnectionResetError("the other side closed the connection")


def check_peer(user: str, own: str) -> None:
    """Raises `PermissionError` unless both ends belong to the same user."""
    if user != own:
        raise PermissionError(f"the other end belongs to user {user}, not to {own}")


def connect_to_daemon(endpoint: str, folder: Path, deadline: float) -> DaemonStream:
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
            return DaemonStream(handle, client=True)
        except OSError as error:
            # All instances have a client. The daemon makes the next one as soon as it accepts.
            if error.winerror != _ERROR_PIPE_BUSY:
                raise
        if time.monotonic() >= deadline:
            raise TimeoutError("the daemon accepts no connection")
        try:
            _winapi.WaitNamedPipe(endpoint, _BUSY_WAIT_MS)
        except OSError as error:
            if error.winerror not in (_ERROR_SEM_TIMEOUT, _ERROR_PIPE_BUSY):
                raise


def connection_ended(read_fd: int, timeout_s: float | None) -> bool:
    """Whether the other end of this pipe is closed. Waits for at most the given time for that."""
    if not wait_readable(read_fd, timeout_s):
        return False
    try:
        _winapi.PeekNamedPipe(msvcrt.get_osfhandle(read_fd), 0)
    except OSError:
        return True
    return False  # there is something to read


def abandon_stream(write_fd: int) -> None:
    """Let the other side see the end, and keep the number: another thread may be about to write to it."""
    stop_writing(write_fd)
    api.cancel_io(msvcrt.get_osfhandle(write_fd))
    null = os.open(os.devnull, os.O_WRONLY | os.O_BINARY | os.O_NOINHERIT)
    try:
        os.dup2(null, write_fd, inheritable=False)
    finally:
        os.close(null)


def release_stream(write_fd: int, read_fd: int) -> None:
    """Called before they are closed: ends the calls that wait in them."""
    stop_writing(write_fd)
    for fd in (write_fd, read_fd):
        api.cancel_io(msvcrt.get_osfhandle(fd))


_NAME_BYTES: Final = 16
# For the greeting only. What follows goes through pipes of its own (`Streams`).
_PIPE_BUFFER_BYTES: Final = 4096
# Named pipes can be reached from other computers (SMB).
_REJECT_REMOTE_CLIENTS: Final = 0x8


def make_endpoint(folder: Path) -> str:
    """The name of the pipe that a `DaemonEndpoint` opens: it cannot be guessed, so no other has it first."""
    return PIPE_PREFIX + secrets.token_hex(_NAME_BYTES)


class DaemonEndpoint:
    """The open door: there is always one instance of the pipe that waits for a client."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        """Raises `OSError`."""
        self.endpoint = endpoint
        self._attributes = OwnerOnly()
        # FIRST_PIPE_INSTANCE fails if the name exists: no other process can be in front of this one.
        self._waiting = self._instance(_winapi.FILE_FLAG_FIRST_PIPE_INSTANCE)
        # Of which instance waits, and whether one does: `close` must not mean another handle.
        self._lock = threading.Lock()
        self._closed = self._released = False

    @property
    def handle(self) -> int:
        """Of the instance that waits."""
        return self._waiting

    @property
    def is_there(self) -> bool:
        """A pipe is there as long as its process."""
        return True

    def accept(self) -> DaemonStream | None:
        """The next visitor; ``None`` when the gate was closed. Raises `OSError` if there is no instance for it."""
        while True:
            try:
                pending = _winapi.ConnectNamedPipe(self._waiting, overlapped=True)
            except OSError as error:
                if error.winerror != _winapi.ERROR_NO_DATA:
                    raise
                api.disconnect_pipe(self._waiting)  # a visitor came and went before; only then another can come
                continue
            came = self._wait(pending)
            if self._closed:
                return None
            # The next instance comes first, so that a client finds one while this visitor is served.
            try:
                following = self._instance()
            except OSError:
                if came:  # without this one no client could connect
                    api.disconnect_pipe(self._waiting)
                raise
            with self._lock:
                handle, self._waiting = self._waiting, following
            if came:
                return DaemonStream(handle, client=False)
            _winapi.CloseHandle(handle)

    def close(self) -> None:
        """No visitor comes in any more. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._released:
                api.cancel_io(self._waiting)

    def release(self) -> None:
        """No thread is in `accept` any more."""
        with self._lock:
            self._released = True
            _winapi.CloseHandle(self._waiting)

    def _instance(self, first: int = 0) -> int:
        return _winapi.CreateNamedPipe(
            self.endpoint,
            _winapi.PIPE_ACCESS_DUPLEX | _winapi.FILE_FLAG_OVERLAPPED | first,
            _REJECT_REMOTE_CLIENTS,  # bytes, and waiting: the other flags are zero
            _winapi.PIPE_UNLIMITED_INSTANCES,
            _PIPE_BUFFER_BYTES,
            _PIPE_BUFFER_BYTES,
            0,
            self._attributes.address,
        )

    def _wait(self, pending: _winapi.Overlapped) -> bool:
        try:
            while not self._closed:
                # In slices: `close` may come between the look at it and the wait.
                if _winapi.WaitForMultipleObjects([pending.event], False, 500) == _winapi.WAIT_OBJECT_0:
                    break
            if self._closed:
                pending.cancel()
            pending.GetOverlappedResult(True)
        except OSError:
            return False
        return not self._closed


class Streams:
    """Two one-way pipes to a client. `in_fd` and `out_fd` are ours, the others on their way to the client."""

    def __init__(self) -> None:
        # Without security attributes the ends are not inherited by programs that are started.
        with contextlib.ExitStack() as undo:
            ours, self._their_write = _winapi.CreatePipe(None, BUFFER_BYTES)
            undo.callback(_winapi.CloseHandle, self._their_write)
            self.in_fd = api.descriptor_of(ours, os.O_RDONLY)
            undo.callback(os.close, self.in_fd)
            self._their_read, ours = _winapi.CreatePipe(None, BUFFER_BYTES)
            undo.callback(_winapi.CloseHandle, self._their_read)
            self.out_fd = api.descriptor_of(ours, os.O_WRONLY)
            undo.pop_all()  # all of it is there

    def hand_over(self, stream: DaemonStream, answer: Callable[[tuple[int, int]], bytes], deadline: float) -> None:
        """Give the client its ends, with the answer. Raises `OSError`; ours stay open then."""
        pid = stream.peer_pid
        given: list[ShareHandle] = []
        try:
            for theirs in (self._their_read, self._their_write):
                given.append({"handle": give_handle(theirs, pid)})  # noqa: PERF401 - the second may fail
            stream.send(answer((given[0]["handle"], given[1]["handle"])), deadline)
        except BaseException:  # it does not know of them
            for share_handle in given:
                reclaim(share_handle, pid)
            raise

    def release_theirs(self) -> None:
        """The client has them, or never will."""
        _winapi.CloseHandle(self._their_read)
        _winapi.CloseHandle(self._their_write)

    def close_ours(self) -> None:
        os.close(self.in_fd)
        os.close(self.out_fd)


def let_go_of_terminal() -> None:
    """Nothing to do: it was started without a console, and no process has to be collected."""


def allow_descriptors() -> None:
    """Nothing to do: handles are not limited, and the C library has room for 8192 files."""


def on_leave(leave: Callable[[], None]) -> None:
    """Call `leave` when the user asks for the end. The main thread has to be the caller."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGBREAK):
        signal.signal(number, lambda *_: leave())


class KeptMemory:
    """Memory of a client, kept so that the NPU host can be shown it, by a handle of this process. Any thread.

    The client has duplicated its handle into this process, which duplicates it into each NPU host anew: a handle
    means something in one process only. This process has started the host and belongs to the same user, so it may
    do that (PROCESS_DUP_HANDLE), and the handle has all the rights that the client's has.
    """

    def __init__(self, where: dict[str, Any]) -> None:
        """The handle stays in `where` until the memory is mapped. Raises `OSError`, `ValueError`."""
        handle = where.get("handle")
        if type(handle) is not int or handle <= 0:
            raise ValueError("memory is named by its handle in this process")
        us = _winapi.GetCurrentProcess()
        self._handle = _winapi.DuplicateHandle(us, handle, us, 0, False, _winapi.DUPLICATE_SAME_ACCESS)

    def share_handle(self, pid: int) -> dict[str, Any]:
        """For the host with this process id, which owns the handle once its number was sent. Raises `OSError`."""
        return {"handle": give_handle(self._handle, pid)}

    def close(self) -> None:
        """Once. It will not be shared again."""
        _winapi.CloseHandle(self._handle)
