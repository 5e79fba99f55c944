"""Identity of a repeated call: the types and shapes of its tensors, and the key of its plans."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from qnnbridge._fastpath.memory import Array, SharedArrays, SharedBlock, block_of
from qnnbridge_protocol.elements import LAYOUTS, ElementType, element_of

# Maximum number of signatures per session. A session with more different shapes rarely repeats a call, so more
# signatures would not help.
MAX_SIGNATURES = 64

# Shared memory contains the little-endian bytes of the wire; a big-endian machine would have to swap them in each
# call.
_LITTLE = sys.byteorder == "little"

# Names of the requested outputs; ``None`` for all.
Names = tuple[str, ...] | None
Feed = dict[str, Any]
Out = Sequence["Array | None"]


class OutputPlacement(NamedTuple):
    """Memory to which the host writes the outputs of a call.

    Attributes:
        out: arrays for the outputs; ``None`` for a new array. If an array is unsuitable, the connection is used.
        fresh: way to return large results: "" copies them; "writable" and "borrowed" (read-only) return arrays in
            shared memory if possible.
        in_place: whether an output may use the memory of an input.
    """

    out: Out | None = None
    fresh: str = ""
    in_place: bool = False


class TensorSignature(NamedTuple):
    """Name, type and shape of one input or output of a call."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    element: ElementType
    nbytes: int


