"""Outputs in the form that ``onnxruntime.InferenceSession.run`` returns them."""

from __future__ import annotations

from typing import Any

from qnnbridge._ort_value import SparseTensor, as_numpy
from qnnbridge_protocol.values import Sparse, Typed


def to_application(value: Any) -> Any:
    """Arrays, lists, dicts and ``None`` as they are; `Typed` as an array; `Sparse` as a `SparseTensor`."""
    kind = type(value)
    if kind is Typed:
        return as_numpy(value)
    if kind is Sparse:
        return SparseTensor(value)
    if kind is list:
        return [to_application(item) for item in value]
    return value
