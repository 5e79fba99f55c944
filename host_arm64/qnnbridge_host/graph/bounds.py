"""Check for small model files that would need huge resources because of nested functions or large tensors.

A model of a kilobyte can contain functions that call each other twice, forty deep, or constants of terabytes. All
checks here take time in proportion to the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from qnnbridge_protocol.elements import LAYOUTS, ElementType
from qnnbridge_protocol.errors import InvalidGraph, OptionError

_ELEMENTS = frozenset(element.value for element in ElementType)
_SIGNED = frozenset((ElementType.INT8, ElementType.INT16, ElementType.INT32, ElementType.INT64))

# Maximum number of nodes of a model after its functions are inlined. The largest real models have 50,000.
MAX_NODES: Final = 1_000_000
# Commands announce that their work takes seconds if a model has at least MANY_NODES nodes. They refuse a model with
# more than LARGE_NODES nodes, unless --large is given.
MANY_NODES: Final = 20_000
LARGE_NODES: Final = 60_000
# Maximum number of elements of a tensor that onnx's data propagation may compute while it infers shapes.
MAX_SIZES: Final = 1 << 16
# Compare the exact number of bytes only for tensors up to this size, because counting copies the data.
SMALL_MESSAGE: Final = 1 << 16


def refuse_large(count: int, label: str, command: str, time: str) -> None:
    """Raise `OptionError` for more than `LARGE_NODES` nodes. time: estimated duration for the message."""
    if count > LARGE_NODES:
        raise OptionError(
            f"{label} has {count:,} nodes, and {command} takes {time} for models of more than {LARGE_NODES:,} "
            "nodes.",
            cause="Real models have fewer nodes; so large a number usually results from an unrolled loop.",
            fix="Export the loop as the operator Loop or with fewer repetitions, or continue anyway: --large.",
        )


def check_functions(model: Any) -> None:
    """Raise `InvalidGraph` if functions of a model call themselves, or have too many nodes when inlined."""
    if not model.functions:
        return
    bodies = {(one.domain, one.name): one.node for one in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    try:
        total = _count(model.graph.node, bodies, sizes, ())
    # Python limits recursion to about 1,000 nested calls; ONNX does not limit how deep functions call each other.
    except RecursionError:
        raise InvalidGraph(
            "The calls of the model's functions are nested too deeply.",
            cause=f"The model has {len(model.functions)} functions; hundreds of them call each other in a chain.",
            fix="Export the model without functions.",
        ) from None
    if total > MAX_NODES:
        raise InvalidGraph(
            f"The model's functions have more than {MAX_NODES:,} nodes when they are inlined.",
            cause=f"The {len(model.functions)} functions call each other; inlined, they have {_about(total)} nodes "
            "in total.",
            fix="Export the model without functions, or with fewer calls between them.",
        )


def check_tensors(model: Any) -> None:
    """Raise `InvalidGraph` if a tensor has an unknown type, a negative size, or a number of bytes that does not
    match its shape. Check initializers and the values of Constant nodes.
    """
    for tensor in model.graph.initializer:
        _check_tensor(tensor)
    for node in model.graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    _check_tensor(attribute.t, node.output[0] if node.output else "")


def _check_tensor(tensor: Any, name: str = "") -> None:
    promised = bytes_of(tensor, name)
    # ONNX allows raw_data for every type except strings.
    if not tensor.HasField("raw_data") or tensor.data_type == ElementType.STRING:
        return
    # For large tensors take the size of the message, because reading `raw_data` would copy the data.
    there = len(tensor.raw_data) if promised <= SMALL_MESSAGE else tensor.ByteSize()
    if there < promised or (there != promised and promised <= SMALL_MESSAGE):
        raise InvalidGraph(
            f"The tensor {tensor.name or name} of the model has {'fewer' if there < promised else 'more'} bytes "
            "than its shape requires.",
            cause=f"The shape {list(tensor.dims)} requires {promised:,} bytes, but the tensor has {there:,} bytes.",
            fix="The file is damaged: export the model again.",
        )


def bytes_of(tensor: Any, name: str = "") -> int:
    """Return the size of a tensor's elements in bytes, packed.

    Raises:
        InvalidGraph: the type is unknown, or a dimension is negative.
    """
    if tensor.data_type not in _ELEMENTS:
        raise InvalidGraph(
            f"The tensor {tensor.name or name} of the model has an unknown element type.",
            cause=f"Its type has the number {tensor.data_type}.",
            fix="The file is damaged, or was written for a newer release of ONNX: export the model again.",
        )
    if any(size < 0 for size in tensor.dims):
        raise InvalidGraph(
            f"The tensor {tensor.name or name} of the model has a negative size.",
            cause=f"Its shape is {list(tensor.dims)}.",
            fix="The file is damaged: export the model again.",
        )
    bits: int = math.prod(tensor.dims) * LAYOUTS[ElementType(tensor.data_type)].bits
    return (bits + 7) // 8


def check_nodes(model: Any) -> None:
    """Raise `InvalidGraph` for a node that cannot be read, and for an input or output whose name is not UTF-8.

    A node cannot be read if its operator is not UTF-8, or if it has an attribute that is only valid in functions.
    """
    for value in (*model.graph.input, *model.graph.output):
        sizes = [one.dim_param for one in value.type.tensor_type.shape.dim]
        if any(isinstance(name, bytes) for name in (value.name, *sizes)):
            raise InvalidGraph(
                f"An input or output of the model has a name that is not UTF-8: {value.name!r} {sizes or ''}.",
                fix="The file is damaged: download or export it again.",
            )
    for node in model.graph.node:
        # Protobuf returns bytes for a string that is not UTF-8.
        if isinstance(node.op_type, bytes) or isinstance(node.domain, bytes):
            raise InvalidGraph(
                f"A node of the model has an operator whose name is not UTF-8: {node.domain!r}, {node.op_type!r}.",
                fix="The file is damaged: download or export it again.",
            )
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                raise InvalidGraph(
                    f"The attribute {attribute.name} of the node {node.name or node.op_type} has no value.",
                    cause=f"The attribute refers to {attribute.ref_attr_name} of a function, but the node is not "
                    "in a function.",
                    fix="Export the model again.",
                )


def _count(
    nodes: Any,
    bodies: Mapping[tuple[str, str], Any],
    sizes: dict[tuple[str, str], int],
    inside: tuple[tuple[str, str], ...],
) -> int:
    total = 0
    for node in nodes:
        total += 1
        for attribute in node.attribute:
            for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                total += _count(graph.node, bodies, sizes, inside)
        called = node.domain, node.op_type
        body = bodies.get(called)
        if body is None:
            continue
        if called in inside:
            raise InvalidGraph(
                f"The function {node.op_type} of the model calls itself.",
                cause="ONNX does not allow recursion, because the inlined body would have no end.",
                fix="Export the model again; a Loop can repeat a body.",
            )
        # Count each function once: forty functions that call each other twice would take 2**40 steps.
        if called not in sizes:
            sizes[called] = _count(body, bodies, sizes, (*inside, called))
        total += sizes[called]
    return total


def _about(number: int) -> str:
    return f"{number:,}" if number < 10**12 else f"10^{len(str(number)) - 1}"


def overflows(node: Any, tensor_of: Callable[[str], Any]) -> bool:
    """Return whether a division of integer constants overflows (-2^63 by -1), which would crash the process.

    tensor_of: function that returns the constant with the given name, or None.
    """
    if node.op_type not in ("Div", "Mod") or len(node.input) != 2:
        return False
    from onnx import numpy_helper

    tensors = [tensor_of(name) for name in node.input]
    if any(one is None or one.data_type not in _SIGNED or one.data_location for one in tensors):
        return False
    dividend, divisor = map(numpy_helper.to_array, tensors)
    try:
        return bool(((divisor == -1) & (dividend == np.iinfo(dividend.dtype).min)).any())
    except ValueError:  # the shapes are incompatible, so ONNX Runtime refuses the model
        return False


# Operators whose result is estimated to be at most as large as the larger of their first two inputs.
_AS_LARGE: Final = frozenset(("Identity", "Cast", "Unsqueeze", "Squeeze", "Add", "Sub", "Mul", "Reshape", "Slice"))


def computes_many_sizes(model: Any) -> bool:
    """Return whether onnx's data propagation would compute a tensor with more than `MAX_SIZES` elements.

    In that case shapes must be inferred without data propagation.
    """
    operators = {node.op_type for node in model.graph.node}
    if not operators & {"Concat", "Range"}:
        return False
    # onnx propagates only scalars and vectors, so ignore tensors of a higher rank.
    counts = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer if len(tensor.dims) < 2}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Range":
            # Propagating a long Range is useless: it is a mask or a list of positions, and no shape depends on it.
            if _range_length(node, constants) > MAX_SIZES:
                return True
        # An input whose length is not known counts as one element.
        elif node.op_type == "Concat":
            count = sum(counts.get(name, 1) for name in node.input)
            if count > MAX_SIZES:
                return True
            counts.update(dict.fromkeys(node.output, count))
        elif node.op_type in _AS_LARGE:
            count = max((counts.get(name, 0) for name in node.input[:2]), default=0)
            if count:
                counts.update(dict.fromkeys(node.output, count))
    return False


def _range_length(node: Any, constants: Mapping[str, Any]) -> float:
    from onnx import numpy_helper

    try:
        start, limit, delta = (float(numpy_helper.to_array(constants[name]).item()) for name in node.input)
    except (KeyError, ValueError, TypeError):
        return 0.0
    return abs((limit - start) / delta) if delta else 0.0
