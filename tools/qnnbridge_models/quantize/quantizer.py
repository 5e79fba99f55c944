"""`quantize_model`: prepare, calibrate, choose the precision, compare, and write."""

from __future__ import annotations

import copy
import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import files, graphs, shapes
from qnnbridge_host.graph.bounds import refuse_large
from qnnbridge_host.graph.runnable import check_runnable
from qnnbridge_models import progress
from qnnbridge_models.accuracy import GOOD_DB, ColumnGroups, FloatResults, columns_of_scales, worst
from qnnbridge_models.command_options import QuantizeOptions, QuantizeSettings, ResolvedSettings
from qnnbridge_models.progress import OnProgress, phase
from qnnbridge_models.quantize import precision, quantization, search
from qnnbridge_models.quantize.candidates import (
    ENOUGH,
    CandidateChoice,
    CrossValidation,
    FoldsReport,
    folds_of,
    with_enough_bits,
    with_headroom,
    working_variant,
)
from qnnbridge_models.quantize.ort_quantizer import CalibratedModel, Precision, calibrate
from qnnbridge_models.quantize.preparing import (
    prepare,
    refuse_free_dimensions,
    refuse_not_finite,
    refuse_unsuitable,
)
from qnnbridge_models.quantize.qnn_check import Comparer, Comparison, QnnCheck, QnnRunner, opened_qnn
from qnnbridge_models.quantize.quantization import QuantizeResult, Recalibration
from qnnbridge_models.quantize.quick_lookups import KnownWeights
from qnnbridge_models.quantize.samples import SampleSets, gather, shapes_in
from qnnbridge_models.quantize.search import FoundPrecision, PrecisionTrial
from qnnbridge_protocol.errors import OptionError

COMMAND = "qnnbridge quantize"
# Number of samples for the search for mixed precision.
_TRIED = 60
# Number of samples used to decide whether 8-bit weights are enough.
_LOOKED_AT = 20
# Time limit in seconds for one fold of one candidate. Slower models are judged by the held-out samples only.
_FOLD_S = 4.0
# Loss of SNR in dB that calibrating with all samples may cause. A range that is 10 % wider costs 0.8 dB, and keeps
# larger values from being clipped. The second limit applies if the SNR stays good, and allows a range that is a
# third wider.
_LOST_DB, _LOST_OF_GOOD_DB = 1.0, 3.0
# Operators to keep in float: their data, updates and result have different scales, but QNN copies the integers
# without conversion, so that the SNR is only 9 to 16 dB.
_WRONG_QUANTISED = ("ScatterElements",)
_PREPARED = "the prepared model"
_FLOAT = "running the float model"


def quantize_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: QuantizeOptions | None = None,
    *,
    on_progress: OnProgress = progress.ignore,
    own_process: bool = False,
) -> QuantizeResult:
    """Write a quantised (QDQ) model for QNN, and compare it with the float model on the CPU and on QNN.

    The model is written even if the comparison finds large errors; see `QuantizeResult.verdict`.

    Args:
        source: path of the float model.
        target: path to write the result to.
        options: samples, sizes, types, precision and settings for QNN.
        on_progress: called with the stage and its progress.
        own_process: true if nothing else uses onnxruntime in this process, so that its log level may be lowered.

    Raises:
        CompiledModelRefused: the model is compiled.
        OptionError: the model cannot be quantised, or an option or a sample is wrong.
        ModelError: preparing or quantising the model failed.
    """
    begun, phases = time.perf_counter(), progress.Phases()
    with phases.entered():
        result = _quantized(Path(source), Path(target), options or QuantizeOptions(), on_progress, own_process)
    return dataclasses.replace(result, seconds=time.perf_counter() - begun, phases=phases.found)


