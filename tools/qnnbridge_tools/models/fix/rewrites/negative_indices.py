"""Constant indices below zero count from the start from now on: QNN computes something else with some of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import graphs

_ALONG_AXIS = frozenset({"Gather", "GatherElements", "ScatterElements"})
_BY_COORDINATES = frozenset({"GatherND", "ScatterND"})


def apply(editor: Editor) -> list[str]:
    def change(node: Any) -> list[Any] | None:
        if node.domain not in graphs.ONNX_DOMAINS or node.op_type not in _ALONG_AXIS | _BY_COORDINATES:
            return None
        shape, indices = editor.shape(node.input[0]), editor.constant(node.input[1])
        if not shape or indices is None or not (indices < 0).any():
            return None
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        if node.op_type in _ALONG_AXIS:
            sizes = np.asarray(shape[attributes.get("axis", 0)])
        else:
            first = attributes.get("batch_dims", 0)
            sizes = np.asarray(shape[first : first + indices.shape[-1]])
        counted = np.where(indices < 0, indices + sizes, indices).astype(indices.dtype)
        node.input[1] = editor.add_constant(counted, f"{node.input[1]}/counted")
        return [node]

    count = editor.map_nodes(change)
    if count:
        editor.drop_dead()
    return [f"{count} nodes with negative indices"] if count else []
