"""Overlapping windows: they cover everything once, lose nothing, and the context is measured as far as it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from qnnbridge._buckets import Relation, make_arguments
from qnnbridge._buckets.batches import Context, join, variant_for, window_feeds, window_length, windows
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
    """x [2, n] to y [2, 3 n]: each output sees `left` steps before it and `right` behind it."""
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
def test_windows_cover_every_step_once_with_enough_around_it(context: Context, length: int) -> None:
    for size in range(length, 60):
        cuts = windows(size, length, context)
        assert [one.keep_from for one in cuts] == [0, *(one.keep_to for one in cuts[:-1])]
        assert cuts[-1].keep_to == size
        for one in cuts:
            assert 0 <= one.start <= size - length
            assert one.start == 0 or one.keep_from - one.start >= context.left
            assert one.start + length == size or one.start + length - one.keep_to >= context.right


@pytest.mark.parametrize(("left", "right"), [(0, 0), (2, 2), (4, 1)])
def test_windows_give_what_the_whole_gives(left: int, right: int) -> None:
    run, context, length = convolution(left, right), Context(left, right), 9
    for size in (9, 10, 17, 40):
        feeds = {"x": np.random.default_rng(size).standard_normal((2, size))}
        cuts = windows(size, length, context)
        results = [run(part) for part in window_feeds(plan(length), feeds, 0, cuts, length)]
        (joined,) = join(results, cuts, ENDS, size)
        np.testing.assert_allclose(joined, run(feeds)[0])


def test_one_step_less_around_a_window_shows() -> None:
    run = convolution(2, 2)
    with pytest.raises(OptionError, match="other results than the whole"):
        check_exact(plan(9), 0, ENDS, Context(1, 2), zeros, run, {})
    check_exact(plan(9), 0, ENDS, Context(2, 2), zeros, run, {})


@pytest.mark.parametrize(("left", "right"), [(0, 0), (3, 1), (7, 12)])
def test_the_context_is_measured(left: int, right: int) -> None:
    found = measure(plan(8), 0, ENDS, zeros, convolution(left, right), {})
    assert found == Context(left + 1, right + 1)


def test_a_model_that_looks_at_everything_is_refused() -> None:
    def normalized(feeds: Mapping[str, Any]) -> Sequence[Any]:
        return [np.repeat(feeds["x"] - feeds["x"].mean(1, keepdims=True), HOP, 1)]

    with pytest.raises(OptionError, match="depends on the whole"):
        measure(plan(8), 0, ENDS, zeros, normalized, {})


def test_buckets_that_are_too_short_are_refused() -> None:
    with pytest.raises(OptionError, match="the largest bucket has 8"):
        check_exact(plan(8), 0, ENDS, Context(4, 4), zeros, convolution(4, 4), {})


def test_the_longest_bucket_that_is_not_longer_is_taken() -> None:
    context = Context(2, 2)
    assert window_length((4, 8, 16), 15, context) == 8
    assert window_length((4, 8, 16), 16, context) == 16
    assert window_length((4, 8, 16), 7, context) is None
    assert window_length((4, 8, 16), 4, context) == 4


# --- arguments -------------------------------------------------------------------------------------------


def described() -> ModelDescription:
    inputs = (NodeInfo("a", "tensor(float)", (1, "text")), NodeInfo("b", "tensor(float)", (1, "frames")))
    return ModelDescription(ModelIdentity("f", "m.onnx"), inputs=inputs, outputs=())


def test_a_list_of_sizes_makes_only_these_variants() -> None:
    arguments = make_arguments([{"text": 16, "frames": 64}, {"text": 32, "frames": 128}], 0.0)
    made = make_plan(arguments, described(), "m.onnx")
    assert list(made.variants()) == [(16, 64), (32, 128)]
    assert (made.smallest(), made.largest()) == ((16, 64), (32, 128))
    for text, frames in itertools.product((1, 16, 17, 32), (1, 64, 65, 128)):
        assert variant_for(made, (text, frames)) == ((16, 64) if text <= 16 and frames <= 64 else (32, 128))


def test_no_pair_of_a_list_may_be_large_enough() -> None:
    arguments = make_arguments([{"text": 16, "frames": 128}, {"text": 32, "frames": 64}], 0.0)
    assert variant_for(make_plan(arguments, described(), "m.onnx"), (32, 128)) is None


@pytest.mark.parametrize("buckets", [[], [{}], [{"a": 1}, {"b": 1}], [{"a": 0}], ["a"]])
def test_a_wrong_list_is_refused(buckets: Any) -> None:
    with pytest.raises(OptionError, match="buckets"):
        make_arguments(buckets, 0)


@pytest.mark.parametrize("chunk", ["other", {"seq": -1}, {"seq": 1, "more": 2}, 5, {"seq": True}])
def test_a_wrong_chunk_is_refused(chunk: Any) -> None:
    with pytest.raises(OptionError, match="chunk"):
        make_arguments({"seq": 16}, 0, chunk=chunk)
