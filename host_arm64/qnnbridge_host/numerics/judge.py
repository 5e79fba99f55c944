"""The verdict on one output: whether a computation in half floats, or in quantised steps, agrees with the CPU's.

Three measures decide together. The signal-to-noise ratio (SNR) says how much of the output is error. The share of
values that are off says whether the error is rounding, spread over all, or wrong at some places. The largest value
along the last axis says whether a decision changes. The largest difference alone decides nothing: one value that
fell to the other side of a threshold is no fault.

Values that are NaN or infinite on the CPU prove nothing and are left out. Pure functions of numpy arrays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
State = Literal["agrees", "differs", "unknown"]
NumberFormat = Literal["fp16", "quantized"]

# The best that 16-bit floats and 8-bit steps reach is about 70 and 45 dB.
NO_ERROR_DB: Final = 200.0
# Below it counts as zero.
_TINY: Final = 1e-30
# The error that a share of values may have: of the range of the output.
_OFF_OF_RANGE: Final = 0.05
_FEW: Final = 8
_OF_INTEGERS: Final = 0.1
# 8- and 16-bit integers are mostly quantised values, which may be rounded the other way.
_NARROW_BYTES: Final = 2
_STEP: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class NumberLimits:
    """good_db: from here on an output agrees. bad_db: below it differs. share: of values that may be off by more
    than 5 % of the range, and of decisions that may change, between the two. absolute: an output whose values are
    all smaller cannot be judged."""

    good_db: float
    bad_db: float
    share: float
    absolute: float


LIMITS: Final[Mapping[NumberFormat, NumberLimits]] = {
    "fp16": NumberLimits(30.0, 20.0, 0.01, 1e-6),
    "quantized": NumberLimits(20.0, 10.0, 0.05, 1e-6),
}


@dataclasses.dataclass(frozen=True, slots=True)
class JudgedNumbers:
    """One output.

    Args:
        state: the verdict.
        values: the number of values that were compared.
        snr_db: of all values, at most 200; None if nothing was compared.
        max_abs: largest difference.
        max_relative: the same, relative to the largest magnitude on the CPU.
        off: the share of values that differ by more than 5 % of the range; of integers, that differ.
        decisions: the share of rows whose largest value along the last axis is at the same place; None for none.
        lost: values that are NaN or infinite, and finite on the CPU.
        reason: in words, for what does not agree.
    """

    state: State
    values: int = 0
    snr_db: float | None = None
    max_abs: float = 0.0
    max_relative: float = 0.0
    off: float = 0.0
    decisions: float | None = None
    lost: int = 0
    reason: str = ""

    def to_wire(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def judge(reference: Any, candidate: Any, number_format: NumberFormat = "fp16") -> JudgedNumbers:
    """The verdict on one output.

    Args:
        reference: the CPU's value.
        candidate: the other computation's value.
        number_format: in which it was computed.
    """
    if not _is_numbers(reference) or not _is_numbers(candidate):
        return JudgedNumbers("unknown", reason="it is no tensor of numbers")
    expected, found = np.asarray(reference), np.asarray(candidate)
    if expected.shape != found.shape:
        return JudgedNumbers("differs", reason=f"its shape is {found.shape}, on the CPU it is {expected.shape}")
    if not expected.size:
        return JudgedNumbers("unknown", reason="it has no values")
    if expected.dtype.kind in "biu":
        return _integers(expected, found)
    return _floats(expected, found, LIMITS[number_format])


def worst(judged: Iterable[tuple[str, JudgedNumbers]]) -> tuple[str, JudgedNumbers] | None:
    """The output that decides for all: one that differs before one that agrees, then the lowest SNR."""
    order = {"differs": 0, "agrees": 1, "unknown": 2}
    return min(judged, key=lambda one: (order[one[1].state], _rank(one[1])), default=None)


def snr_db(expected: Array, found: Array) -> float:
    """Of finite values, in decibels: at most 200, and -200 for noise alone. Scaled first: nothing overflows."""
    scale = max(float(np.abs(expected).max(initial=0.0)), float(np.abs(found).max(initial=0.0)))
    if scale < _TINY:
        return NO_ERROR_DB
    a, b = expected / scale, found / scale
    signal, noise = float(np.vdot(a, a)), float(np.vdot(a - b, a - b))
    if noise <= signal * 10 ** (-NO_ERROR_DB / 10):
        return NO_ERROR_DB
    return max(-NO_ERROR_DB, 10 * math.log10(signal / noise)) if signal else -NO_ERROR_DB


def _floats(expected: Array, found: Array, limits: NumberLimits) -> JudgedNumbers:
    known = np.isfinite(expected)
    if not known.any():
        return JudgedNumbers("unknown", reason="on the CPU it is NaN or infinite")
    lost = int(np.count_nonzero(known & ~np.isfinite(found)))
    both = known & np.isfinite(found)
    a, b = expected[both].astype(np.float64), found[both].astype(np.float64)
    if not a.size:
        return JudgedNumbers("differs", lost=lost, reason="all of its values are NaN or infinite")
    largest, gap = float(np.abs(expected[known].astype(np.float64)).max()), np.abs(a - b)
    max_abs = float(gap.max())
    off = float(np.count_nonzero(gap > _OFF_OF_RANGE * largest)) / a.size
    ratio = snr_db(a, b)
    decisions = _decisions(expected, found) if both.all() else None
    reason = _float_reason(lost, known.size, ratio, off, decisions, limits)
    state: State = "differs" if reason else "agrees"
    if reason and max(largest, max_abs) < limits.absolute:
        state, reason = "unknown", f"its values on the CPU are at most {largest:.1g}"
    relative = max_abs / largest if largest > _TINY else (math.inf if max_abs else 0.0)
    return JudgedNumbers(state, int(a.size), ratio, max_abs, relative, off, decisions, lost, reason)


def _float_reason(
    lost: int, size: int, ratio: float, off: float, decisions: float | None, limits: NumberLimits
) -> str:
    if lost:
        return f"{lost} of {size} values are NaN or infinite, and are not on the CPU"
    if ratio >= limits.good_db:
        return ""
    text = f"SNR {ratio:.1f} dB, {off:.1%} of the values are off by more than 5 % of the range"
    if ratio < limits.bad_db or off > limits.share:
        return text
    if decisions is not None and decisions < 1 - limits.share:
        return f"{text}, the largest value is elsewhere in {1 - decisions:.1%} of the rows"
    return ""


def _integers(expected: Array, found: Array) -> JudgedNumbers:
    gap = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    narrow = expected.dtype.kind in "iu" and expected.dtype.itemsize <= _NARROW_BYTES
    different = int(np.count_nonzero(gap > (_STEP if narrow else 0.0)))
    share = different / expected.size
    few = different <= _OF_INTEGERS * expected.size or (expected.size < _FEW and different < expected.size)
    reason = "" if few else f"{different} of {expected.size} numbers are other ones"
    largest = float(np.abs(expected.astype(np.float64)).max())
    ratio = snr_db(expected.astype(np.float64), found.astype(np.float64))
    return JudgedNumbers(
        "differs" if reason else "agrees",
        int(expected.size),
        ratio,
        float(gap.max()),
        float(gap.max()) / largest if largest else (math.inf if different else 0.0),
        share,
        reason=reason,
    )


def _decisions(expected: Array, found: Array) -> float | None:
    """The share of rows with the same largest value; one that is nearly as large counts, too."""
    if expected.ndim == 0 or expected.shape[-1] < 2:
        return None
    a = expected.reshape(-1, expected.shape[-1]).astype(np.float64)
    b = found.reshape(a.shape)
    rows = np.arange(len(a))
    best = a.max(axis=1)
    chosen = a[rows, b.argmax(axis=1)]
    spread = best - a.min(axis=1)
    return float(np.mean(chosen >= best - _OFF_OF_RANGE * spread))


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) and np.asarray(value).dtype.kind in "fiub"


def _rank(one: JudgedNumbers) -> float:
    return -math.inf if one.lost or one.snr_db is None else one.snr_db


def judge_all(
    names: Sequence[str], reference: Sequence[Any], candidate: Sequence[Any], number_format: NumberFormat
) -> list[tuple[str, JudgedNumbers]]:
    """All outputs of one run."""
    return [
        (name, judge(expected, found, number_format))
        for name, expected, found in zip(names, reference, candidate, strict=True)
    ]
