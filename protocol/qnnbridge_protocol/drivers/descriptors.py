"""A pair of one-way byte streams on two file descriptors: the pipes of a child process, or a socket twice.

Raw descriptors only: a buffered `sys.stdin` aborts the interpreter at exit when a thread waits in it
(`_enter_buffered_busy`), and a descriptor of one's own survives whatever happens to `sys.stdin`.

A Ctrl+C may strike between any two bytecodes. The counts that the kernel returns are therefore stored within
the same C call that made the system call (`deque.extend(map(...))`), so that an interrupt while waiting loses
nothing. Only the microseconds in which a count is worked into the state are not safe; `torn` tells that one
struck there, and that the stream's place is lost.
"""

from __future__ import annotations

import collections
import io
import os
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

_MAX_CHUNKS = 512
"""Chunks in one gathering write; Linux allows 1024."""

_MAX_PLAIN_WRITE_BYTES = 1024 * 1024
"""One plain write, where there is no gathering one (Windows)."""


class ByteReader:
    """Reads into memory of the caller. One thread at a time."""

    def __init__(self, fd: int) -> None:
        self._file = io.FileIO(fd, "rb", closefd=False)
        self._counts: collections.deque[int | None] = collections.deque()
        self.torn = False

    @property
    def ready(self) -> bool:
        """Whether `read_into` returns at once, with what an interrupted call had read."""
        return bool(self._counts)

    def read_into(self, buffer: memoryview, use: Callable[[int], T]) -> T:
        """Wait for bytes, then ``use(count)``; the count is 0 at end of file."""
        if not self._counts:
            self._counts.extend(map(self._file.readinto, (buffer,)))
        self.torn = True
        result = use(self._counts[0] or 0)
        self._counts.popleft()
        self.torn = False
        return result


class ByteWriter:
    """Writes chunks in order; what could not be written yet is kept. One thread at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest: list[memoryview] = []  # last first
        self._counts: collections.deque[int] = collections.deque()
        self.torn = False

    @property
    def pending(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._rest)

    def add(self, chunks: Iterable[memoryview]) -> None:
        """Put chunks behind what is pending. Their memory must not change until they are written."""
        self._rest[:0] = [chunk for chunk in chunks if chunk.nbytes][::-1]

    def write_some(self) -> None:
        """One system call. Raises `BlockingIOError` on a full non-blocking pipe, `OSError` on a broken one."""
        if not self._counts:
            if hasattr(os, "writev"):
                self._counts.extend(map(os.writev, (self._fd,), (self._rest[: -_MAX_CHUNKS - 1 : -1],)))
            else:
                chunk = self._rest[-1][:_MAX_PLAIN_WRITE_BYTES]
                self._counts.extend(map(os.write, (self._fd,), (chunk,)))
        self.torn = True
        self._drop(self._counts[0])
        self._counts.popleft()
        self.torn = False

    def write_all(self, chunks: Iterable[memoryview]) -> None:
        """Write everything; blocks."""
        self.add(chunks)
        while self._rest:
            self.write_some()

    def _drop(self, count: int) -> None:
        while count:
            chunk = self._rest[-1]
            if count < chunk.nbytes:
                self._rest[-1] = chunk[count:]
                return
            count -= chunk.nbytes
            self._rest.pop()
