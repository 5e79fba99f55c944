"""Rewrites that replace single operators by operators that QNN supports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import FLOATS, INTEGERS, Editor
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.model.merged import gelu_of
from qnnbridge_host.rewrite.rewriting import NodeChain, drop_attribute, for_matches, for_nodes


@for_nodes("Pow", "Pow(x, 2)")
def square_by_mul(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Pow(x, 2) by Mul(x, x), which computes the same, is faster, and does not have a constant to
    quantise."""
    exponent, rank = editor.constant(node.input[1], 1), editor.rank(node.input[0])
    if exponent is None or exponent.size != 1 or float(exponent.reshape(())) != 2:
        return None
    if exponent.ndim and (rank is None or exponent.ndim > rank):
        return None  # the result would have more dimensions than x
    return [editor.make("Mul", [node.input[0], node.input[0]], node, node.output[0])]


@for_nodes("Pow", "exponents")
def exponent_of_base_type(editor: Editor, node: Any) -> list[Any] | None:
    """Convert an integer exponent of a float base to the type of the base: QNN refuses the integer."""
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


@for_nodes("Gemm", "Gemm")
def fold_gemm_scale(editor: Editor, node: Any) -> list[Any] | None:
    """Multiply alpha and beta of Gemm into its constants: QNN supports only alpha 1, and beta 1 or 0."""
    factors = graphs.attribute_values(node)
    alpha, beta = factors.get("alpha", 1.0), factors.get("beta", 1.0)
    has_bias = len(node.input) > 2 and bool(node.input[2])
    if alpha == 1 and (beta == 1 or not has_bias):
        return None
    before: list[Any] = []
    if alpha != 1:
        # Scale the factor that is a constant, if there is one, so that no node is added.
        side = 1 if editor.tensor(node.input[1]) is not None or editor.tensor(node.input[0]) is None else 0
        _multiply(editor, node, side, alpha, before)
    # Remove the input instead of multiplying it by zero: an infinite bias times zero would be NaN.
    if has_bias and beta == 0:
        del node.input[2]
    elif has_bias and beta != 1:
        _multiply(editor, node, 2, beta, before)
    for name in ("alpha", "beta"):
        drop_attribute(node, name)
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


# QNN merges a Sigmoid or Tanh with one of these operators directly before it, which costs accuracy: 46 to 48 dB
# instead of 67 to 70 dB (simulator of V73, 2.7.0).
_MERGED_WITH = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
# Lower bound that Max applies to the input: sigmoid(-60) is 9e-27, which is 0 in half floats, and tanh(-60) is -1.
_LEAST_OF_A_GATE = -60.0
_MAX_BROADCASTS = 8  # first opset in which Max supports broadcasting


@for_nodes(("Sigmoid", "Tanh"), "gates")
def part_gates(editor: Editor, node: Any) -> list[Any] | None:
    """Insert Max between a gate and the linear operator before it, so that QNN does not merge them.

    A gate is a factor of a Mul, directly or as 1 - gate. The error of a result that is not a factor stays small.
    Quantised models, which would lose accuracy, do not match, because the gate reads a DequantizeLinear.
    """
    source = node.input[0]
    bias = editor.maker_of(source, "Add")
    if bias is not None:  # the linear operator may be a MatMul and an Add of its bias
        sides = [name for name in bias.input if editor.tensor(name) is None]
        source = sides[0] if len(sides) == 1 else ""
    is_linear = editor.maker_of(source, *_MERGED_WITH) is not None
    if not is_linear or editor.element(node.input[0]) not in FLOATS or editor.opset < _MAX_BROADCASTS:
        return None
    readers = editor.uses(node.output[0])
    behind = [reader for one in readers if one.op_type == "Sub" for reader in editor.uses(one.output[0])]
    if not any(reader.op_type == "Mul" for reader in (*readers, *behind)):
        return None
    least = editor.like(node.input[0], _LEAST_OF_A_GATE, f"{node.input[0]}/least")
    limited = editor.make("Max", [node.input[0], least], node)
    node.input[0] = limited.output[0]
    return [limited, node]


