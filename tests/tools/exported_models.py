"""Small models with patterns that exporters write and QNN refuses, for the tests of `rewrite.exported`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import model_work_models as models
import numpy as np
from onnx import TensorProto

node, value, constant, weights = models.helper.make_node, models.value, models.constant, models.weights

# Sizes of patterns of attention, diffusion models, graph networks and mixtures, and sizes of both operands.
EQUATIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "bct,bcs->bts": ((1, 8, 16), (1, 8, 12)),
    "bts,bcs->bct": ((1, 16, 12), (1, 8, 12)),
    "bhid,bhjd->bhij": ((1, 2, 6, 8), (1, 2, 5, 8)),
    "bqc,bchw->bqhw": ((1, 4, 8), (1, 8, 5, 5)),
    "nctv,vw->nctw": ((1, 3, 6, 5), (5, 5)),
    "bhwc,hkc->bhwk": ((1, 4, 5, 8), (4, 6, 8)),
    "i,j->ij": ((6,), (5,)),
    "bfnd,nde->bfne": ((1, 3, 2, 4), (2, 4, 5)),
    "abc,dbe->ca": ((2, 3, 4), (5, 3, 2)),
}


def einsum(equation: str, *shapes: Sequence[int]) -> Any:
    made = np.einsum(equation, *(np.zeros(shape, np.float32) for shape in shapes))
    names = [f"x{number}" for number in range(len(shapes))]
    return models.model(
        [node("Einsum", names, ["y"], name="einsum", equation=equation)],
        [value(name, list(shape)) for name, shape in zip(names, shapes, strict=True)],
        [value("y", list(made.shape))],
    )


def recurrent(op: str, activations: Sequence[str], direction: str = "forward") -> Any:
    gates, size, ways = {"GRU": 3, "LSTM": 4}[op], 8, 2 if direction == "bidirectional" else 1
    more: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    one = node(
        op,
        ["x", "w", "r"],
        ["y"],
        name="cells",
        hidden_size=size,
        direction=direction,
        activations=activations,
        **more,
    )
    constants = [weights("w", ways, gates * size, 6), weights("r", ways, gates * size, size)]
    return models.model([one], [value("x", [5, 1, 6])], [value("y", [5, ways, 1, size])], constants)


def mask_by_places(places: Sequence[int], *, is_bool: bool = True, negative: bool = False) -> Any:
    """Return mask[0, places] as PyTorch's newer exporter writes it, for attention."""
    many = len(places)
    first = np.full(many, -1 if negative else 0)
    indices = np.stack([first, np.asarray(places)], axis=-1).reshape(1, 1, 1, many, 2).astype(np.int64)
    constants = [constant("i", indices), constant("zero", np.float32(0)), constant("low", np.float32(-1e4))]
    kind = TensorProto.BOOL if is_bool else TensorProto.FLOAT
    nodes = [
        node("Cast", ["m"], ["c"], name="cast", to=kind),
        node("GatherND", ["c", "i"], ["g"], name="gather"),
        node("Where", ["g", "zero", "low"], ["bias"]) if is_bool else node("Mul", ["g", "low"], ["bias"]),
        node("Add", ["x", "bias"], ["y"], name="add"),
    ]
    inputs = [value("m", [1, 8], models.INT64), value("x", [1, 2, 4, many])]
    return models.model(nodes, inputs, [value("y", [1, 2, 4, many])], constants)


def embedding(kind: Any, zero: int | None) -> Any:
    """Return a Gather of rows of a quantised table by ids."""
    table = np.random.default_rng(0).integers(0, 100, (12, 16)).astype(kind)
    constants = [constant("table", table), constant("s", np.float32(0.02)), weights("w", 16, 8)]
    scale = ["s"]
    if zero is not None:
        constants.append(constant("z", kind(zero)))
        scale.append("z")
    nodes = [
        node("Gather", ["table", "i"], ["rows"], name="rows"),
        node("DequantizeLinear", ["rows", *scale], ["d"], name="back"),
        node("MatMul", ["d", "w"], ["y"], name="product"),
    ]
    return models.model(nodes, [value("i", [1, 5], models.INT64)], [value("y", [1, 5, 8])], constants)


