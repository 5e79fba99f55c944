"""Verdict on an output: whether a computation in half floats or quantised steps agrees with the CPU's.

Three measures decide together. The signal-to-noise ratio (SNR) measures the size of the error. The fraction of
wrong values shows whether the error is rounding, spread over all values, or an error at some positions. Decisions
show whether a task's result changes: the class with the largest value, and the side of 0.5 for probabilities. The
largest difference alone decides nothing, because rounding can move a single value across a threshold.

The verdict is "unknown" if the comparison cannot show an error: if the CPU's values are NaN or infinite, if they
are as small as the noise of the number format, or if an output is the same for all inputs. For a quantised output,
differences of one step of its own quantisation are not an error: a value between two steps may be rounded to
either. All functions are pure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from qnnbridge_host.numerics import decisions as tasks
from qnnbridge_host.numerics.decisions import (
    HALF,
    OFF_OF_RANGE,
    Columns,
    detection_columns,
    normalised_columns,
    unlike_columns,
)
from qnnbridge_protocol.model_records import JudgedNumbers

Array = npt.NDArray[Any]
State = Literal["agrees", "differs", "unknown"]
NumberFormat = Literal["fp16", "quantized"]

_QUANTIZED_OPS: Final = frozenset(("QuantizeLinear", "DequantizeLinear"))
# Reason for the verdict on an output without values, for example a detection list from which `pairing` removed all
# rows.
NO_VALUES: Final = "the output has no values, or no row whose score can be judged"
# SNR that is returned for equal results. Half floats reach at most about 70 dB, and 8-bit steps about 45 dB.
NO_ERROR_DB: Final = 200.0
# Smaller values count as zero.
_TINY: Final = 1e-30
# Differences above this multiple of the noise of the number format are not noise.
_CLEAR: Final = 10.0
_FEW: Final = 8
# Columns whose values are smaller by this factor than the largest value of the output are judged separately; an
# axis with more columns than `_MOST_COLUMNS` is an axis of positions.
_UNLIKE: Final = 8.0
_MOST_COLUMNS: Final = 256
# Columns whose values are below this multiple of the noise in both results contain no detection.
SILENT: Final = 5.0
_BOX: Final = 4  # number of columns of a box
# If many values are off, a difference above this fraction of the range is not rounding.
_FAR: Final = 0.3
# If a smaller fraction of detections agrees, the result differs, however small the errors are.
_LEAST_DETECTIONS: Final = 0.5
# Labels and indices follow from float values, so a choice between nearly equal values may differ: this fraction of
# different labels is not a fault.
_OF_INTEGERS: Final = 0.1
# Integers of at most this size are usually quantised values. They may be rounded up or down, so a difference of
# `_STEP` is allowed.
_NARROW_BYTES: Final = 2
_STEP: Final = 1.0
# Factor for the size of a step, because multiples of the step are rounded in float32.
_ONE_STEP: Final = 1.01
# Number of class numbers below which a single different number counts as a difference.
_FEW_CLASSES: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class NumberLimits:
    """Limits for a number format.

    Args:
        good_db: an output with at least this SNR agrees.
        bad_db: an output below this SNR differs.
        share: for an SNR between these limits, the share of values that may be off by more than 5 % of the range,
            and of decisions that may change.
        noise: differences up to this absolute number are the format's own noise.
        noise_of_range: the format's noise as a fraction of the largest value of the output on any inputs.
        response_db: ratio by which an output's changes from input to input must exceed the error.
    """

    good_db: float
    bad_db: float
    share: float
    noise: float
    noise_of_range: float
    response_db: float

    def __str__(self) -> str:
        return f"an output agrees with an SNR of at least {self.good_db:g} dB, and differs below {self.bad_db:g} dB"


# Half floats reach 50 to 80 dB. Tanh, Sigmoid and Softplus that QNN merges with the preceding operator reach 35 to
# 49 dB, so 30 dB accepts them with a margin (docs/numbers.md).
LIMITS: Final[Mapping[NumberFormat, NumberLimits]] = {
    # Measured: outputs of sigmoids and softmaxes near 0 are off by up to 0.0028 in half floats.
    "fp16": NumberLimits(30.0, 20.0, 0.01, 5e-3, 1e-3, 10.0),
    "quantized": NumberLimits(20.0, 10.0, 0.05, 1e-2, 1e-2, 6.0),
}


def judge(
    reference: Any,
    candidate: Any,
    number_format: NumberFormat = "fp16",
    scale: float = 0.0,
    *,
    step: float = 0.0,
    whole: bool = False,
) -> JudgedNumbers:
    """Judge an output for one set of inputs.

    Args:
        reference: the CPU's value.
        candidate: the other computation's value.
        number_format: format of the other computation.
        scale: largest magnitude of the output on other inputs; 0 if it is unknown.
        step: quantisation step of the output; 0 for an output that is not quantised.
        whole: judge the output as a whole only; the caller judges columns, objects and regions.
    """
    expected, found = as_array(reference), as_array(candidate)
    if expected is None or found is None:
        return JudgedNumbers("unknown", reason="the output is not a tensor of numbers")
    if expected.shape != found.shape:
        return JudgedNumbers(
            "differs", reason=f"the output has shape {found.shape}, but shape {expected.shape} on the CPU"
        )
    if not expected.size:
        # An empty output is not wrong, but proves nothing.
        return JudgedNumbers("unknown", reason=NO_VALUES)
    # Integers are decisions or quantised values, for which decibels mean little.
    if expected.dtype.kind in "biu" and found.dtype.kind in "biu":
        return _judge_integers(expected, found)
    if expected.dtype.kind not in "biuf" or found.dtype.kind not in "biuf":
        return _judge_strings(expected, found)
    return _judge_floats(expected, found, LIMITS[number_format], scale, step * _ONE_STEP, whole)


def judge_over_inputs(
    pairs: Sequence[tuple[Any, Any]], number_format: NumberFormat = "fp16", step: float = 0.0
) -> tuple[State, str, list[JudgedNumbers]]:
    """Judge an output over several sets of inputs; return the verdict, its reason, and the verdict on each set.

    An output agrees only if it changes with the inputs: an output that is the same for all inputs, or that changes
    less than the error, proves nothing.

    Args:
        pairs: the CPU's value and the other computation's, for each set of inputs.
        number_format: format of the other computation.
        step: quantisation step of the output; 0 for an output that is not quantised.
    """
    # Use the scale over all inputs, because the output may be nearly 0 for one set.
    scale = max((largest(reference) for reference, _ in pairs), default=0.0)
    judged = [judge(reference, candidate, number_format, scale, step=step) for reference, candidate in pairs]
    # A difference for one set of inputs decides, because other sets may hide the error.
    bad = min((one for one in judged if one.state == "differs"), key=rank, default=None)
    if bad is not None:
        return "differs", bad.reason, judged
    good = [one for one in judged if one.state == "agrees"]
    if not good:
        return "unknown", judged[0].reason if judged else "nothing was compared", judged
    return (*_response(pairs, LIMITS[number_format], step * _ONE_STEP), judged)


def _response(pairs: Sequence[tuple[Any, Any]], limits: NumberLimits, step: float) -> tuple[State, str]:
    """Decide whether the output changes with the inputs by more than the error. Return "agrees" for a single set of
    inputs."""
    arrays: list[tuple[Array, Array]] = []
    for reference, candidate in pairs:
        a, b = as_array(reference), as_array(candidate)
        if a is not None and b is not None and _are_finite(a) and _are_finite(b):
            arrays.append((a, b))
    shapes = {a.shape for a, _ in arrays}
    # With a single set of inputs, or with varying shapes, the change cannot be measured.
    if len(arrays) < 2 or len(shapes) > 1:
        return "agrees", ""
    expected = np.stack([a.astype(np.float64) for a, _ in arrays])
    found = np.stack([b.astype(np.float64) for _, b in arrays])
    # Subtract what all sets have in common (a bias, a fixed table), because only the change counts.
    changes = expected - expected.mean(axis=0)
    spread, error = _rms(changes), _rms(found - expected)
    if spread > _TINY and 20 * math.log10(spread / max(error, _TINY)) >= limits.response_db:
        return "agrees", ""
    words = f"the CPU's output changes by {spread:.2g} from input to input, and the error is {error:.2g}"
    # Differences within the noise are not an error, whatever their ratio.
    noise = max(limits.noise, step)
    clear = max(noise, _CLEAR * limits.noise_of_range * max(largest(a) for a, _ in arrays))
    if spread > clear and spread < 2 * error and float(np.abs(found - expected).max()) > noise:
        return "differs", f"the output does not change with the inputs as on the CPU: {words}"
    return "unknown", f"the output is nearly the same for all of these inputs: {words}"


def movement(values: Sequence[Any], number_format: NumberFormat) -> float:
    """Return how much an output changes from input to input. At 1 or more, the change clearly exceeds the noise.

    Args:
        values: the output for each set of inputs; arrays with values that are not finite are ignored.
        number_format: format in which the output will be computed.
    """
    arrays = [array for array in map(as_array, values) if array is not None and _are_finite(array)]
    if len(arrays) < 2 or len({array.shape for array in arrays}) > 1:
        return 0.0
    stacked = np.stack([array.astype(np.float64) for array in arrays])
    limits = LIMITS[number_format]
    spread = float(np.abs(stacked - stacked.mean(axis=0)).max())
    return spread / (_CLEAR * max(limits.noise, limits.noise_of_range * float(np.abs(stacked).max())))


def _rms(values: Array) -> float:
    # Divide by the largest value first, so that squares neither overflow nor underflow.
    most = float(np.abs(values).max(initial=0.0))
    return most * math.sqrt(float(np.mean((values / most) ** 2))) if most > _TINY else 0.0


def _are_finite(value: Array) -> bool:
    return value.size > 0 and value.dtype.kind in "biuf" and bool(np.isfinite(value).all())


def largest(value: Any) -> float:
    """Return the largest finite magnitude in an array; 0 if the value is not a numeric array."""
    array = as_array(value)
    if array is None or array.dtype.kind not in "biuf" or not array.size:
        return 0.0
    magnitudes = np.abs(array.astype(np.float64))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def as_array(value: Any) -> Array | None:
    """Convert numbers or strings to one array: tensors, and sequences and maps of tensors with equal shapes.

    Complex numbers get their parts in a new last axis. Return None for other values.
    """
    if isinstance(value, Mapping):
        return as_array(list(value.values()))
    if isinstance(value, (list, tuple)):
        parts = [part for part in map(as_array, value) if part is not None]
        if len(parts) < len(value) or len({(part.shape, part.dtype.kind) for part in parts}) != 1:
            return None
        return np.stack(parts)
    if not isinstance(value, (np.ndarray, np.generic, int, float, str)):
        return None
    array = np.asarray(value)
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1)
    if array.dtype.kind == "V":  # bfloat16 and similar types that ml_dtypes adds to numpy
        return array.astype(np.float64)
    return array if array.dtype.kind in "biufUSO" else None


def worst(judged: Iterable[tuple[str, JudgedNumbers]]) -> tuple[str, JudgedNumbers] | None:
    """Return the output that decides the verdict: differing outputs come before agreeing outputs, and in each group
    the lowest SNR comes first.
    """
    return min(judged, key=lambda one: badness(one[1]), default=None)


def snr_db(expected: Array, found: Array) -> float:
    """Return the SNR of finite values in decibels, between -200 and 200. Values are scaled to avoid overflow."""
    scale = max(float(np.abs(expected).max(initial=0.0)), float(np.abs(found).max(initial=0.0)))
    if scale < _TINY:
        return NO_ERROR_DB
    a, b = expected / scale, found / scale
    signal, noise = float(np.vdot(a, a)), float(np.vdot(a - b, a - b))
    # Avoid a division by zero: the noise of identical arrays is 0.
    if noise <= signal * 10 ** (-NO_ERROR_DB / 10):
        return NO_ERROR_DB
    return max(-NO_ERROR_DB, 10 * math.log10(signal / noise)) if signal else -NO_ERROR_DB


# Steps of the decision:
# 1. Ignore values that are NaN or infinite on the CPU. The output differs if a value is NaN or infinite only on the
#    NPU.
# 2. Judge the whole output by SNR, fraction of wrong values and decisions.
# 3. If columns have different scales, judge the groups of columns instead. Without such columns, accept an output
#    with errors if its objects or regions agree.
# 4. Search an output that agrees for a wrong column with small values.
# 5. Change "differs" to "unknown" if all differences are within the noise of the number format or one step of the
#    output's quantisation. This applies neither to NaN and infinite values nor to columns, from whose differences
#    the noise has been subtracted already.
def _judge_floats(
    expected: Array, found: Array, limits: NumberLimits, scale: float, step: float, whole: bool
) -> JudgedNumbers:
    known = np.isfinite(expected)
    if not known.any():
        return JudgedNumbers("unknown", reason="all values of the output are NaN or infinite on the CPU")
    # Values that are NaN or infinite only on the NPU: results above 65,504 overflow in float16.
    lost = int(np.count_nonzero(known & ~np.isfinite(found)))
    both = known & np.isfinite(found)
    a, b = expected[both].astype(np.float64), found[both].astype(np.float64)
    if not a.size:
        return JudgedNumbers("differs", lost=lost, reason="all of its values are NaN or infinite")
    most, gap = largest(expected), np.abs(a - b)
    max_abs = float(gap.max())
    off = float(np.count_nonzero(gap > OFF_OF_RANGE * most)) / a.size
    ratio, part, remark, silent = snr_db(a, b), "", "", ""
    decisions: float | None = None
    columns: Sequence[Columns] = ()
    # Decisions and columns can be judged only if all values are finite.
    if both.all():
        decisions = _decisions(expected, found, _CLEAR * limits.noise_of_range * most)
        reason = _float_reason(ratio, off, decisions, limits, max_abs / max(most, _TINY))
        columns = () if whole else _columns(expected, found)
        if columns:
            table = _table(expected, found, columns, ratio, limits, step)
            ratio, part, reason, remark = table.snr_db, table.part, table.reason, table.remark
            decisions, silent = table.decisions, table.silent
        # With an SNR below half of `bad_db`, decisions may agree only by chance.
        elif reason and not whole and ratio >= limits.bad_db / 2:
            seen = tasks.picture_decisions(expected, found)
            if seen is not None and seen.all_same:
                reason, remark, decisions = "", f"SNR {ratio:.1f} dB, and {seen}", seen.same
        column = None if reason or remark or whole else _small_column(expected, found, most, limits, step)
        if column is not None:
            ratio, part, reason = column
    else:
        reason = _float_reason(ratio, off, None, limits)
        if lost:
            reason = f"{lost} of {known.size} values are NaN or infinite, but not on the CPU"
    state: State = "differs" if reason else "agrees"
    # Skip this check for columns: the noise has already been subtracted from their differences, and the noise of
    # the whole output would hide errors in columns with small values.
    if (
        reason
        and not lost
        and not columns
        and not part
        and max_abs <= max(limits.noise, limits.noise_of_range * scale, step)
    ):
        state = "unknown"
        small = "the noise of the number format" if max_abs > step else "one step of the output's quantisation"
        reason = f"the output has values up to {most:.2g}, and differences up to {max_abs:.2g} are within {small}"
    elif silent and not reason:
        state, reason = "unknown", silent
    # The ratio is infinite if the CPU has only zeros and the NPU does not.
    relative = max_abs / most if most > _TINY else (math.inf if max_abs else 0.0)
    return JudgedNumbers(state, int(a.size), ratio, max_abs, relative, off, decisions, lost, reason or remark, part)


def _float_reason(
    ratio: float, off: float, decisions: float | None, limits: NumberLimits, farthest: float = 0.0
) -> str:
    """Return why an output differs, or "". farthest: largest difference relative to the range.

    Tolerate a few values that are far off, but not many.
    """
    text = f"SNR {ratio:.1f} dB, {off:.1%} of the values are off by more than 5 % of the range"
    if ratio >= limits.good_db:
        far = farthest > _FAR and off > limits.share
        return f"{text}, by up to {farthest:.0%} of it" if far else ""
    if ratio < limits.bad_db or off > limits.share:
        return text
    if decisions is not None and decisions < 1 - limits.share:
        return f"{text}, {1 - decisions:.1%} of the decisions differ"
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """The worst columns of an output whose columns have different scales.

    part: description of the columns. reason: why the output differs. remark: why it agrees although its SNR is low.
        silent: why the verdict is "unknown".
    """

    snr_db: float
    part: str
    reason: str
    remark: str
    decisions: float | None
    silent: str


def _columns(expected: Array, found: Array) -> tuple[Columns, ...]:
    """Return the groups of columns that are judged separately; empty if all columns have the same scale."""
    return detection_columns(expected, found) or unlike_columns(expected) or normalised_columns(expected)


def _table(
    expected: Array, found: Array, columns: Sequence[Columns], ratio: float, limits: NumberLimits, step: float
) -> _Table:
    """Judge each group of columns separately. If the SNR of a group is low, compare the detections in the columns.

    ratio: SNR of the whole output, which the largest columns determine.
    """
    part, reason, silent = "", "", ""
    for group in columns:
        mine, theirs = group.of(expected), group.of(found)
        if group.kind == "class":
            wrong = _class_reason(mine, theirs, group)
            if wrong:
                # Return at once for a wrong class, because an SNR of class numbers has no meaning.
                return _Table(ratio, str(group), wrong, "", None, "")
            continue
        if max(group.largest, float(np.abs(theirs).max())) < SILENT * limits.noise:
            if (len(columns[0].numbers) >= _BOX or group.kind == "score") and float(mine.min()) >= 0.0:
                silent = f"the values in {group} are at most {group.largest:.2g}, so nothing is detected"
            continue
        gap = beyond_noise(mine, theirs, group.largest, limits, step)
        own = snr_db(mine, mine + gap)
        off = float(np.mean(np.abs(gap) > OFF_OF_RANGE * group.largest))
        wrong = _float_reason(own, off, None, limits, float(np.abs(gap).max()) / max(group.largest, _TINY))
        worse = own < ratio
        if worse:
            ratio, part = own, str(group)
        if wrong and (worse or not reason):
            low, number = _worst_column(mine, gap, group)
            reason = f"in {group} (largest value {group.largest:.2g}): {wrong}; SNR {low:.1f} dB in {number}"
    seen = tasks.detections(expected, found, columns)
    if seen is None:
        return _Table(ratio, part, reason, "", None, silent)
    remark = ""
    if reason and seen.all_same:
        remark, reason = f"{reason}; {seen}", ""
    elif not reason and seen.same < _LEAST_DETECTIONS:
        reason = f"only {seen}"
    return _Table(ratio, part, reason, remark, seen.same, silent)


def _class_reason(mine: Array, theirs: Array, group: Columns) -> str:
    """Return why class numbers differ; "" if nearly equal scores can explain the few differences."""
    different = int(np.count_nonzero(np.abs(mine - theirs) > HALF))
    if different > _OF_INTEGERS * mine.size and (different > 1 or mine.size < _FEW_CLASSES):
        return f"{different} of {mine.size} class numbers in {group} differ"
    return ""


def beyond_noise(mine: Array, theirs: Array, most: float, limits: NumberLimits, step: float = 0.0) -> Array:
    """Return the differences after subtracting the noise of the number format and one step of the quantisation."""
    gap = theirs - mine
    noise = max(limits.noise, limits.noise_of_range * most, step)
    return np.asarray(np.sign(gap) * np.maximum(np.abs(gap) - noise, 0.0))


def _worst_column(mine: Array, gap: Array, group: Columns) -> tuple[float, str]:
    """Return the lowest SNR of a column, and the name of the column. Skip columns whose values are small relative
    to the largest value of the group."""
    loud = np.flatnonzero(np.abs(mine).max(axis=0) * _UNLIKE >= group.largest)
    ratios = [snr_db(mine[:, place], mine[:, place] + gap[:, place]) for place in loud]
    return min(ratios), f"column {group.numbers[loud[int(np.argmin(ratios))]]}"


def _small_column(
    expected: Array, found: Array, most: float, limits: NumberLimits, step: float
) -> tuple[float, str, str] | None:
    """Find a wrong column with comparatively small values: its SNR, its position, and the reason."""
    for axis in sorted({1, expected.ndim - 1}):
        if expected.ndim < 2 or not 2 <= expected.shape[axis] <= _MOST_COLUMNS:
            continue
        a = np.moveaxis(expected, axis, -1).reshape(-1, expected.shape[axis]).astype(np.float64)
        b = np.moveaxis(found, axis, -1).reshape(a.shape).astype(np.float64)
        if len(a) < _FEW:
            continue
        size, gap = np.abs(a).max(axis=0), np.abs(beyond_noise(a, b, 0.0, limits, step))
        for column in np.flatnonzero((size * _UNLIKE < most) & (gap.max(axis=0) > 0.0)):
            ratio = snr_db(a[:, column], a[:, column] + gap[:, column])
            off = float(np.mean(gap[:, column] > OFF_OF_RANGE * size[column]))
            if ratio < limits.bad_db and off > limits.share:
                part = f"column {column} of axis {axis}"
                return ratio, part, f"SNR {ratio:.1f} dB in {part} (largest value {size[column]:.2g})"
    return None


def _judge_integers(expected: Array, found: Array) -> JudgedNumbers:
    gap = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    narrow = expected.dtype.kind in "iu" and expected.dtype.itemsize <= _NARROW_BYTES
    different = int(np.count_nonzero(gap > (_STEP if narrow else 0.0)))
    share = different / expected.size
    # Among a few values, a single difference may result from two scores that are nearly equal.
    few = different <= _OF_INTEGERS * expected.size or (different == 1 < expected.size < _FEW)
    reason = "" if few else f"{different} of {expected.size} numbers differ"
    most = largest(expected)
    ratio = snr_db(expected.astype(np.float64), found.astype(np.float64))
    return JudgedNumbers(
        "differs" if reason else "agrees",
        int(expected.size),
        ratio,
        float(gap.max()),
        float(gap.max()) / most if most else (math.inf if different else 0.0),
        share,
        reason=reason,
    )


def _decisions(expected: Array, found: Array, noise: float) -> float | None:
    """Return the smaller of two shares: classes that agree, and values on the same side of 0.5. noise: see
    `classes`.
    """
    shares = (tasks.classes(expected, found, noise), tasks.sides(expected, found))
    return min((share for share in shares if share is not None), default=None)


def _judge_strings(expected: Array, found: Array) -> JudgedNumbers:
    different = int(np.count_nonzero(expected != found))
    reason = f"{different} of {expected.size} texts differ" if different else ""
    return JudgedNumbers(
        "differs" if different else "agrees", int(expected.size), off=different / expected.size, reason=reason
    )


def rank(one: JudgedNumbers) -> float:
    """Return a sort key for the SNR that puts the worst first; NaN and infinite values count as the worst."""
    return -math.inf if one.lost or one.snr_db is None else one.snr_db


def badness(one: JudgedNumbers) -> tuple[int, float]:
    """Return a sort key that puts the deciding output first: differing outputs come before agreeing outputs, and in
    each group the lowest SNR comes first.
    """
    return {"differs": 0, "agrees": 1}.get(one.state, 2), rank(one)


def precision_of_operators(operators: Iterable[str]) -> NumberFormat:
    """Return the NPU's number format for a model with these operators: half floats, or the steps of its Q/DQ nodes.

    Operators that are not ONNX's own include their domain.
    """
    plain = {name.rpartition(".")[2] for name in operators}
    return "quantized" if plain & _QUANTIZED_OPS else "fp16"
