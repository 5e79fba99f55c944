"""Accuracy of an output: SNR, largest error and a verdict, for the whole output and for each group of its columns.

Cosine similarity would hide errors: it is always 1 for a single number, and in an output with boxes of 0 to 640 and
scores of 0 to 1 only the boxes affect it. So all samples are judged together, and each group of columns is judged
separately.

A good verdict counts only if the samples could have shown an error. If each value is nearly the same in all
samples, a constant would reach the same SNR. The verdict is then "not shown", unless the changes between samples
are accurate as well.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qnnbridge_host.engine import cpu
from qnnbridge_host.numerics.decisions import unlike_columns
from qnnbridge_host.numerics.judge import NO_ERROR_DB, as_array, judge
from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_models.progress import phase
from qnnbridge_protocol.model_records import JudgedNumbers
from qnnbridge_protocol.values import equal_bits

Verdict = Literal["exact", "good", "fair", "poor", "useless", "not shown"]

# SNR limits in dB, which correspond to a root mean square error of 1 %, 10 % and 32 % of the values.
GOOD_DB, FAIR_DB, USELESS_DB = 40.0, 20.0, 10.0
# An output is useless if more than this fraction of its values is wrong: values that must be equal (e.g. class
# numbers) and differ, or values that are NaN or infinite in only one of the results.
USELESS_SHARE = 0.5
# Values that vary over the samples by less than this fraction of their magnitude count as constant, and cannot show
# whether the model is right.
_NEARLY_CONSTANT = 1e-3
# If a constant output would reach this SNR in dB, a high SNR does not show that the model is right. Such an output
# is good only if the SNR of the changes between samples is good.
_OF_A_CONSTANT_DB = 30.0
# Verdicts from best to worst.
_ORDER: tuple[Verdict, ...] = ("exact", "good", "not shown", "fair", "poor", "useless")
# Largest number of channels to judge one by one. A longer axis probably contains positions, and the worst of many
# positions is not significant.
_MOST_CHANNELS = 1024
_LEAST_VALUES = 8
# Number of samples per group: an SNR target must be met in every group.
_FOLD = 5
# Rank of an output that may contain classes: (samples, rows, classes). The largest value of a row selects the
# class.
_CLASSES_NDIM = 3


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnGroup:
    """Elements of an output that belong together, because the same branch of the model computes them.

    Args:
        name: name of the branch's tensor.
        label: name and position, as text.
        mask: array in the shape of the output; True for these elements.
    """

    name: str
    label: str
    mask: npt.NDArray[np.bool_]


# Groups of columns, by name of the output.
ColumnGroups = Mapping[str, Sequence[ColumnGroup]]


@dataclasses.dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of one output, or of one group of its columns, over all samples.

    Args:
        name: name of the output or group.
        judged: result of the comparison (SNR, largest error and others).
        varies: how much the expected values vary over the samples: standard deviation divided by magnitude,
            computed for each column separately; with a single sample, computed over all columns. -1 for integers.
        flat: true if all values of the model are equal although the expected values vary.
    """

    name: str
    judged: JudgedNumbers
    varies: float = 0.0
    flat: bool = False

    @property
    def snr_db(self) -> float | None:
        """SNR in dB; None for an output without floating-point numbers, or if nothing was compared."""
        return self.judged.snr_db if self.varies >= 0 else None

    @property
    def verdict(self) -> Verdict:
        judged = self.judged
        if judged.state == "unknown":
            return "not shown"
        lost = judged.lost / (judged.values + judged.lost) if judged.lost else 0.0
        if judged.state == "agrees" and not judged.values:
            return "exact"
        if judged.snr_db is None or self.flat or lost > USELESS_SHARE:
            return "useless"
        if judged.max_abs == 0.0:
            return "poor" if lost else "exact"
        if self.varies < 0:
            return "useless" if judged.off > USELESS_SHARE else "poor" if judged.state == "differs" else "good"
        if judged.snr_db < USELESS_DB:
            return "useless"
        if lost or judged.snr_db < FAIR_DB:
            # The SNR excludes values that are NaN or infinite in only one result: with such values, the output is
            # poor.
            return "poor"
        # Compute the SNR of a constant output; subtracting it gives the SNR of the changes between samples.
        constant = -20 * math.log10(max(self.varies, 1e-10))
        changes = judged.snr_db - constant
        if changes < 0 or (constant >= _OF_A_CONSTANT_DB and changes < GOOD_DB):
            return "not shown"
        return "good" if judged.snr_db >= GOOD_DB else "fair"

    def document(self) -> dict[str, Any]:
        numbers = self.judged.to_wire()
        return {"name": self.name, **numbers, "flat": self.flat, "verdict": self.verdict}


