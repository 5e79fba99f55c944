"""Weights in Constant nodes become initializers, also in subgraphs: the quantizer leaves the others in float."""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import graphs

_TYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def apply(editor: Editor) -> list[str]:
    moved = sum(_move(graph) for graph in graphs.subgraphs(editor.graph))
    if not moved:
        return []
    editor.model.ir_version = max(editor.model.ir_version, 4)
    editor.changed()
    return [f"{moved} Constant {'node' if moved == 1 else 'nodes'}"]


def _move(graph: Any) -> int:
    kept: list[Any] = []
    tensors: list[Any] = []
    for node in graph.node:
        tensor = _tensor(node)
        if tensor is None:
            kept.append(node)
        else:
            tensors.append(tensor)
    if tensors:
        del graph.node[:]
        graph.node.extend(kept)
        graph.initializer.extend(tensors)
    return len(tensors)


def _tensor(node: Any) -> Any | None:
    """None for other operators, and for values that are no tensor (text, sparse)."""
    from onnx import TensorProto, numpy_helper

    if node.op_type != "Constant" or node.domain not in graphs.ONNX_DOMAINS or not node.attribute:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor = TensorProto()
        tensor.CopyFrom(attribute.t)
        tensor.name = node.output[0]
        return tensor
    if attribute.name not in _TYPES:
        return None
    from onnx import helper

    value = helper.get_attribute_value(attribute)
    return numpy_helper.from_array(np.asarray(value, _TYPES[attribute.name]), node.output[0])
