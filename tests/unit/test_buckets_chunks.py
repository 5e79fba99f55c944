"""Overlapping windows cover everything once and lose nothing, and the needed context is measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from qnnbridge._buckets import Relation, make_arguments
from qnnbridge._buckets.batches import Context, join, variant_for, window_feeds, window_length, windows
from qnnbridge._buckets.contents import changed, draw, draws, highest_valid
from qnnbridge._buckets.plan import BucketPlan, PaddedInput, make_plan
from qnnbridge._buckets.reach import check_exact, measure
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.model_records import ModelDescription, ModelIdentity
from qnnbridge_protocol.specs import NodeInfo

HOP = 3
ENDS = [(Relation("n", HOP), 1)]


def plan(*buckets: int) -> BucketPlan:
    return BucketPlan(("n",), (buckets,), frozenset(), {"x": PaddedInput("x", {1: 0}, None)}, 0)


def convolution(left: int, right: int, *, edge: bool = True) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """Return a model x [2, n] to y [2, 3 n]: each output depends on `left` steps before it and `right` after it."""
    weights = np.random.default_rng(1).standard_normal((HOP, left + right + 1))

    def run(feeds: Mapping[str, Any]) -> Sequence[Any]:
        x = np.pad(feeds["x"], ((0, 0), (left, right)), "edge" if edge else "constant")
        seen = np.lib.stride_tricks.sliding_window_view(x, left + right + 1, 1)
        y = np.einsum("cnk,hk->cnh", seen, weights)
        return [y.reshape(len(x), -1)]

    return run


def zeros(size: int) -> dict[str, Any]:
    return {"x": np.zeros((2, size))}


@pytest.mark.parametrize("context", [Context(0, 0), Context(3, 0), Context(2, 5)])
@pytest.mark.parametrize("length", [8, 11])
def test_windows_cover_every_step_once_with_sufficient_context(context: Context, length: int) -> None:
    for size in range(length, 60):
        cuts = windows(size, length, context)
        assert [one.keep_from for one in cuts] == [0, *(one.keep_to for one in cuts[:-1])]
        assert cuts[-1].keep_to == size
        for one in cuts:
            assert 0 <= one.start <= size - length
            assert one.start == 0 or one.keep_from - one.start >= context.left
            assert one.start + length == size or one.start + length - one.keep_to >= context.right


@pytest.mark.parametrize(("left", "right"), [(0, 0), (2, 2), (4, 1)])
def test_joined_windows_equal_the_unsplit_result(left: int, right: int) -> None:
    run, context, length = convolution(left, right), Context(left, right), 9
    for size in (9, 10, 17, 40):
        feeds = {"x": np.random.default_rng(size).standard_normal((2, size))}
        cuts = windows(size, length, context)
        results = [run(part) for part in window_feeds(plan(length), feeds, 0, cuts, length)]
        (joined,) = join(results, cuts, ENDS, size)
        np.testing.assert_allclose(joined, run(feeds)[0])


def test_one_step_of_context_less_is_detected() -> None:
    run = convolution(2, 2)
    with pytest.raises(OptionError, match="different results than the whole"):
        check_exact(plan(9), 0, ENDS, Context(1, 2), zeros, run, {})
    check_exact(plan(9), 0, ENDS, Context(2, 2), zeros, run, {})


@pytest.mark.parametrize(("left", "right"), [(0, 0), (3, 1), (7, 12)])
def test_the_context_is_measured(left: int, right: int) -> None:
    found = measure(plan(8), 0, ENDS, zeros, convolution(left, right), {})
    assert found == Context(left + 1, right + 1)


def test_a_model_with_unlimited_context_is_refused() -> None:
    def normalized(feeds: Mapping[str, Any]) -> Sequence[Any]:
        return [np.repeat(feeds["x"] - feeds["x"].mean(1, keepdims=True), HOP, 1)]

    with pytest.raises(OptionError, match="depends on the whole"):
        measure(plan(8), 0, ENDS, zeros, normalized, {})


def test_buckets_that_are_too_short_are_refused() -> None:
    with pytest.raises(OptionError, match="the largest bucket has only 8"):
        check_exact(plan(8), 0, ENDS, Context(4, 4), zeros, convolution(4, 4), {})


def test_the_largest_bucket_that_is_not_longer_is_used() -> None:
    context = Context(2, 2)
    assert window_length((4, 8, 16), 15, context) == 8
    assert window_length((4, 8, 16), 16, context) == 16
    assert window_length((4, 8, 16), 7, context) is None
    assert window_length((4, 8, 16), 4, context) == 4


# --- arguments -------------------------------------------------------------------------------------------


def described() -> ModelDescription:
    inputs = (NodeInfo("a", "tensor(float)", (1, "text")), NodeInfo("b", "tensor(float)", (1, "frames")))
    return ModelDescription(ModelIdentity("f", "m.onnx"), inputs=inputs, outputs=())


def test_a_list_of_sizes_creates_only_these_variants() -> None:
    arguments = make_arguments([{"text": 16, "frames": 64}, {"text": 32, "frames": 128}], 0.0)
    made = make_plan(arguments, described(), "m.onnx")
    assert list(made.variants()) == [(16, 64), (32, 128)]
    assert (made.smallest(), made.largest()) == ((16, 64), (32, 128))
    for text, frames in itertools.product((1, 16, 17, 32), (1, 64, 65, 128)):
        assert variant_for(made, (text, frames)) == ((16, 64) if text <= 16 and frames <= 64 else (32, 128))


def test_no_variant_is_used_if_none_in_the_list_is_large_enough() -> None:
    arguments = make_arguments([{"text": 16, "frames": 128}, {"text": 32, "frames": 64}], 0.0)
    assert variant_for(make_plan(arguments, described(), "m.onnx"), (32, 128)) is None


@pytest.mark.parametrize("buckets", [[], [{}], [{"a": 1}, {"b": 1}], [{"a": 0}], ["a"]])
def test_an_invalid_list_of_sizes_is_refused(buckets: Any) -> None:
    with pytest.raises(OptionError, match="buckets"):
        make_arguments(buckets, 0)


@pytest.mark.parametrize("chunk", ["other", {"seq": -1}, {"seq": 1, "more": 2}, 5, {"seq": True}])
def test_an_invalid_chunk_is_refused(chunk: Any) -> None:
    with pytest.raises(OptionError, match="chunk"):
        make_arguments({"seq": 16}, 0, chunk=chunk)


# --- a measurement counts only if an output changed ------------------------------------------------------------


def of_ids(table: np.ndarray[Any, Any], reach: int) -> Callable[[Mapping[str, Any]], Sequence[Any] | None]:
    """Return ids [1, n] to y [1, n]: rows of a table, averaged over `reach` neighbours; refuses ids beyond the
    table.
    """

    def run(feeds: Mapping[str, Any]) -> Sequence[Any] | None:
        if feeds["ids"].max() >= len(table):
            return None
        e = np.pad(table[feeds["ids"]], ((0, 0), (reach, reach)))
        return [np.lib.stride_tricks.sliding_window_view(e, 2 * reach + 1, 1).mean(-1)]

    return run


def plan_of_ids(*buckets: int) -> BucketPlan:
    return BucketPlan(("n",), (buckets,), frozenset(), {"ids": PaddedInput("ids", {1: 0}, None)}, 0)


def zero_ids(size: int) -> dict[str, Any]:
    return {"ids": np.zeros((1, size), np.int64)}


IDS_END = [(Relation("n"), 1)]


def test_ids_are_drawn_from_the_whole_table_since_its_first_rows_may_be_equal() -> None:
    table = np.concatenate([np.zeros(2), np.random.default_rng(0).standard_normal(40)])
    run = of_ids(table, 3)
    highest = highest_valid(zero_ids(8), ["ids"], run)
    assert highest == {"ids": 31}
    assert measure(plan_of_ids(8), 0, IDS_END, zero_ids, run, highest) == Context(4, 4)
    with pytest.raises(OptionError, match="different results than the whole"):
        check_exact(plan_of_ids(9), 0, IDS_END, Context(1, 1), zero_ids, run, highest)


def test_inputs_that_change_no_output_give_no_window() -> None:
    run = of_ids(np.zeros(40), 3)
    with pytest.raises(OptionError, match="do not show the distance") as told:
        measure(plan_of_ids(8), 0, IDS_END, zero_ids, run, {"ids": 31})
    assert "never changed that step of output 0" in str(told.value)
    with pytest.raises(OptionError, match="do not show whether windows"):
        check_exact(plan_of_ids(9), 0, IDS_END, Context(1, 1), zero_ids, run, {"ids": 31})


def test_an_influence_that_decays_without_end_is_refused() -> None:
    """The influence is halved with each step and lost in 32 bits after about 25 steps; with other inputs it may
    reach further.
    """

    def recurrent(feeds: Mapping[str, Any]) -> Sequence[Any]:
        y = np.asarray(feeds["x"], np.float32).copy()
        for step in range(1, y.shape[1]):
            y[:, step] += np.float32(0.5) * y[:, step - 1]
        return [np.repeat(y, HOP, 1)]

    with pytest.raises(OptionError, match="do not show the distance") as told:
        measure(plan(16), 0, ENDS, zeros, recurrent, {}, ["LSTM"])
    assert "decreases gradually (LSTM)" in str(told.value)
    # Layers of convolutions fade, too, but have an end.
    assert measure(plan(8), 0, ENDS, zeros, convolution(3, 1), {}, ["Conv", "Softmax"]) == Context(4, 2)


def test_an_input_value_that_changes_an_output_size_is_not_increased() -> None:
    def repeated(feeds: Mapping[str, Any]) -> Sequence[Any]:
        assert feeds["times"].max() < 100
        return [np.repeat(np.ones(4), feeds["times"])]

    assert highest_valid({"times": np.zeros(4, np.int64)}, ["times"], repeated) == {"times": 0}


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float16, np.float32])
def test_generated_masks_have_zeros_and_ones_and_each_change_alters_them(dtype: Any) -> None:
    feeds = {"mask": np.zeros((1, 64), dtype)}
    seen = [draw(feeds, {}, number)["mask"] for number in draws(feeds, feeds)]
    assert any((one == 1).all() for one in seen)
    assert any((one == 0).all() for one in seen)
    assert any(0 < (one == 1).sum() < 64 for one in seen)
    for number, value in enumerate(seen):
        assert (changed("mask", value, 1, number) != value).all()
        assert value.dtype == dtype


def test_each_id_is_changed_to_another_valid_one() -> None:
    feeds = {"ids": np.zeros((1, 200), np.int32)}
    for number in draws(feeds, feeds):
        value = draw(feeds, {"ids": 6}, number)["ids"]
        other = changed("ids", value, 6, number)
        assert (value != other).all()
        assert 0 <= min(value.min(), other.min()) <= max(value.max(), other.max()) <= 6
