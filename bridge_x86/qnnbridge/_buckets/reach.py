"""Measure the context of a model along a dimension (the distance over which an output depends on inputs), by runs
on the CPU. Windows overlap by the context.

A measurement changes one position of one input. The positions at which outputs change show how far its influence
extends. The result is valid only if each output changes at the changed position itself, and each input changes some
output. Measurements are repeated with several generated inputs (`contents.draws`), at another length and at
neighbouring positions, because masks, activation functions and strides hide changes. All functions are pure, except
that they call a `RunModel` function, which communicates with a host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._buckets.batches import (
    Context,
    End,
    OutputShapes,
    axes_of,
    join,
    joints,
    window_feeds,
    windows,
)
from qnnbridge._buckets.contents import changed, draw, draws
from qnnbridge._buckets.plan import BucketPlan
from qnnbridge._values.feed_rules import Array
from qnnbridge_protocol.errors import OptionError

# Function that runs the model with free sizes on the CPU. Returns the outputs; ``None`` if the model refuses these
# inputs.
RunModel = Callable[[Mapping[str, Any]], "Sequence[Any] | None"]
# Function that returns feeds of the right types and shapes for a size of the free dimension.
FeedsOf = Callable[[int], Mapping[str, Any]]

# Length of the longest input. If a change still affects its first or last output, the context counts as unlimited.
LONGEST_PROBE: Final = 4096
# Tolerance, relative to the largest value. Sums with a different number of terms are rounded differently.
TOLERANCE: Final = 1e-4
# Number of consecutive lengths at which windows are tried, so that the last window starts at each offset within a
# stride.
CONSECUTIVE: Final = 4
# Operators whose influence decreases gradually. They have no fixed context: the distance at which the influence
# disappears in float32 depends on the inputs.
FADING: Final = frozenset({"LSTM", "GRU", "RNN", "Scan", "Loop", "CumSum", "Softmax", "Attention"})
# If the change at the farthest affected step is larger than this (relative to the largest value), the influence
# ends abruptly there. A gradually decreasing influence ends at the rounding error of float32, about 1e-7.
SHARP: Final = 3e-6


def ends_of(plan: BucketPlan, shapes: OutputShapes, names: Sequence[str], number: int) -> list[End]:
    """Return the axis of each output that depends on the dimension. Raise `OptionError` or `InvalidArgument` if an
    output cannot be joined from windows."""
    ends = []
    for name, axis in zip(names, joints(plan, shapes, names, number), strict=True):
        relation = shapes.found[name][axis]
        assert relation is not None
        if relation.divisor != 1:
            raise OptionError(
                f"chunk: the output {name!r} has {relation} values and cannot be joined from windows.",
                cause="Several steps of the input produce one value, so windows would begin between two values.",
                fix="Remove chunk=, and give buckets for the lengths that are needed.",
            )
        ends.append((relation, axis))
    return ends


@dataclasses.dataclass(slots=True)
class _Seen:
    """Effects of changes that were observed with inputs of one length.

    Attributes:
        still: outputs that did not change at the position of any changed input.
        idle: inputs whose changes affected no output.
        left: largest distance at which a change affects later outputs.
        right: largest distance at which a change affects earlier outputs.
        ends: whether a change affected the first or last step of an output.
        sharp: size of the change at the farthest affected step on each side, relative to the largest value.
    """

    still: set[int]
    idle: set[str]
    left: int = 0
    right: int = 0
    ends: bool = False
    sharp: dict[str, float] = dataclasses.field(default_factory=lambda: {"left": 0.0, "right": 0.0})

    def add(self, side: str, reach: int, change: float) -> None:
        known = getattr(self, side)
        if reach > known:
            setattr(self, side, reach)
            self.sharp[side] = change
        elif reach == known:
            self.sharp[side] = max(self.sharp[side], change)


def measure(
    plan: BucketPlan,
    number: int,
    ends: Sequence[End],
    feeds_of: FeedsOf,
    run: RunModel,
    highest: Mapping[str, int],
    operators: Collection[str] = (),
    longest: int = LONGEST_PROBE,
) -> Context:
    """Measure the context of the model along a dimension.

    Args:
        number: index of the dimension.
        highest: the largest valid integer of each integer input.
        operators: known operators of the model; the list may be incomplete. longest: largest size to try.

    Raises:
        OptionError: the context is unlimited, or cannot be measured with generated inputs.
    """
    # Double the size until no change reaches an end, because small inputs run faster. The next size must confirm
    # the result: an attention over a few positions may use other positions at another length.
    name, size = plan.symbols[number], plan.buckets[number][0]
    known: _Seen | None = None
    while size <= longest:
        seen = _seen_at(plan, number, ends, feeds_of(size), run, highest, size)
        if seen.ends:
            known = None
        elif known is not None and seen.left <= known.left and seen.right <= known.right:
            _refuse_unshown(name, seen, operators)
            # Add a step, because a weight of nearly 0 at the end of a kernel has no visible effect.
            return Context(known.left + 1, known.right + 1)
        else:
            known = seen
        size *= 2
    raise OptionError(
        f"chunk: an output depends on the whole of {name!r}, so it cannot be computed in windows.",
        cause=f"In an input of {size // 2} steps, a change of one step changes the outputs up to the first or last "
        "step: for example through a mean, a normalization, an attention or a recurrence over the whole length.",
        fix="Remove chunk=; verify_padding() checks whether padding changes the results.",
    )


def _refuse_unshown(name: str, seen: _Seen, operators: Collection[str]) -> None:
    """Raise `OptionError` if an output or input showed no change, or if the influence decreases gradually."""
    fading = sorted(FADING & {one.rpartition(".")[2] for one in operators})
    cause = ""
    if seen.still:
        cause = f"Changing one step of {name!r} in the inputs never changed that step of output {min(seen.still)}."
    elif seen.idle:
        cause = f"Changing the input {min(seen.idle)!r} never changed an output."
    elif (
        fading and min(seen.sharp["left"] if seen.left else 1.0, seen.sharp["right"] if seen.right else 1.0) < SHARP
    ):
        cause = f"The influence of a step decreases gradually ({', '.join(fading)}), and extends further with "
        cause += "other inputs."
    if cause:
        raise OptionError(
            f"chunk: generated inputs do not show the distance over which outputs depend on steps of {name!r}.",
            cause=cause,
            fix=f"Give the number of steps if you know it (chunk={{{name!r}: 16}}), or use pad= or exact sizes.",
        )


def _seen_at(
    plan: BucketPlan,
    number: int,
    ends: Sequence[End],
    feeds: Mapping[str, Any],
    run: RunModel,
    highest: Mapping[str, int],
    size: int,
) -> _Seen:
    axes: dict[str, list[int]] = {}
    for name, axis in axes_of(plan, feeds, number):
        axes.setdefault(name, []).append(axis)
    seen = _Seen(set(range(len(ends))), set(axes))
    for one in draws(feeds, axes):
        drawn = draw(feeds, highest, one)
        before = run(drawn)
        if before is None:
            continue  # the model refuses these values
        # Change neighbouring positions in turn: with a stride in the model, the distance depends on the position.
        place = size // 2 - one % min(CONSECUTIVE, size)
        # Change one input at a time, because a change of a mask may hide a change of the masked input.
        for name, along in axes.items():
            value = drawn[name].copy()
            for axis in along:
                there = (slice(None),) * axis + (place,)
                value[there] = changed(name, drawn[name][there], highest.get(name, 1), one)
            after = run({**drawn, name: value})
            if after is not None and _compare(seen, before, after, ends, place):
                seen.idle.discard(name)
            if seen.ends:
                return seen
    return seen


def _compare(seen: _Seen, before: Sequence[Any], after: Sequence[Any], ends: Sequence[End], place: int) -> bool:
    """Add the effect of changing the inputs at position `place` to `seen`. Return whether any output changed."""
    moved = False
    for at, (one, other, (relation, axis)) in enumerate(zip(before, after, ends, strict=True)):
        old, new = np.asarray(one), np.asarray(other)
        # Compare exactly: both runs use the same kernels and sizes, so values that are not affected are equal in
        # every bit.
        differs = _unequal(old, new)
        others = tuple(axes for axes in range(differs.ndim) if axes != axis)
        hit = np.flatnonzero(differs.any(others))
        if not hit.size:
            continue
        moved = True
        factor = relation.factor
        # If a change reaches the first or last step, its influence may extend beyond the ends of this input.
        if hit[0] < factor or hit[-1] >= differs.shape[axis] - factor:
            seen.ends = True
            return True
        if (hit // factor == place).any():
            seen.still.discard(at)
        seen.add("left", max(-(-int(hit[-1] + 1) // factor) - 1 - place, 0), _size_of(old, new, axis, int(hit[-1])))
        seen.add("right", max(place - int(hit[0]) // factor, 0), _size_of(old, new, axis, int(hit[0])))
    return moved


def _unequal(one: Array, other: Array) -> Array:
    """Return a boolean array of the elements that differ. NaN counts as equal to NaN."""
    differs = one != other
    if one.dtype.kind == "f" and other.dtype.kind == "f":
        differs = differs & ~(np.isnan(one) & np.isnan(other))
    return np.asarray(differs)


def _size_of(old: Array, new: Array, axis: int, step: int) -> float:
    """Return the largest change at one step of an output, relative to the largest value."""
    if old.dtype.kind != "f":
        return 1.0
    a, b = (np.take(one, step, axis).astype(np.float64) for one in (old, new))
    finite = np.abs(new[np.isfinite(new)].astype(np.float64))
    largest = float(finite.max(initial=0.0))
    gap = np.abs(a - b)
    most = float(gap[np.isfinite(gap)].max(initial=0.0))
    return most / largest if largest else 1.0


def check_exact(
    plan: BucketPlan,
    number: int,
    ends: Sequence[End],
    context: Context,
    feeds_of: FeedsOf,
    run: RunModel,
    highest: Mapping[str, int],
) -> None:
    """Compare results of windows with results for the whole input, on the CPU.

    Raises:
        OptionError: the results differ, or an output is constant, so that the comparison is not conclusive.
    """
    usable = [bucket for bucket in plan.buckets[number] if bucket > context.total]
    name = plan.symbols[number]
    if not usable:
        raise OptionError(
            f"chunk: each output step depends on {context.left} earlier and {context.right} later steps of {name!r}"
            f", but the largest bucket has only {plan.buckets[number][-1]} steps.",
            fix=f"Give a bucket of more than {context.total} steps, preferably {4 * context.total}.",
        )
    # Use the shortest window, which has the most overlaps and therefore shows the most errors.
    length = usable[0]
    constant = set(range(len(ends)))
    for one in draws(feeds_of(length), plan.inputs):
        # Use at least three windows, to test a first, a middle and a last window.
        size = 2 * length + 1 + one % CONSECUTIVE
        feeds = draw(feeds_of(size), highest, one)
        cuts = windows(size, length, context)
        whole = run(feeds)
        results = [run(part) for part in window_feeds(plan, feeds, number, cuts, length)]
        parts = [part for part in results if part is not None]
        if whole is None or len(parts) < len(results):
            continue
        for at, (value, found) in enumerate(zip(whole, join(parts, cuts, ends, size), strict=True)):
            expected = np.asarray(value)
            gap = _gap(expected, found) if expected.shape == found.shape else np.inf
            # Write `not ... <=`, so that NaN counts as a difference.
            if not gap <= TOLERANCE * _largest(expected):
                raise OptionError(
                    f"chunk: windows of {length} along {name!r} give different results than the whole input.",
                    cause=f"The largest difference is {gap:.3g}, although each window includes {context.left} "
                    f"steps before and {context.right} steps after the steps that are kept.",
                    fix=f"Give a larger context (chunk={{{name!r}: {2 * context.total}}}), or remove chunk=.",
                )
            axis = ends[at][1]
            if _unequal(expected, np.roll(expected, 1, axis)).any():
                constant.discard(at)
    if constant:
        raise OptionError(
            f"chunk: generated inputs do not show whether windows along {name!r} give the same results as the "
            "whole input.",
            cause=f"Output number {min(constant)} is the same at every step for all generated inputs.",
            fix="Remove chunk=, and give pad= or exact sizes.",
        )


def _largest(values: Array) -> float:
    if values.dtype.kind not in "biuf":
        return 0.0
    magnitudes = np.abs(values.astype(np.float64))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def _gap(expected: Array, found: Array) -> float:
    """Return the largest difference. NaN or infinities in both arrays do not count as differences."""
    if expected.dtype.kind not in "biuf":
        return 0.0 if np.array_equal(expected, found) else float("inf")
    differs = _unequal(expected, found)
    with np.errstate(invalid="ignore"):
        gaps = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    return float(gaps[differs].max(initial=0.0))
