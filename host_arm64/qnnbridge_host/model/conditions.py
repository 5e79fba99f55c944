"""Conditions of the known-wrong table: expressions over the attributes, shapes and constants of a node.

An expression may use these names:

- the attributes of the node, `node_name` and `output`, the name of its first result;
- `users`, the operators that read the result, and `beside`, the names of the inputs of these operators;
- for convolutions and poolings `sizes`, `kernel`, `strides`, `dilations`, `before` and `after` (the padding,
  computed if the node sets auto_pad); for poolings `made`, the sizes of the result; for reductions `reduced`, their
  axes.

It may call these functions with the index of an input:

- `shape(0)`, `values(1)`, `type(0)`, `name(0)`; `maker(0)`, the operator that computes the input; `given(2)` and
  `constant(1)`, whether the input is present and whether it is a constant;
- `quantised(0)`, `scales(0)` and `scale_count(1)`, the stored type and the scales of a quantised input;
- `least(0)` and `most(0)`, the limits of the Max, Min or Clip that computes the input;
- `fed(1)`, the type of the model input that has the same values as the input, "" if there is none;
- `way(1, 0)`, the operator that computes input 1 and the operator that computes input 0 of that operator.

`merged_gelu()` and others describe how QNN merges nodes (`qnnbridge_host.model.merged`). Python evaluates an
expression after a check that it contains only arithmetic, comparisons, calls of these functions and comprehensions,
so that the table cannot run code. All functions are pure and thread-safe.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Final

from qnnbridge_host.model.graph_index import (
    DOES_NOT_FOLLOW,
    GraphIndex,
    GraphNode,
    GraphTensor,
    Unknown,
    sizes_of,
)
from qnnbridge_host.model.merged import (
    cancels_casts,
    fails_with_wide_integers,
    gelu_of,
    joins_edges,
    l2_offset,
    loses_reshapes,
    may_be_negative,
    parts_transposes,
    repeats_rows,
    softmax_factor,
    transposes_int64_output,
)
from qnnbridge_host.model.quantised_steps import scale_count, scales_of, stored_type
from qnnbridge_host.model.static_shapes import in_float32, scaled_sizes, slid_sizes, window_of

_POOLS: Final = frozenset({"AveragePool", "MaxPool", "LpPool"})
_WINDOWS: Final = _POOLS | {"Conv", "ConvTranspose"}
_WEIGHTED: Final = ("Conv", "ConvTranspose")
# If a dimension of a Resize's result exceeds this limit, a condition on the Resize is unknown. Images are smaller,
# but a malicious model may declare any size.
_MOST_PLACES: Final = 2**14


def all_true(expressions: Sequence[str], node: GraphNode, graph: GraphIndex) -> bool:
    """Return whether every expression is true for a node. An unknown fact makes an expression false."""
    names = _Facts(node, graph)
    try:
        return all(eval(_parsed(text), names) for text in expressions)  # noqa: S307 - `_parsed` refuses unsafe code
    except (NameError, *DOES_NOT_FOLLOW):
        return False


class _Facts(dict[str, Any]):
    """Names that an expression may use. Their values are computed on access."""

    # `eval` looks up a name in this dict and then among the built-in functions. Comprehensions look up names only
    # in the globals, so `eval` gets this dict as globals: Python calls `__missing__` for globals, too.
    def __init__(self, node: GraphNode, graph: GraphIndex) -> None:
        super().__init__(__builtins__=_PLAIN)
        self._node = node
        self._graph = graph

    def __missing__(self, name: str) -> Any:
        node = self._node
        if name in node.attributes:
            return node.attributes[name]
        if name in _OF_NODE:
            return _OF_NODE[name](self._graph, node)
        if name in _OF_INPUT:
            return functools.partial(_OF_INPUT[name], self._graph, node)
        if node.op in _WINDOWS and name in ("sizes", "kernel", "strides", "dilations", "before", "after"):
            return self._window[name]
        if node.op in _POOLS and name == "made":
            return slid_sizes([_input(node, 0)], node.attributes)
        # The node does not have the attribute, so use ONNX's default.
        return _DEFAULTS[node.op, name]

    # Cached, because a condition usually reads several of these values.
    @functools.cached_property
    def _window(self) -> Mapping[str, list[int]]:
        return window_of_node(self._node)


def _input(node: GraphNode, number: int) -> GraphTensor:
    found = node.inputs[number] if number < len(node.inputs) else None
    if found is None:
        raise Unknown
    return found


def _values(node: GraphNode, number: int) -> tuple[Any, ...]:
    values = _input(node, number).values
    if values is None:
        raise Unknown
    return values


def maker_of(tensor: GraphTensor, graph: GraphIndex) -> str:
    """Return the operator that computes a tensor, "" for an input or a constant."""
    maker = None if tensor.constant else graph.origin(tensor.name)
    return "" if maker is None else maker.op


# Operators that change at most the shape: their results have the same values as their inputs.
_ONLY_SHAPES: Final = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
# Values of a Cast's attribute `to` for int32 and int64.
_WHOLE: Final = (6, 7)
# Maximum number of nodes to follow, because a damaged model may contain cycles.
_MOST_BETWEEN: Final = 64


def _fed(graph: GraphIndex, node: GraphNode, number: int) -> str:
    """Return the type of the model input that has the same values as a node's input; "" if there is none.

    Casts between int32 and int64 are ignored: QNN computes both in 32 bits.
    """
    tensor = _input(node, number)
    for _ in range(_MOST_BETWEEN):
        maker = None if tensor.constant else graph.origin(tensor.name)
        if maker is None:
            return "" if tensor.constant else tensor.type
        if maker.op not in _ONLY_SHAPES and not (maker.op == "Cast" and maker.attributes.get("to") in _WHOLE):
            return ""
        tensor = _input(maker, 0)
    raise Unknown


def _least(graph: GraphIndex, node: GraphNode, number: int) -> float:
    """Return the lower bound that a constant Max or Clip sets for an input."""
    found = _limits(graph, node, number, "Max", "min", 1)
    # The smallest value of a constant is the bound for all elements. If there are several bounds, the largest
    # applies.
    return max(map(min, found), default=-math.inf)


def _most(graph: GraphIndex, node: GraphNode, number: int) -> float:
    """Return the upper bound that a constant Min or Clip sets for an input."""
    found = _limits(graph, node, number, "Min", "max", 2)
    return min(map(max, found), default=math.inf)


def _limits(
    graph: GraphIndex, node: GraphNode, number: int, op: str, of_clip: str, place: int
) -> list[tuple[float, ...]]:
    maker = graph.origin(_input(node, number).name)
    if maker is None or maker.op not in (op, "Clip"):
        return []
    # The constant of a Max or Min may be any input; a Clip has its minimum second and its maximum third.
    given = maker.inputs if maker.op == op else maker.inputs[place : place + 1]
    found = [one.values for one in given if one is not None and one.constant and one.values]
    # Before opset 11 the limits of a Clip are attributes.
    if maker.op == "Clip" and of_clip in maker.attributes:
        found.append((float(maker.attributes[of_clip]),))
    return found


def _way(graph: GraphIndex, node: GraphNode, *numbers: int) -> list[str]:
    found: list[str] = []
    for number in numbers:
        tensor = node.input(number)
        maker = graph.origin(tensor.name) if tensor is not None else None
        if maker is None:
            break  # the tensor is an input of the model or a constant
        node = maker
        found.append(node.op)
    return found


def _users(graph: GraphIndex, node: GraphNode) -> tuple[GraphNode, ...]:
    """Return the readers of a node's result. Raise `Unknown` if a damaged model computes it several times."""
    result = node.outputs[0]
    if result is None or graph.makers[result.name] != node.index:
        raise Unknown
    return graph.readers(result.name)


