"""The host's operations on an application's models: identify, compile, create a session.

The thread that serves a request executes all of its steps; only native creation is limited to one at a time. Every
wait ends when the request is withdrawn. Thread-safe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.create.order import Creation, refuse_quarantined
from qnnbridge_host.model.external_lengths import EXTERNAL_DATA_FOLDER
from qnnbridge_host.request.client import StopSignal
from qnnbridge_host.request.in_flight import Answer, Request
from qnnbridge_protocol.errors import BridgeError, OptionError, desync
from qnnbridge_protocol.limits import fitting

if TYPE_CHECKING:
    from qnnbridge_host.cache.memo import Verdicts
    from qnnbridge_host.create.order import WorkOrder
    from qnnbridge_host.create.replaced import ContextFolder
    from qnnbridge_host.create.session import SessionMaker
    from qnnbridge_host.engine.sessions import Enter
    from qnnbridge_host.model.prepared import PackageVariant
    from qnnbridge_host.model.source import Memo, ModelSource
    from qnnbridge_protocol.connection import Hello
    from qnnbridge_protocol.model_records import CacheSettings
    from qnnbridge_protocol.specs import SessionSpec

# Command in the error that refuses an already compiled model.
COMPILE_COMMAND: Final = "qnnbridge compile"
# Longest time limit of a request: eleven days, because timers cannot wait much longer.
LONGEST_S: Final = 1_000_000.0


class ModelService:
    """Serves the requests `model.identify`, `model.choose`, `model.compile` and `session.create`."""

    def __init__(self, maker: SessionMaker) -> None:
        self._maker = maker

    # --- operations that clients request ---

    def identify(self, request: Request, _enter: Enter) -> Answer:
        """Return the model's identity and a description of its file, without native code."""
        from qnnbridge_protocol.model_records import ModelDescription

        header = request.header
        try:
            path = header.get("path")
            if not isinstance(path, (str, type(None))):
                raise TypeError(f"a path is {type(path).__name__}")
            folder = str(header.get("folder") or os.getcwd())
            settings = cache_settings(header.get("cache"))
            folder = data_folder(header.get("config_entries") or {}, folder)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"model.identify without a proper description ({error})") from None
        data = None if path is not None else (bytes(request.buffers[-1]) if request.buffers else b"")
        source = open_model(path, data, folder, settings, stop_signal(request))
        scan = source.scan
        described = ModelDescription(source.identity, readable=False)
        if scan is not None and scan.format == "onnx":
            ends, files = (scan.inputs, scan.outputs), tuple(scan.external_files)
            described = ModelDescription(
                source.identity,
                True,
                *ends,
                external=files,
                operators=_operators(source) if header.get("operators") else (),
                metadata=fitting(scan.properties),
            )
        described_wire = described.to_wire()
        return {
            "model": described_wire["model"],
            "readable": described_wire["readable"],
            "inputs": described_wire["inputs"],
            "outputs": described_wire["outputs"],
            "external": described_wire["external"],
            "operators": described_wire["operators"],
            "metadata": described_wire["metadata"],
        }, ()

    def choose(self, request: Request, _enter: Enter) -> Answer:
        """Choose the model file for a session in a prepared folder or a model package."""
        from qnnbridge_host.engine.qnn_options import DISABLE_COMPILE
        from qnnbridge_host.model.compatibility import HostTraits
        from qnnbridge_host.model.prepared import choose
        from qnnbridge_host.model.source import KnownFile, interruptible
        from qnnbridge_protocol.specs import SessionSpec

        header = request.header
        try:
            spec = SessionSpec.from_wire(header["spec"])
            settings = cache_settings(header.get("cache"))
            if spec.model_path is None:
                raise TypeError("a folder lacks its path")
            folder = os.path.abspath(spec.model_path)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"model.choose without a proper description ({error})") from None
        memo = memo_of(settings)
        host = HostTraits.of_hello(self._with_qnn_of_engine(), spec.providers)
        with interruptible(stop_signal(request).check):
            chosen = choose(
                folder,
                host,
                spec.providers,
                spec.free_dimensions_by_name,
                lambda path: KnownFile.look(path, memo).sha256,
                may_compile=spec.config_entries.get(DISABLE_COMPILE, "0") != "1",
                read_package=self._read_package,
            )
        of_package = chosen.settings
        return {
            "path": chosen.path,
            "reason": chosen.reason,
            "compiles": chosen.compiles,
            "config_entries": _texts(of_package.get("session_options")),
            "provider_options": _texts(of_package.get("provider_options")),
        }, ()

    def _read_package(self, folder: str) -> Sequence[PackageVariant]:
        _ = self._maker.sessions.engine  # loads ONNX Runtime
        from qnnbridge_host.engine.ort_objects import package_variants

        return package_variants(folder)

    def create(self, request: Request, enter: Enter) -> Answer:
        """Create a session: identify the model, look for its cache entry, compile it if necessary, and load it."""
        from qnnbridge_host.cache.key import qnn_options
        from qnnbridge_host.engine.qnn_options import newer_release, newer_than_tables
        from qnnbridge_host.model.compiled_checks import (
            before_session,
            path_for_qnn,
            unchecked,
            with_context_folder,
        )
        from qnnbridge_protocol.model_records import EntryFault, Notice
        from qnnbridge_protocol.specs import QNN, SessionSpec

        stop = stop_signal(request)
        header = request.header
        try:
            spec = SessionSpec.from_wire(header["spec"])
            model, initializers = model_and_tensors(request, spec, header.get("initializers", []))
            folder = str(header.get("folder") or os.getcwd())
            settings = cache_settings(header.get("cache"))
            fingerprint = header.get("fingerprint")
            files = [(str(path), int(size), int(date)) for path, size, date in header.get("files") or ()]
            quarantined = frozenset(str(one) for one in header.get("quarantined") or ())
            faults = [EntryFault.from_wire(one) for one in header.get("invalid_entries") or ()]
            dynamic = {str(key): str(text) for key, text in (header.get("dynamic") or {}).items()}
            check = header.get("context_check")
            seed = header.get("seed")
            if not isinstance(seed, (int, type(None))):
                raise TypeError(f"a seed is {type(seed).__name__}")
            budget_s = header.get("budget_s")
            deadline = deadline_of(budget_s)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"session.create without a proper description ({error})") from None
        data = None if model is None else bytes(model)
        contexts = contexts_of_function(request, spec, data, folder, settings, stop)
        if contexts is not None:
            # The recorded file dates belong to the original and do not apply to the copy.
            spec, data, files = dataclasses.replace(spec, model_path=contexts.path), None, []
        source = open_model(
            spec.model_path, data, data_folder(spec.config_entries, folder), settings, stop, fingerprint, files
        )
        # Check the quarantine before native code reads the model.
        refuse_quarantined(source, quarantined)
        order = self._maker.order(request, stop, source, deadline, budget_s)
        if source.scan is None:
            source = self._wrapped(source, spec, settings, order, check)
            if source.binary is not None:
                folder = os.path.dirname(source.binary)
        warnings = before_session(source, spec.providers, self._judged(source), spec.config_entries, folder, check)
        entries = dict(with_context_folder(source, spec.config_entries, folder))
        if source.scan is not None and source.scan.is_compiled:
            from qnnbridge_host.engine.qnn_options import DISABLE_CPU_FALLBACK
            from qnnbridge_host.model.context_files import only_converts

            if only_converts(source):  # a model of `wrap --float-io` needs the CPU for conversions
                entries.setdefault(DISABLE_CPU_FALLBACK, "0")
        if data is not None and source.files and EXTERNAL_DATA_FOLDER not in entries:
            # Use the application's current folder: the host's may differ, because several applications can share
            # the host.
            entries[EXTERNAL_DATA_FOLDER] = os.path.abspath(folder)
        stop.check()
        spec = dataclasses.replace(spec, config_entries=entries, model_path=path_for_qnn(source))
        made = self._maker.make(
            Creation(
                *(request, enter, order, spec, source, folder, settings),
                *(initializers, dynamic, seed, quarantined, faults),
            )
        )
        if contexts is not None:
            self._maker.sessions.hold(made.session, contexts)
        without_manifest = unchecked(source)
        took = made.info.placement.npu_memory
        notices = [Notice("model", text) for text in warnings] + made.notices
        if QNN in made.info.providers:
            release = newer_release(self._maker.host_info.versions.get("onnxruntime_qnn"))
            notices += [Notice("once", text) for text in release]
        notices += [Notice("once", text) for text in newer_than_tables(qnn_options(spec))]
        if without_manifest is not None:
            notices.append(Notice("once", without_manifest))
        if took:
            notices.append(Notice("once", f"{source.label} is {took}."))
        left_out = made.info.modelmeta.get("left_out")
        if left_out:
            text = f"{source.label}: get_modelmeta() omits strings that are too long: {', '.join(left_out)}."
            notices.append(Notice("model", text))
        kept = _kept_numbers(settings, made.cache.key)
        request.after = functools.partial(_after_creation, settings, made.cache.key if kept else None)
        return {
            "session": made.session,
            "info": made.info.to_wire(),
            "model": source.identity.to_wire(),
            "cache": made.cache.to_wire(),
            "blame": made.blame,
            "notices": [notice.to_wire() for notice in notices],
            "fixed": list(made.changes),
            "fix": None if made.fix is None else made.fix.to_wire(),
            "disabled_optimizers": list(made.disabled_optimizers),
            # With a known verdict the first call is not compared with the CPU (ADR 0015).
            "numbers": kept or _shipped_numbers(source),
        }, ()

    def _wrapped(
        self,
        source: ModelSource,
        spec: SessionSpec,
        settings: CacheSettings | None,
        order: WorkOrder,
        check: str | None,
    ) -> ModelSource:
        """Return the model that is built for a bare context binary; return any other source unchanged.

        Before reading the binary, raise an error if this host cannot run it.
        """
        from qnnbridge_host.create.replaced import wrapped_source
        from qnnbridge_host.model.compiled_checks import before_session, path_for_qnn
        from qnnbridge_host.model.context_files import facts_of, sketch

        facts = facts_of(source.path) if source.path is not None else None
        if facts is None:
            return source
        drawn = source._replace(path=None, data=b"", scan=sketch(source.path or "", facts), binary=source.path)
        folder = os.path.dirname(source.path or "")
        host = self._judged(drawn)
        before_session(drawn, spec.providers, host, spec.config_entries, folder, check)
        # QNN will search for the binary by this path.
        found = path_for_qnn(drawn._replace(path=source.path))
        library = f"{host.versions.get('onnxruntime_qnn')} {host.versions.get('qnn_sdk')}"
        made = wrapped_source(source, spec.config_entries, settings, order, library)
        return made._replace(binary=found)

    def compile(self, request: Request, _enter: Enter) -> Answer:
        """Compile models in a worker, validate them, and move the files to the application's destination."""
        from qnnbridge_host.create.orchestrate import CompileTask, compile_to, finished
        from qnnbridge_host.create.publish import destination_of

        stop = stop_signal(request)
        header = request.header
        try:
            folder = str(header.get("folder") or os.getcwd())
            quarantined = frozenset(str(one) for one in header.get("quarantined") or ())
            budget_s = header.get("budget_s")
            validate, overwrite = bool(header.get("validate", True)), bool(header.get("overwrite"))
            resume = bool(header.get("resume"))
            deadline = deadline_of(budget_s)
            described = list(header["jobs"])
            jobs = tuple(compile_jobs(request, described, folder, stop))
            destinations = tuple(
                destination_of(job.source, one.get("output"), folder, tag=str(one.get("tag") or ""))
                for job, one in zip(jobs, described, strict=True)
            )
            first = jobs[0].source
        except BridgeError:
            raise  # some `BridgeError`s are also `ValueError`s, which the next clause would convert
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"model.compile without a proper description ({error})") from None
        for job in jobs:
            refuse_quarantined(job.source, quarantined)
        if len({destination.folder for destination in destinations}) > 1:
            raise OptionError(
                "The models are in different folders, but their compiled files must share one.",
                fix="Specify the folder for the result: -o DIR (output=).",
            )
        order = self._maker.order(request, stop, first, deadline, budget_s)
        hello, optimizers = self._maker.hello, self._maker.optimizers
        task = CompileTask(jobs, destinations, order, hello, validate, overwrite, optimizers)
        paths = [destination.path for destination in destinations]
        skipped = None
        if resume and not overwrite and any(os.path.exists(path) for path in paths):
            # Get the versions only for this comparison, because getting them loads ONNX Runtime.
            skipped = finished(task, {**self._maker.hello.versions, **self._maker.sessions.engine.versions()})
        results = () if skipped else compile_to(task)
        return {"results": [result.to_wire() for result in results], "skipped": skipped, "paths": paths}, ()

    def _judged(self, source: ModelSource) -> Hello:
        """Return the HELLO with the versions for checks of the model; for a compiled model, QNN's are included."""
        compiled = source.scan is not None and source.scan.is_compiled
        return self._with_qnn_of_engine() if compiled else self._maker.hello

    def _with_qnn_of_engine(self) -> Hello:
        """Return HELLO with QNN's versions. If QNN does not come from the wheel, this loads the engine."""
        if "onnxruntime_qnn" in self._maker.hello.versions:
            return self._maker.hello
        try:
            of_engine = self._maker.sessions.engine.versions()
        except BridgeError:  # creating the session raises the same error later
            return self._maker.hello
        return self._maker.hello._replace(versions={**self._maker.hello.versions, **of_engine})


