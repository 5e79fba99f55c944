"""Cases made up from a seed, family by family, and those of ONNX's node tests. Pure functions.

Case number n of a family is always the same: a sweep that is stopped goes on where it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from lab.sweep.cases import Array, Case, SweepNode, SweepTensor

Rng = np.random.Generator
_SIZES: Final = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 20, 24, 25, 31, 32, 33, 40, 48, 49, 56, 63, 64, 65, 80)
# Of pictures that the simulator computes in less than a second.
_PICTURES: Final = (4, 6, 7, 8, 9, 10, 12, 13, 14, 16, 18, 20, 24, 28, 32, 40, 48, 56, 63, 64, 80, 112)
_CHANNELS: Final = (1, 2, 3, 4, 7, 8, 16, 17, 31, 32, 33, 48, 64, 96)
_FORMS: Final = ("float",) * 6 + ("float16",) + ("qdq8",) * 2 + ("qdq16",)
# Elements of one tensor at most: the simulator is slow.
_MOST_ELEMENTS: Final = 1 << 16


def _pick(rng: Rng, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _shape(rng: Rng, least: int = 1, most: int = 5) -> tuple[int, ...]:
    rank = int(rng.integers(least, most + 1))
    while True:
        shape = tuple(int(_pick(rng, *_SIZES)) for _ in range(rank))
        if rank > 2 and rng.random() < 0.6:
            shape = (1, *shape[1:])
        if np.prod(shape) <= _MOST_ELEMENTS:
            return shape


def _whole(values: Any, type: str = "int64") -> SweepTensor:  # noqa: A002 - as ONNX calls it
    array = np.asarray(values)
    return SweepTensor(tuple(array.shape), type, array.ravel().tolist(), True)


def _case(
    rng: Rng,
    tensors: Mapping[str, SweepTensor],
    *nodes: SweepNode,
    opset: int = 17,
    forms: tuple[str, ...] = _FORMS,
) -> Case:
    return Case(dict(tensors), tuple(nodes), opset, str(_pick(rng, *forms)), int(rng.integers(1 << 16)))


def _one(op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> SweepNode:
    return SweepNode(op, inputs, attributes, outputs)


# --- element by element ------------------------------------------------------------------------------------

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
    "Elu": lambda rng: {"alpha": float(_pick(rng, 0.5, 1, 2))},
    "LeakyRelu": lambda rng: {"alpha": float(_pick(rng, 0.01, 0.25, 1, 2, -0.5))},
    "HardSigmoid": lambda rng: {"alpha": float(_pick(rng, 0.2, 0.5)), "beta": float(_pick(rng, 0.5, 0.3))},
    "Selu": lambda rng: {"alpha": float(_pick(rng, 1.67, 2)), "gamma": float(_pick(rng, 1.05, 3))},
    "ThresholdedRelu": lambda rng: {"alpha": float(_pick(rng, 0.5, 1, 2))},
    "Gelu": lambda rng: {"approximate": _pick(rng, "none", "tanh")},
}


def _unary(rng: Rng) -> Case:
    op = _pick(rng, *_UNARY, *_OF_POSITIVE)
    values = _pick(rng, *(_POSITIVE if op in _OF_POSITIVE else _RANGES))
    kind = "bool" if op == "Not" else "float"
    if op == "Asin":
        values = ["uniform", -1, 1]
    x = SweepTensor(_shape(rng), kind, ["ints", 0, 2] if op == "Not" else values)
    attributes = _ATTRIBUTES[op](rng) if op in _ATTRIBUTES else {}
    return _case(rng, {"x": x}, _one(op, "x", **attributes), opset=20)


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


def _binary(rng: Rng) -> Case:
    op = _pick(rng, *_BINARY, "And", "Or", "Xor", "PRelu", "Mod", "Sum", "Mean", "Where", "Pow")
    shape = _shape(rng)
    kind = "bool" if op in ("And", "Or", "Xor") else "int32" if op == "Mod" else "float"
    if op in _BINARY and rng.random() < 0.3:
        kind = str(_pick(rng, "int32", "int64"))
    values: Any = (
        ["ints", 0, 2] if kind == "bool" else ["ints", -50, 50] if kind != "float" else _pick(rng, *_RANGES)
    )
    other = _broadcast(rng, shape)
    second: Any = values
    if op in ("Div", "Mod"):
        second = ["ints", 1, 9] if kind != "float" else ["uniform", 0.5, 4]
    if op == "Pow":
        values, second = ["uniform", 0.1, 3], ["uniform", -2, 3]
    if op in ("PRelu",):
        other = _pick(rng, (shape[1], *(1,) * (len(shape) - 2)), (1,)) if len(shape) > 1 else (1,)
    tensors = {
        "x": SweepTensor(shape, kind, values),
        "z": SweepTensor(other, kind, second, op == "PRelu" or rng.random() < 0.5),
    }
    if op == "Where":
        tensors = {"c": SweepTensor(_broadcast(rng, shape), "bool", ["ints", 0, 2]), **tensors}
    forms = _FORMS if kind == "float" else ("float",)
    return _case(rng, tensors, _one(op, *tensors), forms=forms)


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


def _power(rng: Rng) -> Case:
    """Pow with a constant exponent behind an operator, with zeros among the values."""
    maker = _pick(rng, *_MAKERS, "Mul", "Sub", "Add", "Div", "")
    exponent = float(_pick(rng, *_EXPONENTS))
    positive = exponent != int(exponent) or exponent < 0
    shape = _shape(rng, 2, 4)
    if positive:
        maker, values = _pick(rng, "Exp", "Sigmoid", "Softplus", ""), ["uniform", 0.2, 3]
    else:
        values = _pick(rng, ["grid", 0.25, 3], ["uniform", -3, 3], ["uniform", -0.03, 0.03])
    tensors = {"x": SweepTensor(shape, "float", values), "e": SweepTensor((), "float", [exponent], True)}
    nodes = [_one("Pow", "x", "e")]
    if maker in ("Mul", "Sub", "Add", "Div"):
        tensors["z"] = SweepTensor(shape, "float", ["uniform", 0.5, 2] if maker == "Div" else values)
        nodes = [_one(maker, "x", "z"), _one("Pow", "y0", "e")]
    elif maker:
        nodes = [_one(maker, "x"), _one("Pow", "y0", "e")]
    return _case(rng, tensors, *nodes, opset=20)


def _chain(rng: Rng) -> Case:
    """Two or three operators in a row: what the compiler of QNN merges."""
    shape = _shape(rng, 2, 4)
    tensors = {"x": SweepTensor(shape, "float", _pick(rng, "normal", ["uniform", -3, 3], ["grid", 0.25, 3]))}
    nodes: list[SweepNode] = []
    last, safe = "x", (*_MAKERS[:-2], "HardSigmoid", "ThresholdedRelu")
    for number in range(int(rng.integers(2, 5))):
        how = rng.random()
        if how < 0.55:
            op = _pick(rng, *(one for one in safe if one not in ("Sqrt", "Exp", "Tan")))
            nodes.append(_one(op, last))
        elif how < 0.8:
            name = f"c{number}"
            tensors[name] = SweepTensor(_pick(rng, (), (shape[-1],), shape), "float", ["uniform", 0.25, 2], True)
            nodes.append(_one(_pick(rng, "Add", "Sub", "Mul", "Div", "Max", "Min"), last, name))
        elif how < 0.9:
            nodes.append(_one(_pick(rng, "Add", "Mul", "Sub", "Max"), last, _pick(rng, "x", last)))
        else:
            perm = [int(axis) for axis in rng.permutation(len(shape))]
            nodes += [_one("Transpose", last, perm=perm)]
            shape = tuple(shape[axis] for axis in perm)
            nodes.append(_one("Transpose", f"y{len(nodes) - 1}", perm=[int(a) for a in np.argsort(perm)]))
            shape = tuple(shape[int(a)] for a in np.argsort(perm))
        last = f"y{len(nodes) - 1}"
    return _case(rng, tensors, *nodes, opset=20)


def _gate(rng: Rng) -> Case:
    """A tensor, or another one, times an activation of it, as exporters write HardSwish and SiLU."""
    shape = _shape(rng)
    op = _pick(rng, "HardSigmoid", "HardSigmoid", "Sigmoid", "Tanh", "Softplus", "Relu", "Softmax", "Erf")
    attributes = {}
    if op == "HardSigmoid":
        attributes = {"alpha": float(_pick(rng, 1 / 6, 1 / 6, 0.2)), "beta": float(_pick(rng, 0.5, 0.5, 0.4))}
    tensors = {"x": SweepTensor(shape, "float", _pick(rng, "normal", ["uniform", -5, 5]))}
    other = "x"
    if rng.random() < 0.3:
        other, tensors["z"] = "z", SweepTensor(shape, "float", "normal")
    product = _one("Mul", *_pick(rng, (other, "y0"), ("y0", other)))
    return _case(rng, tensors, _one(op, "x", **attributes), product, opset=int(_pick(rng, 13, 17)))


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


def _cast(rng: Rng) -> Case:
    """From each type to each, over the whole range of 8 bits."""
    shape, (source, to) = _shape(rng), rng.choice(list(_CAST_TYPES), 2, replace=False)
    low, high = (0, 2) if "bool" in (source, to) else (0, 256) if "u" in source + to else (-128, 128)
    x = SweepTensor(shape, str(source), ["ints", low, min(high, 128) if "int8" in (source, to) else high])
    return _case(rng, {"x": x}, _one("Cast", "x", to=_CAST_TYPES[str(to)]), forms=("float",))


# --- windows -----------------------------------------------------------------------------------------------


def _window(rng: Rng, dims: int, sizes: list[int], *, dilated: bool) -> dict[str, Any]:
    """Kernel, strides, dilations, and either pads or auto_pad, such that something comes out."""
    while True:
        kernel = [int(_pick(rng, 1, 2, 3, 3, 4, 5, 7)) for _ in range(dims)]
        if rng.random() < 0.5:
            kernel = kernel[:1] * dims
        strides = [int(_pick(rng, 1, 1, 1, 2, 2, 3)) for _ in range(dims)]
        if rng.random() < 0.6:
            strides = strides[:1] * dims
        dilations = [int(_pick(rng, 1, 2, 3, 4, 6, 8)) if dilated and rng.random() < 0.5 else 1] * dims
        reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
        found: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
        if dilated:
            found["dilations"] = dilations
        how = rng.random()
        if how < 0.4:
            found["pads"] = [r // 2 for r in reach] + [r - r // 2 for r in reach]
        elif how < 0.6:
            found["pads"] = [
                int(rng.integers(0, max(1, min(r, k) + 1))) for r, k in [*zip(reach, kernel, strict=True)] * 2
            ]
            found["pads"] = [min(p, max(0, kernel[i % dims] - 1)) for i, p in enumerate(found["pads"])]
        elif how < 0.75:
            found["auto_pad"] = _pick(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
        padded = found.get("pads", [0] * 2 * dims)
        room = [s + padded[i] + padded[dims + i] - reach[i] for i, s in enumerate(sizes)]
        if min(room) >= 1:
            return found


def _spatial(rng: Rng, dims: int) -> list[int]:
    sizes = _SIZES if dims == 1 else _SIZES[:18] if dims == 2 else _SIZES[:9]
    return [int(_pick(rng, *sizes)) for _ in range(dims)]


def _conv(rng: Rng) -> Case:
    dims = int(_pick(rng, 1, 1, 2, 2, 2, 3))
    sizes = _spatial(rng, dims)
    op = _pick(rng, "Conv", "Conv", "ConvTranspose")
    window = _window(rng, dims, sizes, dilated=op == "Conv")
    group = int(_pick(rng, 1, 1, 2, 4))
    ins, outs = (int(_pick(rng, *_CHANNELS)) * group for _ in range(2))
    if rng.random() < 0.2:
        group = ins
        outs = ins * int(_pick(rng, 1, 1, 2))
    if op == "ConvTranspose":
        if rng.random() < 0.3:
            window["output_padding"] = [int(rng.integers(0, s)) for s in window["strides"]]
        shape = (ins, outs // group, *window["kernel_shape"])
    else:
        shape = (outs, ins // group, *window["kernel_shape"])
    tensors = {
        "x": SweepTensor((int(_pick(rng, 1, 1, 1, 2)), ins, *sizes)),
        "w": SweepTensor(shape, "float", "fan", rng.random() < 0.9),
    }
    if rng.random() < 0.5:
        tensors["b"] = SweepTensor((outs,), "float", "normal", True)
    return _case(rng, tensors, _one(op, *tensors, group=group, **window))


def _dilated(rng: Rng) -> Case:
    """Convolutions of one long dimension, where the known fault is."""
    kernel, dilation = int(_pick(rng, 2, 3, 5, 7, 9)), int(rng.integers(1, 17))
    reach = dilation * (kernel - 1)
    length = int(_pick(rng, *_SIZES, 8 * int(rng.integers(1, 24))))
    left = int(_pick(rng, reach // 2, reach // 2, reach // 2, reach, 0))
    right = int(_pick(rng, reach - left, reach - left, left))
    if length + left + right <= reach:
        left, right = reach // 2, reach - reach // 2
    ins, outs = int(_pick(rng, *_CHANNELS)), int(_pick(rng, *_CHANNELS))
    group = ins if rng.random() < 0.15 else 1
    outs = ins if group > 1 else outs
    stride = int(_pick(rng, 1, 1, 1, 2))
    flat = rng.random() < 0.7
    tensors = {
        "x": SweepTensor((1, ins, length) if flat else (1, ins, int(_pick(rng, 1, 1, 2)), length)),
        "w": SweepTensor((outs, ins // group, *(() if flat else (1,)), kernel), "float", "fan", True),
    }
    ones, none = ([], []) if flat else ([1], [0])
    node = _one(
        "Conv",
        "x",
        "w",
        kernel_shape=[*ones, kernel],
        dilations=[*ones, dilation],
        strides=[*ones, stride],
        pads=[*none, left, *none, right],
        group=group,
    )
    return _case(rng, tensors, node)


def _pool(rng: Rng) -> Case:
    dims = int(_pick(rng, 1, 2, 2, 2, 3))
    sizes = _spatial(rng, dims)
    op = _pick(rng, "MaxPool", "AveragePool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool")
    x = {
        "x": SweepTensor(
            (1, int(_pick(rng, *_CHANNELS)), *sizes), "float", _pick(rng, "normal", ["uniform", -9, -1])
        )
    }
    if op.startswith("Global"):
        return _case(rng, x, _one(op, "x"))
    window = _window(rng, dims, sizes, dilated=False)
    if op != "LpPool" and rng.random() < 0.35:
        window["ceil_mode"] = 1
    if op == "AveragePool" and rng.random() < 0.4:
        window["count_include_pad"] = 1
    return _case(rng, x, _one(op, "x", **window), opset=int(_pick(rng, 17, 19)) if op != "LpPool" else 17)


def _average(rng: Rng) -> Case:
    """AveragePool without ceil_mode, with kernels, sizes and padding on both sides as networks have them and others."""
    dims = int(_pick(rng, 1, 2, 2, 2, 2, 3))
    same = rng.random() < 0.6
    kernel = [int(_pick(rng, 2, 2, 3, 3, 3, 4, 5, 5, 6, 7, 8, 9, 11))] * dims
    if not same:
        kernel = [int(_pick(rng, 1, 1, 2, 3, 4, 5, 7, 9)) for _ in range(dims - 1)] + kernel[:1]
    strides = [int(_pick(rng, 1, 1, 1, 2, 2, 3))] * dims
    sizes = [max(k, int(_pick(rng, *(_SIZES[:9] if dims == 3 else _PICTURES)))) for k in kernel]
    pads = [[0] * dims, [0] * dims]
    how = _pick(rng, "none", "same", "same", "same", "lower", "any", "any")
    if how != "none":
        pads = [[k // 2 for k in kernel] for _ in pads]
    if how == "lower":
        pads[0] = [(k - 1) // 2 for k in kernel]
    if how == "any":
        pads = [[int(rng.integers(0, most + 1)) for most in side] for side in pads]
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": [*pads[0], *pads[1]]}
    if any(attributes["pads"]) and rng.random() < 0.4:
        attributes["count_include_pad"] = 1
    channels = int(_pick(rng, 1, 2, 3, 8, 16, 24, 31, 32, 33, 64))
    x = {"x": SweepTensor((1, channels, *sizes), "float", _pick(rng, "normal", ["uniform", -9, -1]))}
    return _case(rng, x, _one("AveragePool", "x", **attributes))


def _resize(rng: Rng) -> Case:
    dims = int(_pick(rng, 1, 2, 2, 2))
    sizes = [max(2, size) for size in _spatial(rng, dims)]
    mode = _pick(rng, "nearest", "nearest", "linear", "linear", "cubic")
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": _pick(
            rng, "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"
        ),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = _pick(rng, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    if mode == "cubic":
        attributes["cubic_coeff_a"] = float(_pick(rng, -0.75, -0.5))
    head = (1, int(_pick(rng, *_CHANNELS)))
    x = SweepTensor((*head, *sizes))
    none = SweepTensor((0,), "float", [], True)
    if rng.random() < 0.5:
        scales = [float(_pick(rng, 2, 2, 3, 4, 0.5, 1.5, 0.75, 1)) for _ in range(dims)]
        scales = scales[:1] * dims if rng.random() < 0.6 else scales
        tensors = {"x": x, "r": none, "s": SweepTensor((dims + 2,), "float", [1.0, 1.0, *scales], True)}
        return _case(rng, tensors, _one("Resize", "x", "r" if rng.random() < 0.5 else "", "s", **attributes))
    target = [int(_pick(rng, *_SIZES[:18], size * 2, max(1, size // 2))) for size in sizes]
    tensors = {"x": x, "z": _whole([*head, *target])}
    return _case(rng, tensors, _one("Resize", "x", "", "", "z", **attributes))


def _pad(rng: Rng) -> Case:
    shape = _shape(rng, 1, 4)
    mode = _pick(rng, "constant", "constant", "edge", "edge", "reflect", "reflect")
    limit = [size - 1 if mode == "reflect" else 9 for size in shape]
    dense = rng.random() < 0.3
    pads = [int(rng.integers(0, min(limit[i % len(shape)], 6) + 1)) for i in range(2 * len(shape))]
    if not dense:
        keep = {int(rng.integers(len(shape))), len(shape) - 1}
        pads = [p if i % len(shape) in keep else 0 for i, p in enumerate(pads)]
    if rng.random() < 0.1:
        pads[0] = -1 if shape[0] > 2 else 0
    tensors = {"x": SweepTensor(shape), "p": _whole(pads)}
    if mode == "constant" and rng.random() < 0.5:
        tensors["v"] = SweepTensor((), "float", [float(_pick(rng, 0, 1, -2.5, 100))], True)
    return _case(rng, tensors, _one("Pad", *tensors, mode=mode))


# --- sums and products ---------------------------------------------------------------------------------------


def _matmul(rng: Rng) -> Case:
    op = _pick(rng, "MatMul", "MatMul", "Gemm", "Einsum")
    m, k, n = (int(_pick(rng, *_SIZES)) for _ in range(3))
    constant = bool(rng.random() < 0.5)
    if op == "Gemm":
        a, b = int(rng.integers(2)), int(rng.integers(2))
        tensors = {
            "x": SweepTensor((k, m) if a else (m, k)),
            "w": SweepTensor((n, k) if b else (k, n), "float", "fan", constant),
        }
        if rng.random() < 0.6:
            tensors["b"] = SweepTensor(_pick(rng, (n,), (1, n), (m, n), (1,), (m, 1)), "float", "normal", True)
        return _case(rng, tensors, _one("Gemm", *tensors, transA=a, transB=b))
    head = tuple(int(_pick(rng, 1, 2, 3, 4)) for _ in range(int(rng.integers(0, 3))))
    if op == "Einsum":
        tensors = {"x": SweepTensor((2, 3, m, k)), "w": SweepTensor((2, 3, n, k), "float", "fan")}
        equation = "bhmk,bhnk->bhmn"
        if rng.random() < 0.5:
            tensors["w"], equation = SweepTensor((2, 3, k, n), "float", "fan"), "bhmk,bhkn->bhmn"
        return _case(rng, tensors, _one("Einsum", "x", "w", equation=equation))
    left = _pick(rng, (m, k), (*head, m, k), (*head, m, k), (k,))
    right = _pick(rng, (k, n), (*head, k, n), (k, n), (k,))
    return _case(
        rng, {"x": SweepTensor(left), "w": SweepTensor(right, "float", "fan", constant)}, _one("MatMul", "x", "w")
    )


def _reduce(rng: Rng) -> Case:
    op = _pick(
        rng, "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp", "ArgMax", "ArgMin"
    )
    shape = _shape(rng, 1, 5)
    keep = int(rng.integers(2))
    if op in ("ArgMax", "ArgMin"):
        axis = int(rng.integers(-len(shape), len(shape)))
        x = SweepTensor(shape, "float", _pick(rng, "permutation", ["ints", -3, 4], "normal"))
        if np.prod(shape) > 2000:
            x = SweepTensor(shape, "float", ["ints", -3, 4])
        return _case(rng, {"x": x}, _one(op, "x", axis=axis, keepdims=keep))
    many = int(rng.integers(1, len(shape) + 1))
    axes = sorted(int(axis) for axis in rng.choice(len(shape), many, replace=False))
    axes = [axis - len(shape) for axis in axes] if rng.random() < 0.3 else axes
    kind = (
        str(_pick(rng, "float", "float", "float", "int32"))
        if op in ("ReduceSum", "ReduceMax", "ReduceMin")
        else "float"
    )
    values: Any = (
        ["ints", -9, 9] if kind == "int32" else _pick(rng, "normal", ["uniform", 0.5, 2], ["uniform", -6, 6])
    )
    forms = _FORMS if kind == "float" else ("float",)
    x = SweepTensor(shape, kind, values)
    return _case(rng, {"x": x, "a": _whole(axes)}, _one(op, "x", "a", keepdims=keep), opset=18, forms=forms)


def _normalisation(rng: Rng) -> Case:
    op = _pick(
        *(rng, "Softmax", "Softmax", "LogSoftmax", "LayerNormalization", "InstanceNormalization"),
        *("BatchNormalization", "LRN", "LpNormalization", "RMSNormalization", "GroupNormalization"),
    )
    shape = _shape(rng, 3 if op[0] in "IBG" or op == "LRN" else 1, 4)
    values = _pick(
        rng, "normal", ["uniform", -6, 6], ["uniform", 3, 5], ["uniform", -0.05, 0.05], ["uniform", -60, 60]
    )
    tensors = {"x": SweepTensor(shape, "float", values)}
    axis = int(rng.integers(-len(shape), len(shape)))
    if op in ("Softmax", "LogSoftmax", "LpNormalization"):
        return _case(rng, tensors, _one(op, "x", axis=axis), opset=int(_pick(rng, 11, 17)) if op[0] != "L" else 17)
    if op == "LRN":
        size = int(_pick(rng, 1, 3, 5))
        return _case(
            rng, tensors, _one(op, "x", size=size, alpha=float(_pick(rng, 1e-4, 0.1)), bias=float(_pick(rng, 1, 2)))
        )
    channels = shape[-1:] if op in ("LayerNormalization", "RMSNormalization") else shape[1:2]
    tensors["s"] = SweepTensor(channels, "float", ["uniform", 0.5, 2], True)
    if op != "RMSNormalization" and (op != "LayerNormalization" or rng.random() < 0.7):
        tensors["b"] = SweepTensor(channels, "float", "normal", True)
    if op == "BatchNormalization":
        tensors["m"] = SweepTensor(channels, "float", "normal", True)
        tensors["v"] = SweepTensor(channels, "float", ["uniform", 0.3, 2], True)
    attributes: dict[str, Any] = {"epsilon": float(_pick(rng, 1e-5, 1e-6, 1e-12, 1e-3))}
    if op in ("LayerNormalization", "RMSNormalization"):
        attributes["axis"] = -1
    if op == "GroupNormalization":
        attributes["num_groups"] = int(_pick(rng, *(g for g in (1, 2, 4, 8, shape[1]) if shape[1] % g == 0)))
    return _case(
        rng,
        tensors,
        _one(op, *tensors, **attributes),
        opset=23 if op in ("RMSNormalization", "GroupNormalization") else 17,
    )


# --- moving values -------------------------------------------------------------------------------------------


def _moving(rng: Rng) -> Case:
    """Operators that only move values: an error of one place is plain."""
    op = _pick(
        *(rng, "Transpose", "Reshape", "Slice", "Slice", "Concat", "Split", "Expand", "Tile", "Flatten", "Squeeze"),
        *("DepthToSpace", "SpaceToDepth", "Unsqueeze", "CumSum", "TopK", "Clip", "OneHot", "Cast"),
    )
    shape = _shape(rng, 1, 5)
    kind = str(_pick(rng, "float", "float", "float", "int32"))
    x = SweepTensor(shape, kind, "permutation" if np.prod(shape) <= 2000 else ["ints", -99, 99])
    rank = len(shape)
    axis = int(rng.integers(-rank, rank))
    forms = _FORMS if kind == "float" else ("float",)
    tensors: dict[str, SweepTensor] = {"x": x}
    if op == "Transpose":
        node = _one(op, "x", perm=[int(a) for a in rng.permutation(rank)])
    elif op == "Flatten":
        node = _one(op, "x", axis=axis)
    elif op == "Reshape":
        sizes = [int(s) for s in rng.permutation(shape)]
        tensors["s"] = _whole(_pick(rng, sizes, [-1, shape[-1]], [shape[0], -1], [-1], [1, *shape][:5]))
        node = _one(op, "x", "s")
    elif op == "Slice":
        size = shape[axis]
        step = int(_pick(rng, 1, 1, 2, 3, -1, -2))
        start = int(rng.integers(0, size)) if step > 0 else size - 1 - int(rng.integers(0, (size + 1) // 2))
        end = int(_pick(rng, size, 2**31 - 1)) if step > 0 else -(2**31) + 1
        tensors |= {"b": _whole([start]), "e": _whole([end]), "a": _whole([axis]), "t": _whole([step])}
        node = _one(op, *tensors)
    elif op == "Concat":
        other = list(shape)
        other[axis] = int(_pick(rng, 1, 2, 3, 5, 8))
        tensors["z"] = SweepTensor(tuple(other), kind, ["ints", -9, 9], rng.random() < 0.5)
        node = _one(op, *_pick(rng, ("x", "z"), ("z", "x"), ("x", "z", "x"), ("x", "x")), axis=axis)
    elif op == "Split":
        size = shape[axis]
        first = int(rng.integers(1, size)) if size > 1 else 1
        parts = [first, size - first] if size > 1 else [1]
        tensors["s"] = _whole(parts)
        node = _one(op, "x", "s", axis=axis, outputs=len(parts))
    elif op == "Expand":
        small = tuple(1 if rng.random() < 0.5 else s for s in shape)
        tensors = {"x": SweepTensor(small, kind, ["ints", -99, 99]), "s": _whole(list(shape))}
        node = _one(op, "x", "s")
    elif op == "Tile":
        repeats = [int(_pick(rng, 1, 1, 2, 3)) for _ in shape]
        tensors["r"] = _whole(repeats)
        node = _one(op, "x", "r")
    elif op in ("Squeeze", "Unsqueeze"):
        if op == "Squeeze":
            tensors["x"] = SweepTensor((1, *shape[:3], 1), kind, ["ints", -99, 99])
        tensors["a"] = _whole(_pick(rng, [0], [-1]))
        node = _one(op, "x", "a")
    elif op in ("DepthToSpace", "SpaceToDepth"):
        block = int(_pick(rng, 2, 2, 3, 4))
        c, h, w = (int(_pick(rng, 1, 2, 3, 4, 5, 8, 12)) for _ in range(3))
        deep = op == "DepthToSpace"
        sides = (c * block * block, h, w) if deep else (c, h * block, w * block)
        tensors["x"] = SweepTensor((1, *sides), "float", ["ints", -99, 99])
        node = _one(op, "x", blocksize=block, **({"mode": _pick(rng, "DCR", "CRD")} if deep else {}))
        forms = _FORMS
    elif op == "CumSum":
        tensors = {"x": SweepTensor(shape, "float", ["ints", -3, 4]), "a": _whole(axis)}
        node = _one(op, "x", "a", exclusive=int(rng.integers(2)), reverse=int(rng.integers(2)))
    elif op == "TopK":
        tensors["x"] = SweepTensor(shape, "float", "permutation" if np.prod(shape) <= 2000 else "normal")
        tensors["k"] = _whole([int(rng.integers(1, shape[axis] + 1))])
        node = _one(op, "x", "k", axis=axis, largest=int(rng.integers(2)), outputs=2)
        forms = ("float", "qdq16")
    elif op == "Clip":
        tensors = {"x": SweepTensor(shape, "float", ["uniform", -6, 6])}
        low, high = float(_pick(rng, -1, 0, 0.5)), float(_pick(rng, 1, 6, 3.25))
        tensors |= {"l": SweepTensor((), "float", [low], True), "h": SweepTensor((), "float", [high], True)}
        node = _pick(rng, _one(op, "x", "l", "h"), _one(op, "x", "l"), _one(op, "x", "", "h"))
    elif op == "OneHot":
        tensors = {
            "x": SweepTensor(shape[:3], "int64", ["ints", -4, 5]),
            "d": _whole([5]),
            "v": SweepTensor((2,), "float", [0.0, 1.0], True),
        }
        node = _one(op, "x", "d", "v", axis=int(_pick(rng, -1, 0, 1)))
        forms = ("float",)
    else:
        source = str(_pick(rng, "float", "float16", "int32", "uint8", "bool", "int64"))
        tensors = {"x": SweepTensor(shape, source, _pick(rng, ["grid", 0.5, 9], ["ints", 0, 9]))}
        if source == "bool":
            tensors = {"x": SweepTensor(shape, source, ["ints", 0, 2])}
        elif source not in ("float", "float16"):
            tensors = {"x": SweepTensor(shape, source, ["ints", 0, 9])}
        node = _one("Cast", "x", to=int(_pick(rng, 1, 10, 6, 7, 2, 9)))
        forms = ("float",)
    tensors = {name: one for name, one in tensors.items() if name in node.inputs}
    return _case(rng, tensors, node, forms=forms)


def _indexing(rng: Rng) -> Case:
    op = _pick(rng, "Gather", "Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements")
    shape = _shape(rng, 1 if op == "Gather" else 2, 4)
    rank = len(shape)
    axis = int(rng.integers(-rank, rank))
    size = shape[axis]
    low = -size if rng.random() < 0.3 else 0
    constant = bool(rng.random() < 0.6)
    kind = str(_pick(rng, "int64", "int64", "int32"))
    x = SweepTensor(shape, "float", "permutation" if np.prod(shape) <= 2000 else ["ints", -99, 99])
    tensors = {"x": x}
    if op == "Gather":
        tensors["i"] = SweepTensor(
            _shape(rng, 1, 2)[:2] if rng.random() < 0.8 else (), kind, ["ints", low, size], constant
        )
        return _case(rng, tensors, _one(op, "x", "i", axis=axis))
    if op == "GatherElements":
        small = tuple(int(rng.integers(1, s + 1)) for s in shape)
        tensors["i"] = SweepTensor(small, kind, ["ints", low, size], constant)
        return _case(rng, tensors, _one(op, "x", "i", axis=axis))
    if op == "ScatterElements":
        # Along one axis each place once.
        index = np.stack([rng.permutation(size) for _ in range(int(np.prod(shape)) // size)])
        moved = np.moveaxis(index.reshape(*np.delete(shape, axis % rank), size), -1, axis % rank)
        tensors["i"] = SweepTensor(shape, "int64", (moved + low).ravel().tolist(), constant)
        tensors["u"] = SweepTensor(shape, "float", ["ints", -9, 9])
        return _case(rng, tensors, _one(op, "x", "i", "u", axis=axis)) if np.prod(shape) <= 4096 else _indexing(rng)
    depth = int(rng.integers(1, rank + 1))
    many = int(_pick(rng, 1, 2, 5, 9))
    rows = np.unique(np.stack([rng.integers(0, s, many) for s in shape[:depth]], -1), axis=0)
    if low:
        rows = rows - np.array(shape[:depth])
    tensors["i"] = SweepTensor(tuple(rows.shape), "int64", rows.ravel().tolist(), constant)
    if op == "GatherND":
        return _case(rng, tensors, _one(op, "x", "i"))
    tensors["u"] = SweepTensor((len(rows), *shape[depth:]), "float", ["ints", -9, 9])
    attributes = {"reduction": _pick(rng, "none", "add", "mul")} if rng.random() < 0.4 else {}
    return _case(rng, tensors, _one(op, "x", "i", "u", **attributes), opset=18)


def _recurrent(rng: Rng) -> Case:
    op = _pick(rng, "LSTM", "GRU")
    length, batch, ins, hidden = (
        int(_pick(rng, *choices)) for choices in ((1, 3, 7), (1, 2), (3, 8, 17), (4, 8, 16))
    )
    direction = _pick(rng, "forward", "reverse", "bidirectional")
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
    return _case(rng, tensors, _one(op, *given, outputs=2, **attributes), forms=("float", "float", "float16"))


def _sampling(rng: Rng) -> Case:
    if rng.random() < 0.6:
        n, c, h, w = 1, int(_pick(rng, 1, 3, 8, 33)), *(int(_pick(rng, 3, 4, 8, 9, 16)) for _ in range(2))
        out = (int(_pick(rng, 2, 5, 8)), int(_pick(rng, 2, 5, 8)))
        tensors = {
            "x": SweepTensor((n, c, h, w)),
            "g": SweepTensor((n, *out, 2), "float", _pick(rng, ["uniform", -0.9, 0.9], ["uniform", -1.4, 1.4])),
        }
        attributes = {
            "mode": _pick(rng, "linear", "nearest"),
            "padding_mode": _pick(rng, "zeros", "border", "reflection"),
            "align_corners": int(rng.integers(2)),
        }
        return _case(
            rng, tensors, _one("GridSample", "x", "g", **attributes), opset=20, forms=("float", "float", "qdq16")
        )
    boxes = [[0.5, 0.5, 6.5, 7.0], [1.0, 2.0, 5.0, 5.5], [0.0, 0.0, 8.0, 8.0]]
    tensors = {
        "x": SweepTensor((1, int(_pick(rng, 1, 4, 33)), 12, 12)),
        "r": SweepTensor((3, 4), "float", [edge for box in boxes for edge in box]),
        "i": _whole([0, 0, 0]),
    }
    attributes = {
        "output_height": int(_pick(rng, 2, 5)),
        "output_width": int(_pick(rng, 2, 3)),
        "sampling_ratio": int(_pick(rng, 0, 1, 2)),
        "spatial_scale": float(_pick(rng, 1, 0.5)),
        "coordinate_transformation_mode": _pick(rng, "half_pixel", "output_half_pixel"),
    }
    return _case(rng, tensors, _one("RoiAlign", *tensors, **attributes), forms=("float",))


FAMILIES: Final[Mapping[str, Callable[[Rng], Case]]] = {
    "unary": _unary,
    "binary": _binary,
    "power": _power,
    "chain": _chain,
    "conv": _conv,
    "dilated": _dilated,
    "pool": _pool,
    "average": _average,
    "resize": _resize,
    "pad": _pad,
    "matmul": _matmul,
    "reduce": _reduce,
    "normalisation": _normalisation,
    "moving": _moving,
    "indexing": _indexing,
    "recurrent": _recurrent,
    "sampling": _sampling,
    "gate": _gate,
    "cast": _cast,
}


def generated(family: str, number: int, seed: int) -> Case:
    """Case `number` of a family."""
    return FAMILIES[family](np.random.default_rng([seed, number, *family.encode()]))


# --- the node tests of onnx ----------------------------------------------------------------------------------

_NEWEST_OPSET: Final = 24
_MOST_GIVEN: Final = 1024


def node_tests(constants: bool) -> Iterator[tuple[str, Case]]:
    """Name and case of the tests of one node whose tensors are small.

    constants: all inputs but the first are part of the model.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        tests = list(collect_testcases(None))
    for test in tests:
        case = _of_node_test(test, constants)
        if case is not None:
            yield test.name, case