def window_of_node(node: GraphNode) -> dict[str, list[int]]:
    """Return the sizes, kernel, strides, dilations and padding of a convolution or pooling (see `window_of`). Raise
    `Unknown` if a size is not known."""
    weights = node.inputs[1] if node.op in _WEIGHTED else None
    return window_of(sizes_of(_input(node, 0))[2:], node.attributes, weights)


def reduced_axes(node: GraphNode) -> list[int]:
    """Return the dimensions that a reduction reduces. Raise `Unknown` if the axes are computed."""
    rank = len(sizes_of(_input(node, 0)))
    if "axes" in node.attributes:
        axes = list(node.attributes["axes"])
    else:
        axes = [int(axis) for axis in _values(node, 1)] if node.input(1) is not None else []
    if not axes:
        return [] if node.attributes.get("noop_with_empty_axes") else list(range(rank))
    return sorted(axis % rank for axis in axes)


def nearest_places(node: GraphNode) -> list[tuple[list[int], list[int]]]:
    """Return for each dimension of a nearest Resize the source index of every result index: first by ONNX's
    definition, then as QNN computes it.

    QNN rounds half up, and for asymmetric coordinates rounds down; it computes pytorch_half_pixel as asymmetric.

    Raises:
        Unknown: a size is not known. A malformed node may raise any exception in `DOES_NOT_FOLLOW`.
    """
    attributes, shape = node.attributes, sizes_of(_input(node, 0))
    coordinate = attributes.get("coordinate_transformation_mode", "half_pixel")
    rounding = attributes.get("nearest_mode", "round_prefer_floor")
    if coordinate not in _COORDINATES:
        raise Unknown
    axes = [axis % len(shape) for axis in attributes.get("axes", range(len(shape)))]
    scales = [1.0] * len(shape)
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        made = list(shape)
        wanted = dict(zip(axes, map(int, _values(node, 3)), strict=True))
        policy = attributes.get("keep_aspect_ratio_policy", "stretch")
        ratios = [in_float32(out / shape[axis]) for axis, out in wanted.items()]
        ratio = None if policy == "stretch" else (min if policy == "not_larger" else max)(ratios)
        for axis, out in wanted.items():
            made[axis] = out if ratio is None else math.floor(ratio * shape[axis] + 0.5)
            scales[axis] = in_float32(out / shape[axis]) if ratio is None else ratio
    else:
        for axis, scale in zip(axes, _values(node, 2), strict=True):
            scales[axis] = float(scale)
        made = list(scaled_sizes(shape, scales))
    if max(made, default=0) > _MOST_PLACES:
        raise Unknown
    # If no size changes, ONNX Runtime's Resize copies its input and ignores the scales.
    if made == list(shape):
        return [(list(range(size)), list(range(size))) for size in shape[2:]]
    found = []
    for size, out, scale in zip(shape[2:], made[2:], scales[2:], strict=True):
        ours = [_ROUNDING[rounding](_coordinate(coordinate, place, scale, size, out)) for place in range(out)]
        # QNN receives the sizes only, so its scale is their quotient, not the model's scale.
        theirs = [_as_qnn(coordinate, place, out / size, size, out) for place in range(out)]
        found.append(([min(max(one, 0), size - 1) for one in ours], [min(max(one, 0), size - 1) for one in theirs]))
    return found


