"""Does a job in a disposable host process: whole files in a folder, or an error in words.

A fresh process for every job, because the precision of one compilation leaks into the next one of the same process,
because QNN leaks memory with each, and because a compiler that dies must not take anybody's sessions with it. The
process compiles; this side judges what it left (`artefact`). What always holds: the process is gone when the
functions return, and no file of theirs is half-written unless they raise. Any thread; jobs do not know each other.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge._compiling import artefact, names, trouble
from qnnbridge._compiling.job import CompiledFiles, CompileJob
from qnnbridge._compiling.loading import open_compiled
from qnnbridge._compiling.progress import ticking
from qnnbridge._compiling.refusals import blame_unknown_chips, nothing_to_compile
from qnnbridge._compiling.staging import StagingDir, workplace
from qnnbridge._providers import QNN
from qnnbridge._remote_session import LOG_TIMEOUT_S, SessionRecipe
from qnnbridge._supervision.deadlines import deadline_after
from qnnbridge._transport.channel import CallContext, ChannelFailed, ChannelRetired, Deadline
from qnnbridge_protocol.errors import BridgeError, Closed, DeadlineExceeded, HostCrashed, PlacementRefused
from qnnbridge_protocol.specs import CompileSpec, SessionInfo, SessionSpec, ShareWeights
from qnnbridge_protocol.values import Encoder

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._transport.host_process import HostProcess

_log = logging.getLogger("qnnbridge.compiling")


def compile_into(
    job: CompileJob,
    folder: str,
    *,
    timeout_s: float | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> CompiledFiles:
    """Compile into `folder`, which exists and belongs to the caller.

    timeout_s: for all of it; when it is over the process is ended and `DeadlineExceeded` raised.
    on_progress: called at once and a few times a second, from a thread of its own, with the seconds so far.

    Raises `CompileFailed` if nothing lands on QNN or the files are not whole, `PlacementRefused` if nodes would
    stay on the CPU and ``job.spec.fallback`` forbids it (also if that is all of them), `HostCrashed` if the process
    died, and what a session raises.
    """
    return compile_together((job,), folder, timeout_s=timeout_s, on_progress=on_progress)[0]


def compile_together(
    jobs: Sequence[CompileJob],
    folder: str,
    *,
    timeout_s: float | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> tuple[CompiledFiles, ...]:
    """`compile_into` for several models that share the weights in one context binary, named after the first.

    All in one process; the settings of the first job's host are used.
    """
    deadline = deadline_after(timeout_s)
    with ticking(on_progress):
        try:
            with workplace(jobs, folder) as place:
                try:
                    made = _Compilation(jobs, place, deadline, timeout_s).run()
                except BridgeError as error:
                    raise trouble.from_host(place.in_real_words(error), folder) from None
            return tuple(dataclasses.replace(files, folder=folder) for files in made)
        except BridgeError:
            raise
        except OSError as error:
            raise trouble.from_os(error, folder) from None


class _Compilation:
    """One use of one process."""

    def __init__(
        self, jobs: Sequence[CompileJob], place: StagingDir, deadline: float | None, timeout_s: float | None
    ) -> None:
        self._jobs = jobs
        self._place = place
        self._deadline = deadline
        self._timeout_s = timeout_s
        self._begun = time.monotonic()
        self._process: HostProcess | None = None
        self._stems = [job.file_stem or names.context_stem(job.stem or _stem(job)) for job in jobs]
        self._shared = len(jobs) > 1

    def run(self) -> list[CompiledFiles]:
        host = self._jobs[0].host.fresh()
        died = False
        try:
            made = [self._compile(host, index) for index in range(len(self._jobs))]
        except ChannelFailed as failure:
            died = True
            made = [self._salvaged(host, failure)]
        except BaseException as error:
            if not isinstance(error, BridgeError):  # Ctrl+C, for one; an error that it answered leaves it idle
                self._end("its work is not wanted any more")
            raise
        finally:
            host.close()
        code = self._process.exit_code(0) if self._process is not None else None
        if code and not died:
            _log.warning("the compiler died at its own end (exit code %s); its result is kept", code)
            made = [dataclasses.replace(files, died_at_teardown=True) for files in made]
        for files in made:
            artefact.check_whole(files.folder, files.model, files.blob)
        return made

    def _compile(self, host: Host, index: int) -> CompiledFiles:
        job, spec = self._jobs[index], self._place.specs[index]
        context = _note(job)
        supervisor = host.supervisor
        # Before: a known poison must not cost a start of the host. Behind: the first HELLO tells the versions.
        supervisor.check_quarantine(context)
        try:
            process = self._process = supervisor.process(self._deadline)
        except DeadlineExceeded:
            raise self._too_late(job) from None
        supervisor.check_quarantine(context)
        encoder = Encoder()
        header: dict[str, Any] = {
            "op": "model.compile",
            "spec": self._description(index, spec).to_wire(),
            "initializers": [encoder.add(value) for value in job.initializers],
        }
        buffers: tuple[Any, ...] = tuple(encoder.buffers)
        if job.source.data is not None:
            buffers += (job.source.data,)
        if self._deadline is not None:
            header["budget_s"] = max(1.0, self._deadline - time.monotonic())
        request_id: list[int] = []
        try:
            frame = process.call(header, buffers, self._deadline, context, request_id.append)
        except Deadline:
            self._end("compiling took longer than it was given")
            raise self._too_late(job) from None
        except ChannelRetired:
            raise HostCrashed("The compiler was closed.") from None
        except BridgeError as error:
            from qnnbridge._diagnosis.ort_log import enrich_from_stderr

            error = enrich_from_stderr(error, process.stderr, request_id, LOG_TIMEOUT_S)
            if isinstance(error, PlacementRefused) and spec.fallback == "cpu":
                error = nothing_to_compile(error, job.source.scan.inputs if job.source.scan is not None else ())
            blame_unknown_chips(error, spec.providers)
            raise error from None
        supervisor.good_reply(context, "creating")
        info = SessionInfo.from_wire(frame.header["info"])
        versions = {**process.peer.versions, **frame.header["versions"], "qnnbridge": process.peer.qnnbridge}
        options = dict(info.provider_options.get(QNN, {}))
        return CompiledFiles(
            folder=self._place.folder,
            model=self._stems[index] + names.MODEL_SUFFIX,
            blob=self._blob(index),
            placement=info.placement,
            soc_model=info.placement.soc_model or options.get("soc_model"),
            provider_options=options,
            versions=versions,
            seconds=info.create_seconds,
            info=info,
        )

    def _end(self, because: str) -> None:
        """Kill the process. Its channel first: whoever sees the end of the stream before would tell of a crash."""
        if self._process is not None:
            self._process.channel.fail(Closed("The work was interrupted."))
            self._process.kill(because)

    def _description(self, index: int, spec: SessionSpec) -> CompileSpec:
        share: ShareWeights = "no"
        if self._shared:
            share = "last" if index == len(self._jobs) - 1 else "more"
        output = os.path.join(self._place.folder, self._stems[index] + names.MODEL_SUFFIX)
        return CompileSpec(spec, output, self._jobs[index].embed, share)

    def _blob(self, index: int) -> str | None:
        if self._jobs[index].embed:
            return None
        return names.blob_of(self._stems[0 if self._shared else index])

    def _salvaged(self, host: Host, failure: ChannelFailed) -> CompiledFiles:
        """What a compiler that died left is used if it is whole and another process can load it: QNN faults most
        often while it cleans up, with everything written."""
        process = self._process
        assert process is not None
        error = host.supervisor.lost(process, failure, self._deadline)
        if self._shared:
            raise error from None
        job, model, blob = self._jobs[0], self._stems[0] + names.MODEL_SUFFIX, self._blob(0)
        left_s = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            artefact.check_whole(self._place.folder, model, blob)
            remote = open_compiled(job, os.path.join(self._place.folder, model), left_s)
        except BridgeError:
            raise error from None
        remote.close()
        remote.host.close()
        _log.warning("%s Its result is whole and is kept.", error.message)
        options = dict(remote.info.provider_options.get(QNN, {}))
        return CompiledFiles(
            folder=self._place.folder,
            model=model,
            blob=blob,
            placement=None,
            soc_model=remote.info.placement.soc_model,
            provider_options=options,
            versions={**process.peer.versions, "qnnbridge": process.peer.qnnbridge},
            seconds=time.monotonic() - self._begun,
            died_at_teardown=True,
        )

    def _too_late(self, job: CompileJob) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{job.source.label} was not compiled within {self._timeout_s:g} s; the compiler was ended.",
            cause="Compiling takes from a second to many minutes, and cannot be interrupted in any other way.",
            fix="Give it more time (timeout=, --timeout), or none for as long as it takes.",
            details={"state": "stopped", "model": job.source.label},
        )


def _stem(job: CompileJob) -> str | None:
    return names.stem_of(job.source.path) if job.source.path is not None else None


def _note(job: CompileJob) -> CallContext:
    """The same model and options as a session's: who kills the compiler is known to sessions, and the other way."""
    manifest = SessionRecipe(job.source, job.spec, job.initializers)
    return CallContext("model.compile", job.source.label, job.source.fingerprint, manifest.options_hash)
