"""Fold more dimensions than QNN supports (five, for many operators four) into fewer.

An operator that treats neighbouring axes alike gives the same result if they are merged into one axis. So a Reshape
before such an operator merges axes, and a Reshape after it restores them. Consecutive Reshapes are merged, and at
most five dimensions remain between them. The first functions decide which axes can be merged; the others create the
nodes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model import operator_tables as tables
from qnnbridge_host.model.double_edges import is_conversion
from qnnbridge_host.rewrite.quantised_reshapes import quantise_reshapes
from qnnbridge_host.rewrite.rewriting import NodeChain

ELEMENTWISE = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu"),
        *("Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual"),
        *("Log", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round"),
        *("Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Sub", "Sum", "Tan", "Tanh", "Where", "Xor"),
        *("ThresholdedRelu", "Softsign", "Celu", "Mish", "Swish"),
    }
)
REDUCING = frozenset(
    {"ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"}
)
# Default of the special axis, by operator, for operators that treat one axis differently from the others.
ONE_AXIS: dict[str, int | None] = {"Softmax": -1, "LogSoftmax": -1, "LpNormalization": -1, "Concat": None}


def groups_alike(shapes: Sequence[Sequence[int]], result: Sequence[int]) -> list[list[int]] | None:
    """Return groups of neighbouring axes that can be merged in a broadcast.

    In a group, each shape is broadcast along all axes (its sizes are 1), or along none (its sizes are those of
    `result`). Return ``None`` if the shapes do not broadcast to `result`.
    """
    rank = len(result)
    kinds: list[tuple[bool, ...] | None] = []
    for axis in range(rank):
        kind = []
        for shape in shapes:
            # Broadcasting aligns the last axes.
            at = axis - (rank - len(shape))
            size = shape[at] if at >= 0 else 1
            if size not in (1, result[axis]):
                return None
            kind.append(size == 1)
        # An axis of size 1 can be merged with any neighbour.
        kinds.append(None if result[axis] == 1 else tuple(kind))
    return _joined(kinds)


def _joined(kinds: Sequence[tuple[bool, ...] | None]) -> list[list[int]]:
    groups: list[list[int]] = []
    current: tuple[bool, ...] | None = None
    for axis, kind in enumerate(kinds):
        if groups and (kind is None or current is None or kind == current):
            groups[-1].append(axis)
            current = current if kind is None else kind
        else:
            groups.append([axis])
            current = kind
    return groups


def folded_shape(shape: Sequence[int], groups: Sequence[Sequence[int]], rank: int) -> list[int]:
    """Return the shape with each group of axes merged.

    rank: the rank to which the axes in `groups` refer; a shorter `shape` is padded with ones.
    """
    whole = [1] * (rank - len(shape)) + list(shape)
    return [_size(whole, group) for group in groups]


def transposes(shape: Sequence[int], perm: Sequence[int], most: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield reshapes and transposes of few dimensions that together compute a given Transpose.

    Axes of size 1 are dropped, and axes that remain neighbours are merged. If that is not enough, several
    transposes swap two neighbouring blocks each, which needs four dimensions.

    Args:
        shape: shape of the input.
        perm: the permutation of the Transpose.
        most: maximum number of dimensions, at least four.

    Yields:
        The sizes for a Reshape, and the permutation for the Transpose after it.
    """
    order = [axis for axis in perm if shape[axis] != 1]
    runs: list[list[int]] = []
    for axis in order:
        between = range(runs[-1][-1] + 1, axis) if runs and axis > runs[-1][-1] else None
        if between is not None and all(shape[other] == 1 for other in between):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    start = sorted(runs)
    sizes = [_size(shape, run) for run in start]
    wanted = [start.index(run) for run in runs]
    if len(wanted) <= most:
        yield (sizes or [1]), (wanted or [0])
        return
    # A selection sort of blocks: each step moves one block to its position, past the blocks in between. This needs
    # four dimensions: the blocks in position, the passed blocks, the moved block, and the rest.
    now = list(range(len(sizes)))
    for at, block in enumerate(wanted):
        there = now.index(block)
        if there == at:
            continue
        cuts = [now[:at], now[at:there], now[there : there + 1], now[there + 1 :]]
        yield [_size(sizes, cut) for cut in cuts], [0, 2, 1, 3]
        now = [*cuts[0], *cuts[2], *cuts[1], *cuts[3]]


