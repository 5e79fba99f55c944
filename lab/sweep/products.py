"""Families of sums and products: products of matrices, reductions, normalisations, recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.sweep.draws import FORMS, SIZES, Rng, case_of, draw_shape, one_node, pick, whole
from qnnbridge_host.numerics.cases import Case, SweepTensor


def matmul(rng: Rng) -> Case:
    op = pick(rng, "MatMul", "MatMul", "Gemm", "Einsum")
    m, k, n = (int(pick(rng, *SIZES)) for _ in range(3))
    constant = bool(rng.random() < 0.5)
    if op == "Gemm":
        a, b = int(rng.integers(2)), int(rng.integers(2))
        tensors = {
            "x": SweepTensor((k, m) if a else (m, k)),
            "w": SweepTensor((n, k) if b else (k, n), "float", "fan", constant),
        }
        if rng.random() < 0.6:
            tensors["b"] = SweepTensor(pick(rng, (n,), (1, n), (m, n), (1,), (m, 1)), "float", "normal", True)
        return case_of(rng, tensors, one_node("Gemm", *tensors, transA=a, transB=b))
    head = tuple(int(pick(rng, 1, 2, 3, 4)) for _ in range(int(rng.integers(0, 3))))
    if op == "Einsum":
        tensors = {"x": SweepTensor((2, 3, m, k)), "w": SweepTensor((2, 3, n, k), "float", "fan")}
        equation = "bhmk,bhnk->bhmn"
        if rng.random() < 0.5:
            tensors["w"], equation = SweepTensor((2, 3, k, n), "float", "fan"), "bhmk,bhkn->bhmn"
        return case_of(rng, tensors, one_node("Einsum", "x", "w", equation=equation))
    left = pick(rng, (m, k), (*head, m, k), (*head, m, k), (k,))
    right = pick(rng, (k, n), (*head, k, n), (k, n), (k,))
    return case_of(
        rng,
        {"x": SweepTensor(left), "w": SweepTensor(right, "float", "fan", constant)},
        one_node("MatMul", "x", "w"),
    )


def reduce(rng: Rng) -> Case:
    op = pick(
        rng, "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp", "ArgMax", "ArgMin"
    )
    shape = draw_shape(rng, 1, 5)
    keep = int(rng.integers(2))
    if op in ("ArgMax", "ArgMin"):
        axis = int(rng.integers(-len(shape), len(shape)))
        x = SweepTensor(shape, "float", pick(rng, "permutation", ["ints", -3, 4], "normal"))
        if np.prod(shape) > 2000:
            x = SweepTensor(shape, "float", ["ints", -3, 4])
        return case_of(rng, {"x": x}, one_node(op, "x", axis=axis, keepdims=keep))
    many = int(rng.integers(1, len(shape) + 1))
    axes = sorted(int(axis) for axis in rng.choice(len(shape), many, replace=False))
    axes = [axis - len(shape) for axis in axes] if rng.random() < 0.3 else axes
    kind = (
        str(pick(rng, "float", "float", "float", "int32"))
        if op in ("ReduceSum", "ReduceMax", "ReduceMin")
        else "float"
    )
    values: Any = (
        ["ints", -9, 9] if kind == "int32" else pick(rng, "normal", ["uniform", 0.5, 2], ["uniform", -6, 6])
    )
    forms = FORMS if kind == "float" else ("float",)
    x = SweepTensor(shape, kind, values)
    return case_of(rng, {"x": x, "a": whole(axes)}, one_node(op, "x", "a", keepdims=keep), opset=18, forms=forms)


def normalisation(rng: Rng) -> Case:
    op = pick(
        *(rng, "Softmax", "Softmax", "LogSoftmax", "LayerNormalization", "InstanceNormalization"),
        *("BatchNormalization", "LRN", "LpNormalization", "RMSNormalization", "GroupNormalization"),
    )
    shape = draw_shape(rng, 3 if op[0] in "IBG" or op == "LRN" else 1, 4)
    values = pick(
        rng, "normal", ["uniform", -6, 6], ["uniform", 3, 5], ["uniform", -0.05, 0.05], ["uniform", -60, 60]
    )
    tensors = {"x": SweepTensor(shape, "float", values)}
    axis = int(rng.integers(-len(shape), len(shape)))
    if op in ("Softmax", "LogSoftmax", "LpNormalization"):
        return case_of(
            rng, tensors, one_node(op, "x", axis=axis), opset=int(pick(rng, 11, 17)) if op[0] != "L" else 17
        )
    if op == "LRN":
        size = int(pick(rng, 1, 3, 5))
        return case_of(
            rng,
            tensors,
            one_node(op, "x", size=size, alpha=float(pick(rng, 1e-4, 0.1)), bias=float(pick(rng, 1, 2))),
        )
    channels = shape[-1:] if op in ("LayerNormalization", "RMSNormalization") else shape[1:2]
    tensors["s"] = SweepTensor(channels, "float", ["uniform", 0.5, 2], True)
    if op != "RMSNormalization" and (op != "LayerNormalization" or rng.random() < 0.7):
        tensors["b"] = SweepTensor(channels, "float", "normal", True)
    if op == "BatchNormalization":
        tensors["m"] = SweepTensor(channels, "float", "normal", True)
        tensors["v"] = SweepTensor(channels, "float", ["uniform", 0.3, 2], True)
    attributes: dict[str, Any] = {"epsilon": float(pick(rng, 1e-5, 1e-6, 1e-12, 1e-3))}
    if op in ("LayerNormalization", "RMSNormalization"):
        attributes["axis"] = -1
    if op == "GroupNormalization":
        attributes["num_groups"] = int(pick(rng, *(g for g in (1, 2, 4, 8, shape[1]) if shape[1] % g == 0)))
    return case_of(
        rng,
        tensors,
        one_node(op, *tensors, **attributes),
        opset=23 if op in ("RMSNormalization", "GroupNormalization") else 17,
    )


def recurrent(rng: Rng) -> Case:
    op = pick(rng, "LSTM", "GRU")
    length, batch, ins, hidden = (
        int(pick(rng, *choices)) for choices in ((1, 3, 7), (1, 2), (3, 8, 17), (4, 8, 16))
    )
    direction = pick(rng, "forward", "reverse", "bidirectional")
    many, gates = (2 if direction[0] == "b" else 1), (4 if op == "LSTM" else 3)
    tensors = {
        "x": SweepTensor((length, batch, ins)),
        "w": SweepTensor((many, gates * hidden, ins), "float", ["normal", 0.3], True),
        "r": SweepTensor((many, gates * hidden, hidden), "float", ["normal", 0.3], True),
        "b": SweepTensor((many, 2 * gates * hidden), "float", ["normal", 0.3], True),
    }
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attributes["linear_before_reset"] = int(rng.integers(2))
    given = list(tensors)
    if rng.random() < 0.5:
        tensors["h"] = SweepTensor((many, batch, hidden))
        given += ["", "h"]
    return case_of(rng, tensors, one_node(op, *given, outputs=2, **attributes), forms=("float", "float", "float16"))
