"""SkipLayerNormalization of ONNX Runtime becomes Add and LayerNormalization, which QNN has."""

from __future__ import annotations

from typing import Any

from qnnbridge_tools.models.fix.editor import Editor

_LEAST_OPSET = 17
"""LayerNormalization came with it."""


def apply(editor: Editor) -> list[str]:
    if editor.opset < _LEAST_OPSET:
        return []

    def change(node: Any) -> list[Any] | None:
        if node.op_type != "SkipLayerNormalization" or node.domain != "com.microsoft":
            return None
        inputs = [*node.input, *[""] * (5 - len(node.input))]
        if any(name and (editor.uses(name) or not editor.is_free(name)) for name in node.output[1:3]):
            return None  # mean and variance are wanted
        wanted_sum = node.output[3] if len(node.output) > 3 else ""
        epsilon = next((attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-12)
        made = [editor.make("Add", inputs[:2], node)]
        if inputs[4]:
            made.append(editor.make("Add", [made[-1].output[0], inputs[4]], node))
        if wanted_sum:
            made[-1].output[0] = wanted_sum
        normal = [made[-1].output[0], inputs[2]] + ([inputs[3]] if inputs[3] else [])
        made.append(editor.make("LayerNormalization", normal, node, node.output[0], axis=-1, epsilon=epsilon))
        return made

    count = editor.map_nodes(change)
    return [f"{count} SkipLayerNormalization"] if count else []
