"""Arrays in shared memory that the application holds: inputs that it fills, outputs that it lets the host fill.

A block is given back when the array and all views of it are gone. The arrays outlive hosts: a new host is shown the
same memory. Each array belongs to one `SharedArrays`, of one `Host`; an array of another host is copied like any.
Any thread; finalizers only leave a note, and whoever asks for memory next works through the notes.
"""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from qnnbridge.repeated.memory import Slab, slab_size

BLOCK_BYTES = 4096
"""The smallest block."""

POOLED_BYTES = 256 * 1024
"""Arrays up to this size share slabs, so that a thousand of them do not take two thousand descriptors."""

POOL_SLAB_BYTES = 1024 * 1024

Array = np.ndarray[Any, np.dtype[Any]]


class SharedBlock:
    """What an array in shared memory and all its views refer to. place: slab and offset, by which plans know it."""

    __slots__ = (
        *("__array_interface__", "_freed", "array", "host_writes", "offset", "owner", "place", "size", "slab"),
    )

    def __init__(
        self,
        owner: SharedArrays,
        slab: Slab,
        offset: int,
        size: int,
        freed: collections.deque[tuple[Slab, int, int]],
    ) -> None:
        self.owner = owner
        self.slab = slab
        self.offset = offset
        self.size = size
        self.place = (slab.number, offset)
        self.host_writes = slab.host_writes
        self.array: Callable[[], Array | None] = no_array
        self._freed = freed
        self.__array_interface__: dict[str, Any] = {}

    def __del__(self) -> None:
        self._freed.append((self.slab, self.offset, self.size))


Blocks = tuple["SharedBlock | None", ...]


def shared_blocks(arrays: Iterable[Array | None], owner: SharedArrays, *, host_writes: bool) -> Blocks | None:
    """For each array its block, if the array is the whole of it: not a view of a part, nor of other layout, nor of
    others. ``None`` if there is no block among them."""
    blocks: list[SharedBlock | None] = []
    found = False
    for array in arrays:
        block: Any = None if array is None else array.base
        if (
            block.__class__ is SharedBlock
            and block.owner is owner
            and block.host_writes is host_writes
            and block.array() is array
        ):
            found = True
            blocks.append(block)
        else:
            blocks.append(None)
    return tuple(blocks) if found else None


def no_array() -> None:
    """In the place of a reference to an array, where there is none."""


class SharedArrays:
    """See the module."""

    def __init__(self, next_number: Callable[[], int], on_dropped: Callable[[int], None]) -> None:
        """on_dropped: told the number of a slab that is gone, so that the host may forget it."""
        self._next_number = next_number
        self._lock = threading.Lock()
        self._freed: collections.deque[tuple[Slab, int, int]] = collections.deque()
        self._pools: dict[tuple[bool, int], dict[Slab, list[int]]] = {}
        self._slabs: dict[int, Slab] = {}
        self._on_dropped = on_dropped

    @property
    def bytes(self) -> int:
        return sum(slab.size for slab in list(self._slabs.values()))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, host_writes: bool) -> Array:
        """An array without content. Raises `OSError` where there is no shared memory (to be had)."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block_size = BLOCK_BYTES
        while block_size < size:
            block_size *= 2
        with self._lock:
            self._collect()
            if block_size > POOLED_BYTES:
                slab, offset, block_size = self._new_slab(slab_size(size), host_writes), 0, 0
            else:
                slab, offset = self._pooled(block_size, host_writes)
        block = SharedBlock(self, slab, offset, block_size, self._freed)
        view = slab.view(shape, dtype, offset)
        block.__array_interface__ = view.__array_interface__
        array: Array = np.asarray(block)
        block.array = weakref.ref(array)
        return array

    # --- under the lock ---

    def _pooled(self, block_size: int, host_writes: bool) -> tuple[Slab, int]:
        pool = self._pools.setdefault((host_writes, block_size), {})
        for slab, offsets in pool.items():
            if offsets:
                return slab, offsets.pop()
        slab = self._new_slab(POOL_SLAB_BYTES, host_writes)
        offsets = pool[slab] = list(range(0, POOL_SLAB_BYTES, block_size))
        return slab, offsets.pop()

    def _new_slab(self, size: int, host_writes: bool) -> Slab:
        slab = Slab(self._next_number(), size, host_writes=host_writes, writable=True)
        self._slabs[slab.number] = slab
        return slab

    def _collect(self) -> None:
        while self._freed:
            slab, offset, size = self._freed.popleft()
            if size:
                pool = self._pools[slab.host_writes, size]
                pool[slab].append(offset)
                if len(pool[slab]) < POOL_SLAB_BYTES // size or len(pool) == 1:
                    continue
                del pool[slab]
            self._slabs.pop(slab.number, None)
            slab.close()
            self._on_dropped(slab.number)
