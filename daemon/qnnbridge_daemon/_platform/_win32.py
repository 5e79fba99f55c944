"""The daemon's named pipe, the streams that it hands out, and the daemon's place among processes, on Windows.

Threads: `accept` belongs to one; `close` may be called by any.
"""

from __future__ import annotations

import _winapi
import msvcrt
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

assert sys.platform == "win32"

from qnnbridge._platform import _win32_api as api  # noqa: E402 - type checkers find it empty on Linux
from qnnbridge._platform._win32_daemon import (  # noqa: E402
    PIPE_PREFIX,
    DaemonStream,
    OwnerOnly,
)
from qnnbridge._platform._win32_streams import (  # noqa: E402
    BUFFER_BYTES,
    ShareHandle,
    give_handle,
    reclaim,
)

_NAME_BYTES: Final = 16
_PIPE_BUFFER_BYTES: Final = 4096
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
        self._waiting = self._instance(_winapi.FILE_FLAG_FIRST_PIPE_INSTANCE)
        # Of which instance waits, and whether one does: `close` must not mean another handle.
        self._lock = threading.Lock()
        self._closed = self._released = False

    @property
    def handle(self) -> int:
        """Of the instance that waits."""
        return self._waiting

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
        ours_r, self._their_write = _winapi.CreatePipe(None, BUFFER_BYTES)
        self._their_read, ours_w = _winapi.CreatePipe(None, BUFFER_BYTES)
        self.in_fd = msvcrt.open_osfhandle(ours_r, os.O_RDONLY | os.O_BINARY | os.O_NOINHERIT)
        self.out_fd = msvcrt.open_osfhandle(ours_w, os.O_WRONLY | os.O_BINARY | os.O_NOINHERIT)

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
