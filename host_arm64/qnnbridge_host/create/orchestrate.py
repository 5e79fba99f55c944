"""`model.compile`: compile one model, or several that share their weights, validate the result, and move it to its
destination."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qnnbridge_host.cache.key import qnn_options
from qnnbridge_host.cache.memo import OptimizerChoice
from qnnbridge_host.create import publish
from qnnbridge_host.create.compiler import compile_together
from qnnbridge_host.create.optimizers import Optimizers
from qnnbridge_host.create.order import WorkOrder, known_faults
from qnnbridge_host.create.publish import (
    CompiledFiles,
    CompilerInput,
    Destination,
    blobs_of,
    compiled_spec,
)
from qnnbridge_host.create.trials import answered, precision_of
from qnnbridge_host.create.worker import Worker, WorkerSession, open_original, ticking
from qnnbridge_host.engine.qnn_options import newer_than_tables
from qnnbridge_host.model.compiled_checks import before_session
from qnnbridge_host.model.double_edges import REWRITE, double_edges, is_conversion
from qnnbridge_host.model.manifest import manifest_path
from qnnbridge_host.model.paths import from_os, seen_from
from qnnbridge_host.model.quantised_steps import quantised_steps
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.numerics.judge import (
    LIMITS,
    NumberFormat,
    as_array,
    judge_over_inputs,
    largest,
    rank,
)
from qnnbridge_host.numerics.pairing import judge_all, paired
from qnnbridge_host.numerics.sampling import (
    NotMade,
)
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    CompileFailed,
    ContextUnusable,
    DeadlineExceeded,
    InvalidArgument,
    OptionError,
    OrtError,
    WorkerDied,
    late_validation,
)
from qnnbridge_protocol.model_records import (
    NOT_SHOWN,
    CompileResult,
    Difference,
    DifferenceLevel,
    ProgressStage,
    Validation,
)
from qnnbridge_protocol.shell import fixed_file


@dataclasses.dataclass(frozen=True, slots=True)
class CompileTask:
    """Arguments of `compile_to`.

    Attributes:
        jobs: one model, or several that share their weights.
        destinations: the destination of each job, in one folder.
        order: stop signal, deadline and receiver of progress events for the workers.
        host: this host's HELLO, whose versions and chip are needed to check compiled models.
        validate: whether to compare the result with the original on the CPU.
        overwrite: whether to replace existing results.
        optimizers: chooses which of ONNX Runtime's optimizers are disabled; ``None`` to use all.
    """

    jobs: tuple[CompilerInput, ...]
    destinations: tuple[Destination, ...]
    order: WorkOrder
    host: Hello
    validate: bool = True
    overwrite: bool = False
    optimizers: Optimizers | None = None


def compile_to(task: CompileTask) -> tuple[CompileResult, ...]:
    """Compile and validate, then move the results to their destination. After an error no file remains.

    Raises:
        OptionError: the result exists and `overwrite` is not set.
        CompileFailed: the model cannot be compiled, or the result is wrong.
        BridgeError: further errors of compiling and validating.
    """
    try:
        return _compile_to(task)
    except CompileFailed as error:
        # In the meantime another compilation has created a context binary with the same file name.
        if not task.overwrite or "taken" not in error.details:
            raise
    # Compile again under another file name for the binary. If two compilations write to the same path, the later
    # one replaces the result of the earlier one.
    return _compile_to(task)


def finished(task: CompileTask, versions: Mapping[str, str]) -> str | None:
    """Return why a task can be skipped (its results are complete and up to date); ``None`` if it must run.

    versions: versions of the host's packages and QNN.
    """
    reasons = [
        publish.is_finished(job, destination, versions)
        for job, destination in zip(task.jobs, task.destinations, strict=True)
    ]
    return reasons[0] if all(reasons) else None


def _compile_to(task: CompileTask) -> tuple[CompileResult, ...]:
    begun = time.monotonic()
    target = task.destinations[0].folder
    if not task.overwrite:
        for destination in task.destinations:
            publish.refuse_existing(destination)
    jobs = tuple(
        # Choose the file stem before the compilation, because the compiled .onnx file contains the name of its
        # context binary.
        dataclasses.replace(job, file_stem=destination.file_stem())
        for job, destination in zip(task.jobs, task.destinations, strict=True)
    )
    task = dataclasses.replace(task, jobs=jobs)
    with publish.compile_folder(target) as folder:
        stage: list[ProgressStage] = ["compiling"]
        try:
            with ticking(lambda seconds: task.order.progress(stage[0], seconds)):
                files, used, notes = _compiled(task, jobs, folder)
                stage[0] = "validating"
                validations = [_validated(task, job, one) for job, one in zip(used, files, strict=True)]
        except CompileFailed as error:
            raise seen_from(error, folder, target) from None
        except WorkerDied as death:
            # Add the likely cause to the crash report, with the command that fixes it.
            job = next((one for one in jobs if one.source.fingerprint == death.details["fingerprint"]), jobs[0])
            versions = death.details.get("versions") or {}
            death.details["known"] = known_faults(job.source, job.spec, task.host.machine, versions)
            raise
        # Record the jobs as requested: a command with `resume` skips its work if the record matches its request.
        return _deliver(task, files, validations, folder, begun, notes)


_Jobs = tuple[CompilerInput, ...]


def _compiled(
    task: CompileTask, jobs: _Jobs, folder: str
) -> tuple[Sequence[CompiledFiles], _Jobs, tuple[str, ...]]:
    """Compile the jobs. Disable the optimizers of ONNX Runtime that change a model's results or make it invalid.

    Returns:
        The results, the jobs as they were compiled, and a note for each job.
    """
    if task.optimizers is None:
        return compile_together(jobs, folder, task.order), jobs, ("",) * len(jobs)
    models = [(job.source, job.spec, job.initializers, None, task.order) for job in jobs]
    choices = [task.optimizers.chosen(*model) for model in models]
    used, notes = _applied(jobs, choices)
    try:
        return compile_together(used, folder, task.order), used, notes
    except OrtError as error:
        found = [task.optimizers.after_failure(*model, error) for model in models]
        if not any(found):
            raise
        used, notes = _applied(jobs, [one or OptimizerChoice() for one in found])
    return compile_together(used, folder, task.order), used, notes


def _applied(jobs: _Jobs, choices: Sequence[OptimizerChoice]) -> tuple[_Jobs, tuple[str, ...]]:
    pairs = list(zip(jobs, choices, strict=True))
    changed = tuple(dataclasses.replace(job, spec=choice.applied(job.spec)) for job, choice in pairs)
    return changed, tuple(
        f"{choice.why}; the model was compiled with this optimizer disabled." if choice.why else ""
        for choice in choices
    )


def _validated(task: CompileTask, job: CompilerInput, files: CompiledFiles) -> Validation:
    if not task.validate:
        return Validation(skipped="It was not requested.")
    if len(task.jobs) > 1 and files.placement is not None and files.placement.simulator:
        return Validation(skipped="The simulator cannot load a context binary that several models share.")
    try:
        return validate(job, files, task.order, task.host)
    except CompileFailed as error:
        known = _known_faults(job, files, task.host)
        if known:
            # Add the likely cause to the error, with the command that fixes it.
            error.evidence = (known, *error.evidence)
        raise


def _known_faults(job: CompilerInput, files: CompiledFiles, host: Hello) -> str:
    return known_faults(job.source, job.spec, host.machine, files.versions, files.soc_model)


def _deliver(
    task: CompileTask,
    made: Sequence[CompiledFiles],
    validations: Sequence[Validation],
    folder: str,
    begun: float,
    notes: Sequence[str],
) -> tuple[CompileResult, ...]:
    """Move the contents of `folder` to the destination."""
    bundle = [destination.model for destination in task.destinations] if len(task.destinations) > 1 else ()
    rows = list(zip(task.jobs, task.destinations, made, validations, notes, strict=True))
    try:
        for job, destination, files, validation, _note in rows:
            # The compiler used another stem if a context binary with the default name exists.
            if files.model != destination.model:
                os.rename(os.path.join(folder, files.model), os.path.join(folder, destination.model))
            publish.describe(folder, destination, job, files, validation, bundle)
    except BridgeError:
        raise
    except OSError as error:
        raise from_os(error, task.destinations[0].folder) from None
    # Check for a cancellation now, because published files are not removed again.
    task.order.stop.check()
    publish.move_whole(folder, task.destinations, blobs_of(made), overwrite=task.overwrite)
    results = []
    for job, destination, files, validation, note in rows:
        blob = os.path.join(destination.folder, files.blob) if files.blob is not None else None
        results.append(
            CompileResult(
                path=destination.path,
                blob=blob,
                manifest=manifest_path(destination.path),
                source=job.source.label,
                size_bytes=sum(os.path.getsize(path) for path in (destination.path, blob) if path is not None),
                placement=files.placement,
                soc_model=files.soc_model,
                provider_options=files.provider_options,
                versions=files.versions,
                validation=validation,
                compile_seconds=files.seconds,
                seconds=time.monotonic() - begun,
                died_at_teardown=files.died_at_teardown,
                warnings=(
                    *((note,) if note else ()),
                    *_warnings(job, files, validation, task.host, asked=task.validate),
                ),
            )
        )
    return tuple(results)


def _warnings(
    job: CompilerInput, files: CompiledFiles, validation: Validation, hello: Hello, *, asked: bool
) -> tuple[str, ...]:
    """Return the warnings about a result. asked: whether validation was requested. If it was requested but
    not possible, a warning reports why."""
    found = []
    placed = files.placement
    # Do not warn about conversions of 64-bit floats: every session lets the CPU compute these.
    if placed is not None and any(not is_conversion(name) for name, _ in placed.cpu_list):
        total = placed.qnn_nodes + placed.cpu_nodes + placed.other_nodes
        found.append(
            f"After optimisation, {placed.cpu_nodes} of {total} nodes stay on the CPU, so a session needs "
            f"fallback='cpu'. {placed.cause or ''}".rstrip()
        )
    found += _about_the_chip(job, files)
    known = _known_faults(job, files, hello)
    found += [known] if known else []
    found += newer_than_tables(qnn_options(job.spec))
    if files.died_at_teardown:
        found.append("The compiler crashed after it had finished; the files are complete.")
    if asked and validation.skipped:
        found.append(f"Not validated: {validation.skipped}")
    found += [_about_numbers(one) for one in validation.differences if one.remark]
    return tuple(found)


def _about_numbers(one: Difference) -> str:
    remark = f"{one.output} ({one.inputs}): {one.remark}."
    if one.is_not_shown:
        return f"It is unknown whether QNN's results equal the CPU's: {remark} Give real inputs (inputs=, --input)."
    return f"The results differ more than usual from the CPU's: {remark}"


def _about_the_chip(job: CompilerInput, files: CompiledFiles) -> list[str]:
    named = any("soc_model" in provider.options for provider in job.spec.providers)
    archs = [provider.options.get("htp_arch", "0") for provider in job.spec.providers]
    arch = next((arch for arch in archs if arch != "0"), None)
    if named:
        return ["Both a chip and an architecture were given: QNN uses the chip."] if arch is not None else []
    if files.soc_model is None:
        return ["No chip was given, so the model was compiled for the chip of the host. Other chips may refuse it."]
    which = "the simulator's default" if arch is None else f"the simulator's chip of V{arch}"
    return [f"No chip was given, so the model was compiled for soc_model={files.soc_model}, {which}."]


# --- validation: runs the compiled model and compares its outputs with the original's on the CPU ---------
#
# A model can compile without an error and compute wrong values: 16-bit floats overflow, or QNN differs from the
# ONNX standard. So by default a result is published only after a run and a comparison. The reference runs first, in
# the same process; it cannot affect QNN's session. The inputs are generated (`qnnbridge_host.numerics.sampling`)
# and are the same on every machine. If the original's outputs for these inputs are NaN or all equal, further inputs
# are used.


def validate(job: CompilerInput, files: CompiledFiles, order: WorkOrder, host: Hello) -> Validation:
    """Compare the compiled model with the original on the CPU, on the given or on generated inputs.

    Args:
        job: the compiled job.
        files: the result.
        order: stop signal and deadline for the worker that runs both models.
        host: this host's HELLO, whose versions and chip are needed to check the compiled model.

    Raises:
        CompileFailed: the compiled model cannot be loaded or run, or its outputs differ from the original's.
        Cancelled, DeadlineExceeded: the request was withdrawn, or its deadline expired.
    """
    try:
        return _validate(job, files, order, host)
    except DeadlineExceeded as error:
        raise late_validation(job.source.label, **error.details) from None


def _validate(job: CompilerInput, files: CompiledFiles, order: WorkOrder, host: Hello) -> Validation:
    begun = time.monotonic()
    number_format = precision_of(job)
    unloadable = _cannot_load_here(files)
    if unloadable:
        return Validation(skipped=unloadable)
    with Worker(order).running() as worker:
        try:
            reference = open_original(worker, job)
            outputs = [node.name for node in reference.info.outputs]
            trials, expected = answered(reference, job)
        except (Cancelled, DeadlineExceeded, OptionError):
            raise
        except NotMade as reason:
            return Validation(skipped=f"{str(reason)[:1].upper()}{str(reason)[1:]}.")
        except BridgeError as error:
            # These inputs come from the user, so the user gets the error about them.
            if job.inputs and isinstance(error, InvalidArgument):
                raise
            return Validation(skipped=f"The original cannot be run on the CPU for the comparison: {error.message}")
        try:
            compiled = _open_compiled(worker, job, os.path.join(files.folder, files.model), host)
            got = {name: compiled.run(feeds) for name, feeds in trials.items()}
            first = next(iter(trials))
            again = reference.run(trials[first])
        except (Cancelled, DeadlineExceeded):
            raise
        except BridgeError as error:
            if _for_another_chip(job, files, error):
                why = f"The compiled model cannot be loaded on this machine's chip: {error.message}"
                return Validation(skipped=why)
            raise _unusable(job, error) from None
    steps = quantised_steps(job.source.given)
    # A model with random numbers cannot be compared.
    if any(one.state == "differs" for _, one in judge_all(outputs, expected[first], again, "fp16")):
        return Validation(skipped="The original returns a different result in each run on the CPU.")
    # Outputs of object detectors may list the same detections in another order: pair them before the comparison.
    for trial, values in expected.items():
        expected[trial], got[trial] = paired(values, got[trial], number_format)
    found = [
        compare(
            name,
            {trial: values[index] for trial, values in got.items()},
            {trial: values[index] for trial, values in expected.items()},
            number_format,
            steps.get(name, 0.0),
        )
        for index, name in enumerate(outputs)
    ]
    differences = tuple(one for one in found if one is not None)
    result = Validation(differences, tolerance_text(number_format), None, time.monotonic() - begun)
    if any(one.level == "wrong" for one in differences):
        raise _wrong_numbers(job, result)
    return result


def _open_compiled(worker: Worker, job: CompilerInput, path: str, host: Hello) -> WorkerSession:
    """Open the compiled model in the worker, with the job's fallback."""
    spec = dataclasses.replace(compiled_spec(job.spec), model_path=path)
    before_session(ModelSource.open(path), spec.providers, host, spec.config_entries)
    return WorkerSession(worker, spec)


