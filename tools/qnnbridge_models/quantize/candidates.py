"""The types and ranges of a model as a whole: a few ways to quantise it are measured, and the best one is taken.

One of the ways is the recipe of ONNX Runtime's documentation for QNN, so that the default is never worse than it.
What QNN computes decides where one is at hand: two models with 40 dB on the CPU had 33 and 36 dB there.
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
# One way of quantising is judged several times: calibrated without a part of the samples, and run on that part. One
# split is one draw: a model of speech quality had 44 dB on five samples with ranges that the other fifteen gave it,
# and 57 on ten others.

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
        results: what the float model gives for those of them that are run.
    """

    left_out: Numbers
    results: FloatResults


@dataclasses.dataclass(frozen=True, slots=True)
class FoldsReport:
    """The chosen model in all folds, where few samples are held out.

    Args:
        samples: that were compared, each by a model that it did not calibrate.
        snr_db: of the worst output in each fold.
        verdict: of the worst fold.
        reason: which output has this verdict there, and why.
    """

    samples: int
    snr_db: tuple[float, ...]
    verdict: Verdict
    reason: str = ""

    def __str__(self) -> str:
        low, high = (f"{min(ratio, NO_ERROR_DB):.1f}" for ratio in (min(self.snr_db), max(self.snr_db)))
        return f"{len(self.snr_db)} folds of {self.samples} samples: {low} to {high} dB"


def shown_by(verdict: Verdict, samples: int) -> Verdict:
    """A verdict from this many samples that did not calibrate: a few prove what is bad, and nothing good."""
    return "not shown" if samples < ENOUGH and verdict in ("exact", "good", "fair") else verdict


class KnownFolds:
    """How ways of quantising were in a fold."""

    def __init__(self) -> None:
        self.found: dict[tuple[CalibratedModel, Precision], tuple[OutputAccuracy, ...]] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class CrossValidation:
    """Judges ways of quantising by all its folds.

    Args:
        work: folder for candidates.
        known: how the ways were that were judged before.
    """

    folds: Sequence[Fold]
    work: Path
    known: KnownFolds = dataclasses.field(default_factory=KnownFolds)

    def snr(self, calibrated: CalibratedModel, precision: Precision) -> float:
        """The SNR on the CPU of the worst output, in samples that do not calibrate: the mean of the folds.

        The lowest of them is that of the oddest sample, by which a choice is chance.
        """
        return statistics.fmean(_lowest(self._judged(fold, calibrated, precision)) for fold in self.folds)

    def report(self, calibrated: CalibratedModel, precision: Precision) -> FoldsReport:
        """All folds of one way of quantising."""
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
        """With as many folds as can be judged in that time, by what the first of them takes."""
        if len(self.folds) == 1:
            return self
        begun = time.monotonic()
        first = dataclasses.replace(self, folds=self.folds[:1])
        first.snr(calibrated, precision)
        # Never 0: a small model takes less than the clock shows.
        paid = int(seconds / max(time.monotonic() - begun, 1e-3))
        return self if paid >= len(self.folds) else first


def _lowest(outputs: Sequence[OutputAccuracy]) -> float:
    """The lowest SNR of a fold; 0 where an output is useless that has none, as one of another length."""
    if any(output.verdict == "useless" and output.snr_db is None for output in outputs):
        return 0.0
    lowest = lowest_snr(outputs)
    return NO_ERROR_DB if lowest is None else lowest


