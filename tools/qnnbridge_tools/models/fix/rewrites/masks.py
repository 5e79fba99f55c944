"""Attention masks of -3.4e38 become -1e4.

In half floats the large ones are infinite; quantised they leave no room for the scores (cosine 0.48 against float
with them, 0.98 without).
"""

from __future__ import annotations

from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.quantize import masks
from qnnbridge_tools.models.shared import graphs


def apply(editor: Editor) -> list[str]:
    for tensor in editor.graph.initializer:
        users = editor.uses(tensor.name)
        if users and all(node.op_type in masks.ADDING_OPS for node in users):
            graphs.load_tensor(tensor, editor.folder)
    shrunk = masks.shrink_masks(editor.model)
    return [f"{shrunk} masks are -{masks.ENOUGH:g} now"] if shrunk else []
