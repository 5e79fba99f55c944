"""Optional results that nobody reads are no longer asked for: QNN refuses the operators because of them."""

from __future__ import annotations

from typing import Any

from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import graphs

_OPTIONAL_AFTER = {"LayerNormalization": 1, "MaxPool": 1, "Dropout": 1, "BatchNormalization": 1}
"""How many outputs are not optional."""


def apply(editor: Editor) -> list[str]:
    dropped: list[str] = []

    def change(node: Any) -> list[Any] | None:
        least = _OPTIONAL_AFTER.get(node.op_type)
        if least is None or node.domain not in graphs.ONNX_DOMAINS:
            return None
        outputs = list(node.output)
        while len(outputs) > least and not (
            outputs[-1] and (editor.uses(outputs[-1]) or not editor.is_free(outputs[-1]))
        ):
            outputs.pop()
        if len(outputs) == len(node.output):
            return None
        dropped.extend(
            f"{node.op_type} {node.name or node.output[0]}: {name}" for name in node.output[len(outputs) :]
        )
        del node.output[:]
        node.output.extend(outputs)
        return [node]

    editor.map_nodes(change)
    return dropped
