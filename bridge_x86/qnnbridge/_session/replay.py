"""Repeat the calls of a session after the death of a host: in the next host, on the CPU, or without a cache entry.

The loop in `_supervision.retries` takes these steps for a call:

1. Check the quarantine. If the model is in quarantine, the session moves to the CPU with ``fallback="cpu"``, and
   otherwise the call raises `ModelQuarantined`.
2. Start a host if none is running, and create the session in this host if needed. If a cache entry crashes the
   host, repeat the steps without the entry.
3. Send the request and return the answer.
4. If the host or a worker died, investigate the death. Repeat the steps if the death has another cause, if a retry
   is left, or if the session has moved to the CPU because of this death. Otherwise raise an error with the cause.

`retry` limits repetitions after crashes that the call may have caused. After all other crashes (a kill from
outside, another call inside native code, a host that never received the request) the call is repeated until its
deadline (`RepeatWindow`).

`Suspect` records to which model or cache entry a crash is attributed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

from qnnbridge._session import SessionRecipe
from qnnbridge._supervision.host_process import RepeatWindow
from qnnbridge._supervision.retries import Death, Policy
from qnnbridge._transport.channel import CallContext
from qnnbridge_protocol.errors import BridgeError, Closed, HostCrashed, ModelQuarantined, WorkerDied
from qnnbridge_protocol.model_records import EntryFault
from qnnbridge_protocol.specs import Placement

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._supervision.host_process import HostProcess


# After this many cache entries have crashed the host during one creation, the model itself is blamed.
MAX_BAD_ENTRIES = 3


class Suspect:
    """The suspect of a later crash: the model, or the cache entry that is loaded instead of the model.

    Attributes:
        run: context of the session's runs.
        creation: context of the session's creation.
        entry: key and id of the cache entry that native code is processing, or that was loaded last.
        entry_fault: reason why the cache entry in `entry` must not be used again; "" if there is none.
    """

    __slots__ = ("_bad_entries", "creation", "entry", "entry_fault", "run")

    def __init__(self, recipe: SessionRecipe) -> None:
        self.run = CallContext(
            "session.run", recipe.label, recipe.fingerprint, recipe.options_hash, recipe.without_qnn
        )
        self.creation = dataclasses.replace(self.run, op="session.create")
        self.entry: tuple[str, str] | None = None
        self.entry_fault = ""
        self._bad_entries = 0

    def context_of(self, op: str) -> CallContext:
        """Return the context of a call with the operation `op`."""
        return self.run if op == self.run.op else dataclasses.replace(self.run, op=op)

    def name(self, fingerprint: str, label: str, *, entry: bool = False, known: str = "") -> None:
        """Set the fingerprint and label to which a later crash is attributed.

        entry: whether they belong to a cache entry.
        known: faults of QNN that are known for this model.
        """
        # Replace the contexts instead of changing them, because running calls in other threads use the old objects.
        if (fingerprint, label, known) != (self.run.fingerprint, self.run.model, self.run.known):
            suspect: dict[str, Any] = {"fingerprint": fingerprint, "model": label, "entry": entry, "known": known}
            self.run = dataclasses.replace(self.run, **suspect)
            self.creation = dataclasses.replace(self.creation, **suspect)

    def move_to_cpu(self, recipe: SessionRecipe) -> None:
        """Attribute later crashes to the options of `recipe`, with which the model runs on the CPU."""
        self.run = dataclasses.replace(self.run, options_hash=recipe.options_hash, without_qnn=recipe.without_qnn)
        self.creation = dataclasses.replace(self.run, op="session.create")

    def record_use_of_qnn(self, recipe: SessionRecipe, placement: Placement) -> None:
        """Record whether QNN can be the cause of a crash in a run. It cannot be the cause if it runs no node of the
        model."""
        without = recipe.without_qnn or (placement.known and not placement.qnn_nodes)
        if without != self.run.without_qnn:
            self.run = dataclasses.replace(self.run, without_qnn=without)

    def is_only_suspect(self, error: BridgeError) -> bool:
        """Return whether the crash is attributed to this suspect alone."""
        return {call.get("fingerprint") for call in error.details.get("suspects") or []} == {self.run.fingerprint}

    def concerns(self, error: BridgeError) -> bool:
        """Return whether this session may have caused the crash: the error lists no other suspect."""
        return not error.details.get("suspects") or self.is_only_suspect(error)

    def blamed_entry(self, error: BridgeError) -> EntryFault | None:
        """Return the fault of the cache entry if the compiled model in it crashed the host."""
        # Blame the cache entry only if this session's call was the only call in native code. With several calls the
        # cause is uncertain.
        if self.entry is None or not self.is_only_suspect(error) or error.details.get("from_outside"):
            return None
        if self._bad_entries >= MAX_BAD_ENTRIES or not isinstance(error, HostCrashed):
            return None
        self._bad_entries += 1
        self.entry_fault = error.message
        return EntryFault(*self.entry, "crashed", error.message)


class RepeatedSession(Protocol):
    """Interface of the session (`RemoteSession`) that the policy uses."""

    host: Host
    recipe: SessionRecipe
    suspect: Suspect

    def check_quarantine(self) -> None: ...
    def excludes_entry(self, error: BridgeError, /) -> bool: ...
    def worker_died(self, process: HostProcess, error: WorkerDied, /) -> HostCrashed: ...
    def refused_by_the_host(self, refusal: ModelQuarantined, /) -> None: ...
    def went_to_cpu(self) -> bool: ...


class SessionPolicy(Policy):
    """Policy for repeating a session's call. retry: number of repetitions after deaths of the host that the call
    may have caused."""

    def __init__(self, session: RepeatedSession, retry: int, context: CallContext) -> None:
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
        return self._session.excludes_entry(death) and self.context.op == "session.create"

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
        supervisor.npu_lost(process, error, session.suspect.run)
        if self._retry <= 0:
            return False
        self._retry -= 1
        supervisor.counters.retried_calls += 1
        return True

    def repeats(self, death: Death, window: RepeatWindow) -> bool:
        session, error = self._session, death.error
        # If this call did not cause the death, repeat it without reducing `retry` while `window` is open.
        if not (death.innocent and not isinstance(error, Closed) and window.is_open()):
            # "pointless" means that a restart does not remove the cause, for example a missing library.
            if self._retry <= 0 or (error.retry == "pointless" and session.suspect.concerns(error)):
                # Finally, move to the CPU if this crash put the model into quarantine and fallback="cpu" allows it.
                return self.may_repeat and not self.on_cpu and session.went_to_cpu()
            self._retry -= 1
        self._supervisor.counters.retried_calls += death.lost
        return True
