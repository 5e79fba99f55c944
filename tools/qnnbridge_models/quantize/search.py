"""Search for mixed precision: choose layers that get 16 bits or stay float, so that every output meets a target.

The search starts on the CPU, where rounding is the only cause of errors: the noisiest layers are raised by one step
(8 bits, 16 bits, float) until the target is met. If QNN is available, the search continues there, because QNN may
compute single quantised operators differently: all nodes become float, and groups of nodes are quantised again as
long as the target is met.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_models.accuracy import FloatResults, fives, lowest_of_folds
from qnnbridge_models.command_options import ResolvedSettings
from qnnbridge_models.progress import OnProgress
from qnnbridge_models.quantize.ort_quantizer import WEIGHTED_OPS, CalibratedModel, Precision
from qnnbridge_models.quantize.precision import LayerError, PartialModels, layers_of, noise_of_db, noisiest
from qnnbridge_models.quantize.qnn_check import QnnRunner
from qnnbridge_protocol.errors import BridgeError, ModelError
from qnnbridge_protocol.specs import Placement

_ROUNDS = 6
# Limits for the number of runs of partly quantised models on the CPU, and of candidates on QNN.
_RUNS_ON_CPU, _RUNS_ON_QNN = 160, 24
# Number of samples used to find the noisy layers. The target is checked with all samples, most of which did not
# influence the choice of layers. With three samples, which contained only a pause and a vowel, a speech detector
# met the target on these samples, but was 5 dB worse on the rest. With the same 20 samples for choice and check, it
# missed 40 dB by 5 dB on other samples.
_SAMPLES = 20
# Largest number of samples on QNN, where a sample takes longer.
_SAMPLES_ON_QNN = 40
# Fraction of the allowed noise that quantised layers may cause; the rest is a margin, because the noise of single
# layers does not add up exactly.
_SHARE = 0.7
# Do not change weights or activations that cause less than this fraction of their layer's noise.
_MINOR = 0.1
# QNN computes floats in half precision, which limits the SNR. The target must stay this far below the float model's
# SNR: a closer target would leave every node float.
_NEAR_LIMIT_DB = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class FoundPrecision:
    """Result of the search.

    Args:
        precision: the chosen precision.
        layers: cost of quantising each layer alone, the worst first.
        reached: the target is met, also on QNN if available.
        notes: reasons why the target is not met.
    """

    precision: Precision
    layers: tuple[LayerError, ...] = ()
    reached: bool = True
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PrecisionTrial:
    """Data needed to write and measure candidate models of different precision.

    Args:
        work: folder for candidate models.
        reference: results of the float model, to compare candidates with.
    """

    index: ModelIndex
    calibrated: CalibratedModel
    settings: ResolvedSettings
    work: Path
    reference: FloatResults
    qnn: QnnRunner | None
    on_progress: OnProgress

    def write(self, precision: Precision, name: str = "candidate.onnx") -> Path:
        return self.calibrated.write(self.work / name, precision)

    def on_cpu(self, model: Path) -> float:
        """Return the lowest SNR on the CPU."""
        return self.reference.lowest(self.reference.on_cpu(model))

    def on_qnn(self, model: Path, least: float = -math.inf) -> float | None:
        """Return the lowest SNR on QNN; None if the model does not run.

        If the SNR is below `least`, the remaining samples were not run.
        """
        there = self.placed_on_qnn(model, lambda _, lowest: lowest < least)
        return None if there is None else there[1]

    def runs_on_qnn(self, model: Path) -> bool:
        """Return whether the model runs on QNN with one sample."""
        return self.placed_on_qnn(model, lambda *_: True) is not None

    def placed_on_qnn(
        self, model: Path, hopeless: Callable[[bool, float], bool] = lambda *_: False
    ) -> tuple[bool, float] | None:
        """Return (all nodes run on QNN, lowest SNR), or None if the model does not run on QNN.

        Args:
            model: path of the candidate.
            hopeless: called after each sample with the result so far; returning true ends the runs. Samples are
                judged in groups of five and the lowest SNR never rises, so a model below a limit stays below it.
        """
        assert self.qnn is not None
        few = self.reference.few(_SAMPLES_ON_QNN)
        folds = fives(len(few.samples))
        order = [number for fold in folds for number in fold]
        ends = dict(zip(itertools.accumulate(map(len, folds)), folds, strict=True))
        whole, lowest = False, math.inf

        def enough(placement: Placement, found: Sequence[Sequence[Any]]) -> bool:
            nonlocal whole, lowest
            whole = not placement.cpu_nodes and not placement.other_nodes
            fold = ends.get(len(found))
            if fold is not None:
                outputs, there = found[-len(fold) :], [few.expected[number] for number in fold]
                lowest = min(lowest, lowest_of_folds(few.names, there, outputs, few.groups))
            return hopeless(whole, lowest)

        try:
            self.qnn.run(model, [few.samples[number] for number in order], few.names, enough)
        except BridgeError:
            return None
        return whole, lowest

    def partial(self, model: Path) -> PartialModels:
        return PartialModels(self.index, graphs.load(model, weights=True), self.reference.few(_SAMPLES))


def layer_report(trial: PrecisionTrial, precision: Precision) -> tuple[LayerError, ...]:
    """Return the cost of quantising each layer alone, the worst first. Layers in groups that cost little are not
    measured alone, and are omitted.
    """
    return tuple(_noisiest(trial, trial.partial(trial.write(precision)), 0.0))


def reach(trial: PrecisionTrial, start: Precision, target: float, timeout_s: float) -> FoundPrecision:
    """Give more bits to as few layers as possible until every output has `target` dB."""
    deadline = time.monotonic() + timeout_s
    found = _on_cpu(trial, start, target, deadline)
    if trial.qnn is not None:
        found = _on_qnn(trial, found, target, deadline)
    if found.reached or time.monotonic() <= deadline:
        return found
    cut = (
        f"The search ended at its limit of {timeout_s:g} s. A longer search (--search-timeout) may find a better "
        "choice."
    )
    return dataclasses.replace(found, notes=(*found.notes, cut))


def _on_cpu(trial: PrecisionTrial, start: Precision, target: float, deadline: float) -> FoundPrecision:
    precision = start
    layers: tuple[LayerError, ...] = ()
    model = trial.write(precision)
    for round_number in range(_ROUNDS):
        reached = trial.on_cpu(model)
        if reached >= target:
            return FoundPrecision(precision, layers)
        if time.monotonic() > deadline:
            break
        partial = trial.partial(model)
        # Halve the allowed noise in each round, because the model of the previous round did not reach the target.
        allowed = noise_of_db(target) * _SHARE / 2**round_number
        errors = _noisiest(trial, partial, allowed, deadline)
        # Keep the layers of the first round for the report: in later rounds some layers already have more bits.
        layers = layers or tuple(errors)
        stepped = _stepped_up(trial, precision, errors, partial)
        # No layer can be raised further, so another round would give the same result.
        if stepped == precision:
            break
        precision, model = _written(trial, precision, stepped, errors)
    reached = trial.on_cpu(model)
    note = f"The quantised model has {reached:.1f} dB on the CPU; {target:g} dB were requested."
    return FoundPrecision(precision, layers, reached >= target, () if reached >= target else (note,))


def _noisiest(
    trial: PrecisionTrial, partial: PartialModels, allowed: float, deadline: float = math.inf
) -> list[LayerError]:
    """Call `noisiest` and report each run as progress."""
    done = 0

    def snr_of(tensors: frozenset[str]) -> float:
        nonlocal done
        done += 1
        trial.on_progress("looking for the noisiest layers", min(done, _RUNS_ON_CPU), _RUNS_ON_CPU)
        return partial.snr_of(tensors)

    return noisiest(layers_of(trial.index), snr_of, allowed, _RUNS_ON_CPU, deadline)


def _stepped_up(
    trial: PrecisionTrial, precision: Precision, errors: Sequence[LayerError], partial: PartialModels
) -> Precision:
    """Raise the precision of these layers by one step, except for weights and outputs that cause little noise."""
    for error in errors:
        # Measure weights and outputs separately, and skip those that cause little of the noise.
        layer = error.layer
        least = error.noise * _MINOR
        if layer.weights and noise_of_db(partial.snr_of(layer.weights)) >= least:
            precision = precision.joined(_more_for_weights(trial, precision, layer.node, layer.op))
        if noise_of_db(partial.snr_of(layer.outputs)) >= least:
            precision = precision.joined(_more_for_outputs(trial, precision, layer.outputs))
    return precision


def _more_for_weights(trial: PrecisionTrial, precision: Precision, node: str, op: str) -> Precision:
    wide = trial.settings.wide_weight is not None and op in WEIGHTED_OPS
    if wide and node not in precision.wide_weights:
        return Precision(wide_weights=frozenset((node,)))
    return Precision(float_nodes=frozenset((node,)))


def _more_for_outputs(trial: PrecisionTrial, precision: Precision, outputs: frozenset[str]) -> Precision:
    if trial.settings.wide_activation is not None and not outputs <= precision.wide_tensors:
        return Precision(wide_tensors=outputs)
    return _float_around(trial, outputs)


def _float_around(trial: PrecisionTrial, outputs: frozenset[str]) -> Precision:
    # For a tensor to stay float, its producer and all its consumers must stay float.
    touching = {maker.name for name in outputs if (maker := trial.index.maker(name)) is not None}
    touching |= {node.name for name in outputs for node in trial.index.uses(name)}
    return Precision(float_nodes=frozenset(touching))


def _written(
    trial: PrecisionTrial, before: Precision, stepped: Precision, errors: Sequence[LayerError]
) -> tuple[Precision, Path]:
    """Write the candidate. If the quantizer cannot mix 8 and 16 bits, use float instead of 16 bits."""
    try:
        return stepped, trial.write(stepped)
    except ModelError:
        nodes = set(stepped.wide_weights - before.wide_weights)
        for error in errors:
            nodes |= _float_around(trial, error.layer.outputs).float_nodes
        instead = before.joined(Precision(float_nodes=frozenset(nodes)))
        return instead, trial.write(instead)


def _on_qnn(trial: PrecisionTrial, found: FoundPrecision, target: float, deadline: float) -> FoundPrecision:
    trial.on_progress("trying it on QNN", 0, 0)
    there = trial.on_qnn(trial.write(found.precision))
    # If QNN does not run the model, keep 16-bit weights only for the operators for which QNN supports them.
    if there is None:
        found = without_refused(trial, found, deadline)
        there = trial.on_qnn(trial.write(found.precision))
    if there is not None and there >= target:
        return found
    # The float model's SNR on QNN is the upper limit for all quantised models.
    limit = trial.on_qnn(trial.calibrated.path)
    goal = target if limit is None else min(target, limit - _NEAR_LIMIT_DB)
    notes = found.notes
    if limit is not None and limit < target:
        notes = (
            *notes,
            f"On QNN even the float model has only {limit:.1f} dB, because QNN computes it in float16.",
        )
    if there is not None and there >= goal:
        return dataclasses.replace(found, reached=False, notes=notes)
    every = [node.name for node in trial.index.protos if node.name not in found.precision.float_nodes]
    meets = _meeting(trial, lambda part: found.precision.joined(Precision(frozenset(part))), goal)
    kept = smallest(every, meets, _RUNS_ON_QNN, deadline)
    if kept is None:
        return dataclasses.replace(found, reached=False, notes=notes)
    precision = found.precision.joined(Precision(frozenset(kept)))
    final = trial.on_qnn(trial.write(precision))
    return FoundPrecision(precision, found.layers, final is not None and final >= target, notes)


def without_refused(trial: PrecisionTrial, found: FoundPrecision, deadline: float) -> FoundPrecision:
    """Replace 16 bits by float where QNN cannot finalize the graph, e.g. for a Conv with int16 weights and stride
    4.
    """
    wide = [*sorted(found.precision.wide_weights), *sorted(found.precision.wide_tensors)]

    def narrowed(part: Sequence[str]) -> Precision:
        gone = frozenset(part)
        touching = _float_around(trial, gone & found.precision.wide_tensors).float_nodes
        return Precision(
            found.precision.float_nodes | (gone & found.precision.wide_weights) | touching,
            found.precision.wide_tensors - gone,
            found.precision.wide_weights - gone,
        )

    kept = smallest(wide, _meeting(trial, narrowed, None), _RUNS_ON_QNN, deadline) if wide else None
    return found if kept is None else dataclasses.replace(found, precision=narrowed(kept))


def _meeting(
    trial: PrecisionTrial, precision_of: Callable[[Sequence[str]], Precision], goal: float | None
) -> Callable[[Sequence[str]], bool]:
    """Return a function that checks whether a model of the given precision runs on QNN with at least `goal` dB."""
    tried = 0

    def meets(part: Sequence[str]) -> bool:
        nonlocal tried
        tried += 1
        trial.on_progress("looking for nodes that QNN computes differently", tried, _RUNS_ON_QNN)
        try:
            model = trial.write(precision_of(part))
        except ModelError:
            return False
        if goal is None:
            return trial.runs_on_qnn(model)
        snr = trial.on_qnn(model, goal)
        return snr is not None and snr >= goal

    return meets


def smallest(
    nodes: Sequence[str], meets: Callable[[Sequence[str]], bool], budget: int, deadline: float
) -> list[str] | None:
    """Return a nearly minimal subset of `nodes` for which `meets` is true; None if `meets` is false for all nodes.

    Groups are removed one after the other as long as `meets` stays true; then the group size is halved.
    """
    if not meets(nodes):
        return None
    kept = list(nodes)
    size = -(-len(kept) // 2)
    runs = 1
    while size and kept:
        # Start from the end, so that removing a group does not shift the groups that are tried next.
        for start in range(len(kept), 0, -size):
            if runs >= budget or time.monotonic() > deadline:
                return kept
            without = kept[: max(0, start - size)] + kept[start:]
            runs += 1
            if meets(without):
                kept = without
        size //= 2
    return kept
