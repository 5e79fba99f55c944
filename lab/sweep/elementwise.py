"""Families of operators that compute element by element, alone and in chains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from lab.sweep.draws import FORMS, Rng, case_of, draw_shape, one_node, pick
from qnnbridge_host.numerics.cases import Case, SweepNode, SweepTensor

_RANGES: Final = (
    "normal",
    ["uniform", -6, 6],
    ["uniform", -0.05, 0.05],
    ["uniform", -60, 60],
    ["grid", 0.5, 4],
    ["grid", 1, 100],
    ["uniform", -2000, 2000],
)
_POSITIVE: Final = (["uniform", 0.01, 1], ["uniform", 1, 60], ["uniform", 0, 6], ["uniform", 100, 30000])
_UNARY: Final = (
    *("Abs", "Atan", "Ceil", "Cos", "Elu", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Neg"),
    *("Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Tan", "Tanh", "ThresholdedRelu", "Identity"),
    *("Mish", "Gelu", "IsNaN", "Not", "com.microsoft.QuickGelu", "Asin"),
)
_OF_POSITIVE: Final = ("Log", "Sqrt", "Reciprocal")
_ATTRIBUTES: Final[Mapping[str, Callable[[Rng], dict[str, Any]]]] = {
    "Elu": lambda rng: {"alpha": float(pick(rng, 0.5, 1, 2))},
    "LeakyRelu": lambda rng: {"alpha": float(pick(rng, 0.01, 0.25, 1, 2, -0.5))},
    "HardSigmoid": lambda rng: {"alpha": float(pick(rng, 0.2, 0.5)), "beta": float(pick(rng, 0.5, 0.3))},
    "Selu": lambda rng: {"alpha": float(pick(rng, 1.67, 2)), "gamma": float(pick(rng, 1.05, 3))},
    "ThresholdedRelu": lambda rng: {"alpha": float(pick(rng, 0.5, 1, 2))},
    "Gelu": lambda rng: {"approximate": pick(rng, "none", "tanh")},
}


def unary(rng: Rng) -> Case:
    op = pick(rng, *_UNARY, *_OF_POSITIVE)
    values = pick(rng, *(_POSITIVE if op in _OF_POSITIVE else _RANGES))
    kind = "bool" if op == "Not" else "float"
    if op == "Asin":
        values = ["uniform", -1, 1]
    x = SweepTensor(draw_shape(rng), kind, ["ints", 0, 2] if op == "Not" else values)
    attributes = _ATTRIBUTES[op](rng) if op in _ATTRIBUTES else {}
    return case_of(rng, {"x": x}, one_node(op, "x", **attributes), opset=20)


_BINARY: Final = (
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Max",
    "Min",
    "Equal",
    "Greater",
    "Less",
    "GreaterOrEqual",
    "LessOrEqual",
)


def binary(rng: Rng) -> Case:
    op = pick(rng, *_BINARY, "And", "Or", "Xor", "PRelu", "Mod", "Sum", "Mean", "Where", "Pow")
    shape = draw_shape(rng)
    kind = "bool" if op in ("And", "Or", "Xor") else "int32" if op == "Mod" else "float"
    if op in _BINARY and rng.random() < 0.3:
        kind = str(pick(rng, "int32", "int64"))
    values: Any = (
        ["ints", 0, 2] if kind == "bool" else ["ints", -50, 50] if kind != "float" else pick(rng, *_RANGES)
    )
    other = _broadcast(rng, shape)
    second: Any = values
    if op in ("Div", "Mod"):
        second = ["ints", 1, 9] if kind != "float" else ["uniform", 0.5, 4]
    if op == "Pow":
        values, second = ["uniform", 0.1, 3], ["uniform", -2, 3]
    if op in ("PRelu",):
        other = pick(rng, (shape[1], *(1,) * (len(shape) - 2)), (1,)) if len(shape) > 1 else (1,)
    tensors = {
        "x": SweepTensor(shape, kind, values),
        "z": SweepTensor(other, kind, second, op == "PRelu" or rng.random() < 0.5),
    }
    if op == "Where":
        tensors = {"c": SweepTensor(_broadcast(rng, shape), "bool", ["ints", 0, 2]), **tensors}
    forms = FORMS if kind == "float" else ("float",)
    return case_of(rng, tensors, one_node(op, *tensors), forms=forms)


def _broadcast(rng: Rng, shape: tuple[int, ...]) -> tuple[int, ...]:
    how = rng.random()
    if how < 0.4:
        return shape
    cut = shape[int(rng.integers(len(shape))) :]
    return tuple(1 if rng.random() < 0.35 else size for size in cut) if how < 0.95 else ()


_EXPONENTS: Final = (2.0, 3.0, 4.0, 0.5, 1.5, 1.0, 0.0, -1.0, -0.5, 6.0, 8.0)
_MAKERS: Final = (
    *("Sin", "Cos", "Tan", "Tanh", "Neg", "Round", "Ceil", "Floor", "Abs", "Relu", "LeakyRelu", "Elu", "Sigmoid"),
    *("Softplus", "Exp", "Sqrt", "Atan", "Sign", "HardSwish", "Gelu", "Identity", "Mish", "Selu"),
)


def power(rng: Rng) -> Case:
    """Return a Pow with a constant exponent after another operator, with zeros among the values."""
    maker = pick(rng, *_MAKERS, "Mul", "Sub", "Add", "Div", "")
    exponent = float(pick(rng, *_EXPONENTS))
    positive = exponent != int(exponent) or exponent < 0
    shape = draw_shape(rng, 2, 4)
    if positive:
        maker, values = pick(rng, "Exp", "Sigmoid", "Softplus", ""), ["uniform", 0.2, 3]
    else:
        values = pick(rng, ["grid", 0.25, 3], ["uniform", -3, 3], ["uniform", -0.03, 0.03])
    tensors = {"x": SweepTensor(shape, "float", values), "e": SweepTensor((), "float", [exponent], True)}
    nodes = [one_node("Pow", "x", "e")]
    if maker in ("Mul", "Sub", "Add", "Div"):
        tensors["z"] = SweepTensor(shape, "float", ["uniform", 0.5, 2] if maker == "Div" else values)
        nodes = [one_node(maker, "x", "z"), one_node("Pow", "y0", "e")]
    elif maker:
        nodes = [one_node(maker, "x"), one_node("Pow", "y0", "e")]
    return case_of(rng, tensors, *nodes, opset=20)


def chain(rng: Rng) -> Case:
    """Return two or three operators in a row, which QNN's compiler merges."""
    shape = draw_shape(rng, 2, 4)
    tensors = {"x": SweepTensor(shape, "float", pick(rng, "normal", ["uniform", -3, 3], ["grid", 0.25, 3]))}
    nodes: list[SweepNode] = []
    last, safe = "x", (*_MAKERS[:-2], "HardSigmoid", "ThresholdedRelu")
    for number in range(int(rng.integers(2, 5))):
        how = rng.random()
        if how < 0.55:
            op = pick(rng, *(one for one in safe if one not in ("Sqrt", "Exp", "Tan")))
            nodes.append(one_node(op, last))
        elif how < 0.8:
            name = f"c{number}"
            tensors[name] = SweepTensor(pick(rng, (), (shape[-1],), shape), "float", ["uniform", 0.25, 2], True)
            nodes.append(one_node(pick(rng, "Add", "Sub", "Mul", "Div", "Max", "Min"), last, name))
        elif how < 0.9:
            nodes.append(one_node(pick(rng, "Add", "Mul", "Sub", "Max"), last, pick(rng, "x", last)))
        else:
            perm = [int(axis) for axis in rng.permutation(len(shape))]
            nodes += [one_node("Transpose", last, perm=perm)]
            shape = tuple(shape[axis] for axis in perm)
            nodes.append(one_node("Transpose", f"y{len(nodes) - 1}", perm=[int(a) for a in np.argsort(perm)]))
            shape = tuple(shape[int(a)] for a in np.argsort(perm))
        last = f"y{len(nodes) - 1}"
    return case_of(rng, tensors, *nodes, opset=20)


