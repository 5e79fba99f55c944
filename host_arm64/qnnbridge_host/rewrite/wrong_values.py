"""Rewrites of operators that QNN computes wrong without padding: powers, indices, casts, exponentials.

Each changes only nodes that a row of the table (`qnnbridge_host.model.known_wrong`) matches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.model.known_wrong import nearest_places
from qnnbridge_host.rewrite.rewriting import LEAST_ARGUMENT, NodeChain, for_matches, rewrite_matched, set_attribute
from qnnbridge_protocol.elements import ElementType

# Products are not longer.
_HIGHEST_POWER = 16


@for_matches("Pow", ("pow-negative-zero", "pow-high"), "Pow")
def powers_by_products(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Pow with a whole exponent becomes products."""
    value = editor.constant(node.input[1], 1)
    exponent = 0.0 if value is None else float(value.reshape(-1)[0])
    rank = editor.rank(node.input[0])
    # QNN computes the first power of a negative zero wrong, too.
    if exponent == 1 and value is not None and not value.ndim:
        return [editor.make("Identity", [node.input[0]], node, node.output[0])]
    if not 2 <= exponent <= _HIGHEST_POWER or exponent != int(exponent):
        return None
    if value is not None and value.ndim and (rank is None or value.ndim > rank):
        return None  # the result would have more dimensions
    made: list[Any] = []

    def product(left: str, right: str) -> str:
        made.append(editor.make("Mul", [left, right], node))
        return str(made[-1].output[0])

    # By squares, so that a high power takes few products.
    square, result, left = str(node.input[0]), "", int(exponent)
    while left:
        if left % 2:
            result = product(result, square) if result else square
        left //= 2
        square = product(square, square) if left else square
    made[-1].output[0] = node.output[0]
    return made


