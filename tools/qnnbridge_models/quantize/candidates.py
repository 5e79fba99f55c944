"""Choose the types and ranges of a whole model: measure several candidates and take the best.

ONNX Runtime's documented recipe for QNN is one of these candidates, so the chosen candidate is never worse. If QNN
is available, QNN's results decide: two models with 40 dB on the CPU had 33 and 36 dB on QNN.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_host.graph import graphs
from qnnbridge_host.numerics.judge import NO_ERROR_DB
from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_models.accuracy import GOOD_DB, FloatResults, OutputAccuracy, Verdict, lowest_snr, worst
from qnnbridge_models.command_options import QuantizeSettings, ResolvedSettings
from qnnbridge_models.quantize import precision, search
from qnnbridge_models.quantize.faithful import shown, unlike_operators
from qnnbridge_models.quantize.ort_quantizer import (
    WEIGHTED_OPS,
    CalibratedModel,
    Numbers,
    Precision,
    calibrate,
    weights_quantised,
)
from qnnbridge_models.quantize.preparing import prepare_as_documented
from qnnbridge_models.quantize.samples import SampleSets
from qnnbridge_models.quantize.search import FoundPrecision, PrecisionTrial
from qnnbridge_protocol.errors import BridgeError, ModelError

# --- folds ---------------------------------------------------------------------------------------------------
#
# Each candidate is judged several times: calibrated without one fold of the samples, and run on that fold. A single
# split depends on chance: a speech quality model calibrated with fifteen samples had 44 dB on five other samples,
# and 57 dB on ten further samples.

# The held-out samples form one fold; the calibration samples are split into this many further folds.
_PARTS = 3
# Largest number of samples that are run per fold.
_RUN = 10
# With fewer samples outside the calibration set, the verdict is at best "poor". The probability that the samples
# miss the worst quarter of all inputs is 10 % for eight random samples (0.75 to the power of 8), and more than 50 %
# for two.
ENOUGH = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Fold:
    """One fold of the samples.

    Args:
        left_out: indices of the samples that are not used for calibration.
        results: results of the float model for the left-out samples that are compared.
    """

    left_out: Numbers
    results: FloatResults


@dataclasses.dataclass(frozen=True, slots=True)
class FoldsReport:
    """Accuracy of the chosen model in all folds, measured if few samples are held out.

    Args:
        samples: number of compared samples, each run on a model that was not calibrated with it.
        snr_db: SNR of the worst output in each fold.
        verdict: verdict of the worst fold.
        reason: the first output with this verdict, and the cause.
    """

    samples: int
    snr_db: tuple[float, ...]
    verdict: Verdict
    reason: str = ""

    def __str__(self) -> str:
        low, high = (f"{min(ratio, NO_ERROR_DB):.1f}" for ratio in (min(self.snr_db), max(self.snr_db)))
        return f"{len(self.snr_db)} folds of {self.samples} samples: {low} to {high} dB"


def shown_by(verdict: Verdict, samples: int) -> Verdict:
    """Return the verdict that this many samples support: few samples can prove a model bad, but not good."""
    return "not shown" if samples < ENOUGH and verdict in ("exact", "good", "fair") else verdict


class KnownFolds:
    """Cache of the measured accuracy of each candidate in one fold."""

    def __init__(self) -> None:
        self.found: dict[tuple[CalibratedModel, Precision], tuple[OutputAccuracy, ...]] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class CrossValidation:
    """Judge candidates by their mean SNR over all folds.

    Args:
        work: folder for candidate models.
        known: accuracy of candidates measured earlier.
    """

    folds: Sequence[Fold]
    work: Path
    known: KnownFolds = dataclasses.field(default_factory=KnownFolds)

    def snr(self, calibrated: CalibratedModel, precision: Precision) -> float:
        """Return the worst output's SNR on the CPU, averaged over the folds.

        Each fold runs on a model calibrated without its samples. Unlike the minimum, the mean does not depend on a
        single unusual sample.
        """
        return statistics.fmean(_lowest(self._judged(fold, calibrated, precision)) for fold in self.folds)

    def report(self, calibrated: CalibratedModel, precision: Precision) -> FoldsReport:
        """Return the accuracy of one candidate in all folds."""
        folds = [self._judged(fold, calibrated, precision) for fold in self.folds]
        verdict = worst(output.verdict for outputs in folds for output in outputs)
        reasons = [
            f'output "{output.name}": {part.judged.reason or f"SNR {part.judged.snr_db or 0.0:.1f} dB"}'
            for outputs in folds
            for output in outputs
            for part in output.parts
            if part.verdict == verdict
        ]
        samples = sum(len(fold.results.samples) for fold in self.folds)
        return FoldsReport(samples, tuple(map(_lowest, folds)), verdict, next(iter(reasons), ""))

    def _judged(self, fold: Fold, calibrated: CalibratedModel, precision: Precision) -> tuple[OutputAccuracy, ...]:
        one = calibrated.without(fold.left_out)
        key = one, precision
        if key not in self.known.found:
            model = one.write(self.work / "fold.onnx", precision)
            self.known.found[key] = fold.results.measured(fold.results.on_cpu(model))
        return self.known.found[key]

    def within(self, seconds: float, calibrated: CalibratedModel, precision: Precision) -> CrossValidation:
        """Return a copy with all folds, or with only the first if judging all folds would take longer than
        `seconds`.
        """
        if len(self.folds) == 1:
            return self
        begun = time.monotonic()
        first = dataclasses.replace(self, folds=self.folds[:1])
        first.snr(calibrated, precision)
        # The minimum of 1 ms avoids a division by 0: a small model can run in less than the clock's resolution.
        paid = int(seconds / max(time.monotonic() - begun, 1e-3))
        return self if paid >= len(self.folds) else first


def _lowest(outputs: Sequence[OutputAccuracy]) -> float:
    """Return the lowest SNR of a fold; 0 if a useless output has no SNR, for example because its length differs."""
    if any(output.verdict == "useless" and output.snr_db is None for output in outputs):
        return 0.0
    lowest = lowest_snr(outputs)
    return NO_ERROR_DB if lowest is None else lowest


def folds_of(
    samples: SampleSets, compared: FloatResults, by_sample: bool, run: Callable[[Feeds], list[Any]]
) -> list[Fold]:
    """Split the samples into folds; the held-out samples come first.

    Args:
        samples: all samples.
        compared: results of the float model for the held-out samples.
        by_sample: true if the ranges of each sample are stored separately, so that any sample can be left out.
        run: runs the float model on one sample.
    """
    count = len(samples.calibration)
    first = Fold(samples.held_numbers, compared)
    # If no sample is held out, split the calibration samples into one more fold instead.
    parts = min(count, _PARTS + (not samples.held_out))
    if not by_sample or parts < 2:
        return [first]
    found = [first] if samples.held_out else []
    for part in range(parts):
        numbers = range(part, count, parts)
        # Choose at most `_RUN` samples, evenly spread over the part.
        chosen = [samples.calibration[number] for number in numbers[:: -(-len(numbers) // _RUN)]]
        results = dataclasses.replace(compared, samples=chosen, expected=[run(feeds) for feeds in chosen])
        found.append(Fold(frozenset(numbers), results))
    return found


def working_variant(
    calibrated: CalibratedModel, work: Path, reference: FloatResults
) -> tuple[CalibratedModel, list[str]]:
    """Find quantizer settings (float biases, per-tensor weights) with which onnxruntime writes a correct model.

    Return the first correct variant, and report lines about the variants that failed. Raise the error of the first
    variant if none runs.

    Args:
        calibrated: the model in its default variant.
        work: folder for candidate models.
        reference: results of the float model; one of its samples is used to check whether a variant runs.
    """
    per_tensor = dataclasses.replace(calibrated.settings, per_channel=False)
    forms = [("", calibrated), ("biases stay float32", dataclasses.replace(calibrated, float_biases=True))]
    if calibrated.settings.per_channel:
        forms += [
            (
                f"{words + ', and ' if words else ''}weights are quantised per tensor",
                dataclasses.replace(form, settings=per_tensor),
            )
            for words, form in forms
        ]
    index = precision.load_index(calibrated.path)
    failed: list[str] = []
    first: BridgeError | None = None
    unlike: tuple[CalibratedModel, str] | None = None
    for words, form in forms:
        try:
            model = form.write(work / "form.onnx")
            reference.few(1).on_cpu(model)
        except BridgeError as error:
            first = first or error
            failed.append(f"onnxruntime's quantizer fails ({error.cause or error.message})")
            continue
        lines = unlike_operators(index, graphs.load(model, weights=True))
        if not lines:
            return form, [f"{words}: {failed[0]}"] if failed else []
        failed.append(f"onnxruntime's quantizer changes operators ({shown(lines)})")
        unlike = unlike or (form, failed[-1])
    if unlike is not None:
        form, text = unlike
        return form, [
            f"{text}: more bits or samples do not fix this error; use --exclude to keep these nodes in float"
        ]
    assert first is not None
    raise first


# Below `_FAIR_DB`, try 16-bit weights; use them if they gain at least `_WORTH_DB`.
_FAIR_DB, _WORTH_DB = 30.0, 3.0
# Time limit in seconds for finding the weights that must keep 8 bits because QNN does not support them in 16 bits.
_NARROWING_S = 60.0
# Accuracy in dB that a candidate with wider ranges may lose while its SNR stays above `_FAIR_DB`.
_HEADROOM_DB = 1.0
# `_SAME_DB`: treat smaller differences as random. `_BETTER_DB` and `_OTHER_DB`: minimum gains of a candidate that
# changes the type of some weights, or of all weights.
_SAME_DB, _BETTER_DB, _OTHER_DB = 0.1, 0.3, 1.0
# Do not run a candidate on QNN if it is this many dB worse than the best on the CPU: no such candidate was ever
# better on QNN.
_NEAR_DB = 6.0
# Time limit for trying further candidates: each runs all samples, which takes long for a large model.
_CHOOSING_S = 120.0


# This class has no slots, because `cached_property` stores its value in the object's `__dict__`.
@dataclasses.dataclass(frozen=True)
class Candidate:
    """Types and ranges with which the model can be quantised, and the SNR that they reach.

    Args:
        change: report line to add if this candidate is chosen; empty for the default.
        db: mean SNR of the worst output over all folds, on the CPU.
        floats: whether the weights stay float.
    """

    trial: PrecisionTrial
    precision: Precision
    change: str
    db: float
    floats: bool = False

    @functools.cached_property
    def on_qnn(self) -> tuple[bool, float] | None:
        """QNN's result: (all nodes run on QNN, lowest SNR), or None if the model does not run on QNN."""
        return self.trial.placed_on_qnn(self.trial.write(self.precision))

    def on_qnn_unless_worse(self, best: tuple[bool, float]) -> tuple[bool, float] | None:
        """Return QNN's result, but stop after the first samples if they are already worse than `best`."""
        if "on_qnn" in self.__dict__:
            return self.on_qnn
        # Compare results as pairs, so that running all nodes on QNN counts more than any SNR.
        least = (best[0], best[1] - _SAME_DB)
        model = self.trial.write(self.precision)
        return self.trial.placed_on_qnn(model, lambda whole, lowest: (whole, lowest) < least)

    def meets(self, target: float, *, whole: bool) -> bool:
        """Return whether every output has at least `target` dB, on the CPU and, if available, on QNN.

        Args:
            target: SNR in dB.
            whole: also require that all nodes run on QNN.
        """
        if self.trial.on_cpu(self.trial.write(self.precision)) < target:
            return False
        if self.trial.qnn is None:
            return True
        there = self.on_qnn
        return there is not None and there[1] >= target and (there[0] or not whole)