def _texts(options: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in options.items()} if isinstance(options, dict) else {}


def _operators(source: ModelSource) -> tuple[str, ...]:
    from qnnbridge_host.model.scan import scan_model

    return tuple(sorted(scan_model(source.given).ops))


def _kept_numbers(settings: CacheSettings | None, key: str | None) -> dict[str, Any] | None:
    """Return the stored verdict on the accuracy of a cache entry."""
    if settings is None or key is None:
        return None
    kept = _verdicts(settings).read(key)
    return None if kept is None else kept.to_wire()


def _verdicts(settings: CacheSettings) -> Verdicts:
    from pathlib import Path

    from qnnbridge_host.cache.memo import Verdicts
    from qnnbridge_host.cache.store import Store

    return Verdicts(Store(Path(settings.folder)).root)


def _shipped_numbers(source: ModelSource) -> dict[str, Any] | None:
    """Return the result of the accuracy check from the manifest of a compiled model."""
    if source.path is None or source.scan is None or not source.scan.is_compiled:
        return None
    from qnnbridge_host.model.manifest import shipped_numbers

    found = shipped_numbers(source.path)
    return None if found is None else found.to_wire()


def _after_creation(settings: CacheSettings | None, key: str | None) -> None:
    """After the response, import the modules that `session.run` needs, while the application prepares its inputs.

    key: key of a stored verdict, to which one call is added now. Otherwise a program that makes a single call could
        end before its call is counted, and would never reach the next comparison.
    """
    if settings is not None and key is not None:
        _verdicts(settings).count(key, 1)
    with contextlib.suppress(ImportError):  # a run that needs the module raises the error
        from qnnbridge_host import fastpath  # noqa: F401
        from qnnbridge_host.engine import ort_values  # noqa: F401
        from qnnbridge_protocol import values  # noqa: F401


