"""Operators that QNN lacks, by those that it has: each one's own definition, so only rounding differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from qnnbridge_tools.models.fix.editor import FLOATS, Editor
from qnnbridge_tools.models.shared import graphs


class _Chain:
    """Nodes that stand for `node`, made one behind the other."""

    def __init__(self, editor: Editor, node: Any) -> None:
        self.editor, self.node = editor, node
        self.made: list[Any] = []
        self.x = node.input[0]

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.made.append(self.editor.make(op, inputs, self.node, **attributes))
        return str(self.made[-1].output[0])

    def constant(self, value: float) -> str:
        return self.editor.like(self.x, value, f"{self.node.output[0]}/{value:g}")

    def reduce(self, op: str, value: str) -> str:
        result = self(op, value, *self.node.input[1:])
        self.made[-1].attribute.extend(self.node.attribute)
        return result

    def attribute(self, name: str, default: float) -> float:
        return next((attribute.f for attribute in self.node.attribute if attribute.name == name), default)

    def nodes(self) -> list[Any]:
        self.made[-1].output[0] = self.node.output[0]
        return self.made


def _celu(c: _Chain) -> None:
    alpha = c.attribute("alpha", 1.0)
    zero = c.constant(0.0)
    below = c("Sub", c("Exp", c("Mul", c("Min", c.x, zero), c.constant(1 / alpha))), c.constant(1.0))
    c("Add", c("Max", c.x, zero), c("Mul", below, c.constant(alpha)))


def _hyperbolic(c: _Chain, op: str) -> None:
    c("Mul", c(op, c("Exp", c.x), c("Exp", c("Neg", c.x))), c.constant(0.5))


_FORMULAS: dict[str, Callable[[_Chain], object]] = {
    "ReduceL1": lambda c: c.reduce("ReduceSum", c("Abs", c.x)),
    "ReduceSumSquare": lambda c: c.reduce("ReduceSum", c("Mul", c.x, c.x)),
    "ReduceLogSum": lambda c: c("Log", c.reduce("ReduceSum", c.x)),
    "Softsign": lambda c: c("Div", c.x, c("Add", c("Abs", c.x), c.constant(1.0))),
    "Celu": _celu,
    "Sinh": lambda c: _hyperbolic(c, "Sub"),
    "Cosh": lambda c: _hyperbolic(c, "Add"),
}
_AXES_ARE_INPUTS = {"ReduceL1": 18, "ReduceSumSquare": 18, "ReduceLogSum": 18}
"""The opset from which on; ReduceSum has them as an input since 13, so between the two they must be moved."""


def apply(editor: Editor) -> list[str]:
    counted: Counter[str] = Counter()

    def change(node: Any) -> list[Any] | None:
        formula = _FORMULAS.get(node.op_type)
        if formula is None or node.domain not in graphs.ONNX_DOMAINS or editor.element(node.input[0]) not in FLOATS:
            return None
        chain = _Chain(editor, node)
        if node.op_type in _AXES_ARE_INPUTS and 13 <= editor.opset < _AXES_ARE_INPUTS[node.op_type]:
            _axes_to_input(editor, node)
        formula(chain)
        counted[node.op_type] += 1
        return chain.nodes()

    editor.map_nodes(change)
    return [f"{count} {op}" for op, count in counted.items()]


def _axes_to_input(editor: Editor, node: Any) -> None:
    import numpy as np

    axes = next((attribute for attribute in node.attribute if attribute.name == "axes"), None)
    if axes is not None:
        node.input.append(editor.add_constant(np.asarray(axes.ints, np.int64), f"{node.output[0]}/axes"))
        node.attribute.remove(axes)