class CallSignature:
    """Inputs and outputs in the order of the call.

    Attributes:
        slow: whether the host once answered with other types or shapes; calls with this signature then always use
            the connection.
        not_before: value of `time.monotonic` before which no plan is requested, because the host refused a plan or
            memory ran out.
    """

    __slots__ = ("inputs", "not_before", "outputs", "slow")

    def __init__(self, inputs: tuple[TensorSignature, ...], outputs: tuple[TensorSignature, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.slow = False
        self.not_before = 0.0


# Function that returns the signature of a call, for example `KnownCalls.find`.
Find = Callable[[Names, Feed], "CallSignature | None"]


class KnownCalls:
    """Signatures of one session's calls that the host has checked and answered over the connection. Thread-safe.

    The key of a signature contains the names of the outputs, and the name, type and shape of each input in the
    order of the feed. The host compares each answer with the stored types and shapes of the outputs. Two threads
    may add the same call at once.
    """

    def __init__(self, all_outputs: Iterable[str]) -> None:
        self._all_outputs = tuple(all_outputs)
        self._signatures: dict[tuple[Any, ...], CallSignature] = {}

    def find(self, names: Names, feed: Feed) -> CallSignature | None:
        """Return the signature of a call; ``None`` if it is unknown."""
        key = _known_as(names, feed)
        return None if key is None else self._signatures.get(key)

    def learn(self, names: Names, feed: Feed, results: Sequence[Any]) -> None:
        """Add a call that succeeded over the connection."""
        key = _known_as(names, feed)
        wanted = self._all_outputs if names is None else names
        # Do not add a call that requests an output twice: its plan would contain the output only once.
        if key is None or len(set(wanted)) != len(wanted) or len(wanted) != len(results):
            return
        inputs = [_tensor(name, array) for name, array in feed.items()]
        outputs = [_tensor(name, array) for name, array in zip(wanted, results, strict=True)]
        known = self._signatures.get(key)
        if known is not None:
            # If the output shapes differ for the same input shapes, they depend on values, so no plan can be used.
            known.slow = known.slow or known.outputs != tuple(outputs)
            return
        if None in inputs or None in outputs:
            return
        # Remove the oldest signature (a dict keeps the order of insertion). Use `pop` with a default, because
        # another thread may remove it first.
        while len(self._signatures) >= MAX_SIGNATURES:
            self._signatures.pop(next(iter(self._signatures), ()), None)
        self._signatures[key] = CallSignature(tuple(filter(None, inputs)), tuple(filter(None, outputs)))

    def forget(self) -> None:
        """Forget all calls of the closed session."""
        self._signatures.clear()


def _known_as(names: Names, feed: Feed) -> tuple[Any, ...] | None:
    parts: list[Any] = [names]
    for name, array in feed.items():
        # Subclasses of ndarray (matrix, masked arrays, memmap) may override the attributes read here; their calls
        # use the connection, which converts them.
        if array.__class__ is not ndarray:
            return None
        parts += name, array.dtype, array.shape
    return tuple(parts)


def _tensor(name: str, array: Any) -> TensorSignature | None:
    """Return the signature of an array; ``None`` for other classes, strings, other byte orders and empty arrays."""
    if array.__class__ is not ndarray or not array.size or not _LITTLE:
        return None
    element = element_of(array.dtype)
    if element is None or element is ElementType.STRING:
        return None
    layout = LAYOUTS[element]
    # Exclude types without a numpy equivalent (bfloat16, float8), whose arrays contain plain integers, and packed
    # types (4 bits), whose elements share bytes.
    if not layout.named or layout.packed or array.dtype != layout.storage:
        return None
    return TensorSignature(name, layout.storage, array.shape, element, array.nbytes)


class CallKey(NamedTuple):
    """Key of a call's plan, and the arrays that the key describes.

    Attributes:
        key: the key of the plan; the docstring of the package lists its contents.
        arrays: the input arrays.
        inputs, outputs: shared blocks of the inputs and outputs; ``None`` for an array outside shared memory.
    """

    key: tuple[Any, ...]
    arrays: list[Array]
    inputs: list[SharedBlock | None]
    outputs: list[SharedBlock | None]


def key_of(
    session: int, names: Names, feed: Feed, out: Out | None, own: SharedArrays | None, in_place: bool = False
) -> CallKey | None:
    """Return the key of a call; ``None`` if the call cannot use the fast path.

    If an output array shares a block with an input, the host writes the output to the channel's memory, and the
    result is copied to the array afterwards, so that the call can be repeated with its original inputs. An output
    array that shares a block with an earlier output is handled in the same way.

    Args:
        session: number of the session in the host process.
        out: arrays for the outputs.
        own: shared arrays of the session's `Host`.
        in_place: whether the host may write an output directly to the block of an input.
    """
    parts: list[Any] = [session, names]
    arrays: list[Array] = []
    inputs: list[SharedBlock | None] = []
    outputs: list[SharedBlock | None] = []
    for name, array in feed.items():
        if array.__class__ is not ndarray:
            return None
        # The key contains the place of an array in shared memory, so another array at the same place uses the same
        # plan.
        block = None if own is None or array.base is None else block_of(array, own)
        arrays.append(array)
        inputs.append(block)
        parts += name, array.dtype, array.shape, None if block is None else block.place
    if out is not None:
        taken = [] if in_place else [block.place for block in inputs if block is not None]
        targets: list[Any] = []
        for target in out:
            block = None
            if target is None:
                targets.append(None)
            elif target.__class__ is not ndarray:
                return None
            else:
                block = None if own is None else block_of(target, own)
                if block is not None and (block.place in taken or not block.slab.host_writes):
                    block = None
                if block is not None:
                    taken.append(block.place)
                targets += None if block is None else block.place, target.dtype, target.shape
            outputs.append(block)
        parts.append(tuple(targets))
    # `CallKey(...)` would be slower: it calls a `__new__` written in Python.
    return tuple.__new__(CallKey, (tuple(parts), arrays, inputs, outputs))


def fits(out: Out | None, signature: CallSignature) -> bool:
    """Return whether the arrays `out` have the types and shapes of the outputs."""
    if out is None:
        return True
    outputs = signature.outputs
    return len(out) == len(outputs) and all(
        target is None or (target.dtype == tensor.dtype and target.shape == tensor.shape)
        for target, tensor in zip(out, outputs, strict=True)
    )
