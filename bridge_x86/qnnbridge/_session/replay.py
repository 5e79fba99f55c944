"""Repeat the calls of a session after the death of a host: in the next host, on the CPU, or without a cache entry.

A call goes through these states of the loop in `_supervision.retries`::

                 quarantined                        quarantined, fallback="cpu"
    CHECKED ------------------> refused        +--------------------------------------+
       |                                       |                                      |
       v                                       |                                      v
    HOST RUNNING --> SESSION MADE THERE --> IN THE HOST --> answered              ON THE CPU
       ^                  |                    |                                      |
       |   cache entry    |   host or worker   |    another cause,                    |
       |   crashed host   v        died        v    or retry left                     |
       +------------- ENTRY BLAMED        INVESTIGATED --------------> HOST RUNNING <-+
                                               |
                                               +---- no retry left --> raised, with the cause

`retry` limits repetitions after crashes that the call may have caused. After all other crashes (a kill from
outside, another call inside native code, a host that never received the request) the call is repeated until its
deadline (`RepeatWindow`).

`ReplayingSession` also stores the suspect of a crash (the model, or the cache entry that is loaded instead of the
model), and whether the session has moved to the CPU. Any thread may call its methods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from qnnbridge._session import SessionRecipe
from qnnbridge._supervision.host_process import RepeatWindow, deadline_after
from qnnbridge._supervision.retries import CallLimits, Death, Policy, survive
from qnnbridge._transport.channel import CallContext
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import RLock
from qnnbridge_protocol.errors import (
    BridgeError,
    Closed,
    HostCrashed,
    ModelQuarantined,
    WorkerDied,
)
from qnnbridge_protocol.model_records import CacheStatus, EntryFault
from qnnbridge_protocol.specs import CPU, Placement, ProviderSpec
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._supervision.host_process import FastCallFailed, HostProcess


_log = log_of("qnnbridge.session")

T = TypeVar("T")

# Number of cache entries that may crash the host during one creation before the model itself is blamed.
MAX_BAD_ENTRIES = 3


class HostedSession(NamedTuple):
    """A session's number and the host process in which the session exists. One object contains both, so that no
    thread combines the process with the session's number in another process."""

    process: HostProcess
    session: int


