"""Outputs in the form that ``onnxruntime.InferenceSession.run`` returns them."""

from __future__ import annotations

from typing import Any

from qnnbridge.ort_value import SparseTensor
from qnnbridge_protocol.values import ElementType, Sparse, Typed


def to_application(value: Any) -> Any:
    """Arrays, lists, dicts and ``None`` as they are; `Typed` as an array; `Sparse` as a `SparseTensor`."""
    kind = type(value)
    if kind is Typed:
        if value.element_type is ElementType.FLOAT8E4M3FN:
            # The one type without a numpy name that ONNX Runtime returns: as its bits. It refuses the others.
            return value.data.reshape(value.shape)
        return value.numpy()
    if kind is Sparse:
        return SparseTensor(value)
    if kind is list:
        return [to_application(item) for item in value]
    return value
