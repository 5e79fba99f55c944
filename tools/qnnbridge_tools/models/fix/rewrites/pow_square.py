"""Pow(x, 2) becomes Mul(x, x): the same number, cheaper, and one constant less to quantise."""

from __future__ import annotations

from typing import Any

from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import graphs


def apply(editor: Editor) -> list[str]:
    def change(node: Any) -> list[Any] | None:
        if node.op_type != "Pow" or node.domain not in graphs.ONNX_DOMAINS:
            return None
        exponent, rank = editor.constant(node.input[1], 1), editor.rank(node.input[0])
        if exponent is None or exponent.size != 1 or float(exponent.reshape(())) != 2:
            return None
        if exponent.ndim and (rank is None or exponent.ndim > rank):
            return None  # the result would have more dimensions than x
        return [editor.make("Mul", [node.input[0], node.input[0]], node, node.output[0])]

    count = editor.map_nodes(change)
    if count:
        editor.drop_dead()
    return [f"{count} Pow(x, 2)"] if count else []
