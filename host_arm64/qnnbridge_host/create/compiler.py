"""Does jobs in a worker: complete files in a folder, or an error with its cause.

The worker compiles; this side checks its results. Invariants: the worker is gone when the functions return,
and no file of theirs is half-written unless they raise. Any thread; jobs are independent.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from qnnbridge_host.create.errors import blame_unknown_chips, nothing_to_compile
from qnnbridge_host.create.jobs import MODEL_SUFFIX, CompiledFiles, CompilerInput, blob_of
from qnnbridge_host.create.staging import StagingDir, staging_dir
from qnnbridge_host.create.worker import Worker, WorkOrder
from qnnbridge_host.model.scan import scan_model
from qnnbridge_host.model.source import are_same
from qnnbridge_host.model.writing import from_host, from_os
from qnnbridge_protocol.errors import BridgeError, CompileFailed, PlacementRefused, WorkerDied
from qnnbridge_protocol.frames import Frame
from qnnbridge_protocol.specs import (
    QNN,
    CompileSpec,
    ProviderSpec,
    SessionInfo,
    SessionSpec,
    ShareWeights,
)
from qnnbridge_protocol.values import Encoder

_log = logging.getLogger("qnnbridge.compiling")

_ABOUT_COMPILING = ("ep.context_", "ep.share_", "ep.stop_share_", "session.disable_model_compile")


def compile_together(jobs: Sequence[CompilerInput], folder: str, order: WorkOrder) -> tuple[CompiledFiles, ...]:
    """Compile into `folder`, which exists and belongs to the caller; several jobs share the weights in one context
    binary, named after the first.

    Raises:
        CompileFailed: nothing lands on QNN, or the files are not whole.
        PlacementRefused: nodes would stay on the CPU and the job's ``fallback`` forbids it.
        WorkerDied: the worker died and left no whole result.
        Cancelled, DeadlineExceeded: the worker was ended.
        BridgeError: the errors of creating a session.
    """
    try:
        made = _compiled(jobs, folder, order)
        if made is None:
            _log.warning("files of the model were touched while it was compiled: it is compiled again from a copy")
            made = _compiled(jobs, folder, order, copied=True)
        if made is None:
            raise jobs[0].source.never_rests()
        return tuple(dataclasses.replace(files, folder=folder) for files in made)
    except BridgeError:
        raise
    except OSError as error:
        raise from_os(error, folder) from None


def _compiled(
    jobs: Sequence[CompilerInput], folder: str, order: WorkOrder, *, copied: bool = False
) -> list[CompiledFiles] | None:
    """None if files that the worker read were touched meanwhile: they may have had other contents for a moment."""
    with staging_dir(jobs, folder, copied=copied) as place:
        before = list(itertools.chain(*(job.source.stamps() for job in jobs)))
        try:
            made = _Compilation(jobs, place, order).run()
        except BridgeError as error:
            raise from_host(place.in_real_words(error), folder) from None
        after = list(itertools.chain(*(job.source.stamps() for job in jobs)))
        return made if place.private or are_same(before, after) else None


class _Compilation:
    """One use of one worker."""

    def __init__(self, jobs: Sequence[CompilerInput], place: StagingDir, order: WorkOrder) -> None:
        self._jobs = jobs
        self._place = place
        self._order = order
        self._begun = time.monotonic()
        self._stems = [job.stem for job in jobs]
        self._shared = len(jobs) > 1

    def run(self) -> list[CompiledFiles]:
        worker = Worker(self._order)
        try:
            with worker.running():
                made = [self._compile(worker, index) for index in range(len(self._jobs))]
        except WorkerDied as death:
            made = [self._salvaged(death)]
        else:
            if worker.exit_code:
                _log.warning(
                    "the compiler died at its own end (exit code %s); its result is kept", worker.exit_code
                )
                made = [dataclasses.replace(files, died_at_teardown=True) for files in made]
        for files in made:
            check_whole(files.folder, files.model, files.blob)
        for job in self._jobs:
            # Else the result would be kept under the hashes of other contents.
            job.source.check_unchanged()
        return made

    def _compile(self, worker: Worker, index: int) -> CompiledFiles:
        job, spec = self._jobs[index], self._place.specs[index]
        header = {"op": "worker.compile", "spec": self._description(index, spec).to_wire()}
        worker.label, worker.fingerprint = job.source.label, job.source.fingerprint
        try:
            frame = call_with_model(worker, header, job.initializers, job.source.data)
        except BridgeError as error:
            if isinstance(error, PlacementRefused) and spec.fallback == "cpu":
                error = nothing_to_compile(error, job.source.scan.inputs if job.source.scan is not None else ())
            blame_unknown_chips(error, spec.providers)
            raise error from None
        info = SessionInfo.from_wire(frame.header["info"])
        options = dict(info.provider_options.get(QNN, {}))
        return CompiledFiles(
            folder=self._place.folder,
            model=self._stems[index] + MODEL_SUFFIX,
            blob=self._blob(index),
            placement=info.placement,
            soc_model=info.placement.soc_model or options.get("soc_model"),
            provider_options=options,
            versions={**worker.versions, **frame.header["versions"]},
            seconds=info.create_seconds,
            info=info,
        )

    def _description(self, index: int, spec: SessionSpec) -> CompileSpec:
        share: ShareWeights = "no"
        if self._shared:
            share = "last" if index == len(self._jobs) - 1 else "more"
        output = os.path.join(self._place.folder, self._stems[index] + MODEL_SUFFIX)
        return CompileSpec(spec, output, self._jobs[index].embed, share)

    def _blob(self, index: int) -> str | None:
        if self._jobs[index].embed:
            return None
        return blob_of(self._stems[0 if self._shared else index])

    def _salvaged(self, death: WorkerDied) -> CompiledFiles:
        """Use the files of a dead compiler if they are complete and another process can load them: QNN faults most
        often while it cleans up, with everything written."""
        if self._shared:
            raise death
        job, model, blob = self._jobs[0], self._stems[0] + MODEL_SUFFIX, self._blob(0)
        try:
            check_whole(self._place.folder, model, blob)
            worker = Worker(self._order)
            with worker.running():
                path = os.path.join(self._place.folder, model)
                spec = dataclasses.replace(compiled_spec(job.spec), model_path=path)
                frame = call_with_model(worker, {"op": "worker.create", "spec": spec.to_wire()})
                info = SessionInfo.from_wire(frame.header["info"])
        except BridgeError:
            self._order.stop.check()
            raise death from None
        _log.warning("%s Its result is whole and is kept.", death.message)
        return CompiledFiles(
            folder=self._place.folder,
            model=model,
            blob=blob,
            placement=None,
            soc_model=info.placement.soc_model,
            provider_options=dict(info.provider_options.get(QNN, {})),
            versions=death.details.get("versions", {}),
            seconds=time.monotonic() - self._begun,
            died_at_teardown=True,
        )


def call_with_model(
    worker: Worker, header: Mapping[str, Any], initializers: Sequence[Any] = (), data: Any | None = None
) -> Frame:
    """A request that carries initializers, and the model if that has no path."""
    encoder = Encoder()
    described = [encoder.add(value) for value in initializers]
    buffers: tuple[Any, ...] = tuple(encoder.buffers)
    if data is not None:
        buffers += (data,)
    return worker.call({**header, "initializers": described}, buffers)


def compiled_spec(spec: SessionSpec) -> SessionSpec:
    """The spec of the compiled model's session, without the options that were compiled in."""
    return SessionSpec(
        model_path=None,
        providers=spec.providers or (ProviderSpec(QNN),),
        fallback=spec.fallback,
        options=spec.options,
        config_entries=without_compiling(spec.config_entries),
        custom_op_libraries=spec.custom_op_libraries,
    )