def split_sequence(sizes: Any = (4, 4, 8), axis: int = -1, *, keepdims: int = 1) -> Any:
    """Return the sum of the means of the parts 0, 1 and -1 of x [2, 16]."""
    constants = [constant(f"i{number}", np.int64(number)) for number in (0, 1, -1)]
    inputs = ["x"]
    if sizes is not None:
        constants.append(constant("sizes", np.asarray(sizes, np.int64)))
        inputs.append("sizes")
    nodes = [node("SplitToSequence", inputs, ["parts"], name="split", axis=axis, keepdims=keepdims)]
    for number in (0, 1, -1):
        nodes.append(node("SequenceAt", ["parts", f"i{number}"], [f"p{number}"], name=f"at{number}"))
        nodes.append(node("ReduceMean", [f"p{number}"], [f"m{number}"], name=f"mean{number}", keepdims=0))
    nodes += [node("Add", ["m0", "m1"], ["a"], name="add"), node("Add", ["a", "m-1"], ["y"], name="end")]
    return models.model(nodes, [value("x", [2, 16])], [value("y", [])], constants)


def scattered(
    reduction: str = "add", *, fixed: bool = False, integers: int = models.INT64, copied: bool = False
) -> Any:
    """Return a scatter of messages [30, 8] to 12 nodes; the indices are expanded from an input, or constants.

    Args:
        integers: type of the indices.
        copied: an Identity follows the indices.
    """
    rows = np.random.default_rng(0).integers(0, 12, (30, 1))
    constants = [constant("zero", np.ones((12, 8), np.float32))]
    nodes, inputs = [], [value("x", [30, 8])]
    if fixed:
        constants.append(constant("all", np.repeat(rows, 8, axis=1)))
    else:
        constants += [constant("column", np.array([30, 1])), constant("sizes", np.array([30, 8]))]
        nodes = [
            node("Reshape", ["to", "column"], ["i"]),
            node("Expand", ["i", "sizes"], ["e" if copied else "all"]),
        ]
        nodes += [node("Identity", ["e"], ["all"])] if copied else []
        inputs.append(value("to", [30], integers))
    nodes.append(node("ScatterElements", ["zero", "all", "x"], ["y"], name="scatter", axis=0, reduction=reduction))
    return models.model(nodes, inputs, [value("y", [12, 8])], constants, opset=18)


def without_kernel(op: str) -> Any:
    """Return a Conv and an operator that ONNX Runtime expands by its definition."""
    more: dict[str, Any] = {"num_groups": 2} if op == "GroupNormalization" else {}
    given = ["c", "s", "b"] if op == "GroupNormalization" else ["c"]
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4),
        node(op, given, ["y"], name="written_out", **more),
    ]
    constants = [
        weights("w", 8, 4, 3, 3),
        *([weights("s", 2), weights("b", 2)] if op == "GroupNormalization" else []),
    ]
    return models.model(nodes, [value("x", [1, 4, 8, 8])], [value("y", [1, 8, 8, 8])], constants, opset=18)


def dft(shape: Sequence[int], axis: int, *, length: int | None = None, opset: int = 20, **attributes: int) -> Any:
    """Return a DFT of x, whose last axis has one part or two."""
    constants, given = [], ["x", ""]
    if length is not None:
        constants.append(constant("length", np.int64(length)))
        given[1] = "length"
    if opset >= 20:
        constants.append(constant("axis", np.int64(axis)))
        given.append("axis")
    else:
        attributes["axis"] = axis
    made = shape[axis] if length is None else length
    made = made // 2 + 1 if attributes.get("onesided") else made
    sizes = [made if at == axis % len(shape) else size for at, size in enumerate(shape[:-1])]
    one = node("DFT", given if given[-1] else given[:1], ["y"], name="dft", **attributes)
    return models.model([one], [value("x", list(shape))], [value("y", [*sizes, 2])], constants, opset=opset)


