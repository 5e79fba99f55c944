"""A repeated call: its signature, by which it is recognised, and its plan on one channel.

A `CallSignature` is made from a call that succeeded on the slow path, which has checked it. A later call with the
same names, dtypes and shapes passes the same checks. Only dense tensors of types that numpy has are repeated this
way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qnnbridge._fastpath.memory import Slab, borrow
from qnnbridge_protocol.elements import LAYOUTS, ElementType, element_of
from qnnbridge_protocol.fastpath import Head, layout

# Signatures per session. Calls that vary more gain nothing from being remembered.
MAX_SHAPES = 64

FIRST_WAIT_S = 1.0
# Time before a refused plan is requested again. A refusal costs a question and its answer.
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


class PlanRefusal:
    """A host refused the plan of a call.

    The reason may pass (out of memory, a session that is being closed). So the next host is asked again, and this
    one after a time that doubles with each refusal.
    """

    __slots__ = ("_generation", "_until", "_wait_s")

    def __init__(self, generation: int, now: float, before: PlanRefusal | None) -> None:
        """before: the previous refusal, if any."""
        self._generation = generation
        self._wait_s = FIRST_WAIT_S
        if before is not None and before._generation == generation:
            self._wait_s = min(2 * before._wait_s, LONGEST_WAIT_S)
        self._until = now + self._wait_s

    def holds(self, generation: int, now: float) -> bool:
        return generation == self._generation and now < self._until


class CallSignature:
    """Inputs and outputs in the order of the call.

    Attributes:
        refusal: set when a host refused the plan.
        reply_bytes: bytes of all outputs in a slab.
        wanted: the requested output names, or ``None`` for all.
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
        self.refusal: PlanRefusal | None = None
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


class OptionalOutputs(list["Array | None"]):
    """Optional output buffers: outputs of other types or shapes are returned as they are."""


class InPlaceOutputs(OptionalOutputs):
    """Output buffers of which some are inputs of the same call, too, and are changed where they are."""


class KnownSignatures:
    """The signatures of one session. Any thread; two threads may learn the same signature at once."""

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
        except TypeError:  # names of other types
            return None
        if found is None or not found.fits(output_names, feed):
            return None
        self._last = found
        return found

    def learn(self, output_names: Sequence[str] | None, feed: Mapping[str, Any], results: Sequence[Any]) -> None:
        """Learn a call that succeeded on the slow path."""
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
        """Forget everything: the session is closed, or became another one."""
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
    """``None`` for other classes, strings, other byte orders, and arrays without elements."""
    if array.__class__ is not np.ndarray or not array.size or not _LITTLE:
        return None
    element = element_of(array.dtype)
    if element is None or element is ElementType.STRING:
        return None
    layout = LAYOUTS[element]
    # `is`: all arrays of a native type share one dtype object, which makes later checks cheap.
    if not layout.named or layout.packed or array.dtype is not layout.storage:
        return None
    return TensorSignature(name, array.dtype, array.shape, element, array.nbytes)


# A weak reference to an array, or `no_array`.
Whole = Callable[[], "Array | None"]

BOOL = np.dtype(np.bool_)


class CallPlan:
    """A call that both sides know, on one channel. Used by the thread that has the channel.

    Attributes:
        number: its number on the channel.
        session: number of the host's session.
        copies: inputs that are copied, with their targets.
        results: views that the outputs are read from; ``None`` for an output in a block of the application's.
        given, taken: for each input and output the required dtype and shape, and a weak reference to the
        application's
            array in such a block.
        shape: the signature that it was used for last.
    """

    __slots__ = (
        *(
            "call",
            "copies",
            "filled",
            "fills",
            "given",
            "in_place",
            "inline",
            "interfaces",
            "needs",
            "number",
            "plain",
            "reply",
            "reply_size",
        ),
        *("results", "session", "shape", "size", "taken", "tight", "used"),
    )

    def __init__(self, number: int, session: int, *, inline: bool) -> None:
        self.number = number
        self.session = session
        self.inline = inline
        # Makes the call if its tensors are in shared memory: see `FastChannel.caller`.
        self.call: Callable[[float | None], Head | None] = _never
        self.copies: list[tuple[str, Array]] = []
        self.results: list[Array | None] = []
        self.interfaces: list[dict[str, Any]] = []
        self.reply: Slab | None = None
        self.shape: CallSignature | None = None
        self.given: tuple[tuple[str, np.dtype[Any], tuple[int, ...], Callable[[], Any]], ...] = ()
        self.taken: tuple[tuple[np.dtype[Any], tuple[int, ...], Whole], ...] = ()
        # Whether any output lies in a block of the application's.
        self.fills = False
        # Of an inline plan: bytes of all inputs and of all outputs.
        self.size = self.reply_size = 0
        # Bytes for inputs and outputs outside of the application's blocks.
        self.needs = 0
        # Whether it was used since the last look of the maintenance thread.
        self.used = False
        # Whether its slab for outputs is not much larger than they are, so that it may be borrowed.
        self.tight = True
        # The usual case: no bool tensors and no blocks of the application's.
        self.plain = False
        # Whether all outputs lie in blocks of the application's and need no copy.
        self.filled = False
        # Whether an input lies in the block of an output.
        self.in_place = False

    def put_in(self, feed: Mapping[str, Any]) -> None:
        """Copy the inputs into shared memory."""
        if self.plain:
            for name, target in self.copies:
                target[...] = feed[name]  # as copyto, without its dispatch: 0.3 us
            return
        for name, target in self.copies:
            if target.dtype is BOOL:
                np.copyto(target, _proper(feed[name]))
            else:
                np.copyto(target, feed[name])

    def take_out(self, out: Sequence[Array | None] | None) -> list[Array]:
        """The results as new arrays, or in the arrays of ``out=``."""
        if out is None:
            if self.plain:
                if len(self.results) == 1:  # the usual case, without the frame of a comprehension
                    return [self.results[0].copy()]  # type: ignore[union-attr]
                return [result.copy() for result in self.results]  # type: ignore[union-attr]
            return [_owned(result) for result in self.results if result is not None]
        given: list[Array | None] = []
        for result, target in zip(self.results, out, strict=True):
            if result is None:
                assert target is not None
                if target.dtype is BOOL:
                    np.copyto(target, _proper(target))
            elif target is not None:
                np.copyto(target, _proper(result) if result.dtype is BOOL else result)
            given.append(_owned(result) if target is None and result is not None else target)
        return [array for array in given if array is not None]

    def borrow_outputs(self) -> list[Array]:
        """The results in place, read-only. A bool is copied: the host may use any byte for true."""
        assert self.reply is not None
        if self.plain and len(self.results) == 1:
            return [borrow(self.reply, self.interfaces[0])]
        return [
            _proper(result) if result.dtype is BOOL else borrow(self.reply, interface)
            for result, interface in zip(self.results, self.interfaces, strict=True)
            if result is not None
        ]


def _never(_deadline: float | None) -> Head | None:
    raise AssertionError("the tensors of this plan travel on the channel")


def _owned(result: Array) -> Array:
    return _proper(result) if result.dtype is BOOL else result.copy()


def _proper(array: Array) -> Array:
    """A bool array whose bytes are all 0 or 1."""
    # Not the operator: of an array without dimensions it makes a scalar.
    return np.not_equal(array.view(np.uint8), 0, out=np.empty(array.shape, BOOL))
