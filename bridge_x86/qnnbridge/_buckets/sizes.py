"""The sizes of one call, and the bucket for them. Pure functions."""

from __future__ import annotations

import bisect
from collections.abc import Mapping

from qnnbridge._buckets.plan import Plan, Sizes
from qnnbridge._feed_rules import INVALID_ARGUMENT
from qnnbridge_protocol.errors import InvalidArgument


def sizes_of(plan: Plan, shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
    """Of each symbol. Inputs that are not fed (optional ones) say nothing. Raises `InvalidArgument` if they differ.

    ONNX Runtime does not look whether dimensions of one name agree; here they are padded together, so they must.
    """
    found: list[int | None] = [None] * len(plan.symbols)
    first: list[str] = [""] * len(plan.symbols)
    for name, padded in plan.inputs.items():
        shape = shapes.get(name)
        if shape is None:
            continue
        for axis, number in padded.axes.items():
            size, known = shape[axis], found[number]
            if known is None:
                found[number], first[number] = size, f"{name!r} (axis {axis})"
            elif known != size:
                raise _differ(plan.symbols[number], first[number], known, f"{name!r} (axis {axis})", size)
    return tuple(buckets[0] if size is None else size for size, buckets in zip(found, plan.buckets, strict=True))


def bucket_for(plan: Plan, number: int, size: int) -> int | None:
    """The smallest bucket that is large enough; ``None`` if none is."""
    buckets = plan.buckets[number]
    at = bisect.bisect_left(buckets, size)
    return buckets[at] if at < len(buckets) else None


def variant_for(plan: Plan, sizes: Sizes) -> Sizes | None:
    """The variant that a call of these sizes fits into; ``None`` if it is too large for all."""
    found = tuple(bucket_for(plan, number, size) for number, size in enumerate(sizes))
    return None if None in found else tuple(size for size in found if size is not None)


def too_large(plan: Plan, sizes: Sizes) -> tuple[int, ...]:
    """Numbers of the symbols that are larger than their largest bucket."""
    return tuple(number for number, size in enumerate(sizes) if size > plan.buckets[number][-1])


def refuse_too_large(plan: Plan, sizes: Sizes, number: int) -> InvalidArgument:
    name, largest = plan.symbols[number], plan.buckets[number][-1]
    return InvalidArgument(
        f"{INVALID_ARGUMENT}The dimension {name!r} is {sizes[number]}, the largest bucket for it is {largest}.",
        fix=f"Cut the input to {largest}, give a larger bucket (buckets={{{name!r}: [..., {sizes[number]}]}}), let "
        "such calls run on the CPU (overflow='cpu'), or have them done in parts if that is what the dimension "
        f"allows (split={name!r}).",
        details={"symbol": name, "size": sizes[number], "largest": largest},
    )


def _differ(symbol: str, one: str, size: int, other: str, other_size: int) -> InvalidArgument:
    return InvalidArgument(
        f"{INVALID_ARGUMENT}The dimension {symbol!r} is {size} in input {one} and {other_size} in input {other}.",
        cause="In the model both have the same name, so buckets pad them to the same size.",
        fix="Give inputs that agree. If they need not, the model has to name the dimensions apart.",
        details={"symbol": symbol},
    )
