"""The host's work on an application's models: it identifies the model, asks its cache, compiles in
workers, and makes the session.

A request goes through its steps in the thread that serves it; only the native creation is one at a time. Whatever
waits ends when the request is withdrawn. Any thread.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qnnbridge_host.cancellation import StopSignal
from qnnbridge_host.in_flight import Request
from qnnbridge_host.model_requests import (
    EXTERNAL_DATA_FOLDER,
    cache_settings,
    compile_jobs,
    data_folder,
    deadline_of,
    model_and_tensors,
    open_model,
    seed_of,
    stop_signal,
)
from qnnbridge_host.model_warnings import against, known_faults
from qnnbridge_host.sessions import Enter, Sessions
from qnnbridge_protocol.errors import BridgeError, ModelQuarantined, OptionError, PlacementRefused
from qnnbridge_protocol.frames import desync

if TYPE_CHECKING:
    from qnnbridge_host.cache.entry import CacheEntry, Loadable
    from qnnbridge_host.cache.lookup import Compile, SessionCache
    from qnnbridge_host.cache.store import Store
    from qnnbridge_host.compile.worker import WorkOrder
    from qnnbridge_host.context_read import ContextFolder
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_host.npu_reset import ResettableSession
    from qnnbridge_host.rewrite.fixed_source import FixedSource
    from qnnbridge_host.server import Answer
    from qnnbridge_protocol.hello import Hello
    from qnnbridge_protocol.model_records import CacheReply, CacheSettings, EntryFault, Notice
    from qnnbridge_protocol.specs import HostInfo, SessionInfo, SessionSpec

# So many entries of one key are tried for one session: the second strike leaves a model alone.
MAX_ENTRIES: Final = 3


class _Creation(NamedTuple):
    """A `session.create` in the host's terms."""

    request: Request
    enter: Enter
    stop: StopSignal
    spec: SessionSpec
    source: ModelSource
    initializers: tuple[Any, ...]
    dynamic: Mapping[str, str]
    seed: int | None
    deadline: float | None
    budget_s: float | None

    @property
    def by_name(self) -> dict[str, Any]:
        return dict(zip(self.spec.value_names, self.initializers, strict=True))


