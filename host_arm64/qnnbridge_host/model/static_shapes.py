"""Infer shapes from input sizes and constants without onnx, for common operators only.

Sizes that a model computes from shapes are included: the second part of this module follows the values of small
tensors. Shapes that cannot be inferred stay unknown. The functions have no side effects and are thread-safe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from qnnbridge_host.model.graph_index import (
    DOES_NOT_FOLLOW,
    FileGraph,
    GraphTensor,
    Shape,
    Sizes,
    Unknown,
    read_model,
    sizes_of,
)
from qnnbridge_protocol.element_types import text_of

Inputs = list[GraphTensor]
Attributes = Mapping[str, Any]
Values = tuple[Any, ...]


def complete(graph: FileGraph) -> None:
    """Add all shapes, types and small values that can be inferred to the graph's tensors. Keep declared shapes and
    types."""
    # File order is enough: ONNX requires that a node follows the nodes whose results it reads.
    for op, _, inputs, outputs, attributes, *_ in graph.entries:
        # Skip a node without inputs: nothing can be inferred from it, and the value of a Constant was recorded when
        # the file was read.
        if not inputs or not outputs:
            continue
        given = [graph.about(name) for name in inputs]
        for number, name in enumerate(outputs):
            made = graph.about(name)
            # A malformed node must not prevent inference of all other shapes.
            with contextlib.suppress(*DOES_NOT_FOLLOW):
                if made.fixed is None:
                    if op not in _SEVERAL:
                        shape = None if number else _RULES[op](given, attributes)
                    else:
                        shape = _SEVERAL[op](given, {**attributes, "num_outputs": len(outputs)})[number]
                    made = dataclasses.replace(made, shape=shape)
            with contextlib.suppress(*DOES_NOT_FOLLOW):
                if not made.type:
                    made = dataclasses.replace(made, type=_type_of(op, number, given, attributes))
            if not number and made.values is None:
                with contextlib.suppress(*DOES_NOT_FOLLOW):
                    made = dataclasses.replace(made, values=_values_of(op, given, attributes, made.fixed))
            graph.known[name] = made


def empty_tensors(
    source: str | os.PathLike[str] | bytes, sizes: Mapping[str, int] | None = None
) -> tuple[list[str], list[str]]:
    """Return inputs and node outputs that have no elements, as strings such as "x (1x0x4)".

    Args:
        source: the model's path, or its bytes.
        sizes: sizes of free dimensions by name, as the session sets them.
    """
    given: dict[str, None] = {}
    made: dict[str, None] = {}
    graph = read_model(source, sizes)
    if graph is not None:
        complete(graph)
        for node in graph.nodes:
            for tensor in (*node.given, *node.made):
                # Skip an empty constant, which is an omitted list of sizes or axes.
                if tensor.is_empty and not tensor.constant:
                    text = f"{tensor.name} ({'x'.join(map(str, tensor.shape or ()))})"
                    (made if tensor.name in graph.makers else given)[text] = None
    return list(given), list(made)


def _type_of(op: str, number: int, given: Inputs, attributes: Attributes) -> str:
    if op == "Cast":
        return text_of(attributes.get("to"))
    if op in _INTEGERS and number == _INTEGERS[op]:
        return "int64"
    if op in _KEEPING_TYPE and (number == 0 or op in _SEVERAL):
        return given[_DATA_INPUT.get(op, 0)].type
    return ""


def _known(given: Inputs, number: int = 0) -> Values:
    """Return the values of an input. Raise `Unknown` if they are unknown."""
    values = given[number].values
    if values is None:
        raise Unknown
    return values


def _whole(given: Inputs, number: int) -> list[int]:
    """Return the values of an input that contains sizes, axes or indices."""
    return [int(value) for value in _known(given, number)]


def _has(given: Inputs, number: int) -> bool:
    """Return whether the node has this input. An empty name also means that an optional input is absent."""
    return len(given) > number and bool(given[number].name)


def _broadcast(*shapes: Sizes) -> Shape:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    # Sizes that do not broadcast are not checked: ONNX Runtime refuses such a model.
    return tuple(next((size for size in column if size != 1), 1) for column in zip(*padded, strict=True))


def window_of(sizes: Sizes, attributes: Attributes, weights: GraphTensor | None) -> dict[str, list[int]]:
    """Return the window of a convolution or pooling, one value per spatial dimension in each list.

    Args:
        sizes: spatial sizes of the input.
        attributes: the node's attributes.
        weights: the weights of a convolution; ``None`` for a pooling.

    Returns:
        sizes, kernel, strides, dilations, before and after (the padding at both ends), in this order.

    Raises:
        Unknown: the window does not follow from the attributes and weights.
    """
    dims = len(sizes)
    # A convolution may omit kernel_shape. The first two axes of its weights are channels.
    kernel = attributes.get("kernel_shape") or (list(sizes_of(weights)[2:]) if weights is not None else None)
    if not kernel or len(kernel) != dims:
        raise Unknown
    strides, dilations = (list(attributes.get(name) or [1] * dims) for name in ("strides", "dilations"))
    pads = list(attributes.get("pads") or [0] * 2 * dims)
    auto = attributes.get("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        # The padding is unknown: with auto_pad SAME, ONNX Runtime treats the dilations of a pooling differently
        # from the ONNX specification.
        if weights is None and max(dilations) > 1:
            raise Unknown
        wanted = [
            # ONNX defines SAME so that the result has ceil(size / step) elements.
            max(0, (-(-size // step) - 1) * step + (k - 1) * d + 1 - size)
            for size, step, k, d in zip(sizes, strides, kernel, dilations, strict=True)
        ]
        # An odd padding is split unevenly: UPPER puts the larger half at the end, LOWER at the beginning.
        less, more = [one // 2 for one in wanted], [one - one // 2 for one in wanted]
        pads = less + more if auto == "SAME_UPPER" else more + less
    # With auto_pad, explicit pads are ignored.
    elif auto == "VALID":
        pads = [0] * 2 * dims
    return {
        "sizes": list(sizes),
        "kernel": list(kernel),
        "strides": strides,
        "dilations": dilations,
        # ONNX lists all beginnings first, then all ends.
        "before": pads[:dims],
        "after": pads[dims:],
    }


def slid_sizes(given: Inputs, attributes: Attributes) -> list[int]:
    """Return the spatial sizes of the result of a convolution or pooling. Raise `Unknown` if they are not known."""
    window = window_of(sizes_of(given[0])[2:], attributes, given[1] if len(given) > 1 else None)
    found = []
    for size, kernel, step, dilation, before, after in zip(*window.values(), strict=True):
        room = size + before + after - (kernel - 1) * dilation - 1
        # If the input is smaller than one window, ONNX does not define the result, and ONNX Runtime may refuse the
        # model.
        if room < 0:
            raise Unknown
        found.append((-(-room // step) if attributes.get("ceil_mode") else room // step) + 1)
        # A window that would begin in the padding at the end is not counted.
        if attributes.get("ceil_mode") and (found[-1] - 1) * step >= size + before:
            found[-1] -= 1
    return found


def _transposed(given: Inputs, attributes: Attributes) -> Shape:
    head, sizes, weights = sizes_of(given[0])[:1], sizes_of(given[0])[2:], sizes_of(given[1])
    # Weights of ConvTranspose have the axes: input channels, output channels of a group, kernel.
    channels = weights[1] * int(attributes.get("group", 1))
    if attributes.get("output_shape"):
        return (*head, channels, *attributes["output_shape"][-len(sizes) :])
    window = window_of(sizes, {**attributes, "auto_pad": "NOTSET"}, given[1])
    more = attributes.get("output_padding") or [0] * len(sizes)
    # The formula of a convolution solved for its input. output_padding adds the elements that rounding down loses.
    made = [
        (size - 1) * step + (kernel - 1) * dilation + 1 - before - after + extra
        for (size, kernel, step, dilation, before, after), extra in zip(
            zip(*window.values(), strict=True), more, strict=True
        )
    ]
    # With auto_pad SAME the result of a transposed convolution has the input's size times the stride, or the size
    # that the windows reach if that is smaller.
    if str(attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        made = [min(most, size * step) for most, size, step in zip(made, sizes, window["strides"], strict=True)]
    return (*head, channels, *made)


def _matmul(given: Inputs, attributes: Attributes) -> Shape:
    left, right = sizes_of(given[0]), sizes_of(given[1])
    # Do not infer products of vectors, which ONNX extends to matrices with one row or column.
    if len(left) < 2 or len(right) < 2:
        raise Unknown
    return (*_broadcast(left[:-2], right[:-2]), left[-2], right[-1])


def _transpose(given: Inputs, attributes: Attributes) -> Shape:
    shape = sizes_of(given[0])
    return tuple(shape[axis] for axis in attributes.get("perm") or range(len(shape))[::-1])


def _concat(given: Inputs, attributes: Attributes) -> Shape:
    shapes = [sizes_of(tensor) for tensor in given]
    axis = attributes["axis"] % len(shapes[0])
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def _flatten(given: Inputs, attributes: Attributes) -> Shape:
    shape = sizes_of(given[0])
    # If the axis equals the rank, the second product is 1. A negative axis counts from the end.
    axis = attributes.get("axis", 1)
    return (math.prod(shape[:axis]), math.prod(shape[axis:]))


def _reshape(given: Inputs, attributes: Attributes) -> Shape:
    wanted = _whole(given, 1)
    # If the target shape contains no 0 or -1, the result is known without the input's shape.
    shape = sizes_of(given[0]) if 0 in wanted or -1 in wanted else ()
    found = [
        shape[axis] if size == 0 and not attributes.get("allowzero") else size for axis, size in enumerate(wanted)
    ]
    # The product of `found` includes the -1, so negate it to get the product of the known sizes.
    if -1 in found:
        found[found.index(-1)] = math.prod(shape) // -math.prod(found)
    return tuple(found)


def _axes(given: Inputs, attributes: Attributes, number: int) -> list[int] | None:
    # In older opsets the axes are an attribute; since opset 13 (most reductions: 18) they are an input.
    if "axes" in attributes:
        return list(attributes["axes"])
    return _whole(given, number) if _has(given, number) else None


def _squeeze(given: Inputs, attributes: Attributes) -> Shape:
    shape, axes = sizes_of(given[0]), _axes(given, attributes, 1)
    gone = [axis % len(shape) for axis in axes] if axes is not None else [i for i, s in enumerate(shape) if s == 1]
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


def _unsqueeze(given: Inputs, attributes: Attributes) -> Shape:
    shape, axes = list(sizes_of(given[0])), _axes(given, attributes, 1) or []
    # Axes refer to the shape of the result, so lower axes must be inserted first.
    for axis in sorted(axis % (len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
    return tuple(shape)


def _reduce(given: Inputs, attributes: Attributes) -> Shape:
    shape, axes = sizes_of(given[0]), _axes(given, attributes, 1)
    # Missing or empty axes mean all axes, unless noop_with_empty_axes is set.
    if not axes and attributes.get("noop_with_empty_axes"):
        return shape
    gone = [axis % len(shape) for axis in axes] if axes else range(len(shape))
    keep = attributes.get("keepdims", 1)
    return tuple(1 if axis in gone else size for axis, size in enumerate(shape) if keep or axis not in gone)


_TO_THE_END: Final = (2**31 - 1, 2**63 - 1)


def _slices(given: Inputs, attributes: Attributes) -> Iterator[tuple[int, slice]]:
    """Yield each axis that a Slice cuts, with the slice taken from it."""
    # Starts, ends and axes are attributes up to opset 9, and inputs since opset 10.
    named = "starts" in attributes
    found: list[Any] = [
        attributes.get(name) if named else _whole(given, number) if _has(given, number) else None
        for number, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    ]
    starts, ends, axes, steps = found
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = axes[number] if axes else number, steps[number] if steps else 1
        if step < 0:
            # With a negative step, ONNX limits a start before the beginning of the axis to the first element, while
            # a Python slice would be empty. ONNX Runtime treats the two largest integers as an end before the first
            # element.
            start, end = max(start, -sizes_of(given[0])[axis]), None if end in _TO_THE_END else end
        yield axis, slice(start, end, step)


def _slice(given: Inputs, attributes: Attributes) -> Shape:
    shape = list(sizes_of(given[0]))
    for axis, part in _slices(given, attributes):
        # Exporters write 2**63 - 1 for "to the end"; `indices` limits it to the size.
        shape[axis] = len(range(*part.indices(shape[axis])))
    return tuple(shape)


def _pad(given: Inputs, attributes: Attributes) -> Shape:
    shape = sizes_of(given[0])
    # The pads are an attribute up to opset 10, and an input since opset 11.
    pads = attributes.get("pads") or _whole(given, 1)
    if len(pads) != 2 * len(shape) or _has(given, 3):
        raise Unknown  # the node pads only some axes, which is not implemented here
    return tuple(size + pads[axis] + pads[axis + len(shape)] for axis, size in enumerate(shape))


def _resize(given: Inputs, attributes: Attributes) -> Shape:
    if "axes" in attributes or attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Unknown
    if _has(given, 3):
        return tuple(_whole(given, 3))
    # Inputs since opset 11: data, roi, scales, sizes. Inputs of older opsets and of Upsample: data, scales.
    values = given[2 if len(given) > 2 else 1].values
    if not values:
        raise Unknown
    return scaled_sizes(sizes_of(given[0]), values)


def scaled_sizes(sizes: Sizes, scales: Sequence[float]) -> Sizes:
    """Return the sizes after a Resize by scales: products in 32-bit floats, rounded down (10 times 3.3 is 33)."""
    return tuple(int(in_float32(size * scale)) for size, scale in zip(sizes, scales, strict=True))


def in_float32(value: float) -> float:
    """Round a number to the nearest 32-bit float."""
    (found,) = struct.unpack("<f", struct.pack("<f", value))
    return float(found)


def _depth_to_space(given: Inputs, attributes: Attributes) -> Shape:
    (number, channels, height, width), block = sizes_of(given[0]), attributes["blocksize"]
    return (number, channels // block**2, height * block, width * block)


def _space_to_depth(given: Inputs, attributes: Attributes) -> Shape:
    (number, channels, height, width), block = sizes_of(given[0]), attributes["blocksize"]
    return (number, channels * block**2, height // block, width // block)


def _range(given: Inputs, attributes: Attributes) -> Shape:
    (start,), (limit,), (step,) = (_known(given, number) for number in range(3))
    # Round up, because a last partial step counts. The numbers may be floats.
    return (max(0, -int((start - limit) // step)),)


def _split(given: Inputs, attributes: Attributes) -> list[Shape]:
    shape, count = sizes_of(given[0]), attributes["num_outputs"]
    axis = attributes.get("axis", 0) % len(shape)
    parts = attributes.get("split") or (_whole(given, 1) if _has(given, 1) else None)
    if parts is None:
        # With num_outputs the last output may be smaller than the others.
        each = -(-shape[axis] // count)
        parts = [*(each for _ in range(count - 1)), shape[axis] - each * (count - 1)]
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in parts]


def _top_k(given: Inputs, attributes: Attributes) -> list[Shape]:
    shape, (many,) = sizes_of(given[0]), _whole(given, 1) if len(given) > 1 else [int(attributes["k"])]
    axis = attributes.get("axis", -1) % len(shape)
    return [(*shape[:axis], many, *shape[axis + 1 :])] * 2


def _recurrent(given: Inputs, attributes: Attributes) -> list[Shape]:
    (length, batch, _), (directions, _, hidden) = sizes_of(given[0]), sizes_of(given[2])
    # Layout 1 has the batch first. QNN supports layout 0 only, so no rule needs layout 1.
    if attributes.get("layout", 0):
        raise Unknown
    # Outputs: all steps, the last hidden state, and for an LSTM the last cell state.
    return [(length, directions, batch, hidden), *[(directions, batch, hidden)] * 2]


def _gather(given: Inputs, attributes: Attributes) -> Shape:
    shape, index = sizes_of(given[0]), sizes_of(given[1])
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
    **dict.fromkeys((*_UNARY, "ScatterElements", "ScatterND", "Trilu"), lambda given, _: given[0].shape),
    **dict.fromkeys(_BINARY, lambda given, _: _broadcast(*(sizes_of(one) for one in given if one.name))),
    **dict.fromkeys(
        ("MaxPool", "AveragePool", "LpPool"),
        lambda given, attributes: (*sizes_of(given[0])[:2], *slid_sizes(given[:1], attributes)),
    ),
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"),
        lambda given, attributes: (*(shape := sizes_of(given[0]))[:2], *(1 for _ in shape[2:])),
    ),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd"), _reduce),
    "Conv": lambda given, attributes: (
        sizes_of(given[0])[0],
        sizes_of(given[1])[0],
        *slid_sizes(given, attributes),
    ),
    "ConvTranspose": _transposed,
    "MatMul": _matmul,
    "Gemm": lambda given, attributes: (
        sizes_of(given[0])[1 if attributes.get("transA") else 0],
        sizes_of(given[1])[0 if attributes.get("transB") else 1],
    ),
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
    "GatherElements": lambda given, _: given[1].shape,
    # Broadcasting goes both ways: a 1 in the wanted sizes keeps the input's size.
    "Expand": lambda given, _: _broadcast(sizes_of(given[0]), tuple(_whole(given, 1))),
    "Tile": lambda given, _: tuple(
        size * times for size, times in zip(sizes_of(given[0]), _whole(given, 1), strict=True)
    ),
    "Range": _range,
    "Shape": lambda given, attributes: (
        len((given[0].shape or sizes_of(given[0]))[slice(attributes.get("start", 0), attributes.get("end"))]),
    ),
    "Size": lambda given, attributes: (),
    "ConstantOfShape": lambda given, attributes: tuple(_whole(given, 0)),
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    # ArgMax and ArgMin reduce one axis, by default the first.
    **dict.fromkeys(
        ("ArgMax", "ArgMin"),
        lambda given, attributes: _reduce(given[:1], {**attributes, "axes": [attributes.get("axis", 0)]}),
    ),
}
# Rules of operators with several outputs: the shapes of all outputs.
_SEVERAL: Final[Mapping[str, Callable[[Inputs, Attributes], list[Shape]]]] = {
    "Split": _split,
    "TopK": _top_k,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}
# Index of the int64 output, for operators that have one whatever the types of their inputs.
_INTEGERS: Final = {"Shape": 0, "Size": 0, "ArgMax": 0, "ArgMin": 0, "TopK": 1}
# The first input of Where is its condition, which is boolean.
_DATA_INPUT: Final = {"Where": 1}
_OTHER_TYPE: Final = (
    *("Cast", "ConstantOfShape", "IsNaN", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"),
    *("QuantizeLinear", "DequantizeLinear", "com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear"),
)
_KEEPING_TYPE: Final = frozenset({*_RULES, *_SEVERAL}.difference(_OTHER_TYPE))


# --- values of small tensors -----------------------------------------------------------------------------
# This section computes sizes and paddings that a model derives from shapes. PyTorch's older exporter writes
# `x.view(x.shape[0], -1)` as Shape, Gather, Unsqueeze and Concat. ONNX Runtime folds these nodes when it loads a
# model with fixed sizes, so QNN gets their results as constants.

# Maximum number of elements of a tensor whose values are inferred; sizes, axes, pads and scales have fewer.
_MOST: Final = 64
# Limit integers to 64 bits: Python's integers have no limit, so a malicious model could square a number until
# memory is exhausted.
_LIMIT: Final = 2**63
_WHOLE: Final = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
_FLOATS: Final = frozenset({1, 10, 11})


def _values_of(op: str, given: Inputs, attributes: Attributes, shape: Sizes | None) -> Values:
    """Return the values of a node's first output in row-major order. shape: the shape of that output."""
    rule = _VALUE_RULES.get(op)
    count = _MOST + 1 if shape is None else math.prod(shape)
    if rule is None or shape is None or count > _MOST:
        raise Unknown
    found = tuple(rule(given, attributes, shape))
    # Round to float32 like ONNX Runtime: a product slightly below an integer becomes this integer, which matters to
    # a following Floor or Cast.
    if all(one.type != "double" for one in given):
        found = tuple(in_float32(value) if isinstance(value, float) else value for value in found)
    if len(found) != count or any(isinstance(value, int) and not -_LIMIT <= value < _LIMIT for value in found):
        raise Unknown
    return found


