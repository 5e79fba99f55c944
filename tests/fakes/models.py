"""Build small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
MODELS = Path(__file__).parent.parent / "models"

Shape = Sequence[int | str | None] | None
# ValueInfoProtos, or element type and shape by name.
Ends = Sequence[onnx.ValueInfoProto] | Mapping[str, tuple[int, Shape]]


def tensor(name: str, shape: Shape, element: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Ends,
    outputs: Ends,
    constants: Mapping[str, Any] | Iterable[onnx.TensorProto] | None = None,
    opset: int = 17,
    domains: Mapping[str, int] | None = None,
    ir_version: int = 10,
) -> onnx.ModelProto:
    if isinstance(constants, Mapping):
        constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "graph", _values(inputs), _values(outputs), list(constants or ()))
    imports = [helper.make_opsetid(*pair) for pair in [("", opset), *(domains or {}).items()]]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def model_bytes(*parts: Any, **more: Any) -> bytes:
    """Return the bytes of a `model`."""
    return bytes(model(*parts, **more).SerializeToString())


def saved(made: onnx.ModelProto, path: Path, **how: Any) -> Path:
    onnx.save_model(made, str(path), **how)
    return path


def _values(ends: Ends) -> list[onnx.ValueInfoProto]:
    if isinstance(ends, Mapping):
        return [helper.make_tensor_value_info(name, *of) for name, of in ends.items()]
    return list(ends)