def _size(sizes: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(sizes[axis] for axis in axes)


MOST_OF_MATMUL = 4
# These operators treat all axes after the channel axis alike.
_NORMALISING: Final = ("LayerNormalization", "RMSNormalization")
_OF_CHANNELS: Final = ("BatchNormalization", "GlobalMaxPool", "InstanceNormalization")
# The first opsets in which the axes are an input: for ReduceSum, and for the other reductions.
_AXES_ARE_AN_INPUT, _AXES_ARE_AN_INPUT_EVERYWHERE = 13, 18
_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def fold_dimensions(editor: Editor) -> list[str]:
    """Fold the dimensions of operators that have more than QNN supports; return descriptions of the changes."""
    counted: Counter[str] = Counter()

    def change(node: Any) -> list[Any] | None:
        # Keep conversions of doubles on the CPU: with fewer dimensions QNN would accept them and then fail.
        if is_conversion(node.name):
            return None
        tensors = [name for name in (*node.input, *node.output) if name]
        if node.domain not in graphs.ONNX_DOMAINS or not (
            any((editor.rank(name) or 0) > _most_of(node) for name in tensors) or _normalised(editor, node) > 1
        ):
            return None
        fold = _FOLDS.get(node.op_type)
        made = None if fold is None else fold(editor, node)
        if made is not None:
            counted[node.op_type] += 1
        return made

    editor.map_nodes(change)
    if counted:
        editor.changed(shapes=True)
        _merge_reshapes(editor)
        editor.drop_dead()
        quantise_reshapes(editor)
    return [f"{count} {op}" for op, count in counted.items()]


def _most_of(node: Any) -> int:
    """Return the largest number of dimensions that QNN supports for an operator."""
    if node.op_type == "MatMul":
        return MOST_OF_MATMUL
    most = tables.MOST_DIMENSIONS_OF.get(node.op_type, tables.MOST_DIMENSIONS)
    return min(most, tables.FAILS_BEYOND.get(node.op_type, most))


def _reshape(editor: Editor, name: str, shape: Sequence[int], node: Any, made: list[Any], output: str = "") -> str:
    value = None if output else editor.constant(name)
    # Reshape the constant itself, so that no node is added.
    if value is not None:
        return editor.add_constant(value.reshape(shape), f"{name}/folded")
    sizes = editor.add_constant(np.asarray(shape, np.int64), f"{name}/shape")
    made.append(editor.make("Reshape", [name, sizes], node, output or None))
    return str(made[-1].output[0])


def _around(
    editor: Editor,
    node: Any,
    result: Sequence[int],
    fold: Callable[[Sequence[int]], Sequence[int] | None],
    **attributes: Any,
) -> list[Any]:
    """Return the operator with folded inputs, the Reshapes before it, and the Reshape that restores its result.

    Args:
        editor: the model.
        node: the operator.
        result: shape of the result.
        fold: function that returns the folded shape for the shape of an input; ``None`` to keep the input. Omitted
            inputs and scalars are always kept.
        attributes: attributes of the new operator.
    """
    made: list[Any] = []
    inputs = []
    for name in node.input:
        shape = editor.shape(name) if name else None
        sizes = fold(shape) if shape else None
        inputs.append(name if sizes is None else _reshape(editor, name, sizes, node, made))
    made.append(editor.make(node.op_type, inputs, node, **attributes))
    _reshape(editor, made[-1].output[0], result, node, made, node.output[0])
    return made


def _transpose(editor: Editor, node: Any) -> list[Any] | None:
    shape = editor.shape(node.input[0])
    if shape is None:
        return None
    # Without perm ONNX reverses the axes.
    perm = graphs.attribute_values(node).get("perm", list(range(len(shape)))[::-1])
    made: list[Any] = []
    value = node.input[0]
    for sizes, order in transposes(shape, perm, _most_of(node)):
        value = _reshape(editor, value, sizes, node, made)
        made.append(editor.make("Transpose", [value], node, perm=order))
        value = made[-1].output[0]
    _reshape(editor, value, [shape[axis] for axis in perm], node, made, node.output[0])
    return made


def _matmul(editor: Editor, node: Any) -> list[Any] | None:
    shapes = [editor.shape(name) for name in node.input]
    result = editor.shape(node.output[0])
    if result is None or any(shape is None or len(shape) < 2 for shape in shapes):
        return None
    batches = [shape[:-2] for shape in shapes if shape is not None]
    groups = groups_alike(batches, result[:-2])
    # Two of QNN's four dimensions are the matrix itself.
    if groups is None or len(groups) > MOST_OF_MATMUL - 2:
        return None
    # Keep an operand of two dimensions as it is: MatMul broadcasts it over all batches.
    return _around(
        editor,
        node,
        result,
        lambda shape: [*folded_shape(shape[:-2], groups, len(result) - 2), *shape[-2:]] if len(shape) > 2 else None,
    )


def _elementwise(editor: Editor, node: Any) -> list[Any] | None:
    result = editor.shape(node.output[0])
    shapes = [editor.shape(name) for name in node.input if name]
    if result is None or len(node.output) > 1 or any(shape is None for shape in shapes):
        return None
    groups = groups_alike([shape for shape in shapes if shape is not None], result)
    if groups is None or len(groups) > _most_of(node):
        return None
    # One dimension between two transposes crashes ONNX Runtime (see the rewrite "vector-reshape").
    if len(groups) == 1 and len(groups[0]) > 1:
        groups = [groups[0][:-1], groups[0][-1:]]
    made = _around(editor, node, result, lambda shape: folded_shape(shape, groups, len(result)))
    # Keep all attributes, because an elementwise operator has no attributes that refer to axes.
    made[-2].attribute.extend(node.attribute)
    return made


def _reduce(editor: Editor, node: Any) -> list[Any] | None:
    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or result is None:
        return None
    axes: list[int] | None = graphs.attribute_values(node).get("axes")
    if len(node.input) > 1 and node.input[1]:
        value = editor.constant(node.input[1])
        axes = None if value is None else [int(axis) for axis in value.reshape(-1)]
        if axes is None:
            return None
    if not axes and graphs.attribute_values(node).get("noop_with_empty_axes"):
        return None  # this node reduces no axis
    reduced = {axis % len(shape) for axis in axes} if axes else set(range(len(shape)))
    groups = [list(group) for _, group in itertools.groupby(range(len(shape)), reduced.__contains__)]
    if len(groups) > _most_of(node):
        return None
    made: list[Any] = []
    value_name = _reshape(editor, node.input[0], folded_shape(shape, groups, len(shape)), node, made)
    folded = [number for number, group in enumerate(groups) if group[0] in reduced]
    inputs = [value_name]
    # If keepdims is 0, the last Reshape drops the axes.
    one = editor.make(node.op_type, inputs, node, keepdims=1)
    if editor.opset < (_AXES_ARE_AN_INPUT if node.op_type == "ReduceSum" else _AXES_ARE_AN_INPUT_EVERYWHERE):
        from onnx import helper

        one.attribute.append(helper.make_attribute("axes", folded))
    else:
        one.input.append(editor.add_constant(np.asarray(folded, np.int64), f"{node.output[0]}/axes"))
    made.append(one)
    _reshape(editor, one.output[0], result, node, made, node.output[0])
    return made


def _one_axis(editor: Editor, node: Any) -> list[Any] | None:
    """Fold the axes before and after the special axis of Softmax, Concat and similar operators."""
    result = editor.shape(node.output[0])
    shapes = [editor.shape(name) for name in node.input]
    default = ONE_AXIS[node.op_type]
    axis = graphs.attribute_values(node).get("axis", default)
    if result is None or axis is None or any(shape is None for shape in shapes):
        return None
    # Before opset 13 Softmax merges all axes from its axis on.
    if editor.opset < 13 and node.op_type != "Concat":
        return None
    axis %= len(result)
    # For the first or last axis one group is empty and gets size 1, so the special axis is always the second.
    groups = [list(range(axis)), [axis], list(range(axis + 1, len(result)))]
    return _around(editor, node, result, lambda shape: folded_shape(shape, groups, len(result)), axis=1)


def _gather(editor: Editor, node: Any) -> list[Any] | None:
    """Fold Gather to three dimensions: those before the axis, the axis, and those after it.

    QNN supports a Gather of six dimensions only before Transpose and Reshape, and `_transpose` folds the Transpose.
    """
    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    places = editor.shape(node.input[1])
    if shape is None or result is None or places is None:
        return None
    axis = graphs.attribute_values(node).get("axis", 0) % len(shape)
    made: list[Any] = []
    sizes = [math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])]
    value = _reshape(editor, node.input[0], sizes, node, made)
    indices = _reshape(editor, node.input[1], [math.prod(places)], node, made)
    made.append(editor.make("Gather", [value, indices], node, axis=1))
    _reshape(editor, made[-1].output[0], result, node, made, node.output[0])
    return made


