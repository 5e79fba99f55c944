"""Both ends of the daemon's named pipe on Windows, the streams and memory whose handles are passed through the
pipe, and the daemon's detachment from its parent.

The pipe is opened for overlapped calls, so that each call can have a deadline. Functions raise `OSError`
(`ctypes.WinError`). Only one thread may use a stream, and only one may call `accept`. Any thread may call `drop`
and `DaemonEndpoint.close`.
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

# The server of the pipe may identify this user, but not act as this user. Otherwise the owner of a false pipe could
# act as this user.
_IDENTIFICATION: Final = 0x00100000 | 0x00010000  # SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION
# Longest single wait for a free instance of the pipe. The deadline is checked between waits.
_BUSY_WAIT_MS: Final = 200
_ERROR_PIPE_BUSY: Final = 231
_ERROR_SEM_TIMEOUT: Final = 121
for _function in (kernel32.GetNamedPipeClientProcessId, kernel32.GetNamedPipeServerProcessId):
    _function.argtypes = (wintypes.HANDLE, ctypes.POINTER(wintypes.ULONG))


class DaemonStream:
    """One connection between the daemon and a client. `peer_pid` is the peer's process id, as Windows reports
    it."""

    def __init__(self, handle: int, *, client: bool) -> None:
        self._handle = handle
        self._dropped = False
        asked = kernel32.GetNamedPipeServerProcessId if client else kernel32.GetNamedPipeClientProcessId
        pid = wintypes.ULONG()
        # `check_peer` refuses a connection whose `peer_pid` is 0.
        self.peer_pid = int(pid.value) if asked(handle, ctypes.byref(pid)) else 0

    def check_peer(self) -> None:
        """Raise `PermissionError` if the other end belongs to another or unknown user."""
        if not self.peer_pid:
            raise PermissionError("Windows does not report which user is at the other end")
        try:
            theirs = user_sid(self.peer_pid)
        except OSError as error:
            raise PermissionError(
                f"process {self.peer_pid} belongs to another user, or runs as administrator ({error})"
            ) from error
        check_peer(theirs, user_sid())

    def receive(self, count: int, deadline: float) -> bytes:
        """Receive the given number of bytes. Raise `TimeoutError` or `ConnectionError`."""
        data = b""
        while len(data) < count:
            pending, _ = _winapi.ReadFile(self._handle, count - len(data), overlapped=True)
            self.finish(pending, deadline)
            data += bytes(pending.getbuffer() or b"")
        return data

    def receive_with_ends(self, count: int, fds: OwnedFds, deadline: float) -> bytes:
        """Receive bytes like `receive`. The received answer contains the handles of the streams; see `ends`."""
        return self.receive(count, deadline)

    def ends(self, handles: tuple[int, int], fds: OwnedFds) -> tuple[int, int]:
        """Return descriptors for the two handles that the daemon has duplicated into this process: (read,
        write)."""
        if not all(handles):
            raise ConnectionError("the daemon sent no streams")
        read_fd = fds.adopt(api.descriptor_of(handles[0], os.O_RDONLY))
        write_fd = fds.adopt(api.descriptor_of(handles[1], os.O_WRONLY))
        return read_fd, write_fd

    def send(self, data: bytes, deadline: float) -> None:
        """Send all bytes. Raise `TimeoutError` or `ConnectionError`."""
        while data:
            pending, _ = _winapi.WriteFile(self._handle, data, overlapped=True)
            data = data[self.finish(pending, deadline) :]

    def drop(self) -> None:
        """Make waiting calls fail. The handle stays open until `close`."""
        # Set the flag first, because `finish` checks it when its call was cancelled.
        self._dropped = True
        api.cancel_io(self._handle)

    def close(self) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            _winapi.CloseHandle(handle)

    def finish(self, pending: Any, deadline: float) -> int:
        """Wait for an operation and return the number of transferred bytes."""
        left_ms = int(max(0.0, deadline - time.monotonic()) * 1000)
        # Do not use WaitForSingleObject: in Python, Ctrl+C only interrupts a wait for several objects.
        try:
            in_time = _winapi.WaitForMultipleObjects([pending.event], False, left_ms) == _winapi.WAIT_OBJECT_0
        except BaseException:
            # The kernel writes into the buffer until the operation has ended, so the buffer must not be freed
            # before.
            pending.cancel()
            pending.GetOverlappedResult(True)
            raise
        if not in_time:
            pending.cancel()
        # Get the byte count even after a cancellation. If bytes that were already transferred were ignored, the
        # position in the stream would be lost.
        try:
            count, _ = pending.GetOverlappedResult(True)
        except OSError as error:
            raise ConnectionResetError(f"the other side closed the connection ({error})") from error
        if count:
            return int(count)
        # No bytes were transferred: the operation was cancelled, or the stream has ended.
        if self._dropped:
            raise ConnectionAbortedError("the connection was dropped because other clients were waiting")
        if not in_time:
            raise TimeoutError("the other side did not answer in time")
        raise ConnectionResetError("the other side closed the connection")


def check_peer(user: str, own: str) -> None:
    """Raise `PermissionError` unless both ends belong to the same user."""
    if user != own:
        raise PermissionError(f"the other end belongs to user {user}, not to {own}")


def connect_to_daemon(endpoint: str, folder: Path, deadline: float) -> DaemonStream:
    """Connect to the daemon at this pipe. Raise `OSError` if no daemon listens."""
    if not endpoint.startswith(PIPE_PREFIX):
        raise FileNotFoundError(errno.ENOENT, f"{endpoint} is not a pipe of qnnbridge")
    access = _winapi.GENERIC_READ | _winapi.GENERIC_WRITE
    flags = _winapi.FILE_FLAG_OVERLAPPED | _IDENTIFICATION
    while True:
        try:
            handle = _winapi.CreateFile(
                endpoint, access, 0, _winapi.NULL, _winapi.OPEN_EXISTING, flags, _winapi.NULL
            )
            return DaemonStream(handle, client=True)
        except OSError as error:
            # If all instances of the pipe have a client, wait: the daemon creates the next instance as soon as it
            # accepts a client.
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
    """Wait up to `timeout_s` until the other end of this pipe is closed; return whether it is closed."""
    if not wait_readable(read_fd, timeout_s):
        return False
    try:
        _winapi.PeekNamedPipe(msvcrt.get_osfhandle(read_fd), 0)
    except OSError:
        return True
    return False  # there is data to read


def abandon_stream(write_fd: int) -> None:
    """End the stream for the other side, but keep the descriptor number in use: another thread may be about to
    write to it."""
    stop_writing(write_fd)
    api.cancel_io(msvcrt.get_osfhandle(write_fd))
    null = os.open(os.devnull, os.O_WRONLY | os.O_BINARY | os.O_NOINHERIT)
    try:
        os.dup2(null, write_fd, inheritable=False)
    finally:
        os.close(null)


def release_stream(write_fd: int, read_fd: int) -> None:
    """End the calls that wait on the descriptors, before the descriptors are closed."""
    stop_writing(write_fd)
    for fd in (write_fd, read_fd):
        api.cancel_io(msvcrt.get_osfhandle(fd))


_NAME_BYTES: Final = 16
# Buffer size. It need not be large: only the authentication uses this pipe; everything else is sent through
# `Streams`.
_PIPE_BUFFER_BYTES: Final = 4096
# Without this flag, other computers could connect to the pipe (SMB).
_REJECT_REMOTE_CLIENTS: Final = 0x8


def make_endpoint(folder: Path) -> str:
    """Return an unpredictable name for the pipe of a `DaemonEndpoint`, so that no other process can create the
    pipe first."""
    return PIPE_PREFIX + secrets.token_hex(_NAME_BYTES)


class DaemonEndpoint:
    """The daemon's listening pipe. One instance of the pipe always waits for a client."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        """Create the pipe. Raise `OSError`."""
        self.endpoint = endpoint
        self._attributes = OwnerOnly()
        # FIRST_PIPE_INSTANCE fails if the name exists, so no other process can listen at this name.
        self._waiting = self._instance(_winapi.FILE_FLAG_FIRST_PIPE_INSTANCE)
        # Protects `_waiting` and its handle: `close` must not close another handle that has the same number.
        self._lock = threading.Lock()
        self._closed = self._released = False

    @property
    def handle(self) -> int:
        """Handle of the pipe instance that is waiting for a client."""
        return self._waiting

    @property
    def is_there(self) -> bool:
        """Return true: a pipe exists as long as its process."""
        return True

    def accept(self) -> DaemonStream | None:
        """Return the connection of the next client; ``None`` after `close`. Raise `OSError` if no further
        instance can be created."""
        while True:
            try:
                pending = _winapi.ConnectNamedPipe(self._waiting, overlapped=True)
            except OSError as error:
                if error.winerror != _winapi.ERROR_NO_DATA:
                    raise
                # A client has already connected and disconnected. Only after this call can another client connect.
                api.disconnect_pipe(self._waiting)
                continue
            came = self._wait(pending)
            if self._closed:
                return None
            # Create the next instance before serving this client, so that other clients can connect at that time.
            try:
                following = self._instance()
            except OSError:
                if came:  # disconnect the client: other clients can connect only to this instance
                    api.disconnect_pipe(self._waiting)
                raise
            with self._lock:
                handle, self._waiting = self._waiting, following
            if came:
                return DaemonStream(handle, client=False)
            _winapi.CloseHandle(handle)

    def close(self) -> None:
        """Stop accepting clients. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._released:
                api.cancel_io(self._waiting)

    def release(self) -> None:
        """Close the handle, after the last thread has left `accept`."""
        with self._lock:
            self._released = True
            _winapi.CloseHandle(self._waiting)

    def _instance(self, first: int = 0) -> int:
        return _winapi.CreateNamedPipe(
            self.endpoint,
            _winapi.PIPE_ACCESS_DUPLEX | _winapi.FILE_FLAG_OVERLAPPED | first,
            # No other flags are set, so the pipe is a byte stream with blocking calls.
            _REJECT_REMOTE_CLIENTS,
            _winapi.PIPE_UNLIMITED_INSTANCES,
            _PIPE_BUFFER_BYTES,
            _PIPE_BUFFER_BYTES,
            0,
            self._attributes.address,
        )

    def _wait(self, pending: _winapi.Overlapped) -> bool:
        try:
            while not self._closed:
                # Wait in short intervals: `close` may be called between the check of the flag and the wait.
                if _winapi.WaitForMultipleObjects([pending.event], False, 500) == _winapi.WAIT_OBJECT_0:
                    break
            if self._closed:
                pending.cancel()
            pending.GetOverlappedResult(True)
        except OSError:
            return False
        return not self._closed


class Streams:
    """Two one-way pipes to a client. `in_fd` and `out_fd` are the daemon's ends; the other ends are sent to the
    client."""

    def __init__(self) -> None:
        # Pass no security attributes, so that child processes do not inherit the ends.
        with contextlib.ExitStack() as undo:
            ours, self._their_write = _winapi.CreatePipe(None, BUFFER_BYTES)
            undo.callback(_winapi.CloseHandle, self._their_write)
            self.in_fd = api.descriptor_of(ours, os.O_RDONLY)
            undo.callback(os.close, self.in_fd)
            self._their_read, ours = _winapi.CreatePipe(None, BUFFER_BYTES)
            undo.callback(_winapi.CloseHandle, self._their_read)
            self.out_fd = api.descriptor_of(ours, os.O_WRONLY)
            undo.pop_all()  # both pipes exist, so nothing must be undone

    def hand_over(self, stream: DaemonStream, answer: Callable[[tuple[int, int]], bytes], deadline: float) -> None:
        """Send the client its ends together with the answer. If this raises `OSError`, the daemon's ends stay
        open."""
        pid = stream.peer_pid
        given: list[ShareHandle] = []
        try:
            for theirs in (self._their_read, self._their_write):
                given.append({"handle": give_handle(theirs, pid)})  # noqa: PERF401 - the second call may fail
            stream.send(answer((given[0]["handle"], given[1]["handle"])), deadline)
        except BaseException:  # the client has not received the handles, so close them in the client's process
            for share_handle in given:
                reclaim(share_handle, pid)
            raise

    def release_theirs(self) -> None:
        """Close the daemon's copies of the client's ends, whether or not the client has received them."""
        _winapi.CloseHandle(self._their_read)
        _winapi.CloseHandle(self._their_write)

    def close_ours(self) -> None:
        os.close(self.in_fd)
        os.close(self.out_fd)


def let_go_of_terminal() -> None:
    """Do nothing: the daemon was started without a console, and no process must be reaped."""


def allow_descriptors() -> None:
    """Do nothing: handles are not limited, and the C library supports 8192 files."""


def on_leave(leave: Callable[[], None]) -> None:
    """Call `leave` when the user presses Ctrl+C or Ctrl+Break. Must be called in the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGBREAK):
        signal.signal(number, lambda *_: leave())


