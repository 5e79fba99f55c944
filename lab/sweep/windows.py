"""Families of operators with windows over space: convolutions, pools, resizing, padding."""

from __future__ import annotations

from typing import Any

from lab.sweep.draws import CHANNELS, PICTURES, SIZES, Rng, case_of, draw_shape, one_node, pick, whole
from qnnbridge_host.numerics.cases import Case, SweepTensor


def _window(rng: Rng, dims: int, sizes: list[int], *, dilated: bool) -> dict[str, Any]:
    """Return kernel, strides, dilations, and either pads or auto_pad, such that the output is not empty."""
    while True:
        kernel = [int(pick(rng, 1, 2, 3, 3, 4, 5, 7)) for _ in range(dims)]
        if rng.random() < 0.5:
            kernel = kernel[:1] * dims
        strides = [int(pick(rng, 1, 1, 1, 2, 2, 3)) for _ in range(dims)]
        if rng.random() < 0.6:
            strides = strides[:1] * dims
        dilations = [int(pick(rng, 1, 2, 3, 4, 6, 8)) if dilated and rng.random() < 0.5 else 1] * dims
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
            found["auto_pad"] = pick(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
        padded = found.get("pads", [0] * 2 * dims)
        room = [s + padded[i] + padded[dims + i] - reach[i] for i, s in enumerate(sizes)]
        if min(room) >= 1:
            return found


def _spatial(rng: Rng, dims: int) -> list[int]:
    sizes = SIZES if dims == 1 else SIZES[:18] if dims == 2 else SIZES[:9]
    return [int(pick(rng, *sizes)) for _ in range(dims)]


def conv(rng: Rng) -> Case:
    dims = int(pick(rng, 1, 1, 2, 2, 2, 3))
    sizes = _spatial(rng, dims)
    op = pick(rng, "Conv", "Conv", "ConvTranspose")
    window = _window(rng, dims, sizes, dilated=op == "Conv")
    group = int(pick(rng, 1, 1, 2, 4))
    ins, outs = (int(pick(rng, *CHANNELS)) * group for _ in range(2))
    if rng.random() < 0.2:
        group = ins
        outs = ins * int(pick(rng, 1, 1, 2))
    if op == "ConvTranspose":
        if rng.random() < 0.3:
            window["output_padding"] = [int(rng.integers(0, s)) for s in window["strides"]]
        shape = (ins, outs // group, *window["kernel_shape"])
    else:
        shape = (outs, ins // group, *window["kernel_shape"])
    tensors = {
        "x": SweepTensor((int(pick(rng, 1, 1, 1, 2)), ins, *sizes)),
        "w": SweepTensor(shape, "float", "fan", rng.random() < 0.9),
    }
    if rng.random() < 0.5:
        tensors["b"] = SweepTensor((outs,), "float", "normal", True)
    return case_of(rng, tensors, one_node(op, *tensors, group=group, **window))


def dilated(rng: Rng) -> Case:
    """Return a dilated convolution along one long dimension, which QNN is known to compute wrong in some cases."""
    kernel, dilation = int(pick(rng, 2, 3, 5, 7, 9)), int(rng.integers(1, 17))
    reach = dilation * (kernel - 1)
    length = int(pick(rng, *SIZES, 8 * int(rng.integers(1, 24))))
    left = int(pick(rng, reach // 2, reach // 2, reach // 2, reach, 0))
    right = int(pick(rng, reach - left, reach - left, left))
    if length + left + right <= reach:
        left, right = reach // 2, reach - reach // 2
    ins, outs = int(pick(rng, *CHANNELS)), int(pick(rng, *CHANNELS))
    group = ins if rng.random() < 0.15 else 1
    outs = ins if group > 1 else outs
    stride = int(pick(rng, 1, 1, 1, 2))
    flat = rng.random() < 0.7
    tensors = {
        "x": SweepTensor((1, ins, length) if flat else (1, ins, int(pick(rng, 1, 1, 2)), length)),
        "w": SweepTensor((outs, ins // group, *(() if flat else (1,)), kernel), "float", "fan", True),
    }
    ones, none = ([], []) if flat else ([1], [0])
    node = one_node(
        "Conv",
        "x",
        "w",
        kernel_shape=[*ones, kernel],
        dilations=[*ones, dilation],
        strides=[*ones, stride],
        pads=[*none, left, *none, right],
        group=group,
    )
    return case_of(rng, tensors, node)


def pool(rng: Rng) -> Case:
    dims = int(pick(rng, 1, 2, 2, 2, 3))
    sizes = _spatial(rng, dims)
    op = pick(rng, "MaxPool", "AveragePool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool")
    x = {
        "x": SweepTensor((1, int(pick(rng, *CHANNELS)), *sizes), "float", pick(rng, "normal", ["uniform", -9, -1]))
    }
    if op.startswith("Global"):
        return case_of(rng, x, one_node(op, "x"))
    window = _window(rng, dims, sizes, dilated=False)
    if op != "LpPool" and rng.random() < 0.35:
        window["ceil_mode"] = 1
    if op == "AveragePool" and rng.random() < 0.4:
        window["count_include_pad"] = 1
    return case_of(rng, x, one_node(op, "x", **window), opset=int(pick(rng, 17, 19)) if op != "LpPool" else 17)


def average(rng: Rng) -> Case:
    """Return AveragePool without ceil_mode, with common and unusual kernels, sizes and padding."""
    dims = int(pick(rng, 1, 2, 2, 2, 2, 3))
    same = rng.random() < 0.6
    kernel = [int(pick(rng, 2, 2, 3, 3, 3, 4, 5, 5, 6, 7, 8, 9, 11))] * dims
    if not same:
        kernel = [int(pick(rng, 1, 1, 2, 3, 4, 5, 7, 9)) for _ in range(dims - 1)] + kernel[:1]
    strides = [int(pick(rng, 1, 1, 1, 2, 2, 3))] * dims
    sizes = [max(k, int(pick(rng, *(SIZES[:9] if dims == 3 else PICTURES)))) for k in kernel]
    pads = [[0] * dims, [0] * dims]
    how = pick(rng, "none", "same", "same", "same", "lower", "any", "any")
    if how != "none":
        pads = [[k // 2 for k in kernel] for _ in pads]
    if how == "lower":
        pads[0] = [(k - 1) // 2 for k in kernel]
    if how == "any":
        pads = [[int(rng.integers(0, most + 1)) for most in side] for side in pads]
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": [*pads[0], *pads[1]]}
    if any(attributes["pads"]) and rng.random() < 0.4:
        attributes["count_include_pad"] = 1
    channels = int(pick(rng, 1, 2, 3, 8, 16, 24, 31, 32, 33, 64))
    x = {"x": SweepTensor((1, channels, *sizes), "float", pick(rng, "normal", ["uniform", -9, -1]))}
    return case_of(rng, x, one_node("AveragePool", "x", **attributes))


def resize(rng: Rng) -> Case:
    dims = int(pick(rng, 1, 2, 2, 2))
    sizes = [max(2, size) for size in _spatial(rng, dims)]
    mode = pick(rng, "nearest", "nearest", "linear", "linear", "cubic")
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": pick(
            rng, "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"
        ),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = pick(rng, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    if mode == "cubic":
        attributes["cubic_coeff_a"] = float(pick(rng, -0.75, -0.5))
    head = (1, int(pick(rng, *CHANNELS)))
    x = SweepTensor((*head, *sizes))
    none = SweepTensor((0,), "float", [], True)
    if rng.random() < 0.5:
        scales = [float(pick(rng, 2, 2, 3, 4, 0.5, 1.5, 0.75, 1)) for _ in range(dims)]
        scales = scales[:1] * dims if rng.random() < 0.6 else scales
        tensors = {"x": x, "r": none, "s": SweepTensor((dims + 2,), "float", [1.0, 1.0, *scales], True)}
        return case_of(rng, tensors, one_node("Resize", "x", "r" if rng.random() < 0.5 else "", "s", **attributes))
    target = [int(pick(rng, *SIZES[:18], size * 2, max(1, size // 2))) for size in sizes]
    tensors = {"x": x, "z": whole([*head, *target])}
    return case_of(rng, tensors, one_node("Resize", "x", "", "", "z", **attributes))


def pad(rng: Rng) -> Case:
    shape = draw_shape(rng, 1, 4)
    mode = pick(rng, "constant", "constant", "edge", "edge", "reflect", "reflect")
    limit = [size - 1 if mode == "reflect" else 9 for size in shape]
    dense = rng.random() < 0.3
    pads = [int(rng.integers(0, min(limit[i % len(shape)], 6) + 1)) for i in range(2 * len(shape))]
    if not dense:
        keep = {int(rng.integers(len(shape))), len(shape) - 1}
        pads = [p if i % len(shape) in keep else 0 for i, p in enumerate(pads)]
    if rng.random() < 0.1:
        pads[0] = -1 if shape[0] > 2 else 0
    tensors = {"x": SweepTensor(shape), "p": whole(pads)}
    if mode == "constant" and rng.random() < 0.5:
        tensors["v"] = SweepTensor((), "float", [float(pick(rng, 0, 1, -2.5, 100))], True)
    return case_of(rng, tensors, one_node("Pad", *tensors, mode=mode))
