"""Calls in windows that overlap, for models in which an output depends on inputs nearby (convolutional decoders).

A window is as long as a bucket and never padded. The first one begins where the input begins and the last one ends
where it ends, so the model's own padding acts at both true ends. Of every other end the outputs are dropped that
may have seen it: as many as the model looks to the left and to the right (`Context`). What is kept is joined, and
is what the model computes for the whole. The context is measured on the CPU: one place of the input is changed, and
the outputs that change show how far it is seen. Pure functions around a `Run`, which alone touches a host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._buckets.batches import Context, End, OutputShapes, axes_of, join, joints, window_feeds, windows
from qnnbridge._buckets.plan import BucketPlan
from qnnbridge._feed_rules import Array
from qnnbridge_protocol.errors import OptionError

# Outputs of the model with sizes left free, on the CPU, for inputs of this size of the symbol.
Run = Callable[[Mapping[str, Any]], Sequence[Any]]
# Feeds of zeros for this size of the symbol.
Zeros = Callable[[int], Mapping[str, Any]]

PROBES: Final = 3
# A longer input is not tried; what is seen over all of this is seen everywhere.
LONGEST_PROBE: Final = 4096
# Of the change at one place: large, so that no activation hides it.
CHANGE: Final = 8.0
# Relative to the largest value. Sums of other lengths are rounded otherwise.
TOLERANCE: Final = 1e-4


def ends_of(plan: BucketPlan, shapes: OutputShapes, names: Sequence[str], number: int) -> list[End]:
    """Of each output. Raises `OptionError`, `InvalidArgument`."""
    ends = []
    for name, axis in zip(names, joints(plan, shapes, names, number), strict=True):
        relation = shapes.found[name][axis]
        assert relation is not None
        if relation.divisor != 1:
            raise OptionError(
                f"chunk: the output {name!r} has {relation} values, which windows cannot be joined to.",
                cause="Several steps of the input make one value, so windows would begin between two values.",
                fix="Leave chunk= away, and give buckets for the lengths that are needed.",
            )
        ends.append((relation, axis))
    return ends


def measure(plan: BucketPlan, number: int, ends: Sequence[End], zeros: Zeros, run: Run) -> Context:
    """How far the model looks along a symbol. Raises `OptionError` if that is everywhere."""
    # Doubled until what is seen does not reach an end: the smallest input that shows the context is the
    # cheapest to run.
    size = plan.buckets[number][0]
    while size <= LONGEST_PROBE:
        found = [_seen(plan, number, ends, zeros(size), run, size, seed) for seed in range(PROBES)]
        seen = [one for one in found if one is not None]
        if len(seen) == len(found):
            # One more than was seen: a tap with a weight of nearly nothing does not show.
            return Context(max(one.left for one in seen) + 1, max(one.right for one in seen) + 1)
        size *= 2
    name = plan.symbols[number]
    raise OptionError(
        f"chunk: an output depends on the whole of {name!r}, so it cannot be made of windows.",
        cause=f"A change at one place of {size // 2} changes the outputs up to an end: a mean, a normalization, an "
        "attention or a recurrence runs over the whole length.",
        fix="Leave chunk= away; verify_padding() tells whether padding changes the results.",
    )


def _seen(
    plan: BucketPlan,
    number: int,
    ends: Sequence[End],
    zeros: Mapping[str, Any],
    run: Run,
    size: int,
    seed: int,
) -> Context | None:
    """From the outputs that a change in the middle changes; ``None`` if they reach an end."""
    feeds = random_feeds(zeros, seed)
    changed = dict(feeds)
    place = size // 2
    for name, axis in axes_of(plan, feeds, number):
        value = changed[name].copy()
        there = (slice(None),) * axis + (place,)
        value[there] = _other(value[there], seed)
        changed[name] = value
    left = right = 0
    for before, after, (relation, axis) in zip(run(feeds), run(changed), ends, strict=True):
        # Exactly: both run the same kernels with the same sizes, so what is not reached is equal in every
        # bit.
        differs = np.asarray(before) != np.asarray(after)
        others = tuple(one for one in range(differs.ndim) if one != axis)
        hit = np.flatnonzero(differs.any(others))
        if not hit.size:
            continue
        # It reaches the first or last step: the model may look further than this input is long.
        if hit[0] < relation.factor or hit[-1] >= differs.shape[axis] - relation.factor:
            return None
        left = max(left, -(-int(hit[-1] + 1) // relation.factor) - 1 - place)
        right = max(right, place - int(hit[0]) // relation.factor)
    return Context(max(left, 0), max(right, 0))


def check_exact(
    plan: BucketPlan,
    number: int,
    ends: Sequence[End],
    context: Context,
    zeros: Zeros,
    run: Run,
) -> None:
    """Windows on the CPU beside the whole on the CPU. Raises `OptionError` if they differ."""
    usable = [bucket for bucket in plan.buckets[number] if bucket > context.total]
    name = plan.symbols[number]
    if not usable:
        raise OptionError(
            f"chunk: an output looks at {context.left} steps of {name!r} before it and {context.right} behind it, "
            f"and the largest bucket has {plan.buckets[number][-1]}.",
            fix=f"Give a bucket of more than {context.total}, better of {4 * context.total}.",
        )
    # The shortest window overlaps most often, so it shows an error that a longer one would hide.
    length = usable[0]
    # Three windows: a first, a middle and a last one.
    size = 2 * length + 1
    feeds = random_feeds(zeros(size), PROBES)
    cuts = windows(size, length, context)
    results = [run(part) for part in window_feeds(plan, feeds, number, cuts, length)]
    whole = [np.asarray(value) for value in run(feeds)]
    for expected, found in zip(whole, join(results, cuts, ends, size), strict=True):
        gap = np.abs(expected.astype(np.float64) - found) if expected.shape == found.shape else np.asarray(np.inf)
        # `not ... <=`, so that NaN counts as a difference.
        if not float(gap.max(initial=0.0)) <= TOLERANCE * float(np.abs(expected).max(initial=0.0)):
            raise OptionError(
                f"chunk: windows of {length} along {name!r} give other results than the whole.",
                cause=f"The largest difference is {float(gap.max()):.3g}, with {context.left} and {context.right} "
                "steps around each window.",
                fix=f"Give more of them (chunk={{{name!r}: {2 * context.total}}}), or leave chunk= away.",
            )


def random_feeds(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Floats get values of both signs; masks, ids and lengths stay what they are."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(value.shape).astype(value.dtype) if value.dtype.kind == "f" else value
        for name, value in feeds.items()
    }


def _other(values: Array, seed: int) -> Array:
    if values.dtype.kind == "f":
        change = np.random.default_rng([seed, 1]).standard_normal(values.shape) * CHANGE
        return np.asarray(values + change, values.dtype)
    return np.asarray(~values if values.dtype.kind == "b" else values + 1, values.dtype)
