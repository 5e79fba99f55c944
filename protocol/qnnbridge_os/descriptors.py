"""A pair of one-way byte streams on two file descriptors: two pipes of a child process, or two copies of a socket.

Only raw descriptors are used: a buffered `sys.stdin` aborts the interpreter at exit while a thread waits in it
(`_enter_buffered_busy`), and a separate descriptor is not affected by changes of `sys.stdin`.

Ctrl+C may interrupt between any two bytecodes. A reader stores the byte count from the kernel in the same C call
that makes the system call (`deque.extend(map(...))`), so that an interrupt while it waits loses nothing. An
interrupt is only harmful in the microseconds in which the count is applied to the state: `torn` then reports that
the position in the stream is lost.
"""

from __future__ import annotations

import collections
import errno
import functools
import io
import os
from collections.abc import Callable, Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

# Maximum number of chunks in one gathering write; Linux allows 1024.
_MAX_CHUNKS = 512

# Maximum size of one plain write on systems that have no gathering write (Windows).
_MAX_PLAIN_WRITE_BYTES = 1024 * 1024


class ByteReader:
    """Read into the caller's memory. Only one thread at a time may use the object."""

    def __init__(self, fd: int) -> None:
        # closefd=False: the owner closes the descriptor, not the garbage collection of this object.
        self._file = io.FileIO(fd, "rb", closefd=False)
        self._counts: collections.deque[int | None] = collections.deque()
        self.torn = False

    @property
    def ready(self) -> bool:
        """Whether `read_into` returns immediately, with bytes that an interrupted call has read."""
        return bool(self._counts)

    def read_into(self, buffer: memoryview, use: Callable[[int], T]) -> T:
        """Wait for bytes, then call ``use(count)``; the count is 0 at the end of file.

        Raise `BlockingIOError` on a non-blocking descriptor without data.
        """
        if not self._counts:
            self._counts.extend(map(self._file.readinto, (buffer,)))
        if self._counts[0] is None:
            self._counts.popleft()
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.torn = True
        result = use(self._counts[0])
        self._counts.popleft()
        self.torn = False
        return result


class ByteWriter:
    """Write chunks in order, and keep the bytes that could not be written yet. Only one thread at a time may use
    the object."""

    def __init__(self, write: Callable[[list[memoryview]], int]) -> None:
        """Use `write`, which writes some bytes of the chunks and returns their number; see `blocking_write`."""
        self.write = write
        # Pending chunks in reverse order. The channel extends this list itself: a signal handler may interrupt
        # `add`, and the channel must know whether its chunks were added.
        self.rest: list[memoryview] = []
        self._counts: collections.deque[int] = collections.deque()
        self.torn = False

    @property
    def pending(self) -> bool:
        """Whether chunks are still to be written."""
        return bool(self.rest)

    def add(self, chunks: Iterable[memoryview]) -> None:
        """Append chunks to the pending chunks without copying: their memory must not change until it is written."""
        self.rest[:0] = last_first(chunks)

    def write_some(self) -> None:
        """Call `write` once. Its errors are not caught; an `OSError` means that nothing was written."""
        if not self._counts:
            # As in `ByteReader.read_into`, no byte count is lost if `write` is a C function, like the function of
            # `blocking_write`. The list is in reverse order, so its last items are written next.
            self._counts.extend(map(self.write, (self.rest[: -_MAX_CHUNKS - 1 : -1],)))
        self.torn = True
        self._drop(self._counts[0])
        self._counts.popleft()
        self.torn = False

    def write_all(self, chunks: Iterable[memoryview]) -> None:
        """Append the chunks, and write until no chunk is pending."""
        self.add(chunks)
        while self.rest:
            self.write_some()

    def take_back(self, chunks: Iterable[memoryview]) -> bool:
        """Remove the chunks that were added last, if no byte of them has been written. Return whether they were
        removed."""
        added = last_first(chunks)
        # `_counts` or `torn` is set if an interrupt came after a write. `rest` may then still contain written
        # bytes.
        untouched = (
            not (self._counts or self.torn)
            and len(added) <= len(self.rest)
            and all(
                kept is chunk
                for kept, chunk in zip(self.rest, added)  # noqa: B905 - the lengths may differ
            )
        )
        if untouched:
            del self.rest[: len(added)]
        return untouched

    def discard(self) -> None:
        """Free the pending chunks after the stream was lost."""
        self.rest.clear()
        self._counts.clear()

    def _drop(self, count: int) -> None:
        while count:
            chunk = self.rest[-1]
            if count < chunk.nbytes:
                self.rest[-1] = chunk[count:]
                return
            count -= chunk.nbytes
            self.rest.pop()


def last_first(chunks: Iterable[memoryview]) -> list[memoryview]:
    """Return the chunks in reverse order, as in `ByteWriter.rest`."""
    return [chunk for chunk in chunks if chunk.nbytes][::-1]


def blocking_write(fd: int) -> Callable[[list[memoryview]], int]:
    """Return the `write` function of a `ByteWriter` for a blocking descriptor: a gathering write if available."""
    if hasattr(os, "writev"):
        return functools.partial(os.writev, fd)
    return lambda chunks: os.write(fd, chunks[0][:_MAX_PLAIN_WRITE_BYTES])
