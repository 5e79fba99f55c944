"""Values of small tensors that follow from known shapes and constants: sizes and paddings that a model computes.

PyTorch's older exporter writes `x.view(x.shape[0], -1)` as Shape, Gather, Unsqueeze and Concat. ONNX Runtime
computes these once when it loads a model of fixed sizes, so QNN gets what follows here. Pure functions; any thread.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from qnnbridge_host.model.graph_index import GraphTensor, Shape

# Larger ones are no sizes, axes, pads or scales.
_MOST: Final = 64
# Of 64 bits. A hostile model squares a number until it fills the memory.
_LIMIT: Final = 2**63
_WHOLE: Final = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
_FLOATS: Final = frozenset({1, 10, 11})

Values = tuple[Any, ...]
Attributes = Mapping[str, Any]


class UnknownValues(Exception):
    """The values do not follow."""


def values_of(op: str, given: Sequence[GraphTensor], attributes: Attributes, shape: Shape | None) -> Values:
    """The values of a node's first result, in order.

    Args:
        shape: of the result, all of it known.

    Raises:
        UnknownValues, or what a malformed node makes Python raise: they do not follow.
    """
    rule = _RULES.get(op)
    if rule is None or shape is None or None in shape:
        raise UnknownValues
    count = math.prod(size for size in shape if size is not None)
    if count > _MOST:
        raise UnknownValues
    found = tuple(rule(given, attributes, shape))
    if len(found) != count or any(isinstance(value, int) and not -_LIMIT <= value < _LIMIT for value in found):
        raise UnknownValues
    return found


def _known(given: Sequence[GraphTensor], number: int = 0) -> Values:
    values = given[number].values
    if values is None:
        raise UnknownValues
    return values


def _shape(given: Sequence[GraphTensor], attributes: Attributes, shape: Shape) -> Values:
    sizes = given[0].shape
    if sizes is None:
        raise UnknownValues
    found = sizes[slice(attributes.get("start", 0), attributes.get("end"))]
    if None in found:
        raise UnknownValues
    return found


def _same(given: Sequence[GraphTensor], attributes: Attributes, shape: Shape) -> Values:
    # Their order in memory stays, whatever the shape becomes.
    return _known(given)


def _cast(given: Sequence[GraphTensor], attributes: Attributes, shape: Shape) -> Values:
    values, kind = _known(given), attributes["to"]
    if kind in _WHOLE:
        # Both ONNX's Cast and `int` cut towards zero.
        return tuple(int(value) for value in values)
    if kind in _FLOATS:
        return tuple(float(value) for value in values)
    raise UnknownValues


def _rows(tensor: GraphTensor) -> list[Values]:
    """The parts along the first axis."""
    values, sizes = _known([tensor]), tensor.shape
    if not sizes or not sizes[0]:
        raise UnknownValues
    length = len(values) // sizes[0]
    return [values[at : at + length] for at in range(0, len(values), length)]


def _gather(given: Sequence[GraphTensor], attributes: Attributes, shape: Shape) -> Values:
    if attributes.get("axis", 0) != 0:
        raise UnknownValues
    rows = _rows(given[0])
    # In ONNX, as in Python, a negative index counts from the end.
    return tuple(value for index in _known(given, 1) for value in rows[index])


def _slice(given: Sequence[GraphTensor], attributes: Attributes, shape: Shape) -> Values:
    named = "starts" in attributes
    starts, ends = (attributes["starts"], attributes["ends"]) if named else (_known(given, 1), _known(given, 2))
    axes = attributes.get("axes", [0]) if named else _known(given, 3) if len(given) > 3 and given[3].name else [0]
    steps = _known(given, 4) if len(given) > 4 and given[4].name else [1]
    # `_rows` knows the first axis only.
    if list(axes) != [0] or len(starts) != 1:
        raise UnknownValues
    return tuple(value for row in _rows(given[0])[slice(starts[0], ends[0], steps[0])] for value in row)


def _concat(given: Sequence[GraphTensor], attributes: Attributes, shape: Shape) -> Values:
    if attributes["axis"] % len(shape) != 0:
        raise UnknownValues
    return tuple(value for number in range(len(given)) for value in _known(given, number))


def _transpose(given: Sequence[GraphTensor], attributes: Attributes, shape: Shape) -> Values:
    if len(shape) != 2 or list(attributes.get("perm", [1, 0])) != [1, 0]:
        raise UnknownValues
    return tuple(value for column in zip(*_rows(given[0]), strict=True) for value in column)


def _filled(given: Sequence[GraphTensor], attributes: Attributes, shape: Shape) -> Values:
    value = attributes.get("value")
    one = value.values if isinstance(value, GraphTensor) else (0.0,)
    if one is None:
        raise UnknownValues
    return one * math.prod(size or 0 for size in shape)


def _range(given: Sequence[GraphTensor], attributes: Attributes, shape: Shape) -> Values:
    (start,), (limit,), (step,) = (_known(given, number) for number in range(3))
    return tuple(range(start, limit, step))


def _expand(given: Sequence[GraphTensor], attributes: Attributes, shape: Shape) -> Values:
    return _as_long(_known(given), math.prod(size or 0 for size in shape))


def _as_long(values: Values, count: int) -> Values:
    """One value for all, or as many as there are; other ways to broadcast are not known."""
    if len(values) not in (1, count):
        raise UnknownValues
    return values if len(values) == count else values * count


def _each(change: Callable[..., Any]) -> Callable[[Sequence[GraphTensor], Attributes, Shape], Values]:
    def rule(given: Sequence[GraphTensor], attributes: Attributes, shape: Shape) -> Values:
        count = math.prod(size or 0 for size in shape)
        columns = [_as_long(_known(given, number), count) for number in range(len(given))]
        return tuple(change(*row) for row in zip(*columns, strict=True))

    return rule


def _divided(left: Any, right: Any) -> Any:
    """Of integers cut off towards zero, as ONNX does."""
    if isinstance(left, int) and isinstance(right, int):
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return left / right


_RULES: Final[Mapping[str, Callable[[Sequence[GraphTensor], Attributes, Shape], Sequence[Any]]]] = {
    "Shape": _shape,
    "Size": lambda given, attributes, shape: (math.prod(_shape(given, {}, shape)),),
    **dict.fromkeys(("Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten"), _same),
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Transpose": _transpose,
    "ConstantOfShape": _filled,
    "Range": _range,
    "Expand": _expand,
    "Add": _each(operator.add),
    "Sub": _each(operator.sub),
    "Mul": _each(operator.mul),
    "Div": _each(_divided),
    "Neg": _each(operator.neg),
    "Min": _each(min),
    "Max": _each(max),
    "Floor": _each(lambda value: float(math.floor(value))),
    "Ceil": _each(lambda value: float(math.ceil(value))),
    "Equal": _each(operator.eq),
    "Where": _each(lambda condition, yes, no: yes if condition else no),
    "ReduceProd": lambda given, attributes, shape: (math.prod(_known(given)),),
}