@dataclasses.dataclass(frozen=True, slots=True)
class OutputAccuracy:
    """Accuracy of an output as a whole, of its groups of columns, and of its worst channel.

    Args:
        whole: accuracy of all values.
        groups: accuracy of each group, named by its label.
        worst_channel: accuracy of the worst channel, named by its number.
    """

    whole: Accuracy
    groups: tuple[Accuracy, ...] = ()
    worst_channel: Accuracy | None = None

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def parts(self) -> tuple[Accuracy, ...]:
        """Accuracies that determine the verdict: the groups if there are any, else the whole output."""
        return self.groups or (self.whole,)

    @property
    def verdict(self) -> Verdict:
        return worst(part.verdict for part in self.parts)

    @property
    def snr_db(self) -> float | None:
        """SNR of the worst group, or of the whole output without groups."""
        return min((part.snr_db for part in self.parts if part.snr_db is not None), default=None)

    def document(self) -> dict[str, Any]:
        return {
            **self.whole.document(),
            "verdict": self.verdict,
            "worst_snr_db": self.snr_db,
            "groups": [group.document() for group in self.groups],
            "worst_channel": self.worst_channel.document() if self.worst_channel else None,
        }


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of several verdicts; "exact" if there is none."""
    return max(verdicts, key=_ORDER.index, default="exact")


def lowest_snr(outputs: Sequence[OutputAccuracy]) -> float | None:
    """Return the worst output's SNR; None if no output has floating-point numbers."""
    return min((output.snr_db for output in outputs if output.snr_db is not None), default=None)


def lowest_of_folds(
    names: Sequence[str],
    expected: Sequence[Sequence[Any]],
    found: Sequence[Sequence[Any]],
    groups: ColumnGroups | None = None,
) -> float:
    """Return the lowest SNR of any output in any group of five samples.

    If all samples were judged together, samples with large values would hide errors in the others.
    """
    lowest = [
        lowest_snr(measure(names, [expected[n] for n in fold], [found[n] for n in fold], groups))
        for fold in fives(len(expected))
    ]
    return min((one for one in lowest if one is not None), default=NO_ERROR_DB)


