"""Runs a `BoundCall` with ONNX Runtime's IOBinding, straight from and to the memory that was agreed.

Invariants: results and errors are those of ``InferenceSession.run``. ONNX Runtime's IOBinding reports other
classes of errors, does not write an output that is an input of the graph as well (measured: the memory keeps what
was there before), and fails where an output's shape depends on the data. So each of these goes by `run` instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from qnnbridge_host.engine.bound_call import BoundCall
from qnnbridge_host.engine.stop import StopHandle

# Run option of providers that capture graphs, and its value for "do not".
GRAPH_ID, NO_GRAPH = "gpu_graph_id", "-1"


class Binding:
    """A session's state for a call. checked: one run has shown that the outputs land where they were bound."""

    __slots__ = ("checked", "io", "options", "run", "stop")

    def __init__(self, session: Any, io: Any) -> None:
        self.io = io
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


def make(session: Any, call: BoundCall) -> Binding | None:
    """The binding, or ``None`` where ONNX Runtime would not fill the memory."""
    if not call.bindable or not call.feeds.keys().isdisjoint(call.output_names):
        return None
    if not all(tensor.array.size for tensor in (*call.inputs, *call.outputs)):
        return None
    io = session.io_binding()
    for name, array in call.inputs:
        io.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in call.outputs:
        io.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    return Binding(session, io)


def run(call: BoundCall, binding: Binding, make_options: Callable[[], Any], stop: StopHandle) -> bool:
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
