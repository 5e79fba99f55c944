"""Rewrites of operators that QNN computes wrong: powers, indices, casts, exponentials, padded operators.

Each rewrite except `edge_by_concat` changes only nodes that match a row of the known-wrong table
(`qnnbridge_host.model.known_wrong`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model.conditions import nearest_places, window_of_node
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.rewrite.rewriting import (
    LAST,
    LEAST_ARGUMENT,
    NodeChain,
    drop_attribute,
    dtype_of,
    for_matches,
    for_nodes,
    reshaped,
    rewrite_matched,
    set_attribute,
    sliced,
    unchanged,
    with_edges,
)
from qnnbridge_protocol.elements import ElementType

# Attributes that operators such as RandomNormalLike share with their replacements, such as RandomNormal.
_OF_RANDOM = ("mean", "scale", "low", "high", "seed")
# Highest power that is replaced by products.
_HIGHEST_POWER = 16
# Rank of Gemm's operands.
_OF_A_MATRIX = 2


@for_matches("Pow", ("pow-negative-zero", "pow-high", "pow-zero"), "Pow")
def _powers_by_products(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace Pow with an integer exponent by products; limit the base of a zeroth power to 1 or more."""
    value = editor.constant(node.input[1], 1)
    exponent = -1.0 if value is None else float(value.reshape(-1)[0])
    if exponent == 0:
        return _limit_base(editor, node)
    rank = editor.rank(node.input[0])
    # QNN also computes the first power of a negative zero wrong.
    if exponent == 1 and value is not None and not value.ndim:
        return [editor.make("Identity", [node.input[0]], node, node.output[0])]
    if not 2 <= exponent <= _HIGHEST_POWER or exponent != int(exponent):
        return None
    if value is not None and value.ndim and (rank is None or value.ndim > rank):
        return None  # the result would have more dimensions than the base
    made: list[Any] = []

    def product(left: str, right: str) -> str:
        made.append(editor.make("Mul", [left, right], node))
        return str(made[-1].output[0])

    # Use repeated squaring, so that a high power needs few products.
    square, result, left = str(node.input[0]), "", int(exponent)
    while left:
        if left % 2:
            result = product(result, square) if result else square
        left //= 2
        square = product(square, square) if left else square
    made[-1].output[0] = node.output[0]
    return made


def _limit_base(editor: Editor, node: Any) -> list[Any] | None:
    if not _may_limit(editor, node.input[0]):
        return None
    chain = NodeChain(editor, node)
    # The zeroth power of any base is 1, but QNN returns 0 for a base of 0.
    node.input[0] = chain("Max", chain.x, chain.constant(1.0))
    return [*chain.made, node]