@dataclasses.dataclass(frozen=True, slots=True)
class CandidateChoice:
    """Measures the candidates that the settings allow, within a time limit.

    Args:
        source: float model with fixed sizes, but without other changes.
        untried: descriptions of candidates that were skipped for lack of time.
        failed: descriptions of candidates on which the quantizer failed.
    """

    wished: QuantizeSettings
    settings: ResolvedSettings
    source: Path
    samples: SampleSets
    judge: CrossValidation
    untried: list[str] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)

    def best(self, trial: PrecisionTrial, start: Precision) -> Candidate:
        """Return the best candidate. Of nearly equal candidates, return the first."""
        deadline = time.monotonic() + min(_CHOOSING_S, self.wished.search_timeout_s)
        first = with_headroom(self.judge, trial, start)
        found = [first]
        if self._open:
            for change, calibrated, worth in self._other_weights(trial):
                if time.monotonic() > deadline:
                    self.untried.append(change)
                    continue
                try:
                    one = with_headroom(
                        self.judge, dataclasses.replace(trial, calibrated=calibrated), start, change
                    )
                except BridgeError as error:
                    # Try the other candidates: the quantizer or ONNX Runtime may support their types.
                    self.failed.append(f"{change}: {error.cause or error.message}")
                    continue
                # Compare only the SNR: the candidate has the default's nodes, and so the same placement on QNN.
                if one.db >= max(one.db for one in found) + worth:
                    found.append(one)
            documented = self._as_documented(trial) if self._like_documented else None
            if documented is not None and _may_be_chosen(documented, max(one.db for one in found), trial):
                found.append(documented)
        return self._best_of(found, trial, deadline)

    def _best_of(self, found: list[Candidate], trial: PrecisionTrial, deadline: float) -> Candidate:
        """Choose among the candidates near the best on the CPU; QNN's results decide if QNN is available."""
        where = "on the CPU"
        scores = {number: (True, one.db) for number, one in enumerate(found)}
        # QNN may reverse small differences, so all candidates near the best on the CPU are run on QNN.
        near = [number for number, one in enumerate(found) if one.db >= max(other.db for other in found) - _NEAR_DB]
        # If only the default is near the best, skip QNN here: the final comparison runs the default on QNN.
        if trial.qnn is not None and near != [0]:
            there: dict[int, tuple[bool, float]] = {}
            # Start with the best candidate on the CPU, in case the time runs out.
            for done, number in enumerate(sorted(near, key=lambda number: -found[number].db)):
                one = found[number]
                if done and time.monotonic() > deadline:
                    self.untried.append(f"{one.change or 'int8 weights per channel'} on QNN")
                    continue
                trial.on_progress("trying types of weights on QNN", done, len(near))
                # Measure the default (number 0) on all samples, because its SNR is reported next to the chosen
                # candidate's SNR.
                score = one.on_qnn_unless_worse(max(there.values())) if there and number else one.on_qnn
                if score is not None:
                    there[number] = score
            if not there:
                return found[0]  # no candidate runs on QNN; the final check reports the reason
            scores, where = there, "on QNN"
        most = max(scores.values())
        # Choose the first of nearly equal candidates: the default comes first.
        chosen = min(n for n, (whole, db) in scores.items() if whole == most[0] and db >= most[1] - _SAME_DB)
        if found[chosen].change:
            by = f"{scores[chosen][1]:.1f} dB {where}"
            if 0 in scores:
                by += f", compared with {scores[0][1]:.1f} dB with int8 weights per channel"
            else:
                by += f", compared with {found[0].db:.1f} dB on the CPU with int8 weights per channel"
            return dataclasses.replace(found[chosen], change=f"{found[chosen].change}: {by}")
        return found[chosen]

    @property
    def _open(self) -> bool:
        """True if the type of the weights is open: the user gave none, and the default is int8."""
        return self.wished.weight_type is None and self.settings.weight_type == "int8"

    @property
    def _like_documented(self) -> bool:
        """True if the documented recipe supports everything that the options request."""
        return not (
            self.wished.exclude
            or self.wished.wide
            or self.settings.method != "minmax"
            or self.settings.symmetric_activations
            or self.wished.symmetric_weights
            or self.wished.per_channel
            or not self.settings.activation_type.startswith("u")
        )

    def _other_weights(self, trial: PrecisionTrial) -> list[tuple[str, CalibratedModel, float]]:
        """Return candidates with uint8 weights, which use the type's whole range.

        Each entry is (text for the report, calibrated model, required gain in dB).
        """
        if not self.settings.activation_type.startswith("u") or self.wished.symmetric_weights:
            return []
        found = []
        if any(node.op_type in ("MatMul", "Gemm") for node in trial.index.protos):
            matrices = dataclasses.replace(
                trial.calibrated, settings=dataclasses.replace(trial.calibrated.settings, matrix_type="uint8")
            )
            found.append(("weights of MatMul and Gemm are uint8", matrices, _BETTER_DB))
        if self.wished.per_channel is None:
            per_tensor = dataclasses.replace(trial.calibrated, settings=_documented(self.settings))
            found.append(("weights are uint8, per tensor", per_tensor, _OTHER_DB))
        return found

    def _as_documented(self, trial: PrecisionTrial) -> Candidate | None:
        """Return the documented recipe's candidate; None if the recipe fails on the model."""
        change = "prepared and quantised as in ONNX Runtime's documentation, with uint8 weights per tensor"
        try:
            path = prepare_as_documented(self.source, trial.work)
            settings = _documented(self.settings)
            known = trial.calibrated.model.known
            calibrated = calibrate(path, self.samples, settings, trial.work, trial.on_progress, known)
            other = dataclasses.replace(trial, calibrated=calibrated, index=precision.load_index(path))
            floats = not weights_quantised(other.write(Precision()))
            if floats:
                change += (
                    "; for this model, however, the weights stay float, so the file is large: --weight-type int8 "
                    "quantises them"
                )
            one = with_headroom(self.judge, other, Precision(), change)
            return dataclasses.replace(one, floats=floats)
        except BridgeError:
            return None