def unfolding() -> Any:
    """Return windows of 9 along an axis, as the newer and older exporter write `unfold`: Gather makes six
    dimensions.
    """
    places = np.arange(9)[:, None] + np.arange(4)
    constants = [
        constant("places", places),
        constant("one", np.zeros((1, 1), np.int64)),
        constant("flat", np.array([1, 72, 4])),
    ]
    nodes = [
        node("Gather", ["x", "places"], ["five"], name="rows", axis=2),
        node("Gather", ["five", "one"], ["six"], name="columns", axis=-1),
        node("Transpose", ["six"], ["turned"], name="turn", perm=[0, 1, 2, 4, 3, 5]),
        node("Reshape", ["turned", "flat"], ["y"], name="flat"),
    ]
    return models.model(nodes, [value("x", [1, 8, 12, 1])], [value("y", [1, 72, 4])], constants)


def fold_windows(
    window: Sequence[int], image: Sequence[int], strides: Sequence[int], pads: Sequence[int], channels: int = 3
) -> Any:
    """Return Col2Im, as PyTorch writes `fold`; it follows a Conv, so that its input is computed."""
    many = len(window)
    steps = [(image[at] + pads[at] + pads[at + many] - window[at]) // strides[at] + 1 for at in range(many)]
    places, columns = channels * int(np.prod(window)), int(np.prod(steps))
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Col2Im", ["c", "image", "window"], ["y"], name="fold", strides=strides, pads=pads),
    ]
    constants = [
        weights("w", places, 4, 1),
        constant("image", np.array(image)),
        constant("window", np.array(window)),
    ]
    return models.model(
        nodes, [value("x", [1, 4, columns])], [value("y", [1, channels, *image])], constants, opset=18
    )


_DEEP = [1, 2, 3, 4, 6]


def deep(op: str, *, inputs: int = 1, made: Sequence[int] = _DEEP, opset: int = 21, **attributes: Any) -> Any:
    """Return one operator over five dimensions of positive numbers. Further inputs are constants, one per channel."""
    names = [f"p{number}" for number in range(1, inputs)]
    constants = [constant(name, np.linspace(0.5, 1.5, 2, dtype=np.float32)) for name in names]
    one = node(op, ["x", *names], ["y"], name="deep", **attributes)
    return models.model([one], [value("x", _DEEP)], [value("y", list(made))], constants, opset=opset)


def deep_truth(op: str) -> Any:
    nodes = [
        node("Greater", ["x", "a"], ["g"]),
        node("Less", ["x", "b"], ["l"]),
        node(op, ["g", "l"], ["both"], name="deep"),
        node("Where", ["both", "x", "a"], ["y"], name="where"),
    ]
    constants = [constant("a", np.float32(0.8)), constant("b", np.float32(1.2))]
    return models.model(nodes, [value("x", _DEEP)], [value("y", _DEEP)], constants)


def deep_normalization(op: str, shape: Sequence[int] = _DEEP, axis: int = -1) -> Any:
    scale = [
        constant("s", np.linspace(0.5, 1.5, int(np.prod(shape[axis:])), dtype=np.float32).reshape(shape[axis:]))
    ]
    bias = [constant("b", np.full(shape[axis:], 0.25, np.float32))] if op == "LayerNormalization" else []
    one = node(op, ["x", *(tensor.name for tensor in [*scale, *bias])], ["y"], name="deep", axis=axis)
    return models.model([one], [value("x", list(shape))], [value("y", list(shape))], scale + bias, opset=23)


def deep_sums() -> Any:
    one = node("CumSum", ["x", "axis"], ["y"], name="deep")
    return models.model([one], [value("x", _DEEP)], [value("y", _DEEP)], [constant("axis", np.array(-2))])


