"""Plans: the client's description of a repeated call, checked and bound to memory.

The description is not trusted. ONNX Runtime checks the names; everything else is checked here before memory is
taken or referred to. A plan belongs to one channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from qnnbridge_host.engine.calls import BoundCall, BoundTensor, StopHandle
from qnnbridge_host.fastpath.shared_memory import Slabs
from qnnbridge_protocol.errors import InvalidArgument
from qnnbridge_protocol.frames import ALIGNMENT, desync
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    import numpy as np


class BoundRuns(Protocol):
    """The target of a plan, usually a session."""

    def run_bound(self, call: BoundCall, stop: StopHandle, enter: Callable[[str], None]) -> list[Any] | None:
        """See `EngineSession.run_bound`. enter: called before each native step."""


class BoundPlan(NamedTuple):
    """A checked plan.

    Attributes:
        session: the session that it runs.
        lane: the lane that its calls wait in, or ``None``.
        slabs: numbers of the slabs that its tensors lie in.
    """

    session: BoundRuns
    lane: str | None
    call: BoundCall
    slabs: frozenset[int]


def make_plan(
    description: Mapping[str, Any], find: Callable[[int], tuple[BoundRuns, str | None]], slabs: Slabs
) -> BoundPlan:
    """Check a description. Raises `ProtocolDesync` for malformed ones, `InvalidArgument` and `Closed` for
    others."""
    inline = description.get("inline")
    number, inputs, outputs = (description.get(key) for key in ("session", "inputs", "outputs"))
    if type(inline) is not bool or type(number) is not int or type(inputs) is not list or type(outputs) is not list:
        raise desync("plan.make without a proper description")
    if inline:
        raise InvalidArgument(
            "The tensors of a plan lie in shared memory.", fix="Make calls without shared memory by the connection."
        )
    # Raises `Closed` for an unknown session, which the client takes for a plan that is refused for now.
    session, lane = find(number)
    tensors = [_read(item) for item in (*inputs, *outputs)]
    bound = [_shared(tensor, slabs, written=at >= len(inputs)) for at, tensor in enumerate(tensors)]
    call = BoundCall(tuple(bound[: len(inputs)]), tuple(bound[len(inputs) :]))
    # `feeds` is a dict: a name twice makes it shorter than the list.
    if len(call.feeds) != len(inputs) or len(set(call.output_names)) != len(outputs) or not outputs:
        raise desync("plan.make with a name twice, or without an output")
    return BoundPlan(session, lane, call, frozenset(tensor.slab for tensor in tensors))


class _Tensor(NamedTuple):
    """One tensor of a plan, checked by itself. slab, offset: its location."""

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
        # In Python's integers, which do not overflow: the size is compared with the slab below.
        size = measure(LAYOUTS[element].bits, shape)[1]
    except (ValueError, TypeError, KeyError) as error:
        raise desync(f"a tensor of a plan has no proper type or shape ({error})") from None
    kind = LAYOUTS[element]
    if not kind.named or kind.packed or element is ElementType.STRING:
        raise InvalidArgument(f"A {element.text} tensor cannot be part of a plan.")
    if type(slab) is not int or type(offset) is not int or offset < 0 or offset % ALIGNMENT:
        raise desync("a tensor of a plan lies at no proper place")
    return _Tensor(name, shape, kind.storage, size, slab, offset)


def _shared(tensor: _Tensor, slabs: Slabs, *, written: bool) -> BoundTensor:
    slab = slabs.get(tensor.slab)
    # Each slab has one writing side; a result in memory that the client writes would race with its next
    # inputs.
    if written and not slab.host_writes:
        raise desync("an output lies in memory that the host does not write")
    if tensor.offset + tensor.nbytes > slab.data.nbytes:
        raise desync(
            f"a tensor of {tensor.nbytes} bytes at {tensor.offset} lies beyond its slab of {slab.data.nbytes}"
        )
    return BoundTensor(tensor.name, slab.view(tensor.shape, tensor.dtype, tensor.offset))


__all__ = ["BoundPlan", "BoundRuns", "make_plan"]
