"""Pipes, and the streams and memory shared with the host, on Linux. Thread-safe.

The host opens shared objects through this process's entry in /proc, so neither inheritance nor a socket is needed.
The memory is a memfd: it is anonymous, so no file can remain on a disk, and it is sealed, so that neither side can
shrink it while the other side uses it. In a fork of this process the descriptors are closed (`OwnedFds`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal.getsignal converts to an enum: 2 us, not 0.03
import errno
import fcntl
import functools
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from qnnbridge_os.fds import OwnedFds, closed_by_others, mark_of
from qnnbridge_os.native import original
from qnnbridge_os.shield import shielded, when_gone

assert sys.platform != "win32"

_fstat = os.fstat

# The original function, since eventlet removes `poll` from the module `select`.
new_poll = original("select", "poll")

_SIGPIPE = int(signal.SIGPIPE)
_SIG_DFL = int(signal.SIG_DFL)

# 1 MiB is the limit for an unprivileged process. A user who has used up the quota of pipe pages gets less, or an
# error.
_PIPE_SIZES = (1 << 20, 1 << 19, 1 << 18, 1 << 17)

# IOV_MAX of Linux: a call with more chunks fails.
_CHUNKS_MAX = 1024


def enlarge_pipe(fd: int) -> None:
    """Enlarge the pipe's buffer to 1 MiB if the system allows it. With the usual 64 KiB, transfers are a fifth
    slower."""
    if sys.platform == "linux":
        for size in _PIPE_SIZES:
            try:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
                return
            except OSError:
                pass


def wait_readable(fd: int, timeout_s: float | None) -> bool:
    """Wait up to `timeout_s` for data, the end of the file or an error. Return whether a read would return
    immediately."""
    return poll_fd(fd, select.POLLIN, timeout_s)


def let_ctrl_c_through(fd: int) -> None:
    """Do nothing: on POSIX, Ctrl+C interrupts a blocking read."""


def writer(fd: int) -> Callable[[list[memoryview]], int]:
    """Return a function that writes to the pipe without waiting. It raises `BlockingIOError` if the pipe is full.

    Unless the program has restored the default action of SIGPIPE, the result is a C function: Ctrl+C cannot
    interrupt it between the write and the return of the byte count. Request a new function for each write, because
    the handling of SIGPIPE may have changed.
    """
    # Python ignores SIGPIPE. If the program has restored the default action, a write must block the signal first.
    if _signal.getsignal(_SIGPIPE) != _SIG_DFL:
        return functools.partial(os.writev, fd)
    return functools.partial(_writev, fd)


def wait_writable(fd: int, timeout_s: float | None) -> bool:
    """Wait up to `timeout_s` for free space or an error. Return whether a write would return immediately."""
    return poll_fd(fd, select.POLLOUT, timeout_s)


def is_writing(fd: int) -> bool:
    """Return False: on POSIX no thread waits in a write to the pipe."""
    return False


def stop_writing(fd: int) -> None:
    """Do nothing: on POSIX no thread waits in a write to the pipe (`is_writing`)."""


def write_some(fd: int, chunks: Sequence[memoryview], timeout_s: float | None) -> int:
    """Write as much of the chunks as fits, in order; return the number of bytes.

    The descriptor must be non-blocking (`ChildProcess.stdin_fd` is).

    Raises:
        TimeoutError: the pipe stayed full until the timeout; nothing was written.
        BrokenPipeError: the other side has closed the pipe. This is raised even if the program has restored
            the default action of SIGPIPE, which ends the program, as many command line tools do.
    """
    batch = [chunk for chunk in chunks[:_CHUNKS_MAX] if chunk.nbytes]
    if not batch:
        return 0
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            return _writev(fd, batch)
        except BlockingIOError:
            left_s = None if deadline is None else deadline - time.monotonic()
            if (left_s is not None and left_s <= 0) or not poll_fd(fd, select.POLLOUT, left_s):
                raise TimeoutError("the other side did not read in time") from None


def poll_fd(fd: int, events: int, timeout_s: float | None) -> bool:
    """Return whether one of the events (or an error) occurs before the timeout."""
    if fd < 0:
        # `poll` ignores negative descriptors and would wait forever.
        raise OSError(errno.EBADF, "the descriptor is closed")
    poll = new_poll()
    poll.register(fd, events)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)))


def _writev(fd: int, chunks: list[memoryview]) -> int:
    if signal.getsignal(signal.SIGPIPE) is not signal.SIG_DFL:
        return os.writev(fd, chunks)
    # A write sends SIGPIPE to the thread that wrote, so it is sufficient to block the signal in this thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGPIPE,))
    try:
        return os.writev(fd, chunks)
    except BrokenPipeError:
        # If SIGPIPE was blocked before, a pending signal belongs to the program and is kept.
        if signal.SIGPIPE not in before and signal.SIGPIPE in signal.sigpending():
            signal.sigwait((signal.SIGPIPE,))  # otherwise the signal would be delivered when the mask is restored
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Whether the host can open streams in addition to its standard streams on this system.
CHANNELS = sys.platform == "linux"

# Whether memory can be shared on this system.
MEMORY = sys.platform == "linux" and hasattr(os, "memfd_create")

# Description of a shared stream or memory block by which the host can open it (a "share", see `sharing`).
ShareHandle = dict[str, Any]


class SharedMemory:
    """A block of memory that is mapped here and can be shared with another process."""

    def __init__(self, size: int, *, writable: bool) -> None:
        """Create the memory. Raise `OSError`."""
        self.size = size
        self._fds = OwnedFds()
        shielded("qnnbridge memory", lambda: self._make(size, writable=writable))

    def _make(self, size: int, *, writable: bool) -> None:
        from qnnbridge_os.sharing import map_shared  # imports ctypes, which the start of a session does not need

        if sys.platform != "linux":
            raise OSError("memory can be shared on Linux and Windows only")
        self._fd = self._fds.make(os.memfd_create, "qnnbridge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Allocate the memory now: if memory is short, this call fails instead of the first access.
            os.posix_fallocate(self._fd, 0, size)
            # F_SEAL_SEAL prevents either side from adding a seal that forbids the other side to write.
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._view: memoryview | None = map_shared(self._fd, size, writable=writable, when_gone=when_gone)
        except BaseException:
            self._fds.close_all()
            raise

    def share_handle(self, pid: int) -> ShareHandle:
        """Return a share of the memory that the host process `pid` can open."""
        return _share_handle(self._fds, self._fd)

    def take_view(self) -> memoryview:
        """Return the memory. Call this only once. The memory stays mapped as long as the view is referenced."""
        view, self._view = self._view, None
        assert view is not None
        return view

    def close(self) -> None:
        """Close the descriptor, so that no further process can open the memory."""
        self._fds.close_all()


class ChannelStreams:
    """This side's ends of a channel's two pipes. The write end does not block. Until `opened` is called, the
    object also owns the host's ends."""

    # Whether Ctrl+C and `wake_reader` end a read that waits without a timeout.
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
        # Before each system call, `write` checks that the descriptor still refers to this pipe.
        self._inode, self._device = (self._fds.mark(self.write_fd) or mark_of(self.write_fd))[1:]
        poll = new_poll()
        poll.register(self.read_fd, select.POLLIN)
        # `poll(milliseconds)` waits for data. Its result is empty if no data arrived.
        self.poll = poll.poll

    def share_handles(self, pid: int) -> tuple[ShareHandle, ShareHandle]:
        """Return shares of the host's ends that the host process `pid` can open: (read, write)."""
        return _share_handle(self._fds, self._their_read), _share_handle(self._fds, self._their_write)

    def opened(self) -> None:
        """Close the host's ends once the host has opened them; else the streams would not end when it dies."""
        self._fds.close(self._their_read)
        self._fds.close(self._their_write)

    def enlarge(self) -> None:
        """Enlarge the pipes, because tensors will be sent through them."""
        enlarge_pipe(self.write_fd)
        enlarge_pipe(self.read_fd)

    def write(self, data: bytes | bytearray) -> None:
        """Write a small message into an empty pipe. Raise `OSError`."""
        now = _fstat(self.write_fd)
        if now[1] != self._inode or now[2] != self._device:
            raise closed_by_others()  # the descriptor number now belongs to another file
        if _signal.getsignal(_SIGPIPE) == _SIG_DFL:
            write_some(self.write_fd, [memoryview(data)], None)
        else:
            os.write(self.write_fd, data)

    def wake_reader(self, data: bytes | bytearray) -> None:
        """Insert `data` between the host's messages, to wake a thread of this process that is reading. Raise
        `OSError`."""
        # Open for reading and writing, so that the pipe has a reader and SIGPIPE cannot occur. Close the descriptor
        # afterwards, because otherwise the stream would not end when the host dies.
        fds = OwnedFds()
        try:
            fd = fds.make(os.open, f"/proc/self/fd/{self.read_fd}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            # check that the descriptor number still belongs to this pipe
            if mark_of(fd)[1:] == (self._fds.mark(self.read_fd) or ())[1:]:
                os.write(fd, data)
        finally:
            fds.close_all()

    def close(self) -> None:
        self.write_fd = self.read_fd = -1
        self._fds.close_all()


def reclaim(_share_handle: ShareHandle, _pid: int) -> None:
    """Do nothing: on POSIX the application still owns the descriptor of a share that was not sent."""


def _share_handle(fds: OwnedFds, fd: int) -> ShareHandle:
    mark = fds.mark(fd)
    if mark is None or mark_of(fd) != mark:
        raise closed_by_others()
    _, inode, device = mark
    return {"pid": os.getpid(), "fd": fd, "device": device, "inode": inode}
