"""A call on its way to ONNX Runtime: the handle that stops it, the bound call of the fast path, calls of objects.

Of a `BoundCall` everything but the tensors' contents is known before: names, types, shapes and memory. It is run
with ONNX Runtime's IOBinding, straight from and to the memory that was agreed. Invariants: results and
errors are those of ``InferenceSession.run``. ONNX Runtime's IOBinding reports other classes of errors, does not
write an output that is an input of the graph as well (measured: the memory keeps what was there before), and fails
where an output's shape depends on the data. So each of these goes by `run` instead.

Imports nothing heavy: the server makes handles and calls for any engine, before a session exists.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from qnnbridge_protocol.errors import RemoteTypeError
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    import numpy.typing as npt

    from qnnbridge_host.request.in_flight import Request
    from qnnbridge_protocol.specs import SessionSpec

# Run option of providers that capture graphs, and its value for "do not".
GRAPH_ID, NO_GRAPH = "gpu_graph_id", "-1"


class StopHandle:
    """Asks one run to stop; any thread may call `stop`, before, during or after the run.

    ONNX Runtime looks at the request between two nodes. A run that is inside QNN continues to its end, because a
    QNN partition is one node.
    """

    __slots__ = ("_lock", "run_options", "stopped")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Whether `stop` was called.
        self.stopped = False
        # The last argument of `attach`.
        self.run_options: Any = None

    def stop(self) -> None:
        """Ask. Does nothing to a run that is over."""
        with self._lock:
            self.stopped = True
            if self.run_options is not None:
                # Only while the run is attached: options of a finished run may serve the next one.
                self.run_options.terminate = True

    def attach(self, run_options: Any) -> None:
        """The run that will use these options is about to start."""
        with self._lock:
            # A stop that came before the run: ONNX Runtime ends it before its first node.
            if self.stopped:
                run_options.terminate = True
            self.run_options = run_options

    def detach(self) -> None:
        """The run is over."""
        with self._lock:
            self.run_options = None


class BoundTensor(NamedTuple):
    """One input or output. array: the memory itself; of an input possibly read-only."""

    name: str
    array: npt.NDArray[Any]


class BoundCall:
    """Belongs to one channel, so it is run by one thread at a time.

    native: the session's state for it. owner: the session that `native` belongs to; it releases it when it is
    closed. bindable: whether the outputs may be written by ONNX Runtime itself; a session that finds that it cannot
    (an output of another shape than last time) clears it permanently.
    """

    __slots__ = ("__weakref__", "bindable", "feeds", "inputs", "native", "output_names", "outputs", "owner")

    def __init__(self, inputs: tuple[BoundTensor, ...], outputs: tuple[BoundTensor, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.feeds = {tensor.name: tensor.array for tensor in inputs}
        self.output_names = [tensor.name for tensor in outputs]
        self.bindable = True
        self.native: Any = None
        self.owner: object = None

    def release(self) -> None:
        """Drop the session's state for it."""
        self.native = self.owner = None

    def take(self, values: Sequence[Any]) -> list[Any] | None:
        """Copy outputs to where they belong; ``None`` if they fit there, else the values themselves."""
        import numpy as np

        for tensor, value in zip(self.outputs, values, strict=True):
            if type(value) is not np.ndarray:
                return list(values)
            if value.dtype != tensor.array.dtype or value.shape != tensor.array.shape:
                return list(values)
        for tensor, value in zip(self.outputs, values, strict=True):
            np.copyto(tensor.array, value)
        return None


class Binding:
    """A session's state for a call.

    checked: one run has shown that the outputs land where they were bound. in_place: an output has memory of an
    input, so a run that failed cannot be repeated.
    """

    __slots__ = ("checked", "in_place", "io", "options", "run", "stop")

    def __init__(self, session: Any, io: Any, in_place: bool) -> None:
        self.io = io
        self.in_place = in_place
        self.options: Any = None
        self.stop: StopHandle | None = None
        self.checked = False
        native_run = getattr(getattr(session, "_sess", None), "run_with_iobinding", None)
        native_io = getattr(io, "_iobinding", None)
        if native_run is not None and native_io is not None:
            # The inner function of the public method, which first checks whether WebGPU captures graphs: 2 us of 6.
            self.run = functools.partial(native_run, native_io)
        else:
            self.run = functools.partial(session.run_with_iobinding, io)


