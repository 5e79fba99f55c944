"""Small models that the tests of `verify` and `prepare` create, each with one trap."""

from __future__ import annotations

from typing import Any

import model_work_models as models
import numpy as np

node, value, constant, weights = models.helper.make_node, models.value, models.constant, models.weights


def chain(ops: list[Any], x: list[Any], y: list[Any], constants: list[Any] | None = None) -> Any:
    return models.model(ops, [value("x", x)], [value("y", y)], constants or [])


def wide_integers() -> Any:
    add = node("Add", ["x", "one"], ["y"], name="add")
    x, y = value("x", [4], models.INT64), value("y", [4], models.INT64)
    return models.model([add], [x], [y], [constant("one", np.array([1]))])


def padded_behind() -> Any:
    """Return a padding whose last column QNN does not write."""
    pad = node("Pad", ["x", "sizes"], ["y"], name="pad")
    return chain([pad], [1, 3, 15, 15], [1, 3, 16, 16], [constant("sizes", np.array([0, 0, 0, 0, 0, 0, 1, 1]))])


def padded_pooling(before: int = 1, after: int = 1) -> Any:
    """Return a pooling that QNN computes differently from ONNX, between harmless nodes."""
    nodes = [node("Conv", ["x", "w"], ["t0"], name="conv", pads=[1, 1, 1, 1])]
    nodes += [node("LeakyRelu", [f"t{n}"], [f"t{n + 1}"], name=f"before{n}", alpha=0.9) for n in range(before)]
    pool = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": 1}
    nodes.append(node("AveragePool", [f"t{before}"], ["p0"], name="pool", count_include_pad=1, **pool))
    nodes += [node("LeakyRelu", [f"p{n}"], [f"p{n + 1}"], name=f"after{n}", alpha=0.9) for n in range(after)]
    nodes.append(node("Identity", [f"p{after}"], ["y"], name="end"))
    return chain(nodes, [1, 3, 8, 8], [1, 4, 5, 5], [weights("w", 4, 3, 3, 3)])


def close_gates(gates: int = 4) -> Any:
    """Return a model that computes x times (gate - 0.5) repeatedly: a merged Sigmoid has a slope that is 4 % wrong
    near 0.
    """
    random = np.random.default_rng(0)
    nodes, constants, last = [], [constant("half", np.float32(0.5)), constant("large", np.float32(20))], "x"
    for n in range(gates):
        constants.append(constant(f"w{n}", (random.standard_normal((16, 16)) * 0.04).astype(np.float32)))
        nodes += [
            node("MatMul", ["x", f"w{n}"], [f"a{n}"], name=f"linear{n}"),
            node("Sigmoid", [f"a{n}"], [f"g{n}"], name=f"gate{n}"),
            node("Mul", [last, "large"], [f"l{n}"], name=f"scale{n}"),
            node("Mul", [f"l{n}", f"g{n}"], [f"p{n}"], name=f"product{n}"),
            node("Mul", [f"l{n}", "half"], [f"h{n}"], name=f"halves{n}"),
            node("Sub", [f"p{n}", f"h{n}"], ["y" if n == gates - 1 else f"y{n}"], name=f"rest{n}"),
        ]
        last = f"y{n}"
    return chain(nodes, [8, 16], [8, 16], constants)


def towers() -> Any:
    """Return e to the e to the e to the x, which exceeds half floats in the middle, and comes back."""
    names = ["x", "a", "b", "c"]
    exps = [node("Exp", [names[n]], [names[n + 1]], name=f"exp{n + 1}") for n in range(3)]
    return chain([*exps, node("Log", ["c"], ["y"], name="log")], [1, 16], [1, 16])


def zero_size() -> Any:
    """Return a model that crashes the host: a multiplied Slice without elements."""
    nodes = [
        node("Relu", ["x"], ["a"], name="relu"),
        node("Slice", ["a", "two", "two"], ["none"], name="slice"),
        node("MatMul", ["none", "w"], ["product"], name="multiply"),
        node("ReduceSum", ["product"], ["sum"], name="sum", keepdims=0),
        node("Add", ["a", "sum"], ["y"], name="add"),
    ]
    return chain(nodes, [2, 4], [2, 4], [constant("two", np.array([2])), weights("w", 4, 4)])


def embedding() -> Any:
    gather = node("Gather", ["table", "x"], ["y"], name="embed")
    x, y = value("x", [1, 4], models.INT64), value("y", [1, 4, 8])
    return models.model([gather], [x], [y], [weights("table", 10, 8)])


def not_for_qnn() -> Any:
    return chain([node("Det", ["x"], ["y"], name="det")], [3, 3], [])


def partly_for_qnn() -> Any:
    return chain([node("Relu", ["x"], ["r"]), node("Det", ["r"], ["y"])], [2, 3, 3], [2])


