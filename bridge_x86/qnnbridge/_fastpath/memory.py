"""Shared memory: slabs (allocations of a few sizes), and the application's arrays in them.

Only one of the two processes writes to a slab at a time. Messages on a channel tell the other process when it may
use the slab, so a slab contains no lock and no flag.

An array of the application (`SharedArrays.empty`) is in a block of a slab. The block is the base of the array and
of all its views, so its memory can be reused when Python has freed the block object, without counters or
finalizers. The arrays outlive hosts: a new host attaches the same memory. Each array belongs to the `SharedArrays`
of one `Host`; arrays of another host are copied like ordinary ones. Thread-safe.
"""

from __future__ import annotations

import errno
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from qnnbridge._fastpath import MemoryReservation, Sharing, slab_numbers
from qnnbridge._options.fields import suggest
from qnnbridge._values.feed_rules import Node, Role, check_shape, rule_of
from qnnbridge_os.native import Lock
from qnnbridge_os.processes import SharedMemory, ShareHandle
from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import InvalidArgument

SMALLEST_SLAB_BYTES = 64 * 1024

# Size of the smallest block of a slab.
BLOCK_BYTES = 4096

# Arrays up to this size share slabs, which saves descriptors. A slab of 1 MiB has space for 4 of the largest or 256
# of the smallest of these arrays.
POOLED_BYTES = 256 * 1024
POOL_SLAB_BYTES = 1024 * 1024

# From this size on, the host writes results directly to a shared array. Copying is faster for smaller results.
SHARED_BYTES = 64 * 1024

Array = np.ndarray[Any, np.dtype[Any]]


def slab_size(wanted: int) -> int:
    """Return the size of a slab for `wanted` bytes: a power of two, or 1.5 times a power of two. At most a third of
    the slab is unused."""
    size = SMALLEST_SLAB_BYTES
    while size < wanted:
        if size + size // 2 >= wanted and size >= 2 * SMALLEST_SLAB_BYTES:
            return size + size // 2
        size *= 2
    return size


class Slab:
    """An allocation of shared memory.

    Attributes:
        number: number by which the host refers to the slab.
        data: contents of the slab.
        host_writes: whether the host writes to the slab (for outputs). Then `data` is read-only in this process,
            except with `writable`.
    """

    __slots__ = ("__weakref__", "_reservation", "data", "host_writes", "memory", "number", "size")

    def __init__(
        self, size: int, reservation: MemoryReservation | None, *, host_writes: bool, writable: bool = False
    ) -> None:
        """Allocate the memory. Raise `OSError` on failure. reservation: reservation of the memory in a budget."""
        self.number = next(slab_numbers)
        self.size = size
        self.host_writes = host_writes
        # Object that creates share handles; it does not keep the memory mapped.
        self.memory = SharedMemory(size, writable=writable or not host_writes)
        # This array owns the mapping: numpy keeps the view alive until the last array in the slab is freed.
        self.data = np.frombuffer(self.memory.take_view(), np.uint8)
        self._reservation = reservation

    def share_handle(self, pid: int) -> ShareHandle:
        return self.memory.share_handle(pid)

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> Array:
        array: Array = np.ndarray(shape, dtype, self.data, offset)
        return array

    def close(self) -> None:
        """Close the descriptor, so that no other process can attach the memory. Existing arrays stay valid."""
        self.memory.close()


class SlabOfArrays(Protocol):
    """Interface of `Slab` that blocks use. The daemon implements it for the memory of its clients."""

    number: int
    size: int
    host_writes: bool

    def share_handle(self, pid: int) -> ShareHandle: ...


