"""Models that ONNX Runtime's own optimizers change or break, each with inputs and the correct outputs.

All models are valid ONNX. numpy computes the correct outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


class HarmedModel(NamedTuple):
    """A model that an optimizer harms.

    Args:
        data: bytes of the model.
        feeds: inputs.
        right: correct outputs for these inputs.
        optimizer: name of the harmful optimizer.
        fallback: "cpu" if QNN does not support all nodes.
    """

    data: bytes
    feeds: dict[str, Array]
    right: Array
    optimizer: str = ""
    fallback: Literal["error", "cpu"] = "error"


def made(
    nodes: list[NodeProto], inputs: Mapping[str, Array], right: Array, constants: Mapping[str, Any], opset: int = 13
) -> bytes:
    def described(name: str, array: Array) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    graph = helper.make_graph(
        nodes,
        "g",
        [described(name, array) for name, array in inputs.items()],
        [described("y", right)],
        [
            value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value), name)
            for name, value in constants.items()
        ],
    )
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return bytes(model.SerializeToString())


def n(op: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def int8_behind_a_reshape() -> HarmedModel:
    """Return a model in which QDQPropagationTransformer quantises again as uint8, so that negative numbers become
    0.
    """
    q = np.array([-100, -50, -3, 7, 20, 90, -120, 110, -1, 1, 60, -60], np.int8)
    x = np.zeros((4, 3), np.float32)
    right = (q * np.float32(0.01)).reshape(3, 4).T.astype(np.float32)
    nodes = [n("DequantizeLinear", "q s", "d"), n("Reshape", "d shape", "r"), n("Transpose", "r", "t", perm=[1, 0])]
    nodes.append(n("Add", "x t", "y"))
    constants = {"s": np.float32(0.01), "shape": np.array([3, 4])}
    feeds = {"x": x, "q": q}
    return HarmedModel(made(nodes, feeds, right, constants), feeds, right, "QDQPropagationTransformer")


def quantised(x: Array, scale: float, zero: int) -> Array:
    steps = np.clip(np.rint(x / np.float32(scale)) + zero, 0, 255)
    return ((steps - zero) * np.float32(scale)).astype(np.float32)


def requantised() -> HarmedModel:
    """Return a model from which DoubleQDQPairsRemover drops one of two scales; QNN then computes a Relu with 0.8
    dB.
    """
    x = np.random.default_rng(1).uniform(-3, 3, (1, 4, 16)).astype(np.float32)
    once = quantised(quantised(x, 0.03, 128), 0.011, 0)
    right = quantised(np.maximum(once, 0), 0.011, 0)
    nodes = [
        *(n("QuantizeLinear", "x s1 z1", "a"), n("DequantizeLinear", "a s1 z1", "b")),
        *(n("QuantizeLinear", "b s2 z2", "c"), n("DequantizeLinear", "c s2 z2", "d"), n("Relu", "d", "r")),
        *(n("QuantizeLinear", "r s2 z2", "e"), n("DequantizeLinear", "e s2 z2", "y")),
    ]
    constants = {"s1": np.float32(0.03), "z1": np.uint8(128), "s2": np.float32(0.011), "z2": np.uint8(0)}
    return HarmedModel(made(nodes, {"x": x}, right, constants), {"x": x}, right, "DoubleQDQPairsRemover")


def integers_divided(factor: float = 1.5) -> HarmedModel:
    """Return a model with `(1 / x) * z`, which DivMulFusion turns into one division, with another result for
    integers.
    """
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.choice([1, 1, 1, 2, 3], (4, 8)).astype(np.int32),
        "z": rng.integers(1, 100, (4, 8)).astype(np.int32),
    }
    right = ((1 // feeds["x"]) * feeds["z"] * np.float32(factor)).astype(np.float32)
    nodes = [n("Div", "one x", "a"), n("Mul", "a z", "b"), n("Cast", "b", "c", to=TensorProto.FLOAT)]
    nodes.append(n("Mul", "c k", "y"))
    constants = {"one": np.int32(1), "k": np.float32(factor)}
    return HarmedModel(made(nodes, feeds, right, constants), feeds, right, "DivMulFusion")


def broken(op: str) -> HarmedModel:
    """Return a model in which DivMulFusion reads a tensor that the removal of a Dropout or Cast has deleted."""
    rng = np.random.default_rng(0)
    feeds = {name: rng.uniform(0.5, 2, (4, 8)).astype(np.float32) for name in "xd"}
    attributes = {"to": TensorProto.FLOAT} if op == "Cast" else {}
    nodes = [n(op, "x", "mid", **attributes), n("Div", "one d", "r"), n("Mul", "r mid", "y")]
    right = (feeds["x"] / feeds["d"]).astype(np.float32)
    return HarmedModel(made(nodes, feeds, right, {"one": np.float32(1)}), feeds, right, "DivMulFusion")


def int32_behind_a_reshape() -> HarmedModel:
    """Return a model whose negative numbers become 0, as with int8, and whose numbers above 255 become 255."""
    q = (np.arange(-6, 6, dtype=np.int32) * 100).reshape(4, 3)
    right = np.abs(q.reshape(3, 4) * np.float32(0.5)).astype(np.float32)
    nodes = [n("DequantizeLinear", "q s", "d"), n("Reshape", "d shape", "r"), n("Abs", "r", "y")]
    constants = {"s": np.float32(0.5), "shape": np.array([3, 4])}
    return HarmedModel(made(nodes, {"q": q}, right, constants), {"q": q}, right, "QDQPropagationTransformer")


def broken_int32() -> HarmedModel:
    """Return a model with an int32 zero point, for which the optimizer writes a QuantizeLinear to int32, unknown to
    ONNX.
    """
    q = np.arange(-6, 6, dtype=np.int32).reshape(4, 3)
    right = np.abs(q.reshape(3, 4) * np.float32(0.5)).astype(np.float32)
    nodes = [n("DequantizeLinear", "q s z", "d"), n("Reshape", "d shape", "r"), n("Abs", "r", "y")]
    constants = {"s": np.float32(0.5), "z": np.int32(0), "shape": np.array([3, 4])}
    return HarmedModel(made(nodes, {"q": q}, right, constants, 21), {"q": q}, right, "QDQPropagationTransformer")


def weights_in_8_bits() -> HarmedModel:
    """Return a model whose MatMul gets 8-bit activations on the CPU: 6.6 dB if some are large. QNN computes 68 dB."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-127, 128, (256, 64))
    weights[::32] = 1
    x = rng.standard_normal((4, 256)).astype(np.float32)
    x[:, ::32] = 200 * rng.choice([-1, 1], (4, 8))
    right = np.maximum(x.astype(np.float64) @ (weights * 0.01), 0).astype(np.float32)
    nodes = [n("DequantizeLinear", "wq ws wz", "w"), n("MatMul", "x w", "a"), n("Relu", "a", "y")]
    constants = {"wq": weights.astype(np.int8), "ws": np.float32(0.01), "wz": np.int8(0)}
    return HarmedModel(made(nodes, {"x": x}, right, constants, 21), {"x": x}, right)