def _slice(editor: Editor, node: Any) -> list[Any] | None:
    """Fold the axes that a Slice does not change."""
    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or result is None or len(node.input) < 3:
        return None  # the limits are attributes before opset 10
    starts, axes = editor.constant(node.input[1]), None
    if len(node.input) > 3 and node.input[3]:
        axes = editor.constant(node.input[3])
    elif starts is not None:
        axes = np.arange(starts.size)
    if axes is None:
        return None
    cut = [int(axis) % len(shape) for axis in axes.reshape(-1)]
    kinds = [(cut.index(axis),) if axis in cut else () for axis in range(len(shape))]
    groups = [list(group) for _, group in itertools.groupby(range(len(shape)), kinds.__getitem__)]
    if len(groups) > _most_of(node):
        return None
    made: list[Any] = []
    value = _reshape(editor, node.input[0], folded_shape(shape, groups, len(shape)), node, made)
    numbers = np.array([groups.index([axis]) for axis in cut], np.int64)
    inputs = [value, *node.input[1:3], editor.add_constant(numbers, f"{node.output[0]}/axes"), *node.input[4:]]
    made.append(editor.make("Slice", inputs, node))
    _reshape(editor, made[-1].output[0], result, node, made, node.output[0])
    return made


def _split(editor: Editor, node: Any) -> list[Any] | None:
    shape, results = editor.shape(node.input[0]), [editor.shape(name) for name in node.output]
    if shape is None or any(result is None for result in results):
        return None
    axis = graphs.attribute_values(node).get("axis", 0) % len(shape)
    groups = [list(range(axis)), [axis], list(range(axis + 1, len(shape)))]
    made: list[Any] = []
    value = _reshape(editor, node.input[0], folded_shape(shape, groups, len(shape)), node, made)
    names = list(node.output)
    one = editor.make("Split", [value, *node.input[1:]], node, axis=1)
    one.attribute.extend(attribute for attribute in node.attribute if attribute.name != "axis")
    del one.output[:]
    one.output.extend(editor.fresh(f"{name}/folded") for name in names)
    made.append(one)
    for folded, name, result in zip(list(one.output), names, results, strict=True):
        _reshape(editor, folded, result or (), node, made, name)
    return made


