"""Arrays in shared memory that the application holds: inputs that it fills, outputs that the host fills.

A block is freed when its array and all views of it are gone. The arrays outlive hosts: a new host is shown the same
memory. Each array belongs to the `SharedArrays` of one `Host`; arrays of another host are copied like ordinary
ones. Any thread. Finalizers only append to a queue; `collect` works it off when memory is asked for, and from time
to time.
"""

from __future__ import annotations

import collections
import errno
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from qnnbridge._fastpath.call import CallSignature, OptionalOutputs
from qnnbridge._fastpath.memory import Slab, slab_size
from qnnbridge._fastpath.sharing import Budget, Sharing
from qnnbridge._feed_rules import FeedRule, check_shape, make_rule
from qnnbridge._feeds import InputNode
from qnnbridge._option_fields import suggest
from qnnbridge._platform import SharedMemory
from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import InvalidArgument

# Size of the smallest block.
BLOCK_BYTES = 4096

# Arrays up to this size share slabs, which saves descriptors.
POOLED_BYTES = 256 * 1024

POOL_SLAB_BYTES = 1024 * 1024

Array = np.ndarray[Any, np.dtype[Any]]


# Of a freed block: its slab if it may be used again, slab number, offset, size (0 for a whole slab).
Freed = tuple["Slab | None", int, int, int]


class SharedBlock:
    """The base of a shared array and all its views. location: slab number and offset, the key for plans."""

    __slots__ = (
        *("__array_interface__", "_freed", "_keep", "array", "host_writes", "offset", "owner", "location", "size"),
        "slab",
    )

    def __init__(
        self,
        owner: SharedArrays,
        slab: Slab,
        offset: int,
        size: int,
        freed: collections.deque[Freed],
        *,
        keep: bool,
    ) -> None:
        """keep: the slab may be used again."""
        self.owner = owner
        self.slab = slab
        self.offset = offset
        self.size = size
        self.location = (slab.number, offset)
        self.host_writes = slab.host_writes
        self.array: Callable[[], Array | None] = no_array
        self._freed = freed
        self._keep = keep
        self.__array_interface__: dict[str, Any] = {}

    def __del__(self) -> None:
        # A slab that is not kept is freed with the block; only its number remains to be reported.
        self._freed.append((self.slab if self._keep else None, self.slab.number, self.offset, self.size))


Blocks = tuple["SharedBlock | None", ...]


def shared_blocks(
    arrays: Iterable[Array | None], owner: SharedArrays, *, host_writes: bool = False
) -> Blocks | None:
    """For each array its block, if the array is exactly a block of `owner`; not views, parts or other layouts.

    ``None`` if there is no block among them. host_writes: only blocks that the host may write to.
    """
    blocks: list[SharedBlock | None] = []
    found = False
    for array in arrays:
        block: Any = None if array is None else array.base
        if (
            block.__class__ is SharedBlock
            and block.owner is owner
            and block.host_writes >= host_writes
            and block.array() is array
        ):
            found = True
            blocks.append(block)
        else:
            blocks.append(None)
    return tuple(blocks) if found else None


def no_array() -> None:
    """A weak reference to nothing."""