def gate(rng: Rng) -> Case:
    """Return the product of a tensor and an activation, as exporters write HardSwish and SiLU."""
    shape = draw_shape(rng)
    op = pick(rng, "HardSigmoid", "HardSigmoid", "Sigmoid", "Tanh", "Softplus", "Relu", "Softmax", "Erf")
    attributes = {}
    if op == "HardSigmoid":
        attributes = {"alpha": float(pick(rng, 1 / 6, 1 / 6, 0.2)), "beta": float(pick(rng, 0.5, 0.5, 0.4))}
    tensors = {"x": SweepTensor(shape, "float", pick(rng, "normal", ["uniform", -5, 5]))}
    other = "x"
    if rng.random() < 0.3:
        other, tensors["z"] = "z", SweepTensor(shape, "float", "normal")
    product = one_node("Mul", *pick(rng, (other, "y0"), ("y0", other)))
    return case_of(rng, tensors, one_node(op, "x", **attributes), product, opset=int(pick(rng, 13, 17)))


_CAST_TYPES: Final = {
    "float": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "uint32": 12,
}


def cast(rng: Rng) -> Case:
    """Return a Cast between any two types; the inputs cover the range of 8-bit integers."""
    shape, (source, to) = draw_shape(rng), rng.choice(list(_CAST_TYPES), 2, replace=False)
    low, high = (0, 2) if "bool" in (source, to) else (0, 256) if "u" in source + to else (-128, 128)
    x = SweepTensor(shape, str(source), ["ints", low, min(high, 128) if "int8" in (source, to) else high])
    return case_of(rng, {"x": x}, one_node("Cast", "x", to=_CAST_TYPES[str(to)]), forms=("float",))
