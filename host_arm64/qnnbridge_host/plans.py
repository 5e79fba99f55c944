"""Plans: what a client said once of a call that it repeats, checked and made ready.

Nothing in the description is believed: names are ONNX Runtime's to check, everything else is checked here, before
memory is taken or pointed to. A plan belongs to one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge_host.engine.bound_call import BoundCall, BoundTensor
from qnnbridge_host.sharing import Slabs
from qnnbridge_protocol.errors import InvalidArgument
from qnnbridge_protocol.frames import ALIGNMENT, desync
from qnnbridge_protocol.limits import Limits

if TYPE_CHECKING:
    from qnnbridge_host.npu_reset import ResettableSession


class Plan:
    """session: that it runs. lane: in which its calls wait, if in any. inline: tensors travel on the line.

    inputs, outputs: the bytes of the tensors that travel, and how many they are.
    """

    __slots__ = ("call", "inline", "input_bytes", "inputs", "lane", "output_bytes", "outputs", "session")

    def __init__(self, session: ResettableSession, lane: str | None, call: BoundCall, inline: bool) -> None:
        self.session = session
        self.lane = lane
        self.call = call
        self.inline = inline
        self.inputs = _bytes_of(call.inputs) if inline else []
        self.outputs = _bytes_of(call.outputs) if inline else []
        self.input_bytes = sum(view.nbytes for view in self.inputs)
        self.output_bytes = sum(view.nbytes for view in self.outputs)


def make_plan(
    description: Mapping[str, Any],
    find: Callable[[int], tuple[ResettableSession, str | None]],
    slabs: Slabs,
    limits: Limits,
) -> Plan:
    """Raises `ProtocolDesync` for what no client would say, `InvalidArgument` and `Closed` for the rest."""
    inline = description.get("inline")
    number, inputs, outputs = (description.get(key) for key in ("session", "inputs", "outputs"))
    if type(inline) is not bool or type(number) is not int or type(inputs) is not list or type(outputs) is not list:
        raise desync("plan.make without a proper description")
    session, lane = find(number)
    budget = [limits.max_body]
    call = BoundCall(
        tuple(_tensor(item, slabs if not inline else None, False, budget) for item in inputs),
        tuple(_tensor(item, slabs if not inline else None, True, budget) for item in outputs),
    )
    if len(call.feeds) != len(inputs) or len(set(call.output_names)) != len(outputs) or not outputs:
        raise desync("plan.make with a name twice, or without an output")
    return Plan(session, lane, call, inline)


def _tensor(item: Any, slabs: Slabs | None, written: bool, budget: list[int]) -> BoundTensor:
    """slabs: where it lies; without, it gets memory of its own. budget: how much of that there may still be."""
    import numpy as np

    from qnnbridge_protocol.elements import LAYOUTS, ElementType, measure

    if type(item) is not list or len(item) != 5 or type(item[0]) is not str or type(item[2]) is not list:
        raise desync("a tensor of a plan is [name, element, shape, slab, offset]")
    name, number, shape, slab_number, offset = item
    try:
        if any(type(dim) is not int for dim in shape):
            raise ValueError("a dimension is no integer")
        element = ElementType(number)
        size = measure(LAYOUTS[element].bits, shape)[1]
    except (ValueError, TypeError, KeyError) as error:
        raise desync(f"a tensor of a plan has no proper type or shape ({error})") from None
    layout = LAYOUTS[element]
    if not layout.named or layout.packed or element is ElementType.STRING:
        raise InvalidArgument(f"A {element.text} tensor cannot be part of a plan.")
    if slabs is None:
        budget[0] -= size
        if budget[0] < 0:
            raise InvalidArgument("The tensors of an inline plan are larger than a message may be.")
        return BoundTensor(name, np.empty(shape, layout.storage))
    if type(slab_number) is not int or type(offset) is not int or offset < 0 or offset % ALIGNMENT:
        raise desync("a tensor of a plan lies at no proper place")
    slab = slabs.get(slab_number)
    if slab.host_writes is not written:
        raise desync("an input lies in memory that the host writes, or an output in memory that it does not")
    if offset + size > slab.data.nbytes:
        raise desync(f"a tensor of {size} bytes at {offset} lies beyond its slab of {slab.data.nbytes}")
    return BoundTensor(name, np.ndarray(shape, layout.storage, slab.data, offset))


def _bytes_of(tensors: Sequence[BoundTensor]) -> list[memoryview]:
    return [tensor.array.data.cast("B") for tensor in tensors if tensor.array.nbytes]


__all__ = ["Plan", "make_plan"]
