"""Conditions of the table of known-wrong operators: expressions over attributes, shapes and constants of a node.

Names are the node's attributes, and for windows `sizes`, `kernel`, `strides`, `dilations`, `before` and `after`:
the pads, also those of auto_pad; of poolings `made`: the sizes of the result. `users` are the operators
that take the result, `beside` the inputs of each, `output` is the result's name, `node_name` the node's own.
Functions take the number of an input: `shape(0)`, `values(1)`, `type(0)`, `maker(0)`, `constant(1)`,
`given(2)`, `name(0)`, `quantised(0)`, and `least(0)`, `most(0)`: the limits that a Max, Min or Clip in front of
it sets; `way(1, 0)` gives the operator that makes input 1, and the one that makes input 0 of that. An
expression is read with `ast`, it is never executed. Pure functions; any thread.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from qnnbridge_host.model.graph_index import GraphIndex, GraphNode, GraphTensor
from qnnbridge_host.model.static_shapes import UnknownShape, slid_sizes, window_of

_POOLS: Final = frozenset({"AveragePool", "MaxPool", "LpPool"})
_WINDOWS: Final = _POOLS | {"Conv", "ConvTranspose"}
_WEIGHTED: Final = ("Conv", "ConvTranspose")


# Of a Resize in one direction, to be looked at one by one. No picture has more; a hostile model may.
_MOST_PLACES: Final = 2**14


class _Unknown(Exception):
    """What the condition asks for is not known of the node."""


def all_true(expressions: Sequence[str], node: GraphNode, graph: GraphIndex) -> bool:
    """Whether every expression is true of a node. What is unknown is not true."""
    names = _Facts(node, graph)
    try:
        return all(_value(_parsed(text), names) for text in expressions)
    except (_Unknown, UnknownShape, LookupError, TypeError, ValueError, ArithmeticError):
        return False


class _Facts:
    """The names that an expression may use, computed when they are asked for."""

    def __init__(self, node: GraphNode, graph: GraphIndex) -> None:
        self._node = node
        self._graph = graph
        self._window: Mapping[str, list[int]] | None = None

    def __getitem__(self, name: str) -> Any:
        node = self._node
        if name in node.attributes:
            return node.attributes[name]
        if name in _OF_NODE:
            return _OF_NODE[name](node, self._graph)
        if name in _FUNCTIONS:
            return functools.partial(_FUNCTIONS[name], node)
        if name in _OF_GRAPH:
            return functools.partial(_OF_GRAPH[name], self._graph, node)
        if name in _PLAIN:
            return _PLAIN[name]
        if node.op in _WINDOWS and name in ("sizes", "kernel", "strides", "dilations", "before", "after"):
            if self._window is None:
                self._window = window_of_node(node)
            return self._window[name]
        if node.op in _POOLS and name == "made":
            return slid_sizes([_input(node, 0)], node.attributes)
        # Last, since exporters leave out an attribute that has ONNX's default.
        if (node.op, name) in _DEFAULTS:
            return _DEFAULTS[node.op, name]
        raise _Unknown(name)


def _input(node: GraphNode, number: int) -> GraphTensor:
    found = node.inputs[number] if number < len(node.inputs) else None
    if found is None:
        raise _Unknown
    return found


def _shape(node: GraphNode, number: int) -> tuple[int, ...]:
    sizes = _input(node, number).shape
    if sizes is None or None in sizes:
        raise _Unknown
    return tuple(size for size in sizes if size is not None)


def _values(node: GraphNode, number: int) -> tuple[Any, ...]:
    values = _input(node, number).values
    if values is None:
        raise _Unknown
    return values


def maker_of(tensor: GraphTensor, graph: GraphIndex) -> str:
    """The operator that makes it, "" for an input or a constant."""
    maker = None if tensor.constant else graph.origin(tensor.name)
    return "" if maker is None else maker.op


def _least(graph: GraphIndex, node: GraphNode, number: int) -> float:
    """What an input is at least, by a Max or Clip with a constant in front of it."""
    found = _limits(graph, node, number, "Max", "min", 1)
    # Of a constant with several values only the smallest holds for all elements. Of several constants all hold.
    return max(map(min, found), default=-math.inf)


def _most(graph: GraphIndex, node: GraphNode, number: int) -> float:
    """What an input is at most, by a Min or Clip with a constant in front of it."""
    found = _limits(graph, node, number, "Min", "max", 2)
    return min(map(max, found), default=math.inf)


def _limits(
    graph: GraphIndex, node: GraphNode, number: int, op: str, of_clip: str, place: int
) -> list[tuple[float, ...]]:
    maker = graph.origin(_input(node, number).name)
    if maker is None or maker.op not in (op, "Clip"):
        return []
    # The constant of a Max or Min is any of its inputs; a Clip has the least second and the most third.
    given = maker.inputs if maker.op == op else maker.inputs[place : place + 1]
    found = [one.values for one in given if one is not None and one.constant and one.values]
    # Before opset 11 the limits of a Clip are attributes.
    if maker.op == "Clip" and of_clip in maker.attributes:
        found.append((float(maker.attributes[of_clip]),))
    return found


def _way(graph: GraphIndex, node: GraphNode, *numbers: int) -> list[str]:
    found: list[str] = []
    for number in numbers:
        node = _origin(graph, node, number)
        found.append(node.op)
    return found


def _origin(graph: GraphIndex, node: GraphNode, number: int) -> GraphNode:
    origin = graph.origin(_input(node, number).name)
    if origin is None:
        raise _Unknown
    return origin


def _quantised(graph: GraphIndex, node: GraphNode, number: int) -> str:
    # The maker is a DequantizeLinear, whose zero point has the type of the stored integers.
    zero_point = _origin(graph, node, number).input(2)
    if zero_point is None or not zero_point.type:
        raise _Unknown
    return zero_point.type


def _users(node: GraphNode, graph: GraphIndex) -> tuple[GraphNode, ...]:
    """Of its result. A damaged model makes one many times; to look at its users each time takes too long."""
    result = node.outputs[0]
    if result is None or graph.makers[result.name] != node.index:
        raise _Unknown
    return graph.readers(result.name)


def window_of_node(node: GraphNode) -> dict[str, list[int]]:
    """`window_of` of a convolution or pooling. Raises `UnknownShape` where its sizes are not known."""
    weights = node.inputs[1] if node.op in _WEIGHTED else None
    shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    if shape is None or None in shape:
        raise UnknownShape
    return window_of(_shape(node, 0)[2:], node.attributes, weights)


def nearest_places(node: GraphNode) -> list[tuple[list[int], list[int]]]:
    """Of a Resize to nearest values: for each direction the places that it takes, and those that QNN takes.

    QNN rounds half up, and of asymmetric coordinates takes the floor; pytorch_half_pixel is computed as asymmetric.
    Raises an error where a size is not known.
    """
    attributes, shape = node.attributes, _shape(node, 0)
    coordinate = attributes.get("coordinate_transformation_mode", "half_pixel")
    rounding = attributes.get("nearest_mode", "round_prefer_floor")
    if "axes" in attributes or coordinate not in _COORDINATES:
        raise _Unknown
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        made = [int(size) for size in _values(node, 3)]
        scales = [out / size for out, size in zip(made, shape, strict=True)]
    else:
        scales = [float(scale) for scale in _values(node, 2)]
        # ONNX rounds the sizes down.
        made = [int(size * scale) for size, scale in zip(shape, scales, strict=True)]
    if max(made, default=0) > _MOST_PLACES:
        raise _Unknown
    found = []
    for size, out, scale in zip(shape[2:], made[2:], scales[2:], strict=True):
        ours = [_ROUNDING[rounding](_coordinate(coordinate, place, scale, size, out)) for place in range(out)]
        # QNN has the sizes only, so its scale is their quotient, whatever the model's is.
        theirs = [_as_qnn(coordinate, place, out / size, size, out) for place in range(out)]
        found.append(([min(max(one, 0), size - 1) for one in ours], [min(max(one, 0), size - 1) for one in theirs]))
    return found


def _nearest_differs(node: GraphNode) -> bool:
    return any(ours != theirs for ours, theirs in nearest_places(node))


def _coordinate(mode: str, place: int, scale: float, size: int, out: int) -> float:
    if mode == "asymmetric":
        return place / scale
    if mode == "align_corners":
        return place * (size - 1) / (out - 1) if out > 1 else 0.0
    if mode == "pytorch_half_pixel" and out == 1:
        return 0.0
    return (place + 0.5) / scale - 0.5


def _as_qnn(mode: str, place: int, scale: float, size: int, out: int) -> int:
    if mode in ("asymmetric", "pytorch_half_pixel"):
        return math.floor(place / scale)
    return math.floor(_coordinate(mode, place, scale, size, out) + 0.5)


_COORDINATES: Final = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_ROUNDING: Final[Mapping[str, Callable[[float], int]]] = {
    # Not `round`, which takes a half to the even neighbour.
    "round_prefer_floor": lambda place: math.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: math.floor(place + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    # Of an input by its number: all sizes, known for sure; the values of a small constant.
    "shape": _shape,
    "values": _values,
    "type": lambda node, number: _input(node, number).type,
    "constant": lambda node, number: _input(node, number).constant,
    "name": lambda node, number: _input(node, number).name,
    "nearest_differs": _nearest_differs,
    "given": lambda node, number: (
        number < len(node.inputs) and bool(node.inputs[number] and node.inputs[number].name)
    ),
}
_OF_GRAPH: Final[Mapping[str, Callable[..., Any]]] = {
    "maker": lambda graph, node, number: maker_of(_input(node, number), graph),
    "way": _way,
    "least": _least,
    "most": _most,
    # The type of the integers of a quantised input.
    "quantised": _quantised,
}
_OF_NODE: Final[Mapping[str, Callable[[GraphNode, GraphIndex], Any]]] = {
    "users": lambda node, graph: [user.op for user in _users(node, graph)],
    "beside": lambda node, graph: [
        [tensor.name if tensor else "" for tensor in user.inputs] for user in _users(node, graph)
    ],
    "output": lambda node, graph: node.made[0].name,
    "node_name": lambda node, graph: node.name,
}
_PLAIN: Final[Mapping[str, Any]] = {
    "len": len,
    "min": min,
    "max": max,
    "sum": sum,
    "any": any,
    "all": all,
    "zip": zip,
    "range": range,
    "abs": abs,
    "int": int,
    "True": True,
    "False": False,
}
_DEFAULTS: Final[Mapping[tuple[str, str], Any]] = {
    **{(op, name): value for op in ("AveragePool", "MaxPool", "LpPool") for name, value in (("ceil_mode", 0),)},
    ("AveragePool", "count_include_pad"): 0,
    **{(op, "group"): 1 for op in _WEIGHTED},
    ("ConvTranspose", "output_padding"): [],
    ("GatherND", "batch_dims"): 0,
    ("HardSigmoid", "alpha"): 0.2,
    ("HardSigmoid", "beta"): 0.5,
    ("Pad", "mode"): "constant",
    ("Resize", "mode"): "nearest",
    ("Resize", "coordinate_transformation_mode"): "half_pixel",
    ("Resize", "nearest_mode"): "round_prefer_floor",
    **{(op, "axis"): 0 for op in ("Gather", "GatherElements", "ScatterElements")},
    **{(op, "axis"): -1 for op in ("Softmax", "LogSoftmax", "RMSNormalization", "LayerNormalization", "OneHot")},
    # Opset 16 has the same default and calls it bilinear.
    ("GridSample", "mode"): "linear",
    ("GridSample", "padding_mode"): "zeros",
    ("GridSample", "align_corners"): 0,
}
_OPERATORS: Final[Mapping[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
}


# The table has some dozens of conditions, and each is asked for every node of its operators.
@functools.cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _value(node: ast.expr, names: Any) -> Any:
    """The value of an expression: numbers, names, comparisons, arithmetic, calls, one `for` in a generator."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.BoolOp):
        # `or` ends at the first true value, `and` at the first false one.
        wanted = isinstance(node.op, ast.Or)
        # The rest is not asked once the result is certain: it may depend on what is not known.
        return wanted if any(bool(_value(one, names)) is wanted for one in node.values) else not wanted
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand, names))
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.Compare):
        values = [_value(one, names) for one in (node.left, *node.comparators)]
        pairs = zip(node.ops, values, values[1:], strict=False)
        return all(_OPERATORS[type(op)](left, right) for op, left, right in pairs)
    if isinstance(node, ast.Subscript):
        return _value(node.value, names)[_value(node.slice, names)]
    if isinstance(node, ast.Slice):
        return slice(*(None if one is None else _value(one, names) for one in (node.lower, node.upper, node.step)))
    if isinstance(node, (ast.Tuple, ast.List)):
        return [_value(one, names) for one in node.elts]
    if isinstance(node, ast.Call):
        return _value(node.func, names)(*(_value(one, names) for one in node.args))
    if isinstance(node, ast.GeneratorExp):
        (loop,) = node.generators
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        keys = [target.id for target in targets if isinstance(target, ast.Name)]
        return [
            _value(node.elt, _Scope(names, dict(zip(keys, one if len(keys) > 1 else (one,), strict=True))))
            for one in _value(loop.iter, names)
        ]
    raise _Unknown(ast.dump(node))


class _Scope:
    """Names of a loop in front of those around it."""

    def __init__(self, around: Any, inner: Mapping[str, Any]) -> None:
        self._around = around
        self._inner = inner

    def __getitem__(self, name: str) -> Any:
        return self._inner[name] if name in self._inner else self._around[name]
