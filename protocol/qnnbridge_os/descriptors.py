"""A pair of one-way byte streams on two file descriptors: the pipes of a child process, or a socket twice.

Raw descriptors only: a buffered `sys.stdin` aborts the interpreter at exit while a thread waits in it
(`_enter_buffered_busy`), and a separate descriptor survives whatever happens to `sys.stdin`.

A Ctrl+C may come between any two bytecodes. A reader stores the count that the kernel returns within the same C
call that made the system call (`deque.extend(map(...))`), so that an interrupt during its wait loses nothing. Only
the microseconds in which a count is applied to the state are unsafe; `torn` reports that an interrupt came then,
and that the position in the stream is lost.
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

# Chunks in one gathering write; Linux allows 1024.
_MAX_CHUNKS = 512

# Size of one plain write, on systems without a gathering write (Windows).
_MAX_PLAIN_WRITE_BYTES = 1024 * 1024


class ByteReader:
    """Reads into memory of the caller. One thread at a time."""

    def __init__(self, fd: int) -> None:
        # closefd: the owner closes the descriptor, not the garbage collection of the reader.
        self._file = io.FileIO(fd, "rb", closefd=False)
        self._counts: collections.deque[int | None] = collections.deque()
        self.torn = False

    @property
    def ready(self) -> bool:
        """Whether `read_into` returns at once, with bytes that an interrupted call had read."""
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
    """Writes chunks in order; keeps what could not be written yet. One thread at a time."""

    def __init__(self, write: Callable[[list[memoryview]], int]) -> None:
        """Initialize. `write` sends some bytes of the chunks and returns how many; see `blocking_write`."""
        self.write = write
        # Pending chunks, the last one first. A caller that must know whether an interrupt came before or after the
        # addition extends this list directly.
        self.rest: list[memoryview] = []
        self._counts: collections.deque[int] = collections.deque()
        self.torn = False

    @property
    def pending(self) -> bool:
        """Whether chunks are still to be written."""
        return bool(self.rest)

    def add(self, chunks: Iterable[memoryview]) -> None:
        """Append chunks to the pending ones. Their memory is read when it is written, not now."""
        self.rest[:0] = last_first(chunks)

    def write_some(self) -> None:
        """Call `write` once. Its errors pass through; an `OSError` means that nothing was written."""
        if not self._counts:
            # See `ByteReader.read_into`: no count is lost if `write` is a C function, like that of
            # `blocking_write`. The list has the last chunk first, so its end, reversed, is what comes next.
            self._counts.extend(map(self.write, (self.rest[: -_MAX_CHUNKS - 1 : -1],)))
        self.torn = True
        self._drop(self._counts[0])
        self._counts.popleft()
        self.torn = False

    def write_all(self, chunks: Iterable[memoryview]) -> None:
        """Write everything."""
        self.add(chunks)
        while self.rest:
            self.write_some()

    def take_back(self, chunks: Iterable[memoryview]) -> bool:
        """Remove the chunks that were added last, if none of their bytes have been written. Return whether that
        succeeded."""
        added = last_first(chunks)
        # A count that has not been applied yet: an interrupt came after the write.
        untouched = (
            not (self._counts or self.torn)
            and len(added) <= len(self.rest)
            and all(
                kept is chunk
                for kept, chunk in zip(self.rest, added)  # noqa: B905 - the shorter one is meant
            )
        )
        if untouched:
            del self.rest[: len(added)]
        return untouched

    def discard(self) -> None:
        """Free pending chunks: the stream is lost."""
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
    """Return the chunks in the order of `ByteWriter.rest`."""
    return [chunk for chunk in chunks if chunk.nbytes][::-1]


def blocking_write(fd: int) -> Callable[[list[memoryview]], int]:
    """Return the `write` of a `ByteWriter` for a blocking descriptor: a gathering write if available."""
    if hasattr(os, "writev"):
        return functools.partial(os.writev, fd)
    return lambda chunks: os.write(fd, chunks[0][:_MAX_PLAIN_WRITE_BYTES])
