"""The operators of a Gelu in a quantised model become one Gelu, which QNN takes in its quantised form.

Exporters write a Gelu as five operators, and quantizers put QuantizeLinear and DequantizeLinear between them. QNN
has no quantised Erf: it stays on the CPU, and cuts the model in two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from qnnbridge_host.graph.editor import Editor

# Of a constant that is quantised itself.
_CLOSE = 0.02
_FIRST_OPSET_WITH_GELU = 20
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_MICROSOFT = "com.microsoft"


def fuse_quantised_gelu(editor: Editor) -> list[str]:
    """x * 0.5 * (1 + Erf(x / sqrt(2))) with quantised tensors in it becomes Gelu."""

    def change(node: Any) -> list[Any] | None:
        found = next(_gelu_of(editor, node), None)
        if found is None:
            return None
        domain = "" if editor.opset >= _FIRST_OPSET_WITH_GELU else _MICROSOFT
        if domain and all(entry.domain != domain for entry in editor.model.opset_import):
            editor.model.opset_import.add(domain=domain, version=1)
        return [editor.make("Gelu", [found], node, node.output[0], domain=domain)]

    return editor.replace("Mul", change, "quantised Gelu")


def _gelu_of(editor: Editor, last: Any) -> Iterator[str]:
    """The x of a Gelu that this Mul is the end of: its tensor where the Gelu begins."""
    for one, other in _both(last):
        # x * (1 + erf), times 0.5
        product = _made_by(editor, one, "Mul")
        if product is not None and _is_number(editor, other, 0.5):
            yield from (x for a, b in _both(product) if (x := _x_of(editor, a, b)))
        # x * 0.5, times (1 + erf)
        half = _made_by(editor, one, "Mul")
        if half is not None:
            yield from (x for a, b in _both(half) if _is_number(editor, b, 0.5) and (x := _x_of(editor, other, a)))


def _x_of(editor: Editor, total: str, x: str) -> str:
    """The tensor that 1 + Erf(x / sqrt(2)) begins with, "" if it is of another x or nothing is quantised."""
    added = _made_by(editor, total, "Add")
    for one, other in _both(added) if added is not None else ():
        erf = _made_by(editor, one, "Erf")
        if erf is None or not _is_number(editor, other, 1.0):
            continue
        for op, factor in (("Div", math.sqrt(2)), ("Mul", math.sqrt(0.5))):
            scaled = _made_by(editor, erf.input[0], op)
            for given, by in _both(scaled)[: 1 if op == "Div" else 2] if scaled is not None else ():
                if _is_number(editor, by, factor) and _origin(editor, given) == _origin(editor, x):
                    passed = (given, erf.input[0], one, total)
                    return given if any(_is_quantised(editor, name) for name in passed) else ""
    return ""


def _both(node: Any) -> tuple[tuple[str, str], ...]:
    """The two inputs, in both orders."""
    left, right = node.input[0], node.input[1]
    return (left, right), (right, left)


def _origin(editor: Editor, name: str) -> str:
    """The tensor in front of the pairs of QuantizeLinear and DequantizeLinear."""
    while _is_quantised(editor, name):
        maker = editor.maker(name)
        before = editor.maker(maker.input[0]) if maker is not None else None
        if before is None or before.op_type != _QUANTIZE:
            break
        name = before.input[0]
    return name


def _is_quantised(editor: Editor, name: str) -> bool:
    maker = editor.maker(name)
    return maker is not None and maker.op_type == _DEQUANTIZE


def _made_by(editor: Editor, name: str, op: str) -> Any | None:
    maker = editor.maker(_origin(editor, name))
    return maker if maker is not None and maker.op_type == op else None


def _is_number(editor: Editor, name: str, number: float) -> bool:
    value = editor.constant(_origin(editor, name), 1)
    if value is None and _is_quantised(editor, name):
        maker = editor.maker(name)
        parts = [editor.constant(given, 1) for given in maker.input] if maker is not None else []
        if not parts or any(part is None or part.size != 1 for part in parts):
            return False
        quantised, scale, *zero = (float(part.reshape(())) for part in parts if part is not None)
        return abs((quantised - (zero[0] if zero else 0)) * scale / number - 1) < _CLOSE
    return value is not None and value.size == 1 and abs(float(value.reshape(())) / number - 1) < _CLOSE
