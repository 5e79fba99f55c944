"""Runs a `BoundCall` with ONNX Runtime's IOBinding, straight from and to the memory that was agreed.

What always holds: results and errors are those of ``InferenceSession.run``. ONNX Runtime's IOBinding reports other
classes of errors, does not write an output that is an input of the graph as well (measured: the memory keeps what
was there before), and fails where an output's shape depends on the data. So each of these goes by `run` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qnnbridge_host.engine.bound_call import BoundCall
from qnnbridge_host.engine.stop import StopHandle

GRAPH_ID, NO_GRAPH = "gpu_graph_id", "-1"
"""Run option of providers that capture graphs, and its value for "do not"."""


class Binding:
    """What a session keeps for a call. checked: one run has shown that the outputs land where they were bound."""

    __slots__ = ("checked", "io", "options")

    def __init__(self, io: Any) -> None:
        self.io = io
        self.options: Any = None
        self.checked = False


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
    return Binding(io)


def run(session: Any, call: BoundCall, binding: Binding, make_options: Callable[[], Any], stop: StopHandle) -> bool:
    """False if the outputs are not where they belong. Raises what ONNX Runtime raises."""
    options = binding.options
    if options is None or options.terminate:  # an earlier call was stopped by these
        options = binding.options = make_options()
        # Without this entry ONNX Runtime's Python looks for it in vain in every run: 35 us for an exception (1.31).
        options.add_run_config_entry(GRAPH_ID, NO_GRAPH)
    stop.attach(options)
    session.run_with_iobinding(binding.io, options)
    if not binding.checked:
        values = binding.io.get_outputs()
        binding.checked = call.bindable = all(
            value.is_tensor() and value.data_ptr() == tensor.array.ctypes.data
            for value, tensor in zip(values, call.outputs, strict=True)
        )
    return binding.checked