def six(op: str) -> Any:
    """Return parts of queries, keys and values in windows, as in Hiera."""
    constants = [constant("shape", np.array([1, 2, 4, 3, 2, 8])), constant("flat", np.array([1, 2, 4, 3, 8]))]
    constants += [constant("sizes", np.array([1, 1]))]
    constants += [constant(name, np.array(numbers)) for name, numbers in (("from", [1, 0]), ("to", [2, 3]))]
    constants += [constant("along", np.array([-2, 2])), constant("some", np.array([1, 2, 3, 3, 8]))]
    nodes = [node("Reshape", ["x", "shape"], ["six"], name="six")]
    if op == "Slice":
        nodes += [node("Slice", ["six", "from", "to", "along"], ["part"], name="part")]
        nodes += [node("Reshape", ["part", "some"], ["y"], name="some")]
    else:
        nodes += [node("Split", ["six", "sizes"], ["k", "v"], name="part", axis=4)]
        nodes += [node("Reshape", ["k", "flat"], ["a"]), node("Reshape", ["v", "flat"], ["b"])]
        nodes += [node("Mul", ["a", "b"], ["y"], name="mul")]
    made = [1, 2, 3, 3, 8] if op == "Slice" else [1, 2, 4, 3, 8]
    return models.model(nodes, [value("x", [1, 2, 12, 16])], [value("y", made)], constants)


def deep_l2() -> Any:
    nodes = [
        node("ReduceL2", ["x", "last"], ["n"], name="deep"),
        node("Div", ["x", "n"], ["y"], name="normal"),
    ]
    return models.model(
        nodes, [value("x", _DEEP)], [value("y", _DEEP)], [constant("last", np.array([4]))], opset=18
    )


def deep_pool(pads: Sequence[int], strides: Sequence[int] = (2, 2, 2), **attributes: Any) -> Any:
    """Return a 3-D MaxPool. The Conv returns values of both signs, so that padding with zeros would be visible."""
    shape, kernel = [7, 8, 9], [3, 2, 3]
    round_up = attributes.get("ceil_mode", 0)
    made = []
    for at in range(3):
        steps = (shape[at] + pads[at] + pads[at + 3] - kernel[at]) / strides[at]
        made.append(int(np.ceil(steps) if round_up else np.floor(steps)) + 1)
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("MaxPool", ["c"], ["y"], name="pool", kernel_shape=kernel, strides=strides, pads=pads, **attributes),
    ]
    constants = [weights("w", 4, 3, 1, 1, 1)]
    return models.model(nodes, [value("x", [1, 3, *shape])], [value("y", [1, 4, *made])], constants, opset=18)


def equal_truth() -> Any:
    """Return x where two comparisons agree."""
    nodes = [
        node("Greater", ["x", "a"], ["g"]),
        node("Less", ["x", "b"], ["l"]),
        node("Equal", ["g", "l"], ["same"], name="equal"),
        node("Where", ["same", "x", "a"], ["y"], name="where"),
    ]
    constants = [constant("a", np.float32(0.8)), constant("b", np.float32(1.2))]
    return models.model(nodes, [value("x", [1, 4, 8])], [value("y", [1, 4, 8])], constants)


def rows_by(op: str) -> Any:
    """Return a Gather of rows of a table by ids that are negated, or padded."""
    constants = [weights("table", 14, 6), constant("last", np.array(13)), constant("pads", np.array([0, 1, 0, 2]))]
    constants.append(constant("border", np.array(3)))
    if op == "Neg":
        nodes = [node("Neg", ["i"], ["n"], name="negative"), node("Add", ["n", "last"], ["r"])]
    else:
        nodes = [node("Pad", ["i", "pads", "border"], ["r"], name="padded")]
    nodes.append(node("Gather", ["table", "r"], ["y"], name="rows"))
    many = 5 if op == "Neg" else 8
    return models.model(nodes, [value("i", [1, 5], models.INT64)], [value("y", [1, many, 6])], constants)


def padded_truth() -> Any:
    nodes = [
        node("Greater", ["x", "a"], ["g"]),
        node("Pad", ["g", "pads", "yes"], ["m"], name="padded"),
        node("Where", ["m", "z", "a"], ["y"], name="where"),
    ]
    constants = [constant("a", np.float32(1)), constant("pads", np.array([0, 1, 0, 0, 0, 3]))]
    constants.append(constant("yes", np.array(True)))
    inputs = [value("x", [1, 4, 8]), value("z", [1, 5, 11])]
    return models.model(nodes, inputs, [value("y", [1, 5, 11])], constants)


