"""How far a model looks along a dimension, for windows: measured on the CPU, and tried.

One place of one input is changed, and the outputs that change show how far that place is seen. A measurement counts
only if something moved: each output has to answer at the changed place itself, and each input has to move an
output. It is repeated with several draws (`contents`), at another length and at neighbouring places, since masks,
activations and strides hide changes. Pure functions around a `RunModel`, which alone touches a host.
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
from qnnbridge._feed_rules import Array
from qnnbridge_protocol.errors import OptionError

# Outputs of the model with sizes left free, on the CPU; ``None`` where the model refuses these inputs.
RunModel = Callable[[Mapping[str, Any]], "Sequence[Any] | None"]
# Feeds of the right types and shapes for this size of the symbol.
FeedsOf = Callable[[int], Mapping[str, Any]]

# A longer input is not tried; what is seen over all of this is seen everywhere.
LONGEST_PROBE: Final = 4096
# Relative to the largest value. Sums of other lengths are rounded otherwise.
TOLERANCE: Final = 1e-4
# Lengths in a row at which windows are tried: the last window then begins at as many different places of a stride.
CONSECUTIVE: Final = 4
# Operators through which a change fades instead of ending: how far it is seen in 32 bits says nothing of other
# inputs.
FADING: Final = frozenset({"LSTM", "GRU", "RNN", "Scan", "Loop", "CumSum", "Softmax", "Attention"})
# Of the largest value. A change that fades ends at the rounding of 32 bits, some 1e-7.
SHARP: Final = 3e-6


def ends_of(plan: BucketPlan, shapes: OutputShapes, names: Sequence[str], number: int) -> list[End]:
    """How each output follows from the symbol. Raises `OptionError`, `InvalidArgument`."""
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


@dataclasses.dataclass(slots=True)
class _Seen:
    """Result of the changes at one length.

    left, right: the reach. ends: whether an output changed up to an end. sharp: how large the change is at the last
    step of each side, relative to the output. still: outputs that no change moved at its own place. idle: inputs
    that moved nothing.
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
    """How far the model looks along a symbol.

    Args:
        number: of the symbol.
        highest: the largest valid integer of each input of integers.
        operators: of the model, as far as known.
        longest: size that is tried.

    Raises:
        OptionError: that is everywhere, or cannot be shown.
    """
    # Doubled until what is seen does not reach an end: the smallest input that shows the context is the
    # cheapest to run. The next one has to confirm it: an attention that looks at a few places only looks elsewhere
    # at another length.
    name, size = plan.symbols[number], plan.buckets[number][0]
    known: _Seen | None = None
    while size <= longest:
        seen = _seen_at(plan, number, ends, feeds_of(size), run, highest, size)
        if seen.ends:
            known = None
        elif known is not None and seen.left <= known.left and seen.right <= known.right:
            _refuse_unshown(name, seen, operators)
            # One more than was seen: a tap with a weight of nearly nothing does not show.
            return Context(known.left + 1, known.right + 1)
        else:
            known = seen
        size *= 2
    raise OptionError(
        f"chunk: an output depends on the whole of {name!r}, so it cannot be made of windows.",
        cause=f"A change at one place of {size // 2} changes the outputs up to an end: a mean, a normalization, an "
        "attention or a recurrence runs over the whole length.",
        fix="Leave chunk= away; verify_padding() tells whether padding changes the results.",
    )