@for_nodes("Clip", "Clip")
def clip_by_min_max(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Clip by Max and Min if its limits are not constants: QNN supports only constant limits."""
    limits = [name for name in node.input[1:] if name]
    if all(editor.tensor(name) is not None for name in limits):
        return None
    made: list[Any] = []
    value = node.input[0]
    # In this order the upper limit takes precedence if the limits cross, as in ONNX's definition of Clip.
    for op, number in (("Max", 1), ("Min", 2)):
        if number < len(node.input) and node.input[number]:
            made.append(editor.make(op, [value, node.input[number]], node))
            value = made[-1].output[0]
    made[-1].output[0] = node.output[0]
    return made


# Maximum number of elements of the mask.
_MASK_LIMIT = 1 << 24


@for_nodes("Trilu", "Trilu")
def trilu_by_where(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Trilu of a tensor of known shape by Where with a constant mask: QNN lacks Trilu."""
    shape = editor.shape(node.input[0])
    offset: Any = np.asarray(0)
    if len(node.input) > 1 and node.input[1]:
        offset = editor.constant(node.input[1], 1)
    if shape is None or len(shape) < 2 or offset is None or shape[-1] * shape[-2] > _MASK_LIMIT:
        return None
    upper = graphs.attribute_values(node).get("upper", 1)
    ones = np.ones(shape[-2:], bool)
    k = int(offset.reshape(-1)[0])
    mask = editor.add_constant(np.triu(ones, k) if upper else np.tril(ones, k), f"{node.output[0]}/mask")
    zero = editor.like(node.input[0], 0, f"{node.output[0]}/zero")
    return [editor.make("Where", [mask, node.input[0], zero], node, node.output[0])]


# The first opset with LayerNormalization.
_LAYER_NORM_OPSET = 17


@for_nodes("SkipLayerNormalization", "SkipLayerNormalization", ("com.microsoft",))
def split_skip_norm(editor: Editor, node: Any) -> list[Any] | None:
    """Replace ONNX Runtime's SkipLayerNormalization by Add and LayerNormalization, which QNN supports."""
    if editor.opset < _LAYER_NORM_OPSET:
        return None
    # Input, skip, gamma, beta, bias; the last two are optional.
    inputs = [*node.input, *[""] * (5 - len(node.input))]
    if any(name and (editor.uses(name) or not editor.is_free(name)) for name in node.output[1:3]):
        return None  # the outputs mean or variance are used
    wanted_sum = node.output[3] if len(node.output) > 3 else ""
    # 1e-12 is the default of ONNX Runtime's operator; the default of LayerNormalization is 1e-5.
    epsilon = graphs.attribute_values(node).get("epsilon", 1e-12)
    made = [editor.make("Add", inputs[:2], node)]
    if inputs[4]:
        made.append(editor.make("Add", [made[-1].output[0], inputs[4]], node))
    if wanted_sum:
        made[-1].output[0] = wanted_sum
    normal = [made[-1].output[0], inputs[2]] + ([inputs[3]] if inputs[3] else [])
    made.append(editor.make("LayerNormalization", normal, node, node.output[0], axis=-1, epsilon=epsilon))
    return made


def _celu(c: NodeChain) -> None:
    alpha = graphs.attribute_values(c.node).get("alpha", 1.0)
    zero = c.constant(0.0)
    below = c("Sub", c.exp(c("Mul", c("Min", c.x, zero), c.constant(1 / alpha))), c.constant(1.0))
    c("Add", c("Max", c.x, zero), c("Mul", below, c.constant(alpha)))


def _hyperbolic(c: NodeChain, op: str) -> None:
    c("Mul", c(op, c.exp(c.x), c.exp(c("Neg", c.x))), c.constant(0.5))


_FORMULAS: dict[str, Callable[[NodeChain], object]] = {
    "ReduceL1": lambda c: c.reduce("ReduceSum", c("Abs", c.x)),
    "ReduceSumSquare": lambda c: c.reduce("ReduceSum", c("Mul", c.x, c.x)),
    "ReduceLogSum": lambda c: c("Log", c.reduce("ReduceSum", c.x)),
    "Softsign": lambda c: c("Div", c.x, c("Add", c("Abs", c.x), c.constant(1.0))),
    "Celu": _celu,
    "Sinh": lambda c: _hyperbolic(c, "Sub"),
    "Cosh": lambda c: _hyperbolic(c, "Add"),
}
# The first opset in which the axes are an input. The axes of ReduceSum are an input since opset 13.
_AXES_ARE_INPUTS = {"ReduceL1": 18, "ReduceSumSquare": 18, "ReduceLogSum": 18}


def define_missing_operators(editor: Editor) -> list[str]:
    """Replace operators that QNN lacks by their definitions, so that only rounding differs."""
    counted: Counter[str] = Counter()

    def change(node: Any) -> list[Any] | None:
        if node.domain not in graphs.ONNX_DOMAINS or editor.element(node.input[0]) not in FLOATS:
            return None
        chain = NodeChain(editor, node)
        if node.op_type in _AXES_ARE_INPUTS and 13 <= editor.opset < _AXES_ARE_INPUTS[node.op_type]:
            _axes_to_input(editor, node)
        _FORMULAS[node.op_type](chain)
        counted[node.op_type] += 1
        return chain.nodes()

    editor.map_nodes(change, _FORMULAS)
    return [f"{count} {op}" for op, count in counted.items()]


# The largest half float, and a factor for values. Multiplying by a power of two is exact.
_LARGEST_HALF, _QUARTER = 65504.0, 0.25


@for_nodes("IsInf", "IsInf of half floats")
def infinite_half_by_size(editor: Editor, node: Any) -> list[Any] | None:
    """Replace IsInf of half floats, also after a Cast to float or double, by a comparison of the absolute value."""
    given = node.input[0]
    cast = editor.maker_of(given, "Cast")
    if cast is not None and editor.element(cast.input[0]) == _FLOAT16:
        given = cast.input[0]
    attributes = graphs.attribute_values(node)
    if editor.element(given) != _FLOAT16 or not attributes.get("detect_positive", 1):
        return None
    made = []
    if attributes.get("detect_negative", 1):
        made.append(editor.make("Abs", [given], node))
    # QNN's comparisons with infinity are wrong. QNN represents infinity as 131008, a quarter of which is finite.
    size = made[-1].output[0] if made else given
    made.append(editor.make("Mul", [size, editor.like(given, _QUARTER, f"{node.output[0]}/quarter")], node))
    largest = editor.like(given, _LARGEST_HALF * _QUARTER, f"{node.output[0]}/largest")
    return [*made, editor.make("Greater", [made[-1].output[0], largest], node, node.output[0])]


def _axes_to_input(editor: Editor, node: Any) -> None:
    axes = next((attribute for attribute in node.attribute if attribute.name == "axes"), None)
    if axes is not None:
        node.input.append(editor.add_constant(np.asarray(axes.ints, np.int64), f"{node.output[0]}/axes"))
        node.attribute.remove(axes)


_ERF_P = 0.3275911
_ERF_TERMS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_FLOAT, _FLOAT16 = 1, 10


@for_nodes("Erf", "Erf")
def approximate_erf(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Erf by formula 7.1.26 of Abramowitz and Stegun, whose error is below 1.5e-7: QNN lacks Erf.

    An Erf in a Gelu (x / sqrt(2), Erf, + 1) is kept, because QNN merges the whole pattern. An Erf in a pattern that
    QNN mistakes for a Gelu is replaced.
    """
    record = editor.node(editor.makers[node.output[0]])
    if gelu_of(editor, record) == "gelu" or editor.element(node.input[0]) not in (_FLOAT, _FLOAT16):
        return None
    chain = NodeChain(editor, node)
    _erf(chain)
    return chain.nodes()


def _erf(c: NodeChain) -> None:
    one = c.constant(1.0)
    t = c("Div", one, c("Add", c("Mul", c("Abs", c.x), c.constant(_ERF_P)), one))
    # Horner's rule.
    total = c.constant(_ERF_TERMS[0])
    for term in _ERF_TERMS[1:]:
        total = c("Add", c("Mul", total, t), c.constant(term))
    tail = c("Mul", c("Mul", total, t), c.exp(c("Neg", c("Mul", c.x, c.x))))
    c("Mul", c("Sign", c.x), c("Sub", one, tail))


# --- in quantised models: Gelu ---------------------------------------------------------------------------
# Exporters write a Gelu as five operators, and quantizers insert QuantizeLinear and DequantizeLinear between them.
# QNN lacks a quantised Erf: the Erf stays on the CPU and splits the model.

# Relative tolerance for constants, which may be quantised themselves.
_CLOSE = 0.02
# Maximum depth of nested products: in x * (0.5 * (1 + Erf)) one product is nested in the other.
_MOST_PRODUCTS = 2
_FIRST_OPSET_WITH_GELU = 20
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_MICROSOFT = "com.microsoft"


@for_nodes(("Mul", "Div"), "quantised Gelu")
def fuse_quantised_gelu(editor: Editor, node: Any) -> list[Any] | None:
    """Replace x * 0.5 * (1 + Erf(x / sqrt(2))) with quantised tensors by Gelu, for any order of the products."""
    # Most models contain no Erf. Skip the search for Gelu in these models.
    found = next(_gelu_of(editor, node), None) if "Erf" in editor.op_types else None
    if found is None:
        return None
    # In older operator sets Gelu exists only in ONNX Runtime's own domain.
    domain = "" if editor.opset >= _FIRST_OPSET_WITH_GELU else _MICROSOFT
    if domain and all(entry.domain != domain for entry in editor.model.opset_import):
        editor.model.opset_import.add(domain=domain, version=1)
    return [editor.make("Gelu", [found], node, node.output[0], domain=domain)]


def _gelu_of(editor: Editor, last: Any) -> Iterator[str]:
    """Yield the input tensor of each Gelu that ends with the product `last`."""
    for number, factors in _products(editor, last, _MOST_PRODUCTS):
        if len(factors) == 2 and abs(number / 0.5 - 1) < _CLOSE:
            yield from (x for a, b in (factors, factors[::-1]) if (x := _x_of(editor, a, b, last)))


def _products(editor: Editor, node: Any, depth: int) -> Iterator[tuple[float, list[str]]]:
    """Yield the ways to split a Mul or Div into a constant and other factors: first with nested products unchanged,
    then with nested products expanded.

    TorchScript's exporter multiplies by x first and the newer exporter by the constant, so both orders must match.
    """
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
    """Return the tensor x from which 1 + Erf(x / sqrt(2)) is computed; "" if the pattern differs or nothing is
    quantised.

    If only the matrices of a model are quantised, the result of `last` is the only quantised tensor of the pattern.
    QNN refuses the Erf in this case, too.
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
    """Return the pair of inputs, and the pair in reverse order."""
    left, right = node.input[0], node.input[1]
    return (left, right), (right, left)


def _origin(editor: Editor, name: str) -> str:
    """Return the tensor before the pairs of QuantizeLinear and DequantizeLinear."""
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
    """Return the value of a constant with one element, quantised or not; ``None`` for other tensors."""
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


# --- in quantised models: signs of scales ------------------------------------------------------------------


@for_matches(("QuantizeLinear", "DequantizeLinear"), ("negative-scale",), "scale below zero")
def sign_beside_scale(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Make a negative scale positive: move its sign to the stored weights, or insert a Mul by -1."""
    scale = editor.constant(node.input[1])
    given = graphs.attribute_values(node)
    # Skip blockwise quantisation, in which the scale is not a vector and the axis has another meaning.
    if scale is None or (scale.size != 1 and (scale.ndim != 1 or given.get("block_size", 0))):
        return None
    rank, axis = editor.rank(node.input[0]), given.get("axis", 1)
    sign = np.where(scale < 0, -1, 1)
    if scale.size == 1:
        sign = sign.reshape(())
    elif rank is None or not -rank <= axis < rank:
        return None
    else:
        sign = sign.reshape([-1 if at == axis % rank else 1 for at in range(rank)])
    # The sign is multiplied in the type of the float tensor, which since opset 23 may differ from the scale's type.
    floats = node.input[0] if node.op_type == "QuantizeLinear" else node.output[0]
    if editor.element(floats) not in FLOATS:
        return None
    node.input[1] = editor.add_constant(np.abs(scale), f"{node.input[1]}/positive")
    stored = editor.constant(node.input[0]) if node.op_type == "DequantizeLinear" else None
    if stored is not None and _can_change_sign(editor, node, stored):
        node.input[0] = editor.add_constant((stored * sign).astype(stored.dtype), f"{node.input[0]}/signed")
        return [node]
    factor = editor.like(floats, sign, f"{node.input[1]}/sign")
    if node.op_type == "QuantizeLinear":
        product = editor.make("Mul", [node.input[0], factor], node)
        node.input[0] = product.output[0]
        return [product, node]
    output = node.output[0]
    node.output[0] = editor.fresh(f"{output}/positive")
    return [node, editor.make("Mul", [node.output[0], factor], node, output)]


def _can_change_sign(editor: Editor, node: Any, stored: Any) -> bool:
    """Return whether all stored values can be negated in their type; the zero point must be 0."""
    if stored.dtype.kind != "i" or (stored == np.iinfo(stored.dtype).min).any():
        return False
    if len(node.input) < 3 or not node.input[2]:
        return True
    zero = editor.constant(node.input[2])
    return zero is not None and not zero.any()
