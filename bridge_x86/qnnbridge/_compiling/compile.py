"""`qnnbridge.compile`: one model, or several that share their weights, compiled, tried and put into its place."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from qnnbridge._compiling import publish, trouble
from qnnbridge._compiling.job import CompileJob
from qnnbridge._compiling.places import Place, place_of
from qnnbridge._compiling.request import Soc, make_job
from qnnbridge._compiling.result import CompileResult, warnings_of
from qnnbridge._compiling.work import Made, Stage, Task, blobs_of, perform
from qnnbridge._compiling.workfolder import work_folder
from qnnbridge._supervision.deadlines import deadline_after
from qnnbridge.errors import as_onnxruntime
from qnnbridge_host.model.manifest import manifest_path
from qnnbridge_protocol.errors import BridgeError, CompileFailed
from qnnbridge_protocol.specs import Fallback

if TYPE_CHECKING:
    from qnnbridge._host import Host


@overload
def compile(  # noqa: A001 - what users call
    model: str | os.PathLike[str] | bytes,
    output: str | os.PathLike[str] | None = None,
    *,
    embed: bool = False,
    validate: bool = True,
    soc_model: Soc | None = None,
    htp_arch: Soc | None = None,
    provider_options: Mapping[str, Any] | None = None,
    sess_options: Any = None,
    fallback: Fallback = "cpu",
    timeout: float | None = None,
    overwrite: bool = False,
    host: Host | None = None,
    on_progress: Stage | None = None,
) -> CompileResult: ...


@overload
def compile(  # noqa: A001 - what users call
    model: str | os.PathLike[str] | bytes,
    output: str | os.PathLike[str] | None = None,
    *,
    embed: bool = False,
    validate: bool = True,
    soc_model: list[Soc] | tuple[Soc, ...],
    htp_arch: Soc | None = None,
    provider_options: Mapping[str, Any] | None = None,
    sess_options: Any = None,
    fallback: Fallback = "cpu",
    timeout: float | None = None,
    overwrite: bool = False,
    host: Host | None = None,
    on_progress: Stage | None = None,
) -> tuple[CompileResult, ...]: ...


def compile(  # noqa: A001 - what users call
    model: str | os.PathLike[str] | bytes,
    output: str | os.PathLike[str] | None = None,
    *,
    embed: bool = False,
    validate: bool = True,
    soc_model: Soc | list[Soc] | tuple[Soc, ...] | None = None,
    htp_arch: Soc | None = None,
    provider_options: Mapping[str, Any] | None = None,
    sess_options: Any = None,
    fallback: Fallback = "cpu",
    timeout: float | None = None,
    overwrite: bool = False,
    host: Host | None = None,
    on_progress: Stage | None = None,
) -> CompileResult | tuple[CompileResult, ...]:
    """Compile a model for QNN into an EPContext model, which a session opens in a fraction of the time.

    Args:
        model: the original ONNX model, a file or its bytes.
        output: path of the .onnx file to write, or a folder. Default: ``<stem>_ctx.onnx`` beside the model.
        embed: the context binary goes into the .onnx file; default a file beside it.
        validate: run the result in a fresh host and compare with the CPU before anything is delivered.
        soc_model: the chip, by number or name (60, "SC8380XP"). Several, as a list, are compiled one by one, each
            to a file of its own (``<stem>_soc60_ctx.onnx``); the result is then a tuple.
        htp_arch: the architecture (73), if no chip is named.
        provider_options: of QNN, as for a session.
        sess_options: `SessionOptions`; free dimensions are fixed in there.
        fallback: "cpu" leaves nodes that QNN does not take to the CPU and says so; "error" refuses the model then.
            A model of which nothing is for QNN is refused always.
        timeout: seconds for all of it (for each chip); the compiler is ended when they are over.
        overwrite: replace what is there.
        host: a host whose interpreter, environment and limits are used; the work is done in fresh ones.
        on_progress: called at once and a few times a second with what is being done and the seconds so far.

    Raises `CompileFailed`, `OptionError` (also if the output exists already), `CompiledModelRefused`,
    `PlacementRefused`, `DeadlineExceeded`, `HostCrashed`, and what a session of the same model raises. Then nothing
    is left behind.
    """
    if isinstance(soc_model, (list, tuple)):
        from qnnbridge._compiling.matrix import compile_for_chips

        return compile_for_chips(
            model,
            soc_model,
            output,
            embed=embed,
            validate=validate,
            htp_arch=htp_arch,
            provider_options=provider_options,
            sess_options=sess_options,
            fallback=fallback,
            timeout=timeout,
            overwrite=overwrite,
            host=host,
            on_progress=on_progress,
        )
    try:
        job = make_job(
            model,
            embed=embed,
            soc_model=soc_model,
            htp_arch=htp_arch,
            provider_options=provider_options,
            sess_options=sess_options,
            fallback=fallback,
            host=host,
        )
        place = place_of(job.source, output)
        return compile_to((job,), (place,), validate, timeout, overwrite, on_progress)[0]
    except BridgeError as error:
        raise as_onnxruntime(error) from None


def compile_to(
    jobs: Sequence[CompileJob],
    places: Sequence[Place],
    validate: bool = True,
    timeout_s: float | None = None,
    overwrite: bool = False,
    on_stage: Stage | None = None,
) -> tuple[CompileResult, ...]:
    """Compile jobs (several share their weights) to their places, which are in one folder."""
    deadline = deadline_after(timeout_s)
    try:
        return _compile_to(jobs, places, validate, timeout_s, overwrite, on_stage)
    except CompileFailed as error:
        if not overwrite or not publish.is_about_a_taken_name(error):
            raise
    # Two at once to one output: who comes last replaces the other, under a name that is free now.
    left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
    return _compile_to(jobs, places, validate, left_s, overwrite, on_stage)


def _compile_to(
    jobs: Sequence[CompileJob],
    places: Sequence[Place],
    validate: bool,
    timeout_s: float | None,
    overwrite: bool,
    on_stage: Stage | None,
) -> tuple[CompileResult, ...]:
    begun = time.monotonic()
    if not overwrite:
        for place in places:
            publish.refuse_existing(place)
    with work_folder(places[0].folder) as folder:
        task = make_task(jobs, places, validate, timeout_s)
        try:
            made = perform(task, folder, on_stage)
        except CompileFailed as error:
            raise trouble.seen_from(error, folder, places[0].folder) from None
        return deliver(task, places, made, folder, overwrite, begun)


def make_task(jobs: Sequence[CompileJob], places: Sequence[Place], validate: bool, timeout_s: float | None) -> Task:
    named = (dataclasses.replace(job, file_stem=place.file_stem()) for job, place in zip(jobs, places, strict=True))
    return Task(tuple(named), validate, timeout_s)


def deliver(
    task: Task, places: Sequence[Place], made: Made, folder: str, overwrite: bool, begun: float
) -> tuple[CompileResult, ...]:
    """Put what `made` describes, and `folder` has, to its place."""
    blobs = blobs_of(made.files)
    bundle = [place.model for place in places] if len(places) > 1 else ()
    try:
        for job, place, files, validation in zip(task.jobs, places, made.files, made.validations, strict=True):
            if files.model != place.model:  # another stem, because a blob of that name was there
                os.rename(os.path.join(folder, files.model), os.path.join(folder, place.model))
            publish.describe(folder, place, job, files, validation, bundle)
    except BridgeError:
        raise
    except OSError as error:
        raise trouble.from_os(error, places[0].folder) from None
    publish.move_whole(folder, places, blobs, overwrite=overwrite)
    results = []
    for job, place, files, validation in zip(task.jobs, places, made.files, made.validations, strict=True):
        blob = os.path.join(place.folder, files.blob) if files.blob is not None else None
        results.append(
            CompileResult(
                path=place.path,
                blob=blob,
                manifest=manifest_path(place.path),
                source=job.source.label,
                size_bytes=sum(os.path.getsize(path) for path in (place.path, blob) if path is not None),
                placement=files.placement,
                soc_model=files.soc_model,
                provider_options=files.provider_options,
                versions=files.versions,
                validation=validation,
                compile_seconds=files.seconds,
                seconds=time.monotonic() - begun,
                died_at_teardown=files.died_at_teardown,
                warnings=warnings_of(job, files, validation, asked=task.validate),
            )
        )
    return tuple(results)


__all__ = ["compile", "compile_to"]
