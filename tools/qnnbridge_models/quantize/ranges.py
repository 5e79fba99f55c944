"""The ranges of a float model's tensors, measured so that samples can be left out of them again.

The samples that are held out for the comparison are measured with the others: without them the model is compared,
and with them it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_models.progress import OnProgress

CALIBRATING = "calibrating"
# Of 16-bit activations. A speech detector that was calibrated with 190 samples had 24 dB in one ten of 60 others,
# and 48 to 69 in the rest: a sound was louder than all before.
_HEADROOM = 1.5
# Numbers of samples, in the order in which they were measured.
Numbers = frozenset[int]


class MeasuredRanges(Protocol):
    """Of every tensor, by samples."""

    @property
    def by_sample(self) -> bool:
        """Any samples can be left out, and the ranges can be widened."""
        ...

    def of(self, left_out: Numbers, widened: bool) -> Any:
        """The quantizer's `TensorsData`, without these samples."""
        ...


class ExtremesBySample:
    """The lowest and the highest value of each tensor in each sample.

    Args:
        ends: of each sample, by tensor.
        limited: tensors that end at the limits of a Clip. The quantizer takes the Clip away, so their ranges do its
            work.
    """

    by_sample = True

    def __init__(
        self,
        ends: Sequence[Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]],
        limited: frozenset[str] = frozenset(),
    ) -> None:
        self._count, self._limited = len(ends), limited
        self._lows = {name: np.stack([one[name][0] for one in ends]) for name in ends[0]}
        self._highs = {name: np.stack([one[name][1] for one in ends]) for name in ends[0]}

    def of(self, left_out: Numbers, widened: bool) -> Any:
        from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData

        kept = [number for number in range(self._count) if number not in left_out]
        ends = {}
        for name, lows in self._lows.items():
            # fmin and fmax pass over NaN: a tensor that is NaN in one sample keeps the range of the others.
            low, high = np.fmin.reduce(lows[kept]), np.fmax.reduce(self._highs[name][kept])
            wide = widened and name not in self._limited
            ends[name] = (_widened(low), _widened(high)) if wide else (low, high)
        return TensorsData(CalibrationMethod.MinMax, ends)


def _widened(end: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Not beyond the largest number of the type, which would become infinite.
    most = np.finfo(end.dtype).max / _HEADROOM
    return np.asarray(np.clip(end, -most, most) * _HEADROOM, end.dtype)


class ThresholdRanges:
    """Of histograms, which cannot be taken apart: without the held-out samples, and of all.

    Args:
        held_out: the numbers of these samples.
    """

    by_sample = False

    def __init__(self, kept: Any, held_out: Numbers, every: Any) -> None:
        self._found = {held_out: kept, frozenset(): every}

    def of(self, left_out: Numbers, widened: bool) -> Any:
        if widened:
            raise ValueError("histograms are not widened")
        return self._found[left_out]


class CalibrationReader:
    """The quantizer's `CalibrationDataReader`: samples one after the other, and how many are done."""

    def __init__(self, samples: Sequence[Feeds], on_progress: OnProgress) -> None:
        self._samples = samples
        self._on_progress = on_progress
        self._next, self._end = 0, len(samples)

    def __len__(self) -> int:
        return len(self._samples)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._next, self._end = start_index, min(end_index, len(self._samples))

    def get_next(self) -> Feeds | None:
        self._on_progress(CALIBRATING, self._next, len(self._samples))
        if self._next >= self._end:
            return None
        self._next += 1
        return self._samples[self._next - 1]


def extremes(calibrator: Any, reader: CalibrationReader, limited: frozenset[str]) -> MeasuredRanges:
    """Runs all samples through onnxruntime's MinMaxCalibrater, which merges what it finds, one by one."""
    ends = []
    for number in range(len(reader)):
        reader.set_range(number, number + 1)
        # Otherwise the calibrater merges the sample with those before.
        calibrator.calibrate_tensors_range = None
        calibrator.collect_data(reader)
        found = calibrator.compute_data()
        ends.append({name: found[name].range_value for name in found})
    return ExtremesBySample(ends, limited)


def thresholds(calibrator: Any, reader: CalibrationReader, held_out: Numbers) -> MeasuredRanges:
    """Runs all samples through a calibrator of histograms, which keeps every tensor of what it is given at once."""
    kept = None
    for number in range(len(reader)):
        # The held-out samples come last (`SampleSets.every`): until the first of them the histograms are without
        # them.
        if number in held_out and kept is None:
            kept = calibrator.compute_data()
        reader.set_range(number, number + 1)
        calibrator.collect_data(reader)
    every = calibrator.compute_data()
    return ThresholdRanges(every if kept is None else kept, held_out, every)