def _cannot_load_here(files: CompiledFiles) -> str | None:
    chips = [chip for chip in (files.soc_model or "").split(",") if chip.strip()]
    simulator = files.placement.simulator if files.placement is not None else False
    if simulator and len(chips) > 1:
        return "The simulator cannot load a context binary for several chips at once."
    return None


def _for_another_chip(job: CompilerInput, files: CompiledFiles, error: BridgeError) -> bool:
    """Return whether a model that cannot be loaded may be correct, because it was compiled for another chip.

    A real NPU cannot load a model for a newer chip, which an option may set, and does not report its own chip. The
    simulator can run a model for any single chip, so the result is False.
    """
    named = any("soc_model" in p.options or "htp_arch" in p.options for p in job.spec.providers)
    simulator = files.placement is None or files.placement.simulator
    return named and not simulator and not isinstance(error, WorkerDied)


def _unusable(job: CompilerInput, error: BridgeError) -> CompileFailed:
    # The application explains the crash and attributes it to the model.
    died_details = {"worker_died": error.details} if isinstance(error, WorkerDied) else {}
    died = isinstance(error, (WorkerDied, ContextUnusable))
    return CompileFailed(
        f"{job.source.label} was compiled, but the result {'crashes the host' if died else 'cannot be used'}.",
        cause=error.message if error.cause is None else f"{error.message} {error.cause}",
        fix=f"{_cure(job)}Nothing was written. To keep the result anyway, compile with validate=False "
        "(--no-validate).",
        evidence=error.evidence,
        details={"validation_error": error.code, **error.details, **died_details},
    )


