"""The daemon's socket, the streams that it hands out, and the daemon's place among processes, on Linux.

Threads: `accept` belongs to one; `close` may be called by any.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from qnnbridge._platform import enlarge_pipe

assert sys.platform != "win32"

from qnnbridge._platform._posix_daemon import SOCKET_NAME, DaemonStream, SocketPath  # noqa: E402 - as in qnnbridge._platform
from qnnbridge_host._platform._posix_sharing import open_stream  # noqa: E402 - type checkers find it empty on Windows

_BACKLOG: Final = 1024
_DESCRIPTORS: Final = 65536


def make_endpoint(folder: Path) -> str:
    """The name of the listener that a `DaemonEndpoint` opens."""
    return str(folder / SOCKET_NAME)


class DaemonEndpoint:
    """The open door. Only for the holder of the folder's lock: a socket that lies there is of a dead daemon."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        """Raises `OSError`."""
        self._path = folder / SOCKET_NAME
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            before = os.umask(0o177)
            try:
                with SocketPath(folder) as path:
                    self._socket.bind(path)
            finally:
                os.umask(before)
            self._socket.listen(_BACKLOG)
            self._socket.setblocking(False)
            self._wake_r, self._wake_w = os.pipe()
        except BaseException:
            self._socket.close()
            raise
        # A visitor may wake `accept` up as well: then it is released while it is being closed.
        self._lock = threading.Lock()
        self._closed = self._released = False

    def accept(self) -> DaemonStream | None:
        """The next visitor; ``None`` when the gate was closed. Raises `OSError` if there is no descriptor for
        it."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake_r, select.POLLIN)
        while True:
            poll.poll()
            if self._closed:
                return None
            try:
                return DaemonStream(self._socket.accept()[0])
            except (BlockingIOError, ConnectionAbortedError):
                continue  # it went away again

    def close(self) -> None:
        """No visitor comes in any more. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._path.unlink(missing_ok=True)
            if not self._released:
                os.write(self._wake_w, b"!")

    def release(self) -> None:
        """No thread is in `accept` any more."""
        with self._lock:
            self._released = True
            self._socket.close()
            os.close(self._wake_r)
            os.close(self._wake_w)


class Streams:
    """Two one-way pipes to a client. `in_fd` and `out_fd` are ours, the others on their way to the client."""

    def __init__(self) -> None:
        self.in_fd, self._their_write = os.pipe()
        try:
            self._their_read, self.out_fd = os.pipe()
        except BaseException:
            os.close(self.in_fd)
            os.close(self._their_write)
            raise
        enlarge_pipe(self.in_fd)
        enlarge_pipe(self.out_fd)

    def hand_over(self, stream: DaemonStream, answer: Callable[[tuple[int, int]], bytes], deadline: float) -> None:
        """Give the client its ends, with the answer. Raises `OSError`; ours stay open then."""
        stream.send_with_ends(answer((0, 0)), (self._their_read, self._their_write), deadline)

    def release_theirs(self) -> None:
        """The client has them, or never will."""
        os.close(self._their_read)
        os.close(self._their_write)

    def close_ours(self) -> None:
        os.close(self.in_fd)
        os.close(self.out_fd)


def let_go_of_terminal() -> None:
    """Continue in a child that needs no collecting; the started process ends here."""
    if os.fork():
        os._exit(0)


def allow_descriptors() -> None:
    """As many as the system lets this user have. By default it is 1024, and each client takes a few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def on_leave(leave: Callable[[], None]) -> None:
    """Call `leave` when the system or the user asks for the end. The main thread has to be the caller."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: leave())


class KeptMemory:
    """Memory of a client, kept so that the NPU host can be shown it, by a descriptor of this process. Any thread.

    The client closes its own as soon as the daemon has mapped the memory.
    """

    def __init__(self, where: dict[str, Any]) -> None:
        """Raises `OSError`, `ValueError`."""
        self._fd = open_stream(where, write=False)
        self._place = {**where, "pid": os.getpid(), "fd": self._fd}

    def share_handle(self, _pid: int) -> dict[str, Any]:
        """For the host with this process id. It opens it here, as the daemon did at the client."""
        return self._place

    def close(self) -> None:
        """Once. It will not be shared again."""
        os.close(self._fd)