class ReplayingSession:
    """Repeat calls after a crash of the host or because of a damaged cache entry. Base class of `RemoteSession`,
    which creates the session and sends its calls."""

    def __init__(self, host: Host, recipe: SessionRecipe, *, retry: int) -> None:
        self.host = host
        self.recipe = recipe
        self.retry = retry
        # Context of the session's runs, which attributes a crash to the model.
        self.context = CallContext(
            "session.run", recipe.label, recipe.fingerprint, recipe.options_hash, recipe.without_qnn
        )
        self._create_context = dataclasses.replace(self.context, op="session.create")
        self._lock = renew_in_forks(RLock())  # re-entrant, as `in_turn` requires
        # Key and id of the cache entry that native code is processing, or that was loaded last.
        self._entry: tuple[str, str] | None = None
        # Result of the look-up in the cache (hit, miss, off) for this session.
        self.cache_status = CacheStatus("off", "not asked yet")
        # Whether the session was created from a cache entry.
        self._from_cache = False
        # Reason why the cache entry in `_entry` must not be used again.
        self._entry_fault = ""
        self._bad_entries = 0
        self._moved_because: str | None = None
        self._generation = 0
        self._closed = False
        # Process and number of the session that was created last, for fast calls. The process may have ended.
        self.live: HostedSession | None = None
        # Time at which the fast path repeats the checks that the slow path makes before every call.
        self.next_upkeep = 0.0
        # Number of calls that succeeded or were sent on the fast path.
        self.calls = 0
        # Function that returns whether to compare a call with these inputs with the CPU. Such a call takes the slow
        # path.
        self.wants_comparison: Callable[[Iterable[Any]], bool] | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def generation(self) -> int:
        """Generation of the host in which the session was created last."""
        return self._generation

    @property
    def moved(self) -> bool:
        """Whether the session moved to the CPU because its model is in quarantine."""
        return self._moved_because is not None

    def with_retry(
        self,
        attempt: Callable[[HostProcess, float | None], T],
        limits: CallLimits,
        context: CallContext,
        deadline: float | None = None,
        failed: FastCallFailed | None = None,
    ) -> T:
        """Run `attempt` in a host, and again in the next host if the first host dies (`survive`).

        limits: limits of the call, with the session's defaults filled in.
        deadline: deadline of the call, if its time started before this function was called.
        """
        deadline = deadline_after(limits.timeout) if deadline is None else deadline
        policy = _SessionPolicy(self, limits.retry or 0, context)

        def attempt_there(process: HostProcess, deadline: float | None) -> T:
            policy.on_cpu = self.recipe.on_cpu
            return attempt(process, deadline)

        return survive(self.host.supervisor, policy, attempt_there, limits, deadline, failed)

    # --- blame ---

    def is_the_entrys_fault(self, error: BridgeError) -> bool:
        """Return whether the compiled model from the cache crashed the host. If so, record the cache entry, to
        report it to the next host."""
        # Blame the cache entry only if this session's call was the only call in native code. With several calls the
        # cause is uncertain.
        suspects = {call.get("fingerprint") for call in error.details.get("suspects") or []}
        entry = self._entry
        if entry is None or suspects != {self.context.fingerprint} or error.details.get("from_outside"):
            return False
        if self._bad_entries >= MAX_BAD_ENTRIES or not isinstance(error, HostCrashed):
            return False
        self._bad_entries += 1
        self._entry_fault = error.message
        where = (self.recipe.cache_settings().folder, *entry)
        self.host.invalid_entries[where] = EntryFault(*entry, "crashed", error.message)
        return True

    def worker_died(self, process: HostProcess, error: WorkerDied) -> HostCrashed:
        """Explain the crash of the compiler process that the host started, and count it like a crash of the
        host."""
        details = error.details
        if isinstance(details.get("fingerprint"), str):
            self._set_suspect(details["fingerprint"], str(details.get("label") or self.context.model))
            self._remember_source(details["fingerprint"])
        return self.host.supervisor.worker_died(process, error, self._create_context)

    def _set_suspect(self, fingerprint: str, label: str, *, entry: bool = False, known: str = "") -> None:
        """Set the suspect of a later crash: the model, or the cache entry that is loaded instead of the model."""
        # Replace the context instead of changing it, because running calls in other threads use the old object.
        before = self.context.fingerprint, self.context.model, self.context.known
        if (fingerprint, label, known) != before:
            suspect: dict[str, Any] = {
                "fingerprint": fingerprint,
                "model": label,
                "entry": entry,
                "known": known,
            }
            self.context = dataclasses.replace(self.context, **suspect)
            self._create_context = dataclasses.replace(self._create_context, **suspect)

    def _remember_source(self, fingerprint: str) -> None:
        """Record path, size and dates of the model, so that the quarantine recognizes the model before a host has
        read it again."""
        source = self.recipe.source(fingerprint) if self.host.quarantine is not None else None
        if self.host.quarantine is not None and source is not None:
            self.host.quarantine.remember_source(fingerprint, source)

    def _record_use_of_qnn(self, placement: Placement) -> None:
        """Record whether QNN can be the cause of a crash in a run. QNN cannot be the cause if it runs no node of
        the model."""
        without = self.recipe.without_qnn or (placement.known and not placement.qnn_nodes)
        if without != self.context.without_qnn:
            self.context = dataclasses.replace(self.context, without_qnn=without)

    def concerns_me(self, error: BridgeError) -> bool:
        """Return whether the crash concerns this session: its model is the only suspect, or no model is
        suspected."""
        suspects = {call.get("fingerprint") for call in error.details.get("suspects") or []}
        return not suspects or suspects == {self.context.fingerprint}

    # --- quarantine ---

    def check_quarantine(self) -> None:
        """If the model is in quarantine, move the session to the CPU if its options allow this; else raise
        `ModelQuarantined`."""
        try:
            if self.context.fingerprint:
                self.host.supervisor.check_quarantine(self.context)
            elif self.host.quarantine is not None:
                self.host.quarantine.check_source(self.recipe.was_read_from, self.context.options_hash)
        except ModelQuarantined as error:
            self._move_to_cpu_or_raise(error)

    def refused_by_the_host(self, refusal: ModelQuarantined) -> None:
        """Handle a host's refusal of a quarantined model: move the session to the CPU, or raise the error."""
        details = refusal.details
        self._set_suspect(str(details.get("fingerprint", "")), str(details.get("label", self.context.model)))
        error: ModelQuarantined = refusal
        try:
            self.host.supervisor.check_quarantine(self.context)
        except ModelQuarantined as full:
            error = full
        self._move_to_cpu_or_raise(error, compiled=details.get("compiled") is True)

    def _move_to_cpu_or_raise(self, error: ModelQuarantined, *, compiled: bool = False) -> None:
        """Move the session to the CPU if its options allow this; else raise the error."""
        recipe = self.recipe
        if recipe.spec.fallback != "cpu" or recipe.on_cpu or compiled or recipe.compiled:
            raise error
        self._move_to_cpu(error)

    def went_to_cpu(self) -> bool:
        """Check whether the last crash put the model into quarantine; return whether the session has moved to the
        CPU."""
        try:
            self.check_quarantine()
        except ModelQuarantined:
            return False
        return self.recipe.on_cpu

    def _move_to_cpu(self, error: ModelQuarantined) -> None:
        """Move the session to the CPU, because the model crashed hosts repeatedly on QNN."""
        with self._lock:
            if self.recipe.on_cpu:
                return
            spec = dataclasses.replace(self.recipe.spec, providers=(ProviderSpec(CPU),))
            self.recipe = dataclasses.replace(self.recipe, spec=spec)
            self.context = dataclasses.replace(
                self.context, options_hash=self.recipe.options_hash, without_qnn=self.recipe.without_qnn
            )
            self._create_context = dataclasses.replace(self.context, op="session.create")
            self._moved_because = error.message
            # No host has the generation 0, so the next call creates the session again, with options for the CPU.
            self._generation = 0
            self.live = None
        self.host.supervisor.counters.cpu_fallbacks += 1
        _log.warning("%s It runs on the CPU from now on, as fallback='cpu' allows.", error.message)