class ModelService:
    """See the module."""

    def __init__(self, sessions: Sessions, hello: Hello | None = None, worker: str | None = None) -> None:
        self._sessions = sessions
        self._given_hello = hello
        self._worker = worker
        self._info: HostInfo | None = None

    # --- operations ---

    def identify(self, request: Request, _enter: Enter) -> Answer:
        """The model's identity and the contents of its file. Loads nothing native."""
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
        source = open_model(path, data, folder, settings)
        scan = source.scan
        described = ModelDescription(source.identity, readable=False)
        if scan is not None and scan.format == "onnx":
            ends, files = (scan.inputs, scan.outputs), scan.external_files
            described = ModelDescription(source.identity, True, *ends, external=files, metadata=scan.properties)
        told = described.to_wire()
        return {
            "model": told["model"],
            "readable": told["readable"],
            "inputs": told["inputs"],
            "outputs": told["outputs"],
            "external": told["external"],
            "metadata": told["metadata"],
        }, ()

    def create(self, request: Request, enter: Enter) -> Answer:
        """Resolve the model, ask the cache, compile if need be, make the session."""
        from qnnbridge_host.model.checks import before_session, path_for_qnn, unchecked, with_context_folder
        from qnnbridge_protocol.model_records import EntryFault, Notice
        from qnnbridge_protocol.specs import SessionSpec

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
            seed = seed_of(header.get("seed"))
            budget_s = header.get("budget_s")
            deadline = deadline_of(budget_s)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"session.create without a proper description ({error})") from None
        data = None if model is None else bytes(model)
        contexts = _contexts_of_function(request, spec, data, folder, settings)
        if contexts is not None:
            spec, data, files = dataclasses.replace(spec, model_path=contexts.path), None, []
        source = open_model(
            spec.model_path, data, data_folder(spec.config_entries, folder), settings, fingerprint, files
        )
        _refuse_quarantined(source, quarantined)
        warnings = before_session(source, spec.providers, self._hello, spec.config_entries, folder, check)
        entries = dict(with_context_folder(source, spec.config_entries, folder))
        if data is not None and source.files and EXTERNAL_DATA_FOLDER not in entries:
            # The host's own current folder is another one, if several applications share it.
            entries[EXTERNAL_DATA_FOLDER] = os.path.abspath(folder)
        stop.check()
        used = source
        changes: tuple[str, ...] = ()
        if spec.fix is not None:
            order = self.order(request, stop, source, deadline, budget_s)
            fixed = self.fixed(request, source, spec, settings, folder, order)
            used, spec, changes = fixed.source, fixed.spec, fixed.changes
            _refuse_quarantined(used, quarantined)
        spec = dataclasses.replace(spec, config_entries=entries, model_path=path_for_qnn(used))
        creation = _Creation(request, enter, stop, spec, used, initializers, dynamic, seed, deadline, budget_s)
        try:
            made = self._make(creation, settings, quarantined, faults)
            if contexts is not None:
                self._sessions.hold(made.session, contexts)
        except PlacementRefused as refusal:
            if used is source:
                from qnnbridge_host.rewrite.suggestion import suggest_fix

                suggest_fix(refusal, source, spec, self.order(request, stop, source, deadline, budget_s))
            raise
        without_manifest = unchecked(source)
        notices = [Notice("model", text) for text in warnings] + made.notices
        if without_manifest is not None:
            notices.append(Notice("once", without_manifest))
        return {
            "session": made.session,
            "info": made.info.to_wire(),
            "model": source.identity.to_wire(),
            "cache": made.cache.to_wire(),
            "blame": made.blame,
            "notices": [notice.to_wire() for notice in notices],
            "fixed": list(changes),
            "numbers": _kept_numbers(settings, made.cache.key),
        }, ()

    def compile(self, request: Request, _enter: Enter) -> Answer:
        """Compile models into files of the application's, each in a worker, tried before they are delivered."""
        from qnnbridge_host.compile.destination import destination_of
        from qnnbridge_host.compile.orchestrate import CompileTask, compile_to, finished

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
            jobs = tuple(compile_jobs(request, described, folder))
            destinations = tuple(
                destination_of(job.source, one.get("output"), folder, tag=str(one.get("tag") or ""))
                for job, one in zip(jobs, described, strict=True)
            )
            label = jobs[0].source.label
        except BridgeError:
            raise  # some are also a `ValueError`
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"model.compile without a proper description ({error})") from None
        for job in jobs:
            _refuse_quarantined(job.source, quarantined)
        if len({destination.folder for destination in destinations}) > 1:
            raise OptionError(
                "The models lie in different folders, and their compiled ones share a file.",
                fix="Give the folder for the result: -o DIR (output=).",
            )
        order = self.order(request, stop, jobs[0].source, deadline, budget_s)
        task = CompileTask(jobs, destinations, order, self._hello, validate, overwrite)
        paths = [destination.path for destination in destinations]
        skipped = None
        if resume and not overwrite and any(os.path.exists(path) for path in paths):
            # Only then the versions matter, for which ONNX Runtime has to be there.
            skipped = finished(task, {**self._hello.versions, **self._sessions.engine.versions()})
        results = () if skipped else compile_to(task, _progress(request, label))
        return {"results": [result.to_wire() for result in results], "skipped": skipped, "paths": paths}, ()

    def fixed(
        self,
        request: Request,
        source: ModelSource,
        spec: SessionSpec,
        settings: CacheSettings | None,
        folder: str,
        order: WorkOrder,
    ) -> FixedSource:
        """The rewritten copy in the place of a model, as `spec.fix` asks for it."""
        from qnnbridge_host.compile.worker import ticking
        from qnnbridge_host.rewrite.fixed_source import fixed_source

        progress = _progress(request, source.label)
        with ticking(lambda seconds: progress("rewriting", seconds)):
            return fixed_source(source, spec, settings, folder, order)

    def known_faults(self, source: ModelSource, spec: SessionSpec) -> str:
        return known_faults(source, spec, self._hello)

    # --- making a session ---

    def _make(
        self,
        creation: _Creation,
        settings: CacheSettings | None,
        quarantined: frozenset[str],
        faults: Sequence[EntryFault],
    ) -> _Made:
        from qnnbridge_protocol.model_records import CacheReply, Notice

        if settings is None or (settings.wanted is False and not faults):
            session, info = self._native(creation, None)
            number = self._sessions.keep(creation.request, session)
            notices = against(creation.source, creation.spec, self._hello, info)
            return _Made(number, info, CacheReply("off", "cache=False"), creation.source.fingerprint, notices)
        cache = self._cache(creation, settings, quarantined)
        cache.set_aside(faults)
        reason = cache.reason_against
        try:
            loadable = None
            if reason is not None:
                cache.off(reason)
            else:
                loadable = cache.find(self.host_info, self._compiler_of(creation), creation.deadline)
            session, info, loadable = self._from_entry_or_model(creation, cache, loadable)
            number = self._sessions.keep(creation.request, session, cache.take_use())
        except BaseException:
            cache.release()
            raise
        if loadable is None:
            return _Made(
                number,
                info,
                cache.reply,
                creation.source.fingerprint,
                cache.notices + against(creation.source, creation.spec, self._hello, info),
            )
        warning = loadable.entry.manifest.warning
        notices = cache.notices + ([Notice("model", warning)] if warning else [])
        return _Made(number, info, cache.reply, loadable.fingerprint, notices)

    def _from_entry_or_model(
        self, creation: _Creation, cache: SessionCache, loadable: Loadable | None
    ) -> tuple[ResettableSession, SessionInfo, Loadable | None]:
        for _ in range(MAX_ENTRIES):
            if loadable is None:
                break
            try:
                session, loaded = self._native(creation, loadable)
            except BridgeError as error:
                creation.stop.check()  # the entry is not at fault
                if not cache.load_failed(loadable, error):
                    raise
            else:
                info = None
                try:
                    info = cache.loaded(loadable, loaded)
                finally:
                    if info is None:
                        session.close()
                if info is not None:
                    return session, info, loadable
            creation.stop.check()
            loadable = cache.find(self.host_info, self._compiler_of(creation), creation.deadline)
        else:
            cache.release()
        session, info = self._native(creation, None)
        cache.made_without(info)
        return session, info, None

    def _native(self, creation: _Creation, loadable: Loadable | None) -> tuple[ResettableSession, SessionInfo]:
        """Make it from the entry, or from the model. A death counts against the one in use."""
        source, request = creation.source, creation.request
        if loadable is None:
            request.blame = {"fingerprint": source.fingerprint, "label": source.label}
            paths = (source.path, *source.files) if source.path is not None else source.files
            spec, model, values, files = creation.spec, source.data, creation.by_name, paths
        else:
            manifest = loadable.entry.manifest
            entry = {"key": manifest.key, "id": manifest.id}
            request.blame = {"fingerprint": loadable.fingerprint, "label": source.label, "entry": entry}
            spec, model, values, files = loadable.spec(creation.spec), None, {}, loadable.files
        session = self._sessions.create(
            request,
            creation.enter,
            spec,
            model,
            values,
            files=tuple(path for path in files if path is not None),
            dynamic=creation.dynamic,
            seed=creation.seed,
            deadline=creation.deadline,
            stop=creation.stop,
        )
        if loadable is None:
            try:
                source.check_unchanged()
            except BaseException:
                session.close()
                raise
        return session, session.info

    def _cache(self, creation: _Creation, settings: CacheSettings, quarantined: frozenset[str]) -> SessionCache:
        from qnnbridge_host.cache.lookup import SessionCache

        progress = _progress(creation.request, creation.source.label)

        def on_wait(seconds: float) -> None:
            creation.stop.check()
            progress("waiting", seconds)

        return SessionCache(
            creation.source,
            creation.spec,
            creation.initializers,
            settings,
            refused=quarantined,
            on_wait=on_wait,
            on_compile=lambda seconds: progress("compiling", seconds),
        )

    def _compiler_of(self, creation: _Creation) -> Compile:
        def compile_entry(
            store: Store,
            key: str,
            parts: Mapping[str, Any],
            deadline: float | None,
            on_progress: Callable[[float], None],
        ) -> CacheEntry:
            from qnnbridge_host.compile import entry
            from qnnbridge_host.compile.jobs import CompilerInput

            job = CompilerInput(creation.source, creation.spec, initializers=creation.initializers)
            warn = functools.partial(known_faults, creation.source, creation.spec, self._hello)
            order = self.order(creation.request, creation.stop, creation.source, deadline, creation.budget_s)
            return entry.build_entry(store, key, parts, job, order, on_progress, warn)

        return compile_entry

    def order(
        self,
        request: Request,
        stop: StopSignal,
        source: ModelSource,
        deadline: float | None,
        budget_s: float | None,
    ) -> WorkOrder:
        from qnnbridge_host.compile.worker import WorkOrder, worker_command

        return WorkOrder(
            command=worker_command(self._worker),
            stop=stop,
            request=request.id,
            label=source.label,
            fingerprint=source.fingerprint,
            deadline=deadline,
            budget_s=budget_s,
            limits=self._hello.limits,
        )

    @property
    def _hello(self) -> Hello:
        if self._given_hello is None:
            from qnnbridge_host.handshake import introduction

            self._given_hello = introduction()
        return self._given_hello

    @property
    def host_info(self) -> HostInfo:
        """The inputs of a compiled model besides model and options. Waits for the engine."""
        if self._info is None:
            from qnnbridge_protocol.specs import HostInfo

            engine, hello = self._sessions.engine, self._hello
            told = engine.describe()
            self._info = HostInfo(
                pid=hello.pid,
                machine=hello.machine,
                python=hello.python,
                executable=hello.executable,
                qnnbridge=hello.qnnbridge,
                platform=hello.platform,
                generation=0,
                startup_seconds=0.0,
                versions={**hello.versions, **engine.versions()},
                providers=tuple(told.get("providers", ())),
                devices=tuple(told.get("devices", ())),
                simulator=told.get("simulator"),
                library_folder=told.get("library_folder"),
            )
        return self._info


