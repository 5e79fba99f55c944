"""Shapes that follow from the inputs' sizes and the constants, without onnx: the common operators, nothing else.

Sizes that a model computes from shapes count (`static_values`). A shape that this does not know stays unknown. Pure
functions; any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from qnnbridge_host.model.graph_index import FileGraph, GraphTensor, Shape
from qnnbridge_host.model.static_values import UnknownValues, values_of
from qnnbridge_protocol.element_types import ElementType

Inputs = list[GraphTensor]
Attributes = Mapping[str, Any]


class UnknownShape(Exception):
    """The shape does not follow."""


def complete(graph: FileGraph) -> None:
    """Adds shapes, types and small values that follow to the tensors of the graph. What the file says stays."""
    # In the order of the file: ONNX demands that a tensor is made before it is taken.
    for op, _, inputs, outputs, attributes in graph.entries:
        # Nothing follows without inputs; what a Constant makes was recorded when the file was read.
        if not inputs or not outputs:
            continue
        given = [graph.about(name) for name in inputs]
        for number, name in enumerate(outputs):
            made = graph.about(name)
            # A malformed node raises any of these, and must not hide the shapes of all others.
            with contextlib.suppress(*_UNKNOWN):
                if made.shape is None or None in made.shape:
                    shape = _shape_of(op, number, len(outputs), given, attributes)
                    made = dataclasses.replace(made, shape=shape)
            with contextlib.suppress(LookupError):
                if not made.type:
                    made = dataclasses.replace(made, type=_type_of(op, number, given, attributes))
            if not number and made.values is None:
                with contextlib.suppress(*_UNKNOWN):
                    made = dataclasses.replace(made, values=values_of(op, given, attributes, made.shape))
            graph.known[name] = made


def _shape_of(op: str, number: int, count: int, given: Inputs, attributes: Attributes) -> Shape | None:
    if op in _SEVERAL:
        return _SEVERAL[op](given, {**attributes, "num_outputs": count})[number]
    return _RULES[op](given, attributes) if number == 0 else None


def _type_of(op: str, number: int, given: Inputs, attributes: Attributes) -> str:
    if op == "Cast":
        return ElementType(attributes["to"]).text if attributes.get("to") in _ELEMENTS else ""
    if op in _INTEGERS and number == _INTEGERS[op]:
        return "int64"
    if op in _KEEPING_TYPE and (number == 0 or op in _SEVERAL):
        return given[_DATA_INPUT.get(op, 0)].type
    return ""


def _sizes(tensor: GraphTensor) -> tuple[int, ...]:
    if tensor.shape is None:
        raise UnknownShape
    sizes = tuple(size for size in tensor.shape if size is not None)
    if len(sizes) != len(tensor.shape):
        raise UnknownShape
    return sizes


def _whole(given: Inputs, number: int) -> list[int]:
    """A constant input's values."""
    values = given[number].values if number < len(given) else None
    if values is None:
        raise UnknownShape
    return [int(value) for value in values]


def _same(given: Inputs, attributes: Attributes) -> Shape | None:
    return given[0].shape


def _broadcast(given: Inputs, attributes: Attributes) -> Shape:
    shapes = [_sizes(tensor) for tensor in given if tensor.name]
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    # Sizes that contradict each other are not looked for: ONNX Runtime refuses such a model.
    return tuple(next((size for size in column if size != 1), 1) for column in zip(*padded, strict=True))