def repeated_doubles() -> Any:
    """Return the table of a rotary embedding in doubles, as FLUX computes it."""
    constants = [constant("f", np.array([1.0, 0.25])), constant("last", np.array([2]))]
    constants += [constant("twice", np.array([5, 2, 2])), constant("flat", np.array([5, 4]))]
    nodes = [
        node("Cast", ["x"], ["wide"], name="widen", to=TensorProto.DOUBLE),
        node("Mul", ["wide", "f"], ["angle"], name="angle"),
        node("Cos", ["angle"], ["c"], name="cos"),
        node("Unsqueeze", ["c", "last"], ["u"], name="column"),
        node("Expand", ["u", "twice"], ["e"], name="repeat"),
        node("Reshape", ["e", "flat"], ["r"], name="flat"),
        node("Cast", ["r"], ["y"], name="narrow", to=TensorProto.FLOAT),
    ]
    return models.model(nodes, [value("x", [5, 1])], [value("y", [5, 4])], constants)


def own_statistics() -> Any:
    """Return a BatchNormalization in training mode, whose other outputs are unused."""
    constants = [constant(name, np.full(4, number, np.float32)) for name, number in (("one", 1), ("zero", 0))]
    given = ["x", "one", "zero", "zero", "one"]
    one = node("BatchNormalization", given, ["y", "mean", "variance"], name="normal", training_mode=1)
    return models.model([one], [value("x", _SIZES)], [value("y", _SIZES)], constants)


def wide_integers() -> Any:
    """Return products of masks, in int64 and five dimensions, as in the block-sparse attention of BigBird."""
    constants = [constant("five", np.array([1, 2, 3, 4, 5]))]
    nodes = [
        node("Add", ["m", "m"], ["a"], name="twice"),
        node("Reshape", ["a", "five"], ["r"], name="blocks"),
        node("Transpose", ["r"], ["t"], name="turn", perm=[0, 2, 1, 4, 3]),
        node("Cast", ["t"], ["c"], name="cast", to=TensorProto.FLOAT),
        node("Mul", ["c", "x"], ["y"], name="mul"),
    ]
    shape = [1, 3, 2, 5, 4]
    inputs = [value("m", [6, 20], models.INT64), value("x", shape)]
    return models.model(nodes, inputs, [value("y", shape)], constants)


FIVE = [1, 2, 3, 2, 4]


def of_five(nodes: Sequence[str], shape: Sequence[int]) -> Any:
    """Return a model with int64 tensors of five dimensions.

    Args:
        nodes: texts like "Cast:1 x y"; the nodes read x, perhaps b, and write y, perhaps z.
    """
    made = []
    for text in nodes:
        op, *names = text.split()
        op, _, to = op.partition(":")
        made.append(node(op, names[:-1], names[-1:], name=f"{op}{len(made)}", **({"to": int(to)} if to else {})))
    lists = {"s": FIVE, "flat": [-1], "zero": [0], "ones": [1] * 5}
    constants = [constant(name, np.array(numbers)) for name, numbers in lists.items()]
    constants.append(constant("large", np.full((1,) * 5, 2**40)))
    inputs = [value("x", shape, models.INT64)]
    inputs += [value("b", [48], models.INT64)] if any(" b " in text for text in nodes) else []
    shown = [name for name in ("y", "z") if any(text.endswith(f" {name}") for text in nodes)]
    outputs = [models.helper.make_empty_tensor_value_info(name) for name in shown]
    return models.model(made, inputs, outputs, constants)


def einsum_of_integers() -> Any:
    """Return the product of each mask with each mask, as BigBird writes it."""
    constants = [constant("half", np.float32(0.5))]
    nodes = [
        node("Einsum", ["i", "m"], ["e"], name="einsum", equation="blq,blk->blqk"),
        node("Cast", ["e"], ["c"], name="cast", to=TensorProto.FLOAT),
        node("Mul", ["c", "half"], ["y"], name="mul"),
    ]
    inputs = [value("i", [1, 3, 4], models.INT64), value("m", [1, 3, 5], models.INT64)]
    return models.model(nodes, inputs, [value("y", [1, 3, 4, 5])], constants)


