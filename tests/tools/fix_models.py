"""One small model for each rewrite of `fix`, with the pattern that it rewrites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import exported_models
import model_work_models as models
import numpy as np
from lab.sweep.cases import float_model, quantised_model
from lab.sweep.report import model_to_read
from onnx import TensorProto, helper, numpy_helper
from quantised_products import product

from qnnbridge_host.model.known_wrong import WrongOperator, table
from qnnbridge_host.numerics.cases import Case, SweepNode, SweepTensor

node, value, constant, weights = helper.make_node, models.value, models.constant, models.weights
BOOL = TensorProto.BOOL


def chain(nodes: list[Any], x: list[Any], y: list[Any], constants: list[Any] | None = None, **kwargs: Any) -> Any:
    """Return a model from x to y."""
    return models.model(nodes, [value("x", x)], [value("y", y)], constants or [], **kwargs)


def pow_of(exponent: Any) -> Any:
    return chain([node("Pow", ["x", "e"], ["y"], name="pow")], [2, 8], [2, 8], [constant("e", exponent)])


def dynamic_integer_exponent() -> Any:
    return models.model(
        [node("Pow", ["x", "e"], ["y"], name="pow")],
        [value("x", [2, 8]), value("e", [1], models.INT64)],
        [value("y", [2, 8])],
    )


def edge_padding(pads: list[int], axes: list[int] | None = None) -> Any:
    constants = [constant("p", np.asarray(pads, np.int64))]
    inputs, opset = ["x", "p"], 17
    if axes is not None:
        constants.append(constant("a", np.asarray(axes, np.int64)))
        inputs, opset = ["x", "p", "", "a"], 18
    half = len(pads) // 2
    shape = [1, 4, 10]
    for number, axis in enumerate(axes or range(3)):
        shape[axis] += pads[number] + pads[number + half]
    return chain([node("Pad", inputs, ["y"], mode="edge", name="pad")], [1, 4, 10], shape, constants, opset=opset)


def negative_indices(op: str) -> Any:
    constants = {
        "Gather": [constant("i", np.array([-1, 0, -3]))],
        "GatherElements": [constant("i", np.array([[-1, 0, 2], [-3, 1, -2]]))],
        "GatherND": [constant("i", np.array([[-1, 0], [1, -2]]))],
        "ScatterElements": [constant("i", np.array([[-1, 0, -2]])), constant("u", np.ones((1, 3), np.float32))],
        "ScatterND": [constant("i", np.array([[-1], [0]])), constant("u", np.ones((2, 5), np.float32))],
    }[op]
    attributes = {"axis": 1} if op in ("Gather", "GatherElements", "ScatterElements") else {}
    made = node(op, ["x", *(c.name for c in constants)], ["y"], name="index", **attributes)
    shape: list[Any] = [2] if op == "GatherND" else [None, None]
    return models.model([made], [value("x", [4, 5])], [value("y", shape)], constants)


def gemm(alpha: float, beta: float, *, constant_weights: bool = True) -> Any:
    made = node("Gemm", ["x", "w", "b"], ["y"], alpha=alpha, beta=beta, transB=1, name="gemm")
    bias = constant("b", np.ones(3, np.float32))
    if constant_weights:
        return chain([made], [2, 8], [2, 3], [weights("w", 3, 8), bias])
    return models.model([made], [value("x", [2, 8]), value("w", [3, 8])], [value("y", [2, 3])], [bias])


def computed_clip() -> Any:
    return chain(
        [
            node("ReduceMax", ["x"], ["most"], keepdims=0, name="most"),
            node("Sub", ["most", "room"], ["least"], name="least"),
            node("Clip", ["x", "least"], ["y"], name="clip"),
        ],
        [2, 8],
        [2, 8],
        [constant("room", np.float32(0.25))],
    )


def unused_statistics() -> Any:
    return chain(
        [node("LayerNormalization", ["x", "s"], ["y", "mean", "deviation"], axis=-1, name="norm")],
        [2, 8],
        [2, 8],
        [constant("s", np.ones(8, np.float32))],
    )


def trilu(upper: int) -> Any:
    return chain(
        [node("Trilu", ["x", "k"], ["y"], upper=upper, name="trilu")], [2, 5, 4], [2, 5, 4], [constant("k", 1)]
    )


def skip_norm() -> Any:
    return chain(
        [
            node("Neg", ["x"], ["n"], name="neg"),
            node(
                "SkipLayerNormalization",
                ["x", "n", "g", "b", "more"],
                ["y", "", "", "sum"],
                domain="com.microsoft",
                name="skip",
                epsilon=1e-5,
            ),
            node("Relu", ["sum"], ["z"], name="relu"),
        ],
        [1, 4, 8],
        [1, 4, 8],
        [
            constant("g", np.linspace(0.5, 1, 8, dtype=np.float32)),
            constant("b", np.ones(8, np.float32)),
            constant("more", np.linspace(0, 1, 8, dtype=np.float32)),
        ],
        domains={"com.microsoft": 1},
    )


def missing(op: str, opset: int = 17) -> Any:
    attributes: dict[str, Any] = {"axes": [1]} if op.startswith("Reduce") and opset < 18 else {}
    if op == "Celu":
        attributes["alpha"] = 0.5
    inputs, constants = ["x"], []
    if op.startswith("Reduce") and opset >= 18:
        inputs, constants = ["x", "a"], [constant("a", np.array([1]))]
    shape = [2, 1] if op.startswith("Reduce") else [2, 8]
    return chain([node(op, inputs, ["y"], name="missing", **attributes)], [2, 8], shape, constants, opset=opset)


def infinite_half() -> Any:
    """Return the check of a sum in a T5 with half floats, which both exporters of PyTorch convert to float."""
    nodes = [
        node("Add", ["x", "x"], ["s"], name="sum"),
        node("Cast", ["s"], ["f"], name="cast", to=TensorProto.FLOAT),
        node("IsInf", ["f"], ["b"], name="infinite"),
        node("Where", ["b", "zero", "s"], ["y"], name="choice"),
    ]
    made = chain(nodes, [2, 8], [2, 8], [constant("zero", np.float16(0))])
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


def erf(*, in_gelu: bool) -> Any:
    nodes = [
        node("Div", ["x", "root"], ["d"], name="div"),
        node("Erf", ["d"], ["e" if in_gelu else "y"], name="erf"),
    ]
    if in_gelu:
        nodes += [
            node("Add", ["e", "one"], ["a"], name="add"),
            node("Mul", ["x", "a"], ["m"], name="mul"),
            node("Mul", ["m", "half"], ["y"], name="halve"),
        ]
    numbers = {"root": np.sqrt(2), "one": 1, "half": 0.5}
    return chain(nodes, [2, 8], [2, 8], [constant(name, np.float32(number)) for name, number in numbers.items()])


def windows() -> Any:
    """Return part of a Swin transformer: pictures cut into windows over six dimensions, and a softmax in each."""
    shape = lambda name, *sizes: constant(name, np.array(sizes))  # noqa: E731
    return chain(
        [
            node("Reshape", ["x", "s6"], ["six"], name="cut"),
            node("Transpose", ["six"], ["turned"], perm=[0, 1, 3, 2, 4, 5], name="turn"),
            node("Softmax", ["turned"], ["soft"], axis=3, name="soft"),
            node("Add", ["soft", "bias"], ["sum"], name="add"),
            node("ReduceMean", ["sum"], ["mean"], axes=[-1], keepdims=1, name="mean"),
            node("Sub", ["sum", "mean"], ["centred"], name="centre"),
            node("Reshape", ["centred", "s3"], ["y"], name="flat"),
        ],
        [2, 8, 8, 3],
        [32, 4, 3],
        [shape("s6", 2, 4, 2, 4, 2, 3), shape("s3", 32, 4, 3), weights("bias", 1, 1, 1, 2, 2, 1)],
    )


def scattered_transpose() -> Any:
    """Return a transpose of six axes of which no two stay adjacent."""
    return chain(
        [
            node("Reshape", ["x", "s"], ["six"], name="cut"),
            node("Transpose", ["six"], ["turned"], perm=[4, 1, 5, 2, 0, 3], name="turn"),
            node("Reshape", ["turned", "flat"], ["y"], name="flat"),
        ],
        [24, 30],
        [720],
        [constant("s", np.array([2, 3, 4, 5, 3, 2])), constant("flat", np.array([720]))],
    )


def sum_of_six_dimensions() -> Any:
    """Return a sum over all six dimensions, without axes."""
    return chain([node("ReduceSum", ["x"], ["y"], keepdims=0, name="sum")], [1, 2, 3, 1, 2, 3], [])


def large_matmul() -> Any:
    return chain(
        [node("MatMul", ["x", "w"], ["y"], name="matmul")],
        [2, 3, 4, 5, 6],
        [2, 3, 4, 5, 2],
        [weights("w", 1, 1, 1, 6, 2)],
    )


def empty_state() -> Any:
    """Return a state that is cut to zero elements and concatenated with the input, as streaming models do at the
    start.
    """
    return chain(
        [
            node("Slice", ["x", "zero", "zero", "one"], ["state"], name="cut"),
            node("Concat", ["state", "x"], ["both"], axis=1, name="join"),
            node("Split", ["both", "sizes"], ["none", "all"], axis=1, name="split"),
            node("Relu", ["none"], ["nothing"], name="relu_of_nothing"),
            node("ReduceSum", ["nothing", "one"], ["sum"], keepdims=1, name="sum_of_nothing"),
            node("Add", ["all", "sum"], ["y"], name="add"),
        ],
        [2, 8],
        [2, 8],
        [constant("zero", np.array([0])), constant("one", np.array([1])), constant("sizes", np.array([0, 8]))],
    )


def branch_by_rank() -> Any:
    """Return an If on the number of elements, one branch of which is impossible once the sizes are fixed."""
    three = helper.make_graph(
        [node("Squeeze", ["x", "axis"], ["t0"]), node("Relu", ["t0"], ["t"])],
        "three",
        [],
        [value("t", [None, 8])],
        [constant("axis", np.array([0]))],
    )
    two = helper.make_graph(
        [node("ReduceMean", ["x"], ["e0"], axes=[0], keepdims=0), node("Neg", ["e0"], ["e"])],
        "two",
        [],
        [value("e", [None, 8])],
    )
    return models.model(
        [
            node("Shape", ["x"], ["shape"], name="shape"),
            node("Gather", ["shape", "index"], ["first"], name="gather"),
            node("Equal", ["first", "one"], ["is_one"], name="equal"),
            node("If", ["is_one"], ["chosen"], then_branch=three, else_branch=two, name="if"),
            node("MatMul", ["chosen", "w"], ["y"], name="matmul"),
        ],
        [value("x", ["batch", "time", 8])],
        [value("y", ["time", 4])],
        [constant("index", np.int64(0)), constant("one", np.int64(1)), weights("w", 8, 4)],
    )


# Smallest and largest value of x, and of each result of a Gelu of five operators.
GELU_RANGES = {"x": (-4, 4), "y0": (-2.83, 2.83), "y1": (-1, 1), "y2": (0, 2), "y3": (-0.34, 8), "y4": (-0.17, 4)}


def gelu_case(*, half_first: bool = False, form: str = "qdq8", behind: str = "", half_last: bool = False) -> Case:
    """Return a Gelu of five operators.

    Args:
        half_first: x is halved first.
        behind: an operator in front of the Gelu.
        half_last: the constant is multiplied before x, as in PyTorch's newer exporter.
    """
    shape = (1, 16, 64)
    tensors = {
        "x": SweepTensor(shape, "float", ["uniform", -4, 4]),
        "root": SweepTensor((), "float", [2**0.5], True),
        "one": SweepTensor((), "float", [1.0], True),
        "half": SweepTensor((), "float", [0.5], True),
    }
    x, nodes = "x", []
    if behind:
        tensors["b"] = SweepTensor((64, 64) if behind == "MatMul" else (64,), "float", "fan", True)
        given = ("x", "b")
        if behind == "LayerNormalization":
            tensors |= {"c": tensors["b"], "b": SweepTensor((64,), "float", ["uniform", 0.5, 1.5], True)}
            given = ("x", "b", "c")
        nodes, x = [SweepNode(behind, given)], "y0"
    number = len(nodes)
    nodes += [
        SweepNode("Div", (x, "root")),
        SweepNode("Erf", (f"y{number}",)),
        SweepNode("Add", (f"y{number + 1}", "one")),
        SweepNode("Mul", (x, "half" if half_first else f"y{number + 2}")),
        SweepNode("Mul", (f"y{number + 3}", f"y{number + 2}" if half_first else "half")),
    ]
    if half_last:
        nodes[-2:] = [
            SweepNode("Mul", ("half", f"y{number + 2}")),
            SweepNode("Mul", (x, f"y{number + 3}")),
        ]
    return Case(tensors, tuple(nodes), form=form)


def quantised_norm() -> Any:
    """Return a LayerNormalization between uint16 activations with an int8 scale, as onnxruntime's quantizer writes
    it.
    """
    pairs = [
        node("QuantizeLinear", ["x", "xs", "z16"], ["q"], name="quantise"),
        node("DequantizeLinear", ["q", "xs", "z16"], ["d"], name="back"),
        node("DequantizeLinear", ["w", "ws"], ["g"], name="scale"),
        node("LayerNormalization", ["d", "g"], ["n"], axis=-1, name="norm"),
        node("QuantizeLinear", ["n", "xs", "z16"], ["nq"], name="quantise_result"),
        node("DequantizeLinear", ["nq", "xs", "z16"], ["y"], name="result"),
    ]
    constants = [
        constant("xs", np.float32(8 / 65535)),
        constant("z16", np.uint16(32768)),
        constant("ws", np.float32(1 / 64)),
        constant("w", np.linspace(-100, 100, 16).astype(np.int8)),
    ]
    return chain(pairs, [1, 8, 16], [1, 8, 16], constants, opset=21)


def negative_scales(kind: Any, zero: int) -> Any:
    """Return activations and weights of a Conv, of which every second channel has a negative scale."""
    random = np.random.default_rng(0)
    pair = ["s", "z"]
    nodes = [
        node("QuantizeLinear", ["x", *pair], ["q"], name="quantise"),
        node("DequantizeLinear", ["q", *pair], ["d"], name="back"),
        node("DequantizeLinear", ["w", "ws"], ["wd"], axis=0, name="weights"),
        node("Conv", ["d", "wd"], ["c"], name="conv"),
        node("QuantizeLinear", ["c", *pair], ["q2"], name="quantise_result"),
        node("DequantizeLinear", ["q2", *pair], ["y"], name="result"),
    ]
    constants = [
        constant("s", np.float32(-1 / 32)),
        constant("z", kind(zero)),
        constant("w", random.integers(-128, 128, (8, 4, 1, 1)).astype(np.int8)),
        constant("ws", np.where(np.arange(8) % 2, 1 / 256, -1 / 256).astype(np.float32)),
    ]
    return chain(nodes, [1, 4, 6, 6], [1, 8, 6, 6], constants)


def gate(
    gate: str = "Sigmoid", *, bias: bool = False, rest: bool = False, product: bool = True, qdq: bool = False
) -> Any:
    """Return x · W1 times the gate of x · W2. rest: also multiply by 1 - gate.

    The values of x · W2 reach -60 and far below.
    """
    constants = [weights("v", 16, 16), constant("w", np.linspace(-40, 40, 256, dtype=np.float32).reshape(16, 16))]
    nodes = [
        node("MatMul", ["x", "v"], ["branch"], name="branch"),
        node("MatMul", ["x", "w"], ["a"], name="linear"),
    ]
    last = "a"
    if bias:
        constants.append(constant("b", np.linspace(-9, 9, 16, dtype=np.float32)))
        nodes.append(node("Add", ["a", "b"], ["ab"], name="bias"))
        last = "ab"
    if qdq:
        constants += [constant("s", np.float32(0.5)), constant("z", np.uint8(128))]
        nodes += [
            node("QuantizeLinear", [last, "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["dq"]),
        ]
        last = "dq"
    nodes.append(node(gate, [last], ["g"], name="gate"))
    if rest:
        constants.append(constant("one", np.float32(1)))
        nodes.append(node("Sub", ["one", "g"], ["g1"], name="rest"))
    nodes.append(node("Mul" if product else "Add", ["branch", "g1" if rest else "g"], ["y"], name="product"))
    return chain(nodes, [8, 16], [8, 16], constants)


# Description -> the rewrite for the model, and the model.
def sizes_that_do_not_fit() -> Any:
    """Return a MatMul that ONNX Runtime refuses only after it has folded the constants in front of it."""
    nodes = [
        helper.make_node("Max", ["three", "two"], ["most"], name="most"),
        helper.make_node("Concat", ["most", "two"], ["sizes"], axis=0, name="sizes"),
        helper.make_node("Reshape", ["x", "sizes"], ["r"], name="rows"),
        helper.make_node("MatMul", ["r", "w"], ["y"], name="product"),
    ]
    sizes = [numpy_helper.from_array(np.array([size]), name) for name, size in (("two", 2), ("three", 3))]
    return models.model(
        nodes, [models.value("x", [6])], [models.value("y", [3, 4])], [*sizes, models.weights("w", 3, 4)]
    )


def causal_attention() -> Any:
    """Return causal and padding masks as in decoders: both together hide all of a padded first row."""
    later = np.triu(np.full((6, 6), -3.4e38, np.float32), 1)
    nodes = [
        helper.make_node("Cast", ["attention_mask"], ["seen"], to=1, name="seen"),
        helper.make_node("Sub", ["one", "seen"], ["hidden"], name="hidden"),
        helper.make_node("Mul", ["hidden", "never"], ["padding"], name="padding"),
        helper.make_node("MatMul", ["x", "turned"], ["scores"], name="scores"),
        helper.make_node("Add", ["scores", "later"], ["causal"], name="causal"),
        helper.make_node("Add", ["causal", "padding"], ["masked"], name="masked"),
        helper.make_node("Softmax", ["masked"], ["share"], axis=-1, name="share"),
        helper.make_node("MatMul", ["share", "values"], ["y"], name="mix"),
    ]
    constants = [models.constant("later", later), models.constant("one", np.float32(1))]
    constants += [models.constant("never", np.float32(-3.4e38)), models.weights("turned", 4, 6)]
    constants.append(models.weights("values", 6, 4))
    inputs = [models.value("x", [6, 4]), models.value("attention_mask", [1, 6], models.INT64)]
    return models.model(nodes, inputs, [models.value("y", [6, 4])], constants)


def example(row: WrongOperator) -> Any:
    """Return the example of a row. QNN computes float versions of the quantised Gather examples right."""
    case = Case.from_words(row.example)
    model = float_model(case)
    if row.form != "quantised" and row.rewrite != "gather-list":
        return model
    quantised = model_to_read(case)
    # Shape inference does not know the operators of com.microsoft, which have 16 bits below opset 21.
    quantised.graph.output[0].type.CopyFrom(model.graph.output[0].type)
    return quantised


ONE_OF_EACH: dict[str, tuple[str, Callable[[], Any]]] = {
    "weights that are inputs": ("weights-as-inputs", models.weights_as_inputs),
    "constant nodes": ("constants", models.conv_net_of_constant_nodes),
    "square": ("pow-square", lambda: pow_of(np.float32(2))),
    "square, one element": ("pow-square", lambda: pow_of(np.array([2], np.int64))),
    "edge padding": ("edge-padding", lambda: edge_padding([0, 0, 3, 0, 0, 2])),
    "edge padding of two axes, in front only": ("edge-padding", lambda: edge_padding([0, 1, 4, 0, 2, 0])),
    "edge padding of chosen axes": ("edge-padding", lambda: edge_padding([1, 2], axes=[-1])),
    "integer exponent": ("integer-exponent", lambda: pow_of(np.int64(3))),
    "dynamic integer exponent": ("integer-exponent", dynamic_integer_exponent),
    **{
        f"negative indices of {op}": ("negative-indices", lambda op=op: negative_indices(op))
        for op in ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND")
    },
    "scaled Gemm": ("gemm-scale", lambda: gemm(0.5, 2.0)),
    "Gemm without bias": ("gemm-scale", lambda: gemm(1.0, 0.0)),
    "Gemm of two inputs": ("gemm-scale", lambda: gemm(3.0, 1.0, constant_weights=False)),
    "computed limits": ("clip-limits", computed_clip),
    "unused statistics": ("unused-outputs", unused_statistics),
    "upper triangle": ("trilu", lambda: trilu(1)),
    "lower triangle": ("trilu", lambda: trilu(0)),
    "skip norm": ("skip-norm", skip_norm),
    **{
        op: ("missing-operators", lambda op=op: missing(op))
        for op in ("ReduceL1", "ReduceSumSquare", "ReduceLogSum", "Softsign", "Celu", "Sinh", "Cosh")
    },
    "IsInf of half floats": ("half-infinity", infinite_half),
    "ReduceL1 of opset 18": ("missing-operators", lambda: missing("ReduceL1", 18)),
    "ReduceSumSquare of opset 11": ("missing-operators", lambda: missing("ReduceSumSquare", 11)),
    "quantised Gelu": ("gelu", lambda: quantised_model(gelu_case(), GELU_RANGES)),
    "quantised Gelu, the constant first": (
        "gelu",
        lambda: quantised_model(gelu_case(half_last=True), GELU_RANGES | {"y3": (0, 1)}),
    ),
    "int8 scale of a normalisation": ("norm-scale", quantised_norm),
    "uint4 weights with a scale for each channel": (
        "weight-type",
        lambda: product("Conv", "uint8", "uint4", channels=True),
    ),
    "int4 weights with one scale": ("weight-type", lambda: product("Conv", "uint16", "int4", bias=1)),
    "uint8 weights of signed activations": ("weight-type", lambda: product("MatMul", "int16", "uint8")),
    "bias with one scale": ("bias-scale", lambda: product("Gemm", "uint8", "int8", channels=True, bias=1)),
    "Erf alone": ("erf", lambda: erf(in_gelu=False)),
    "windows": ("rank", windows),
    "scattered transpose": ("rank", scattered_transpose),
    "sum over six dimensions": ("rank", sum_of_six_dimensions),
    "MatMul of rank 5": ("rank", large_matmul),
    "empty state": ("zero-size", empty_state),
    "signed values with scales below zero": ("negative-scale", lambda: negative_scales(np.int8, 3)),
    "unsigned values with scales below zero": ("negative-scale", lambda: negative_scales(np.uint8, 200)),
    "gate": ("gates", gate),
    "gate of a Tanh with a bias": ("gates", lambda: gate("Tanh", bias=True)),
    "rest of a gate": ("gates", lambda: gate(rest=True)),
    "weight in a Loop": ("body-weights", lambda: exported_models.body_with_a_weight("Loop")),
    **exported_models.ONE_OF_EACH,
    **exported_models.DOUBLES,
    "int64 of five dimensions": ("wide-integers", exported_models.wide_integers),
    "mask": ("masks", lambda: models.attention(-3.4e38)),
    **{f"known wrong: {row.name}": (row.rewrite, lambda row=row: example(row)) for row in table() if row.rewrite},
}