def _cumulated(editor: Editor, node: Any) -> list[Any] | None:
    shape, axis = editor.shape(node.input[0]), editor.constant(node.input[1], 1)
    if shape is None or axis is None:
        return None
    at = int(axis.reshape(())) % len(shape)
    groups = [list(range(at)), [at], list(range(at + 1, len(shape)))]
    made: list[Any] = []
    value = _reshape(editor, node.input[0], folded_shape(shape, groups, len(shape)), node, made)
    made.append(editor.make("CumSum", [value, editor.add_constant(np.array(1, axis.dtype), "axis")], node))
    made[-1].attribute.extend(node.attribute)
    _reshape(editor, made[-1].output[0], shape, node, made, node.output[0])
    return made


def _normalised(editor: Editor, node: Any) -> int:
    """Return the number of axes that a LayerNormalization or RMSNormalization normalises; 0 for other operators."""
    rank = editor.rank(node.input[0]) if node.op_type in _NORMALISING else None
    if rank is None or node.domain not in graphs.ONNX_DOMAINS:
        return 0
    axis: int = graphs.attribute_values(node).get("axis", -1)
    return -axis if axis < 0 else rank - axis


def _normalization(editor: Editor, node: Any) -> list[Any] | None:
    """Merge the axes before the normalised axes into one axis, and the normalised axes into another axis."""
    shape, many = editor.shape(node.input[0]), _normalised(editor, node)
    if shape is None or not 0 < many < len(shape) or any(node.output[1:]):
        return None
    normalised = shape[-many:]
    inputs = [editor.shape(name) for name in node.input[1:] if name]
    # If several axes are merged, scale and bias must have the full shape of these axes. Along a single axis, they
    # may be broadcast.
    if any(one != normalised and many > 1 for one in inputs):
        return None
    made: list[Any] = []
    sizes = [math.prod(shape[:-many]), math.prod(normalised)]
    value = _reshape(editor, node.input[0], sizes, node, made)
    others = [
        _reshape(editor, name, sizes[1:], node, made) if name and many > 1 else name for name in node.input[1:]
    ]
    one = editor.make(node.op_type, [value, *others], node)
    one.attribute.extend(attribute for attribute in node.attribute if attribute.name != "axis")
    made.append(one)
    _reshape(editor, one.output[0], shape, node, made, node.output[0])
    return made