def random_numbers() -> Any:
    nodes = [node("RandomNormalLike", ["x"], ["noise"], name="noise"), node("Add", ["noise", "x"], ["y"])]
    return chain(nodes, [3, 3], [3, 3])


def free_batch(*, named: bool = True) -> Any:
    batch = "batch" if named else None
    nodes = [node("MatMul", ["x", "w"], ["t"], name="multiply"), node("Relu", ["t"], ["y"], name="relu")]
    return chain(nodes, [batch, 4], [batch, 3], [weights("w", 4, 3)])


def indexed(op: str) -> Any:
    """Return GatherElements or ScatterElements with indices from an input."""
    inputs = [value("x", [4, 5]), value("i", [4, 2], models.INT64)]
    names = ["x", "i"]
    if op == "ScatterElements":
        inputs.append(value("u", [4, 2]))
        names.append("u")
    shape: list[Any] = [4, 2] if op == "GatherElements" else [4, 5]
    return models.model([node(op, names, ["y"], name="index", axis=1)], inputs, [value("y", shape)])


def resized(mode: str, scale: float, size: int) -> Any:
    resize = node("Resize", ["x", "", "scales"], ["y"], name="resize", mode=mode)
    scales = constant("scales", np.array([1, 1, scale, scale], np.float32))
    return chain([resize], [1, 1, 8, 8], [1, 1, size, size], [scales])


def sampled() -> Any:
    sample = node("GridSample", ["x", "grid"], ["y"], name="sample", mode="nearest")
    inputs = [value("x", [1, 1, 8, 8]), value("grid", [1, 6, 6, 2])]
    return models.model([sample], inputs, [value("y", [1, 1, 6, 6])])


def maximum() -> Any:
    pool = node("MaxPool", ["x"], ["y"], name="pool", kernel_shape=[2, 2], auto_pad="SAME_LOWER")
    return chain([pool], [1, 3, 8, 8], [1, 3, 8, 8])


def tests_for_nan() -> Any:
    nodes = [node("IsNaN", ["x"], ["is"], name="isnan"), node("Cast", ["is"], ["y"], to=models.FLOAT)]
    return chain(nodes, [4, 5], [4, 5])


def divided() -> Any:
    """Return a division of integers by integers: the CPU refuses zeros."""
    inputs = [value("x", [4], models.TensorProto.INT32), value("by", [4], models.TensorProto.INT32)]
    divide = node("Div", ["x", "by"], ["y"], name="divide")
    return models.model([divide], inputs, [value("y", [4], models.TensorProto.INT32)])


def quantised(ops: list[str]) -> Any:
    """Return unary operators and a Gather with indices from an input, each between QuantizeLinear and
    DequantizeLinear.
    """
    nodes, last = [], "x"

    def steps(name: str) -> str:
        nodes.append(node("QuantizeLinear", [name, "s", "z"], [f"{name}_q"], name=f"q_{name}"))
        nodes.append(node("DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_d"], name=f"d_{name}"))
        return f"{name}_d"

    for number, op in enumerate(ops):
        given = [steps(last), *(["i"] if op == "Gather" else [])]
        last = f"t{number}"
        nodes.append(
            node(op, given, [last], name=f"{op.lower()}{number}", **({"axis": 1} if op == "Gather" else {}))
        )
    nodes[-1].output[0] = "t"
    steps("t")
    nodes[-1].output[0] = "y"
    inputs = [value("x", [1, 6, 5]), value("i", [2], models.INT64)]
    constants = [constant("s", np.float32(0.02)), constant("z", np.uint8(128))]
    return models.model(nodes, inputs, [value("y", [1, 2, 5])], constants)


def saturated() -> Any:
    """Return a probability that is 1 for nearly all inputs, and an output that varies."""
    nodes = [
        node("Add", ["x", "large"], ["a"], name="add"),
        node("Sigmoid", ["a"], ["p"], name="probability"),
        node("Relu", ["x"], ["y"], name="relu"),
    ]
    made = chain(nodes, [1, 4], [1, 4], [constant("large", np.float32(3e3))])
    made.graph.output.append(value("p", [1, 4]))
    return made


def logarithm_of_small_and_large() -> Any:
    """Return a logarithm of sound models: its floor is too small for half floats, other values nearly too large."""
    factors = constant("factors", np.float32([1e-9] * 4 + [3e4] * 4))
    nodes = [
        node("Mul", ["x", "factors"], ["m"], name="power"),
        node("Clip", ["m", "floor"], ["c"], name="clip"),
        node("Log", ["c"], ["y"], name="log"),
    ]
    return chain(nodes, [4, 8], [4, 8], [factors, constant("floor", np.float32(1e-10))])


def undefined_for_zeros() -> Any:
    """Return a model that computes 0 / 0 for zeros."""
    nodes = [node("Abs", ["x"], ["a"], name="abs"), node("Div", ["x", "a"], ["y"], name="divide")]
    return chain(nodes, [1, 8], [1, 8])
