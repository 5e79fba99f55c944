"""`model.compile`: one model, or several that share their weights, compiled, tried and put into their place."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence

from qnnbridge_host.create import publish
from qnnbridge_host.create.compiler import compile_together, known_chips_text, unknown_chips, unknown_chips_text
from qnnbridge_host.create.jobs import CompiledFiles, CompilerInput, blobs_of
from qnnbridge_host.create.order import WorkOrder, known_faults
from qnnbridge_host.create.publish import Destination, work_folder
from qnnbridge_host.create.worker import ticking
from qnnbridge_host.model.manifest import manifest_path
from qnnbridge_host.model.paths import from_os, seen_from
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.errors import BridgeError, CompileFailed
from qnnbridge_protocol.model_records import CompileResult, Difference, ProgressStage, Validation


@dataclasses.dataclass(frozen=True, slots=True)
class CompileTask:
    """jobs: one, or several that share their weights. destinations: of their results, in one folder.

    order: for the workers. host: its versions and chip, for the check of compiled models before they are loaded.
    """

    jobs: tuple[CompilerInput, ...]
    destinations: tuple[Destination, ...]
    order: WorkOrder
    host: Hello
    validate: bool = True
    overwrite: bool = False


def compile_to(task: CompileTask) -> tuple[CompileResult, ...]:
    """Run it. Raises the errors of compiling and validating, and `OptionError` for an existing result; then
    nothing is left behind."""
    try:
        return _compile_to(task)
    except CompileFailed as error:
        if not task.overwrite or not publish.is_about_a_taken_name(error):
            raise
    # Two at once to one output: the last one replaces the other, under a name that is free now.
    return _compile_to(task)


def finished(task: CompileTask, versions: Mapping[str, str]) -> str | None:
    """The reason to skip a task: its results exist, are complete and have the same inputs. ``None`` if it
    must."""
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
        # Chosen before the compilation, since the .onnx names its context binary.
        dataclasses.replace(job, file_stem=destination.file_stem())
        for job, destination in zip(task.jobs, task.destinations, strict=True)
    )
    task = dataclasses.replace(task, jobs=jobs)
    with work_folder(target) as folder:
        stage: list[ProgressStage] = ["compiling"]
        try:
            with ticking(lambda seconds: task.order.progress(stage[0], seconds)):
                files = compile_together(jobs, folder, task.order)
                stage[0] = "validating"
                validations = [_validated(task, job, one) for job, one in zip(jobs, files, strict=True)]
        except CompileFailed as error:
            raise seen_from(error, folder, target) from None
        return _deliver(task, files, validations, folder, begun)


def _validated(task: CompileTask, job: CompilerInput, files: CompiledFiles) -> Validation:
    if not task.validate:
        return Validation(skipped="It was not asked for.")
    if len(task.jobs) > 1 and files.placement is not None and files.placement.simulator:
        return Validation(skipped="The simulator cannot load a context binary that several models share.")
    from qnnbridge_host.create.validation import validate  # imports numpy, which a cache hit does not need

    try:
        return validate(job, files, task.order, task.host)
    except CompileFailed as error:
        known = _known_faults(job, files, task.host)
        if known:
            # The likely cause, with the command that cures it.
            error.evidence = (known, *error.evidence)
        raise


def _known_faults(job: CompilerInput, files: CompiledFiles, host: Hello) -> str:
    return known_faults(job.source, job.spec, host, files.soc_model)


def _deliver(
    task: CompileTask,
    made: Sequence[CompiledFiles],
    validations: Sequence[Validation],
    folder: str,
    begun: float,
) -> tuple[CompileResult, ...]:
    """Move the contents of `folder` to the destination."""
    bundle = [destination.model for destination in task.destinations] if len(task.destinations) > 1 else ()
    rows = list(zip(task.jobs, task.destinations, made, validations, strict=True))
    try:
        for job, destination, files, validation in rows:
            if files.model != destination.model:  # another stem, because a blob of that name existed
                os.rename(os.path.join(folder, files.model), os.path.join(folder, destination.model))
            publish.describe(folder, destination, job, files, validation, bundle)
    except BridgeError:
        raise
    except OSError as error:
        raise from_os(error, task.destinations[0].folder) from None
    # The last moment: what is moved stays.
    task.order.stop.check()
    publish.move_whole(folder, task.destinations, blobs_of(made), overwrite=task.overwrite)
    results = []
    for job, destination, files, validation in rows:
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
                warnings=_warnings(job, files, validation, task.host, asked=task.validate),
            )
        )
    return tuple(results)


def _warnings(
    job: CompilerInput, files: CompiledFiles, validation: Validation, hello: Hello, *, asked: bool
) -> tuple[str, ...]:
    """asked: whether validation was requested, so that its absence needs a message."""
    found = []
    placed = files.placement
    if placed is not None and placed.cpu_nodes:
        total = placed.qnn_nodes + placed.cpu_nodes + placed.other_nodes
        found.append(
            f"{placed.cpu_nodes} of {total} nodes stay on the CPU, so a session of it needs fallback='cpu'. "
            f"{placed.cause or ''}".rstrip()
        )
    found += _about_the_chip(job, files)
    known = _known_faults(job, files, hello)
    found += [known] if known else []
    unknown = unknown_chips(job.spec.providers)
    if unknown:
        found.append(f"{unknown_chips_text(unknown)}; known are {known_chips_text()}.")
    if files.died_at_teardown:
        found.append("The compiler died after its work was done; the files are whole.")
    if asked and validation.skipped:
        found.append(f"Not validated: {validation.skipped}")
    found += [_about_numbers(one) for one in validation.differences if one.remark]
    return tuple(found)


def _about_numbers(one: Difference) -> str:
    remark = f"{one.output} ({one.inputs}): {one.remark}."
    if one.is_not_shown:
        return f"Whether QNN computes what the CPU does is not known: {remark} Give real inputs (inputs=, --input)."
    return f"Unusually far from the CPU's numbers: {remark}"


def _about_the_chip(job: CompilerInput, files: CompiledFiles) -> list[str]:
    named = any("soc_model" in provider.options for provider in job.spec.providers)
    archs = [provider.options.get("htp_arch", "0") for provider in job.spec.providers]
    arch = next((arch for arch in archs if arch != "0"), None)
    if named:
        return ["A chip and an architecture were named: QNN goes by the chip."] if arch is not None else []
    if files.soc_model is None:
        return ["No chip was named: compiled for the chip of the host. Others may refuse it."]
    which = "the simulator's default" if arch is None else f"the simulator's chip of V{arch}"
    return [f"No chip was named: compiled for soc_model={files.soc_model}, {which}."]