def _cure(job: CompilerInput) -> str:
    """Return advice for a model with 64-bit floats, which fails in each run once it is compiled; "" for other
    models."""
    if not double_edges(job.source).bare:
        return ""
    path = job.source.path
    return f"Run {job.spec.in_commands(path).fix(REWRITE)}, and compile {fixed_file(path)}. "


def _wrong_numbers(job: CompilerInput, result: Validation) -> CompileFailed:
    wrong = [one for one in result.differences if one.level == "wrong"]
    return CompileFailed(
        f"{job.source.label} was compiled, but its results differ from the original's results on the CPU.",
        cause=f"Output {wrong[0].output!r} ({wrong[0].inputs}): {wrong[0].remark}. Limits for {result.tolerance}.",
        fix=f"{_look_for_it(job)} Nothing was written. To keep the result anyway, compile with "
        "validate=False (--no-validate).",
        evidence=[f"{one.output} ({one.inputs}): {one.remark}" for one in wrong[1:4]],
        details={"validation": result.to_json()},
    )


def _look_for_it(job: CompilerInput) -> str:
    """Return advice with the command that finds the faulty node for this compilation's dimensions and chip."""
    if job.source.path is None:
        return "`qnnbridge verify` of the model finds the first node that differs."
    return f"Find the first node that differs: {job.spec.in_commands(job.source.path).examine('verify')}."