def _of_node_test(test: Any, constants: bool) -> Case | None:
    from onnx import helper

    graph, sets = test.model.graph, test.data_sets
    if (
        len(graph.node) != 1
        or not sets
        or any(a.g.node for a in graph.node[0].attribute)
        or (constants and len(graph.input) < 2)
        or graph.initializer
    ):
        return None
    opset = next((one.version for one in test.model.opset_import if not one.domain), 0)
    names = [value.name for value in graph.input]
    tensors = {}
    for number, (name, given) in enumerate(zip(names, sets[0][0], strict=False)):
        if isinstance(given, (list, tuple)) or given is None:
            return None
        array: Array = np.asarray(given)
        known = {
            "float32": "float",
            "bool": "bool",
            "float16": "float16",
            "int32": "int32",
            "int64": "int64",
            "uint8": "uint8",
        }
        if array.dtype.name not in known or array.size > _MOST_GIVEN:
            return None
        values = array.ravel().tolist() if array.size else []
        if not np.isfinite(array.astype(np.float64)).all():
            return None
        tensors[name] = SweepTensor(tuple(array.shape), known[array.dtype.name], values, constants and number > 0)
    node = graph.node[0]
    attributes = {a.name: _plain(helper.get_attribute_value(a)) for a in node.attribute}
    if any(value is None for value in attributes.values()) or node.domain not in ("", "ai.onnx"):
        return None
    used = {name: one for name, one in tensors.items() if name in node.input}
    if not used or all(one.constant for one in used.values()):
        return None
    one = SweepNode(node.op_type, tuple(node.input), attributes, len(node.output))
    return Case(used, (one,), min(opset, _NEWEST_OPSET))


def _plain(value: Any) -> Any:
    """As JSON has it; None for what it has not."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, (list, tuple)):
        found = [_plain(one) for one in value]
        return None if None in found else found
    return None