def _quantized(
    source: Path, target: Path, options: QuantizeOptions, on_progress: OnProgress, own_process: bool
) -> QuantizeResult:
    settings = options.settings.resolved
    given = files.given_model(source, COMMAND)
    path, scan, weights = given.path, given.scan, given.weights
    if own_process:
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)  # this level also applies to the quantizer's sessions
    with files.Output(
        path, Path(target), overwrite=options.overwrite, source_files=weights, external=bool(weights)
    ) as output:
        with phase("reading"):
            model = graphs.load(path)
            if not options.large:
                # Check the size before the weights are read.
                refuse_large(len(model.graph.node), path.name, COMMAND, "hours")
            refuse_unsuitable(model, path.name)
            fixed = shapes.fix(model, shapes.as_dimensions(options.dims))
            refuse_free_dimensions(
                model,
                path.name,
                # Pass a function, so that the samples are read only for the error message.
                lambda: shapes_in(options.calibration, [value.name for value in shapes.real_inputs(model.graph)]),
            )
            check_runnable(model)
            samples = gather(
                model, options.calibration, random=options.random, seed=options.seed, held_out=options.held_out
            )
        on_progress("running the float model", 0, 0)
        resized = output.resized(model, path, scan.external_files) if fixed else path
        with phase(_FLOAT):
            # Run the original model, so that the measured loss includes errors of the preparation.
            session = cpu.open_session(resized, resized.name)
            names = [node.name for node in session.get_outputs()]
            expected = [cpu.run(session, feeds, resized.name, names) for feeds in samples.compared]
            del session
        reference = FloatResults(names, samples.compared, expected)
        # Check the results before the preparation: NaN or infinite results of the float model are not caused by
        # quantising.
        refuse_not_finite(path.name, names, expected)
        on_progress("preparing", 0, 0)
        with phase("preparing"):
            # `prepare` changes this copy; the original's metadata and node counts are needed later. Do not store
            # the copy in a variable, so that `prepare` can free it once it is written.
            prepared = prepare(
                _with_weights(model, path),
                output.work,
                samples.compared[0],
                expected[0],
                names,
                symmetric=settings.symmetric_activations,
                eight_bits=settings.activation_type.endswith("t8"),
            )
        calibrated = calibrate(prepared.path, samples, settings, output.work, on_progress, KnownWeights())
        calibrated, form = working_variant(calibrated, output.work, reference)
        with opened_qnn(options.qnn) as qnn:
            work = _Work(
                options.settings,
                settings,
                resized,
                (*prepared.changes, *form),
                calibrated,
                output.work,
                samples,
                reference,
                qnn,
            )
            chosen = work.choose(model, on_progress)
            # Write the model calibrated without the held-out samples, because the comparison uses these samples.
            trial, found = chosen.trial, chosen.found
            trial.calibrated.write(output.model, found.precision)
            _finish(model, output.model, found)
            reference = dataclasses.replace(reference, groups=trial.reference.groups)
            comparer = Comparer(reference, qnn, on_progress)
            compared = comparer.compare(output.model)
            folds = work.few_held_out(chosen.every_fold, trial, found)
            final, recalibration = trial.calibrated, None
            if samples.held_out:
                final, recalibration = _with_all_samples(
                    trial, found, options.settings.target_snr, len(samples.every), comparer, compared
                )
        # Write the final model, calibrated with all samples unless that costs accuracy.
        final.write(output.model, found.precision)
        with phase("writing"):
            result = _finish(model, output.model, found)
            written = output.commit()
    recalibrated = [recalibration.report_line] if recalibration is not None else []
    return QuantizeResult(
        source=path,
        target=Path(target),
        files=written,
        settings=final.settings,
        precision=found.precision,
        target_snr=options.settings.target_snr,
        reached=found.reached,
        layers=found.layers,
        calibration_samples=len(samples.calibration),
        compared_samples=len(samples.compared),
        held_out=samples.held_out,
        folds=folds,
        recalibration=recalibration,
        outputs=compared.outputs,
        nodes_before=graphs.count_ops(model),
        nodes_after=graphs.count_ops(result),
        bytes_before=files.total_size([path, *weights]),
        bytes_after=files.total_size(written),
        changes=(*chosen.changes, *recalibrated),
        warnings=(
            # Warnings about the samples come first, because they limit the value of all results.
            *samples.warnings,
            *found.notes,
            *quantization.warnings_on(final.settings, found, compared.outputs, model, samples, compared.qnn, folds),
        ),
        qnn=compared.qnn,
        tries=tuple(quantization.to_try(final.settings, found, len(samples.calibration))),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Chosen:
    trial: PrecisionTrial
    found: FoundPrecision
    changes: tuple[str, ...]
    every_fold: CrossValidation


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """Data needed to choose the precision."""

    wished: QuantizeSettings
    settings: ResolvedSettings
    source: Path
    prepared_changes: Sequence[str]
    calibrated: CalibratedModel
    folder: Path
    samples: SampleSets
    reference: FloatResults
    qnn: QnnRunner | QnnCheck | None

    def choose(self, original: Any, on_progress: OnProgress) -> _Chosen:
        """Choose the precision of each node.

        Start from the options, and quantise branches of different magnitudes separately; then raise the precision
        until the target is met.
        """
        index = precision.load_index(self.calibrated.path)
        joined = precision.joined_outputs(index, self.calibrated)
        groups = precision.column_groups(index, joined, self.samples.compared[0])
        start = precision.given(index, original, self.wished.exclude, self.wished.wide, self.settings)
        changes = list(self.prepared_changes)
        scatters = frozenset(node.name for node in index.protos if node.op_type in _WRONG_QUANTISED)
        if scatters - start.float_nodes:
            start = start.joined(Precision(scatters))
            changes.append(
                f"{len(scatters)} ScatterElements stay float: QNN computes a quantised ScatterElements wrong if "
                "its tensors have different scales"
            )
        if self.wished.split_outputs:
            for one in joined:
                start = start.joined(Precision(frozenset(one.tail)))
                low, high = min(one.branches.values()), max(one.branches.values())
                changes.append(
                    f'output "{one.output}" joins branches of magnitudes {low:.3g} to {high:.3g}: they are '
                    f"quantised separately and joined in float ({len(one.tail)} nodes)"
                )
            for name in self._mixed_outputs(groups):
                nodes = precision.made_by(index, name)
                start = start.joined(Precision(frozenset(nodes)))
                changes.append(
                    f'output "{name}" has columns of very different magnitudes that no Concat joins: it is '
                    f"computed in float ({len(nodes)} nodes)"
                )
        tried = self._tried(_LOOKED_AT if self.wished.target_snr is None else _TRIED)
        trial = PrecisionTrial(
            index,
            self.calibrated,
            self.settings,
            self.folder,
            dataclasses.replace(tried, groups=groups),
            self.qnn if isinstance(self.qnn, QnnRunner) else None,
            on_progress,
        )
        every_fold = self._every_fold(trial)
        judge = self._judge(every_fold, start)
        target = self.wished.target_snr
        choice = CandidateChoice(self.wished, self.settings, self.source, self.samples, judge)
        best = choice.best(trial, start)
        cut = _cut(len(every_fold.folds) - len(judge.folds), choice.untried)
        cut += [f"not tried, because the quantizer fails: {one}" for one in choice.failed]
        # Skip the search if a candidate without mixed precision meets the target and runs completely on QNN.
        if target is not None and not best.meets(target, whole=True):
            trial = with_headroom(judge, trial, start).trial if best.change else best.trial
            found = search.reach(trial, start, target, self.wished.search_timeout_s)
            # If the search left every node float, the result is useless: it equals the float model.
            useful = found.reached and len(found.precision.float_nodes) < len(index.protos)
            if useful or not best.meets(target, whole=False):
                return _Chosen(trial, found, (*changes, *cut), every_fold)
        # Omit the report lines about the default preparation if the chosen candidate was prepared differently.
        if best.trial.index is not index:
            changes = []
        change = [best.change] if best.change else []
        more: list[str] = []
        start = best.precision
        if target is None:
            start, more = with_enough_bits(self.wished, self.settings, best.trial, start)
        layers = search.layer_report(best.trial, start) if self.wished.layer_report else ()
        return _Chosen(best.trial, FoundPrecision(start, layers), (*changes, *change, *more, *cut), every_fold)

    def few_held_out(
        self, every: CrossValidation, trial: PrecisionTrial, found: FoundPrecision
    ) -> FoldsReport | None:
        """Return the chosen model's accuracy in folds of all samples; None if enough samples are held out."""
        if not self.samples.held_out or len(self.samples.compared) >= ENOUGH or not trial.calibrated.by_sample:
            return None
        trial.on_progress("judging by folds", 0, 0)
        return every.report(trial.calibrated, found.precision) if len(every.folds) > 1 else None

    def _judge(self, judge: CrossValidation, start: Precision) -> CrossValidation:
        seconds = min(_FOLD_S * len(judge.folds), self.wished.search_timeout_s)
        return judge.within(seconds, self.calibrated, start)

    def _every_fold(self, trial: PrecisionTrial) -> CrossValidation:
        with phase(_FLOAT):
            session = cpu.open_session(self.calibrated.path, _PREPARED)
            folds = folds_of(
                self.samples,
                dataclasses.replace(self.reference, groups=trial.reference.groups),
                self.calibrated.by_sample,
                lambda feeds: cpu.run(session, feeds, _PREPARED, list(self.reference.names)),
            )
        return CrossValidation(folds, self.folder)

    def _mixed_outputs(self, groups: ColumnGroups) -> list[str]:
        """Return outputs with columns of very different magnitudes (pixels and scores) that no Concat joins."""
        expected = self.reference.expected
        stacks = {name: [np.asarray(one[n]) for one in expected] for n, name in enumerate(self.reference.names)}
        return [
            name
            for name, values in stacks.items()
            if name not in groups
            and len({value.shape for value in values}) == 1
            and columns_of_scales(np.stack(values))
        ]

    def _tried(self, most: int) -> FloatResults:
        """Return the samples for judging candidates: the held-out samples, and calibration samples if more are
        needed.

        Five samples are too few: a target of 30 dB met on five samples was missed by 7 dB on ten others.
        """
        more = max(0, most - len(self.samples.compared)) if self.samples.held_out else 0
        chosen = self.samples.calibration[:: max(1, -(-len(self.samples.calibration) // more))] if more else []
        with phase(_FLOAT):
            results = cpu.run_all(self.calibrated.path, _PREPARED, chosen, self.reference.names)
        samples, expected = [*self.samples.compared, *chosen], [*self.reference.expected, *results]
        return dataclasses.replace(self.reference, samples=samples, expected=expected)


def _cut(folds: int, untried: Sequence[str]) -> list[str]:
    """Return report lines about folds and candidates that were skipped because the time limit was reached."""
    lines = (
        [f"types chosen by the held-out samples only, as the other {folds} folds would take too long"]
        if folds
        else []
    )
    return [*lines, *(f"not tried for lack of time: {one}" for one in untried)]


def _with_weights(model: Any, path: Path) -> Any:
    """Return a modifiable copy of the model with its external tensors loaded."""
    changed = copy.deepcopy(model)
    graphs.load_weights(changed, path.parent)
    return changed


# The last step calibrates with all samples, as ONNX Runtime's documented recipe does: the ranges are then wider
# than without the held-out samples.


def _with_all_samples(
    trial: PrecisionTrial,
    found: FoundPrecision,
    target: float | None,
    samples: int,
    comparer: Comparer,
    before: Comparison,
) -> tuple[CalibratedModel, Recalibration]:
    """Return the model to write, and the comparison with a model calibrated with all samples.

    Args:
        trial: trial with the chosen calibration.
        found: the chosen precision.
        target: requested SNR in dB.
        samples: number of all samples.
        comparer: compares the model.
        before: comparison for the model calibrated without the held-out samples.
    """
    every = dataclasses.replace(trial, calibrated=trial.calibrated.without(frozenset()))
    # If the model calibrated without the held-out samples did not run on QNN, compare on the CPU only.
    if before.qnn is not None and before.qnn.placement is None:
        comparer = dataclasses.replace(comparer, qnn=None)
        every = dataclasses.replace(every, qnn=None)
    model = every.write(found.precision)
    after = comparer.compare(model)
    reason = _lost(before, after)
    if not reason and target is not None and found.reached:
        reached = every.on_cpu(model) >= target
        if reached and every.qnn is not None:
            reached = (every.on_qnn(model, target) or 0.0) >= target
        reason = "" if reached else f"the model would miss the target of {target:g} dB"
    recalibration = Recalibration(not reason, samples, after.lowest, reason)
    return (trial if reason else every).calibrated, recalibration


def _lost(before: Comparison, after: Comparison) -> str:
    """Return a text about what is worse in `after` than in `before`; empty if nothing is."""
    for where, snr in before.lowest.items():
        there = after.lowest.get(where)
        if there is None or there < snr - (_LOST_OF_GOOD_DB if there >= GOOD_DB else _LOST_DB):
            has = "no result" if there is None else f"{there:.1f} dB instead of {snr:.1f}"
            return f"the model would have {has} on {where}"
    if before.qnn is not None and after.qnn is not None and before.qnn.all_on_qnn and not after.qnn.all_on_qnn:
        return "some nodes would not run on QNN"
    # Compare the verdict of each output: an output other than the worst may have become worse.
    if any(worst(pair) != pair[0] for pair in zip(before.verdicts, after.verdicts, strict=True)):
        return "an output would be worse"
    return ""


def _finish(original: Any, path: Path, found: FoundPrecision) -> Any:
    """Restore the metadata and remove unused opset domains. Raise `OptionError` if nothing is quantised."""
    import onnx

    model = graphs.load(path)
    if not any(graphs.op_name(node).endswith("QuantizeLinear") for node in graphs.nodes(model)):
        if found.precision.float_nodes:
            raise OptionError(
                "No node of this model can be quantised: all nodes have to stay float. Nothing was written.",
                cause="The target, or --exclude, excludes every node.",
                fix="Use the float model, or a lower --target-snr.",
            )
        raise OptionError(
            "This model has no operator that can be quantised. Nothing was written.",
            cause="The model contains no float32 operator that the quantizer supports.",
            fix="Run the model unchanged: qnnbridge run shows whether QNN supports it.",
        )
    del model.metadata_props[:]
    model.metadata_props.extend(original.metadata_props)
    graphs.trim_opsets(model)
    onnx.save_model(model, os.fspath(path))
    return model