def fives(samples: int) -> list[range]:
    """Split the samples into groups of at least five; return the indexes of each group."""
    # A group takes samples at regular distances, because neighbours in a file are often similar.
    count = max(1, samples // _FOLD)
    return [range(fold, samples, count) for fold in range(count)]


def measure(
    names: Sequence[str],
    expected: Sequence[Sequence[Any]],
    found: Sequence[Sequence[Any]],
    groups: ColumnGroups | None = None,
) -> tuple[OutputAccuracy, ...]:
    """Return the accuracy of every output. `expected` and `found` contain a list of outputs for each sample."""
    return tuple(
        _of_output(
            name,
            [(sample[number], other[number]) for sample, other in zip(expected, found, strict=True)],
            (groups or {}).get(name, ()),
        )
        for number, name in enumerate(names)
    )


@dataclasses.dataclass(frozen=True, slots=True)
class FloatResults:
    """Results of a float model, with which quantised models are compared.

    Args:
        names: names of the outputs.
        samples, expected: the samples, and the float model's outputs for each sample.
        groups: column groups of outputs, which are judged separately.
    """

    names: Sequence[str]
    samples: Sequence[Feeds]
    expected: Sequence[Sequence[Any]]
    groups: ColumnGroups = dataclasses.field(default_factory=dict)

    def few(self, most: int) -> FloatResults:
        """Return a copy with at most `most` samples, evenly spread."""
        part = slice(None, None, -(-len(self.samples) // most))
        return dataclasses.replace(self, samples=self.samples[part], expected=self.expected[part])

    def on_cpu(self, model: Path) -> list[list[Any]]:
        """Run a quantised model on the samples; return its outputs."""
        with phase("running on the CPU"):
            return cpu.run_all(model, "the quantised model", self.samples, self.names)

    def measured(self, found: Sequence[Sequence[Any]]) -> tuple[OutputAccuracy, ...]:
        return measure(self.names, self.expected, found, self.groups)

    def lowest(self, found: Sequence[Sequence[Any]]) -> float:
        return lowest_of_folds(self.names, self.expected, found, self.groups)


def _of_output(name: str, pairs: Sequence[tuple[Any, Any]], groups: Sequence[ColumnGroup]) -> OutputAccuracy:
    arrays = [(a, b) for a, b in (map(_numbers, pair) for pair in pairs) if a is not None and b is not None]
    if len(arrays) < len(pairs):
        return OutputAccuracy(_not_numbers(name, pairs))
    for a, b in arrays:
        if a.shape != b.shape:
            judged = judge(a, b, "quantized")
            reason = (
                f"{judged.reason}: the output's length depends on values, and a small error may have moved a value "
                "across a threshold"
            )
            return OutputAccuracy(Accuracy(name, dataclasses.replace(judged, reason=reason)))
    # Samples of different shapes have no columns in common, so join all values into one array.
    if len({a.shape for a, _ in arrays}) > 1:
        return OutputAccuracy(accuracy_of(name, *(np.concatenate([p[s].ravel() for p in arrays]) for s in (0, 1))))
    a, b = np.stack([a for a, _ in arrays]), np.stack([b for _, b in arrays])
    if not groups:
        groups = columns_of_scales(a)
    return OutputAccuracy(
        accuracy_of(name, a, b),
        tuple(
            accuracy_of(group.label, a[:, group.mask], b[:, group.mask])
            for group in groups
            if group.mask.shape == a.shape[1:]
        ),
        _worst_channel(a, b),
    )


def _numbers(value: Any) -> npt.NDArray[Any] | None:
    array = as_array(value)
    return None if array is None or array.dtype.kind in "OUS" else array


def _not_numbers(name: str, pairs: Sequence[tuple[Any, Any]]) -> Accuracy:
    """Compare outputs for equality if they are not numeric arrays in both results: strings, sequences and maps."""
    same = all(equal_bits(expected, found) for expected, found in pairs)
    reason = "" if same else "the output is not a numeric tensor, and its values differ"
    return Accuracy(
        name, JudgedNumbers("agrees" if same else "differs", snr_db=NO_ERROR_DB if same else None, reason=reason)
    )


def accuracy_of(name: str, expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> Accuracy:
    """Return the accuracy of the found values of an output or column group."""
    judged = judge(expected, found, "quantized", whole=True)
    if expected.ndim != _CLASSES_NDIM:
        # Without a class axis, the largest value of a row does not select a class.
        judged = dataclasses.replace(judged, decisions=None)
    if expected.dtype.kind != "f" or not judged.values:
        return Accuracy(name, judged, -1.0)
    both = np.isfinite(expected) & np.isfinite(found)
    a, b = expected[both].astype(np.float64), found[both].astype(np.float64)
    magnitude = float(np.sqrt(np.mean(np.square(a))))
    varies = float(_changes(expected, both).std()) / magnitude if magnitude else 0.0
    flat = a.size >= _LEAST_VALUES and varies > _NEARLY_CONSTANT and float(np.ptp(b)) == 0.0
    return Accuracy(name, judged, varies, flat)


def _changes(expected: npt.NDArray[Any], known: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return how values change from sample to sample, or from value to value if there is only one sample."""
    values = np.where(known, expected, 0.0).astype(np.float64)
    if expected.ndim < 2 or len(expected) < 2:
        return values[known]
    counts = np.maximum(known.sum(axis=0), 1)
    # The mean of few samples lies closer to the samples than the true mean does, so scale up the deviations.
    bias = math.sqrt(len(expected) / (len(expected) - 1))
    return np.asarray((values - values.sum(axis=0) / counts)[known] * bias)


def _worst_channel(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Accuracy | None:
    """Return the accuracy of the worst channel of feature maps or sequences (axis 2), ignoring silent channels."""
    if (
        a.ndim < 4
        or a.dtype.kind != "f"
        or not 2 <= a.shape[2] <= _MOST_CHANNELS
        or a[:, :, 0].size < _LEAST_VALUES
    ):
        return None
    energies = np.nansum(np.square(a.astype(np.float64)), axis=tuple(axis for axis in range(a.ndim) if axis != 2))
    # Skip channels whose energy is more than 40 dB below the largest.
    loud = np.flatnonzero(energies > energies.max() * 1e-4)
    # Reshape each channel to one column: `accuracy_of` would treat the last of three axes as classes.
    each = [
        accuracy_of(f"channel {number}", a[:, :, number].reshape(-1, 1), b[:, :, number].reshape(-1, 1))
        for number in loud
    ]
    return min(each, key=lambda one: NO_ERROR_DB if one.snr_db is None else one.snr_db, default=None)


def columns_of_scales(a: npt.NDArray[Any]) -> list[ColumnGroup]:
    """Group the columns by magnitude, for example the pixel coordinates and the scores of one output."""
    groups = []
    for columns in unlike_columns(a, leading=1):
        mine = np.zeros(a.shape[columns.axis], bool)
        mine[list(columns.numbers)] = True
        mask = np.broadcast_to(
            mine.reshape([-1 if other == columns.axis else 1 for other in range(1, a.ndim)]), a.shape[1:]
        )
        groups.append(ColumnGroup("", labelled("", mask).strip(" ()") or str(columns), mask))
    return groups


def labelled(name: str, mask: npt.NDArray[np.bool_]) -> str:
    """Return a text like `boxes (columns 0 to 3 of axis 1)`, or only the name if the elements are scattered."""
    for axis, size in enumerate(mask.shape):
        along: npt.NDArray[Any] = np.any(mask, axis=tuple(other for other in range(mask.ndim) if other != axis))
        count = int(along.sum())
        if count == size or int(mask.sum()) * size != count * mask.size:
            continue
        first = int(np.flatnonzero(along)[0])
        if along[first : first + count].all():
            where = f"column {first}" if count == 1 else f"columns {first} to {first + count - 1}"
            return f"{name} ({where} of axis {axis})"
    return name
