"""Streams and memory that are shared with the host, on Linux.

The host opens them through this process' entry in /proc, so nothing has to be inherited and no socket is needed.
The memory is a memfd: it has no name that could be left behind, and is sealed, so that neither side can shrink it
under the other.

Threads: any. In a fork of this process the descriptors are closed (`OwnedFds`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal.getsignal makes an enum of it: 2 us against 0.03
import fcntl
import os
import select
import signal
import sys
from typing import Any

from qnnbridge._platform._fds import OwnedFds

assert sys.platform != "win32"

from qnnbridge._platform._posix_pipes import enlarge_pipe  # noqa: E402 - type checkers find it empty on Windows

# Whether the host can open further streams here.
LINES = sys.platform == "linux"

# Whether memory can be shared here.
MEMORY = sys.platform == "linux" and hasattr(os, "memfd_create")

_SIGPIPE = int(signal.SIGPIPE)
_SIG_DFL = int(signal.SIG_DFL)

# How the host finds what is shared.
Place = dict[str, Any]


class SharedMemory:
    """A piece of memory that is mapped here, and what it takes to show it to another process."""

    def __init__(self, size: int, *, writable: bool) -> None:
        """Raises `OSError`."""
        from qnnbridge_protocol.drivers.posix_mapping import (
            map_shared,
        )  # ctypes, which a session's start does not need

        self.size = size
        self._fds = OwnedFds()
        if sys.platform != "linux":
            raise OSError("memory can be shared on Linux and Windows only")
        self._fd = self._fds.adopt(os.memfd_create("qnnbridge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        try:
            # Not just a size: where there is no memory this fails, and not the first access.
            os.posix_fallocate(self._fd, 0, size)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._view: memoryview | None = map_shared(self._fd, size, writable=writable)
        except BaseException:
            self._fds.close_all()
            raise

    def place(self, pid: int) -> Place:
        """For the host with this process id."""
        return _place(self._fd)

    def take_view(self) -> memoryview:
        """The memory, once: from then on it stays mapped as long as something refers to this."""
        view, self._view = self._view, None
        assert view is not None
        return view

    def close(self) -> None:
        """Nobody else will be shown it."""
        self._fds.close_all()


class LineStreams:
    """Our ends of a line's two pipes, and until `opened` the host's ends. The write end does not block."""

    # Whether a read that waits for ever is ended by Ctrl+C, and by `nudge`.
    MAY_BLOCK = True

    def __init__(self) -> None:
        self._fds = OwnedFds()
        try:
            self._their_read, self.write_fd = self._fds.pipe()
            self.read_fd, self._their_write = self._fds.pipe()
            os.set_blocking(self.write_fd, False)
        except BaseException:
            self._fds.close_all()
            raise
        self._come_by = _identity(self.read_fd)
        poll = select.poll()
        poll.register(self.read_fd, select.POLLIN)
        self.poll = poll.poll
        """Waits for at most so many milliseconds until there is something to read; falsy if nothing came."""

    def places(self, pid: int) -> tuple[Place, Place]:
        """Of what the host reads from and of what it writes to."""
        return _place(self._their_read), _place(self._their_write)

    def opened(self) -> None:
        """The host has its ends, so that a death on either side is the end of the streams."""
        self._fds.close(self._their_read)
        self._fds.close(self._their_write)

    def enlarge(self) -> None:
        """Tensors will travel here."""
        enlarge_pipe(self.write_fd)
        enlarge_pipe(self.read_fd)

    def write(self, data: bytes | bytearray) -> None:
        """Something small, into a pipe that is empty. Raises `OSError`."""
        if _signal.getsignal(_SIGPIPE) == _SIG_DFL:
            _write_without_signal(self.write_fd, data)
        else:
            os.write(self.write_fd, data)

    def nudge(self, data: bytes | bytearray) -> None:
        """Let a thread of ours that reads find this, in between of what the host writes. Raises `OSError`."""
        # Opened for both: whoever reads cannot be gone, and there is no signal. No descriptor is kept for it, or
        # the death of the host would not be the end of the stream.
        fd = os.open(f"/proc/self/fd/{self.read_fd}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if _identity(fd) == self._come_by:  # and not what was given the number of a line that is closed
                os.write(fd, data)
        finally:
            os.close(fd)

    def close(self) -> None:
        self.write_fd = self.read_fd = -1
        self._fds.close_all()


def take_back(_place: Place, _pid: int) -> None:
    """What the host was to open, and has not been told of: it is ours all the time."""


def _write_without_signal(fd: int, data: bytes | bytearray) -> None:
    from qnnbridge._platform._posix_pipes import write_some

    write_some(fd, [memoryview(data)], None)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _place(fd: int) -> Place:
    device, inode = _identity(fd)
    return {"pid": os.getpid(), "fd": fd, "device": device, "inode": inode}