def without_compiling(entries: Mapping[str, str]) -> dict[str, str]:
    """Configuration entries that are not about compiling."""
    return {key: text for key, text in entries.items() if not key.startswith(_ABOUT_COMPILING)}


def check_whole(folder: str, model: str, blob: str | None) -> None:
    """Raises `CompileFailed` unless the .onnx can be read to its end and has its context binary.

    blob: the file that it must name; ``None``: the context binary must be inside.
    """
    path = os.path.join(folder, model)
    try:
        scan = scan_model(path)
    except BridgeError as error:
        raise _broken(f"{model} cannot be read to its end.", error.message) from None
    owners = [node for node in scan.ep_contexts if node.owns_blob]
    if not owners or not scan.opsets:
        raise _broken(f"{model} has no compiled part.", "")
    for node in owners:
        if blob is None:
            if not node.embedded:
                raise _broken(f"{model} has no context binary inside.", "")
        elif node.embeds or node.cache_path != blob:
            raise _broken(f"{model} does not name {blob} as its context binary.", f"It names {node.cache_path!r}.")
    if blob is not None and not _size(os.path.join(folder, blob)):
        raise _broken(f"The context binary {blob} is missing or empty.", "")


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _broken(what: str, why: str) -> CompileFailed:
    return CompileFailed(
        f"The compiler left no whole result: {what}",
        cause=why or None,
        fix="Compile again. If it happens again, look at the free space of the disk and at the host's log.",
    )