class _Made(NamedTuple):
    """A session that is kept. blame: the fingerprint to book a later death on."""

    session: int
    info: SessionInfo
    cache: CacheReply
    blame: str
    notices: list[Notice]


def _kept_numbers(settings: CacheSettings | None, key: str | None) -> dict[str, Any] | None:
    """What is known of the numbers of an entry."""
    if settings is None or key is None:
        return None
    from pathlib import Path

    from qnnbridge_host.cache.store import Store
    from qnnbridge_host.cache.verdicts import Verdicts

    kept = Verdicts(Store(Path(settings.folder)).root).read(key)
    return None if kept is None else kept.to_wire()


def _refuse_quarantined(source: ModelSource, quarantined: frozenset[str]) -> None:
    if source.fingerprint in quarantined:
        identity = source.identity
        raise ModelQuarantined(
            f"The model {source.label} is in quarantine.",
            details={
                "fingerprint": source.fingerprint,
                "label": source.label,
                "compiled": identity.compiled,
                "files": [list(file) for file in identity.files],
            },
        )


def _progress(request: Request, label: str) -> Callable[[str, float], None]:
    def tell(stage: str, seconds: float) -> None:
        request.emit({"event": "progress", "stage": stage, "seconds": seconds, "label": label})

    return tell


def _contexts_of_function(
    request: Request, spec: SessionSpec, data: bytes | None, folder: str, settings: CacheSettings | None
) -> ContextFolder | None:
    """The context binaries that a function of the application has, beside a copy of the model."""
    calls_back = request.calls_back
    if calls_back is None or "ep_context_read" not in calls_back:
        return None
    from qnnbridge_host.context_read import fetch_contexts

    source = open_model(spec.model_path, data, data_folder(spec.config_entries, folder), settings)
    return fetch_contexts(source, calls_back)