# --- reading requests ------------------------------------------------------------------------------------
#
# If a description is invalid, these functions raise `LookupError`, `TypeError` or `ValueError`; the caller adds the
# name of the operation.


def model_and_tensors(
    request: Request, spec: SessionSpec, described: Sequence[Any]
) -> tuple[Any | None, tuple[Any, ...]]:
    """Return the model's bytes (``None`` if the model is a file) and the values of ``spec.value_names`` in this
    order.

    described: descriptions of the values, which are in the request's buffers.
    """
    # The last buffer, after the tensors, is the model if it is sent as bytes.
    count = len(request.buffers) - (spec.model_path is None)
    model = request.buffers[count] if spec.model_path is None else None
    values: tuple[Any, ...] = ()
    if described or count:
        from qnnbridge_protocol.values import decode_all

        values = tuple(decode_all(described, request.buffers[:count]))
    if len(values) != len(spec.value_names):
        raise ValueError(f"{len(values)} values of initializers")
    return model, values


def stop_signal(request: Request) -> StopSignal:
    """Create and return the stop signal of a request that is being served."""
    # Set the signal before checking, so that a cancellation at any moment takes effect.
    request.stopper = stop = StopSignal()
    if request.withdrawn:  # the request was withdrawn before the signal was set
        stop.stop()
    return stop