# --- the difference of an output -------------------------------------------------------------------------
# `numerics.judge` decides, as for sessions and for `qnnbridge verify`: an output that differs is wrong. An output
# is reported as unusual if the inputs cannot reveal a difference, or if its SNR is barely sufficient.


def tolerance_text(number_format: NumberFormat) -> str:
    """Return the limits of a number format as text."""
    return f"{number_format}: {LIMITS[number_format]}"


def compare(
    output: str,
    got: Mapping[str, Any],
    expected: Mapping[str, Any],
    number_format: NumberFormat,
    step: float = 0.0,
) -> Difference | None:
    """Return the difference of one output; ``None`` if the output does not contain numbers.

    Args:
        output: the output's name.
        got: the compiled model's values of the output; the keys are the names of the sets of inputs.
        expected: the original's values of the output, with the same keys.
        number_format: the number format of the computation on the NPU.
        step: quantisation step of the output; 0 for an output that is not quantised.
    """
    names = list(expected)
    arrays = [as_array(value) for value in (*got.values(), *expected.values())]
    if any(array is None or array.dtype.kind not in "biuf" for array in arrays):
        return None
    state, reason, judged = judge_over_inputs([(expected[name], got[name]) for name in names], number_format, step)
    # Report the set of inputs with the lowest SNR among the sets whose state equals the overall state.
    decisive = min(range(len(names)), key=lambda number: (judged[number].state != state, rank(judged[number])))
    worst = judged[decisive]
    level: DifferenceLevel = "wrong" if state == "differs" else "ok"
    remark: str | None = reason or None
    if state == "unknown":
        level, remark = "unusual", f"{NOT_SHOWN}: {reason}"
    elif state == "agrees" and worst.snr_db is not None and worst.snr_db < LIMITS[number_format].good_db:
        level = "unusual"
        remark = f"SNR {worst.snr_db:.0f} dB, {worst.off:.1%} of the values are off by more than 5 % of the range"
    scale = max((largest(value) for value in expected.values()), default=0.0)
    most = max((one.max_abs for one in judged), default=0.0)
    relative = most / scale if scale else (math.inf if most else 0.0)
    if worst.lost or (worst.snr_db is None and state == "differs"):
        most = relative = math.inf
    return Difference(output, level, most, relative, _cosine(got, expected, names), names[decisive], remark)


def _cosine(got: Mapping[str, Any], expected: Mapping[str, Any], names: Iterable[str]) -> float | None:
    """Return the cosine similarity of the values that are finite on both sides; ``None`` if a side is all zeros."""
    import numpy as np

    pairs = [(np.asarray(got[name], np.float64), np.asarray(expected[name], np.float64)) for name in names]
    if any(x.shape != y.shape for x, y in pairs):
        return None
    x, y = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    finite = np.isfinite(x) & np.isfinite(y)
    length = float(np.linalg.norm(x[finite])) * float(np.linalg.norm(y[finite]))
    return float(np.vdot(x[finite], y[finite])) / length if length and math.isfinite(length) else None