def signed_weights() -> HarmedModel:
    """Return a model whose sums saturate in 16 bits on x86 processors without VNNI, unless an optimizer runs."""
    rng = np.random.default_rng(7)
    x = rng.uniform(3, 5, (4, 8)).astype(np.float32)
    # Sums of two products exceed 16 bits, and those of all fit into the half floats of QNN.
    signs = np.array([1, 1, -1, -1, 1, 1, -1, -1])[:, None]
    weights = (signs * rng.integers(90, 128, (8, 16))).astype(np.int8)
    right = np.clip(np.rint(x / np.float32(0.02)), 0, 255).astype(np.int32) @ weights.astype(np.int32)
    nodes = [n("QuantizeLinear", "x s z", "q"), n("MatMulInteger", "q w", "i"), n("Cast", "i", "f", to=1)]
    nodes.append(n("Mul", "f t", "y"))
    out = (right * np.float32(0.001)).astype(np.float32)
    constants = {"s": np.float32(0.02), "z": np.uint8(0), "w": weights, "t": np.float32(0.001)}
    return HarmedModel(made(nodes, {"x": x}, out, constants), {"x": x}, out, fallback="cpu")


def normalised_without_keepdims() -> HarmedModel:
    """Return a model that the CPU fuses to a LayerNormalization, which also subtracts the mean: an error of 0.88."""
    x = (np.arange(16, dtype=np.float32).reshape(4, 4) ** 1.3).astype(np.float32)
    centred = x - x.mean(-1)
    right = (centred / np.sqrt((centred**2).mean(-1) + 1e-5)).astype(np.float32)
    nodes = [
        *(n("ReduceMean", "x", "mean", axes=[-1], keepdims=0), n("Sub", "x mean", "c"), n("Pow", "c two", "s")),
        *(n("ReduceMean", "s", "v", axes=[-1], keepdims=0), n("Add", "v eps", "e"), n("Sqrt", "e", "d")),
        *(n("Div", "c d", "m"), n("Mul", "m scale", "y")),
    ]
    constants = {"two": np.float32(2), "eps": np.float32(1e-5), "scale": np.ones(4, np.float32)}
    return HarmedModel(made(nodes, {"x": x}, right, constants), {"x": x}, right)


def function_in_both_branches() -> HarmedModel:
    """Return a model with an If whose branches call one function, so that the optimised file has duplicate names."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    body = [n("Mul", "a k", "t"), n("Tanh", "t", "u"), n("Add", "u a", "o")]
    function = helper.make_function("my", "F", ["a", "k"], ["o"], body, [opsets[0]])

    def branch(name: str, factor: str) -> Any:
        calls = [
            n("F", f"h {factor}", f"z_{name}", domain="my"),
            n("F", f"z_{name} {factor}", f"o_{name}", domain="my"),
        ]
        out = helper.make_tensor_value_info(f"o_{name}", TensorProto.FLOAT, [4, 8])
        return helper.make_graph(calls, name, [], [out])

    nodes = [
        *(n("F", "x k1", "h", domain="my"), n("ReduceSum", "x", "s", keepdims=0), n("Greater", "s zero", "c")),
        n("If", "c", "y", then_branch=branch("then", "k1"), else_branch=branch("else", "k2")),
    ]
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)

    def f(a: Array, k: float) -> Array:
        return np.asarray(np.tanh(a * np.float32(k)) + a)

    factor = 0.7 if x.sum() > 0 else -1.3
    right = f(f(f(x, 0.7), factor), factor).astype(np.float32)
    constants = {"k1": np.float32(0.7), "k2": np.float32(-1.3), "zero": np.float32(0)}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "xy"]
    graph = helper.make_graph(
        nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(value, name) for name, value in constants.items()]
    )
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)
    return HarmedModel(bytes(model.SerializeToString()), {"x": x}, right)
