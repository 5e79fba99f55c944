"""Waiting for, writing to and enlarging pipes on Linux. No state; any thread."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal.getsignal makes an enum of it: 2 us against 0.03
import errno
import fcntl
import functools
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

assert sys.platform != "win32"

_SIGPIPE = int(signal.SIGPIPE)
_SIG_DFL = int(signal.SIG_DFL)

# 1 MiB is what an unprivileged process may have. Past its quota of pipe pages a user gets less, or an error.
_PIPE_SIZES = (1 << 20, 1 << 19, 1 << 18, 1 << 17)

# IOV_MAX of Linux: more in one call is an error.
_CHUNKS_MAX = 1024


def enlarge_pipe(fd: int) -> None:
    """Give the pipe a buffer of 1 MiB where the system allows it; the usual 64 KiB costs a fifth of the speed."""
    if sys.platform == "linux":
        for size in _PIPE_SIZES:
            try:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
                return
            except OSError:
                pass


def wait_readable(fd: int, timeout_s: float | None) -> bool:
    """Whether a read would return at once: data, end of file or an error. Waits for at most the given time."""
    return poll_fd(fd, select.POLLIN, timeout_s)


def let_ctrl_c_through(fd: int) -> None:
    """To be called before a read that may block for ever. Here a signal interrupts that: nothing to do."""


def writer(fd: int) -> Callable[[list[memoryview]], int]:
    """What writes to the pipe without waiting: a C function if that is safe, so that Ctrl+C can lose no count.

    Raises `BlockingIOError` if the pipe is full. Ask anew for each write: SIGPIPE may have changed.
    """
    if _signal.getsignal(_SIGPIPE) != _SIG_DFL:
        return functools.partial(os.writev, fd)
    return functools.partial(_writev, fd)


def wait_writable(fd: int, timeout_s: float | None) -> bool:
    """Whether a write would take something at once, or fail. Waits for at most the given time."""
    return poll_fd(fd, select.POLLOUT, timeout_s)


def write_some(fd: int, chunks: Sequence[memoryview], timeout_s: float | None) -> int:
    """Write as much as fits of the chunks, in order, and say how many bytes that was.

    The descriptor must not be a blocking one (`ChildProcess.stdin_fd` is not). Raises `TimeoutError` if nothing
    could be written in time: then nothing was. Raises `BrokenPipeError` if the reader is gone, also in a program
    that has set SIGPIPE back to its deadly default, as command line tools do.
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
    """Whether one of the events (or an error) came in time."""
    if fd < 0:
        raise OSError(errno.EBADF, "the descriptor is closed")  # poll would ignore it, and wait for ever
    poll = select.poll()
    poll.register(fd, events)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)))


def _writev(fd: int, chunks: list[memoryview]) -> int:
    if signal.getsignal(signal.SIGPIPE) is not signal.SIG_DFL:
        return os.writev(fd, chunks)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGPIPE,))
    try:
        return os.writev(fd, chunks)
    except BrokenPipeError:
        if signal.SIGPIPE not in before and signal.SIGPIPE in signal.sigpending():
            signal.sigwait((signal.SIGPIPE,))  # or it would strike when the mask is lifted
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