def body_with_a_weight(op: str, *, shared: bool = True) -> Any:
    """Return a Loop, Scan or If whose body multiplies by a weight. shared: QNN multiplies by the same weight."""
    product = node("MatMul", ["state" if op != "If" else "a", "w"], ["p"], name="inner")
    state, made, flag = value("state", [1, 8]), value("t", [1, 8]), TensorProto.BOOL
    tanh = node("Tanh", ["p"], ["t"])
    constants = [
        weights("w", 8, 8),
        weights("v", 8, 8),
        constant("three", np.array(3)),
        constant("yes", np.array(True)),
    ]
    inputs = [value("x", [1, 8])]
    if op == "If":
        other = models.helper.make_graph([node("Relu", ["a"], ["u"])], "else", [], [value("u", [1, 8])])
        then = models.helper.make_graph([product, tanh], "then", [], [made])
        body = node("If", ["c"], ["b"], name="body", then_branch=then, else_branch=other)
        inputs.append(value("c", [], flag))
    elif op == "Loop":
        goes_on = node("Identity", ["go"], ["go_on"])
        begin, end = (
            [value("i", [], TensorProto.INT64), value("go", [], flag), state],
            [value("go_on", [], flag), made],
        )
        inner = models.helper.make_graph([product, tanh, goes_on], "loop", begin, end)
        body = node("Loop", ["three", "yes", "a"], ["b"], name="body", body=inner)
    else:
        summed = node("Add", ["p", "e"], ["t"])
        inner = models.helper.make_graph([product, summed], "scan", [state, value("e", [1, 8])], [made])
        body = node("Scan", ["a", "rows"], ["b"], name="body", body=inner, num_scan_inputs=1)
        inputs.append(value("rows", [3, 1, 8]))
    nodes = [node("MatMul", ["x", "w" if shared else "v"], ["a"], name="outer"), body, node("Relu", ["b"], ["y"])]
    return models.model(nodes, inputs, [value("y", [1, 8])], constants, opset=17)


def attention_with_bool_mask() -> Any:
    """Return the attention operator of opset 23, whose mask is an input."""
    shape = [1, 2, 6, 8]
    inputs = [*(value(name, shape) for name in "qkv"), value("m", [6, 6], TensorProto.BOOL)]
    nodes = [node("Attention", ["q", "k", "v", "m"], ["y"], name="attention")]
    return models.model(nodes, inputs, [value("y", shape)], opset=23)


def masked_attention(never: float, scale: float | None = None) -> Any:
    """Return Softmax of scores that a boolean mask selects, as PyTorch writes it. scale: scale of its argument in
    uint8.
    """
    nodes = [
        node("MatMul", ["q", "k"], ["scores"], name="scores"),
        node("Where", ["m", "scores", "never"], ["masked"], name="where"),
    ]
    constants = [constant("never", np.float32(never))]
    argument = "masked"
    if scale is not None:
        constants += [constant("scale", np.float32(scale)), constant("zero", np.uint8(250))]
        nodes += [
            node("QuantizeLinear", ["masked", "scale", "zero"], ["small"], name="quantise"),
            node("DequantizeLinear", ["small", "scale", "zero"], ["steps"], name="back"),
        ]
        argument = "steps"
    nodes.append(node("Softmax", [argument], ["y"], name="softmax", axis=-1))
    inputs = [value("q", [1, 6, 8]), value("k", [1, 8, 6]), value("m", [1, 6, 6], TensorProto.BOOL)]
    return models.model(nodes, inputs, [value("y", [1, 6, 6])], constants)


_SIZES = [1, 4, 8, 8]


def double_output(add: float = 0.5, factor: float = 8.0, *, back: bool = False) -> Any:
    """Return ((Conv + add) - add) * factor in doubles, as the older exporter of PyTorch writes the boxes of a
    detector.

    Args:
        back: the output is converted back to float.
    """
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4),
        node("Cast", ["c"], ["wide"], name="widen", to=TensorProto.DOUBLE),
        node("Add", ["wide", "a"], ["moved"], name="add"),
        node("Sub", ["moved", "a"], ["there"], name="sub"),
        node("Mul", ["there", "f"], ["y" if not back else "boxes"], name="boxes"),
        *([node("Cast", ["boxes"], ["y"], name="narrow", to=TensorProto.FLOAT)] if back else []),
    ]
    constants = [weights("w", 4, 4, 3, 3), constant("a", np.float64(add)), constant("f", np.float64(factor))]
    kind = TensorProto.FLOAT if back else TensorProto.DOUBLE
    return models.model(nodes, [value("x", _SIZES)], [value("y", _SIZES, kind)], constants)


