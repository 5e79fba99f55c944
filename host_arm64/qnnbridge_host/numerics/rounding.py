"""Judge an output of QNN against the CPU's, allowing for the rounding of half floats and quantisation.

A value is wrong if its error exceeds the sum of: eight times the change of the CPU's own result when the inputs are
changed by the rounding of a half float (or by half a quantisation step); two percent of the largest value; three
steps of the output's quantisation. Values that a half float cannot represent are not judged. All functions are
pure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Largest finite half float.
LARGEST_HALF: Final = 65504.0
HALF_ROUNDING: Final = 2.0**-11
_OF_LARGEST: Final = 0.02
_OF_MOVED: Final = 8.0
_STEPS: Final = 3.0
# SNR in decibels of two equal results.
EXACT: Final = 200.0


@dataclasses.dataclass(frozen=True, slots=True)
class RoundingJudgement:
    """Verdict on an output, or the worst verdict of several outputs.

    snr: decibels, at most 200. wrong: fraction of the judged values that are wrong. times: the worst error relative
    to the error that rounding explains.
    """

    right: bool
    snr: float
    max_abs: float
    largest: float
    wrong: float
    times: float
    why: str = ""


def judge(reference: Array, moved: Sequence[Array], result: Array, step: float = 0.0) -> RoundingJudgement:
    """Judge an output.

    Args:
        reference: result of the CPU.
        moved: results of the CPU for inputs that are changed by rounding.
        result: result of QNN.
        step: quantisation step of the output, 0 without quantisation.
    """
    if reference.shape != result.shape:
        shapes = f"shape {list(result.shape)} instead of {list(reference.shape)}"
        return RoundingJudgement(False, -EXACT, math.inf, 0.0, 1.0, math.inf, shapes)
    if not reference.size:
        return RoundingJudgement(True, EXACT, 0.0, 0.0, 0.0, 0.0)
    exact = reference.dtype.kind in "iub"
    ours, theirs = reference.astype(np.float64), result.astype(np.float64)
    judged = np.isfinite(ours) & (np.abs(ours) <= LARGEST_HALF if not exact else True)
    near = np.zeros_like(ours)
    for other in moved:
        with np.errstate(invalid="ignore"):
            distance = np.abs(other.astype(np.float64) - ours)
        judged &= np.isfinite(distance)
        near = np.maximum(near, np.where(np.isfinite(distance), distance, 0.0))
    if not judged.any():
        return RoundingJudgement(True, EXACT, 0.0, 0.0, 0.0, 0.0, "no value that a half float can represent")
    largest = float(np.abs(ours[judged]).max())
    allowed = _OF_MOVED * near + (0.0 if exact else _OF_LARGEST * largest + 1e-6) + _STEPS * step
    with np.errstate(invalid="ignore"):
        error = np.abs(theirs - ours)
    error = np.where(np.isfinite(error), error, np.inf)[judged]
    times = error / np.maximum(allowed[judged], 1e-12)
    wrong = times > 1
    return RoundingJudgement(
        not bool(wrong.any()),
        snr_of(ours[judged], error),
        float(error.max()),
        largest,
        float(wrong.mean()),
        float(times.max()),
    )


def snr_of(reference: Array, error: Array) -> float:
    """Return the SNR in decibels, between -200 and 200."""
    noise, signal = float(np.sum(np.square(error))), float(np.sum(np.square(reference)))
    if not noise:
        return EXACT
    if not signal or not math.isfinite(noise):
        return -EXACT
    return max(-EXACT, min(EXACT, 10 * math.log10(signal / noise)))


def worst(judgements: Sequence[RoundingJudgement]) -> RoundingJudgement:
    """Return the verdict with the largest relative error."""
    return max(judgements, key=lambda one: one.times)
