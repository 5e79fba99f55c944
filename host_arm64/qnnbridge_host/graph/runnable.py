"""Refuse models that this machine cannot run: models with gigantic tensors or endless loops.

Commands that run a model in their own process need these checks, because such a command cannot interrupt ONNX
Runtime, which allocates memory until the system kills the process. The checks take time proportional to the size of
the file.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping
from typing import Any, Final

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.bounds import overflows
from qnnbridge_protocol.errors import InvalidGraph

# Maximum size of one tensor; half of the machine's memory if that is less.
MAX_TENSOR_BYTES: Final = 8 * 2**30
MAX_TRIPS: Final = 10**9
# Maximum window of a convolution or pooling: for each result all elements of the window are visited, even those
# outside of the input.
MAX_WINDOW: Final = 2**31
# `_TEXT`: TensorProto.DataType of strings. `_LEAST_TEXT_BYTES`: memory of an empty string.
_TEXT: Final = 8
_LEAST_TEXT_BYTES: Final = 32
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB", "EB")


def check_runnable(model: Any, types: Mapping[str, graphs.TensorType] | None = None) -> None:
    """Raise `InvalidGraph` if this machine cannot run the model. types: types of the model's tensors, if known."""
    import psutil

    types = graphs.types_of(model) if types is None else types
    limit = min(MAX_TENSOR_BYTES, psutil.virtual_memory().total // 2)
    constants = graphs.constants(model.graph)
    text_bytes = _LEAST_TEXT_BYTES + max(
        (len(text) for one in constants.values() for text in one.string_data), default=0
    )
    for node in model.graph.node:
        for name in node.output:
            element, shape = types.get(name, (0, None))
            if shape is None or None in shape or 0 in shape:
                continue
            size = math.prod(shape) * (text_bytes if element == _TEXT else _element_bytes(element))  # type: ignore[arg-type]
            # Compute the size instead of trying: Linux grants any allocation, and ends the process when it uses the
            # memory.
            if size > limit:
                raise InvalidGraph(
                    f"The model computes a tensor of {_size_text(size)}.",
                    cause=f"{name} ({node.op_type}) has the shape {list(shape)}.",
                    fix="Give smaller sizes (--dim), or export the model without this tensor.",
                )
        window = math.prod(next((one.ints for one in node.attribute if one.name == "kernel_shape"), ()))
        if window > MAX_WINDOW:
            raise InvalidGraph(
                f"The node {node.name or node.output[0]} ({node.op_type}) has a window of {window:,} elements.",
                fix="Export the model with a smaller kernel_shape.",
            )
        if overflows(node, constants.get):
            raise InvalidGraph(
                "The model divides the smallest value of an integer type by -1, which overflows the type.",
                cause=f"The node {node.name or node.output[0]} ({node.op_type}) would crash the process.",
                fix="Export the model without this division.",
            )
    loops = [node for node in model.graph.node if node.op_type == "Loop" and node.domain in graphs.ONNX_DOMAINS]
    known = _scalars(model.graph) if loops else {}
    for node in loops:
        _check_loop(node, known)


def _check_loop(node: Any, known: Mapping[str, float]) -> None:
    """Raise `InvalidGraph` if a Loop always repeats more than `MAX_TRIPS` times. known: the outer constants."""
    # The first two inputs are the number of repetitions and the initial condition, both optional.
    first, begins = (*node.input, "", "")[:2]
    trips = known.get(first) if first else math.inf
    body = next((one.g for one in node.attribute if one.name == "body"), None)
    # `trips` is None if the number is computed at run time.
    if trips is None or trips <= MAX_TRIPS or body is None or len(body.input) < 2 or not body.output:
        return
    if begins and not known.get(begins):
        return  # the initial condition is false or computed, so the loop may end at once
    inner = _scalars(body)
    # The second input of a body is the condition. A body that returns it unchanged never ends the loop.
    always = {body.input[1].name}
    for one in body.node:
        if one.op_type == "Identity" and one.input and (one.input[0] in always or inner.get(one.input[0])):
            always.add(one.output[0])
    # The first output of a body is the condition for the next repetition.
    goes_on = body.output[0].name
    if goes_on in always or inner.get(goes_on):
        times = "without an end" if trips == math.inf else f"{trips:,.0f} times"
        raise InvalidGraph(
            f"A Loop of the model repeats its body {times}.",
            cause=f"The Loop {node.name or node.output[0]} has no condition that ends the loop earlier.",
            fix=f"Export the model with a Loop that repeats its body at most {MAX_TRIPS:,} times.",
        )


def _scalars(graph: Any) -> dict[str, float]:
    """Return initializers and Constant nodes with one element. Skip damaged tensors, which ONNX Runtime refuses."""
    from onnx import numpy_helper

    found = {}
    for name, tensor in graphs.constants(graph).items():
        if math.prod(tensor.dims) == 1 and not tensor.external_data:
            with contextlib.suppress(ValueError, TypeError):
                found[name] = float(numpy_helper.to_array(tensor).item())
    return found


@functools.cache
def _element_bytes(element: int) -> int:
    from onnx import helper

    try:
        return int(helper.tensor_dtype_to_np_dtype(element).itemsize)
    except (KeyError, TypeError, ValueError):
        return 1


def _size_text(size: int) -> str:
    power = min(len(_UNITS) - 1, (max(1, size).bit_length() - 1) // 10)
    return f"{size / 2 ** (10 * power):,.0f} {_UNITS[power]}"