def _refuse_unshown(name: str, seen: _Seen, operators: Collection[str]) -> None:
    """Raises `OptionError` where nothing moved, or where the reach has no sharp end."""
    fading = sorted(FADING & {one.rpartition(".")[2] for one in operators})
    cause = ""
    if seen.still:
        cause = f"No change of an input moved output number {min(seen.still)} at the same place of {name!r}."
    elif seen.idle:
        cause = f"No change of the input {min(seen.idle)!r} moved any output."
    elif (
        fading and min(seen.sharp["left"] if seen.left else 1.0, seen.sharp["right"] if seen.right else 1.0) < SHARP
    ):
        cause = f"The influence of a step fades ({', '.join(fading)}) instead of ending, and other inputs carry it "
        cause += "further."
    if cause:
        raise OptionError(
            f"chunk: made-up inputs do not show how far the outputs look along {name!r}.",
            cause=cause,
            fix=f"Give the number of steps, if you know it (chunk={{{name!r}: 16}}), or pad=, or exact sizes.",
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
        # Neighbours: behind a stride, places are seen differently far.
        place = size // 2 - one % min(CONSECUTIVE, size)
        # Each by itself: where a mask changes too, it may hide the change of what it masks.
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
    """Add what a change at `place` has shown; whether it moved anything."""
    moved = False
    for at, (one, other, (relation, axis)) in enumerate(zip(before, after, ends, strict=True)):
        old, new = np.asarray(one), np.asarray(other)
        # Exactly: both run the same kernels with the same sizes, so what is not reached is equal in every bit.
        differs = _unequal(old, new)
        others = tuple(axes for axes in range(differs.ndim) if axes != axis)
        hit = np.flatnonzero(differs.any(others))
        if not hit.size:
            continue
        moved = True
        factor = relation.factor
        # It reaches the first or last step: the model may look further than this input is long.
        if hit[0] < factor or hit[-1] >= differs.shape[axis] - factor:
            seen.ends = True
            return True
        if (hit // factor == place).any():
            seen.still.discard(at)
        seen.add("left", max(-(-int(hit[-1] + 1) // factor) - 1 - place, 0), _size_of(old, new, axis, int(hit[-1])))
        seen.add("right", max(place - int(hit[0]) // factor, 0), _size_of(old, new, axis, int(hit[0])))
    return moved


def _unequal(one: Array, other: Array) -> Array:
    """Where they differ; NaN is equal to itself, since it shows nothing."""
    differs = one != other
    if one.dtype.kind == "f" and other.dtype.kind == "f":
        differs = differs & ~(np.isnan(one) & np.isnan(other))
    return np.asarray(differs)


def _size_of(old: Array, new: Array, axis: int, step: int) -> float:
    """How large a change is at one step of an output, relative to the largest value."""
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
    """Compare windows on the CPU with the whole on the CPU.

    Raises `OptionError` if they differ, or if no output varies, which shows nothing.
    """
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
    constant = set(range(len(ends)))
    for one in draws(feeds_of(length), plan.inputs):
        # Three windows or more: a first, a middle and a last one.
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
            # `not ... <=`, so that NaN counts as a difference.
            if not gap <= TOLERANCE * _largest(expected):
                raise OptionError(
                    f"chunk: windows of {length} along {name!r} give other results than the whole.",
                    cause=f"The largest difference is {gap:.3g}, with {context.left} and {context.right} "
                    "steps around each window.",
                    fix=f"Give more of them (chunk={{{name!r}: {2 * context.total}}}), or leave chunk= away.",
                )
            axis = ends[at][1]
            if _unequal(expected, np.roll(expected, 1, axis)).any():
                constant.discard(at)
    if constant:
        raise OptionError(
            f"chunk: made-up inputs do not show whether windows along {name!r} give what the whole gives.",
            cause=f"Output number {min(constant)} is the same at every step for all of them.",
            fix="Leave chunk= away, and give pad= or exact sizes.",
        )


def _largest(values: Array) -> float:
    if values.dtype.kind not in "biuf":
        return 0.0
    magnitudes = np.abs(values.astype(np.float64))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def _gap(expected: Array, found: Array) -> float:
    """The largest difference; NaN and infinities that both have are none."""
    if expected.dtype.kind not in "biuf":
        return 0.0 if np.array_equal(expected, found) else float("inf")
    differs = _unequal(expected, found)
    with np.errstate(invalid="ignore"):
        gaps = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    return float(gaps[differs].max(initial=0.0))
