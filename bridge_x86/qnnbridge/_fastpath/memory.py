"""Shared memory of channels: slabs of a few sizes, and results that applications read in place.

One side writes a slab. Frames on the channel hand it over; it contains no lock and no flag. Memory of a result
array (`BorrowedMemory`) is not given to a later call before the array and all its views are gone, and stays mapped
when the channel, the host or the session is gone.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np

from qnnbridge._platform import SharedMemory, ShareHandle

SMALLEST_SLAB_BYTES = 64 * 1024

Array = np.ndarray[Any, np.dtype[Any]]


def slab_size(wanted: int) -> int:
    """The size class: powers of two and the steps halfway between, so at most a third is wasted."""
    size = SMALLEST_SLAB_BYTES
    while size < wanted:
        if size + size // 2 >= wanted and size >= 2 * SMALLEST_SLAB_BYTES:
            return size + size // 2
        size *= 2
    return size


class BorrowCount:
    """Counts the arrays of one slab that the application holds. It does not refer to the memory."""

    __slots__ = ("_released", "held")

    def __init__(self) -> None:
        # Borrowed arrays, including those that came back since `reuse`.
        self.held = 0
        self._released: collections.deque[None] = collections.deque()

    def free(self) -> bool:
        """Whether no array of the application refers to the slab."""
        return not self.held or len(self._released) == self.held

    def reuse(self) -> None:
        """Start again: the slab is free and about to be written."""
        self.held = 0
        self._released.clear()

    def came_back(self) -> None:
        """Called by a finalizer, which must neither lock nor block."""
        self._released.append(None)


class Slab:
    """A piece of shared memory.

    Attributes:
        number: the number that the host knows it by.
        data: its bytes.
        host_writes: it is for outputs. `data` is then read-only here, unless the application may write too
        (`writable`).
    """

    __slots__ = ("borrows", "data", "host_writes", "memory", "number", "size")

    def __init__(self, number: int, size: int, *, host_writes: bool, writable: bool = False) -> None:
        """Raises `OSError`."""
        self.number = number
        self.size = size
        self.host_writes = host_writes
        # Makes share handles; does not keep the memory mapped.
        self.memory = SharedMemory(size, writable=writable or not host_writes)
        self.data = np.frombuffer(self.memory.take_view(), np.uint8)
        self.borrows = BorrowCount()

    def share_handle(self, pid: int) -> ShareHandle:
        return self.memory.share_handle(pid)

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> Array:
        array: Array = np.ndarray(shape, dtype, self.data, offset)
        return array

    def close(self) -> None:
        """Close the descriptor: no other process will be shown the memory. Arrays in it stay valid."""
        self.memory.close()


class BorrowedMemory:
    """The base of a borrowed array and all its views. The slab is not reused before it is gone."""

    __slots__ = ("__array_interface__", "_slab")

    def __init__(self, slab: Slab, interface: dict[str, Any]) -> None:
        self._slab = slab
        self.__array_interface__ = interface
        slab.borrows.held += 1

    def __del__(self) -> None:
        self._slab.borrows.came_back()


def borrow(slab: Slab, interface: dict[str, Any]) -> Array:
    """A read-only array for the application. interface: ``__array_interface__`` of a view of the slab."""
    return np.asarray(BorrowedMemory(slab, interface))
