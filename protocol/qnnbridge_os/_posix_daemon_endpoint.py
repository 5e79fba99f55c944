"""Both ends of the daemon's Unix socket on Linux, the streams and memory whose descriptors are passed through the
socket, and the daemon's detachment from terminal and parent.

Invariants: programs that this process starts do not inherit the descriptors, and received descriptors are closed in
a fork (`OwnedFds`). Only one thread may use a stream, and only one may call `accept`. Any thread may call `drop`
and `DaemonEndpoint.close`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from qnnbridge_os.fds import OwnedFds
from qnnbridge_os.native import original, sleep

assert sys.platform != "win32"

from qnnbridge_os._posix_streams import enlarge_pipe, poll_fd  # noqa: E402
from qnnbridge_os.sharing import open_stream  # noqa: E402 - type checkers find it empty on Windows

SOCKET_NAME: Final = "daemon.sock"

# Maximum length of a socket path: sun_path has 108 bytes (104 on other systems). A longer path is replaced by a
# path through an open descriptor of its folder.
_PATH_BYTES: Final = 100
# Number of passed descriptors: one pipe to read from and one to write to.
_MAX_ENDS: Final = 2
# Pause between two attempts to connect while the daemon's backlog is full.
_CROWD_PAUSE_S: Final = 0.005


class DaemonStream:
    """One connection between the daemon and a client. `peer_pid` is the peer's process id; 0 if the kernel does
    not report it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.peer_pid, self.peer_uid = _peer(connection)
        self._received: list[int] = []

    def check_peer(self) -> None:
        """Raise `PermissionError` if the other end belongs to another user."""
        check_peer(self.peer_uid, os.getuid())

    def receive(self, count: int, deadline: float) -> bytes:
        """Receive the given number of bytes. Raise `TimeoutError` or `ConnectionError`."""
        data = b""
        while len(data) < count:
            self._socket.settimeout(_left(deadline))
            data += self._some(self._socket.recv(count - len(data)))
        return data

    def receive_with_ends(self, count: int, fds: OwnedFds, deadline: float) -> bytes:
        """Receive bytes like `receive`. `fds` takes ownership of descriptors that arrive with them; see `ends`."""

        data = b""

        def receive() -> list[int]:
            nonlocal data
            # Set close-on-exec in the same system call. Otherwise a program that another thread starts in between
            # would inherit the descriptors.
            data, new, _, _ = socket.recv_fds(self._socket, count, _MAX_ENDS, socket.MSG_CMSG_CLOEXEC)
            return new

        # Wait for data before calling `take`, which holds the lock that prevents forks.
        if not poll_fd(self._socket.fileno(), select.POLLIN, _left(deadline)):
            raise TimeoutError("the daemon did not answer in time")
        # Linux delivers the descriptors with the first byte of the message. The other bytes may arrive later.
        self._received = fds.take(receive)
        return self._some(data) + (self.receive(count - len(data), deadline) if len(data) < count else b"")

    def ends(self, handles: tuple[int, int], fds: OwnedFds) -> tuple[int, int]:
        """Return the two received descriptors: (read, write). The write end does not block."""
        if len(self._received) != _MAX_ENDS:
            raise ConnectionError("the daemon sent no streams")
        read_fd, write_fd = self._received
        # `write_some` needs a non-blocking descriptor. The flag also applies to the daemon's copy of this
        # descriptor, but the daemon closes its copy (`release_theirs`).
        os.set_blocking(write_fd, False)
        return read_fd, write_fd

    def send(self, data: bytes, deadline: float) -> None:
        """Send all bytes. Raise `TimeoutError` or `ConnectionError`."""
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(data)

    def send_with_ends(self, data: bytes, ends: tuple[int, int], deadline: float) -> None:
        """Send bytes like `send`, together with two descriptors."""
        self._socket.settimeout(_left(deadline))
        sent = socket.send_fds(self._socket, [data], list(ends))
        # The descriptors were sent with the first byte. Sending them again would give the client two more
        # descriptors.
        if sent < len(data):
            self.send(data[sent:], deadline)

    def drop(self) -> None:
        """Make waiting calls fail. The descriptor stays open until `close`."""
        # Do not close the descriptor here: its number could be reused for another file while a thread still waits
        # on it.
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the connection has ended already

    def close(self) -> None:
        self._socket.close()

    @staticmethod
    def _some(data: bytes) -> bytes:
        if not data:
            raise ConnectionResetError("the other side closed the connection")
        return data


