"""Calls that were made before: their names, types and shapes, and how to find them again.

A `CallSignature` is made from a call that went well by the connection, so everything that is checked there has been
checked: a later call with the same names, the same dtypes and the same shapes passes the same checks. Only dense
tensors of types that numpy has are repeated this way.

`KnownSignatures` belongs to one session. Any thread; two that learn the same at once do no harm.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qnnbridge_protocol.elements import LAYOUTS, ElementType, element_of
from qnnbridge_protocol.fastpath import layout

# Per session. What varies more than that gains nothing from being remembered.
MAX_SHAPES = 64

FIRST_WAIT_S = 1.0
# Before a call that was refused as a plan is tried as one again. In vain that costs a question and its answer.
LONGEST_WAIT_S = 300.0

_LITTLE = sys.byteorder == "little"

Array = np.ndarray[Any, np.dtype[Any]]
Signature = tuple[Any, ...]


class TensorSignature(NamedTuple):
    """One input or output."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    element: ElementType
    nbytes: int


class Refusal:
    """A host could not make a plan of a call. That may pass (out of memory, a session that is being closed), so the
    next host is asked again, and this one after a while, each time twice as long."""

    __slots__ = ("_generation", "_until", "_wait_s")

    def __init__(self, generation: int, now: float, before: Refusal | None) -> None:
        """before: what was there until now."""
        self._generation = generation
        self._wait_s = FIRST_WAIT_S
        if before is not None and before._generation == generation:
            self._wait_s = min(2 * before._wait_s, LONGEST_WAIT_S)
        self._until = now + self._wait_s

    def holds(self, generation: int, now: float) -> bool:
        return generation == self._generation and now < self._until


class CallSignature:
    """Inputs and outputs in the order of the call. refusal: the host could not make a plan of it.

    reply_bytes: what the outputs take in a slab. wanted: the names that were asked for, if any were.
    """

    __slots__ = (
        *("_checks", "_count", "input_names", "inputs", "output_names", "outputs", "refusal", "reply_bytes"),
        "wanted",
    )

    def __init__(
        self,
        output_names: tuple[str, ...] | None,
        inputs: tuple[TensorSignature, ...],
        outputs: tuple[TensorSignature, ...],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.input_names = tuple(tensor.name for tensor in inputs)
        self.output_names = tuple(tensor.name for tensor in outputs)
        self.wanted = output_names
        self._count = len(inputs)
        self.refusal: Refusal | None = None
        self.reply_bytes = layout([tensor.nbytes for tensor in outputs])[1]
        self._checks = tuple((tensor.name, tensor.dtype, tensor.shape) for tensor in inputs)

    def fits(self, output_names: Sequence[str] | None, feed: Mapping[str, Any]) -> bool:
        """Whether this is the same call again."""
        if len(feed) != self._count:
            return False
        for name, dtype, shape in self._checks:
            array = feed.get(name)
            if array.__class__ is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                return False
        wanted = self.wanted
        if not output_names:
            return wanted is None
        return wanted is not None and len(output_names) == len(wanted) and tuple(output_names) == wanted


class KnownSignatures:
    """See the module."""

    def __init__(self, all_outputs: Iterable[str]) -> None:
        self._all_outputs = tuple(all_outputs)
        self._shapes: dict[Signature, CallSignature] = {}
        self._last: CallSignature | None = None

    def find(self, output_names: Sequence[str] | None, feed: Mapping[str, Any]) -> CallSignature | None:
        """The call, if it was made before."""
        last = self._last
        if last is None or not (feed.__class__ is dict or isinstance(feed, Mapping)):
            return None
        try:
            if last.fits(output_names, feed):
                return last
            signature = _signature(output_names, feed)
            found = self._shapes.get(signature) if signature is not None else None
        except TypeError:  # nothing of the kind that names are
            return None
        if found is None or not found.fits(output_names, feed):
            return None
        self._last = found
        return found

    def learn(self, output_names: Sequence[str] | None, feed: Mapping[str, Any], results: Sequence[Any]) -> None:
        """A call went well by the connection."""
        signature = _signature(output_names, feed)
        if signature is None or signature in self._shapes:
            return
        names = tuple(output_names) if output_names else self._all_outputs
        if len(set(names)) != len(names) or len(names) != len(results):
            return
        inputs = tuple(_tensor(name, array) for name, array in feed.items())
        outputs = tuple(_tensor(name, array) for name, array in zip(names, results, strict=True))
        if any(tensor is None for tensor in (*inputs, *outputs)):
            return
        shape = CallSignature(
            tuple(output_names) if output_names else None,
            tuple(tensor for tensor in inputs if tensor is not None),
            tuple(tensor for tensor in outputs if tensor is not None),
        )
        while len(self._shapes) >= MAX_SHAPES:
            self._shapes.pop(next(iter(self._shapes)), None)
        self._shapes[signature] = shape
        self._last = shape

    def forget(self) -> None:
        """The session is closed, or became another one."""
        self._last = None
        self._shapes.clear()


def _signature(output_names: Sequence[str] | None, feed: Mapping[str, Any]) -> Signature | None:
    parts: list[Any] = [tuple(output_names) if output_names else None]
    for name, array in feed.items():
        if array.__class__ is not np.ndarray:
            return None
        parts.append((name, array.dtype, array.shape))
    return tuple(parts)


def _tensor(name: str, array: Any) -> TensorSignature | None:
    """``None`` for what has no such memory: other classes, strings, other byte orders, no elements."""
    if array.__class__ is not np.ndarray or not array.size or not _LITTLE:
        return None
    element = element_of(array.dtype)
    if element is None or element is ElementType.STRING:
        return None
    layout = LAYOUTS[element]
    # `is`: every array of a plain native type has the very same dtype object, which makes the later check cheap.
    if not layout.named or layout.packed or array.dtype is not layout.storage:
        return None
    return TensorSignature(name, array.dtype, array.shape, element, array.nbytes)
