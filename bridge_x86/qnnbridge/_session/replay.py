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
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from qnnbridge._session import SessionRecipe
from qnnbridge._session.suspect import Suspect
from qnnbridge._supervision.host_process import RepeatWindow
from qnnbridge._supervision.retries import Death, Policy
from qnnbridge._transport.channel import CallContext
from qnnbridge_protocol.errors import BridgeError, Closed, HostCrashed, ModelQuarantined, WorkerDied

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._supervision.host_process import HostProcess


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
        # If another call caused the crash, this call is repeated without reducing `retry`, until its deadline or
        # `RepeatWindow` ends.
        if not (death.innocent and not isinstance(error, Closed) and window.is_open()):
            # "pointless" means that a restart does not remove the cause, for example a missing library.
            if self._retry <= 0 or (error.retry == "pointless" and session.suspect.concerns(error)):
                # Finally, move to the CPU if this crash put the model into quarantine and fallback="cpu" allows it.
                return self.may_repeat and not self.on_cpu and session.went_to_cpu()
            self._retry -= 1
        self._supervisor.counters.retried_calls += death.lost
        return True