def make_binding(session: Any, call: BoundCall) -> Binding | None:
    """The binding, or ``None`` where ONNX Runtime would not fill the memory."""
    # See the module: an output that is an input of the graph as well is not written with IOBinding.
    if not call.bindable or not call.feeds.keys().isdisjoint(call.output_names):
        return None
    # Memory of no bytes has no address to bind.
    if not all(tensor.array.size for tensor in (*call.inputs, *call.outputs)):
        return None
    io = session.io_binding()
    for name, array in call.inputs:
        io.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    try:
        for name, array in call.outputs:
            io.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    # Of an output that is declared as optional(tensor), whose value is a tensor all the same.
    except RuntimeError:
        return None
    import numpy as np

    # Bounds only, no exact overlap: a false yes only forbids a repetition.
    in_place = any(np.may_share_memory(one, other) for _, one in call.inputs for _, other in call.outputs)
    return Binding(session, io, in_place)


def run_bound(call: BoundCall, binding: Binding, make_options: Callable[[], Any], stop: StopHandle) -> bool:
    """False if the outputs are not where they belong. Raises what ONNX Runtime raises."""
    if binding.stop is not stop:  # the first run, or an earlier one was stopped
        binding.stop = stop
        options = binding.options = make_options()
        # Without this entry ONNX Runtime's Python looks for it in vain in every run: 35 us for an exception (1.31).
        options.add_run_config_entry(GRAPH_ID, NO_GRAPH)
    options = binding.options
    if stop.run_options is not options:
        stop.attach(options)
    binding.run(options)
    if not binding.checked:
        values = binding.io.get_outputs()
        binding.checked = call.bindable = all(
            value.is_tensor() and value.data_ptr() == tensor.array.ctypes.data
            for value, tensor in zip(values, call.outputs, strict=True)
        )
    return binding.checked


# --- objects of ONNX Runtime: how a kind of them is made, its operations, how it is freed ------------------
#
# `serve/handlers.py` keeps them. A kind knows ONNX Runtime, and nothing of the server.


class ClientSessions(Protocol):
    """What a kind needs of the client's `Sessions`."""

    @property
    def engine(self) -> Any:
        """Waits until ONNX Runtime is imported."""

    def create(
        self,
        request: Request,
        enter: Callable[[str], None],
        spec: SessionSpec,
        model: Any | None,
        initializers: Mapping[str, Any],
    ) -> Any:
        """As `Sessions.create`."""

    def on_npu_in_words(self) -> list[str]:
        """What occupies the NPU in this host, a line each."""


class ObjectCall(NamedTuple):
    """A creation or an operation, as its kind sees it.

    Attributes:
        request: a kind may set its `stopper` (for cancelling) and its `blame` (for a death in a phase).
        enter: declares a native step.
        sessions: the client's sessions; their `engine` waits until ONNX Runtime is imported.
        arguments: by name, of msgpack types.
        values: tensors and other values, in the order sent.
        objects: the objects that the client named, in the order sent.
        work: asks a new worker, for a kind that does something in one.
    """

    request: Request
    enter: Callable[[str], None]
    sessions: ClientSessions
    arguments: Mapping[str, Any]
    values: tuple[Any, ...] = ()
    objects: tuple[Any, ...] = ()
    work: Callable[..., Mapping[str, Any]] | None = None


class ObjectResult(NamedTuple):
    """What an operation gives.

    result: of msgpack types. values: tensors and other values. made: a further object, which the client gets.
    """

    result: Any = None
    values: Sequence[Any] = ()
    made: tuple[ObjectKind, Any] | None = None


class ObjectKind(NamedTuple):
    """One kind of objects.

    name: on the wire. create: makes one; ``None`` for a kind that only operations of others make. describe: facts
    that travel with a new object, of msgpack types. close: frees it, in any thread. lane: in which its operations
    wait for their turn.
    """

    name: str
    create: Callable[[ObjectCall], Any] | None
    operations: Mapping[str, Callable[[Any, ObjectCall], ObjectResult | None]]
    describe: Callable[[Any], Any] = lambda _value: None
    close: Callable[[Any], None] = lambda _value: None
    lane: str | None = None


def argument(call: ObjectCall, name: str, *types: type) -> Any:
    """An argument of one of these types. Raises `RemoteTypeError`; a boolean is no number."""
    value = call.arguments.get(name)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise RemoteTypeError(f"The argument {name!r} is {type(value).__name__}.")
    return value
