"""The search for mixed precision: which layers get 16 bits or stay float, so that every output reaches a target.

First on the CPU, where rounding is the only cause: the noisiest layers go a step up (8 bits, 16 bits, float) until
the target is met. Then on QNN, if one is at hand: it may compute single quantised operators otherwise than the CPU
does, so everything is put back from float in parts, as long as the target stays met there.
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
# Runs of partly quantised models on the CPU, and of candidates on QNN.
_RUNS_ON_CPU, _RUNS_ON_QNN = 160, 24
# At most that many samples show which layer is noisy; all of them show whether the target is met, most of which the
# choice has not seen. With three, a speech detector was good enough on a pause and a vowel, and 5 dB worse on the
# rest; with the same 20 for both, it missed 40 dB by 5 on others.
_SAMPLES = 20
# On QNN, where a sample takes longer.
_SAMPLES_ON_QNN = 40
# The part of the allowed noise that the layers left quantised may make: noises do not add exactly.
_SHARE = 0.7
# Weights or activations that make less than this part of their layer's noise stay as they are.
_MINOR = 0.1
# QNN computes float in half floats; a target so near to that limit leaves everything float.
_NEAR_LIMIT_DB = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class FoundPrecision:
    """What the search found.

    Args:
        layers: what single layers cost, the worst first.
        reached: the target is met, on QNN too if one was there.
        notes: what kept it from the target.
    """

    precision: Precision
    layers: tuple[LayerError, ...] = ()
    reached: bool = True
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PrecisionTrial:
    """Everything that it takes to try a precision.

    Args:
        work: folder for candidates.
        reference: what they are judged by.
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
        """The lowest SNR there."""
        return self.reference.lowest(self.reference.on_cpu(model))

    def on_qnn(self, model: Path, least: float = -math.inf) -> float | None:
        """The lowest SNR there; None if it does not run. Below `least` it is that of the first samples only."""
        there = self.placed_on_qnn(model, lambda _, lowest: lowest < least)
        return None if there is None else there[1]

    def runs_on_qnn(self, model: Path) -> bool:
        """Whether it can be run there, by one sample."""
        return self.placed_on_qnn(model, lambda *_: True) is not None

    def placed_on_qnn(
        self, model: Path, hopeless: Callable[[bool, float], bool] = lambda *_: False
    ) -> tuple[bool, float] | None:
        """Whether QNN takes every node, and the lowest SNR; None if it does not run.

        hopeless: asked after each sample with both of these; no more samples are run once it is true. The SNR falls
            with each five samples that are judged together, so a model that is below a limit stays there.
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
    """What each layer costs by itself, the worst first; groups of layers that cost little are left out."""
    return tuple(_noisiest(trial, trial.partial(trial.write(precision)), 0.0))


def reach(trial: PrecisionTrial, start: Precision, target: float, timeout_s: float) -> FoundPrecision:
    """The least that has to have more bits for every output to have `target` dB."""
    deadline = time.monotonic() + timeout_s
    found = _on_cpu(trial, start, target, deadline)
    if trial.qnn is not None:
        found = _on_qnn(trial, found, target, deadline)
    if found.reached or time.monotonic() <= deadline:
        return found
    cut = f"The search ended at its limit of {timeout_s:g} s; with more time (--search-timeout) it may find others."
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
        # Halved in each round: what was allowed before did not reach the target.
        allowed = noise_of_db(target) * _SHARE / 2**round_number
        errors = _noisiest(trial, partial, allowed, deadline)
        # Those of the first round: later rounds look at a model of which a part has more bits already.
        layers = layers or tuple(errors)
        stepped = _stepped_up(trial, precision, errors, partial)
        # No layer has a further step, so another round would find the same.
        if stepped == precision:
            break
        precision, model = _written(trial, precision, stepped, errors)
    reached = trial.on_cpu(model)
    note = f"The quantised model has {reached:.1f} dB on the CPU; {target:g} dB were asked for."
    return FoundPrecision(precision, layers, reached >= target, () if reached >= target else (note,))


def _noisiest(
    trial: PrecisionTrial, partial: PartialModels, allowed: float, deadline: float = math.inf
) -> list[LayerError]:
    """`noisiest`, with each run reported as progress."""
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
    """One step more for what is noisy of these layers: their weights, what they compute, or both."""
    for error in errors:
        # By themselves: weights or results that make little of the noise stay as they are.
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
    # A tensor stays float if neither its maker nor any reader is quantised.
    touching = {maker.name for name in outputs if (maker := trial.index.maker(name)) is not None}
    touching |= {node.name for name in outputs for node in trial.index.uses(name)}
    return Precision(float_nodes=frozenset(touching))


def _written(
    trial: PrecisionTrial, before: Precision, stepped: Precision, errors: Sequence[LayerError]
) -> tuple[Precision, Path]:
    """The candidate; with float in place of 16 bits where the quantizer cannot mix 8 and 16."""
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
    # QNN may refuse single weights of 16 bits that it takes elsewhere.
    if there is None:
        found = without_refused(trial, found, deadline)
        there = trial.on_qnn(trial.write(found.precision))
    if there is not None and there >= target:
        return found
    # The float model on QNN shows what no quantised one can exceed there.
    limit = trial.on_qnn(trial.calibrated.path)
    goal = target if limit is None else min(target, limit - _NEAR_LIMIT_DB)
    notes = found.notes
    if limit is not None and limit < target:
        notes = (*notes, f"On QNN the float model itself has {limit:.1f} dB: it is computed in half floats there.")
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
    """Float in place of 16 bits where QNN cannot finalize those: a Conv with int16 weights and stride 4."""
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
    """Whether a model of that precision runs on QNN and has `goal` dB there; each try is reported as progress."""
    tried = 0

    def meets(part: Sequence[str]) -> bool:
        nonlocal tried
        tried += 1
        trial.on_progress("looking for what QNN computes otherwise", tried, _RUNS_ON_QNN)
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
    """The fewest of `nodes`, about, that keep `meets` true; None if not even all of them do.

    Parts are taken out one after the other, as long as it stays true; then smaller parts.
    """
    if not meets(nodes):
        return None
    kept = list(nodes)
    size = -(-len(kept) // 2)
    runs = 1
    while size and kept:
        # From the end: a part that is taken out does not move those that are still to come.
        for start in range(len(kept), 0, -size):
            if runs >= budget or time.monotonic() > deadline:
                return kept
            without = kept[: max(0, start - size)] + kept[start:]
            runs += 1
            if meets(without):
                kept = without
        size //= 2
    return kept
