"""Families of operators that move values, or select them by index or position."""

from __future__ import annotations

import numpy as np

from lab.sweep.draws import FORMS, Rng, case_of, draw_shape, one_node, pick, whole
from qnnbridge_host.numerics.cases import Case, SweepTensor


def moving(rng: Rng) -> Case:
    """Return an operator that only moves values, so that an offset by one position is obvious."""
    op = pick(
        *(rng, "Transpose", "Reshape", "Slice", "Slice", "Concat", "Split", "Expand", "Tile", "Flatten", "Squeeze"),
        *("DepthToSpace", "SpaceToDepth", "Unsqueeze", "CumSum", "TopK", "Clip", "OneHot", "Cast"),
    )
    shape = draw_shape(rng, 1, 5)
    kind = str(pick(rng, "float", "float", "float", "int32"))
    x = SweepTensor(shape, kind, "permutation" if np.prod(shape) <= 2000 else ["ints", -99, 99])
    rank = len(shape)
    axis = int(rng.integers(-rank, rank))
    forms = FORMS if kind == "float" else ("float",)
    tensors: dict[str, SweepTensor] = {"x": x}
    if op == "Transpose":
        node = one_node(op, "x", perm=[int(a) for a in rng.permutation(rank)])
    elif op == "Flatten":
        node = one_node(op, "x", axis=axis)
    elif op == "Reshape":
        sizes = [int(s) for s in rng.permutation(shape)]
        tensors["s"] = whole(pick(rng, sizes, [-1, shape[-1]], [shape[0], -1], [-1], [1, *shape][:5]))
        node = one_node(op, "x", "s")
    elif op == "Slice":
        size = shape[axis]
        step = int(pick(rng, 1, 1, 2, 3, -1, -2))
        start = int(rng.integers(0, size)) if step > 0 else size - 1 - int(rng.integers(0, (size + 1) // 2))
        end = int(pick(rng, size, 2**31 - 1)) if step > 0 else -(2**31) + 1
        tensors |= {"b": whole([start]), "e": whole([end]), "a": whole([axis]), "t": whole([step])}
        node = one_node(op, *tensors)
    elif op == "Concat":
        other = list(shape)
        other[axis] = int(pick(rng, 1, 2, 3, 5, 8))
        tensors["z"] = SweepTensor(tuple(other), kind, ["ints", -9, 9], rng.random() < 0.5)
        node = one_node(op, *pick(rng, ("x", "z"), ("z", "x"), ("x", "z", "x"), ("x", "x")), axis=axis)
    elif op == "Split":
        size = shape[axis]
        first = int(rng.integers(1, size)) if size > 1 else 1
        parts = [first, size - first] if size > 1 else [1]
        tensors["s"] = whole(parts)
        node = one_node(op, "x", "s", axis=axis, outputs=len(parts))
    elif op == "Expand":
        small = tuple(1 if rng.random() < 0.5 else s for s in shape)
        tensors = {"x": SweepTensor(small, kind, ["ints", -99, 99]), "s": whole(list(shape))}
        node = one_node(op, "x", "s")
    elif op == "Tile":
        repeats = [int(pick(rng, 1, 1, 2, 3)) for _ in shape]
        tensors["r"] = whole(repeats)
        node = one_node(op, "x", "r")
    elif op in ("Squeeze", "Unsqueeze"):
        if op == "Squeeze":
            tensors["x"] = SweepTensor((1, *shape[:3], 1), kind, ["ints", -99, 99])
        tensors["a"] = whole(pick(rng, [0], [-1]))
        node = one_node(op, "x", "a")
    elif op in ("DepthToSpace", "SpaceToDepth"):
        block = int(pick(rng, 2, 2, 3, 4))
        c, h, w = (int(pick(rng, 1, 2, 3, 4, 5, 8, 12)) for _ in range(3))
        deep = op == "DepthToSpace"
        sides = (c * block * block, h, w) if deep else (c, h * block, w * block)
        tensors["x"] = SweepTensor((1, *sides), "float", ["ints", -99, 99])
        node = one_node(op, "x", blocksize=block, **({"mode": pick(rng, "DCR", "CRD")} if deep else {}))
        forms = FORMS
    elif op == "CumSum":
        tensors = {"x": SweepTensor(shape, "float", ["ints", -3, 4]), "a": whole(axis)}
        node = one_node(op, "x", "a", exclusive=int(rng.integers(2)), reverse=int(rng.integers(2)))
    elif op == "TopK":
        tensors["x"] = SweepTensor(shape, "float", "permutation" if np.prod(shape) <= 2000 else "normal")
        tensors["k"] = whole([int(rng.integers(1, shape[axis] + 1))])
        node = one_node(op, "x", "k", axis=axis, largest=int(rng.integers(2)), outputs=2)
        forms = ("float", "qdq16")
    elif op == "Clip":
        tensors = {"x": SweepTensor(shape, "float", ["uniform", -6, 6])}
        low, high = float(pick(rng, -1, 0, 0.5)), float(pick(rng, 1, 6, 3.25))
        tensors |= {"l": SweepTensor((), "float", [low], True), "h": SweepTensor((), "float", [high], True)}
        node = pick(rng, one_node(op, "x", "l", "h"), one_node(op, "x", "l"), one_node(op, "x", "", "h"))
    elif op == "OneHot":
        tensors = {
            "x": SweepTensor(shape[:3], "int64", ["ints", -4, 5]),
            "d": whole([5]),
            "v": SweepTensor((2,), "float", [0.0, 1.0], True),
        }
        node = one_node(op, "x", "d", "v", axis=int(pick(rng, -1, 0, 1)))
        forms = ("float",)
    else:
        source = str(pick(rng, "float", "float16", "int32", "uint8", "bool", "int64"))
        tensors = {"x": SweepTensor(shape, source, pick(rng, ["grid", 0.5, 9], ["ints", 0, 9]))}
        if source == "bool":
            tensors = {"x": SweepTensor(shape, source, ["ints", 0, 2])}
        elif source not in ("float", "float16"):
            tensors = {"x": SweepTensor(shape, source, ["ints", 0, 9])}
        node = one_node("Cast", "x", to=int(pick(rng, 1, 10, 6, 7, 2, 9)))
        forms = ("float",)
    tensors = {name: one for name, one in tensors.items() if name in node.inputs}
    return case_of(rng, tensors, node, forms=forms)


def indexing(rng: Rng) -> Case:
    op = pick(rng, "Gather", "Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements")
    shape = draw_shape(rng, 1 if op == "Gather" else 2, 4)
    rank = len(shape)
    axis = int(rng.integers(-rank, rank))
    size = shape[axis]
    low = -size if rng.random() < 0.3 else 0
    constant = bool(rng.random() < 0.6)
    kind = str(pick(rng, "int64", "int64", "int32"))
    x = SweepTensor(shape, "float", "permutation" if np.prod(shape) <= 2000 else ["ints", -99, 99])
    tensors = {"x": x}
    if op == "Gather":
        tensors["i"] = SweepTensor(
            draw_shape(rng, 1, 2)[:2] if rng.random() < 0.8 else (), kind, ["ints", low, size], constant
        )
        return case_of(rng, tensors, one_node(op, "x", "i", axis=axis))
    if op == "GatherElements":
        small = tuple(int(rng.integers(1, s + 1)) for s in shape)
        tensors["i"] = SweepTensor(small, kind, ["ints", low, size], constant)
        return case_of(rng, tensors, one_node(op, "x", "i", axis=axis))
    if op == "ScatterElements":
        # Use each index once along the axis: with duplicates the result would depend on the order of the writes.
        index = np.stack([rng.permutation(size) for _ in range(int(np.prod(shape)) // size)])
        moved = np.moveaxis(index.reshape(*np.delete(shape, axis % rank), size), -1, axis % rank)
        tensors["i"] = SweepTensor(shape, "int64", (moved + low).ravel().tolist(), constant)
        tensors["u"] = SweepTensor(shape, "float", ["ints", -9, 9])
        return (
            case_of(rng, tensors, one_node(op, "x", "i", "u", axis=axis))
            if np.prod(shape) <= 4096
            else indexing(rng)
        )
    depth = int(rng.integers(1, rank + 1))
    many = int(pick(rng, 1, 2, 5, 9))
    rows = np.unique(np.stack([rng.integers(0, s, many) for s in shape[:depth]], -1), axis=0)
    if low:
        rows = rows - np.array(shape[:depth])
    tensors["i"] = SweepTensor(tuple(rows.shape), "int64", rows.ravel().tolist(), constant)
    if op == "GatherND":
        return case_of(rng, tensors, one_node(op, "x", "i"))
    tensors["u"] = SweepTensor((len(rows), *shape[depth:]), "float", ["ints", -9, 9])
    attributes = {"reduction": pick(rng, "none", "add", "mul")} if rng.random() < 0.4 else {}
    return case_of(rng, tensors, one_node(op, "x", "i", "u", **attributes), opset=18)


def sampling(rng: Rng) -> Case:
    if rng.random() < 0.6:
        n, c, h, w = 1, int(pick(rng, 1, 3, 8, 33)), *(int(pick(rng, 3, 4, 8, 9, 16)) for _ in range(2))
        out = (int(pick(rng, 2, 5, 8)), int(pick(rng, 2, 5, 8)))
        tensors = {
            "x": SweepTensor((n, c, h, w)),
            "g": SweepTensor((n, *out, 2), "float", pick(rng, ["uniform", -0.9, 0.9], ["uniform", -1.4, 1.4])),
        }
        attributes = {
            "mode": pick(rng, "linear", "nearest"),
            "padding_mode": pick(rng, "zeros", "border", "reflection"),
            "align_corners": int(rng.integers(2)),
        }
        return case_of(
            rng,
            tensors,
            one_node("GridSample", "x", "g", **attributes),
            opset=20,
            forms=("float", "float", "qdq16"),
        )
    boxes = [[0.5, 0.5, 6.5, 7.0], [1.0, 2.0, 5.0, 5.5], [0.0, 0.0, 8.0, 8.0]]
    tensors = {
        "x": SweepTensor((1, int(pick(rng, 1, 4, 33)), 12, 12)),
        "r": SweepTensor((3, 4), "float", [edge for box in boxes for edge in box]),
        "i": whole([0, 0, 0]),
    }
    attributes = {
        "output_height": int(pick(rng, 2, 5)),
        "output_width": int(pick(rng, 2, 3)),
        "sampling_ratio": int(pick(rng, 0, 1, 2)),
        "spatial_scale": float(pick(rng, 1, 0.5)),
        "coordinate_transformation_mode": pick(rng, "half_pixel", "output_half_pixel"),
    }
    return case_of(rng, tensors, one_node("RoiAlign", *tensors, **attributes), forms=("float",))