def folds_of(
    samples: SampleSets, compared: FloatResults, by_sample: bool, run: Callable[[Feeds], list[Any]]
) -> list[Fold]:
    """The held-out samples first.

    Args:
        compared: what the float model gives for the compared samples; `run` gives it for others.
        by_sample: any samples can be left out.
    """
    count = len(samples.calibration)
    first = Fold(samples.held_numbers, compared)
    # Where none is held out, one part more takes the place of that fold.
    parts = min(count, _PARTS + (not samples.held_out))
    if not by_sample or parts < 2:
        return [first]
    found = [first] if samples.held_out else []
    for part in range(parts):
        numbers = range(part, count, parts)
        # At most `_RUN` of them, evenly spread over the part.
        chosen = [samples.calibration[number] for number in numbers[:: -(-len(numbers) // _RUN)]]
        results = dataclasses.replace(compared, samples=chosen, expected=[run(feeds) for feeds in chosen])
        found.append(Fold(frozenset(numbers), results))
    return found


def working_form(
    calibrated: CalibratedModel, work: Path, reference: FloatResults
) -> tuple[CalibratedModel, list[str]]:
    """Return the first form that the quantizer can write and that computes the float model but for rounding.

    Also what the report says of the forms before it. Raises the error of the first form if none runs.

    Args:
        work: folder for candidates.
        reference: one of its samples shows whether a form runs.
    """
    per_tensor = dataclasses.replace(calibrated.settings, per_channel=False)
    forms = [("", calibrated), ("biases stay float32", dataclasses.replace(calibrated, float_biases=True))]
    if calibrated.settings.per_channel:
        forms += [
            (
                f"{words + ', and ' if words else ''}weights have one scale each",
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
        failed.append(f"onnxruntime's quantizer writes other operators ({shown(lines)})")
        unlike = unlike or (form, failed[-1])
    if unlike is not None:
        form, text = unlike
        return form, [f"{text}: a loss there is no matter of bits or samples; --exclude keeps these nodes in float"]
    assert first is not None
    raise first


# Below it, weights get 16 bits where those are worth as much.
_FAIR_DB, _WORTH_DB = 30.0, 3.0
# For finding the weights that QNN does not take in 16 bits.
_NARROWING_S = 60.0
# What wider ranges may cost of a model that is good with them.
_HEADROOM_DB = 1.0
# Less is chance; what makes another type of some, and of all weights worth it.
_SAME_DB, _BETTER_DB, _OTHER_DB = 0.1, 0.3, 1.0
# QNN was never seen to turn a larger difference on the CPU round.
_NEAR_DB = 6.0
# No further way is tried after it: a large model has its samples run once for each.
_CHOOSING_S = 120.0


# Without slots: `cached_property` keeps its value in the object's `__dict__`.
@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to quantise the model.

    Args:
        change: what the report says of it if it is taken; empty for the default.
        db: of the worst output, on the CPU, by all folds.
        floats: the weights stay float.
    """

    trial: PrecisionTrial
    precision: Precision
    change: str
    db: float
    floats: bool = False

    @functools.cached_property
    def on_qnn(self) -> tuple[bool, float] | None:
        """Whether QNN takes every node, and the lowest SNR there; None if it does not run."""
        return self.trial.placed_on_qnn(self.trial.write(self.precision))

    def beside(self, best: tuple[bool, float]) -> tuple[bool, float] | None:
        """`on_qnn`; of the first samples alone where this one cannot be chosen beside the best so far."""
        # Measured already.
        if "on_qnn" in self.__dict__:
            return self.on_qnn
        # Compared as pairs: that QNN takes every node comes before any number of dB.
        least = (best[0], best[1] - _SAME_DB)
        model = self.trial.write(self.precision)
        return self.trial.placed_on_qnn(model, lambda whole, lowest: (whole, lowest) < least)

    def meets(self, target: float, *, whole: bool) -> bool:
        """Whether every output has this many dB, on the CPU and on QNN where that is available.

        whole: QNN also has to take every node.
        """
        if self.trial.on_cpu(self.trial.write(self.precision)) < target:
            return False
        if self.trial.qnn is None:
            return True
        there = self.on_qnn
        return there is not None and there[1] >= target and (there[0] or not whole)


@dataclasses.dataclass(frozen=True, slots=True)
class CandidateChoice:
    """Measures the ways that the settings leave open, within a limit of time.

    Args:
        source: the float model of fixed sizes, before anything was done to it.
        untried: what there was no time for, as text.
        failed: what the quantizer fails on, as text.
    """

    wished: QuantizeSettings
    settings: ResolvedSettings
    source: Path
    samples: SampleSets
    judge: CrossValidation
    untried: list[str] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)

    def best(self, trial: PrecisionTrial, start: Precision) -> Candidate:
        """The way that measures best; the first one among those that are nearly the same."""
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
                    # The quantizer, or ONNX Runtime, fails on these types alone.
                    self.failed.append(f"{change}: {error.cause or error.message}")
                    continue
                # The same nodes, so that QNN has no reason to do otherwise.
                if one.db >= max(one.db for one in found) + worth:
                    found.append(one)
            documented = self._as_documented(trial) if self._like_documented else None
            if documented is not None and _of_use(documented, max(one.db for one in found), trial):
                found.append(documented)
        return self._best_of(found, trial, deadline)

    def _best_of(self, found: list[Candidate], trial: PrecisionTrial, deadline: float) -> Candidate:
        """By QNN, where one is at hand, among those that are near to each other on the CPU."""
        where = "on the CPU"
        scores = {number: (True, one.db) for number, one in enumerate(found)}
        # A small difference on the CPU may turn round on QNN, so all that are near are tried there.
        near = [number for number, one in enumerate(found) if one.db >= max(other.db for other in found) - _NEAR_DB]
        # If only the default is near there is nothing to decide: it runs on QNN later, in the comparison.
        if trial.qnn is not None and near != [0]:
            there: dict[int, tuple[bool, float]] = {}
            # The best on the CPU first, should the time run out.
            for done, number in enumerate(sorted(near, key=lambda number: -found[number].db)):
                one = found[number]
                if done and time.monotonic() > deadline:
                    self.untried.append(f"{one.change or 'int8 weights per channel'} on QNN")
                    continue
                trial.on_progress("trying types of weights on QNN", done, len(near))
                # That of the first one is shown beside that of the chosen one.
                score = one.beside(max(there.values())) if there and number else one.on_qnn
                if score is not None:
                    there[number] = score
            if not there:
                return found[0]  # the check on QNN says why it does not run
            scores, where = there, "on QNN"
        most = max(scores.values())
        # The first of those that are nearly the same: the default comes first.
        chosen = min(n for n, (whole, db) in scores.items() if whole == most[0] and db >= most[1] - _SAME_DB)
        if found[chosen].change:
            by = f"{scores[chosen][1]:.1f} dB {where}"
            if 0 in scores:
                by += f", {scores[0][1]:.1f} with int8 weights per channel"
            else:
                by += f"; {found[0].db:.1f} on the CPU with int8 weights per channel"
            return dataclasses.replace(found[chosen], change=f"{found[chosen].change}: {by}")
        return found[chosen]

    @property
    def _open(self) -> bool:
        """The type of the weights is left to the choice."""
        return self.wished.weight_type is None and self.settings.weight_type == "int8"

    @property
    def _like_documented(self) -> bool:
        """Nothing is asked for that the recipe does not do."""
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
        """Weights in uint8, which uses its range whole, and by how much they have to be better."""
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
        """What the recipe makes of the model; None if it fails on it."""
        change = "prepared and quantised as ONNX Runtime's documentation does it, with uint8 weights per tensor"
        try:
            path = prepare_as_documented(self.source, trial.work)
            settings = _documented(self.settings)
            known = trial.calibrated.model.known
            calibrated = calibrate(path, self.samples, settings, trial.work, trial.on_progress, known)
            other = dataclasses.replace(trial, calibrated=calibrated, index=precision.load_index(path))
            floats = not weights_quantised(other.write(Precision()))
            if floats:
                change += "; the weights stay float, so the file is large (--weight-type int8 quantises them)"
            one = with_headroom(self.judge, other, Precision(), change)
            return dataclasses.replace(one, floats=floats)
        except BridgeError:
            return None


def _of_use(documented: Candidate, others_db: float, trial: PrecisionTrial) -> bool:
    """Float weights are better than any, and not what was asked for: only where the others are not good. Where QNN
    leaves a part of such a model to the CPU, the others have to be poor."""
    if not documented.floats or others_db < _FAIR_DB:
        return True
    if others_db >= GOOD_DB or documented.db < others_db + _WORTH_DB:
        return False
    if trial.qnn is None:
        return True
    there = documented.on_qnn
    return there is not None and there[0]


def with_headroom(judge: CrossValidation, trial: PrecisionTrial, start: Precision, change: str = "") -> Candidate:
    """With wider ranges, for samples louder than these, unless that costs something here."""
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
    """Weights of 16 bits, if those of 8 alone make the model bad; and what is said of it."""
    if wished.weight_type is not None or settings.wide_weight is None:
        return start, []
    narrow = trial.on_cpu(trial.write(start))
    if narrow >= _FAIR_DB:
        return start, []
    nodes = {node.name for node in trial.index.protos if node.op_type in WEIGHTED_OPS} - start.float_nodes
    wide = start.joined(Precision(wide_weights=frozenset(nodes)))
    try:
        # A file of its own: `candidate.onnx` is written again below.
        wide_model = trial.write(wide, "wide.onnx")
        reached = trial.on_cpu(wide_model)
    except ModelError:
        return start, []  # uint8 per tensor beside int16, for some operators
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