def check_peer(uid: int | None, own: int) -> None:
    """Raise `PermissionError` unless both ends belong to the same user. If the system does not report the other
    user, `uid` is ``None``, and the other end is accepted."""
    if uid is not None and uid != own:
        raise PermissionError(f"the other end belongs to user {uid}, not to {own}")


def connect_to_daemon(endpoint: str, folder: Path, deadline: float) -> DaemonStream:
    """Connect to the daemon whose runtime folder is `folder`. Raise `OSError` if no daemon listens."""
    # gevent and eventlet replace `socket.socket` with a class that switches to another greenlet.
    connection: socket.socket = original("socket", "socket")(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_left(deadline))
        with SocketPath(folder) as path:
            while True:
                try:
                    connection.connect(path)
                    return DaemonStream(connection)
                except BlockingIOError:
                    # The backlog is full. Try again after a pause, because no system call waits for space in the
                    # backlog.
                    sleep(min(_CROWD_PAUSE_S, _left(deadline)))
    except BaseException:
        connection.close()
        raise


class SocketPath:
    """Path of the socket in a form that is short enough for the kernel. It is valid inside the ``with`` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1

    def __enter__(self) -> str:
        path = str(self._folder / SOCKET_NAME)
        if len(os.fsencode(path)) <= _PATH_BYTES:
            return path
        # Only Linux has the folder /proc/self/fd, and only if /proc is mounted.
        if not os.path.isdir("/proc/self/fd"):
            raise OSError(
                f"the path {path} is too long for a socket; set QNNBRIDGE_RUNTIME_DIR to a shorter folder"
            )
        # Refer to the folder by a descriptor, which shortens the path to about 30 bytes.
        self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{SOCKET_NAME}"

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _peer(connection: socket.socket) -> tuple[int, int | None]:
    # On other systems only the permissions of folder and socket keep other users out.
    if sys.platform != "linux":
        return 0, None
    # struct ucred: process, user and group at the time of the connection.
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


def _left(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the other side did not answer in time")
    return left_s


def connection_ended(read_fd: int, timeout_s: float | None) -> bool:
    """Wait up to `timeout_s` until the other end of this pipe is closed; return whether it is closed."""
    # No events are requested: POLLHUP (the end) and errors are always reported, and data is ignored.
    return poll_fd(read_fd, 0, timeout_s)


def abandon_stream(write_fd: int) -> None:
    """End the stream for the other side, but keep the descriptor number in use: another thread may be about to
    write to it."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        # `dup2` is atomic: a writing thread uses the old file or the null device, never a closed descriptor.
        os.dup2(null, write_fd, inheritable=False)
    finally:
        os.close(null)


def release_stream(write_fd: int, read_fd: int) -> None:
    """Do nothing: on Linux, unlike Windows, a descriptor can be closed while a call waits on it."""


# Maximum number of connections that the kernel queues until `accept`. Linux limits it to net.core.somaxconn.
_BACKLOG: Final = 1024
_DESCRIPTORS: Final = 65536


def make_endpoint(folder: Path) -> str:
    """Return the name of the listener that a `DaemonEndpoint` opens."""
    return str(folder / SOCKET_NAME)


