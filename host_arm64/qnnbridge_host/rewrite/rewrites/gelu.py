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
# Products that are taken apart: x * (0.5 * (1 + Erf)) has one inside of the other.
_MOST_PRODUCTS = 2
_FIRST_OPSET_WITH_GELU = 20
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_MICROSOFT = "com.microsoft"


def fuse_quantised_gelu(editor: Editor) -> list[str]:
    """x * 0.5 * (1 + Erf(x / sqrt(2))) with quantised tensors in it becomes Gelu, whatever is multiplied first."""

    def change(node: Any) -> list[Any] | None:
        found = next(_gelu_of(editor, node), None)
        if found is None:
            return None
        domain = "" if editor.opset >= _FIRST_OPSET_WITH_GELU else _MICROSOFT
        if domain and all(entry.domain != domain for entry in editor.model.opset_import):
            editor.model.opset_import.add(domain=domain, version=1)
        return [editor.make("Gelu", [found], node, node.output[0], domain=domain)]

    # Most models have no Erf, and none of their nodes is looked at.
    if "Erf" not in editor.op_types:
        return []
    count = editor.map_nodes(change, ("Mul", "Div"))
    if count:
        editor.drop_dead()
    return [f"{count} quantised Gelu"] if count else []


def _gelu_of(editor: Editor, last: Any) -> Iterator[str]:
    """The x of a Gelu that this product is the end of: its tensor where the Gelu begins."""
    for number, factors in _products(editor, last, _MOST_PRODUCTS):
        if len(factors) == 2 and abs(number / 0.5 - 1) < _CLOSE:
            yield from (x for a, b in (factors, factors[::-1]) if (x := _x_of(editor, a, b, last)))


def _products(editor: Editor, node: Any, depth: int) -> Iterator[tuple[float, list[str]]]:
    """What a Mul or Div multiplies: the product of its constants, and its other factors; then with some of those
    taken apart in the same way. TorchScript multiplies x first, its successor the constant."""
    number, factors = 1.0, []
    for place, name in enumerate(node.input):
        value = _number(editor, name)
        divides = node.op_type == "Div" and place == 1
        if value is not None and not (divides and value == 0):
            number = number / value if divides else number * value
        elif divides:
            return
        else:
            factors.append(name)
    yield number, factors
    for place, name in enumerate(factors if depth else ()):
        maker = _made_by(editor, name, "Mul") or _made_by(editor, name, "Div")
        for inner, parts in _products(editor, maker, depth - 1) if maker is not None else ():
            yield number * inner, [*factors[:place], *parts, *factors[place + 1 :]]


def _x_of(editor: Editor, total: str, x: str, last: Any) -> str:
    """The tensor that 1 + Erf(x / sqrt(2)) begins with, "" if it is of another x or nothing is quantised.

    Where only matrices are quantised, nothing but the result of `last` is; QNN refuses that Erf, too.
    """
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
                    before = any(_is_quantised(editor, name) for name in passed)
                    behind = any(user.op_type == _QUANTIZE for user in editor.uses(last.output[0]))
                    return given if before or behind else ""
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
    value = _number(editor, name)
    return value is not None and abs(value / number - 1) < _CLOSE


def _number(editor: Editor, name: str) -> float | None:
    """The number that a tensor is, quantised or not; None if it is computed or has more elements."""
    value = editor.constant(_origin(editor, name), 1)
    if value is not None:
        return float(value.reshape(())) if value.size == 1 and value.dtype.kind in "fiu" else None
    maker = editor.maker(name) if _is_quantised(editor, name) else None
    if maker is None:
        return None
    parts = [editor.constant(given, 1) for given in maker.input]
    if any(part is None or part.size != 1 for part in parts):
        return None
    quantised, scale, *zero = (float(part.reshape(())) for part in parts if part is not None)
    return (quantised - (zero[0] if zero else 0)) * scale