def _may_be_chosen(documented: Candidate, others_db: float, trial: PrecisionTrial) -> bool:
    """Return whether the candidate of the documented recipe may be chosen.

    The user asked for quantised weights, so float weights are accepted only if no other candidate is good. If QNN
    does not run all nodes of the float candidate, it is accepted only if every other candidate is poor.
    """
    if not documented.floats or others_db < _FAIR_DB:
        return True
    if others_db >= GOOD_DB or documented.db < others_db + _WORTH_DB:
        return False
    if trial.qnn is None:
        return True
    there = documented.on_qnn
    return there is not None and there[0]


def with_headroom(judge: CrossValidation, trial: PrecisionTrial, start: Precision, change: str = "") -> Candidate:
    """Return the candidate with wider ranges, or with the measured ranges if wider ones cost accuracy.

    Wider ranges leave room for samples with larger values.
    """
    trial.on_progress("trying ranges and types of weights on the CPU", 0, 0)
    plain = Candidate(trial, start, change, judge.snr(trial.calibrated, start))
    wider = trial.calibrated.with_headroom()
    if wider is None:
        return plain
    other = Candidate(dataclasses.replace(trial, calibrated=wider), start, change, judge.snr(wider, start))
    return plain if other.db < plain.db - (_HEADROOM_DB if other.db >= _FAIR_DB else 0.0) else other