class DaemonEndpoint:
    """The daemon's listening socket. Only the process that holds the folder's lock may create one, because an
    existing socket is assumed to belong to a dead daemon."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        """Create the socket and listen. Raise `OSError`."""
        self._path = folder / SOCKET_NAME
        # `bind` refuses an existing path, even if the process of the socket is dead.
        self._path.unlink(missing_ok=True)
        self._identity: tuple[int, int] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # `bind` creates the file with the mode that the umask allows. If the mode were changed later, other
            # users could connect in between.
            before = os.umask(0o177)
            try:
                with SocketPath(folder) as path:
                    self._socket.bind(path)
            finally:
                os.umask(before)
            # Device and inode identify the socket file: no other file gets this inode while the socket is open.
            self._identity = self._now_there()
            self._socket.listen(_BACKLOG)
            # If a client disconnects between `poll` and `accept`, a blocking `accept` would wait.
            self._socket.setblocking(False)
            # Closing the socket does not end the `poll` of another thread. A byte in this pipe does.
            self._wake_r, self._wake_w = os.pipe()
        except BaseException:
            self._socket.close()
            raise
        # `close` and `release` hold this lock: the thread that runs `accept` may call `release` while another
        # thread runs `close`.
        self._lock = threading.Lock()
        self._closed = self._released = False

    def accept(self) -> DaemonStream | None:
        """Return the connection of the next client; ``None`` after `close`. Raise `OSError` if no descriptor is
        available."""
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
                continue  # the client has disconnected

    @property
    def is_there(self) -> bool:
        """Whether clients can find the socket. Its file may have been removed, or may belong to another daemon."""
        return self._now_there() == self._identity

    def _now_there(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError:
            return self._identity  # The state of the file is unknown: assume no change.
        return status.st_dev, status.st_ino

    def close(self) -> None:
        """Stop accepting clients. Idempotent."""
        with self._lock:
            if self._closed:
                return
            # Set the flag before sending the byte: `accept` checks `_closed` after the byte has woken it.
            self._closed = True
            # Do not remove the socket file of another daemon, because no client would find that daemon.
            if self.is_there:
                self._path.unlink(missing_ok=True)
            # After `release` the descriptor number may belong to another file.
            if not self._released:
                os.write(self._wake_w, b"!")

    def release(self) -> None:
        """Close the descriptors, after the last thread has left `accept`."""
        with self._lock:
            self._released = True
            self._socket.close()
            os.close(self._wake_r)
            os.close(self._wake_w)


class Streams:
    """Two one-way pipes to a client. `in_fd` and `out_fd` are the daemon's ends; the other ends are sent to the
    client."""

    def __init__(self) -> None:
        self.in_fd, self._their_write = os.pipe()
        try:
            self._their_read, self.out_fd = os.pipe()
        except BaseException:
            os.close(self.in_fd)
            os.close(self._their_write)
            raise
        # The pipes must be large, because tensors are sent through them if memory cannot be shared.
        enlarge_pipe(self.in_fd)
        enlarge_pipe(self.out_fd)

    def hand_over(self, stream: DaemonStream, answer: Callable[[tuple[int, int]], bytes], deadline: float) -> None:
        """Send the client its ends together with the answer. If this raises `OSError`, the daemon's ends stay
        open."""
        # The kernel transfers the descriptors separately from the answer's bytes, so the handles in the answer are
        # zero.
        stream.send_with_ends(answer((0, 0)), (self._their_read, self._their_write), deadline)

    def release_theirs(self) -> None:
        """Close the daemon's copies of the client's ends, whether or not the client has received them."""
        # The kernel keeps the sent descriptors until the client receives them, so they can be closed here.
        os.close(self._their_read)
        os.close(self._their_write)

    def close_ours(self) -> None:
        os.close(self.in_fd)
        os.close(self.out_fd)


def let_go_of_terminal() -> None:
    """Detach from terminal and parent: continue in a forked child process, and end the original process."""
    # The parent reaps the original process. The system's init process adopts the child process and reaps it later.
    if os.fork():
        os._exit(0)


def allow_descriptors() -> None:
    """Raise the soft limit on open files to the hard limit. The default of 1024 is too low: each client needs
    several."""
    import resource  # imported here because only the daemon needs it, not a client

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    # Every process may raise its soft limit up to the hard limit.
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def on_leave(leave: Callable[[], None]) -> None:
    """Call `leave` when the process receives a signal to terminate. Must be called in the main thread."""
    # SIGHUP means that the terminal from which the daemon was started was closed.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: leave())


class KeptMemory:
    """Memory of a client, kept open so that this process can share it with the NPU host. Thread-safe.

    The client closes its own descriptor as soon as the daemon has mapped the memory.
    """

    def __init__(self, where: dict[str, Any]) -> None:
        """Open the memory. Raise `OSError` or `ValueError`."""
        # The client's entry in /proc disappears when the client ends, so the NPU host opens this process's
        # descriptor.
        self._fd = open_stream(where, write=False)
        # Device and inode are the same as for the client's memory, because it is the same file.
        self._place = {**where, "pid": os.getpid(), "fd": self._fd}

    def share_handle(self, _pid: int) -> dict[str, Any]:
        """Return a share of the client's memory that any host process can open through this process."""
        return self._place

    def close(self) -> None:
        """Close the descriptor. Call this only once. The memory cannot be shared afterwards."""
        os.close(self._fd)