class SharedBlock:
    """Object that is the `base` of a shared array and of all its views.

    Attributes:
        place: slab number and offset, which are part of the key of plans.
        nbytes: size of the array.
    """

    __slots__ = ("__array_interface__", "__weakref__", "nbytes", "offset", "owner", "place", "slab")

    def __init__(self, owner: SharedArrays, slab: SlabOfArrays, offset: int) -> None:
        self.owner = owner
        self.slab = slab
        self.offset = offset
        # Slab numbers are never reused in a process, so an old place never refers to new memory.
        self.place = (slab.number, offset)
        self.nbytes = 0
        # Part of numpy's array interface: `np.asarray(self)` returns an array whose base is this block.
        self.__array_interface__: dict[str, Any] = {}

    def make_array(self, view: Array, *, read_only: bool = False) -> Array:
        """Return the block as an array. `view` is an array with the same memory, type and shape."""
        address = view.__array_interface__["data"][0]
        self.__array_interface__ = {**view.__array_interface__, "data": (address, read_only)}
        self.nbytes = view.nbytes
        array: Array = np.asarray(self)
        return array


def block_of(array: Array, owner: SharedArrays) -> SharedBlock | None:
    """Return the block of which the array contains all bytes in order; ``None`` for a part or another layout.

    An application may have changed type and shape of the array, so the caller must compare type and shape.
    """
    block: Any = array.base
    if block.__class__ is np.ndarray:
        # numpy shortens chains of views: a view of a view has the same base as the first view.
        block = block.base  # `array` is a view of a view of the block
    if block.__class__ is not SharedBlock or block.owner is not owner:
        return None
    # A contiguous array with as many bytes as the block consists of all its bytes.
    return block if array.nbytes == block.nbytes and array.flags.c_contiguous else None