def deadline_of(budget_s: Any) -> float | None:
    """Return when a request that has just arrived expires, on `time.monotonic`; ``None`` without a budget.

    Raises:
        ValueError: `budget_s` is not a duration.
    """
    if budget_s is None:
        return None
    # Compare the type, because a bool is an int. Use `not >=`, because comparisons with NaN are false.
    if type(budget_s) not in (int, float) or not budget_s >= 0:
        raise ValueError(f"budget_s={str(budget_s)[:40]!r} is not a duration")
    return time.monotonic() + min(budget_s, LONGEST_S) if budget_s else None


def compile_jobs(
    request: Request, described: Sequence[Mapping[str, Any]], folder: str, stop: StopSignal
) -> list[Any]:
    """Return the jobs of a `model.compile`.

    The request's buffers are the tensors, followed by the models without a path in the order of the jobs.
    """
    from qnnbridge_host.create.publish import CompilerInput
    from qnnbridge_host.model.scan import refuse_compiled
    from qnnbridge_protocol.specs import SessionSpec
    from qnnbridge_protocol.values import Decoder

    specs = [SessionSpec.from_wire(one["spec"]) for one in described]
    count = len(request.buffers) - sum(spec.model_path is None for spec in specs)
    if count < 0:
        raise LookupError("a model is missing")
    models = iter(request.buffers[count:])
    decoder = Decoder(request.buffers[:count])
    jobs = []
    for spec, one in zip(specs, described, strict=True):
        data = bytes(next(models)) if spec.model_path is None else None
        # Refuse compiled models before hashing, which takes seconds for a model of several gigabytes.
        refuse_compiled(spec.model_path if spec.model_path is not None else data or b"", COMPILE_COMMAND)
        source = open_model(spec.model_path, data, data_folder(spec.config_entries, folder), None, stop)
        values = tuple(decoder.value(item) for item in one.get("initializers") or ())
        inputs = {str(name): decoder.value(item) for name, item in one.get("inputs") or ()}
        jobs.append(CompilerInput(source, spec, embed=bool(one.get("embed")), initializers=values, inputs=inputs))
    decoder.finish()
    return jobs


