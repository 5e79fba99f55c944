"""Creation of a session from a cache entry, from the model, or from a rewritten copy of the model.

Theory of operation. The input is a `Creation`: model, options, cache settings, quarantined fingerprints, deadline.
The result is a `MadeSession`: number, description, result of the cache, and the fingerprint that is blamed for a
crash. The model to load is chosen in this order:

    the model, chosen before anything is created (`choose`):
        fix="always"                              --> rewritten copy
        QNN is known to compute an operator wrong --> a copy without it, if the rewrite computes the same on the CPU
        a stored verdict is "differs"             --> a copy with separated gates, unless that did not help before
        otherwise, or if such a copy is not used  --> the model as given
    for this model the entry of the cache, compiled by a worker if it is missing
        does not load or does not match --> set aside, looked up again, at most `MAX_ENTRIES` times
        the cache cannot be used        --> the model itself
    QNN refuses the model, fix="refused" --> rewritten copy; the first refusal is raised if that fails, too

Before each native step `request.blame` records the model to which a crash is attributed: the cache entry if one is
loaded, else the model itself. It must be set before `enter`, because a crashed process cannot report it.

Invariant: the fingerprint is computed from the bytes from which the session was created. Files are stamped before
and after a load; a model that changed meanwhile is loaded again, and refused if it keeps changing. `Cancelled` and
`DeadlineExceeded` are raised unchanged, because they do not mean that an entry or a copy is bad. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.create.choose import AS_GIVEN, ModelChoice, choose_model, may_rewrite, writes_files
from qnnbridge_host.create.optimizers import Optimizers
from qnnbridge_host.create.order import (
    Creation,
    WorkOrder,
    known_faults,
    refuse_quarantined,
    worker_command,
)
from qnnbridge_host.request.in_flight import NO_STEP, Request
from qnnbridge_protocol.errors import BridgeError, Cancelled, DeadlineExceeded, ModelError, PlacementRefused
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    from qnnbridge_host.cache.entry import CacheEntry
    from qnnbridge_host.cache.memo import OptimizerChoice
    from qnnbridge_host.create.lookup import SessionCache
    from qnnbridge_host.create.parting import Parting
    from qnnbridge_host.engine.sessions import ResettableSession, Sessions
    from qnnbridge_host.model.genai_folder import GenaiFolder
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_host.request.client import StopSignal
    from qnnbridge_protocol.connection import Hello
    from qnnbridge_protocol.model_records import CacheReply, CacheSettings, Notice, NoticeKind
    from qnnbridge_protocol.specs import FixSpec, HostInfo, SessionInfo, SessionSpec

# Maximum number of entries that are tried for one session. After the second failure the model is no longer cached.
MAX_ENTRIES: Final = 3
# Maximum number of loads of a model whose files may have changed during a load. A changed stamp does not prove
# that a file changed: compilations and tools create hard links, which also change its stamp.
ATTEMPTS: Final = 4


class MadeSession(NamedTuple):
    """Result of a creation: a session that belongs to the client.

    Attributes:
        session: the session's number.
        info: inputs, outputs, metadata and placement of the original model, also for a session from the cache.
        cache: whether an entry was loaded, or why not.
        blame: the fingerprint to which a later crash is attributed.
        notices: messages for the application.
        changes: descriptions of the rewrites.
        fix: names of the rewrites, if the host chose a copy.
        disabled_optimizers: ONNX Runtime's optimizers that the host has disabled.
    """

    session: int
    info: SessionInfo
    cache: CacheReply
    blame: str
    notices: list[Notice]
    changes: tuple[str, ...] = ()
    fix: FixSpec | None = None
    disabled_optimizers: tuple[str, ...] = ()


class SessionMaker:
    """Creates sessions from a cache entry, a model or a rewritten copy.

    hello: this host's HELLO message, with its architecture and versions. worker: value of the option ``--worker``.
    """

    def __init__(self, sessions: Sessions, hello: Hello, worker: str | None = None) -> None:
        self.sessions = sessions
        self.hello = hello
        self.optimizers = Optimizers(hello)
        self._worker = worker
        self._info: HostInfo | None = None

    @property
    def host_info(self) -> HostInfo:
        """Versions and chip on which a compiled model depends, besides model and options. Waits for the engine."""
        if self._info is None:
            engine = self.sessions.engine
            self._info = self.hello.info({"versions": engine.versions(), **engine.describe()})
        return self._info

    def order(
        self,
        request: Request,
        stop: StopSignal,
        source: ModelSource | GenaiFolder,
        deadline: float | None,
        budget_s: float | None,
    ) -> WorkOrder:
        """Return the task for worker processes that work on a model."""
        return WorkOrder(
            command=worker_command(self._worker),
            stop=stop,
            model=source,
            request=request.id,
            deadline=deadline,
            budget_s=budget_s,
            limits=self.hello.limits,
            emit=request.emit,
        )

    def make(self, creation: Creation) -> MadeSession:
        """Choose the model to load, and create the session from it.

        Raises:
            PlacementRefused: QNN refuses the model; the error suggests rewrites that may help.
            BridgeError: the session cannot be created for another reason.
        """
        made = self._from_choice(creation, self._choice(creation))
        if isinstance(made, PlacementRefused):
            made = self._after_refusal(creation, made)
        if isinstance(made, BridgeError):
            try:
                raise made
            finally:
                del made  # the error's traceback refers to this frame: break the reference cycle
        return made

    def _choice(self, creation: Creation) -> ModelChoice:
        """Choose the model to load. Wait for the engine unless the session's options alone decide."""
        fix, settings = creation.spec.fix, creation.settings
        if fix is not None and fix.when == "always":
            return ModelChoice(fix)
        if not may_rewrite(creation):
            return AS_GIVEN
        cache = None
        if settings is not None and settings.in_use:
            from qnnbridge_host.create.lookup import SessionCache

            cache = SessionCache(self._as_loaded(creation), settings, self.hello)
        return choose_model(creation, self.host_info, cache)

    def _from_choice(self, creation: Creation, choice: ModelChoice) -> MadeSession | BridgeError:
        if choice.fix is not None and not choice.rewrites:
            return self._attempt(creation, choice.fix)
        plain = creation._replace(spec=dataclasses.replace(creation.spec, fix=None))
        made = self._attempt(plain, choice.fix)
        if choice.fix is None:
            return made
        if choice.parting is not None:
            return self._parted(plain, choice, choice.parting, made)
        return self._cured(plain, choice, made)

    def _attempt(self, creation: Creation, fix: FixSpec | None) -> MadeSession | BridgeError:
        """Create a session of the model as given, or of a copy with the rewrites `fix`; return the session or the
        error.

        Raises:
            Cancelled, DeadlineExceeded: the request has ended, so there is no other attempt.
        """
        try:
            return self._from_model(creation) if fix is None else self._from_copy(creation, fix)
        except (Cancelled, DeadlineExceeded):
            raise
        except BridgeError as error:
            # The traceback would keep the frames alive, and with them the bytes of the model.
            return error.with_traceback(None)

    def _after_refusal(self, creation: Creation, refusal: PlacementRefused) -> MadeSession | PlacementRefused:
        """Return the session of a rewritten copy if the application allows rewriting, else the refusal with
        advice."""
        from qnnbridge_host.create import replaced
        from qnnbridge_protocol.model_records import Notice
        from qnnbridge_protocol.specs import FixSpec

        fix = creation.spec.fix
        rewritten = fix is not None and fix.when == "always"
        if fix is not None and fix.when == "refused" and may_rewrite(creation):
            copy = self._attempt(creation, FixSpec())
            if isinstance(copy, MadeSession):
                text = (
                    f"QNN refuses {creation.source.label}, so a rewritten copy is used ({'; '.join(copy.changes)})."
                )
                return copy._replace(fix=FixSpec(), notices=[*copy.notices, Notice("done", text)])
            refusal.evidence = (*refusal.evidence, f"The rewritten copy (fix=True) fails as well: {copy.message}")
            if not isinstance(copy, PlacementRefused):
                return refusal
            rewritten = True
        replaced.suggest_fix(refusal, creation.source, creation.spec, creation.order, rewritten=rewritten)
        return refusal

    def _cured(
        self, plain: Creation, choice: ModelChoice, copy: MadeSession | BridgeError
    ) -> MadeSession | BridgeError:
        """Return the session of the copy without known-wrong operators, or a session of the model if the copy
        failed.

        copy: the session of the copy, or the error of creating it.
        """
        from qnnbridge_host.model.double_edges import REWRITE
        from qnnbridge_host.model.known_wrong import rewrites_of_failures
        from qnnbridge_protocol.model_records import Notice

        label = plain.source.label
        if isinstance(copy, MadeSession):
            # The other rewrites are prerequisites; only `choice.rewrites` fix the model.
            if cured := [change for change in copy.changes if change.startswith(choice.rewrites)]:
                what = "operators that QNN is known to compute incorrectly"
                if choice.rewrites == (REWRITE,):
                    what = "64-bit floats, with which QNN fails,"
                text = f"{label}: {what} were rewritten ({'; '.join(cured)}). Use fix=False to keep them."
                return copy._replace(fix=choice.fix, notices=[*copy.notices, Notice("done", text)])
            self.sessions.close(copy.session)
            copy = ModelError("No rewrite of these operators gives the same results on the CPU.")
        if rewrites_of_failures().isdisjoint(choice.rewrites):
            made = self._attempt(plain, None)
            if isinstance(made, MadeSession):
                why = f"{label} was not rewritten automatically: {copy.message}"
                return made._replace(notices=[*made.notices, Notice("model", why)])
            # If QNN refuses the copy and the model itself fails in another way, return the refusal of the copy: it
            # lists the nodes that the user must change.
            return made if isinstance(made, PlacementRefused) or not isinstance(copy, PlacementRefused) else copy
        if isinstance(copy, PlacementRefused):
            return copy
        # Raise an error, because compiling the unchanged model would crash the compiler.
        return ModelError(
            f"The session of {label} was not created.",
            cause=self._known_faults(plain),
            evidence=(f"The rewritten copy cannot be used: {copy.message}",),
            fix="Export the model without these operators, or compile the unchanged model with fix=False.",
        )

    def _parted(
        self, plain: Creation, choice: ModelChoice, found: Parting, copy: MadeSession | BridgeError
    ) -> MadeSession | BridgeError:
        """Return the session of the copy with separated gates (Sigmoid, Tanh), or a session of the model if the
        separation does not help.

        In the second case a note prevents later sessions from trying again. copy: the session of the copy, or the
        error of creating it.
        """
        from qnnbridge_host.cache.memo import NegativeEntries
        from qnnbridge_host.cache.store import Store
        from qnnbridge_host.create import parting
        from qnnbridge_protocol.model_records import Notice

        label = plain.source.label
        root = Store(Path(plain.settings.folder if plain.settings is not None else "")).root
        if isinstance(copy, BridgeError):
            _leave_native_code(plain)
            # Record a refusal, because it will occur again; other failures may be temporary.
            if isinstance(copy, PlacementRefused):
                NegativeEntries(root).write(found.note, "gates", copy.message, label)
            made = self._attempt(plain, None)
            if isinstance(made, BridgeError):
                return made
            why = f"{label}: its results on QNN differ from the CPU's, but Sigmoid and Tanh could not be separated "
            why += f"from the operators with which QNN merges them: {copy.message}"
            return made._replace(notices=[*made.notices, Notice("model", why)])
        # Report only changes by `gates`; the other rewrites are its prerequisites.
        changes = [change for change in copy.changes if change.startswith(choice.rewrites)]
        why = parting.is_no_better(root, copy.cache.key, found.report) if changes else "it has no such gates"
        if why:
            self.sessions.close(copy.session)
            NegativeEntries(root).write(found.note, "gates", why, label)
            return self._attempt(plain, None)
        text = (
            f"{label}: its results on QNN differed from the CPU's ({found.report.worst or found.report.reason}). "
            "So Sigmoid and Tanh were separated from the operators with which QNN merges them "
            f"({'; '.join(changes)}). This takes more cycles: 1.1 to 10 times as many in the simulator's estimate "
            "(docs/fix.md). Use fix=False to keep the gates."
        )
        return copy._replace(fix=choice.fix, notices=[*copy.notices, Notice("done", text)])

    def _from_copy(self, creation: Creation, fix: FixSpec) -> MadeSession:
        from qnnbridge_host.cache.measured import rows_of_session
        from qnnbridge_host.create import replaced
        from qnnbridge_host.model.compiled_checks import path_for_qnn

        _leave_native_code(creation)
        asked = dataclasses.replace(creation.spec, fix=fix)
        settings, folder = creation.settings, creation.folder
        here = rows_of_session(creation.spec, self.host_info.versions, simulator=self.hello.machine != "ARM64")
        copy = replaced.fixed_source(creation.source, asked, settings, folder, creation.order, here.right)
        # Use the label of the user's model: the copy of a model given as bytes has a generated file name.
        source = copy.source._replace(shown=creation.source.label)
        refuse_quarantined(source, creation.quarantined)
        # Use the original's configuration entries: the copy needs no further entry for the folder of its weights.
        entries = creation.spec.config_entries
        spec = dataclasses.replace(copy.spec, config_entries=entries, model_path=path_for_qnn(source))
        made = self._from_model(creation.of_copy(source, spec))
        return made._replace(changes=copy.changes)

    # --- create a session from the chosen model ---

    def _from_model(self, creation: Creation) -> MadeSession:
        """Create the session. Let the CPU convert 64-bit floats at inputs and outputs, even in a strict session."""
        converting = _converting_if_needed(creation)
        made = self._with_optimizers(converting)
        if converting is not creation:
            self._refuse_other_nodes(made, creation.source.label)
        return made

    def _as_loaded(self, creation: Creation) -> Creation:
        """Return the creation with all options on which its cache entry depends (conversions, optimizers)."""
        creation = _converting_if_needed(creation)
        choice = self.optimizers.chosen(*_optimized(creation))
        return creation._replace(spec=choice.applied(creation.spec))

    def _with_optimizers(self, creation: Creation) -> MadeSession:
        """Create the session. Disable ONNX Runtime's optimizers that change the model's results or make the model
        invalid."""
        from qnnbridge_protocol.model_records import Notice

        _leave_native_code(creation)
        model = _optimized(creation)
        choice = self.optimizers.chosen(*model)
        refused = ""
        if choice.why:
            try:
                return self._without(creation, choice, "done")
            except PlacementRefused:
                refused = f"{choice.why}, and QNN refuses the model without that optimisation."
        try:
            made = self._from_source(creation)
        except BridgeError as error:
            _leave_native_code(creation)
            if writes_files(creation.spec):
                raise
            found = self.optimizers.after_failure(*model, error)
            if found is None:
                raise
            return self._without(creation, found, "model")
        return made._replace(notices=[*made.notices, Notice("model", refused)]) if refused else made

    def _refuse_other_nodes(self, made: MadeSession, label: str) -> None:
        """Raise `PlacementRefused` if the CPU gets nodes other than conversions of 64-bit floats."""
        from qnnbridge_host.engine.placement import refusal
        from qnnbridge_host.model.double_edges import is_conversion

        placed = made.info.placement
        others = tuple(node for node in placed.cpu_list if not is_conversion(node[0]))
        count = placed.cpu_nodes - (len(placed.cpu_list) - len(others))
        if placed.known and placed.qnn_nodes and not count:
            return
        self.sessions.close(made.session)
        raise refusal(label, dataclasses.replace(placed, cpu_nodes=count, cpu_list=others), made.info.inputs)

    def _without(self, creation: Creation, choice: OptimizerChoice, kind: NoticeKind) -> MadeSession:
        from qnnbridge_protocol.model_records import Notice

        made = self._from_source(creation._replace(spec=choice.applied(creation.spec)))
        text = f"{choice.why}; the session disables {'them' if len(choice.disabled) != 1 else 'it'}."
        return made._replace(notices=[*made.notices, Notice(kind, text)], disabled_optimizers=choice.disabled)

    def _from_source(self, creation: Creation) -> MadeSession:
        from qnnbridge_protocol.model_records import CacheReply, Notice

        _leave_native_code(creation)
        settings, faults = creation.settings, creation.faults
        # Set entries aside that have crashed a host, even if the session does not use the cache.
        if settings is None or (settings.wanted is False and not faults):
            session, info = self._native(creation, None)
            number = self.sessions.keep(creation.request, session)
            notices = self._against(creation, info)
            return MadeSession(number, info, CacheReply("off", "cache=False"), creation.source.fingerprint, notices)
        from qnnbridge_host.create.lookup import SessionCache

        cache = SessionCache(creation, settings, self.hello)
        if faults:
            cache.set_aside(faults)
        reason = cache.reason_against
        try:
            loadable = None
            if reason is not None:
                cache.off(reason)
            else:
                loadable = cache.find(self.host_info)
            session, info, loadable = self._from_entry_or_model(creation, cache, loadable)
            number = self.sessions.keep(creation.request, session, cache.take_use())
        except BaseException:
            cache.release()
            raise
        if loadable is None:
            return MadeSession(
                number,
                info,
                cache.reply,
                creation.source.fingerprint,
                cache.notices + self._against(creation, info),
            )
        # Compute the warning again, because the rows may have been measured since the entry was created.
        warning = self._known_faults(creation) if loadable.manifest.warning else ""
        notices = cache.notices + ([Notice("model", warning)] if warning else [])
        return MadeSession(number, info, cache.reply, loadable.fingerprint, notices)

    def _from_entry_or_model(
        self, creation: Creation, cache: SessionCache, loadable: CacheEntry | None
    ) -> tuple[ResettableSession, SessionInfo, CacheEntry | None]:
        for _ in range(MAX_ENTRIES):
            if loadable is None:
                break
            try:
                session, loaded = self._native(creation, loadable)
            except BridgeError as error:
                creation.order.stop.check()  # a withdrawn request does not mean that the entry is faulty
                if not cache.load_failed(loadable, error):
                    raise
            else:
                info = None
                try:
                    info = cache.loaded(loadable, loaded)
                finally:
                    # Close the session even if the check raised an error.
                    if info is None:
                        session.close()
                if info is not None:
                    return session, info, loadable
            _leave_native_code(creation)
            creation.order.stop.check()
            loadable = cache.find(self.host_info)
        else:
            if loadable is not None:
                cache.release()
                cache.off(f"{MAX_ENTRIES} cache entries of the model were tried, and none could be used")
        session, info = self._native(creation, None)
        cache.made_without(info)
        return session, info, None

    def _native(self, creation: Creation, loadable: CacheEntry | None) -> tuple[ResettableSession, SessionInfo]:
        """Create the native session from the entry, or from the model if there is no entry. A crash is blamed on
        the files that are loaded.

        Raises:
            ModelChanged: files of the model were modified during each load.
        """
        from qnnbridge_host.cache.key import size_of
        from qnnbridge_host.create.beforehand import refuse_beforehand
        from qnnbridge_host.model.source import are_same
        from qnnbridge_host.request.slow_calls import SlowCallReport

        source, request = creation.source, creation.request
        if loadable is None:
            if self.host_info.simulator is not None and not writes_files(creation.spec):
                refuse_beforehand(source, creation.spec, creation.initializers, creation.order)
            # A known fault explains a crash better than its symptoms do, so add it to the crash report.
            known = self._known_faults(creation)
            request.blame = {**_blame(creation), "known": known} if known else _blame(creation)
            spec, model, values, files = creation.spec, source.data, creation.by_name, source.known
        else:
            manifest = loadable.manifest
            entry = {"key": manifest.key, "id": manifest.id}
            request.blame = {"fingerprint": loadable.fingerprint, "label": creation.source.label, "entry": entry}
            if manifest.warning:
                request.blame["known"] = self._known_faults(creation)
            spec, model, values, files = loadable.spec(creation.spec), None, {}, loadable.files
        create = functools.partial(
            self.sessions.create,
            request,
            creation.enter,
            model=model,
            initializers=values,
            files=files,
            dynamic=creation.dynamic,
            seed=creation.seed,
            deadline=creation.order.deadline,
            stop=creation.order.stop,
        )
        size = manifest.size_bytes if loadable is not None else size_of(source)
        for _ in range(1 if writes_files(spec) else ATTEMPTS):
            before = source.stamps() if loadable is None else ()
            session = self._loaded(creation, spec, create, size)
            if session.info.placement.qnn_nodes and session.info.placement.simulator:
                sizes = creation.spec.free_dimensions_by_name
                session.slow_calls = SlowCallReport(creation.source.label, source.given, sizes)
            # For an entry, `SessionCache.loaded` checks the files instead.
            if loadable is not None:
                return session, session.info
            untouched = False
            try:
                source.check_unchanged()
                untouched = are_same(before, source.stamps())
            finally:
                if not untouched:
                    session.close()
            if untouched:
                return session, session.info
        raise source.never_rests()

    def _loaded(
        self,
        creation: Creation,
        spec: SessionSpec,
        create: Callable[..., ResettableSession],
        size_bytes: int,
    ) -> ResettableSession:
        """Create the session with or without mapped weights, depending on the NPU's memory.

        The session's placement records the size of the model and how it was loaded.
        """
        from qnnbridge_host.cache.memo import load_mapped_or_not, may_unmap, without_mapping

        source = creation.source
        words = ""
        try:
            if may_unmap(spec):
                session, words = load_mapped_or_not(
                    lambda without: create(spec=without_mapping(spec) if without else spec),
                    creation.settings,
                    source,
                    lambda: self.host_info.versions,
                )
            else:
                session = create(spec=spec)
        except BridgeError as error:
            if error.details.get("npu_memory"):
                error.evidence = (*error.evidence, *self.sessions.describe_npu_use())
            raise
        placement = session.info.placement
        if placement.qnn_nodes or words:
            placement_with_memory = dataclasses.replace(placement, npu_bytes=size_bytes, npu_memory=words)
            session.info = dataclasses.replace(session.info, placement=placement_with_memory)
        return session

    def _known_faults(self, creation: Creation) -> str:
        return known_faults(creation.source, creation.spec, self.hello.machine, self.host_info.versions)

    def _against(self, creation: Creation, info: SessionInfo) -> list[Notice]:
        """Return the notice about the model's known faults; none if QNN runs no part of the session."""
        from qnnbridge_protocol.model_records import Notice

        if info.placement.known and not info.placement.qnn_nodes:
            return []
        warning = self._known_faults(creation)
        return [Notice("model", warning)] if warning else []