class SharedArrays:
    """Allocator of shared arrays. It keeps no reference to a slab that was allocated for a single array, so freeing
    the array unmaps the slab.

    Args:
        on_dropped: function that makes the host detach the freed slab with this number.
    """

    def __init__(self, sharing: Sharing, on_dropped: Callable[[int], None]) -> None:
        self._budget = sharing.array_memory
        self._lock = Lock()
        # Slabs with weak references to their blocks, by `host_writes` and the size of the blocks.
        self._pools: dict[tuple[bool, int], list[tuple[Slab, list[weakref.ref[SharedBlock] | None]]]] = {}
        # All slabs that the host may have attached.
        self._slabs: dict[int, weakref.ref[Slab]] = {}
        self._on_dropped = on_dropped

    def __len__(self) -> int:
        """Return the number of slabs."""
        return sum(slab() is not None for slab in list(self._slabs.values()))

    def empty(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        host_writes: bool,
        reusable: bool = False,
        read_only: bool = False,
    ) -> Array:
        """Return an uninitialised array. Raise `OSError` if shared memory is not sufficient.

        reusable: keep the memory for a while after the array is freed. Used for results, which every call
        allocates: a new slab causes page faults and a message to the host.
        """
        size = math.prod(shape) * dtype.itemsize
        block_size = BLOCK_BYTES
        # Use powers of two of at least a page, so that blocks of a pool have one size and arrays do not share
        # pages.
        while block_size < size:
            block_size *= 2
        with self._lock:
            if block_size <= POOLED_BYTES:
                block, slab = self._pooled(block_size, POOL_SLAB_BYTES, host_writes)
            elif reusable:
                block, slab = self._pooled(slab_size(size), slab_size(size), host_writes)
            else:
                slab = self._new_slab(slab_size(size), host_writes)
                block = SharedBlock(self, slab, 0)
        return block.make_array(slab.view(shape, dtype, block.offset), read_only=read_only)

    def collect(self) -> None:
        """Free unused memory, including empty pools."""
        with self._lock:
            self._collect()

    def close(self) -> None:
        """Close the descriptors, because no process will attach the memory of a closed `Host`. Arrays stay
        valid."""
        with self._lock:
            self._pools.clear()
            for reference in list(self._slabs.values()):
                slab = reference()
                if slab is not None:
                    slab.close()

    def leave_to_parent(self) -> None:
        """In a forked child, replace the shared memory with a private copy, so that arrays stay valid."""
        if sys.platform != "win32":
            from qnnbridge_os.sharing import unshare

            for reference in list(self._slabs.values()):
                slab = reference()
                if slab is not None:
                    unshare(slab.data.__array_interface__["data"][0], slab.size)

    # --- methods that are called with the lock held ---

    def _pooled(self, size: int, slab_bytes: int, host_writes: bool) -> tuple[SharedBlock, Slab]:
        pool = self._pools.setdefault((host_writes, size), [])
        # Take the first free block. A dead weak reference marks a free block, so freeing an array needs no call.
        for slab, lives in pool:
            for index, life in enumerate(lives):
                if life is None or life() is None:
                    block = SharedBlock(self, slab, index * size)
                    lives[index] = weakref.ref(block)
                    return block, slab
        slab = self._new_slab(slab_bytes, host_writes)
        block = SharedBlock(self, slab, 0)
        # Add slab and block in one statement: if an exception occurs earlier, nothing refers to them, so both are
        # freed.
        pool.append((slab, [weakref.ref(block), *[None] * (slab_bytes // size - 1)]))
        return block, slab

    def _new_slab(self, size: int, host_writes: bool) -> Slab:
        # Search for freed slabs here and not in a finalizer, which could run between any two lines of these
        # methods.
        self._forget_the_dead()
        reservation = self._budget.take(size)
        if reservation is None:
            self._collect()
            reservation = self._budget.take(size)
        if reservation is None:
            raise OSError(errno.ENOMEM, "the limit of arrays in shared memory is reached")
        slab = Slab(size, reservation, host_writes=host_writes, writable=True)
        self._slabs[slab.number] = weakref.ref(slab)
        return slab

    def _collect(self) -> None:
        for pool in self._pools.values():
            pool[:] = [(slab, lives) for slab, lives in pool if any(life is not None and life() for life in lives)]
        self._forget_the_dead()

    def _forget_the_dead(self) -> None:
        for number, slab in list(self._slabs.items()):
            if slab() is None:
                del self._slabs[number]
                self._on_dropped(number)


class ArraySource(Protocol):
    """Interface of `Host` that `empty` uses."""

    sharing: Sharing

    @property
    def arrays(self) -> SharedArrays: ...


def empty(
    host: ArraySource, name: str, shape: Sequence[int] | None, nodes: Iterable[Node], *, host_writes: bool
) -> Array:
    """Return an array in shared memory for an input or output; an ordinary array if memory cannot be shared."""
    role: Role = "output" if host_writes else "input"
    rules = {node.name: rule_of(node, role=role) for node in nodes}
    rule = rules.get(name)
    if rule is None:
        raise InvalidArgument(
            f"{name!r} is not an {role} of the model.",
            fix=f"Use one of {', '.join(rules)}.{suggest(str(name), rules)}",
        )
    if rule.dtype is None:
        raise errors.NotImplemented(
            f"Cannot create an array for {name!r}, which is {rule.declared}.",
            cause="Only dense tensors of numpy's data types can be in shared memory.",
            fix="Pass an ordinary value to run().",
        )
    if shape is None:
        shape = rule.exact
    if shape is None:
        raise InvalidArgument(
            f"The model does not fix the shape of {name!r}.", fix=f"Pass a shape: empty_{role}({name!r}, shape)."
        )
    if isinstance(shape, int):
        shape = (shape,)
    dims = tuple(int(dim) for dim in shape)
    check_shape(rule, dims)
    array = allocate(host, dims, rule.dtype, host_writes=host_writes)
    return np.empty(dims, rule.dtype) if array is None else array


def allocate(
    host: ArraySource,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    host_writes: bool,
    reusable: bool = False,
    read_only: bool = False,
) -> Array | None:
    """Return a new shared array of the host; ``None`` if memory cannot be shared, or too little is left."""
    # A tensor without elements needs no memory.
    if host.sharing.why_not is not None or not all(shape):
        return None
    try:
        return host.arrays.empty(shape, dtype, host_writes=host_writes, reusable=reusable, read_only=read_only)
    except OSError as error:
        host.sharing.last_error = str(error)
        if not reusable:
            host.sharing.arrays_refused += 1
        return None