def with_enough_bits(
    wished: QuantizeSettings, settings: ResolvedSettings, trial: PrecisionTrial, start: Precision
) -> tuple[Precision, list[str]]:
    """Return (precision, lines for the report). Weights get 16 bits if 8 bits are not accurate enough."""
    if wished.weight_type is not None or settings.wide_weight is None:
        return start, []
    narrow = trial.on_cpu(trial.write(start))
    if narrow >= _FAIR_DB:
        return start, []
    nodes = {node.name for node in trial.index.protos if node.op_type in WEIGHTED_OPS} - start.float_nodes
    wide = start.joined(Precision(wide_weights=frozenset(nodes)))
    try:
        # Use a separate file: other models are written to `candidate.onnx` below.
        wide_model = trial.write(wide, "wide.onnx")
        reached = trial.on_cpu(wide_model)
    except ModelError:
        return start, []  # keep 8 bits: some operators cannot mix per-tensor uint8 with int16
    gain = f"{reached:.1f} dB instead of {narrow:.1f}"
    if reached < narrow + _WORTH_DB:
        return start, []
    if trial.qnn is None:
        return start, [f"weights of 16 bits would give {gain} (--weight-type int16, V73 and newer)"]
    least = (trial.on_qnn(trial.write(start)) or 0.0) + _WORTH_DB
    there = trial.on_qnn(wide_model, least)
    if there is None:
        deadline = time.monotonic() + min(_NARROWING_S, wished.search_timeout_s)
        wide = search.without_refused(trial, FoundPrecision(wide), deadline).precision
        there = trial.on_qnn(trial.write(wide), least)
    if there is None or there < least:
        return start, []
    return wide, [f"weights have 16 bits: {gain} on the CPU, {there:.1f} dB on QNN (V73 and newer)"]


def _documented(settings: ResolvedSettings) -> ResolvedSettings:
    return dataclasses.replace(
        settings, weight_type="uint8", per_channel=False, symmetric_weights=False, matrix_type="uint8"
    )