def _blame(creation: Creation) -> dict[str, Any]:
    return {"fingerprint": creation.source.fingerprint, "label": creation.source.label}


def _leave_native_code(creation: Creation) -> None:
    """After a failed attempt, report that no native step runs, and blame the creation's model again."""
    if creation.request.phase not in (None, NO_STEP):
        creation.request.blame = _blame(creation)
        creation.enter(NO_STEP)


def _optimized(
    creation: Creation,
) -> tuple[ModelSource, SessionSpec, Sequence[Any], CacheSettings | None, WorkOrder]:
    """Return the arguments that the methods of `Optimizers` take."""
    return creation.source, creation.spec, creation.initializers, creation.settings, creation.order


def _converting_if_needed(creation: Creation) -> Creation:
    """Return the creation with conversions allowed (`_converting`) if it is strict and its model has 64-bit floats;
    else unchanged."""
    from qnnbridge_host.model.double_edges import double_edges

    if creation.spec.fallback != "error" or not double_edges(creation.source).converted:
        return creation
    return creation._replace(spec=_converting(creation.spec))


def _converting(spec: SessionSpec) -> SessionSpec:
    """Return the description of a strict session that may convert 64-bit floats on the CPU."""
    from qnnbridge_host.engine.qnn_options import DISABLE_CPU_FALLBACK, PROVIDER
    from qnnbridge_protocol.specs import ProviderSpec

    # Compute quantisation at the graph's inputs and outputs on QNN, as every strict session does.
    options = {"offload_graph_io_quantization": "0"}
    providers = tuple(
        dataclasses.replace(one, options={**options, **one.options}) if one.name == PROVIDER else one
        for one in spec.providers or (ProviderSpec(PROVIDER),)
    )
    entries = {DISABLE_CPU_FALLBACK: "0", **spec.config_entries}
    return dataclasses.replace(spec, providers=providers, config_entries=entries)
