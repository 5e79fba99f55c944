"""Calls into ONNX Runtime: the handle that stops a run, the bound call of the fast path, and operations on objects.

In a `BoundCall` the name, type, shape and memory of each tensor are fixed; only the contents change. ONNX Runtime's
IOBinding runs it and reads and writes that memory directly. Invariant: results and errors are the same as with
``InferenceSession.run``. IOBinding reports other error classes, does not write an output that is also an input of
the graph (measured: the memory keeps its previous contents), and fails where an output's shape depends on the data.
In each of these cases the call uses `run` instead.

This module imports nothing heavy: the server creates handles and calls before a session exists.
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

# Run option of providers that capture graphs (such as WebGPU), and the value that disables capturing.
GRAPH_ID, NO_GRAPH = "gpu_graph_id", "-1"


class StopHandle:
    """Handle that stops one run. Any thread may call `stop` before, during or after the run.

    ONNX Runtime checks for a stop between two nodes. A run that is inside QNN continues to its end, because a QNN
    partition is one node.
    """

    __slots__ = ("_lock", "run_options", "stopped")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Whether `stop` has been called.
        self.stopped = False
        # The options of the attached run; ``None`` while no run is attached.
        self.run_options: Any = None

    def stop(self) -> None:
        """Request the stop. It has no effect on a run that has already ended."""
        with self._lock:
            self.stopped = True
            if self.run_options is not None:
                # Set the flag only while a run is attached, because the options may be reused for the next run.
                self.run_options.terminate = True

    def attach(self, run_options: Any) -> None:
        """Attach the options of the run that is about to start."""
        with self._lock:
            # If `stop` was called before the run, ONNX Runtime ends the run before its first node.
            if self.stopped:
                run_options.terminate = True
            self.run_options = run_options

    def detach(self) -> None:
        """Detach the options after the run."""
        with self._lock:
            self.run_options = None


class BoundTensor(NamedTuple):
    """One input or output. array: a view of the tensor's memory, which may be read-only for an input."""

    name: str
    array: npt.NDArray[Any]


class BoundCall:
    """A call whose tensors have a fixed name, type, shape and memory.

    A bound call belongs to one channel, so only one thread runs it at a time.

    Attributes:
        native: the state that the session has created for this call.
        owner: the session that created `native`, and releases it when the session is closed.
        bindable: whether ONNX Runtime may write the outputs directly. The flag is cleared permanently when that
            fails, for example because an output's shape differs from the previous run.
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
        """Release the state that the session has created for this call."""
        self.native = self.owner = None

    def take(self, values: Sequence[Any]) -> list[Any] | None:
        """Copy outputs to the call's memory. Return ``None`` if they fit, else return the values themselves."""
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
    """State of a session for a bound call.

    checked: whether a run has confirmed that ONNX Runtime writes the outputs to the bound memory. in_place: whether
        an output shares memory with an input; then a failed run cannot be repeated.
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
            # Call the native method directly: the public method first checks whether WebGPU captures graphs, which
            # takes 2 of 6 us.
            self.run = functools.partial(native_run, native_io)
        else:
            self.run = functools.partial(session.run_with_iobinding, io)


def make_binding(session: Any, call: BoundCall) -> Binding | None:
    """Bind the call's tensors to their memory. Return ``None`` if ONNX Runtime would not write outputs there."""
    # IOBinding does not write an output that is also an input of the graph.
    if not call.bindable or not call.feeds.keys().isdisjoint(call.output_names):
        return None
    # An empty array has no address that could be bound.
    if not all(tensor.array.size for tensor in (*call.inputs, *call.outputs)):
        return None
    io = session.io_binding()
    for name, array in call.inputs:
        io.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    try:
        for name, array in call.outputs:
            io.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    # ONNX Runtime refuses to bind an output that is declared as optional(tensor), even if its value is a tensor.
    except RuntimeError:
        return None
    import numpy as np

    # Compare only the arrays' address ranges: a false positive merely prevents the repetition of a failed run.
    in_place = any(np.may_share_memory(one, other) for _, one in call.inputs for _, other in call.outputs)
    return Binding(session, io, in_place)


def run_bound(call: BoundCall, binding: Binding, make_options: Callable[[], Any], stop: StopHandle) -> bool:
    """Run the call and return whether the outputs are in the bound memory. Errors of ONNX Runtime are passed on
    unchanged."""
    if binding.stop is not stop:  # first run, or the previous run was stopped: create new run options
        binding.stop = stop
        options = binding.options = make_options()
        # Set this entry: without it ONNX Runtime's Python code raises and catches an exception in every run, which
        # takes 35 us (measured with 1.31).
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


# --- types of ONNX Runtime objects: their creation, operations and release -------------------------------
#
# `serve/handlers.py` stores the objects. The types depend on ONNX Runtime only, not on the server.


class ClientSessions(Protocol):
    """The methods of the client's `Sessions` that the functions of an `ObjectKind` call."""

    @property
    def engine(self) -> Any:
        """The engine. Waits until ONNX Runtime is imported."""

    def create(
        self,
        request: Request,
        enter: Callable[[str], None],
        spec: SessionSpec,
        model: Any | None,
        initializers: Mapping[str, Any],
    ) -> Any:
        """See `Sessions.create`."""

    def describe_npu_use(self) -> list[str]:
        """Describe what occupies the NPU in this host, with one line for each session or object."""


class ObjectCall(NamedTuple):
    """The arguments of a creation or an operation of an object.

    Attributes:
        request: the request. Operations may set its `stopper` (for cancellation) and its `blame` (for a crash).
        enter: reports that a native step begins.
        sessions: the client's sessions, with their `engine`.
        arguments: arguments of msgpack types, by name.
        values: tensors and other values, in the order in which they were sent.
        objects: the objects to which the request refers, in the order in which they were sent.
        work: starts a worker process and sends a request to it, for operations that need a worker.
    """

    request: Request
    enter: Callable[[str], None]
    sessions: ClientSessions
    arguments: Mapping[str, Any]
    values: tuple[Any, ...] = ()
    objects: tuple[Any, ...] = ()
    work: Callable[..., Mapping[str, Any]] | None = None


class ObjectResult(NamedTuple):
    """Result of an operation.

    Attributes:
        result: a value of msgpack types.
        values: tensors and other values.
        made: a new object for the client, with its type.
        after: a function whose return value replaces this result. It is called without the lock on the object, so
            that other operations on the object need not wait.
    """

    result: Any = None
    values: Sequence[Any] = ()
    made: tuple[ObjectKind, Any] | None = None
    after: Callable[[], ObjectResult] | None = None


class ObjectKind(NamedTuple):
    """One type of object.

    Attributes:
        name: the type's name in requests.
        create: creates an object; ``None`` if only operations on other objects create objects of this type.
        describe: returns facts about a new object, in msgpack types, which are sent to the client.
        close: frees the object; any thread may call it.
        lane: the queue in which the operations wait for their turn.
    """

    name: str
    create: Callable[[ObjectCall], Any] | None
    operations: Mapping[str, Callable[[Any, ObjectCall], ObjectResult | None]]
    describe: Callable[[Any], Any] = lambda _value: None
    close: Callable[[Any], None] = lambda _value: None
    lane: str | None = None


def argument(call: ObjectCall, name: str, *types: type) -> Any:
    """Return an argument; raise `RemoteTypeError` unless its type is one of `types`. A boolean does not count as an
    int."""
    value = call.arguments.get(name)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise RemoteTypeError(f"The argument {name!r} is {type(value).__name__}.")
    return value
