"""Shared memory of the client, by slab number, and the calls that the client plans in it. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from qnnbridge_host.engine.calls import BoundCall, BoundTensor, StopHandle
from qnnbridge_os.sharing import drop, map_memory
from qnnbridge_protocol.errors import InvalidArgument, desync
from qnnbridge_protocol.fastpath import MAX_SLABS
from qnnbridge_protocol.frames import ALIGNMENT
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Request fields that hold share handles.
HANDLE_FIELDS = ("read", "write", "where")


def drop_handles(header: Mapping[str, Any]) -> None:
    """Close the share handles of a request that is answered, or never served, as far as they were not opened."""
    for name in HANDLE_FIELDS:
        share_handle = header.get(name)
        if isinstance(share_handle, dict):
            drop(share_handle)


class AttachedSlab:
    """A mapped slab of the client. host_writes: this side writes it and the client reads it; otherwise the
    reverse."""

    __slots__ = ("data", "host_writes")

    def __init__(self, data: npt.NDArray[np.uint8], host_writes: bool) -> None:
        self.data = data
        self.host_writes = host_writes

    def view(self, shape: Sequence[int], dtype: np.dtype[Any], offset: int) -> npt.NDArray[Any]:
        """The tensor that lies there."""
        import numpy as np

        view: npt.NDArray[Any] = np.ndarray(tuple(shape), dtype, self.data, offset)
        return view


class Slabs:
    """The attached slabs. A plan keeps its slabs mapped after their release.

    asked: the number of the request, which tells the order in which the client asked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: dict[int, AttachedSlab] = {}
        # Releases of slabs that are not attached (yet). A client that does not wait for the reply to an attach
        # releases the slab right behind it, and the release may be served first.
        self._released_at: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slabs)

    def __contains__(self, number: int) -> bool:
        return number in self._slabs

    def attach(self, number: int, where: dict[str, Any], size: int, *, host_writes: bool, asked: int) -> None:
        with self._lock:
            full = len(self._slabs) >= MAX_SLABS or number in self._slabs
        if full:
            raise InvalidArgument(f"Slab {number} cannot be attached: it is already, or there are too many.")
        # Outside of the lock: mapping may take long for large memory. The number is looked at again below.
        slab = self._map(where, size, host_writes)
        with self._lock:
            # Requests are served by several threads; their numbers say that the release was asked for later
            # than the attach.
            if self._released_at.pop(number, 0) > asked:
                raise InvalidArgument(f"Slab {number} was released before it was attached.")
            self._slabs[number] = slab

    def _map(self, where: dict[str, Any], size: int, host_writes: bool) -> AttachedSlab:
        """Raises `OSError`, `ValueError`."""
        import numpy as np

        return AttachedSlab(np.frombuffer(map_memory(where, size, write=host_writes), np.uint8), host_writes)

    def release(self, number: int, *, asked: int) -> None:
        """Forget a slab; an unknown one is no error."""
        with self._lock:
            if self._slabs.pop(number, None) is None:
                self._released_at[number] = asked
                if len(self._released_at) > MAX_SLABS:
                    # The oldest: a client that only releases must not fill the memory.
                    del self._released_at[next(iter(self._released_at))]

    def get(self, number: int) -> AttachedSlab:
        with self._lock:
            slab = self._slabs.get(number)
        if slab is None:
            raise InvalidArgument(f"There is no slab {number}.")
        return slab


# --- plans: the client's description of a repeated call, checked and bound to memory ------------------------


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