@for_matches("Pow", ("pow-zero-computed",), "Pow with several exponents")
def _ones_of_zeroth_powers(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace the base of a zeroth power by 1: any base to the power of zero is 1."""
    chain = NodeChain(editor, node)
    is_zero = chain("Equal", node.input[1], editor.like(node.input[1], 0, "zero"))
    node.input[0] = chain("Where", is_zero, chain.constant(1.0), chain.x)
    return [*chain.made, node]


def rewrite_powers(editor: Editor) -> list[str]:
    """Rewrite a Pow that QNN computes wrong for a base of zero or a high exponent."""
    return [*_powers_by_products(editor), *_ones_of_zeroth_powers(editor)]


@for_matches("Resize", ("resize-nearest",), "Resize to nearest values")
def resize_by_gather(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace a Resize of mode nearest by Gathers with the equivalent indices."""
    shape, made_shape = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or made_shape is None or shape[:2] != made_shape[:2]:
        return None
    made: list[Any] = []
    value = node.input[0]
    for axis, (places, _) in enumerate(nearest_places(record), 2):
        if places == list(range(shape[axis])):
            continue
        indices = editor.add_constant(np.array(places), f"{node.output[0]}/places")
        made.append(editor.make("Gather", [value, indices], node, axis=axis))
        value = made[-1].output[0]
    if not made:
        return None
    made[-1].output[0] = node.output[0]
    return made


@for_matches("CumSum", ("cum-sum-bytes",), "CumSum")
def sum_along_last(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Transpose the axis of a CumSum to the end: along most other axes QNN's sums of 8 bits are wrong."""
    rank, axis = editor.rank(node.input[0]), editor.constant(node.input[1], 1)
    if rank is None or axis is None:
        return None
    order = list(range(rank))
    order.append(order.pop(int(axis.reshape(-1)[0])))
    first = editor.make("Transpose", [node.input[0]], node, perm=order)
    output = node.output[0]
    node.input[0], node.output[0] = first.output[0], editor.fresh(f"{output}/turned")
    node.input[1] = editor.add_constant(np.array(rank - 1, np.int64), "last")
    back = [order.index(place) for place in range(rank)]
    return [first, node, editor.make("Transpose", [node.output[0]], node, output, perm=back)]


@for_matches("ArgMin", ("arg-min-pair",), "ArgMin of two values")
def largest_of_negatives(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace ArgMin by ArgMax of the negated values, because QNN returns the index of the larger of two values."""
    first = editor.make("Neg", [node.input[0]], node)
    node.op_type, node.input[0] = "ArgMax", first.output[0]
    return [first, node]


def swap_operands(editor: Editor) -> list[str]:
    """Swap the operands of products and sums that QNN computes right in only one order."""

    def swap(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
        node.input[0], node.input[1] = node.input[1], node.input[0]
        return [node]

    def swap_user(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
        # If x is the first operand of x * HardSigmoid(x), QNN multiplies by x twice.
        swap(editor, editor.uses(node.output[0])[0], record)
        return [node]

    return [
        *rewrite_matched(editor, "HardSigmoid", ("hard-swish-product",), swap_user, "product with a HardSigmoid"),
        # If the weight of an RMS normalization is the first operand, QNN cannot finalize the graph.
        *rewrite_matched(editor, "Mul", ("rms-weight-first",), swap, "Mul"),
        # If the vector is the second operand, QNN's compiler crashes.
        *rewrite_matched(editor, "Mul", ("mul-square-vector", "mul-square-vector-half"), swap, "Mul by a vector"),
        # In a sum of half floats, QNN's compiler crashes if the vector is the first operand.
        *rewrite_matched(editor, "Add", ("add-square-vector-half",), swap, "Add of a vector"),
        # If a constant of five dimensions is the second operand, QNN returns 98304 everywhere.
        *rewrite_matched(editor, "Add", ("add-constant-of-five",), swap, "Add"),
    ]


@for_matches("MatMul", ("matmul-reshapes", "matmul-reshapes-fail"), "MatMul between Reshapes")
def product_by_gemm(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace MatMul by a constant matrix between Reshapes by Gemm: QNN then keeps the Reshapes."""
    shape, made_shape = editor.shape(node.input[0]), editor.shape(node.output[0])
    if not shape or made_shape is None:
        return None
    product = editor.make("Gemm", node.input, node, node.output[0])
    if len(shape) == _OF_A_MATRIX:
        return [product]
    rows = editor.add_constant(np.array([int(np.prod(shape[:-1])), shape[-1]]), "rows")
    first = editor.make("Reshape", [node.input[0], rows], node)
    product.input[0] = first.output[0]
    return [first, product, reshaped(editor, product, made_shape)]


@for_matches("Cast", ("cast-uint8",), "Cast of uint8")
def cast_bytes_twice(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Insert a Cast to int32 before a Cast of uint8 to float."""
    # QNN computes a direct Cast as a Cast to boolean: every byte except 0 becomes 1.
    first = editor.make("Cast", [node.input[0]], node, to=ElementType.INT32.value)
    node.input[0] = first.output[0]
    return [first, node]


@for_matches(("Gemm", "MatMul"), ("half-product-reshaped",), "product of half floats between Reshapes")
def limit_product_input(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Insert Max before a product that only Reshapes join to an input and output: QNN would drop the Reshapes."""
    if editor.opset < _SINCE["Max"]:
        return None
    chain = NodeChain(editor, node)
    node.input[0] = chain("Max", chain.x, chain.constant(-65504.0))
    return [*chain.made, node]


def separate_reshapes(editor: Editor) -> list[str]:
    """Rewrite products between Reshapes so that QNN does not drop the Reshapes."""
    return [*product_by_gemm(editor), *limit_product_input(editor)]


_UNSIGNED = (ElementType.UINT8.value, ElementType.UINT32.value)


@for_matches("Cast", ("cast-back",), "Cast to whole numbers")
def limit_whole_numbers(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Insert Max (Add and Sub below opset 12) after a Cast to integers whose result is cast back to float.

    QNN then keeps both casts.
    """
    chain = NodeChain(editor, node)
    if record.attributes["to"] in _UNSIGNED:
        # QNN does not support Max of unsigned integers, so cast to int32. The results equal ONNX Runtime's, also
        # for negative numbers, but not from 2**31 on.
        node.input[0] = unchanged(chain, chain("Cast", chain.x, to=ElementType.INT32.value), np.int32)
        return [*chain.made, node]
    output = node.output[0]
    unchanged(chain, output, np.int32 if record.attributes["to"] == ElementType.INT32.value else np.int64)
    node.output[0] = chain.made[0].input[0] = editor.fresh(f"{output}/whole")
    chain.made[-1].output[0] = output
    return [node, *chain.made]


@for_matches("Cast", ("cast-negative-bool",), "Cast to truth values")
def truth_by_equal(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace Cast of integers to booleans by Equal to zero and Not: QNN converts negative numbers to False."""
    chain = NodeChain(editor, node)
    chain("Not", chain("Equal", chain.x, editor.like(chain.x, 0, "zero")))
    return chain.nodes()


@for_matches("Equal", ("equal-infinity",), "Equal with infinity")
def limit_to_infinity(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Insert Min with infinity before a comparison with infinity, or Max before a comparison with -infinity.

    These operators change no value. Without them QNN represents an infinite input by a number that does not equal
    its constant for infinity.
    """
    place = 0 if editor.constant(node.input[0]) is None else 1
    infinite = editor.constant(node.input[1 - place], _SMALL)
    if infinite is None:
        return None
    chain = NodeChain(editor, node)
    for op, limit in (("Min", math.inf), ("Max", -math.inf)):
        if (infinite == limit).any():
            value = node.input[place]
            node.input[place] = chain(op, value, editor.like(value, limit, "infinity"))
    return [*chain.made, node]


@for_matches("OneHot", ("one-hot-negative",), "OneHot")
def classes_from_start(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Convert negative indices of OneHot, which count from the end, to indices from the start."""
    depth, kind = editor.constant(node.input[1], 1), dtype_of(editor, node.input[0])
    if depth is None or kind not in (np.int32, np.int64):
        return None
    many = int(depth.reshape(-1)[0])
    chain = NodeChain(editor, node)
    zero, all_, least = (editor.add_constant(np.array(number, kind), "class") for number in (0, many, -many))
    moved = chain("Where", chain("Less", chain.x, zero), chain("Add", chain.x, all_), chain.x)
    # An index below -depth selects no class. Replace it by the depth, which is out of range as well.
    node.input[0] = chain("Where", chain("Less", chain.x, least), all_, moved)
    return [*chain.made, node]


@for_matches("LogSoftmax", ("log-softmax-of-one",), "LogSoftmax of one element")
def zero_instead_of_softmax(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace LogSoftmax along an axis of size 1, whose result is zero, because QNN computes it wrong."""
    # Use x - x instead of a constant: NaN remains NaN, and shape and type follow from the input.
    return [editor.make("Sub", [node.input[0], node.input[0]], node, node.output[0])]


@for_matches("Softmax", ("softmax-negative-factor", "softmax-factor-axis"), "Softmax of a product")
def factor_with_a_dimension(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Add a dimension to the scalar factor of a Softmax's argument: QNN merges scalars into the Softmax wrongly."""
    product = editor.maker(node.input[0])
    if product is None or not editor.rank(node.input[0]):
        return None
    for place, name in enumerate(product.input):
        number = editor.constant(name, 1)
        if number is not None and not number.ndim:
            product.input[place] = editor.add_constant(number.reshape(1), f"{name}/row")
            return [node]
    return None


@for_matches("ReduceL2", ("l2-offset",), "L2 normalization")
def add_behind_normalisation(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Rewrite x / (n + e), with n = ReduceL2(x), as u * (m / (m + e)).

    Here u = x / (n + 1e-12) and m = ReduceSum(x * u) = n. QNN computes u with one operator, which is right even
    where the squares are too large for half floats.
    """
    axes = _axes_of(editor, node, record)
    if not axes:
        return None
    (added,) = editor.uses(node.output[0])
    (divided,) = editor.uses(added.output[0])
    place = 1 if added.input[0] == node.output[0] else 0
    offset = added.input[place]
    chain = NodeChain(editor, node)
    norm = chain("ReduceL2", *node.input)
    chain.made[-1].attribute.extend(node.attribute)
    unit = chain("Div", chain.x, chain("Add", norm, chain.constant(_TINY)))
    length = _reduced(chain, "ReduceSum", chain("Mul", chain.x, unit), axes, 1)
    ratio = chain("Div", length, chain("Add", length, offset))
    # Keep the Add n + e, and turn the Div into the product of u and m / (m + e).
    divided.op_type = "Mul"
    divided.input[0], divided.input[1] = unit, ratio
    chain.made.append(node)
    return chain.made


@for_matches(("Add", "Mul"), ("repeated-rows",), "sum or product of repeated rows")
def limit_repeated_rows(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Insert Max after a sum or product that broadcasts rows: QNN does not move the broadcast past a Max."""
    if not _may_limit(editor, node.output[0]):
        return None
    least = -3e38 if editor.element(node.output[0]) == 1 else -65504.0
    chain = NodeChain(editor, node)
    before = chain(node.op_type, *node.input)
    chain("Max", before, chain.constant(least))
    return chain.nodes()


@for_matches("RMSNormalization", ("rms-normalization-4d",), "RMSNormalization")
def normalise_rows(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace RMSNormalization of more than two dimensions by RMSNormalization of a two-dimensional tensor."""
    shape = editor.shape(node.input[0])
    if shape is None or len(node.output) > 1:
        return None
    # QNN splits the other dimensions and does not write some of the rows, which then contain numbers of earlier
    # computations in the same host. With two dimensions all rows are written, in float and in half floats.
    flat = editor.add_constant(np.array([int(np.prod(shape[:-1])), shape[-1]]), "flat")
    first = editor.make("Reshape", [node.input[0], flat], node)
    node.input[0] = first.output[0]
    # The reshaped tensor has the rows in its last dimension.
    set_attribute(node, "axis", -1)
    return [first, node, reshaped(editor, node, shape)]


@for_matches(("RandomNormalLike", "RandomUniformLike", "Bernoulli"), ("random-like",), "random operator")
def random_on_cpu(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace RandomNormalLike and similar operators, for which QNN draws numbers only once, by operators of fixed
    shape, which stay on the CPU."""
    shape = editor.shape(node.input[0])
    if shape is None:
        return None
    given = {name: record.attributes[name] for name in _OF_RANDOM if name in record.attributes}
    element = record.attributes.get("dtype", editor.element(node.input[0]))
    if node.op_type != "Bernoulli":
        op = node.op_type.removesuffix("Like")
        return [editor.make(op, [], node, node.output[0], dtype=element, shape=shape, **given)]
    # ONNX's definition of Bernoulli.
    drawn = editor.make("RandomUniform", [], node, dtype=editor.element(node.input[0]), shape=shape, **given)
    less = editor.make("Less", [drawn.output[0], node.input[0]], node)
    return [drawn, less, editor.make("Cast", [less.output[0]], node, node.output[0], to=element)]


# --- exponentials ----------------------------------------------------------------------------------------
# If the result is not a normal float, QNN returns 131008 or -131008. Limiting the argument (`LEAST_ARGUMENT`)
# does not change other results.

# Number that is added to a norm, so that the result for a row of zeros is zero.
_TINY = 1e-12
# First opsets in which Max supports broadcasting, and in which the axes of reductions are an input.
_SINCE = {"Max": 8, "ReduceSum": 13, "ReduceMax": 18}


def limit_arguments(editor: Editor) -> list[str]:
    """Insert Max or Min before Exp, Softplus and Pow of a constant base. Replace Mish, ReduceLogSumExp and
    LogSoftmax of masked values by their definitions with limited arguments of Exp."""
    plans = (
        (("Exp", "Softplus"), ("exp-underflow",), _limit_input),
        (("Mish",), ("exp-underflow",), _mish),
        (("Pow",), ("pow-underflow",), _limit_exponent),
        (("ReduceLogSumExp",), ("log-sum-exp-underflow",), _log_sum_exp),
        (("LogSoftmax",), ("log-softmax-masked", "log-softmax-blocks"), _log_softmax),
    )
    return [
        line for ops, rows, change in plans for op in ops for line in rewrite_matched(editor, op, rows, change, op)
    ]


def _limit_input(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    if not _may_limit(editor, node.input[0]):
        return None
    chain = NodeChain(editor, node)
    node.input[0] = chain("Max", node.input[0], chain.constant(LEAST_ARGUMENT))
    return [*chain.made, node]


def _mish(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace Mish by x * tanh(softplus(x)): ONNX Runtime would replace it in the same way, but could not compile
    the model."""
    if not _may_limit(editor, node.input[0]):
        return None
    chain = NodeChain(editor, node)
    limited = chain("Max", chain.x, chain.constant(LEAST_ARGUMENT))
    # Multiply by the limited x. For minus infinity, x * 0 would be NaN, as in ONNX Runtime, but the limit of Mish
    # is zero.
    chain("Mul", limited, chain("Tanh", chain("Softplus", limited)))
    return chain.nodes()


def _may_limit(editor: Editor, name: str) -> bool:
    """Return whether inserting Max is safe: QNN supports the tensor's type, and Max broadcasts."""
    return editor.element(name) in (1, 10) and editor.opset >= _SINCE["Max"]


def _limit_exponent(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Limit the exponent of base ** x = exp(x * log(base)): to a minimum for a base above 1, else to a maximum."""
    base = editor.constant(node.input[0], 1)
    if base is None or not np.isfinite(base).all() or not _may_limit(editor, node.input[1]):
        return None
    if editor.element(node.input[0]) != editor.element(node.input[1]):
        return None
    factor = math.log(float(base.reshape(-1)[0]))
    chain = NodeChain(editor, node)
    node.input[1] = chain("Max" if factor > 0 else "Min", node.input[1], chain.constant(LEAST_ARGUMENT / factor))
    return [*chain.made, node]


def _log_sum_exp(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace ReduceLogSumExp by max + log(sum(exp(x - max)))."""
    axes = _axes_of(editor, node, record)
    if axes is None:
        return None
    rank = editor.rank(node.input[0])
    if not axes and record.attributes.get("noop_with_empty_axes"):
        return None
    if rank is None or not _may_limit(editor, node.input[0]) or not (axes := axes or list(range(rank))):
        return None
    keep = int(record.attributes.get("keepdims", 1))
    chain = NodeChain(editor, node)
    # Limit the values before the maximum is computed, because infinity minus infinity would be NaN.
    most = 3e38 if editor.element(node.input[0]) == 1 else 65504.0
    finite = chain("Min", chain("Max", chain.x, chain.constant(-most)), chain.constant(most))
    top = _reduced(chain, "ReduceMax", finite, axes, 1)
    total = _reduced(chain, "ReduceSum", chain.exp(chain("Sub", chain.x, top)), axes, keep)
    chain("Add", chain("Log", total), top if keep else _reduced(chain, "ReduceMax", finite, axes, 0))
    return chain.nodes()


def _log_softmax(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace LogSoftmax by (x - max) - log(sum(exp(x - max))).

    Before opset 13 LogSoftmax merges all dimensions from its axis on, so only the last axis is supported then.
    """
    axis = int(record.attributes.get("axis", -1))
    last = axis == -1 or axis + 1 == editor.rank(node.input[0])
    if (editor.opset < _SINCE["ReduceSum"] and not last) or not _may_limit(editor, node.input[0]):
        return None
    axes = [axis]
    chain = NodeChain(editor, node)
    below = chain("Sub", chain.x, _reduced(chain, "ReduceMax", chain.x, axes, 1))
    # The sum is at least 1, the contribution of the largest value, so the argument of Log is never zero.
    chain("Sub", below, chain("Log", _reduced(chain, "ReduceSum", chain.exp(below), axes, 1)))
    return chain.nodes()


def _axes_of(editor: Editor, node: Any, record: GraphNode) -> list[int] | None:
    """Return the axes of a reduction, [] without axes; ``None`` if the axes are computed."""
    given = editor.constant(node.input[1], 8) if len(node.input) > 1 and node.input[1] else None
    if len(node.input) > 1 and node.input[1]:
        return None if given is None else [int(axis) for axis in given.reshape(-1)]
    return [int(axis) for axis in record.attributes.get("axes", ())]


def _reduced(chain: NodeChain, op: str, value: str, axes: list[int], keep: int) -> str:
    if chain.editor.opset < _SINCE[op]:
        return chain(op, value, axes=axes, keepdims=keep)
    listed = chain.editor.add_constant(np.array(axes, np.int64), f"{chain.node.output[0]}/axes")
    return chain(op, value, listed, keepdims=keep)


# --- padded operators: Conv, Pad -----------------------------------------------------------

_SMALL = 64
# Position of Pad's input with the axes.
_AXES_INPUT = 3


@for_matches("Conv", ("conv-equal-padding",), "Conv")
def pad_convolutions(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Pad one more zero at the start of a Conv whose padding is equal on both sides, and drop the first result."""
    window = window_of_node(record)
    before, after = window["before"], window["after"]
    # QNN's results are right for every other padding.
    set_attribute(node, "pads", [*before[:-1], before[-1] + 1, *after])
    drop_attribute(node, "auto_pad")
    output = node.output[0]
    node.output[0] = editor.fresh(f"{output}/longer")
    last = len(before) + 1
    return [node, sliced(editor, node, node.output[0], last, 1, LAST, output)]


@for_matches("Conv", ("conv-depthwise-step",), "depthwise Conv of one value")
def step_before_conv(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace the stride of a depthwise Conv whose kernel has a single value by a Slice with a step before it."""
    # From 33 channels on QNN reads wrong values with a stride of 2.
    step = record.attributes["strides"][0]
    # Start, end, axis and step: along axis 2, the only spatial one.
    limits = [editor.add_constant(np.array([number]), "step") for number in (0, LAST, 2, step)]
    first = editor.make("Slice", [node.input[0], *limits], node)
    node.input[0] = first.output[0]
    drop_attribute(node, "strides")
    return [first, node]


@for_matches("Pad", ("pad-constant-one-sided", "pad-end"), "Pad at the end of the last dimension")
def split_padding(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace the padding at the end of the last dimension by a Concat."""
    pads, shape = editor.constant(node.input[1], _SMALL), editor.shape(node.input[0])
    fill = editor.constant(node.input[2], 1) if len(node.input) > 2 and node.input[2] else np.zeros(1)
    if pads is None or shape is None or fill is None:
        return None
    rank = len(shape)
    inner = np.array(pads)
    # QNN computes this padding wrong if other sides are padded too, or after some operators.
    inner[-1] = 0
    padded = [size + int(a) + int(b) for size, a, b in zip(shape, inner[:rank], inner[rank:], strict=True)]
    value, made = node.input[0], []
    if inner.any():
        others = editor.add_constant(inner, f"{node.input[1]}/others")
        made.append(editor.make("Pad", [value, others, *node.input[2:]], node, mode="constant"))
        value = made[-1].output[0]
    kind = dtype_of(editor, node.input[0])
    block = np.full((*padded[:-1], int(pads[-1])), fill.reshape(-1)[0], kind)
    end = editor.add_constant(block, f"{node.output[0]}/end")
    return [*made, editor.make("Concat", [value, end], node, node.output[0], axis=rank - 1)]


@for_nodes("Pad", "Pad with mode edge")
def edge_by_concat(editor: Editor, node: Any) -> list[Any] | None:
    """Replace `Pad` with mode edge by slices of the first and last element of an axis, and `Concat`.

    QNN 2.7 writes 131008 or zeros to the border.
    """
    mode = graphs.attribute_values(node).get("mode", "constant")
    wanted = mode == "edge" and "pad-edge" not in editor.right_here
    pads = _pads(editor, node) if wanted else None
    shape = editor.shape(node.input[0])
    if not pads or shape is None or 0 in shape:
        return None
    made = with_edges(editor, node, shape, pads)
    made[-1].output[0] = node.output[0]
    return made


def _pads(editor: Editor, node: Any) -> dict[int, tuple[int, int]] | None:
    """Return the pads before and after each padded axis; ``None`` if they are unknown or negative."""
    rank = editor.rank(node.input[0])
    attribute = graphs.attribute_values(node).get("pads")
    values = np.asarray(attribute) if attribute is not None else None
    if values is None and len(node.input) > 1:
        values = editor.constant(node.input[1])
    if rank is None or values is None or (values < 0).any():
        return None
    axes = list(range(rank))
    if len(node.input) > _AXES_INPUT and node.input[_AXES_INPUT]:
        given = editor.constant(node.input[_AXES_INPUT])
        if given is None:
            return None
        axes = [int(axis) % rank for axis in given.ravel()]
    counts = values.ravel()
    pairs = {axis: (int(counts[n]), int(counts[n + len(axes)])) for n, axis in enumerate(axes)}
    return {axis: pair for axis, pair in pairs.items() if any(pair)}