@for_matches("Resize", ("resize-nearest",), "Resize to nearest values")
def resize_by_gather(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Resize to nearest values becomes Gather with the indices that its attributes mean."""
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


@for_matches("Gather", ("gather-table",), "Gather with a table of indices")
def gather_by_list(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Gather with indices in rows and columns becomes one with a list of them, and Reshape."""
    made_shape = editor.shape(node.output[0])
    if made_shape is None:
        return None
    # With a table QNN takes other elements along the last of three dimensions.
    flat = editor.add_constant(np.array([-1]), "flat")
    first = editor.make("Reshape", [node.input[1], flat], node)
    node.input[1] = first.output[0]
    return [first, node, _reshaped(editor, node, made_shape)]


@for_matches("GatherND", ("gather-nd-slices",), "GatherND of slices")
def gather_flat_slices(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """GatherND of slices that have several dimensions takes them as one."""
    shape, indices, made_shape = (editor.shape(name) for name in (*node.input[:2], node.output[0]))
    if shape is None or indices is None or made_shape is None:
        return None
    # QNN computes an odd number of slices of several dimensions wrong.
    flat = editor.add_constant(np.array([*shape[: indices[-1]], -1]), "flat")
    first = editor.make("Reshape", [node.input[0], flat], node)
    node.input[0] = first.output[0]
    return [first, node, _reshaped(editor, node, made_shape)]


def swap_operands(editor: Editor) -> list[str]:
    """A product or sum whose operands QNN takes well in one order alone gets that order."""

    def swap(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
        node.input[0], node.input[1] = node.input[1], node.input[0]
        return [node]

    def swap_user(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
        # With the tensor in front QNN multiplies by it once more.
        swap(editor, editor.uses(node.output[0])[0], record)
        return [node]

    return [
        *rewrite_matched(editor, "HardSigmoid", ("hard-swish-product",), swap_user, "product with a HardSigmoid"),
        # With the weight in front QNN cannot finalize the graph.
        *rewrite_matched(editor, "Mul", ("rms-weight-first",), swap, "Mul"),
        # Of a constant of five dimensions behind, QNN makes 98304 everywhere.
        *rewrite_matched(editor, "Add", ("add-constant-of-five",), swap, "Add"),
    ]


@for_matches("Cast", ("cast-uint8",), "Cast of uint8")
def cast_bytes_twice(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Cast of uint8 to float goes by int32."""
    # QNN makes 1 of every byte that is not 0.
    first = editor.make("Cast", [node.input[0]], node, to=ElementType.INT32.value)
    node.input[0] = first.output[0]
    return [first, node]


def _reshaped(editor: Editor, node: Any, shape: Sequence[int]) -> Any:
    """The Reshape that gives a node's result its shape back."""
    output = node.output[0]
    node.output[0] = editor.fresh(f"{output}/flat")
    return editor.make("Reshape", [node.output[0], editor.add_constant(np.array(shape), "back")], node, output)


@for_matches("LogSoftmax", ("log-softmax-of-one",), "LogSoftmax of one element")
def zero_instead_of_softmax(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """LogSoftmax along one element is zero."""
    # x - x and no constant: NaN stays NaN, and shape and type follow from the input.
    return [editor.make("Sub", [node.input[0], node.input[0]], node, node.output[0])]


@for_matches("RMSNormalization", ("rms-normalization-4d",), "RMSNormalization")
def normalise_in_three(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """RMSNormalization of four dimensions becomes one of three."""
    shape = editor.shape(node.input[0])
    if shape is None or len(node.output) > 1:
        return None
    # Of four dimensions QNN leaves rows of the second-last at 0.
    flat = editor.add_constant(np.array([shape[0], shape[1] * shape[2], shape[3]]), "flat")
    first = editor.make("Reshape", [node.input[0], flat], node)
    node.input[0] = first.output[0]
    # The axis was counted among four dimensions.
    set_attribute(node, "axis", -1)
    return [first, node, _reshaped(editor, node, shape)]


# --- exponentials ----------------------------------------------------------------------------------------
# Where the result is no normal float any more QNN gives 131008 or -131008. A limit on the argument keeps the
# result: see `LEAST_ARGUMENT`.

# The opset from which the axes of an operator are an input.
_SINCE = {"Max": 8, "ReduceSum": 13, "ReduceMax": 18}


def limit_arguments(editor: Editor) -> list[str]:
    """Exp, Softplus, Mish and Pow of a constant base get a Max or Min in front; ReduceLogSumExp, and LogSoftmax
    of masked values, become their definitions with one inside."""
    plans = (
        (("Exp", "Softplus", "Mish"), ("exp-underflow",), _limit_input),
        (("Pow",), ("pow-underflow",), _limit_exponent),
        (("ReduceLogSumExp",), ("log-sum-exp-underflow",), _log_sum_exp),
        (("LogSoftmax",), ("log-softmax-masked",), _log_softmax),
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


def _may_limit(editor: Editor, name: str) -> bool:
    """Its type is known and one of QNN's, and Max broadcasts."""
    return editor.element(name) in (1, 10) and editor.opset >= _SINCE["Max"]


def _limit_exponent(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """base ** x is exp(x * log(base)): a base above 1 has a least exponent, one below 1 a largest."""
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
    """max + log(sum(exp(x - max)))."""
    if len(node.input) > 1 and node.input[1]:
        given = editor.constant(node.input[1], 8)
        if given is None:
            return None
        axes = [int(axis) for axis in given.reshape(-1)]
    else:
        axes = [int(axis) for axis in record.attributes.get("axes", ())]
    rank = editor.rank(node.input[0])
    if not axes and record.attributes.get("noop_with_empty_axes"):
        return None
    if rank is None or not _may_limit(editor, node.input[0]) or not (axes := axes or list(range(rank))):
        return None
    keep = int(record.attributes.get("keepdims", 1))
    chain = NodeChain(editor, node)
    # Infinity minus infinity would be no number.
    most = 3e38 if editor.element(node.input[0]) == 1 else 65504.0
    finite = chain("Min", chain("Max", chain.x, chain.constant(-most)), chain.constant(most))
    top = _reduced(chain, "ReduceMax", finite, axes, 1)
    total = _reduced(chain, "ReduceSum", chain.exp(chain("Sub", chain.x, top)), axes, keep)
    chain("Add", chain("Log", total), top if keep else _reduced(chain, "ReduceMax", finite, axes, 0))
    return chain.nodes()


def _log_softmax(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """(x - max) - log(sum(exp(x - max))). Before opset 13 it takes all dimensions from its axis on as one."""
    if editor.opset < _SINCE["ReduceSum"] or not _may_limit(editor, node.input[0]):
        return None
    axes = [int(record.attributes.get("axis", -1))]
    chain = NodeChain(editor, node)
    below = chain("Sub", chain.x, _reduced(chain, "ReduceMax", chain.x, axes, 1))
    # The sum is at least 1, that of the largest value itself, so Log never sees a zero.
    chain("Sub", below, chain("Log", _reduced(chain, "ReduceSum", chain.exp(below), axes, 1)))
    return chain.nodes()


def _reduced(chain: NodeChain, op: str, value: str, axes: list[int], keep: int) -> str:
    if chain.editor.opset < _SINCE[op]:
        return chain(op, value, axes=axes, keepdims=keep)
    listed = chain.editor.add_constant(np.array(axes, np.int64), f"{chain.node.output[0]}/axes")
    return chain(op, value, listed, keepdims=keep)
