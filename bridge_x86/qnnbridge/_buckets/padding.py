"""Inputs grown to the sizes of a bucket. Pure functions; what needs no padding is passed on, not copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qnnbridge._buckets.plan import PaddedInput, Plan, Sizes
from qnnbridge._feed_rules import Array


def pad_feeds(plan: Plan, feeds: Mapping[str, Any], variant: Sizes) -> dict[str, Any]:
    """The feeds of a call in the sizes of `variant`, which are not smaller than theirs."""
    out = dict(feeds)
    for name, padded in plan.inputs.items():
        value = feeds.get(name)
        if value is not None:
            out[name] = _pad(plan, padded, value, variant)
    return out


def _pad(plan: Plan, padded: PaddedInput, value: Array, variant: Sizes) -> Array:
    shape = list(value.shape)
    for axis, number in padded.axes.items():
        shape[axis] = variant[number]
    if tuple(shape) == value.shape:
        return value
    out = np.empty(shape, value.dtype) if padded.value is None else np.full(shape, padded.value, value.dtype)
    given = tuple(slice(0, size) for size in value.shape)
    out[given] = value
    # Rows that only fill up a batch repeat a real one: a row of nothing but padding is what many models answer
    # with NaN, and QNN computes them all.
    for axis, number in padded.axes.items():
        if number in plan.split:
            _repeat_last(out, axis, value.shape[axis])
    return out


def _repeat_last(out: Array, axis: int, size: int) -> None:
    if size == out.shape[axis]:
        return
    before = (slice(None),) * axis
    if size:
        out[before + (slice(size, None),)] = out[before + (slice(size - 1, size),)]  # noqa: RUF005 - Python 3.10
    else:
        out[...] = "" if out.dtype.kind == "O" else 0
