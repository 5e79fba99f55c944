"""Arrays in shared memory that the application holds: inputs that it fills, outputs that it lets the host fill.

A block is given back when the array and all views of it are gone. The arrays outlive hosts: a new host is shown the
same memory. Each array belongs to one `SharedArrays`, of one `Host`; an array of another host is copied like any.
Any thread; finalizers only leave a note, and `collect` works through the notes: when memory is asked for, and from
time to time.
"""

from __future__ import annotations

import collections
import errno
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from qnnbridge._fastpath.memory import Slab, slab_size
from qnnbridge._fastpath.sharing import Budget
from qnnbridge._platform import SharedMemory

# The smallest block.
BLOCK_BYTES = 4096

# Arrays up to this size share slabs, so that a thousand of them do not take two thousand descriptors.
POOLED_BYTES = 256 * 1024

POOL_SLAB_BYTES = 1024 * 1024

Array = np.ndarray[Any, np.dtype[Any]]


# The slab of a pool, its number, offset and size of the block.
Freed = tuple["Slab | None", int, int, int]


class SharedBlock:
    """What an array in shared memory and all its views refer to. place: slab and offset, by which plans know it."""

    __slots__ = (
        *("__array_interface__", "_freed", "array", "host_writes", "offset", "owner", "location", "size", "slab"),
    )

    def __init__(
        self,
        owner: SharedArrays,
        slab: Slab,
        offset: int,
        size: int,
        freed: collections.deque[Freed],
    ) -> None:
        self.owner = owner
        self.slab = slab
        self.offset = offset
        self.size = size
        self.location = (slab.number, offset)
        self.host_writes = slab.host_writes
        self.array: Callable[[], Array | None] = no_array
        self._freed = freed
        self.__array_interface__: dict[str, Any] = {}

    def __del__(self) -> None:
        # A slab of its own goes with it; only its number is left to be told.
        self._freed.append((self.slab if self.size else None, self.slab.number, self.offset, self.size))


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
    """See the module. What lies in a slab of its own is not referred to here, so it is unmapped with its array."""

    def __init__(self, budget: Budget, next_number: Callable[[], int], on_dropped: Callable[[int], None]) -> None:
        """on_dropped: told the number of a slab that is gone, so that the host may forget it."""
        self._budget = budget
        self._next_number = next_number
        self._lock = threading.Lock()
        self._freed: collections.deque[Freed] = collections.deque()
        self._pools: dict[tuple[bool, int], dict[Slab, list[int]]] = {}
        self._memories: dict[int, SharedMemory] = {}
        self._on_dropped = on_dropped

    def __len__(self) -> int:
        """Slabs."""
        return len(self._memories)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, host_writes: bool) -> Array:
        """An array without content. Raises `OSError` where there is no shared memory (to be had)."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block_size = BLOCK_BYTES
        while block_size < size:
            block_size *= 2
        with self._lock:
            self._collect(keep_one=True)
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

    def collect(self) -> None:
        """Give back what is not used, pools that are empty included."""
        with self._lock:
            self._collect(keep_one=False)

    def close(self) -> None:
        """The `Host` is closed: nobody will be shown anything any more. Arrays stay what they are."""
        with self._lock:
            for memory in self._memories.values():
                memory.close()

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
        if not self._budget.take_array(size):
            raise OSError(errno.ENOMEM, "the arrays in shared memory are as many as there may be")
        try:
            slab = Slab(self._next_number(), size, host_writes=host_writes, writable=True)
        except BaseException:
            self._budget.give_array(size)
            raise
        self._memories[slab.number] = slab.memory
        return slab

    def _collect(self, *, keep_one: bool) -> None:
        """keep_one: a slab of each pool, for what is made and dropped again and again."""
        while self._freed:
            slab, number, offset, size = self._freed.popleft()
            if slab is None:
                self._drop(number)
            else:
                self._pools[slab.host_writes, size][slab].append(offset)
                if keep_one:
                    self._shrink(self._pools[slab.host_writes, size], size, least=1)
        if not keep_one:
            for (_, size), pool in self._pools.items():
                self._shrink(pool, size, least=0)

    def _shrink(self, pool: dict[Slab, list[int]], size: int, least: int) -> None:
        for slab in [slab for slab, offsets in pool.items() if len(offsets) == POOL_SLAB_BYTES // size]:
            if len(pool) > least:
                del pool[slab]
                self._drop(slab.number)

    def _drop(self, number: int) -> None:
        memory = self._memories.pop(number)
        memory.close()
        self._budget.give_array(memory.size)
        self._on_dropped(number)