class _SessionPolicy(Policy):
    """Policy for repeating a session's call. retry: number of repetitions after deaths of the host that the call
    may have caused."""

    def __init__(self, session: ReplayingSession, retry: int, context: CallContext) -> None:
        super().__init__(session.host, context)
        self._host = session.host
        self._session = session
        self._retry = retry
        self.may_repeat = retry > 0
        # Whether the attempt runs on the CPU. It is set before the attempt, because another thread may move the
        # session to the CPU meanwhile, and moving helps only after a crash on QNN.
        self.on_cpu = session.recipe.on_cpu

    def check_quarantine(self) -> None:
        self._session.check_quarantine()

    def excuses(self, death: BridgeError) -> bool:
        """Return whether a cache entry crashed the host during a creation.

        Such a creation is repeated without reducing `retry`, because the caller did not choose the cache entry and
        the model itself has not been tried yet.
        """
        return self._session.is_the_entrys_fault(death) and self.context.op == "session.create"

    def judge(self, process: HostProcess, error: BridgeError) -> Death | bool:
        session, supervisor = self._session, self._supervisor
        # A daemon has already repeated the call and explained the crash, so raise its error.
        if self._host.is_daemon:
            return False
        if isinstance(error, WorkerDied):
            # Only the compiler process died. The host still runs and keeps its sessions, so no call is lost.
            death = session.worker_died(process, error)
            return Death(death, self.may_repeat and death.details.get("from_outside") is True, 0)
        if isinstance(error, ModelQuarantined):
            session.refused_by_the_host(error)
            return True
        if not error.details.get("host_must_restart"):
            return False
        supervisor.npu_lost(process, error, session.context)
        if self._retry <= 0:
            return False
        self._retry -= 1
        supervisor.counters.retried_calls += 1
        return True

    def repeats(self, death: Death, window: RepeatWindow) -> bool:
        session, error = self._session, death.error
        # If another call caused the crash, this call is repeated without reducing `retry`, until its deadline or
        # `RepeatWindow` ends.
        if not (death.innocent and not isinstance(error, Closed) and window.is_open()):
            # "pointless" means that a restart does not remove the cause, for example a missing library.
            if self._retry <= 0 or (error.retry == "pointless" and session.concerns_me(error)):
                # Finally, move to the CPU if this crash put the model into quarantine and fallback="cpu" allows it.
                return self.may_repeat and not self.on_cpu and session.went_to_cpu()
            self._retry -= 1
        self._supervisor.counters.retried_calls += death.lost
        return True