def window_of(sizes: tuple[int, ...], attributes: Attributes, weights: GraphTensor | None) -> dict[str, list[int]]:
    """kernel, strides, dilations, before and after (the pads) of a convolution or pooling, for each direction."""
    dims = len(sizes)
    # A convolution may leave it out. Weights begin with two axes of channels.
    kernel = attributes.get("kernel_shape") or (list(_sizes(weights)[2:]) if weights is not None else None)
    if not kernel or len(kernel) != dims:
        raise UnknownShape
    strides, dilations = (list(attributes.get(name) or [1] * dims) for name in ("strides", "dilations"))
    pads = list(attributes.get("pads") or [0] * 2 * dims)
    auto = attributes.get("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        wanted = [
            # As ONNX defines SAME: the result has ceil(size / step) places.
            max(0, (-(-size // step) - 1) * step + (k - 1) * d + 1 - size)
            for size, step, k, d in zip(sizes, strides, kernel, dilations, strict=True)
        ]
        # Of an odd number UPPER puts the larger half behind, LOWER in front.
        less, more = [one // 2 for one in wanted], [one - one // 2 for one in wanted]
        pads = less + more if auto == "SAME_UPPER" else more + less
    # Pads that a model gives beside auto_pad do not count.
    elif auto == "VALID":
        pads = [0] * 2 * dims
    return {
        "sizes": list(sizes),
        "kernel": list(kernel),
        "strides": strides,
        "dilations": dilations,
        # ONNX lists all beginnings, then all ends.
        "before": pads[:dims],
        "after": pads[dims:],
    }


def slid_sizes(given: Inputs, attributes: Attributes) -> list[int]:
    """The sizes of the result of a convolution or pooling. Raises `UnknownShape`."""
    window = window_of(_sizes(given[0])[2:], attributes, given[1] if len(given) > 1 else None)
    found = []
    for size, kernel, step, dilation, before, after in zip(*window.values(), strict=True):
        room = size + before + after - (kernel - 1) * dilation - 1
        found.append((-(-room // step) if attributes.get("ceil_mode") else room // step) + 1)
        # A window that would begin in the padding at the end does not count.
        if attributes.get("ceil_mode") and (found[-1] - 1) * step >= size + before:
            found[-1] -= 1
    return found


def _conv(given: Inputs, attributes: Attributes) -> Shape:
    return (_sizes(given[0])[0], _sizes(given[1])[0], *slid_sizes(given, attributes))


def _pool(given: Inputs, attributes: Attributes) -> Shape:
    return (*_sizes(given[0])[:2], *slid_sizes(given[:1], attributes))


def _transposed(given: Inputs, attributes: Attributes) -> Shape:
    head, sizes, weights = _sizes(given[0])[:1], _sizes(given[0])[2:], _sizes(given[1])
    # Unlike those of Conv, these weights have the inputs first, then the results of one group.
    channels = weights[1] * int(attributes.get("group", 1))
    if attributes.get("output_shape"):
        return (*head, channels, *attributes["output_shape"][-len(sizes) :])
    window = window_of(sizes, {**attributes, "auto_pad": "NOTSET"}, given[1])
    # SAME of a transposed convolution means: as large as the input, times the stride.
    if str(attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        return (*head, channels, *(size * step for size, step in zip(sizes, window["strides"], strict=True)))
    more = attributes.get("output_padding") or [0] * len(sizes)
    # The formula of a convolution, solved for its input; output_padding is what its rounding loses.
    made = [
        (size - 1) * step + (kernel - 1) * dilation + 1 - before - after + extra
        for (size, kernel, step, dilation, before, after), extra in zip(
            zip(*window.values(), strict=True), more, strict=True
        )
    ]
    return (*head, channels, *made)


def _global(given: Inputs, attributes: Attributes) -> Shape:
    shape = _sizes(given[0])
    return (*shape[:2], *(1 for _ in shape[2:]))


def _matmul(given: Inputs, attributes: Attributes) -> Shape:
    left, right = _sizes(given[0]), _sizes(given[1])
    # ONNX treats a vector as a matrix of one row or column and drops that axis again, which is not done here.
    if len(left) < 2 or len(right) < 2:
        raise UnknownShape
    heads = [GraphTensor("l", shape=left[:-2]), GraphTensor("r", shape=right[:-2])]
    return (*_broadcast(heads, attributes), left[-2], right[-1])


def _gemm(given: Inputs, attributes: Attributes) -> Shape:
    left, right = _sizes(given[0]), _sizes(given[1])
    return (left[1 if attributes.get("transA") else 0], right[0 if attributes.get("transB") else 1])


def _transpose(given: Inputs, attributes: Attributes) -> Shape:
    shape = _sizes(given[0])
    return tuple(shape[axis] for axis in attributes.get("perm") or range(len(shape))[::-1])


def _concat(given: Inputs, attributes: Attributes) -> Shape:
    shapes = [_sizes(tensor) for tensor in given]
    axis = attributes["axis"] % len(shapes[0])
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def _flatten(given: Inputs, attributes: Attributes) -> Shape:
    shape = _sizes(given[0])
    # The axis may be the rank itself: then all sizes are in front of it.
    axis = attributes.get("axis", 1) % (len(shape) + 1)
    return (math.prod(shape[:axis]), math.prod(shape[axis:]))


def _reshape(given: Inputs, attributes: Attributes) -> Shape:
    wanted = _whole(given, 1)
    # Without a 0 or -1 the result is known even where the input is not.
    shape = _sizes(given[0]) if 0 in wanted or -1 in wanted else ()
    found = [
        shape[axis] if size == 0 and not attributes.get("allowzero") else size for axis, size in enumerate(wanted)
    ]
    # The product has the -1 in it, hence the minus sign.
    if -1 in found:
        found[found.index(-1)] = math.prod(shape) // -math.prod(found)
    return tuple(found)


def _axes(given: Inputs, attributes: Attributes, number: int) -> list[int] | None:
    # An attribute in older opsets, an input in newer ones: since 13, of most reductions since 18.
    if "axes" in attributes:
        return list(attributes["axes"])
    return _whole(given, number) if len(given) > number and given[number].name else None


def _squeeze(given: Inputs, attributes: Attributes) -> Shape:
    shape, axes = _sizes(given[0]), _axes(given, attributes, 1)
    gone = [axis % len(shape) for axis in axes] if axes is not None else [i for i, s in enumerate(shape) if s == 1]
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


def _unsqueeze(given: Inputs, attributes: Attributes) -> Shape:
    shape, axes = list(_sizes(given[0])), _axes(given, attributes, 1) or []
    # Axes count in the result's shape, so the lower ones have to be in place first.
    for axis in sorted(axis % (len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
    return tuple(shape)


def _reduce(given: Inputs, attributes: Attributes) -> Shape:
    shape, axes = _sizes(given[0]), _axes(given, attributes, 1)
    # No axes, or an empty list of them: all, unless the node says that this means none.
    if not axes and attributes.get("noop_with_empty_axes"):
        return shape
    gone = [axis % len(shape) for axis in axes] if axes else range(len(shape))
    keep = attributes.get("keepdims", 1)
    return tuple(1 if axis in gone else size for axis, size in enumerate(shape) if keep or axis not in gone)


def _slice(given: Inputs, attributes: Attributes) -> Shape:
    shape = list(_sizes(given[0]))
    # Attributes up to opset 9, inputs since 10.
    if "starts" in attributes:
        starts, ends = attributes["starts"], attributes["ends"]
        axes, steps = attributes.get("axes") or list(range(len(starts))), [1] * len(starts)
    else:
        starts, ends = _whole(given, 1), _whole(given, 2)
        axes = _whole(given, 3) if len(given) > 3 and given[3].name else list(range(len(starts)))
        steps = _whole(given, 4) if len(given) > 4 else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # Exporters write 2**63 - 1 for "to the end"; `indices` cuts that to the size.
        shape[axis] = (
            len(range(*slice(start, end, step).indices(shape[axis])))
            if step > 0
            else _backwards(start, end, step, shape[axis])
        )
    return tuple(shape)


def _backwards(start: int, end: int, step: int, size: int) -> int:
    first = min(start if start >= 0 else start + size, size - 1)
    last = max(end if end >= 0 else end + size, -1)
    return max(0, -((first - last) // step) if (first - last) % step == 0 else (first - last) // -step + 1)


def _pad(given: Inputs, attributes: Attributes) -> Shape:
    shape = _sizes(given[0])
    # An attribute up to opset 10, an input since 11.
    pads = attributes.get("pads") or _whole(given, 1)
    if len(pads) != 2 * len(shape):
        raise UnknownShape  # of chosen axes
    return tuple(size + pads[axis] + pads[axis + len(shape)] for axis, size in enumerate(shape))


def _resize(given: Inputs, attributes: Attributes) -> Shape:
    if len(given) > 3 and given[3].name and "axes" not in attributes:
        return tuple(_whole(given, 3))
    # Since opset 11 the inputs are data, roi, scales and sizes; before, and of Upsample, data and scales.
    values = given[2 if len(given) > 2 else 1].values
    if not values or "axes" in attributes:
        raise UnknownShape
    return tuple(int(size * scale) for size, scale in zip(_sizes(given[0]), values, strict=True))


def _expand(given: Inputs, attributes: Attributes) -> Shape:
    # In both directions: a 1 in the wanted sizes keeps the input's size.
    return _broadcast([given[0], GraphTensor("sizes", shape=tuple(_whole(given, 1)))], attributes)


def _tile(given: Inputs, attributes: Attributes) -> Shape:
    return tuple(size * times for size, times in zip(_sizes(given[0]), _whole(given, 1), strict=True))


def _arg(given: Inputs, attributes: Attributes) -> Shape:
    # Like a reduction along one axis, the first unless it says which.
    return _reduce(given[:1], {**attributes, "axes": [attributes.get("axis", 0)]})


def _depth_to_space(given: Inputs, attributes: Attributes) -> Shape:
    (number, channels, height, width), block = _sizes(given[0]), attributes["blocksize"]
    return (number, channels // block**2, height * block, width * block)


def _space_to_depth(given: Inputs, attributes: Attributes) -> Shape:
    (number, channels, height, width), block = _sizes(given[0]), attributes["blocksize"]
    return (number, channels * block**2, height // block, width // block)


def _range(given: Inputs, attributes: Attributes) -> Shape:
    (start,), (limit,), (step,) = (_whole(given, number) for number in range(3))
    return (len(range(start, limit, step)),)


def _second(given: Inputs, attributes: Attributes) -> Shape | None:
    return given[1].shape


def _split(given: Inputs, attributes: Attributes) -> list[Shape]:
    shape, count = _sizes(given[0]), attributes["num_outputs"]
    axis = attributes.get("axis", 0) % len(shape)
    parts = attributes.get("split") or (_whole(given, 1) if len(given) > 1 and given[1].name else None)
    if parts is None:
        # With num_outputs the last part may be the smaller one.
        each = -(-shape[axis] // count)
        parts = [*(each for _ in range(count - 1)), shape[axis] - each * (count - 1)]
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in parts]


def _top_k(given: Inputs, attributes: Attributes) -> list[Shape]:
    shape, (many,) = _sizes(given[0]), _whole(given, 1) if len(given) > 1 else [int(attributes["k"])]
    axis = attributes.get("axis", -1) % len(shape)
    return [(*shape[:axis], many, *shape[axis + 1 :])] * 2


def _recurrent(given: Inputs, attributes: Attributes) -> list[Shape]:
    (length, batch, _), (directions, _, hidden) = _sizes(given[0]), _sizes(given[2])
    # Layout 1 has the batch first. QNN takes only 0, so no rule needs it.
    if attributes.get("layout", 0):
        raise UnknownShape
    # The results of all steps, the last one, and of an LSTM its cell.
    return [(length, directions, batch, hidden), *[(directions, batch, hidden)] * 2]


def _gather(given: Inputs, attributes: Attributes) -> Shape:
    shape, index = _sizes(given[0]), _sizes(given[1])
    axis = attributes.get("axis", 0) % len(shape)
    return (*shape[:axis], *index, *shape[axis + 1 :])


_UNARY: Final = (
    *("Abs", "Atan", "BatchNormalization", "Cast", "Ceil", "Clip", "Cos", "CumSum", "DequantizeLinear", "Dropout"),
    *("Elu", "Erf", "Exp", "Floor", "Gelu", "GroupNormalization", "HardSigmoid", "HardSwish", "Identity", "IsNaN"),
    *("LRN", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "LpNormalization"),
    *("Mish", "Neg", "Not", "QuantizeLinear", "RMSNormalization", "Reciprocal", "Relu", "Round", "Selu"),
    *("Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu"),
    *("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear", "com.microsoft.Gelu"),
    "com.microsoft.QuickGelu",
)
_BINARY: Final = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mod", "PRelu", "Sum", "Mean", "And", "Or", "Xor", "Equal"),
    *("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Where"),
)
_RULES: Final[Mapping[str, Callable[[Inputs, Attributes], Shape | None]]] = {
    **dict.fromkeys(_UNARY, _same),
    **dict.fromkeys(_BINARY, _broadcast),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _global),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd"), _reduce),
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Transpose": _transpose,
    "Concat": _concat,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Pad": _pad,
    "Resize": _resize,
    "Upsample": _resize,
    "Gather": _gather,
    "GatherElements": _second,
    **dict.fromkeys(("ScatterElements", "ScatterND", "Trilu"), _same),
    "Expand": _expand,
    "Tile": _tile,
    "Range": _range,
    "Shape": lambda given, attributes: (
        len((given[0].shape or _sizes(given[0]))[slice(attributes.get("start", 0), attributes.get("end"))]),
    ),
    "Size": lambda given, attributes: (),
    "ConstantOfShape": lambda given, attributes: tuple(_whole(given, 0)),
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
}
# Of all results, the first included.
_SEVERAL: Final[Mapping[str, Callable[[Inputs, Attributes], list[Shape]]]] = {
    "Split": _split,
    "TopK": _top_k,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}
# The result that is of 64-bit integers whatever the inputs are.
_INTEGERS: Final = {"Shape": 0, "Size": 0, "ArgMax": 0, "ArgMin": 0, "TopK": 1}
_ELEMENTS: Final = frozenset(element.value for element in ElementType)
_UNKNOWN: Final = (UnknownShape, UnknownValues, LookupError, TypeError, ValueError, ArithmeticError)
# The first input of Where is its condition, which is boolean.
_DATA_INPUT: Final = {"Where": 1}
_OTHER_TYPE: Final = (
    *("Cast", "ConstantOfShape", "IsNaN", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"),
    *("QuantizeLinear", "DequantizeLinear", "com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear"),
)
_KEEPING_TYPE: Final = frozenset({*_RULES, *_SEVERAL}.difference(_OTHER_TYPE))