def constant_double_output() -> Any:
    """Return anchors that follow from constants only, in a model with a Conv."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4),
        node("Add", ["r", "h"], ["y"], name="anchors"),
    ]
    constants = [
        weights("w", 4, 4, 3, 3),
        constant("r", np.array([0.0, 16777217.0, 1e300])),
        constant("h", np.float64(0.5)),
    ]
    outputs = [value("c", _SIZES), value("y", [3], TensorProto.DOUBLE)]
    return models.model(nodes, [value("x", _SIZES)], outputs, constants)


def double_everywhere() -> Any:
    """Return a model with inputs, weights and outputs in doubles; one output is a scalar, and another part reads
    one.
    """
    kind = TensorProto.DOUBLE
    nodes = [
        node("MatMul", ["x", "w"], ["p"], name="product"),
        node("Relu", ["p"], ["y"], name="relu"),
        node("ReduceMean", ["y"], ["m"], name="mean", keepdims=0),
        node("Cast", ["y"], ["f"], name="narrow", to=TensorProto.FLOAT),
        node("Sigmoid", ["f"], ["z"], name="sigmoid"),
    ]
    outputs = [value("y", [4, 8], kind), value("m", [], kind), value("z", [4, 8])]
    wide = np.random.default_rng(0).normal(size=(8, 8))
    return models.model(nodes, [value("x", [4, 8], kind)], outputs, [constant("w", wide)])


# Values that QNN would receive or return in 64 bits.
DOUBLES: dict[str, tuple[str, Callable[[], Any]]] = {
    "a double output": ("double-edges", double_output),
    "doubles everywhere": ("double-edges", double_everywhere),
}

# Description -> the rewrite for the model, and the model.
ONE_OF_EACH: dict[str, tuple[str, Callable[[], Any]]] = {
    **{
        equation: ("einsum", lambda equation=equation, shapes=shapes: einsum(equation, *shapes))
        for equation, shapes in EQUATIONS.items()
    },
    **{op: ("definitions", lambda op=op: without_kernel(op)) for op in ("Mish", "GroupNormalization")},
    "Einsum of three": ("einsum", lambda: einsum("ab,bc,cd->da", (2, 3), (3, 4), (4, 5))),
    "Einsum element by element": ("einsum", lambda: einsum("abc,cba->abc", (2, 3, 4), (4, 3, 2))),
    "Einsum of one": ("einsum", lambda: einsum("abc->ca", (2, 3, 4))),
    "stated GRU": ("default-activations", lambda: recurrent("GRU", ["Sigmoid", "Tanh"])),
    "stated LSTM of both ways": (
        "default-activations",
        lambda: recurrent("LSTM", ["Sigmoid", "Tanh", "Tanh"] * 2, "bidirectional"),
    ),
    "mask by places": ("gather-places", lambda: mask_by_places(range(8))),
    "mask by some places": ("gather-places", lambda: mask_by_places([6, 2, 2, 7, 0], negative=True)),
    "float mask by some places": ("gather-places", lambda: mask_by_places([6, 2, -1], is_bool=False)),
    "rows of an int8 table": ("integer-table", lambda: embedding(np.int8, 0)),
    "rows of a uint8 table": ("integer-table", lambda: embedding(np.uint8, 7)),
    "rows of a table without zero": ("integer-table", lambda: embedding(np.uint8, None)),
    "split of three sizes": ("sequence-parts", split_sequence),
    "split of one size": ("sequence-parts", lambda: split_sequence(5)),
    "split into single ones": ("sequence-parts", lambda: split_sequence(None, 1, keepdims=0)),
    **{
        f"scattered rows, {reduction}": ("scatter-rows", lambda reduction=reduction: scattered(reduction))
        for reduction in ("add", "mul")
    },
    "Attention with a mask of truth values": ("attention-mask", attention_with_bool_mask),
    "scattered rows of int32": ("scatter-rows", lambda: scattered(integers=TensorProto.INT32)),
    "scattered constant rows": ("scatter-rows", lambda: scattered(fixed=True)),
    "DFT of real values": ("dft", lambda: dft((2, 3, 8, 1), 2)),
    "DFT of complex values along another axis": ("dft", lambda: dft((2, 6, 12, 2), 1)),
    "inverse DFT": ("dft", lambda: dft((1, 12, 2), -2, inverse=1)),
    "DFT of one side": ("dft", lambda: dft((1, 12, 1), 1, onesided=1, opset=17)),
    "DFT of a longer signal": ("dft", lambda: dft((1, 12, 1), 1, length=16)),
    "DFT of the beginning": ("dft", lambda: dft((1, 12, 2), 1, length=7, opset=17)),
    "unfolded windows": ("rank", unfolding),
    "repeated doubles": ("inner-doubles", repeated_doubles),
    "Einsum with dots": ("einsum", lambda: einsum("...ij,jk->...ik", (2, 3, 4, 5), (5, 6))),
    "Einsum with dots and no result": ("einsum", lambda: einsum("...ij,...jk", (2, 3, 4, 5), (2, 3, 5, 6))),
    "Einsum of integers": ("einsum", einsum_of_integers),
    **{
        f"scattered rows, {reduction}": ("scatter-extremes", lambda reduction=reduction: scattered(reduction))
        for reduction in ("max", "min")
    },
    "scattered rows behind an Identity": ("scatter-rows", lambda: scattered(copied=True)),
    "scattered constant rows, max": ("scatter-extremes", lambda: scattered("max", fixed=True)),
    "fold": ("col2im", lambda: fold_windows([3, 3], [8, 8], [2, 2], [1, 1, 1, 1])),
    "fold of unlike axes": ("col2im", lambda: fold_windows([2, 3], [5, 9], [1, 3], [0, 1, 1, 0])),
    "fold with a rest": ("col2im", lambda: fold_windows([3, 2], [8, 9], [3, 2], [0, 0, 0, 0])),
    "fold of one axis": ("col2im", lambda: fold_windows([4], [16], [2], [1, 1])),
    "Equal of truth values": ("equal-bool", equal_truth),
    "Neg of integers": ("negative-integer", lambda: rows_by("Neg")),
    "Pad of integers": ("integer-padding", lambda: rows_by("Pad")),
    "Pad of truth values": ("integer-padding", padded_truth),
    **{
        f"{op} of five dimensions": ("rank", lambda op=op: deep(op))
        for op in ("Sqrt", "Tanh", "Log", "Sin", "Sign", "HardSwish", "LpNormalization", "LogSoftmax")
    },
    "And of five dimensions": ("rank", lambda: deep_truth("And")),
    "InstanceNormalization in space": ("rank", lambda: deep("InstanceNormalization", inputs=3)),
    "GroupNormalization in space": ("definitions", lambda: deep("GroupNormalization", inputs=3, num_groups=1)),
    "CumSum of five dimensions": ("rank", deep_sums),
    **{f"{op} of six dimensions": ("rank", lambda op=op: six(op)) for op in ("Slice", "Split")},
    "BatchNormalization in space": ("rank", lambda: deep("BatchNormalization", inputs=5)),
    "GlobalMaxPool in space": ("rank", lambda: deep("GlobalMaxPool", made=[1, 2, 1, 1, 1])),
    "LayerNormalization of five dimensions": ("rank", lambda: deep_normalization("LayerNormalization")),
    "RMSNormalization of five dimensions": ("rank", lambda: deep_normalization("RMSNormalization")),
    "LayerNormalization of three axes": (
        "rank",
        lambda: deep_normalization("LayerNormalization", [2, 4, 5, 6], -3),
    ),
    "ReduceL2 of five dimensions": ("rank", deep_l2),
    "MaxPool in space": ("rank", lambda: deep_pool([1, 0, 1, 1, 1, 1])),
    "MaxPool in space, rounded up": ("rank", lambda: deep_pool([0] * 6, (2, 3, 1), ceil_mode=1)),
}
