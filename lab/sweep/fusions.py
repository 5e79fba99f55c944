"""Families of patterns that QNN's provider merges into one operator, with varied constants, axes and orders.

The patterns are those of onnxruntime-qnn 2.7 (`qnn_node_group` in its source).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from lab.sweep.draws import Rng, case_of, draw_shape, one_node, pick, whole
from qnnbridge_host.numerics.cases import Case, SweepNode, SweepTensor

_VALUES: Final = ("normal", ["uniform", -3, 3], ["uniform", 0.5, 3])


def _number(value: float, shape: tuple[int, ...] = ()) -> SweepTensor:
    return SweepTensor(shape, "float", [value] * int(np.prod(shape, dtype=int)), True)


class _Graph:
    """Builder of a chain of nodes from `x`; `node` returns the name of its result."""

    def __init__(self, rng: Rng, shape: tuple[int, ...]) -> None:
        self.rng = rng
        self.tensors = {"x": SweepTensor(shape, "float", pick(rng, *_VALUES))}
        self.nodes: list[SweepNode] = []

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(one_node(op, *inputs, **attributes))
        return f"y{len(self.nodes) - 1}"

    def either(self, op: str, left: str, right: str) -> str:
        """Add a node with its operands in random order."""
        return self.node(op, *pick(self.rng, (left, right), (right, left)))

    def constant(self, name: str, value: float, *others: float) -> str:
        """Add a constant: usually the number `value`; if `others` are given, sometimes one of them or a tensor."""
        shape, how = self.tensors["x"].shape, self.rng.random()
        if others and how < 0.1:
            self.tensors[name] = SweepTensor(shape[-1:], "float", ["uniform", 0.3, 2], True)
        elif others and how < 0.15:
            self.tensors[name] = SweepTensor(shape, "float", ["uniform", 0.3, 2])
        else:
            number = float(pick(self.rng, *others)) if others and how < 0.5 else value
            self.tensors[name] = _number(number, pick(self.rng, (), (), (1,), (1,) * len(shape)))
        return name


def gelu(rng: Rng) -> Case:
    """Return x * (1 + Erf(x / sqrt(2))) * 0.5 in the four orders that exporters write."""
    g = _Graph(rng, draw_shape(rng, 1, 4))
    by, one, half = math.sqrt(2), 1.0, 0.5
    if rng.random() < 0.6:
        scaled = g.node("Div", "x", g.constant("d", by, 1.0, 2.0, 3.0))
    else:
        scaled = g.either("Mul", "x", g.constant("d", 1 / by, 1.0, 0.5, 0.3))
    erf = g.node("Erf", scaled)
    order = int(rng.integers(4))
    if order == 3:
        inner = g.either("Mul", erf, g.constant("k", half, 0.25, 1.0))
        g.either("Mul", "x", g.either("Add", inner, g.constant("b", half, 1.0, 0.0)))
    else:
        added = g.either("Add", erf, g.constant("b", one, 2.0, 0.5))
        factor = g.constant("k", half, 0.25, 1.0, 0.3)
        if order == 0:
            g.either("Mul", g.either("Mul", "x", added), factor)
        elif order == 1:
            g.either("Mul", g.either("Mul", "x", factor), added)
        else:
            g.either("Mul", "x", g.either("Mul", added, factor))
    return case_of(rng, g.tensors, *g.nodes)


def tanh_gelu(rng: Rng) -> Case:
    """Return Gelu computed with Tanh, with constants near the right ones."""
    g = _Graph(rng, draw_shape(rng, 1, 4))
    cube = g.either("Mul", g.node("Mul", "x", "x"), "x")
    inner = g.either("Add", "x", g.either("Mul", cube, g.constant("c", 0.044715, 0.04, 0.1, 0.0447, 0.05)))
    tanh = g.node("Tanh", g.either("Mul", inner, g.constant("s", math.sqrt(2 / math.pi), 0.8, 0.5, 0.79)))
    added = g.either("Add", tanh, g.constant("b", 1.0, 2.0, 1.01))
    g.either("Mul", g.either("Mul", "x", added), g.constant("k", 0.5, 0.25, 0.49, 1.0))
    return case_of(rng, g.tensors, *g.nodes)


def scaled_softmax(rng: Rng) -> Case:
    """Return Softmax of a scaled tensor along any axis."""
    shape = draw_shape(rng, 1, 4)
    g = _Graph(rng, shape)
    factor = g.constant("k", float(pick(rng, 0.125, 0.5, 1.0, 2.0, 8.0)), -1.0, -0.5, 0.0, -3.0)
    scaled = g.node("Div", "x", factor) if rng.random() < 0.15 else g.either("Mul", "x", factor)
    if g.tensors["k"].values == [0.0] and g.nodes[0].op == "Div":
        raise ValueError("a division by zero")
    axis = -1 if rng.random() < 0.4 else int(rng.integers(-len(shape), len(shape)))
    opset = int(pick(rng, 11, 13, 17))
    g.node(pick(rng, "Softmax", "Softmax", "Softmax", "LogSoftmax"), scaled, axis=axis)
    return case_of(rng, g.tensors, *g.nodes, opset=opset)


def normalised(rng: Rng) -> Case:
    """Return decomposed normalisations: by ReduceL2, by mean and variance, by root mean square."""
    shape = draw_shape(rng, 2, 4)
    g = _Graph(rng, shape)
    first = int(rng.integers(len(shape)))
    many = 1 if rng.random() < 0.6 else int(rng.integers(1, len(shape) - first + 1))
    axes = list(range(first, first + many)) if rng.random() < 0.5 else [len(shape) - 1]
    g.tensors["a"] = whole([axis - len(shape) if rng.random() < 0.3 else axis for axis in axes])
    kind = pick(rng, "l2", "l2", "mean", "rms", "lp")
    if kind == "l2":
        norm = g.node("ReduceL2", "x", "a", keepdims=1)
        eps = g.constant("e", float(pick(rng, 1e-12, 1e-6, 1e-3, 0.01)), 0.05, 0.1, 0.5, 2.0, 10.0)
        how = rng.random()
        floor = g.node("Max", norm, eps) if how < 0.2 else g.either("Add", norm, eps)
        g.node("Div", "x", floor)
        return case_of(rng, g.tensors, *g.nodes, opset=18)
    if kind == "lp":
        g.nodes = []
        del g.tensors["a"]
        return case_of(rng, g.tensors, one_node("LpNormalization", "x", axis=first, p=2))
    root = "x"
    if kind == "mean":
        root = g.node("Sub", "x", g.node("ReduceMean", "x", "a", keepdims=1))
    square = g.node("Mul", root, root) if rng.random() < 0.3 else g.node("Pow", root, g.constant("p", 2.0))
    mean = g.node("ReduceMean", square, "a", keepdims=1)
    deviation = g.node("Sqrt", g.either("Add", mean, g.constant("e", 1e-5, 1e-3, 0.1, 1.0)))
    if kind == "rms" and rng.random() < 0.4:
        result = g.either("Mul", root, g.node("Reciprocal", deviation))
    else:
        result = g.node("Div", root, deviation)
    kept = tuple(size if axis in axes else 1 for axis, size in enumerate(shape))
    weights = pick(rng, kept, kept, shape[-1:], kept[axes[0] :], (1,), shape)
    if rng.random() < 0.8:
        g.tensors["w"] = SweepTensor(weights, "float", ["uniform", 0.5, 2], True)
        result = g.either("Mul", result, "w")
    if rng.random() < 0.7:
        g.tensors["o"] = SweepTensor(pick(rng, weights, kept, (1,)), "float", "normal", True)
        g.either("Add", result, "o")
    return case_of(rng, g.tensors, *g.nodes, opset=18, forms=("float", "float", "float", "float16"))


def reshaped_gemm(rng: Rng) -> Case:
    """Return Reshape and Gemm, with varied factors and bias. Some Reshapes keep the last dimension."""
    k, n = int(pick(rng, 4, 8, 16, 33)), int(pick(rng, 1, 4, 8, 24))
    head = pick(rng, (4,), (2, 3), (1, 5), (2, 2, 2), (1, 1, 7), (6, 1))
    rows = int(np.prod(head))
    source = (*head, k) if rng.random() < 0.7 else (*head, k // 2, 2) if k % 2 == 0 else (k, *head)
    g = _Graph(rng, source)
    g.tensors["s"] = whole(pick(rng, [-1, k], [rows, k]))
    across, turned = int(rng.random() < 0.1), int(rng.random() < 0.3)
    if across:
        g.tensors["s"] = whole([k, rows])
    g.tensors["w"] = SweepTensor((n, k) if turned else (k, n), "float", "fan", bool(rng.random() < 0.9))
    given = [g.node("Reshape", "x", "s"), "w"]
    if rng.random() < 0.75:
        g.tensors["b"] = SweepTensor(
            pick(rng, (n,), (n,), (1, n), (rows, n), (rows, 1), (1,), ()), "float", "normal", True
        )
        given.append("b")
    attributes: dict[str, Any] = {"transA": across, "transB": turned}
    if rng.random() < 0.3:
        attributes["alpha"] = float(pick(rng, 0.5, 2.0, -1.0))
    if rng.random() < 0.3 and len(given) == 3:
        attributes["beta"] = float(pick(rng, 0.5, 2.0, 0.0))
    last = g.node("Gemm", *given, **attributes)
    if rng.random() < 0.3:
        g.tensors["t"] = whole([*head, n])
        g.node("Reshape", last, "t")
    return case_of(rng, g.tensors, *g.nodes)


def layouts(rng: Rng) -> Case:
    """Return Reshape and Transpose as a channel shuffle, space-to-depth, or permutation of up to six axes, which
    may follow a Gather."""
    kind = pick(rng, "shuffle", "blocks", "turned", "six", "gather")
    if kind == "shuffle":
        groups, width = int(pick(rng, 2, 3, 4)), int(pick(rng, 2, 4, 8))
        spatial = pick(rng, (4, 4), (3, 5), (6,))
        shape = (int(pick(rng, 1, 2)), groups * width, *spatial)
        perm = [0, 2, 1, *range(3, len(shape) + 1)]
        if rng.random() < 0.3:
            perm[-2:] = perm[-2:][::-1]
        g = _Graph(rng, shape)
        g.tensors["s"], g.tensors["t"] = whole([shape[0], groups, width, *spatial]), whole(list(shape))
        head = [0, *range(2, len(shape)), 1]
        around = rng.random() < 0.5
        value = "x"
        if around:  # transpose to and from channels last, QNN's layout
            g.tensors["x"] = SweepTensor((shape[0], *spatial, shape[1]), "float", "normal")
            value = g.node("Transpose", "x", perm=[0, len(shape) - 1, *range(1, len(shape) - 1)])
        value = g.node("Reshape", g.node("Transpose", g.node("Reshape", value, "s"), perm=perm), "t")
        if around:
            g.node("Transpose", value, perm=head)
    elif kind == "blocks":
        b0, b1 = pick(rng, (2, 2), (2, 2), (4, 4), (2, 4), (1, 2), (3, 3))
        c, h, w = int(pick(rng, 1, 3, 4, 8)), int(pick(rng, 2, 3, 4)), int(pick(rng, 2, 3, 4))
        n = int(pick(rng, 1, 1, 2))
        g = _Graph(rng, (n, c, h * b0, w * b1))
        perm = pick(rng, [0, 3, 5, 1, 2, 4], [0, 1, 3, 5, 2, 4], [0, 5, 3, 1, 2, 4], [0, 1, 5, 3, 2, 4])
        g.tensors["s"], g.tensors["t"] = whole([n, c, h, b0, w, b1]), whole([n, c * b0 * b1, h, w])
        value = "x"
        channels = c
        convolved = rng.random() < 0.6
        if convolved:
            g.tensors["v"] = SweepTensor((channels, c, 1, 1), "float", "fan", True)
            value = g.node("Conv", "x", "v")
        value = g.node("Reshape", g.node("Transpose", g.node("Reshape", value, "s"), perm=perm), "t")
        if convolved and rng.random() < 0.7:
            g.tensors["u"] = SweepTensor((4, c * b0 * b1, 1, 1), "float", "fan", True)
            g.node("Conv", value, "u")
    elif kind == "turned":
        sizes = [int(pick(rng, 1, 1, 2, 3, 4)) for _ in range(int(rng.integers(2, 5)))]
        g = _Graph(rng, tuple(sizes))
        made = [sizes[int(axis)] for axis in rng.permutation(len(sizes))]
        g.tensors["s"] = whole(made)
        g.node("Transpose", g.node("Reshape", "x", "s"), perm=[int(axis) for axis in rng.permutation(len(made))])
    elif kind == "six":
        sizes = [int(pick(rng, 1, 2, 2, 3, 4)) for _ in range(6)]
        sizes[int(rng.integers(6))] = 1
        perm = [int(axis) for axis in rng.permutation(6)]
        one = sizes.index(1)
        if rng.random() < 0.7:
            perm.remove(one)
            perm.insert(one, one)
        g = _Graph(rng, (sizes[0] * sizes[1], sizes[2] * sizes[3], sizes[4] * sizes[5]))
        g.tensors["s"] = whole(sizes)
        turned = [sizes[axis] for axis in perm]
        g.tensors["t"] = whole([turned[0] * turned[1], turned[2] * turned[3], turned[4] * turned[5]])
        g.node("Reshape", g.node("Transpose", g.node("Reshape", "x", "s"), perm=perm), "t")
    else:
        rows, columns = int(pick(rng, 2, 3, 4)), int(pick(rng, 2, 3, 4))
        shape = (int(pick(rng, 1, 2)), 2, 3, 4, rows * columns)
        g = _Graph(rng, shape)
        table = np.arange(rows * columns).reshape(rows, columns)
        if rng.random() < 0.5:
            table = np.arange(rows * columns).reshape(columns, rows).T
        if rng.random() < 0.15:
            table = rng.permutation(rows * columns).reshape(rows, columns)
        g.tensors["i"] = whole(table)
        perm = [0, 1, 2, *(3 + int(axis) for axis in rng.permutation(3))]
        if rng.random() < 0.2:
            perm = [int(axis) for axis in rng.permutation(6)]
        taken = g.node("Gather", "x", "i", axis=pick(rng, 4, -1))
        g.tensors["t"] = whole([shape[0] * 2, 3, -1])
        g.node("Reshape", g.node("Transpose", taken, perm=perm), "t")
    forms = ("float", "float", "float", "float16", "qdq8", "qdq16")
    return case_of(rng, g.tensors, *g.nodes, forms=forms)


def quantising(rng: Rng) -> Case:
    """Return a case that quantises integers after Cast or DequantizeLinear, or quantises dynamically."""
    shape = draw_shape(rng, 2, 4)
    kinds = {"uint8": 2, "int8": 3, "int32": 6}
    kind, to = str(pick(rng, *kinds)), str(pick(rng, "uint8", "int8"))
    low = 0 if kind == "uint8" else -100
    g = _Graph(rng, shape)
    how = pick(rng, "cast", "convert", "dynamic", "product")
    # With these scales no quotient is halfway between two integers, where QNN rounds differently.
    g.tensors["s"] = _number(float(pick(rng, 1.0, 0.51, 0.053, 1.93)))
    g.tensors["z"] = SweepTensor((), to, [int(pick(rng, 0, 3, 100))], True)
    if how == "cast":
        g.tensors["x"] = SweepTensor(shape, kind, ["ints", low, 100])
        quantised = g.node("QuantizeLinear", g.node("Cast", "x", to=1), "s", "z")
        g.node("DequantizeLinear", quantised, "s", "z")
    elif how == "convert":
        g.tensors["x"] = SweepTensor(shape, kind, ["ints", low, 100])
        g.tensors["r"] = _number(float(pick(rng, 0.97, 0.49, 0.047, 2.03)))
        g.tensors["o"] = SweepTensor((), kind, [int(pick(rng, 0, 3)) if kind != "int32" else 0], True)
        value = g.node("QuantizeLinear", g.node("DequantizeLinear", "x", "r", "o"), "s", "z")
        g.node("DequantizeLinear", value, "s", "z")
    else:
        del g.tensors["s"], g.tensors["z"]
        g.nodes.append(SweepNode("DynamicQuantizeLinear", ("x",), {}, 3))
        if how == "dynamic":
            g.node("DequantizeLinear", "y0", "y0_1", "y0_2")
        else:
            n = int(pick(rng, 4, 8, 16))
            weight = str(pick(rng, "uint8", "int8"))
            least, most = (0, 255) if weight == "uint8" else (-127, 127)
            g.tensors["w"] = SweepTensor((shape[-1], n), weight, ["ints", least, most], True)
            g.tensors["v"] = SweepTensor((), weight, [int(pick(rng, 0, 3)) if weight == "int8" else 128], True)
            g.tensors["m"] = SweepTensor(pick(rng, (), (1,), (n,)), "float", ["uniform", 0.005, 0.02], True)
            product = g.node("Cast", g.node("MatMulInteger", "y0", "w", "y0_2", "v"), to=1)
            g.either("Mul", product, g.either("Mul", "y0_1", "m"))
            if rng.random() < 0.5:
                g.tensors["b"] = SweepTensor((n,), "float", "normal", True)
                g.either("Add", "y4", "b")
    return case_of(rng, g.tensors, *g.nodes, forms=("float",))
