"""Sizes of a call, its bucket, padding, cutting and parts, tested on arrays without a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from qnnbridge._buckets import MAX_DENOMINATOR, Relation, make_arguments
from qnnbridge._buckets.batches import (
    OutputShapes,
    bucket_for,
    cut,
    joined,
    joints,
    pad_feeds,
    parts,
    refuse_too_large,
    sizes_of,
    too_large,
    variant_for,
)
from qnnbridge._buckets.plan import BucketPlan, make_plan
from qnnbridge._buckets.probing import CONSECUTIVE, MAX_SEARCHED, check_cut, find_shapes
from qnnbridge.errors import DeadlineExceeded, Fail, HostCrashed, InvalidArgument, ModelError, OptionError
from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.model_records import ModelDescription, ModelIdentity
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_protocol.tensors import Typed

X = NodeInfo("x", "tensor(float)", ("batch", "seq", 2))
M = NodeInfo("m", "tensor(bool)", ("seq",))


def plan_of(buckets: Any, *inputs: NodeInfo, pad: Any = 0, **keywords: Any) -> BucketPlan:
    return make_plan(
        make_arguments(buckets, pad, **keywords),
        ModelDescription(ModelIdentity("0" * 64, "m.onnx"), inputs=inputs or (X, M)),
        "m.onnx",
    )


def shapes_of(feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in feeds.items()}


@pytest.mark.parametrize("buckets", [{7}, {16, 32, 64, 128}, {1, 2, 3}, set(range(5, 100, 9))])
def test_the_bucket_is_the_smallest_that_is_large_enough(buckets: set[int]) -> None:
    plan = plan_of({"seq": buckets, "batch": 1})
    for size in range(140):
        fitting = [bucket for bucket in buckets if bucket >= size]
        assert bucket_for(plan, 0, size) == (min(fitting) if fitting else None)


def test_sizes_are_taken_from_all_inputs_and_must_agree() -> None:
    plan = plan_of({"seq": [4, 8], "batch": [1, 2]})
    feeds = {"x": np.zeros((2, 5, 2), np.float32), "m": np.ones(5, bool)}
    assert sizes_of(plan, shapes_of(feeds)) == (5, 2)
    assert variant_for(plan, (5, 2)) == (8, 2)
    with pytest.raises(InvalidArgument, match=r"'seq' is 5 in input 'x' \(axis 1\) and 6 in input 'm'"):
        sizes_of(plan, {"x": (2, 5, 2), "m": (6,)})


def test_the_error_for_a_call_that_is_too_large_names_the_largest_bucket() -> None:
    plan = plan_of({"seq": [4, 8], "batch": 1})
    assert too_large(plan, (9, 1)) == (0,)
    assert variant_for(plan, (9, 1)) is None
    error = refuse_too_large(plan, (9, 1), 0)
    assert "'seq' is 9, the largest bucket for it is 8" in error.message
    assert error.details == {"symbol": "seq", "size": 9, "largest": 8}
    assert "overflow='cpu'" in str(error.fix)


def test_padding_keeps_the_values_and_fills_the_rest() -> None:
    plan = plan_of({"seq": [4], "batch": [2]}, pad={"x": 7, "m": False}, split=())
    x = np.arange(6, dtype=np.float32).reshape(1, 3, 2)
    padded = pad_feeds(plan, {"x": x, "m": np.ones(3, bool), "other": 1}, (4, 2))
    assert padded["x"].shape == (2, 4, 2)
    assert np.array_equal(padded["x"][:1, :3], x)
    assert (padded["x"][0, 3:] == 7).all()
    assert (padded["x"][1:] == 7).all()
    assert padded["m"].tolist() == [True, True, True, False]
    assert padded["other"] == 1


def test_an_input_that_fills_a_bucket_is_not_copied() -> None:
    plan = plan_of({"seq": [4], "batch": [1]})
    x = np.zeros((1, 4, 2), np.float32)
    assert pad_feeds(plan, {"x": x, "m": np.ones(4, bool)}, (4, 1))["x"] is x


def test_rows_that_pad_a_batch_repeat_the_last_real_one() -> None:
    plan = plan_of({"batch": 4, "seq": [3]}, pad={"x": 9, "m": False})
    x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    padded = pad_feeds(plan, {"x": x, "m": np.ones(2, bool)}, (4, 3))["x"]
    assert np.array_equal(padded[2], padded[1])
    assert np.array_equal(padded[3], padded[1])
    assert (padded[:, 2] == 9).all()
    empty = pad_feeds(plan, {"x": x[:0], "m": np.ones(2, bool)}, (4, 3))["x"]
    assert empty.shape == (4, 3, 2)
    assert not empty.any()


def test_strings_are_padded_with_a_string() -> None:
    plan = plan_of({"n": [3]}, NodeInfo("x", "tensor(string)", ("n",)), pad={"x": "[PAD]"})
    padded = pad_feeds(plan, {"x": np.array(["a"], object)}, (3,))
    assert padded["x"].tolist() == ["a", "[PAD]", "[PAD]"]


# --- cutting ---


def test_outputs_are_cut_along_the_dimensions_that_depend_on_a_size() -> None:
    plan = plan_of({"seq": [8], "batch": [2]})
    shapes = OutputShapes({"y": (Relation("batch"), Relation("seq", 1, 1, 2), None), "z": (None,)})
    y, z = np.arange(2 * 4 * 3).reshape(2, 4, 3), np.arange(5)
    first, second = cut(plan, shapes, ["y", "z"], [y, z], (5, 1), (8, 2))
    assert np.array_equal(first, y[:1, :3])
    assert first.base is None
    assert second is z


def test_raw_tensors_are_cut_too() -> None:
    plan = plan_of({"seq": [4], "batch": 1})
    raw = Typed(np.arange(4, dtype=np.uint16), ElementType.BFLOAT16, (4,))
    shapes = OutputShapes({"y": (Relation("seq"),)})
    (result,) = cut(plan, shapes, ["y"], [raw], (3, 1), (4, 1))
    assert (result.shape, result.data.tolist()) == ((3,), [0, 1, 2])
    packed = Typed(np.zeros(2, np.uint8), ElementType.INT4, (4,))
    with pytest.raises(ModelError, match="smaller than a byte"):
        cut(plan, shapes, ["y"], [packed], (3, 1), (4, 1))


def test_a_dimension_that_differs_from_its_declaration_is_an_error_and_not_a_wrong_cut() -> None:
    plan = plan_of({"seq": [8], "batch": 1})
    shapes = OutputShapes({"y": (Relation("seq"),)})
    with pytest.raises(ModelError, match=r"has the unexpected shape \(9,\)") as caught:
        cut(plan, shapes, ["y"], [np.zeros(9)], (5, 1), (8, 1))
    assert "expected to be seq, which is 8" in str(caught.value.cause)
    with pytest.raises(ModelError, match=r"has the unexpected shape \(8, 1\)"):
        cut(plan, shapes, ["y"], [np.zeros((8, 1))], (5, 1), (8, 1))


def test_an_output_that_cannot_be_cut_is_refused_only_if_something_was_padded() -> None:
    plan = plan_of({"seq": [8], "batch": 1})
    shapes = OutputShapes({}, {"y": "It is seq(tensor(float))."})
    assert cut(plan, shapes, ["y"], [[1]], (8, 1), (8, 1)) == [[1]]
    with pytest.raises(ModelError, match="cannot be cut back") as caught:
        cut(plan, shapes, ["y"], [[1]], (5, 1), (8, 1))
    assert "seq(tensor(float))" in str(caught.value.cause)


# --- splitting and joining ---


@pytest.mark.parametrize("largest", [1, 2, 3, 6])
@pytest.mark.parametrize("rows", [1, 2, 3, 6, 7, 20])
def test_joined_parts_equal_the_whole(rows: int, largest: int) -> None:
    plan = plan_of({"batch": largest, "seq": [3]})
    shapes = OutputShapes({"y": (Relation("batch"), None)})
    x = np.arange(rows * 6, dtype=np.float32).reshape(rows, 3, 2)
    m = np.ones(3, bool)
    axes = joints(plan, shapes, ["y"], 0)
    results = []
    for part in parts(plan, {"x": x, "m": m}, 0, rows):
        assert part["m"] is m
        assert part["x"].shape[0] <= largest
        results.append([part["x"].reshape(len(part["x"]), 6)])
    assert np.array_equal(joined(results, axes)[0], x.reshape(rows, 6))


def test_an_output_without_the_dimension_cannot_be_joined() -> None:
    plan = plan_of({"batch": 2, "seq": [3]})
    shapes = OutputShapes({"y": (None,), "z": (Relation("batch"), Relation("batch"))})
    for name in "yz":
        with pytest.raises(InvalidArgument, match=f"output '{name}' cannot be joined from parts"):
            joints(plan, shapes, [name], 0)


def test_raw_parts_are_joined() -> None:
    raw = [Typed(np.full(n, n, np.uint16), ElementType.BFLOAT16, (n,)) for n in (1, 2)]
    (whole,) = joined([[one] for one in raw], [0])
    assert (whole.shape, whole.data.tolist()) == ((3,), [1, 2, 2])


# --- relations between sizes and outputs ---


def find(
    plan: BucketPlan, outputs: dict[str, Any], run: Any, cut: Any = None, others: tuple[str, ...] = ()
) -> OutputShapes:
    arguments = make_arguments({name: list(b) for name, b in zip(plan.symbols, plan.buckets, strict=True)}, cut=cut)
    nodes = [NodeInfo(name, "tensor(float)", shape) for name, shape in outputs.items()]
    check_cut(plan, arguments, nodes)
    return find_shapes(plan, arguments, nodes, others, run)


def never(sizes: Any) -> Any:
    raise AssertionError("the model was run though it declares everything")


def test_declared_dimension_names_are_sufficient() -> None:
    plan = plan_of({"seq": [8], "batch": 1})
    found = find(plan, {"y": ("batch", "seq", 8), "z": ("other",)}, never, others=("other",))
    assert found.texts() == {"y": ("batch", "seq", None), "z": (None,)}


def test_undeclared_output_sizes_are_measured_by_running_small_sizes() -> None:
    plan = plan_of({"seq": [8, 16], "batch": [2]})
    seen = []

    def run(sizes: tuple[int, ...]) -> dict[str, Any]:
        seen.append(sizes)
        seq, batch = sizes
        return {"y": (batch, seq, 3), "z": (2 * seq + 1,), "h": ((seq + 1) // 2, 4)}

    found = find(plan, {"y": (None, None, 3), "z": None, "h": ("h_dim", 4)}, run)
    assert found.texts() == {
        "y": ("batch", "seq", None),
        "z": ("2 * seq + 1",),
        "h": ("(seq + 1) // 2", None),
    }
    assert max(seq for seq, _ in seen) <= 8 + MAX_DENOMINATOR


def test_a_model_that_accepts_only_multiples_is_measured_at_its_buckets() -> None:
    plan = plan_of({"seq": [32, 64], "batch": 1})

    def run(sizes: tuple[int, ...]) -> dict[str, Any]:
        if sizes[0] % 32:
            raise Fail("[ONNXRuntimeError] : 1 : FAIL : dimensions do not match")
        return {"cells": (sizes[0] // 32,), "same": (sizes[0],), "twice": (2 * sizes[0],)}

    found = find(plan, {"same": (None,), "twice": (None,), "cells": (None,)}, run)
    assert found.texts() == {"same": ("seq",), "twice": ("2 * seq",)}
    assert "but not as (a * size + b)" in found.uncut["cells"]  # less than half a cell is invisible


@pytest.mark.parametrize(
    "text",
    [
        "(seq - 400) // 160 + 1",  # frames of a spectrum
        "(seq + 159) // 160",
        "seq // 512",
        "(seq + 63) // 64",
        "(320 * seq + 440) // 441",  # 22.05 kHz to 16 kHz
        "(441 * seq) // 320",
        "(3 * seq + 5) // 1000",
    ],
)
@pytest.mark.parametrize("buckets", [[4000, 16000], [8000], [1600, 3200, 64000]])
def test_hops_and_sampling_rates_are_recognised_exactly(text: str, buckets: list[int]) -> None:
    plan, seen = plan_of({"seq": buckets, "batch": 1}), []

    frames: Callable[[int], int] = eval(f"lambda seq: {text}")

    def run(sizes: tuple[int, ...]) -> dict[str, Any]:
        seen.append(sizes)
        if frames(sizes[0]) < 1:
            raise Fail("[ONNXRuntimeError] : 1 : FAIL : the kernel is larger than the input")
        return {"y": (frames(sizes[0]), 80)}

    relation = find(plan, {"y": (None, 80)}, run).found["y"][0]
    assert relation is not None
    assert all(relation.size(size) == frames(size) for size in range(400, buckets[-1] + 2000))
    assert len(seen) <= 3 + CONSECUTIVE + 24 + MAX_SEARCHED


@pytest.mark.parametrize(
    "frames",
    [
        lambda seq: int(seq**0.5),
        lambda seq: seq // 160 + (seq > 9000),
        lambda seq: seq // 2500,
        lambda seq: seq & -64,
    ],
    ids=["a root", "a jump", "a stride beyond the largest", "whole blocks"],
)
def test_an_output_size_that_follows_no_simple_rule_is_not_cut(frames: Callable[[int], int]) -> None:
    plan = plan_of({"seq": [4000, 16000], "batch": 1})
    found = find(plan, {"y": (None,)}, lambda sizes: {"y": (frames(sizes[0]),)})
    assert "but not as (a * size + b)" in found.uncut["y"]


def test_an_output_whose_size_cannot_be_measured_is_not_cut_and_has_a_reason() -> None:
    plan = plan_of({"seq": [8, 16], "batch": [2]})

    def run(sizes: tuple[int, ...]) -> dict[str, Any]:
        return {"flat": (sizes[0] * sizes[1],), "square": (sizes[0] ** 2,), "y": (sizes[0],)}

    found = find(plan, {"flat": None, "square": None, "y": None}, run)
    assert found.texts() == {"y": ("seq",)}
    assert "more than one size" in found.uncut["flat"]
    assert "but not as (a * size + b)" in found.uncut["square"]


def test_outputs_of_a_model_that_fails_on_zeros_are_not_cut_and_a_crashed_host_is_reported() -> None:
    plan = plan_of({"seq": [8], "batch": 1})

    def fails(sizes: Any) -> Any:
        raise Fail("no such luck")

    def dies(sizes: Any) -> Any:
        raise HostCrashed("gone")

    assert "no such luck" in find(plan, {"y": (None,)}, fails).uncut["y"]

    def late(sizes: Any) -> Any:
        raise DeadlineExceeded("too late")

    with pytest.raises(HostCrashed):
        find(plan, {"y": (None,)}, dies)
    with pytest.raises(DeadlineExceeded):
        find(plan, {"y": (None,)}, late)


def test_outputs_that_the_application_declared_are_not_measured() -> None:
    plan = plan_of({"seq": [8], "batch": 1})
    found = find(plan, {"y": None}, never, cut={"y": ["seq // 2", None]})
    assert found.texts() == {"y": ("seq // 2", None)}
    for bad, words in [({"x": [None]}, "no output 'x'"), ({"y": ["sec"]}, "'sec' has no buckets")]:
        with pytest.raises(OptionError, match=words):
            find(plan, {"y": None}, never, cut=bad)
    with pytest.raises(OptionError, match="has 2 dimensions, 1 are given"):
        find(plan, {"y": (None, None)}, never, cut={"y": ["seq"]})


def test_sequences_and_maps_are_never_cut() -> None:
    plan = plan_of({"seq": [8], "batch": 1})
    nodes = [NodeInfo("y", "seq(map(int64,tensor(float)))", ())]
    found = find_shapes(plan, make_arguments({"seq": 8}), nodes, (), never)
    assert "only tensors" in found.uncut["y"]
