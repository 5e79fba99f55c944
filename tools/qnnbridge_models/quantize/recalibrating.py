"""The comparison of the chosen model, and its last step: it is calibrated with the held-out samples, too.

A model without them has narrower ranges than one of all samples, as the recipe of ONNX Runtime's documentation
makes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qnnbridge_host.engine import cpu
from qnnbridge_models.accuracy import (
    GOOD_DB,
    ColumnGroups,
    OutputAccuracy,
    Verdict,
    lowest_snr,
    measure,
    worst,
)
from qnnbridge_models.progress import OnProgress, phase
from qnnbridge_models.quantize.ort_quantizer import ON_CPU, QUANTIZED, CalibratedModel
from qnnbridge_models.quantize.qnn_check import QnnCheck, QnnRunner
from qnnbridge_models.quantize.samples import SampleSets
from qnnbridge_models.quantize.search import FoundPrecision, PrecisionTrial
from qnnbridge_protocol.errors import ModelError, OrtError

# A range that is a tenth wider costs 0.8 dB, and keeps the next loud sample from being cut off. Where the model
# stays good, a third is no loss either.
_LOST_DB, _LOST_OF_GOOD_DB = 1.0, 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A quantised model against the float one, on the CPU and on QNN if that was wanted."""

    outputs: tuple[OutputAccuracy, ...]
    qnn: QnnCheck | None

    @property
    def lowest(self) -> dict[str, float]:
        """The SNR of the worst output by place, where it has one."""
        there = self.qnn.against_float if self.qnn is not None else ()
        found = {"the CPU": lowest_snr(self.outputs), "QNN": lowest_snr(there)}
        return {where: snr for where, snr in found.items() if snr is not None}

    @property
    def verdicts(self) -> list[Verdict]:
        there = self.qnn.verdict if self.qnn is not None else None
        return [worst(one.verdict for one in self.outputs), *([] if there is None else [there])]


@dataclasses.dataclass(frozen=True, slots=True)
class Comparer:
    """Compares quantised models with the float one over the same samples.

    Args:
        expected: what the float model gives for them.
        groups: columns of outputs that are judged by themselves.
        qnn: runs them there; the check that says why it cannot; None if none is wanted.
    """

    samples: SampleSets
    names: Sequence[str]
    expected: Sequence[Sequence[Any]]
    groups: ColumnGroups
    qnn: QnnRunner | QnnCheck | None
    on_progress: OnProgress

    def compare(self, model: Path) -> Comparison:
        """Raises `ModelError` if the model does not run on the CPU."""
        self.on_progress("comparing", 0, 0)
        found = self._on_cpu(model)
        check = self.qnn
        if isinstance(check, QnnRunner):
            self.on_progress("running on QNN", 0, 0)
            check = check.check(model, self.samples.compared, self.names, self.expected, found, self.groups)
        return Comparison(measure(self.names, self.expected, found, self.groups), check)

    def _on_cpu(self, model: Path) -> list[list[Any]]:
        """As the file says: optimised for the CPU, quantised operators saturate on processors without VNNI."""
        try:
            with phase(ON_CPU):
                return cpu.run_all(model, QUANTIZED, self.samples.compared, self.names)
        except OrtError as error:
            raise ModelError(
                "onnxruntime's quantizer wrote a model that does not run. Nothing was written.",
                cause=error.cause,
                fix="Try --per-tensor or 8-bit types; or export the model again with a newer opset (17 to 21).",
            ) from None


@dataclasses.dataclass(frozen=True, slots=True)
class Recalibration:
    """The model calibrated with all samples, beside the one that was compared.

    Args:
        kept: it is the model that was written.
        samples: number of those that calibrate it.
        snr_db: of the worst output over the compared samples, which it has seen, by place.
        reason: why it was not kept.
    """

    kept: bool
    samples: int
    snr_db: dict[str, float]
    reason: str = ""

    def document(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def words(self) -> str:
        """As text, for the report."""
        has = " and ".join(f"{snr:.1f} dB on {where}" for where, snr in self.snr_db.items())
        if not self.kept:
            return f"not calibrated with all {self.samples} samples: {self.reason}"
        seen = f"; on those compared, which it has seen now, it has {has}" if has else ""
        return f"after the comparison the file was calibrated with all {self.samples} samples{seen}"


def with_all_samples(
    trial: PrecisionTrial, found: FoundPrecision, target: float | None, comparer: Comparer, before: Comparison
) -> tuple[CalibratedModel, Recalibration | None]:
    """The model to write, and how it is with all samples; None if none was held out.

    Args:
        trial: with the chosen calibration.
        before: how the model is without the samples that were held out.
    """
    if not comparer.samples.held_out:
        return trial.calibrated, None
    every = dataclasses.replace(trial, calibrated=trial.calibrated.without(frozenset()))
    # It did not run on QNN before: only the CPU can say whether something is lost.
    if before.qnn is not None and before.qnn.placement is None:
        comparer = dataclasses.replace(comparer, qnn=None)
        every = dataclasses.replace(every, qnn=None)
    model = every.write(found.precision)
    after = comparer.compare(model)
    reason = _lost(before, after)
    if not reason and target is not None and found.reached and not _reaches(every, model, target):
        reason = f"it would miss the target of {target:g} dB"
    recalibration = Recalibration(not reason, len(comparer.samples.every), after.lowest, reason)
    return (trial if reason else every).calibrated, recalibration


def _lost(before: Comparison, after: Comparison) -> str:
    """Why the second is not to be taken; empty if it is as good."""
    for where, snr in before.lowest.items():
        there = after.lowest.get(where)
        if there is None or there < snr - (_LOST_OF_GOOD_DB if there >= GOOD_DB else _LOST_DB):
            has = "no result" if there is None else f"{there:.1f} dB instead of {snr:.1f}"
            return f"it would have {has} on {where}"
    if before.qnn is not None and after.qnn is not None and before.qnn.all_on_qnn and not after.qnn.all_on_qnn:
        return "QNN does not take all of it then"
    # By each verdict for itself: one output may get worse while the lowest SNR stays.
    if any(worst(pair) != pair[0] for pair in zip(before.verdicts, after.verdicts, strict=True)):
        return "an output would be worse"
    return ""


def _reaches(trial: PrecisionTrial, model: Path, target: float) -> bool:
    if trial.on_cpu(model) < target:
        return False
    return trial.qnn is None or (trial.on_qnn(model, target) or 0.0) >= target
