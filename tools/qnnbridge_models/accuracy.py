"""How much of an output is left: SNR, largest error and a verdict, for each group of columns, too.

A cosine hides what matters: of one number it is always 1, and in an output that holds boxes of 0 to 640 beside
scores of 0 to 1 the boxes alone decide it. So all samples together are judged, and each group by its own values.

A verdict counts only if the samples could have shown the opposite. Where each value is nearly the same in all
samples, a constant would reach the same SNR, so the verdict is "not shown" unless the changes themselves are right.
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

# In dB: an error of 1 %, 10 % and 32 % of the values (root mean square).
GOOD_DB, FAIR_DB, USELESS_DB = 40.0, 20.0, 10.0
# Of values that must be equal (class numbers, for one), and of values that are NaN or infinite on one side only.
USELESS_SHARE = 0.5
# Values that move less than this part of their magnitude over all samples show nothing of the model.
_NEARLY_CONSTANT = 1e-3
# In dB: where a constant reaches this, the SNR of the values says nothing; that of their changes has to be good.
_OF_A_CONSTANT_DB = 30.0
# From best to worst.
_ORDER: tuple[Verdict, ...] = ("exact", "good", "not shown", "fair", "poor", "useless")
# An axis with more columns than this is of positions; the worst of them says little.
_MOST_CHANNELS = 1024
_LEAST_VALUES = 8
# Samples that are judged together where a target has to hold for all.
_FOLD = 5
# Samples, rows and classes: the largest of a row is a decision.
_CLASSES_NDIM = 3


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnGroup:
    """Elements of an output that belong together: what one branch of the model computes.

    Args:
        name: of the tensor that they come from.
        label: where they are, as text.
        mask: True for its elements, in the shape of the output.
    """

    name: str
    label: str
    mask: npt.NDArray[np.bool_]


# By name of output.
ColumnGroups = Mapping[str, Sequence[ColumnGroup]]


@dataclasses.dataclass(frozen=True, slots=True)
class Accuracy:
    """One output, or one group of its columns, over all samples.

    Args:
        judged: the measures.
        varies: how far the expected values are from being the same in all samples: their deviation over their
            magnitude, each column by itself; of one sample, over all columns. -1 of integers.
        flat: the expected values vary and those found are all the same.
    """

    name: str
    judged: JudgedNumbers
    varies: float = 0.0
    flat: bool = False

    @property
    def snr_db(self) -> float | None:
        """None if it is no floating point output, or nothing was compared."""
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
            # What is lost on one side has no error that could be counted in the SNR.
            return "poor"
        # The SNR of a constant, and that of the changes alone.
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
    """One output as a whole, in its groups of columns if it has such, and the worst of its channels.

    Args:
        groups: each with its label as the name.
        worst_channel: of the channel axis; its name says which.
    """

    whole: Accuracy
    groups: tuple[Accuracy, ...] = ()
    worst_channel: Accuracy | None = None

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def parts(self) -> tuple[Accuracy, ...]:
        """What the verdict is about: the groups where there are such, else the whole."""
        return self.groups or (self.whole,)

    @property
    def verdict(self) -> Verdict:
        return worst(part.verdict for part in self.parts)

    @property
    def snr_db(self) -> float | None:
        """Of the worst part."""
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
    """The worst of several verdicts; `exact` of none."""
    return max(verdicts, key=_ORDER.index, default="exact")


def lowest_snr(outputs: Sequence[OutputAccuracy]) -> float | None:
    """Of the worst part of the worst output; None if no output is of floating point."""
    return min((output.snr_db for output in outputs if output.snr_db is not None), default=None)


def lowest_of_folds(
    names: Sequence[str],
    expected: Sequence[Sequence[Any]],
    found: Sequence[Sequence[Any]],
    groups: ColumnGroups | None = None,
) -> float:
    """The lowest SNR of any output in any five samples: together, loud samples would hide what quiet ones lose."""
    lowest = [
        lowest_snr(measure(names, [expected[n] for n in fold], [found[n] for n in fold], groups))
        for fold in fives(len(expected))
    ]
    return min((one for one in lowest if one is not None), default=NO_ERROR_DB)


def fives(samples: int) -> list[range]:
    """The numbers of the samples that are judged together."""
    # Every count-th sample makes a fold: neighbours in a file are often alike.
    count = max(1, samples // _FOLD)
    return [range(fold, samples, count) for fold in range(count)]


def measure(
    names: Sequence[str],
    expected: Sequence[Sequence[Any]],
    found: Sequence[Sequence[Any]],
    groups: ColumnGroups | None = None,
) -> tuple[OutputAccuracy, ...]:
    """The accuracy of every output; `expected` and `found` hold the outputs of each sample."""
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
    """What a float model gives for samples, by which quantised ones are judged.

    Args:
        names: of the outputs.
        samples, expected: inputs, and the outputs for each.
        groups: columns of outputs that are judged by themselves.
    """

    names: Sequence[str]
    samples: Sequence[Feeds]
    expected: Sequence[Sequence[Any]]
    groups: ColumnGroups = dataclasses.field(default_factory=dict)

    def few(self, most: int) -> FloatResults:
        """Every n-th sample, to spread the few over all."""
        part = slice(None, None, -(-len(self.samples) // most))
        return dataclasses.replace(self, samples=self.samples[part], expected=self.expected[part])

    def on_cpu(self, model: Path) -> list[list[Any]]:
        """What a quantised model gives for the samples."""
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
            reason = f"{judged.reason}: its length depends on its values, of which one may fall to the other side"
            return OutputAccuracy(Accuracy(name, dataclasses.replace(judged, reason=reason)))
    # Samples of several shapes have no columns in common: all values together are one list.
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
    """Text, and sequences and maps without a form in common, are equal or not."""
    same = all(equal_bits(expected, found) for expected, found in pairs)
    reason = "" if same else "it is no tensor of numbers, and is another one"
    return Accuracy(
        name, JudgedNumbers("agrees" if same else "differs", snr_db=NO_ERROR_DB if same else None, reason=reason)
    )


def accuracy_of(name: str, expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> Accuracy:
    """Of the same elements, expected and found."""
    judged = judge(expected, found, "quantized", whole=True)
    if expected.ndim != _CLASSES_NDIM:
        # Of other outputs the largest of a row is no class.
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
    """Return the changes from sample to sample, or from value to value if there is one sample."""
    values = np.where(known, expected, 0.0).astype(np.float64)
    if expected.ndim < 2 or len(expected) < 2:
        return values[known]
    counts = np.maximum(known.sum(axis=0), 1)
    # The mean of a few samples is nearer to each of them than that of all would be.
    bias = math.sqrt(len(expected) / (len(expected) - 1))
    return np.asarray((values - values.sum(axis=0) / counts)[known] * bias)


def _worst_channel(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Accuracy | None:
    """Along the second axis of maps and sequences (behind samples and batch); silent channels say nothing."""
    if (
        a.ndim < 4
        or a.dtype.kind != "f"
        or not 2 <= a.shape[2] <= _MOST_CHANNELS
        or a[:, :, 0].size < _LEAST_VALUES
    ):
        return None
    energies = np.nansum(np.square(a.astype(np.float64)), axis=tuple(axis for axis in range(a.ndim) if axis != 2))
    # 1e-4 of the energy is 40 dB below the loudest channel.
    loud = np.flatnonzero(energies > energies.max() * 1e-4)
    # As rows of one column: a channel makes no decision.
    each = [
        accuracy_of(f"channel {number}", a[:, :, number].reshape(-1, 1), b[:, :, number].reshape(-1, 1))
        for number in loud
    ]
    return min(each, key=lambda one: NO_ERROR_DB if one.snr_db is None else one.snr_db, default=None)


def columns_of_scales(a: npt.NDArray[Any]) -> list[ColumnGroup]:
    """Columns of unlike magnitudes (boxes in pixels beside scores) that no branch of the model separates."""
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
    """`boxes (columns 0 to 3 of axis 1)`, or the name alone where the elements are scattered."""
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