def open_model(
    path: str | None,
    data: bytes | None,
    folder: str,
    settings: CacheSettings | None,
    stop: StopSignal,
    fingerprint: str | None = None,
    files: Sequence[Sequence[Any]] = (),
) -> ModelSource:
    """Identify a model, using the file hashes that the cache has stored.

    Args:
        path: the model's file; ``None`` for a model given as bytes.
        data: the model's bytes, if `path` is ``None``.
        folder: folder to which relative paths refer.
        settings: the cache's settings; ``None`` without a cache.
        stop: the request's stop signal.
        fingerprint: the expected fingerprint, if the application has one.
        files: path, size and date of each file of the model at the time the fingerprint was computed.

    Raises:
        Cancelled: the request was withdrawn.
        ModelChanged: the model does not have the expected fingerprint.
        OrtError: the model cannot be read.
    """
    from qnnbridge_host.model.source import ModelSource, interruptible, open_again

    memo = memo_of(settings)
    given: str | bytes = path if path is not None else data or b""
    with interruptible(stop.check):
        if fingerprint is not None:
            return open_again(given, folder, memo, fingerprint, files)
        return ModelSource.open(given, folder, memo)


def memo_of(settings: CacheSettings | None) -> Memo | None:
    """Return the cache's table of file hashes; ``None`` without a cache."""
    if settings is None or not settings.in_use:
        return None
    from qnnbridge_host.cache import memo

    return memo.memo_of(settings)


def contexts_of_function(
    request: Request,
    spec: SessionSpec,
    data: bytes | None,
    folder: str,
    settings: CacheSettings | None,
    stop: StopSignal,
) -> ContextFolder | None:
    """Return a folder with a copy of the model and the context binaries that a function of the application returns.

    Return ``None`` if the application passed no such function, or if the model does not need it.
    """
    calls_back = request.calls_back
    if calls_back is None or "ep_context_read" not in calls_back:
        return None
    from qnnbridge_host.create.replaced import fetch_contexts

    source = open_model(spec.model_path, data, data_folder(spec.config_entries, folder), settings, stop)
    return fetch_contexts(source, calls_back)


def cache_settings(wire: Mapping[str, Any] | None) -> CacheSettings | None:
    from qnnbridge_protocol.model_records import CacheSettings

    return None if wire is None else CacheSettings.from_wire(wire)


def data_folder(config_entries: Mapping[str, str], folder: str) -> str:
    """Return the folder to which relative paths in a model given as bytes refer."""
    return os.path.join(folder, config_entries.get(EXTERNAL_DATA_FOLDER, ""))