class KeptMemory:
    """Memory of a client, kept open so that this process can share it with the NPU host. Thread-safe.

    A handle is valid in one process only. The client has duplicated its handle into this process, and this process
    duplicates it into each new NPU host. This process has the required right (PROCESS_DUP_HANDLE), because it
    started the host as the same user. The duplicate has all the rights of the client's handle.
    """

    def __init__(self, where: dict[str, Any]) -> None:
        """Duplicate the handle in the share `where`. The mapping closes the original handle. Raise `OSError` or
        `ValueError`."""
        handle = where.get("handle")
        if type(handle) is not int or handle <= 0:
            raise ValueError("memory must be given as a handle of this process")
        us = _winapi.GetCurrentProcess()
        self._handle = _winapi.DuplicateHandle(us, handle, us, 0, False, _winapi.DUPLICATE_SAME_ACCESS)

    def share_handle(self, pid: int) -> dict[str, Any]:
        """Return a share of the client's memory for the host process `pid`. The host owns the handle once its
        number was sent.

        Raises:
            OSError: the handle cannot be duplicated.
        """
        return {"handle": give_handle(self._handle, pid)}

    def close(self) -> None:
        """Close the handle. Call this only once. The memory cannot be shared afterwards."""
        _winapi.CloseHandle(self._handle)
