"""Clip with limits that are no constants becomes Max and Min: QNN takes constant limits only."""

from __future__ import annotations

from typing import Any

from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import graphs


def apply(editor: Editor) -> list[str]:
    def change(node: Any) -> list[Any] | None:
        if node.op_type != "Clip" or node.domain not in graphs.ONNX_DOMAINS:
            return None
        limits = [name for name in node.input[1:] if name]
        if all(editor.tensor(name) is not None for name in limits):
            return None
        made: list[Any] = []
        value = node.input[0]
        for op, number in (("Max", 1), ("Min", 2)):
            if number < len(node.input) and node.input[number]:
                made.append(editor.make(op, [value, node.input[number]], node))
                value = made[-1].output[0]
        made[-1].output[0] = node.output[0]
        return made

    count = editor.map_nodes(change)
    return [f"{count} Clip"] if count else []
