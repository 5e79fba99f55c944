"""`qnnbridge.compile`: compile models for QNN in a separate host process.

The host starts the compiler, compares the compiled model's results with the CPU's, and moves the files to the
destination. This module sends the request, shows progress, and explains crashes. Any thread may call it; calls are
independent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from qnnbridge._options.providers import choose_fallback, option_text
from qnnbridge._session import SessionRecipe, model_parts
from qnnbridge._session.create import RequestNews, encoded, too_late
from qnnbridge._session.runs import coerce_session_options
from qnnbridge._supervision.host_process import deadline_after, overdue
from qnnbridge._transport.channel import CANCEL_TIMEOUT_S, CallContext, CallTimedOut, ChannelFailed, ChannelRetired
from qnnbridge.errors import as_onnxruntime
from qnnbridge_protocol.errors import (
    BridgeError,
    Closed,
    CompileFailed,
    DeadlineExceeded,
    HostCrashed,
    ModelQuarantined,
    OptionError,
    WorkerDied,
)
from qnnbridge_protocol.field_types import read_record
from qnnbridge_protocol.frames import Frame
from qnnbridge_protocol.model_records import CompileResult
from qnnbridge_protocol.specs import QNN, Fallback, ProviderSpec, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._supervision.host_process import HostProcess

Soc = str | int
OnProgress = Callable[[str, float], None]


@overload
def compile(  # noqa: A001 - as in qnnbridge.compile(...)
    model: str | os.PathLike[str] | bytes,
    output: str | os.PathLike[str] | None = None,
    *,
    embed: bool = False,
    validate: bool = True,
    inputs: Mapping[str, Any] | None = None,
    soc_model: Soc | None = None,
    htp_arch: Soc | None = None,
    provider_options: Mapping[str, Any] | None = None,
    sess_options: Any = None,
    fallback: Fallback = "cpu",
    timeout: float | None = None,
    overwrite: bool = False,
    host: Host | None = None,
    on_progress: OnProgress | None = None,
) -> CompileResult: ...


@overload
def compile(  # noqa: A001 - as in qnnbridge.compile(...)
    model: str | os.PathLike[str] | bytes,
    output: str | os.PathLike[str] | None = None,
    *,
    embed: bool = False,
    validate: bool = True,
    inputs: Mapping[str, Any] | None = None,
    soc_model: list[Soc] | tuple[Soc, ...],
    htp_arch: Soc | None = None,
    provider_options: Mapping[str, Any] | None = None,
    sess_options: Any = None,
    fallback: Fallback = "cpu",
    timeout: float | None = None,
    overwrite: bool = False,
    host: Host | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[CompileResult, ...]: ...


def compile(  # noqa: A001 - as in qnnbridge.compile(...)
    model: str | os.PathLike[str] | bytes,
    output: str | os.PathLike[str] | None = None,
    *,
    embed: bool = False,
    validate: bool = True,
    inputs: Mapping[str, Any] | None = None,
    soc_model: Soc | list[Soc] | tuple[Soc, ...] | None = None,
    htp_arch: Soc | None = None,
    provider_options: Mapping[str, Any] | None = None,
    sess_options: Any = None,
    fallback: Fallback = "cpu",
    timeout: float | None = None,
    overwrite: bool = False,
    host: Host | None = None,
    on_progress: OnProgress | None = None,
) -> CompileResult | tuple[CompileResult, ...]:
    """Compile a model for QNN to an EPContext model, from which a session is created without another compilation.

    Args:
        model: the original ONNX model, a file or its bytes.
        output: path of the .onnx file to write, or a folder. Default: ``<stem>_ctx.onnx`` in the model's folder.
        embed: store the context binary in the .onnx file; default: a separate file in the same folder.
        validate: run the compiled model in a new process and compare its results with the CPU's before the files
            are written.
        inputs: real inputs by name for the comparison; default: generated inputs.
        soc_model: the chip, by number or name (60, "SC8380XP"). For a list of chips, the model is compiled once for
            each chip, to a separate file (``<stem>_soc60_ctx.onnx``), and the result is a tuple.
        htp_arch: the architecture (73), if no chip is given.
        provider_options: options of QNN, as for a session.
        sess_options: `SessionOptions`, which can also fix free dimensions.
        fallback: "cpu" runs nodes that QNN does not accept on the CPU, with a warning; "error" refuses the model.
            A model without any node for QNN is always refused.
        timeout: time limit in seconds for all steps, per chip; when it expires, the compiler is ended.
        overwrite: replace existing files.
        host: a host whose interpreter, environment and limits are used for the new hosts that compile.
        on_progress: called at the start and a few times per second with the current step and the elapsed seconds.

    Raises:
        CompileFailed: the compiler or the comparison failed.
        OptionError: an option is invalid, or the output already exists.
        CompiledModelRefused: the model is already compiled.
        PlacementRefused: QNN does not accept all nodes, or accepts no node.
        DeadlineExceeded: the timeout has expired.
        HostCrashed: the host died.

    The errors of creating a session of the model can also be raised. After an error no file remains.
    """
    several = isinstance(soc_model, (list, tuple))
    try:
        if inputs and not validate:
            raise OptionError(
                "inputs= and validate=False cannot be combined.",
                cause="Inputs are only used for the comparison with the CPU, which validate=False omits.",
                fix="Omit inputs= (--input) or validate=False (--no-validate).",
            )
        jobs = make_jobs(
            [model],
            soc_model if isinstance(soc_model, (list, tuple)) else (soc_model,),
            output,
            embed=embed,
            htp_arch=htp_arch,
            provider_options=provider_options,
            sess_options=sess_options,
            fallback=fallback,
            inputs=inputs,
        )
        results = tuple(
            perform(
                (job,),
                validate=validate,
                timeout_s=timeout,
                overwrite=overwrite,
                host=host,
                on_progress=on_progress,
            ).results[0]
            for job in jobs
        )
    except BridgeError as error:
        raise as_onnxruntime(error) from None
    return results if several else results[0]


@dataclasses.dataclass(frozen=True, slots=True)
class CompileJob:
    """A model to compile for one chip. Instances can be pickled.

    Attributes:
        recipe: recipe of the session that would run the model.
        soc_model: the chip; ``None`` for the default.
        embed: whether to store the context binary in the .onnx file.
        output: an absolute path, with a separator at the end for a folder; ``None``: the folder of the model.
        tag: text after the model's name in a default file name, for example "_soc60".
        inputs: inputs for comparing the compiled model with the CPU; empty: generated inputs.
    """

    recipe: SessionRecipe
    soc_model: str | None = None
    embed: bool = False
    output: str | None = None
    tag: str = ""
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """The host's answer to `model.compile`.

    Attributes:
        results: one result per job.
        skipped: with `resume`, the reason why nothing had to be compiled; ``None`` if the host compiled.
    """

    results: tuple[CompileResult, ...]
    skipped: str | None = None


def make_jobs(
    models: Sequence[str | os.PathLike[str] | bytes],
    soc_models: Sequence[Soc | None] = (None,),
    output: str | os.PathLike[str] | None = None,
    *,
    embed: bool = False,
    htp_arch: Soc | None = None,
    provider_options: Mapping[str, Any] | None = None,
    sess_options: Any = None,
    fallback: Fallback | None = "cpu",
    inputs: Mapping[str, Any] | None = None,
) -> list[CompileJob]:
    """Return a job for each model and chip. Raise an error if an option is invalid or a model file is missing."""
    chips = list(dict.fromkeys(None if chip is None else str(chip) for chip in soc_models))
    if not chips:
        raise OptionError("soc_model is an empty list.", fix="Give at least one chip.")
    target = _target(output, len(models) * len(chips))
    options = coerce_session_options(sess_options, providers_given=False)
    parts = options.to_spec_parts()
    providers = parts.pop("providers", None) or (ProviderSpec(QNN),)
    jobs = []
    for model in models:
        path, data = model_parts(model)
        for chip in chips:
            spec = SessionSpec(
                model_path=path,
                providers=_with_options(providers, _options(provider_options, chip, htp_arch)),
                fallback=choose_fallback(providers, fallback),
                **parts,
            )
            recipe = SessionRecipe(spec, data, tuple(options.initializer_values().values()))
            tag = "" if len(chips) == 1 else f"_soc{re.sub(r'[^A-Za-z0-9]+', '-', chip or '')}"
            jobs.append(CompileJob(recipe, chip, embed, target, tag, dict(inputs or {})))
    return jobs


def perform(
    jobs: Sequence[CompileJob],
    *,
    validate: bool = True,
    timeout_s: float | None = None,
    overwrite: bool = False,
    host: Host | None = None,
    on_progress: OnProgress | None = None,
    resume: bool = False,
    on_begin: Callable[[Running], None] | None = None,
) -> Compiled:
    """Compile jobs in a new host. The compiled models of several jobs share one copy of the weights. Raise the
    errors of `compile`.

    Args:
        jobs: the jobs, all with the same options.
        validate: run each result and compare it with the CPU.
        timeout_s: seconds for all jobs.
        overwrite: replace existing files.
        host: a host whose interpreter, environment and limits the new host uses.
        on_progress: called with the current step and the elapsed seconds.
        resume: keep existing results of the same model with the same options and versions.
        on_begin: called with the compilation before it starts, so that another thread can interrupt it.
    """
    from qnnbridge._host import Host

    with host.twin() if host is not None else Host() as own:
        running = Running(own, jobs, timeout_s, on_progress)
        if on_begin is not None:
            on_begin(running)
        return running.run({"validate": validate, "overwrite": overwrite, "resume": resume})


class Running:
    """A compilation in a host. Any thread may call `interrupt`; all other methods are called by one thread."""

    def __init__(
        self, host: Host, jobs: Sequence[CompileJob], timeout_s: float | None, on_progress: OnProgress | None
    ) -> None:
        self._host = host
        self._jobs = jobs
        self._timeout_s = timeout_s
        self._deadline = deadline_after(timeout_s)
        self._request_id: list[int] = []
        self._interrupted = False
        begun = time.monotonic()
        self._news = RequestNews(
            jobs[0].recipe.label,
            lambda stage, seconds: (
                on_progress(stage, time.monotonic() - begun if seconds else 0.0)
                if on_progress is not None
                else None
            ),
        )
        self._contexts = [
            CallContext("model.compile", job.recipe.label, "", job.recipe.options_hash, job.recipe.without_qnn)
            for job in jobs
        ]

    def run(self, how: Mapping[str, Any]) -> Compiled:
        supervisor = self._host.supervisor
        self._news.stage = "compiling"  # the initial value, until the host reports its stage
        self._news.report("compiling", 0.0)
        # Check the quarantine before the start, so that no host is started for a model that is known to crash, and
        # again afterwards: the quarantine depends on the versions that the host reports.
        self._check_quarantine()
        try:
            process = supervisor.process(self._deadline)
        except DeadlineExceeded:
            late = too_late(self._news, self._timeout_s)
            assert late is not None
            raise late from None
        self._host.settle_versions(process, self._deadline)
        self._check_quarantine()
        request_id = self._request_id
        header, buffers = self._message(how)
        try:
            frame = self._call(process, header, buffers, request_id)
        except ChannelRetired:
            raise HostCrashed("The compiler was closed.") from None
        except WorkerDied as error:
            raise supervisor.worker_died(process, error, self._contexts[0]) from None
        except ModelQuarantined as refusal:
            raise self._with_records(refusal) from None
        except BridgeError as error:
            if self._interrupted:
                raise _interrupted() from None
            raise self._explained(process, error, request_id) from None
        return read_record(Compiled, frame.header, "model.compile")

    def interrupt(self) -> None:
        """Ask the host to stop the work and remove its files, then end the host."""
        # Set the flag first, so that `run` recognizes the error that the cancellation causes.
        self._interrupted = True
        process = self._host.supervisor.running
        if process is not None:
            reason = _interrupted()
            for request_id in self._request_id:
                with contextlib.suppress(BridgeError, ChannelFailed, ChannelRetired, CallTimedOut):
                    process.channel.cancel(request_id, time.monotonic() + CANCEL_TIMEOUT_S)
            # Set the reason before the kill. Otherwise a caller that notices the end of the stream would report a
            # crash.
            process.channel.fail(reason)
            process.kill(reason.message)
        self._host.close()

    def _call(
        self, process: HostProcess, header: dict[str, Any], buffers: tuple[Any, ...], request_id: list[int]
    ) -> Frame:
        context = self._contexts[0]
        try:
            return process.channel.call(header, buffers, self._deadline, context, request_id.append, self._news)
        except ChannelFailed as failure:
            raise self._host.supervisor.lost(process, failure, self._deadline) from None
        except CallTimedOut as late:
            error = too_late(self._news, self._timeout_s)
            raise error or overdue(process, late, context, self._timeout_s, "kill") from None

    def _message(self, how: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Any, ...]]:
        values = [value for job in self._jobs for value in (*job.recipe.initializers, *job.inputs.values())]
        described, buffers = encoded(values)
        left = iter(described)
        jobs = [
            {
                "spec": job.recipe.spec.to_wire(),
                "embed": job.embed,
                "tag": job.tag,
                "output": job.output,
                "initializers": [next(left) for _ in job.recipe.initializers],
                "inputs": [[name, next(left)] for name in job.inputs],
            }
            for job in self._jobs
        ]
        header = {"op": "model.compile", "jobs": jobs, "folder": self._jobs[0].recipe.folder, **how}
        quarantine = self._host.quarantine
        if quarantine is not None:
            # Send all fingerprints in quarantine, because only the host can determine the model's fingerprint.
            refused = [f for context in self._contexts for f in quarantine.fingerprints(context.options_hash)]
            header["quarantined"] = list(dict.fromkeys(refused))
        if self._deadline is not None:
            header["budget_s"] = max(1.0, self._deadline - time.monotonic())
        return header, (*buffers, *(job.recipe.data for job in self._jobs if job.recipe.data is not None))

    def _check_quarantine(self) -> None:
        if self._host.quarantine is not None:
            for job, context in zip(self._jobs, self._contexts, strict=True):
                self._host.quarantine.check_source(job.recipe.was_read_from, context.options_hash)

    def _with_records(self, refusal: ModelQuarantined) -> ModelQuarantined:
        """Return the host's refusal of a quarantined model, with the deaths and crash reports from the quarantine
        file."""
        fingerprint = str(refusal.details.get("fingerprint", ""))
        for context in self._contexts:
            try:
                self._host.supervisor.check_quarantine(dataclasses.replace(context, fingerprint=fingerprint))
            except ModelQuarantined as full:
                return full
        return refusal

    def _explained(self, process: HostProcess, error: BridgeError, request_id: list[int]) -> BridgeError:
        """Return the error with the cause from the host's log. If the process that ran the compiled model for the
        comparison died, add the cause of its death, and write a crash report."""
        from qnnbridge._diagnosis.ort_log import enrich_from_stderr

        died = error.details.get("worker_died")
        if isinstance(error, CompileFailed) and isinstance(died, Mapping):
            death = WorkerDied(error.message, details=dict(died))
            crash = self._host.supervisor.worker_died(process, death, self._contexts[0])
            error.cause = crash.message if crash.cause is None else f"{crash.message} {crash.cause}"
            error.evidence = crash.evidence
            error.details |= {**crash.details, "validation_error": crash.code}
            return error
        return enrich_from_stderr(error, process.stderr, request_id, self._news.log_timeout_s)


def _target(output: str | os.PathLike[str] | None, count: int) -> str | None:
    """Return the absolute path of the output. For more than one model (`count`) it must be a folder."""
    if output is None:
        return None
    text = os.fsdecode(output)
    # Keep a separator at the end, which `abspath` would drop: it tells the host that the path is a folder.
    path = os.path.join(os.getcwd(), text)
    if count == 1:
        return path
    if text.lower().endswith(".onnx") and not os.path.isdir(text):
        raise OptionError(
            f"{text} is one file, but several models would be compiled.", fix="Give a folder as output."
        )
    return os.path.join(path, "")


def _options(given: Mapping[str, Any] | None, soc_model: Soc | None, htp_arch: Soc | None) -> dict[str, str]:
    options = {str(key): option_text(key, value) for key, value in (given or {}).items()}
    for name, value in (("soc_model", soc_model), ("htp_arch", htp_arch)):
        if value is None:
            continue
        text = option_text(name, value)
        if options.setdefault(name, text) != text:
            raise OptionError(
                f"{name} is given twice: {text!r}, and {options[name]!r} as provider option.", fix="Give it once."
            )
    return options


def _with_options(providers: Sequence[ProviderSpec], given: Mapping[str, str]) -> tuple[ProviderSpec, ...]:
    if QNN not in [provider.name for provider in providers]:
        raise OptionError(
            f"A model is compiled for {QNN}, but the session options contain only other providers.",
            fix=f"Add {QNN}, or remove all providers.",
        )
    return tuple(
        ProviderSpec(QNN, {**provider.options, **given}) if provider.name == QNN else provider
        for provider in providers
    )


def _interrupted() -> Closed:
    return Closed("The work was interrupted.")
