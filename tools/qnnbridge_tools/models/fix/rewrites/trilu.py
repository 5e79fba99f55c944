"""Trilu of a tensor of known shape becomes Where with a constant mask: QNN has no Trilu."""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import graphs

_LIMIT = 1 << 24
"""Elements of the mask."""


def apply(editor: Editor) -> list[str]:
    def change(node: Any) -> list[Any] | None:
        if node.op_type != "Trilu" or node.domain not in graphs.ONNX_DOMAINS:
            return None
        shape = editor.shape(node.input[0])
        offset: Any = np.asarray(0)
        if len(node.input) > 1 and node.input[1]:
            offset = editor.constant(node.input[1], 1)
        if shape is None or len(shape) < 2 or offset is None or shape[-1] * shape[-2] > _LIMIT:
            return None
        upper = next((attribute.i for attribute in node.attribute if attribute.name == "upper"), 1)
        ones = np.ones(shape[-2:], bool)
        k = int(offset.reshape(-1)[0])
        mask = editor.add_constant(np.triu(ones, k) if upper else np.tril(ones, k), f"{node.output[0]}/mask")
        zero = editor.like(node.input[0], 0, f"{node.output[0]}/zero")
        return [editor.make("Where", [mask, node.input[0], zero], node, node.output[0])]

    count = editor.map_nodes(change)
    if count:
        editor.drop_dead()
    return [f"{count} Trilu"] if count else []
