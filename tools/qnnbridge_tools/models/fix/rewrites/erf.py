"""Erf becomes the formula 7.1.26 of Abramowitz and Stegun, whose error is below 1.5e-7: QNN has no Erf.

Left alone inside of a Gelu (x / sqrt(2), Erf, + 1), which QNN takes as a whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import graphs

_P = 0.3275911
_TERMS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_FLOAT, _FLOAT16 = 1, 10


def apply(editor: Editor) -> list[str]:
    def change(node: Any) -> list[Any] | None:
        if node.op_type != "Erf" or node.domain not in graphs.ONNX_DOMAINS or _in_gelu(editor, node):
            return None
        if editor.element(node.input[0]) not in (_FLOAT, _FLOAT16):
            return None
        return _formula(editor, node)

    count = editor.map_nodes(change)
    return [f"{count} Erf"] if count else []


def _in_gelu(editor: Editor, node: Any) -> bool:
    for user in editor.uses(node.output[0]):
        if user.op_type != "Add":
            continue
        others = [editor.constant(name, 1) for name in user.input if name != node.output[0]]
        if any(
            value is not None and value.size == 1 and abs(float(value.reshape(())) - 1) < 1e-3 for value in others
        ):
            return True
    return False


def _formula(editor: Editor, node: Any) -> list[Any]:
    made: list[Any] = []
    x = node.input[0]

    def do(op: str, *inputs: str) -> str:
        made.append(editor.make(op, inputs, node))
        return str(made[-1].output[0])

    def number(value: float) -> str:
        return editor.like(x, np.asarray(value), f"{node.output[0]}/erf")

    size = do("Abs", x)
    one = number(1.0)
    t = do("Div", one, do("Add", do("Mul", size, number(_P)), one))
    total = number(_TERMS[0])
    for term in _TERMS[1:]:
        total = do("Add", do("Mul", total, t), number(term))
    tail = do("Mul", do("Mul", total, t), do("Exp", do("Neg", do("Mul", x, x))))
    do("Mul", do("Sign", x), do("Sub", one, tail))
    made[-1].output[0] = node.output[0]
    return made
