"""How a session comes into being: from the cache, from the model, or from a copy with rewrites that cure it.

Theory of operation. A `Creation` comes in: model, options, cache settings, what the application refuses, the
deadline. A `MadeSession` goes out: number, description, what the cache did, the fingerprint to blame. The order:

    fix="always"? -------------------------------------------------------> rewritten copy
    else: the entry of the cache, made by a worker if it is missing
          does not load or does not match --> set aside, looked up again, at most `MAX_ENTRIES` times
          the cache cannot be used        --> the model itself
    QNN is known to compute an operator wrong --> a copy without it, if the rewrite computes the same on the CPU
    a kept verdict says its numbers differ --> a copy with parted gates, unless that was no better
    QNN refuses the model, fix="refused"      --> rewritten copy; the first refusal is raised if that fails, too

Before each native step `request.blame` names what a death is booked on: the entry if one is loaded, else the
model. It must be set before `enter`: a process that has died cannot say it any more.

Invariant: the session was made from the bytes that the fingerprint names. Files are stamped before and after a
load; a model that was written to meanwhile is loaded again, and refused if it never rests. Cancelling and
deadlines pass through as they are: they say nothing against an entry or a copy. Any thread.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.create.optimizers import Optimizers
from qnnbridge_host.create.order import (
    Creation,
    NeedsParting,
    NeedsRewrite,
    WorkOrder,
    curing_rewrites,
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
    from qnnbridge_host.engine.sessions import ResettableSession, Sessions
    from qnnbridge_host.model.genai_folder import GenaiFolder
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_host.request.client import StopSignal
    from qnnbridge_protocol.connection import Hello
    from qnnbridge_protocol.model_records import CacheReply, Notice, NoticeKind
    from qnnbridge_protocol.specs import FixSpec, HostInfo, SessionInfo, SessionSpec

# Number of entries of one key that are tried for one session: after the second failure a model is left alone.
MAX_ENTRIES: Final = 3
# Of loading a model, if its files are touched meanwhile: native code may have read what they held for a moment.
# A hard link touches a file, too, and compilations and tools make some.
ATTEMPTS: Final = 4
# A larger model is not rewritten unasked: its copy would fill the cache.
MAX_UNASKED_BYTES: Final = 512 * 2**20
# These write files of the model itself.
_WRITES: Final = ("ep.context_enable",)


class MadeSession(NamedTuple):
    """A session that is kept.

    blame: the fingerprint to book a later death on. changes: what was rewritten. fix: how, if the host decided it.
    disabled_optimizers: those of ONNX Runtime that the host left out.
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
    """Makes sessions from an entry, a model or a rewritten copy.

    hello: of this host: its machine and its versions. worker: value of the option ``--worker``.
    """

    def __init__(self, sessions: Sessions, hello: Hello, worker: str | None = None) -> None:
        self.sessions = sessions
        self.hello = hello
        self.optimizers = Optimizers(hello)
        self._worker = worker
        self._info: HostInfo | None = None

    @property
    def host_info(self) -> HostInfo:
        """The inputs of a compiled model besides model and options. Waits for the engine."""
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
        return WorkOrder(
            command=worker_command(self._worker),
            stop=stop,
            request=request.id,
            label=source.label,
            fingerprint=source.fingerprint,
            deadline=deadline,
            budget_s=budget_s,
            limits=self.hello.limits,
            emit=request.emit,
        )

    def make(self, creation: Creation) -> MadeSession:
        """The session, of the model or of the rewritten copy of it."""
        from qnnbridge_protocol.model_records import Notice
        from qnnbridge_protocol.specs import FixSpec

        fix = creation.spec.fix
        if fix is not None and fix.when == "always":
            try:
                return self._from_copy(creation, fix)
            except PlacementRefused as refusal:
                self._suggest(refusal, creation, rewritten=True)
                raise
        try:
            return self._watched(creation)
        except PlacementRefused as refusal:
            if fix is not None and fix.when == "refused" and _may_rewrite(creation):
                try:
                    made = self._from_copy(creation, FixSpec())
                except (Cancelled, DeadlineExceeded):
                    raise
                except BridgeError as error:
                    refusal.evidence = (
                        *refusal.evidence,
                        f"Rewritten (fix=True), it fails as well: {error.message}",
                    )
                    if isinstance(error, PlacementRefused):
                        self._suggest(refusal, creation, rewritten=True)
                    raise refusal from None
                text = f"QNN refuses {creation.order.label} as it is; it was rewritten ({'; '.join(made.changes)})."
                return made._replace(fix=FixSpec(), notices=[*made.notices, Notice("done", text)])
            self._suggest(refusal, creation)
            raise

    def _suggest(self, refusal: PlacementRefused, creation: Creation, *, rewritten: bool = False) -> None:
        """Name the fix in a refusal. rewritten: the session was refused with all rewrites."""
        from qnnbridge_host.create.replaced import suggest_fix

        suggest_fix(refusal, creation.source, creation.spec, creation.order, rewritten=rewritten)

    def _watched(self, creation: Creation) -> MadeSession:
        """From the model, or from a copy without the operators that QNN computes wrong."""
        from qnnbridge_host.model.double_edges import REWRITE
        from qnnbridge_protocol.model_records import Notice
        from qnnbridge_protocol.specs import FixSpec

        plain = creation._replace(spec=dataclasses.replace(creation.spec, fix=None))
        try:
            return self._from_model(plain._replace(watched=_may_rewrite(creation)))
        except NeedsParting as found:
            return self._parted(creation, plain, found)
        except NeedsRewrite as found:
            try:
                fix = FixSpec(only=_whole(found.rewrites, creation.spec))
                made = self._from_copy(creation, fix)
                # The others only prepare for the cure (`_whole`): without it the copy computes as wrong as the
                # model.
                if not any(change.startswith(found.rewrites) for change in made.changes):
                    self.sessions.close(made.session)
                    raise ModelError("No rewrite of them computes the same on the CPU.")
            except (Cancelled, DeadlineExceeded):
                raise
            except BridgeError as error:
                from qnnbridge_host.model.known_wrong import rewrites_of_failures

                if not rewrites_of_failures().isdisjoint(found.rewrites):
                    if isinstance(error, PlacementRefused):
                        raise
                    # The compiler would end, and the application would learn of it by a crash.
                    raise ModelError(
                        f"No session of {creation.order.label} was made.",
                        cause=self._known_faults(plain),
                        evidence=(f"Rewritten, it cannot be used: {error.message}",),
                        fix="Export the model without these operators. fix=False compiles it as it is.",
                    ) from None
                made = self._from_model_or(plain, error)
                why = f"{creation.order.label} was not rewritten without being asked: {error.message}"
                return made._replace(notices=[*made.notices, Notice("model", why)])
            cured = "; ".join(change for change in made.changes if change.startswith(found.rewrites))
            what = "operators that QNN is known to compute wrong"
            if found.rewrites == (REWRITE,):
                what = "64-bit floats, with which QNN fails,"
            text = f"{creation.order.label}: {what} were rewritten ({cured}). fix=False leaves them."
            return made._replace(fix=fix, notices=[*made.notices, Notice("done", text)])

    def _from_model_or(self, plain: Creation, of_copy: BridgeError) -> MadeSession:
        """Make it of the model itself.

        If that fails by the fault that the copy does not have, what the copy leaves to the CPU is the reason.
        """
        try:
            return self._from_model(plain)
        except (Cancelled, DeadlineExceeded, PlacementRefused):
            raise
        except BridgeError as error:
            # The user can do something about nodes on the CPU; the fault of the plain model is cured in any case.
            raise of_copy if isinstance(of_copy, PlacementRefused) else error from None

    def _parted(self, creation: Creation, plain: Creation, found: NeedsParting) -> MadeSession:
        """From a copy with parted gates, or from the model if that does not help.

        A note spares later sessions the attempt.
        """
        from qnnbridge_host.cache.memo import NegativeEntries
        from qnnbridge_host.cache.store import Store
        from qnnbridge_host.create import parting
        from qnnbridge_protocol.model_records import Notice
        from qnnbridge_protocol.specs import FixSpec

        label = creation.order.label
        root = Store(Path(creation.settings.folder if creation.settings is not None else "")).root
        fix = FixSpec(only=_whole(found.rewrites, creation.spec))
        try:
            made = self._from_copy(creation, fix)
        except (Cancelled, DeadlineExceeded):
            raise
        except BridgeError as error:
            _leave_native_code(creation)
            # It will be refused again; other failures may pass.
            if isinstance(error, PlacementRefused):
                NegativeEntries(root).write(found.note, "gates", error.message, label)
            made = self._from_model(plain)
            why = f"{label}: its numbers on QNN differ, and its gates were not parted: {error.message}"
            return made._replace(notices=[*made.notices, Notice("model", why)])
        # The others only prepare for the gates (`_whole`).
        changes = [change for change in made.changes if change.startswith(found.rewrites)]
        why = parting.is_no_better(root, made.cache.key, found.report) if changes else "it has no gates to part"
        if why:
            self.sessions.close(made.session)
            NegativeEntries(root).write(found.note, "gates", why, label)
            return self._from_model(plain)
        text = (
            f"{label}: its numbers on QNN differed from the CPU's ({found.report.worst or found.report.reason}). "
            f"So Sigmoid and Tanh were parted from the operators that QNN merges them with ({'; '.join(changes)}). "
            "It takes more cycles: 1.1 to 10 times as many in the simulator's estimate (docs/fix.md). "
            "fix=False leaves them."
        )
        return made._replace(fix=fix, notices=[*made.notices, Notice("done", text)])

    def _from_copy(self, creation: Creation, fix: FixSpec) -> MadeSession:
        from qnnbridge_host.cache.measured import rows_of_session
        from qnnbridge_host.create import replaced
        from qnnbridge_host.model.compiled_checks import path_for_qnn

        _leave_native_code(creation)
        asked = dataclasses.replace(creation.spec, fix=fix)
        settings, folder = creation.settings, creation.folder
        here = rows_of_session(creation.spec, self.host_info.versions, simulator=self.hello.machine != "ARM64")
        copy = replaced.fixed_source(creation.source, asked, settings, folder, creation.order, here.right)
        # A model that was given as bytes has a copy with a made-up name, which tells the user nothing.
        source = copy.source._replace(shown=creation.source.label)
        refuse_quarantined(source, creation.quarantined)
        # Entries are those of the session: the copy keeps its weights beside it.
        entries = creation.spec.config_entries
        spec = dataclasses.replace(copy.spec, config_entries=entries, model_path=path_for_qnn(source))
        made = self._from_model(creation.of_copy(source, spec))
        return made._replace(changes=copy.changes)

    # --- of one source ---

    def _from_model(self, creation: Creation) -> MadeSession:
        """Let the CPU convert 64-bit floats that `fix` has left to it, also in a session that refuses the CPU."""
        from qnnbridge_host.model.double_edges import double_edges

        if creation.spec.fallback != "error" or not double_edges(creation.source).converted:
            return self._with_optimizers(creation)
        made = self._with_optimizers(creation._replace(spec=_converting(creation.spec)))
        self._refuse_other_nodes(made, creation.order.label)
        return made

    def _with_optimizers(self, creation: Creation) -> MadeSession:
        """Without the optimizers of ONNX Runtime that change what the model computes, or break it."""
        from qnnbridge_protocol.model_records import Notice

        _leave_native_code(creation)
        model = (creation.source, creation.spec, creation.initializers, creation.settings, creation.order)
        choice = self.optimizers.chosen(*model)
        refused = ""
        if choice.why:
            try:
                return self._without(creation, choice, "done")
            except PlacementRefused:
                refused = f"{choice.why}, and QNN does not take the model without that optimisation."
        try:
            made = self._from_source(creation)
        except BridgeError as error:
            _leave_native_code(creation)
            if _writes(creation.spec):
                raise
            found = self.optimizers.after_failure(*model, error)
            if found is None:
                raise
            return self._without(creation, found, "model")
        return made._replace(notices=[*made.notices, Notice("model", refused)]) if refused else made

    def _refuse_other_nodes(self, made: MadeSession, label: str) -> None:
        """Raise `PlacementRefused` if the CPU has more than the conversions of 64-bit floats."""
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
        text = f"{choice.why}; the session is made without {'them' if len(choice.disabled) != 1 else 'it'}."
        return made._replace(notices=[*made.notices, Notice(kind, text)], disabled_optimizers=choice.disabled)

    def _from_source(self, creation: Creation) -> MadeSession:
        from qnnbridge_protocol.model_records import CacheReply, Notice

        _leave_native_code(creation)
        settings, faults = creation.settings, creation.faults
        # Entries that killed a host are set aside also by a session that does not use the cache.
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
            cache.refuse_poor(self.host_info)
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
        # Said again as it is known now: the rows may have been measured since the entry was made.
        warning = self._known_faults(creation) if loadable.manifest.warning else ""
        notices = cache.notices + ([Notice("model", warning)] if warning else [])
        return MadeSession(number, info, cache.reply, loadable.fingerprint, notices)

    def _from_entry_or_model(
        self, creation: Creation, cache: SessionCache, loadable: CacheEntry | None
    ) -> tuple[ResettableSession, SessionInfo, CacheEntry | None]:
        for _ in range(MAX_ENTRIES):
            if loadable is None:
                break
            # An entry without a warning had nothing to cure when it was made.
            if loadable.manifest.warning:
                self._refuse_curable(creation)
            try:
                session, loaded = self._native(creation, loadable)
            except BridgeError as error:
                creation.order.stop.check()  # the entry is not at fault
                if not cache.load_failed(loadable, error):
                    raise
            else:
                info = None
                try:
                    info = cache.loaded(loadable, loaded)
                finally:
                    # Also if the check itself raised.
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
                cache.off(f"{MAX_ENTRIES} compiled models of it could not be used")
        session, info = self._native(creation, None)
        cache.made_without(info)
        return session, info, None

    def _native(self, creation: Creation, loadable: CacheEntry | None) -> tuple[ResettableSession, SessionInfo]:
        """Make it from the entry, or from the model. A death counts against the one in use.

        Raises `ModelChanged` if files of the model were written to meanwhile, whatever they hold now.
        """
        from qnnbridge_host.cache.key import size_of
        from qnnbridge_host.create.beforehand import refuse_beforehand
        from qnnbridge_host.model.source import are_same
        from qnnbridge_host.request.slow_calls import SlowCallReport

        source, request = creation.source, creation.request
        if loadable is None:
            self._refuse_curable(creation)
            if self.host_info.simulator is not None and not _writes(creation.spec):
                refuse_beforehand(source, creation.spec, creation.initializers, creation.order)
            # For the report of a death: what is known explains it better than how it looks.
            known = self._known_faults(creation)
            request.blame = {**_blame(creation), "known": known} if known else _blame(creation)
            spec, model, values, files = creation.spec, source.data, creation.by_name, source.known
        else:
            manifest = loadable.manifest
            entry = {"key": manifest.key, "id": manifest.id}
            request.blame = {"fingerprint": loadable.fingerprint, "label": creation.order.label, "entry": entry}
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
        for _ in range(1 if _writes(spec) else ATTEMPTS):
            before = source.stamps() if loadable is None else ()
            session = self._loaded(creation, spec, create, size)
            if session.info.placement.qnn_nodes and session.info.placement.simulator:
                sizes = creation.spec.free_dimensions_by_name
                session.slow_calls = SlowCallReport(creation.order.label, source.given, sizes)
            # The files of an entry are checked by `SessionCache.loaded`.
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
        """Create it, in the way that the NPU's memory allows, which its placement then says."""
        from qnnbridge_host.cache.memo import load_mapped_or_not, may_unmap, without_mapping

        source = creation.source
        words = ""
        try:
            if may_unmap(spec):
                session, words = load_mapped_or_not(
                    lambda without: create(spec=without_mapping(spec) if without else spec),
                    creation.settings,
                    source.fingerprint,
                    creation.order.label,
                    lambda: self.host_info.versions,
                )
            else:
                session = create(spec=spec)
        except BridgeError as error:
            if error.details.get("npu_memory"):
                error.evidence = (*error.evidence, *self.sessions.on_npu_in_words())
            raise
        placement = session.info.placement
        if placement.qnn_nodes or words:
            placement_with_memory = dataclasses.replace(placement, npu_bytes=size_bytes, npu_memory=words)
            session.info = dataclasses.replace(session.info, placement=placement_with_memory)
        return session

    def _refuse_curable(self, creation: Creation) -> None:
        """Raises `NeedsRewrite` for a watched creation."""
        rewrites = curing_rewrites(creation, self.hello.machine, self.host_info.versions)
        if rewrites and self.host_info.simulator is not None:  # else this host has no QNN
            raise NeedsRewrite(rewrites)

    def _known_faults(self, creation: Creation) -> str:
        return known_faults(creation.source, creation.spec, self.hello.machine, self.host_info.versions)

    def _against(self, creation: Creation, info: SessionInfo) -> list[Notice]:
        """The notice of `known_faults` about a session, if a part of it may be on QNN."""
        from qnnbridge_protocol.model_records import Notice

        if info.placement.known and not info.placement.qnn_nodes:
            return []
        warning = self._known_faults(creation)
        return [Notice("model", warning)] if warning else []


