"""The connection to the daemon on Linux, and the private folder: a Unix socket, which carries descriptors.

Invariants: nothing that is opened here is inherited by programs, and descriptors that are received are closed in
a fork (`OwnedFds`). A stream belongs to one thread; `drop` may be called by any.
"""

from __future__ import annotations

import os
import select
import shlex
import socket
import stat
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from qnnbridge._platform._fds import OwnedFds
from qnnbridge._platform._native import original, sleep

assert sys.platform != "win32"

from qnnbridge._platform._posix_streams import poll_fd  # noqa: E402 - type checkers find it empty on Windows

SOCKET_NAME: Final = "daemon.sock"

# sun_path holds 108, on other systems 104. A longer path is reached through an open descriptor of its folder.
_PATH_BYTES: Final = 100
_MAX_ENDS: Final = 2
_CROWD_PAUSE_S: Final = 0.005


class DaemonStream:
    """One connection of the daemon. peer_pid: as the kernel reports it, 0 if it does not."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.peer_pid, self.peer_uid = _peer(connection)
        self._received: list[int] = []

    def check_peer(self) -> None:
        """Raises `PermissionError` if another user is at the other end."""
        check_peer(self.peer_uid, os.getuid())

    def receive(self, count: int, deadline: float) -> bytes:
        """So many bytes. Raises `TimeoutError`, `ConnectionError`."""
        data = b""
        while len(data) < count:
            self._socket.settimeout(_left(deadline))
            data += self._some(self._socket.recv(count - len(data)))
        return data

    def receive_with_ends(self, count: int, fds: OwnedFds, deadline: float) -> bytes:
        """`receive`; descriptors that come along are adopted by `fds`, see `ends`."""

        data = b""

        def receive() -> list[int]:
            nonlocal data
            data, new, _, _ = socket.recv_fds(self._socket, count, _MAX_ENDS, socket.MSG_CMSG_CLOEXEC)
            return new

        if not poll_fd(self._socket.fileno(), select.POLLIN, _left(deadline)):
            raise TimeoutError("the daemon did not answer in time")
        self._received = fds.take(receive)
        return self._some(data) + (self.receive(count - len(data), deadline) if len(data) < count else b"")

    def ends(self, handles: tuple[int, int], fds: OwnedFds) -> tuple[int, int]:
        """The two descriptors that came: to read from, to write to. The latter does not block."""
        if len(self._received) != _MAX_ENDS:
            raise ConnectionError("the daemon sent no streams")
        read_fd, write_fd = self._received
        os.set_blocking(write_fd, False)
        return read_fd, write_fd

    def send(self, data: bytes, deadline: float) -> None:
        """All of it. Raises `TimeoutError`, `ConnectionError`."""
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(data)

    def send_with_ends(self, data: bytes, ends: tuple[int, int], deadline: float) -> None:
        """`send`, and two descriptors along with it."""
        self._socket.settimeout(_left(deadline))
        sent = socket.send_fds(self._socket, [data], list(ends))
        if sent < len(data):
            self.send(data[sent:], deadline)

    def drop(self) -> None:
        """Waiting calls fail. The descriptor stays until `close`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended by itself

    def close(self) -> None:
        self._socket.close()

    @staticmethod
    def _some(data: bytes) -> bytes:
        if not data:
            raise ConnectionResetError("the other side closed the connection")
        return data


def check_peer(uid: int | None, own: int) -> None:
    """Raises `PermissionError` unless both ends belong to the same user. uid: ``None`` if the system does not
    tell."""
    if uid is not None and uid != own:
        raise PermissionError(f"the other end belongs to user {uid}, not to {own}")


def connect_to_daemon(endpoint: str, folder: Path, deadline: float) -> DaemonStream:
    """A connection to the daemon of this folder. Raises `OSError` if there is none."""
    connection: socket.socket = original("socket", "socket")(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_left(deadline))
        with SocketPath(folder) as path:
            while True:
                try:
                    connection.connect(path)
                    return DaemonStream(connection)
                except BlockingIOError:
                    # So many are waiting to be let in that the kernel takes no more, and offers no way to wait.
                    sleep(min(_CROWD_PAUSE_S, _left(deadline)))
    except BaseException:
        connection.close()
        raise


class SocketPath:
    """The socket's path in a form that is short enough for the kernel; good inside of the ``with``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1

    def __enter__(self) -> str:
        path = str(self._folder / SOCKET_NAME)
        if len(os.fsencode(path)) <= _PATH_BYTES:
            return path
        if not os.path.isdir("/proc/self/fd"):
            raise OSError(
                f"the path {path} is too long for a socket; set QNNBRIDGE_RUNTIME_DIR to a shorter folder"
            )
        self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{SOCKET_NAME}"

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _peer(connection: socket.socket) -> tuple[int, int | None]:
    if sys.platform != "linux":
        return 0, None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


def _left(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the other side did not answer in time")
    return left_s


def connection_ended(read_fd: int, timeout_s: float | None) -> bool:
    """Whether the other end of this pipe is closed. Waits for at most the given time for that."""
    return poll_fd(read_fd, 0, timeout_s)


def abandon_stream(write_fd: int) -> None:
    """Let the other side see the end, and keep the number: another thread may be about to write to it."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(null, write_fd, inheritable=False)
    finally:
        os.close(null)


def release_stream(write_fd: int, read_fd: int) -> None:
    """Called before they are closed. Nothing to do here: no call waits in them."""


_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def default_runtime_folder() -> Path:
    """Where sockets of this user belong."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime, "qnnbridge")
    return Path(tempfile.gettempdir(), f"qnnbridge-{os.getuid()}")


def make_private_folder(path: Path) -> None:
    """Make the folder for us alone, with those above it. One that exists is left as it is: `why_not_private`
    judges."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass


def why_not_private(path: Path) -> str | None:
    """The fault of a folder or file that only this user may use; ``None`` if there is none."""
    return _why_not_private(os.lstat(path))


def _why_not_private(status: os.stat_result) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        return "it is neither a folder nor a file"
    if status.st_uid != os.getuid():
        return f"it belongs to user {status.st_uid}, not to you ({os.getuid()})"
    if status.st_mode & _OTHERS:
        return f"others may use it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def how_to_make_private(path: Path) -> str | None:
    """A command; ``None`` for a path of another user, a link, or one that is gone by now."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid():
        return None
    return f"If no other user needs it: chmod go-rwx {shlex.quote(str(path))}"


def read_private_file(path: Path, limit: int) -> bytes:
    """The beginning of a file that only this user can have written: what was opened is looked at, not its name,
    which another file may have by now. Raises `OSError`."""
    # Without O_NONBLOCK a pipe in its place would be waited for.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        problem = _why_not_private(os.fstat(fd))
        if problem is not None:
            raise PermissionError(f"{path}: {problem}")
        return file.read(limit)


def write_private_file(path: Path, data: bytes) -> None:
    """Make a new file that only this user can read. Raises `FileExistsError`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
