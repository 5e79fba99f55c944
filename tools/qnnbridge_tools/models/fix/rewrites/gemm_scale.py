"""alpha and beta of a Gemm are multiplied into its constants: QNN takes Gemm with alpha 1, and beta 1 or 0 only."""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import graphs


def apply(editor: Editor) -> list[str]:
    count = editor.map_nodes(lambda node: _scaled(editor, node))
    if count:
        editor.drop_dead()
    return [f"{count} Gemm"] if count else []


def _scaled(editor: Editor, node: Any) -> list[Any] | None:
    if node.op_type != "Gemm" or node.domain not in graphs.ONNX_DOMAINS:
        return None
    factors = {a.name: a.f for a in node.attribute if a.name in ("alpha", "beta")}
    alpha, beta = factors.get("alpha", 1.0), factors.get("beta", 1.0)
    has_bias = len(node.input) > 2 and bool(node.input[2])
    if alpha == 1 and (beta == 1 or not has_bias):
        return None
    before: list[Any] = []
    if alpha != 1:
        side = 1 if editor.tensor(node.input[1]) is not None or editor.tensor(node.input[0]) is None else 0
        _multiply(editor, node, side, alpha, before)
    if has_bias and beta == 0:
        del node.input[2]
    elif has_bias and beta != 1:
        _multiply(editor, node, 2, beta, before)
    kept = [a for a in node.attribute if a.name not in ("alpha", "beta")]
    del node.attribute[:]
    node.attribute.extend(kept)
    return [*before, node]


def _multiply(editor: Editor, node: Any, number: int, factor: float, before: list[Any]) -> None:
    name = node.input[number]
    value = editor.constant(name)
    if value is not None and value.dtype.kind == "f":
        node.input[number] = editor.add_constant((value * factor).astype(value.dtype), f"{name}/scaled")
        return
    scale = editor.make("Mul", [name, editor.like(name, np.asarray(factor), f"{name}/factor")], node)
    before.append(scale)
    node.input[number] = scale.output[0]