def _coordinate(mode: str, place: int, scale: float, size: int, out: int) -> float:
    # Round to float32 like ONNX Runtime: a coordinate slightly below an integer becomes this integer.
    if mode == "asymmetric":
        return in_float32(place / scale)
    if mode == "align_corners":
        return in_float32(place * (size - 1) / (out - 1)) if out > 1 else 0.0
    if mode == "pytorch_half_pixel" and out == 1:
        return 0.0
    return in_float32(in_float32((place + 0.5) / scale) - 0.5)


def _as_qnn(mode: str, place: int, scale: float, size: int, out: int) -> int:
    if mode in ("asymmetric", "pytorch_half_pixel"):
        return math.floor(in_float32(place / scale))
    return math.floor(_coordinate(mode, place, scale, size, out) + 0.5)


_COORDINATES: Final = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_ROUNDING: Final[Mapping[str, Callable[[float], int]]] = {
    # Python's `round` would round a half to the even neighbour.
    "round_prefer_floor": lambda place: math.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: math.floor(place + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}
# Functions of a condition whose argument is the index of an input.
_OF_INPUT: Final[Mapping[str, Callable[..., Any]]] = {
    # `shape` requires that all sizes are known; `values` requires a small constant.
    "shape": lambda _, node, number: sizes_of(_input(node, number)),
    "values": lambda _, node, number: _values(node, number),
    "type": lambda _, node, number: _input(node, number).type,
    "constant": lambda _, node, number: _input(node, number).constant,
    "name": lambda _, node, number: _input(node, number).name,
    "given": lambda _, node, number: (
        number < len(node.inputs) and bool(node.inputs[number] and node.inputs[number].name)
    ),
    "maker": lambda graph, node, number: maker_of(_input(node, number), graph),
    "way": _way,
    "fed": _fed,
    "least": _least,
    "most": _most,
    # For a quantised input: the integer type, the scales, the number of scales.
    "quantised": stored_type,
    "scales": scales_of,
    "scale_count": scale_count,
    # Functions without an argument: whether QNN computes a nearest Resize differently from ONNX, and whether QNN
    # merges operators wrongly (`qnnbridge_host.model.merged`).
    "nearest_differs": lambda _, node: any(ours != theirs for ours, theirs in nearest_places(node)),
    "merged_gelu": gelu_of,
    "merged_factor": softmax_factor,
    "merged_offset": l2_offset,
    "loses_reshapes": loses_reshapes,
    "joins_edges": joins_edges,
    "cancels_casts": cancels_casts,
    "may_be_negative": may_be_negative,
    "repeats_rows": repeats_rows,
    "parts_transposes": parts_transposes,
    "transposes_int64_output": transposes_int64_output,
    "fails_with_wide_integers": fails_with_wide_integers,
}
_OF_NODE: Final[Mapping[str, Callable[[GraphIndex, GraphNode], Any]]] = {
    "users": lambda graph, node: [user.op for user in _users(graph, node)],
    "beside": lambda graph, node: [
        [tensor.name if tensor else "" for tensor in user.inputs] for user in _users(graph, node)
    ],
    "output": lambda _, node: node.made[0].name,
    "node_name": lambda _, node: node.name,
    # Dimensions that a reduction reduces.
    "reduced": lambda _, node: reduced_axes(node),
}
_PLAIN: Final[Mapping[str, Any]] = {
    "len": len,
    "min": min,
    "max": max,
    "sum": sum,
    "prod": math.prod,
    # Evaluate every item, although Python would stop early, because one unknown item makes the result unknown.
    "any": lambda found: any([*found]),
    "all": lambda found: all([*found]),
    "zip": zip,
    "range": range,
    "abs": abs,
    "int": int,
}
_DEFAULTS: Final[Mapping[tuple[str, str], Any]] = {
    **{(op, name): value for op in ("AveragePool", "MaxPool", "LpPool") for name, value in (("ceil_mode", 0),)},
    ("AveragePool", "count_include_pad"): 0,
    **{(op, "group"): 1 for op in _WEIGHTED},
    ("ConvTranspose", "auto_pad"): "NOTSET",
    ("ConvTranspose", "output_padding"): [],
    ("ConvTranspose", "output_shape"): [],
    ("GatherND", "batch_dims"): 0,
    ("HardSigmoid", "alpha"): 0.2,
    ("HardSigmoid", "beta"): 0.5,
    ("Pad", "mode"): "constant",
    ("Resize", "mode"): "nearest",
    ("Resize", "coordinate_transformation_mode"): "half_pixel",
    ("Resize", "nearest_mode"): "round_prefer_floor",
    **{(op, "axis"): 0 for op in ("ArgMin", "Gather", "GatherElements", "ScatterElements")},
    **{(op, "axis"): -1 for op in ("Softmax", "LogSoftmax", "RMSNormalization", "LayerNormalization", "OneHot")},
    # Default since opset 20; opset 16 calls the same mode bilinear.
    ("GridSample", "mode"): "linear",
    ("GridSample", "padding_mode"): "zeros",
    ("GridSample", "align_corners"): 0,
}
# Attribute access and function definitions are refused: with them an expression could reach all of Python.
_ALLOWED: Final = (
    *(ast.Expression, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.Constant, ast.Name),
    *(ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.GeneratorExp, ast.comprehension),
    *(ast.boolop, ast.unaryop, ast.operator, ast.cmpop, ast.expr_context),
)


# Cache the parsed expressions: the table has dozens of conditions, and each is evaluated for every node of its
# operators.
@functools.cache
def _parsed(text: str) -> CodeType:
    tree = ast.parse(text, mode="eval")
    if not all(isinstance(node, _ALLOWED) for node in ast.walk(tree)):
        raise ValueError(f"{text!r} is not a valid condition")
    return compile(tree, "known_wrong.json", "eval")