class SharedArrays:
    """Allocates the arrays. It does not refer to slabs of a single array, so those are unmapped with their
    array."""

    def __init__(self, budget: Budget, next_number: Callable[[], int], on_dropped: Callable[[int], None]) -> None:
        """on_dropped: called with the number of a freed slab, so that the host forgets it."""
        self._budget = budget
        self._next_number = next_number
        self._lock = threading.Lock()
        self._freed: collections.deque[Freed] = collections.deque()
        self._pools: dict[tuple[bool, int], dict[Slab, list[int]]] = {}
        # Slabs of dropped results, by size.
        self._spare: dict[int, list[Slab]] = {}
        self._memories: dict[int, SharedMemory] = {}
        self._on_dropped = on_dropped

    def __len__(self) -> int:
        """Number of slabs."""
        return len(self._memories)

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], *, host_writes: bool, reusable: bool = False
    ) -> Array:
        """An uninitialised array. Raises `OSError` if there is no shared memory, or not enough.

        reusable: its memory is kept for a while when the array is dropped. For results, which come and go with
        every call: a new slab costs its page faults and a message to the host.
        """
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block_size = BLOCK_BYTES
        while block_size < size:
            block_size *= 2
        with self._lock:
            self._collect(keep_one=True)
            if block_size > POOLED_BYTES:
                spare = self._spare.get(slab_size(size)) if reusable else None
                slab = spare.pop() if spare else self._new_slab(slab_size(size), host_writes)
                offset = block_size = 0
            else:
                slab, offset = self._pooled(block_size, host_writes)
        block = SharedBlock(self, slab, offset, block_size, self._freed, keep=reusable or block_size > 0)
        view = slab.view(shape, dtype, offset)
        block.__array_interface__ = view.__array_interface__
        array: Array = np.asarray(block)
        block.array = weakref.ref(array)
        return array

    def collect(self) -> None:
        """Free unused memory, including empty pools."""
        with self._lock:
            self._collect(keep_one=False)

    def close(self) -> None:
        """The `Host` is closed: no process will be shown the memory any more. Arrays stay valid."""
        with self._lock:
            self._drop_spare()
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
            self._drop_spare()
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
        """keep_one: keep a slab of each pool for arrays that are made and dropped again and again."""
        while self._freed:
            slab, number, offset, size = self._freed.popleft()
            if slab is None:
                self._drop(number)
            elif not size:
                self._spare.setdefault(slab.size, []).append(slab)
            else:
                self._pools[slab.host_writes, size][slab].append(offset)
                if keep_one:
                    self._shrink(self._pools[slab.host_writes, size], size, least=1)
        if not keep_one:
            self._drop_spare()
            for (_, size), pool in self._pools.items():
                self._shrink(pool, size, least=0)

    def _shrink(self, pool: dict[Slab, list[int]], size: int, least: int) -> None:
        for slab in [slab for slab, offsets in pool.items() if len(offsets) == POOL_SLAB_BYTES // size]:
            if len(pool) > least:
                del pool[slab]
                self._drop(slab.number)

    def _drop_spare(self) -> None:
        for slabs in self._spare.values():
            for slab in slabs:
                self._drop(slab.number)
        self._spare.clear()

    def _drop(self, number: int) -> None:
        memory = self._memories.pop(number)
        memory.close()
        self._budget.give_array(memory.size)
        self._on_dropped(number)


# Type of ``out=``: arrays in the order of the outputs, or by name.
Out = Sequence["Array | None"] | Mapping[str, "Array | None"]


class ArraySource(Protocol):
    """The part of `Host` that `empty` uses."""

    sharing: Sharing

    @property
    def arrays(self) -> SharedArrays: ...


def empty(
    host: ArraySource, name: str, shape: Sequence[int] | None, nodes: Iterable[InputNode], *, host_writes: bool
) -> Array:
    """An array in shared memory for this input or output; an ordinary array if memory cannot be shared."""
    role = "output" if host_writes else "input"
    rules: dict[str, FeedRule] = {}
    for node in nodes:
        rules[node.name] = make_rule(node.name, node.type, tuple(node.shape or ()), role=role)
    rule = rules.get(name)
    if rule is None:
        raise InvalidArgument(
            f"{name!r} is no {role} of the model.", fix=f"There are {', '.join(rules)}.{suggest(str(name), rules)}"
        )
    if rule.dtype is None:
        raise errors.NotImplemented(
            f"An array for {name!r} cannot be made: it is {rule.declared}.",
            cause="Only dense tensors of types that numpy has can lie in shared memory.",
            fix="Feed it as you would otherwise.",
        )
    if shape is None:
        shape = rule.exact
    if shape is None:
        raise InvalidArgument(
            f"The model does not fix the shape of {name!r}.", fix=f"Give one: empty_{role}({name!r}, shape)."
        )
    if isinstance(shape, int):
        shape = (shape,)
    dims = tuple(int(dim) for dim in shape)
    check_shape(rule, dims)
    array = allocate(host, dims, rule.dtype, host_writes=host_writes)
    return np.empty(dims, rule.dtype) if array is None else array


def allocate(
    host: ArraySource, shape: tuple[int, ...], dtype: np.dtype[Any], *, host_writes: bool, reusable: bool = False
) -> Array | None:
    """`SharedArrays.empty` of the host; ``None`` if memory cannot be shared, or not so much now."""
    if host.sharing.why_no_memory is not None or not all(shape):
        return None
    try:
        return host.arrays.empty(shape, dtype, host_writes=host_writes, reusable=reusable)
    except OSError as error:
        host.sharing.last_error = str(error)
        host.sharing.arrays_refused += 1
        return None


def check_out(out: Out, names: Sequence[str], shape: CallSignature | None = None) -> list[Array | None]:
    """``out=`` as a list in the order of the outputs, checked against their types and shapes if those are known."""
    if isinstance(out, OptionalOutputs):
        return out
    if shape is not None and out.__class__ is list and len(out) == len(shape.outputs) and _all_fit(out, shape):
        return out
    if out.__class__ is not list and isinstance(out, Mapping):
        unknown = [str(name) for name in out if name not in names]
        if unknown:
            raise InvalidArgument(
                f"out= names {', '.join(unknown)}, which is not asked for.",
                fix=f"The outputs are {', '.join(names)}.",
            )
        out = [out.get(name) for name in names]
    arrays = list(out)
    if len(arrays) != len(names):
        raise InvalidArgument(
            f"out= has {len(arrays)} arrays for {len(names)} outputs.", fix="Give one for each, or None."
        )
    for name, array in zip(names, arrays, strict=True):
        if array is not None and (not isinstance(array, np.ndarray) or not array.flags.writeable):
            raise InvalidArgument(f"What out= has for {name!r} is no array that can be written to.")
    if shape is not None:
        for tensor, array in zip(shape.outputs, arrays, strict=True):
            if array is None or (array.dtype is tensor.dtype and array.shape == tensor.shape):
                continue
            if array.dtype != tensor.dtype or array.shape != tensor.shape:
                raise InvalidArgument(
                    f"What out= has for {tensor.name!r} is {array.dtype} {array.shape}, the output is "
                    f"{tensor.dtype} {tensor.shape}.",
                    fix="Give an array of the output's type and shape, or None for this output.",
                )
    return arrays


def _all_fit(arrays: list[Any], shape: CallSignature) -> bool:
    """Whether all arrays fit: the usual case, without the error messages of the full check."""
    for tensor, array in zip(shape.outputs, arrays):  # noqa: B905 - as many as there are
        if array.__class__ is not np.ndarray or array.dtype is not tensor.dtype or array.shape != tensor.shape:
            return False
        if not array.flags.writeable:
            return False
    return True