def _blame(creation: Creation) -> dict[str, Any]:
    return {"fingerprint": creation.source.fingerprint, "label": creation.order.label}


def _leave_native_code(creation: Creation) -> None:
    """What follows an attempt is no native step, and no work on the entry or the copy that was tried."""
    if creation.request.phase not in (None, NO_STEP):
        creation.request.blame = _blame(creation)
        creation.enter(NO_STEP)


def _writes(spec: SessionSpec) -> bool:
    """Whether making the session writes files, that it would find there the next time."""
    return any(spec.config_entries.get(name, "0") not in ("", "0") for name in _WRITES)


def _may_rewrite(creation: Creation) -> bool:
    """Whether a copy of the model may stand in for it unasked."""
    spec, source = creation.spec, creation.source
    if spec.fix is not None and spec.fix.when == "never":
        return False
    # Weights that the session gives are not in the copy. ONNX Runtime's optimized model would be that of the copy.
    if spec.value_names or spec.options.get("optimized_model_filepath"):
        return False
    if _writes(spec):
        return False
    scan = source.scan
    if scan is None or scan.format != "onnx" or scan.is_compiled:
        return False
    from qnnbridge_host.cache.key import size_of

    return size_of(source) <= MAX_UNASKED_BYTES


def _converting(spec: SessionSpec) -> SessionSpec:
    """Let the CPU convert 64-bit floats in a session that refuses it otherwise, with the rest as it would be."""
    from qnnbridge_host.engine.qnn_options import DISABLE_CPU_FALLBACK, PROVIDER
    from qnnbridge_protocol.specs import ProviderSpec

    # Without a fallback QNN takes quantisation at the edges by itself.
    options = {"offload_graph_io_quantization": "0"}
    providers = tuple(
        dataclasses.replace(one, options={**options, **one.options}) if one.name == PROVIDER else one
        for one in spec.providers or (ProviderSpec(PROVIDER),)
    )
    entries = {DISABLE_CPU_FALLBACK: "0", **spec.config_entries}
    return dataclasses.replace(spec, providers=providers, config_entries=entries)


def _whole(rewrites: Sequence[str], spec: SessionSpec) -> tuple[str, ...]:
    """With the rewrites that they rest on: known sizes, constants and branches."""
    from qnnbridge_host.model.known_wrong import BRANCH_REWRITES
    from qnnbridge_host.rewrite.catalogue import FIXED_SHAPES

    sizes = (FIXED_SHAPES,) if spec.free_dimensions_by_name else ()
    return (*sizes, "constants", *BRANCH_REWRITES, *rewrites)
