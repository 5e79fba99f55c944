"""What a repeated call is known by: the types and shapes of its tensors, and the key of its plans."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qnnbridge._fastpath.memory import Array, SharedArrays, SharedBlock, block_of
from qnnbridge_protocol.elements import LAYOUTS, ElementType, element_of

# Signatures per session. Calls that vary more gain nothing from being remembered.
MAX_SIGNATURES = 64

# Shared memory has the little-endian bytes of the wire; a big-endian machine would have to swap them in each
# call.
_LITTLE = sys.byteorder == "little"

# Names of the outputs that a call asks for; ``None`` for all.
Names = tuple[str, ...] | None
Feed = dict[str, Any]
Out = Sequence["Array | None"]


class Wish(NamedTuple):
    """Where the outputs of a call go.

    Attributes:
        out: arrays for the outputs, ``None`` for a new one. One that does not fit sends the call to the connection.
        fresh: large results may stay in shared memory; "borrowed" ones are read-only.
        in_place: an output may have the memory of an input.
    """

    out: Out | None = None
    fresh: str = ""
    in_place: bool = False


class TensorSignature(NamedTuple):
    """One input or output."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    element: ElementType
    nbytes: int


class CallSignature:
    """Inputs and outputs in the order of the call.

    Attributes:
        slow: an answer had other types or shapes: its calls go by the connection for good.
        not_before: `time.monotonic` before which no plan is asked for, after a host had refused one or had no
        memory.
    """

    __slots__ = ("inputs", "not_before", "outputs", "slow")

    def __init__(self, inputs: tuple[TensorSignature, ...], outputs: tuple[TensorSignature, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.slow = False
        self.not_before = 0.0


# What the fast path asks for the signature of a call: `KnownCalls.find`, for example.
Find = Callable[[Names, Feed], "CallSignature | None"]


class KnownCalls:
    """The calls of one session that succeeded by the connection, which has checked them.

    The key has the names of the outputs, and name, type and shape of each input, in the order of the feed. What it
    reports, the types and shapes of the outputs, is an expectation: the host compares each answer with it. Any
    thread; two threads may learn the same call at once.
    """

    def __init__(self, all_outputs: Iterable[str]) -> None:
        self._all_outputs = tuple(all_outputs)
        self._signatures: dict[tuple[Any, ...], CallSignature] = {}

    def find(self, names: Names, feed: Feed) -> CallSignature | None:
        """The call, if it is known."""
        key = _known_as(names, feed)
        return None if key is None else self._signatures.get(key)

    def learn(self, names: Names, feed: Feed, results: Sequence[Any]) -> None:
        """Learn a call that succeeded by the connection."""
        key = _known_as(names, feed)
        wanted = self._all_outputs if names is None else names
        # An output that is asked for twice has one place in a plan, and two in the results.
        if key is None or len(set(wanted)) != len(wanted) or len(wanted) != len(results):
            return
        inputs = [_tensor(name, array) for name, array in feed.items()]
        outputs = [_tensor(name, array) for name, array in zip(wanted, results, strict=True)]
        known = self._signatures.get(key)
        if known is not None:
            # The same inputs gave other output shapes: they depend on values, and no plan can hold them.
            known.slow = known.slow or known.outputs != tuple(outputs)
            return
        if None in inputs or None in outputs:
            return
        # The oldest goes (a dict keeps the order of insertion). `pop` with a default: another thread may take
        # it first.
        while len(self._signatures) >= MAX_SIGNATURES:
            self._signatures.pop(next(iter(self._signatures), ()), None)
        self._signatures[key] = CallSignature(tuple(filter(None, inputs)), tuple(filter(None, outputs)))

    def forget(self) -> None:
        """The session is closed."""
        self._signatures.clear()


def _known_as(names: Names, feed: Feed) -> tuple[Any, ...] | None:
    parts: list[Any] = [names]
    for name, array in feed.items():
        # Subclasses may override what is read here (matrix, masked arrays, memmap); the connection converts
        # them.
        if array.__class__ is not np.ndarray:
            return None
        parts += name, array.dtype, array.shape
    return tuple(parts)


def _tensor(name: str, array: Any) -> TensorSignature | None:
    """``None`` for other classes, strings, other byte orders, and arrays without elements."""
    if array.__class__ is not np.ndarray or not array.size or not _LITTLE:
        return None
    element = element_of(array.dtype)
    if element is None or element is ElementType.STRING:
        return None
    layout = LAYOUTS[element]
    # Types that numpy cannot name (bfloat16, float8) look like plain integers here, and packed ones (4 bits)
    # have no byte of their own for each element.
    if not layout.named or layout.packed or array.dtype != layout.storage:
        return None
    return TensorSignature(name, layout.storage, array.shape, element, array.nbytes)


Blocks = tuple["SharedBlock | None", ...]


class CallKey(NamedTuple):
    """The key of a call's plans, see the theory of operation; the arrays that it was made of, and the blocks that
    its places mean."""

    key: tuple[Any, ...]
    arrays: tuple[Array, ...]
    inputs: Blocks
    outputs: Blocks


def key_of(
    session: int, names: Names, feed: Feed, out: Out | None, own: SharedArrays | None, *, in_place: bool = False
) -> CallKey | None:
    """``None`` for a call that cannot take the fast path.

    An output that has the place of an input gets none: it is written elsewhere and then copied, so that the call
    can be repeated with the inputs that it had. So is the second of two outputs with one place.

    Args:
        session: its number in the host process.
        out: arrays for the outputs, whose types and shapes the caller compares with the signature.
        own: the arrays of the session's `Host`.
        in_place: an output may have the place of an input.
    """
    parts: list[Any] = [session, names]
    inputs = []
    for name, array in feed.items():
        if array.__class__ is not np.ndarray:
            return None
        # The object is no part of the key, only its place: a new array in the same block has the same plan.
        block = None if own is None else block_of(array, own)
        inputs.append(block)
        parts += name, array.dtype, array.shape, None if block is None else block.place
    outputs: list[SharedBlock | None] = []
    if out is not None and own is not None:
        taken = set() if in_place else {block.place for block in inputs if block is not None}
        for target in out:
            block = None if target is None else block_of(target, own)
            if block is not None and (block.place in taken or not block.slab.host_writes):
                block = None
            if block is not None:
                taken.add(block.place)
            outputs.append(block)
        parts.append(tuple([None if block is None else block.place for block in outputs]))
    return CallKey(tuple(parts), tuple(feed.values()), tuple(inputs), tuple(outputs))


def fits(out: Out, signature: CallSignature, *, writeable: bool = True) -> bool:
    """Whether the arrays have the types and shapes of the outputs."""
    if len(out) != len(signature.outputs):
        return False
    for target, tensor in zip(out, signature.outputs, strict=True):
        if target is None:
            continue
        if target.__class__ is not np.ndarray or target.dtype != tensor.dtype or target.shape != tensor.shape:
            return False
        if writeable and not target.flags.writeable:
            return False
    return True