def _shape_values(given: Inputs, attributes: Attributes, shape: Sizes) -> Values:
    sizes = given[0].shape
    if sizes is None:
        raise Unknown
    return sizes_of(GraphTensor("", shape=sizes[slice(attributes.get("start", 0), attributes.get("end"))]))


def _cast(given: Inputs, attributes: Attributes, shape: Sizes) -> Values:
    values, kind = _known(given), attributes["to"]
    if kind in _WHOLE:
        # Both ONNX's Cast and `int` truncate towards zero.
        return tuple(int(value) for value in values)
    if kind in _FLOATS:
        return tuple(float(value) for value in values)
    raise Unknown


def _rows(tensor: GraphTensor) -> list[Values]:
    """Split the values along the first axis."""
    values, sizes = _known([tensor]), tensor.shape
    if not sizes or not sizes[0]:
        raise Unknown
    length = len(values) // sizes[0]
    return [values[at : at + length] for at in range(0, len(values), length)]


def _gathered(given: Inputs, attributes: Attributes, shape: Sizes) -> Values:
    if attributes.get("axis", 0) != 0:
        raise Unknown
    rows = _rows(given[0])
    # In ONNX, as in Python, a negative index counts from the end.
    return tuple(value for index in _known(given, 1) for value in rows[index])


