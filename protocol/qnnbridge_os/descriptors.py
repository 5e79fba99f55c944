"""A pair of one-way byte streams on two file descriptors: the pipes of a child process, or a socket twice.

Raw descriptors only: a buffered `sys.stdin` aborts the interpreter at exit when a thread waits in it
(`_enter_buffered_busy`), and a descriptor of one's own survives whatever happens to `sys.stdin`.

A Ctrl+C may strike between any two bytecodes. A reader stores the count that the kernel returns within the
same C call that made the system call (`deque.extend(map(...))`), so that an interrupt while it waits loses
nothing. Only the microseconds in which a count is worked into the state are not safe; `torn` says that one
struck there, and that the place in the stream is lost.
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

# One plain write, where there is no gathering one (Windows).
_MAX_PLAIN_WRITE_BYTES = 1024 * 1024


class ByteReader:
    """Reads into memory of the caller. One thread at a time."""

    def __init__(self, fd: int) -> None:
        # closefd: its owner closes the descriptor, and a reader that is collected must not.
        self._file = io.FileIO(fd, "rb", closefd=False)
        self._counts: collections.deque[int | None] = collections.deque()
        self.torn = False

    @property
    def ready(self) -> bool:
        """Whether `read_into` returns at once, with what an interrupted call had read."""
        return bool(self._counts)

    def read_into(self, buffer: memoryview, use: Callable[[int], T]) -> T:
        """Wait for bytes, then ``use(count)``; the count is 0 at end of file.

        Raises `BlockingIOError` on a non-blocking descriptor that has nothing yet.
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
    """Writes chunks in order; what could not be written yet is kept. One thread at a time."""

    def __init__(self, write: Callable[[list[memoryview]], int]) -> None:
        """`write` puts some bytes of the chunks on their way and returns how many; see `blocking_write`."""
        self.write = write
        # Last first. A caller that must know whether an interrupt came before or behind it adds to this itself.
        self.rest: list[memoryview] = []
        self._counts: collections.deque[int] = collections.deque()
        self.torn = False

    @property
    def pending(self) -> bool:
        """Whether something is still to be written."""
        return bool(self.rest)

    def add(self, chunks: Iterable[memoryview]) -> None:
        """Append chunks to the pending ones. Their memory is read when it is written, not now."""
        self.rest[:0] = last_first(chunks)

    def write_some(self) -> None:
        """Call `write` once. Its errors pass through; an `OSError` means that nothing was written."""
        if not self._counts:
            # See `ByteReader.read_into`: no count is lost if `write` is a C function, as `blocking_write` gives.
            # The list has the last chunk first, so its end, reversed, is what comes next.
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
        """Forget the chunks that were added last, if nothing of them has been written. True if so."""
        added = last_first(chunks)
        # A count that is not worked in yet: an interrupt came behind the write.
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
    """As `ByteWriter.rest` has them."""
    return [chunk for chunk in chunks if chunk.nbytes][::-1]


def blocking_write(fd: int) -> Callable[[list[memoryview]], int]:
    """The `write` of a `ByteWriter` for a blocking descriptor: a gathering write where available."""
    if hasattr(os, "writev"):
        return functools.partial(os.writev, fd)
    return lambda chunks: os.write(fd, chunks[0][:_MAX_PLAIN_WRITE_BYTES])
