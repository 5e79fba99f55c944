"""Element types and shapes of all tensors of a model's main graph, as far as onnx can infer them."""

from __future__ import annotations

import math
from typing import Any

Known = tuple[int, tuple[int | None, ...] | None]
"""TensorProto.DataType (0: not known), and the shape: None if not even the rank is known, None for a free axis."""


_FLOAT, _UINT8 = 1, 2
_SAME_SHAPE = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "Gelu", "QuickGelu", "FastGelu", "BiasGelu", "SkipLayerNormalization"}
)
_ELSEWHERE = 1
"""TensorProto.DataLocation."""
SMALL_BYTES = 1 << 12
"""Larger constants are no sizes or axes, from which shapes could follow."""


def types_of(model: Any) -> dict[str, Known]:
    """Of inputs, outputs, initializers and everything between. What a broken part hides is left out."""
    inferred = infer(model)
    found: dict[str, Known] = {
        tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in inferred.graph.initializer
    }
    for value in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output):
        if value.name not in found or found[value.name][1] is None:
            found[value.name] = _of_value(value)
    return found


def infer(model: Any) -> Any:
    """A copy with shapes and without the values of weights, or the model itself where onnx gives up."""
    from onnx import shape_inference

    light = without_weights(model, plain=True)
    for data_prop in (True, False):
        try:
            return shape_inference.infer_shapes(light, strict_mode=False, data_prop=data_prop)
        except Exception:  # noqa: BLE001, S112 - raises whatever its C++ does; what is declared still counts
            continue
    return model


def without_weights(model: Any, *, plain: bool = False) -> Any:
    """A copy in which large tensors are only named: copying their bytes would take most of the time.

    plain: operators of ONNX Runtime's own through which onnx cannot infer are replaced by some of the same shapes.
    """
    light = type(model)()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = model.graph
    for field in ("node", "input", "output", "value_info"):
        getattr(light.graph, field).extend(getattr(graph, field))
    light.graph.name = graph.name
    for node in light.graph.node if plain else ():
        _make_inferable(node, graph)
    for tensor in graph.initializer:
        stub = light.graph.initializer.add()
        if len(tensor.raw_data) <= SMALL_BYTES and math.prod(tensor.dims) <= SMALL_BYTES:
            stub.CopyFrom(tensor)
        else:
            # Marked as being elsewhere, so that nobody takes it for a tensor of zeros.
            stub.name, stub.data_type, stub.data_location = tensor.name, tensor.data_type, _ELSEWHERE
            stub.dims.extend(tensor.dims)
    return light


def _make_inferable(node: Any, graph: Any) -> None:
    if node.domain != "com.microsoft" or node.op_type not in _SAME_SHAPE:
        return
    from onnx import helper

    element = _FLOAT
    if node.op_type == "QuantizeLinear":
        zero = node.input[2] if len(node.input) > 2 else ""
        element = next((tensor.data_type for tensor in graph.initializer if tensor.name == zero), _UINT8)
    del node.input[1:], node.output[1:], node.attribute[:]
    node.domain = ""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        node.op_type = "Cast"
        node.attribute.append(helper.make_attribute("to", element))
    else:
        node.op_type = "Identity"


def _of_value(value: Any) -> Known:
    if not value.type.HasField("tensor_type"):
        return 0, None
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in tensor.shape.dim
    )
    return tensor.elem_type, dims