def _sliced(given: Inputs, attributes: Attributes, shape: Sizes) -> Values:
    # Only slices along the first axis are supported, because `_rows` splits the values along that axis.
    ((axis, part),) = _slices(given, attributes)
    if axis != 0:
        raise Unknown
    return tuple(value for row in _rows(given[0])[part] for value in row)


def _concatenated(given: Inputs, attributes: Attributes, shape: Sizes) -> Values:
    if attributes["axis"] % len(shape) != 0:
        raise Unknown
    return tuple(value for number in range(len(given)) for value in _known(given, number))


def _transposed_values(given: Inputs, attributes: Attributes, shape: Sizes) -> Values:
    if len(shape) != 2 or list(attributes.get("perm", [1, 0])) != [1, 0]:
        raise Unknown
    return tuple(value for column in zip(*_rows(given[0]), strict=True) for value in column)


def _filled(given: Inputs, attributes: Attributes, shape: Sizes) -> Values:
    value = attributes.get("value")
    one = _known([value]) if isinstance(value, GraphTensor) else (0.0,)
    return one * math.prod(shape)


def _counted(given: Inputs, attributes: Attributes, shape: Sizes) -> Sequence[Any]:
    (start,), (limit,), (step,) = (_known(given, number) for number in range(3))
    return range(start, limit, step)


