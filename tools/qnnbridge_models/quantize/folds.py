"""One way of quantising, judged several times: calibrated without a part of the samples, and run on that part.

One split is one draw: a model of speech quality had 44 dB on five samples with ranges that the other fifteen gave
it, and 57 on ten others.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_host.engine import cpu
from qnnbridge_host.numerics.judge import NO_ERROR_DB
from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_models.accuracy import ColumnGroups, OutputAccuracy, Verdict, lowest_snr, measure, worst
from qnnbridge_models.progress import phase
from qnnbridge_models.quantize.ort_quantizer import ON_CPU, QUANTIZED, CalibratedModel, Precision
from qnnbridge_models.quantize.ranges import Numbers
from qnnbridge_models.quantize.samples import SampleSets

# The held-out samples are one part, and those that calibrate are cut into this many.
_PARTS = 3
# Samples of each of these that are run.
_RUN = 10
# Fewer samples that did not calibrate show nothing good. The worst quarter of what will come is missed by eight of
# them in one case of ten (0.75 to the power of 8), by two in more than every second.
ENOUGH = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Fold:
    """A part of the samples.

    Args:
        left_out: numbers of the samples that do not calibrate.
        samples, expected: those of them that are run, and what the float model gives for them.
    """

    left_out: Numbers
    samples: Sequence[Feeds]
    expected: Sequence[Sequence[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class FoldsReport:
    """The chosen model in all folds, where few samples are held out.

    Args:
        samples: that were compared, each by a model that it did not calibrate.
        snr_db: of the worst output in each fold.
        verdict: of the worst fold.
    """

    samples: int
    snr_db: tuple[float, ...]
    verdict: Verdict

    def document(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        low, high = (f"{min(ratio, NO_ERROR_DB):.1f}" for ratio in (min(self.snr_db), max(self.snr_db)))
        return f"{len(self.snr_db)} folds of {self.samples} samples: {low} to {high} dB"


def shown_by(verdict: Verdict, samples: int) -> Verdict:
    """A verdict from this many samples that did not calibrate: a few prove what is bad, and nothing good."""
    return "not shown" if samples < ENOUGH and verdict in ("exact", "good", "fair") else verdict


class KnownFolds:
    """How ways of quantising were in a fold, by `CalibratedModel.key` and precision."""

    def __init__(self) -> None:
        self.found: dict[tuple[Any, ...], tuple[OutputAccuracy, ...]] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class CrossValidation:
    """Judges ways of quantising by all its folds.

    Args:
        work: folder for candidates.
        names, groups: outputs, and columns of them that are judged by themselves.
        known: how the ways were that were judged before.
    """

    folds: Sequence[Fold]
    work: Path
    names: Sequence[str]
    groups: ColumnGroups
    known: KnownFolds = dataclasses.field(default_factory=KnownFolds)

    def snr(self, calibrated: CalibratedModel, precision: Precision) -> float:
        """The SNR on the CPU of the worst output, in samples that do not calibrate: the mean of the folds.

        The lowest of them is that of the oddest sample, by which a choice is chance.
        """
        lowest = [lowest_snr(self._judged(fold, calibrated, precision)) for fold in self.folds]
        return statistics.fmean(NO_ERROR_DB if one is None else one for one in lowest)

    def report(self, calibrated: CalibratedModel, precision: Precision) -> FoldsReport:
        """All folds of one way of quantising."""
        ratios: list[float] = []
        verdicts: list[Verdict] = []
        for fold in self.folds:
            outputs = self._judged(fold, calibrated, precision)
            lowest = lowest_snr(outputs)
            ratios.append(NO_ERROR_DB if lowest is None else lowest)
            verdicts.append(worst(output.verdict for output in outputs))
        samples = sum(len(fold.samples) for fold in self.folds)
        return FoldsReport(samples, tuple(ratios), worst(verdicts))

    def _judged(self, fold: Fold, calibrated: CalibratedModel, precision: Precision) -> tuple[OutputAccuracy, ...]:
        one = calibrated.without(fold.left_out)
        key = one.key, precision
        if key not in self.known.found:
            model = one.write(self.work / "fold.onnx", precision)
            with phase(ON_CPU):
                found = cpu.run_all(model, QUANTIZED, fold.samples, self.names)
            self.known.found[key] = measure(self.names, fold.expected, found, self.groups)
        return self.known.found[key]

    def within(self, seconds: float, calibrated: CalibratedModel, precision: Precision) -> CrossValidation:
        """With as many folds as can be judged in that time, by what the first of them takes."""
        if len(self.folds) == 1:
            return self
        begun = time.monotonic()
        first = dataclasses.replace(self, folds=self.folds[:1])
        first.snr(calibrated, precision)
        # Never 0: a small model takes less than the clock shows.
        paid = int(seconds / max(time.monotonic() - begun, 1e-3))
        return self if paid >= len(self.folds) else first


def folds_of(
    samples: SampleSets, compared: Sequence[Sequence[Any]], by_sample: bool, run: Callable[[Feeds], list[Any]]
) -> list[Fold]:
    """The held-out samples first.

    Args:
        compared: what the float model gives for the compared samples; `run` gives it for others.
        by_sample: any samples can be left out.
    """
    count = len(samples.calibration)
    first = Fold(samples.held_numbers, samples.compared, compared)
    # Where none is held out, one part more takes the place of that fold.
    parts = min(count, _PARTS + (not samples.held_out))
    if not by_sample or parts < 2:
        return [first]
    found = [first] if samples.held_out else []
    for part in range(parts):
        numbers = range(part, count, parts)
        # At most `_RUN` of them, evenly spread over the part.
        chosen = [samples.calibration[number] for number in numbers[:: -(-len(numbers) // _RUN)]]
        found.append(Fold(frozenset(numbers), chosen, [run(feeds) for feeds in chosen]))
    return found
