"""Element types and shapes of all tensors of a model's main graph, as far as onnx can infer them."""

from __future__ import annotations

from typing import Any

from qnnbridge_tools.model_work import graphs

Known = tuple[int, tuple[int | None, ...] | None]
"""TensorProto.DataType (0: not known), and the shape: None if not even the rank is known, None for a free axis."""


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
    """A copy with shapes, or the model itself where onnx gives up."""
    from onnx import shape_inference

    if graphs.is_too_large(model):
        return model
    for data_prop in (True, False):
        try:
            return shape_inference.infer_shapes(model, strict_mode=False, data_prop=data_prop)
        except Exception:  # noqa: BLE001, S112 - raises whatever its C++ does; what is declared still counts
            continue
    return model


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