def _as_long(values: Values, count: int) -> Values:
    """Repeat a single value `count` times, or return `count` values as given. Other broadcasts raise `Unknown`."""
    if len(values) not in (1, count):
        raise Unknown
    return values if len(values) == count else values * count


def _each(change: Callable[..., Any]) -> Callable[[Inputs, Attributes, Sizes], Values]:
    def rule(given: Inputs, attributes: Attributes, shape: Sizes) -> Values:
        count = math.prod(shape)
        columns = [_as_long(_known(given, number), count) for number in range(len(given))]
        return tuple(change(*row) for row in zip(*columns, strict=True))

    return rule


def _divided(left: Any, right: Any) -> Any:
    """Divide; truncate integers towards zero, as ONNX does."""
    if isinstance(left, int) and isinstance(right, int):
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return left / right


_VALUE_RULES: Final[Mapping[str, Callable[[Inputs, Attributes, Sizes], Sequence[Any]]]] = {
    "Shape": _shape_values,
    "Size": lambda given, attributes, shape: (math.prod(_shape_values(given, {}, shape)),),
    # These operators do not change the order of the values in memory.
    **dict.fromkeys(("Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten"), lambda given, *_: _known(given)),
    "Cast": _cast,
    "Gather": _gathered,
    "Slice": _sliced,
    "Concat": _concatenated,
    "Transpose": _transposed_values,
    "ConstantOfShape": _filled,
    "Range": _counted,
    "Expand": lambda given, _, shape: _as_long(_known(given), math.prod(shape)),
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
    "ReduceProd": lambda given, *_: (math.prod(_known(given)),),
}
