"""Plans: the client's description of a repeated call, checked and bound to memory.

The description is not trusted. ONNX Runtime checks the names; everything else is checked here before memory is
taken or referred to. A plan belongs to one channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from qnnbridge_host.engine.calls import BoundCall, BoundTensor, StopHandle
from qnnbridge_host.fastpath.shared_memory import Slabs
from qnnbridge_protocol.errors import InvalidArgument
from qnnbridge_protocol.fastpath import layout
from qnnbridge_protocol.frames import ALIGNMENT, desync
from qnnbridge_protocol.limits import Limits
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class BoundRuns(Protocol):
    """The target of a plan, usually a session."""

    def run_bound(self, call: BoundCall, stop: StopHandle, enter: Callable[[str], None]) -> list[Any] | None:
        """See `EngineSession.run_bound`. enter: called before each native step."""


class InlineMemory:
    """Memory for the tensors of a channel's inline plans. All plans share it: a channel carries one call at a time.

    Used by the channel's own thread.
    """

    def __init__(self, own: Callable[[int], npt.NDArray[np.uint8]]) -> None:
        """own: allocates this many bytes."""
        self._own = own
        self._data = own(0)

    def provide(self, size: int) -> npt.NDArray[np.uint8]:
        """At least `size` bytes.

        Memory grows by a factor of two or more, so earlier plans, which keep theirs, need no more than this one.
        """
        if self._data.nbytes < size:
            self._data = self._own(max(size, 2 * self._data.nbytes))
        return self._data


class BoundPlan:
    """A checked plan.

    Attributes:
        session: the session that it runs.
        lane: the lane that its calls wait in, or ``None``.
        inline: whether tensors travel on the channel.
        inputs, outputs: the bytes of the tensors that travel; `input_bytes` and `output_bytes` are their sums.
        slabs: numbers of the slabs that its tensors lie in.
    """

    __slots__ = (
        *("call", "inline", "input_bytes", "inputs", "lane", "output_bytes", "outputs", "session"),
        "slabs",
    )

    def __init__(
        self, session: BoundRuns, lane: str | None, call: BoundCall, inline: bool, slabs: frozenset[int]
    ) -> None:
        self.session = session
        self.lane = lane
        self.call = call
        self.inline = inline
        self.slabs = slabs
        self.inputs = _bytes_of(call.inputs) if inline else []
        self.outputs = _bytes_of(call.outputs) if inline else []
        self.input_bytes = sum(view.nbytes for view in self.inputs)
        self.output_bytes = sum(view.nbytes for view in self.outputs)


def make_plan(
    description: Mapping[str, Any],
    find: Callable[[int], tuple[BoundRuns, str | None]],
    slabs: Slabs,
    inline_memory: InlineMemory,
    limits: Limits,
) -> BoundPlan:
    """Check a description. Raises `ProtocolDesync` for malformed ones, `InvalidArgument` and `Closed` for
    others."""
    inline = description.get("inline")
    number, inputs, outputs = (description.get(key) for key in ("session", "inputs", "outputs"))
    if type(inline) is not bool or type(number) is not int or type(inputs) is not list or type(outputs) is not list:
        raise desync("plan.make without a proper description")
    session, lane = find(number)
    tensors = [_read(item) for item in (*inputs, *outputs)]
    if inline:
        bound = _inline(tensors, inline_memory, limits.max_body)
    else:
        bound = [_shared(tensor, slabs, written=at >= len(inputs)) for at, tensor in enumerate(tensors)]
    call = BoundCall(tuple(bound[: len(inputs)]), tuple(bound[len(inputs) :]))
    if len(call.feeds) != len(inputs) or len(set(call.output_names)) != len(outputs) or not outputs:
        raise desync("plan.make with a name twice, or without an output")
    return BoundPlan(session, lane, call, inline, frozenset(() if inline else [tensor.slab for tensor in tensors]))


class _Tensor(NamedTuple):
    """One tensor of a plan, checked by itself. slab, offset: its location, unless inline."""

    name: str
    shape: list[int]
    dtype: np.dtype[Any]
    nbytes: int
    slab: int
    offset: int


def _read(item: Any) -> _Tensor:
    from qnnbridge_protocol.elements import LAYOUTS, ElementType, measure

    if type(item) is not list or len(item) != 5 or type(item[0]) is not str or type(item[2]) is not list:
        raise desync("a tensor of a plan is [name, element, shape, slab, offset]")
    name, number, shape, slab, offset = item
    try:
        if any(type(dim) is not int for dim in shape):
            raise ValueError("a dimension is no integer")
        element = ElementType(number)
        size = measure(LAYOUTS[element].bits, shape)[1]
    except (ValueError, TypeError, KeyError) as error:
        raise desync(f"a tensor of a plan has no proper type or shape ({error})") from None
    kind = LAYOUTS[element]
    if not kind.named or kind.packed or element is ElementType.STRING:
        raise InvalidArgument(f"A {element.text} tensor cannot be part of a plan.")
    if type(slab) is not int or type(offset) is not int or offset < 0 or offset % ALIGNMENT:
        raise desync("a tensor of a plan lies at no proper place")
    return _Tensor(name, shape, kind.storage, size, slab, offset)


def _inline(tensors: list[_Tensor], memory: InlineMemory, most: int) -> list[BoundTensor]:
    import numpy as np

    offsets, size = layout([tensor.nbytes for tensor in tensors])
    if size > most:
        raise InvalidArgument("The tensors of an inline plan are larger than a message may be.")
    data = memory.provide(size)
    return [
        BoundTensor(tensor.name, np.ndarray(tensor.shape, tensor.dtype, data, offset))
        for tensor, offset in zip(tensors, offsets, strict=True)
    ]


def _shared(tensor: _Tensor, slabs: Slabs, *, written: bool) -> BoundTensor:
    slab = slabs.get(tensor.slab)
    if written and not slab.host_writes:
        raise desync("an output lies in memory that the host does not write")
    if tensor.offset + tensor.nbytes > slab.data.nbytes:
        raise desync(
            f"a tensor of {tensor.nbytes} bytes at {tensor.offset} lies beyond its slab of {slab.data.nbytes}"
        )
    return BoundTensor(tensor.name, slab.view(tensor.shape, tensor.dtype, tensor.offset))


def _bytes_of(tensors: Sequence[BoundTensor]) -> list[memoryview]:
    return [tensor.array.data.cast("B") for tensor in tensors if tensor.array.nbytes]


__all__ = ["BoundPlan", "BoundRuns", "InlineMemory", "make_plan"]