def _channels(editor: Editor, node: Any) -> list[Any] | None:
    """Merge the axes after the channel axis, which the operators in `_OF_CHANNELS` treat alike."""
    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or result is None or any(node.output[1:]):
        return None
    made: list[Any] = []
    value = _reshape(editor, node.input[0], [*shape[:2], math.prod(shape[2:])], node, made)
    made.append(editor.make(node.op_type, [value, *node.input[1:]], node))
    made[-1].attribute.extend(node.attribute)
    _reshape(editor, made[-1].output[0], result, node, made, node.output[0])
    return made


_OF_WINDOWS: Final = ("kernel_shape", "strides", "dilations")
_IN_SPACE = 5


def _max_pool(editor: Editor, node: Any) -> list[Any] | None:
    """Replace MaxPool over three dimensions, which QNN lacks, by MaxPools over the last two and over the first."""
    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or result is None or len(shape) != _IN_SPACE or any(node.output[1:]):
        return None
    given = graphs.attribute_values(node)
    windows = {name: given[name] for name in _OF_WINDOWS if name in given}
    pads = given.get("pads", [0] * 6)
    same: dict[str, Any] = {name: given[name] for name in ("auto_pad", "ceil_mode") if name in given}
    if same.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None  # each new MaxPool has a kernel size of 1, whose SAME padding depends on the opset
    batch, channels, depth, height, width = shape
    flat = {name: value[1:] for name, value in windows.items()}
    deep = {name: [value[0], 1] for name, value in windows.items()}
    chain = NodeChain(editor, node)

    def sizes(*wanted: int) -> str:
        return editor.add_constant(np.array(wanted, np.int64), "sizes")

    value = chain("Reshape", node.input[0], sizes(batch, channels * depth, height, width))
    value = chain("MaxPool", value, pads=[pads[1], pads[2], pads[4], pads[5]], **flat, **same)
    value = chain("Reshape", value, sizes(batch, channels, depth, math.prod(result[-2:])))
    value = chain("MaxPool", value, pads=[pads[0], 0, pads[3], 0], **deep, **same)
    chain("Reshape", value, sizes(*result))
    return chain.nodes()


_FOLDS: Final[Mapping[str, Callable[[Editor, Any], list[Any] | None]]] = {
    "Gather": _gather,
    "Transpose": _transpose,
    "MatMul": _matmul,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCING, _reduce),
    **dict.fromkeys(ONE_AXIS, _one_axis),
    **dict.fromkeys(_NORMALISING, _normalization),
    **dict.fromkeys(_OF_CHANNELS, _channels),
    "CumSum": _cumulated,
    "MaxPool": _max_pool,
    "Slice": _slice,
    "Split": _split,
}

# Operators whose dimensions are folded, and Reshape operators, which are merged if they follow each other.
FOLDED: Final = frozenset({*_FOLDS, *_RESHAPES})


def _merge_reshapes(editor: Editor) -> None:
    """Connect a Reshape of a reshaped tensor to the tensor before the first Reshape."""
    merged = True
    while merged:
        merged = False
        for node in editor.graph.node:
            if node.op_type not in _RESHAPES or node.domain not in graphs.ONNX_DOMAINS:
                continue
            maker, shape = editor.maker_of(node.input[0], *_RESHAPES), editor.shape(node.output[0])
            # In a Reshape a size of 0 copies the size of the input.
            if maker is None or shape is None or 0 in shape:
                continue
            name, output = maker.input[0], node.output[0]
            sizes = editor.add_constant(np.asarray(shape, np.int64), f"{output}/shape")
            del node.input[:], node.attribute[:]
            node.op_type = "Reshape"
            node.input.extend([name, sizes])
            merged = True
        editor.changed()
