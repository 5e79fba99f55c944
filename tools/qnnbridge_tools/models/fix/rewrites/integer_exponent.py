"""The exponent of a floating point Pow gets the type of its base: QNN refuses an integer there."""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge_tools.models.fix.editor import FLOATS, INTEGERS, Editor
from qnnbridge_tools.models.shared import graphs


def apply(editor: Editor) -> list[str]:
    def change(node: Any) -> list[Any] | None:
        if node.op_type != "Pow" or node.domain not in graphs.ONNX_DOMAINS:
            return None
        base, exponent = (editor.element(name) for name in node.input)
        if base not in FLOATS or exponent not in INTEGERS:
            return None
        value = editor.constant(node.input[1])
        if value is not None:
            node.input[1] = editor.like(node.input[0], np.asarray(value), f"{node.input[1]}/float")
            return [node]
        cast = editor.make("Cast", [node.input[1]], node, to=base)
        node.input[1] = cast.output[0]
        return [cast, node]

    count = editor.map_nodes(change)
    if count:
        editor.drop_dead()
    return [f"{count} exponents"] if count else []
