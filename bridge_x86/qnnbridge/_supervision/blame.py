"""Which model is to blame for a host's death, and the lock that runs suspects alone.

Only a request that the host had declared to be *inside native code* can have killed it; one that waited in a
queue cannot. The rules:

- One suspect gets 1 point. Of k suspects each gets 1/k, and from then on all of them are run alone
  (`IsolationLock`), so that a second death has one suspect.
- A suspect that gives a good reply alone is acquitted: it loses its share of that death. Each time a model becomes
  a suspect in company again, it needs twice as many good replies alone as the last time (1, 2, 4 ... 16), so that a
  model that kills only sometimes is caught too, and does not escape by one lucky run.
- A host that was ended from outside (SIGTERM, Ctrl+C, TerminateProcess with 1) or by ourselves gives no points,
  nor does one whose exit code could not be read. Nor does SIGKILL, however often: random kills strike the same
  model again and again. Only where the kernel says that its own out-of-memory killer struck, the third such death
  in a row inside the same model, without a good reply of it between, gives a point: it feeds that.
- A call that we ended because it hung gives points like a crash: a native call that never returns is a fault too.

Points are only computed here; `quarantine` keeps them. Any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Final, Literal

from qnnbridge._transport.channel import CallContext, Deadline
from qnnbridge_os.native import Lock
from qnnbridge_os.shield import Changes

if TYPE_CHECKING:
    from qnnbridge._diagnosis.exit_codes import ExitStatus

# So often out of memory inside one model is no coincidence any more.
KILLS_IN_A_ROW: Final = 3
# Running alone costs all other models their turn, so the proof that is asked for has an end.
MAX_REPLIES_ALONE: Final = 16

Why = Literal["died", "hung", "ended-by-us", "memory-ran-out"]


@dataclasses.dataclass(frozen=True, slots=True)
class NativeCall:
    """A model inside native code. phase: creating, compiling or running. entry: an entry of the cache stands for
    it."""

    fingerprint: str
    options_hash: str
    phase: str
    model: str = ""
    entry: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Points:
    """What one death adds to a model's account (negative: what an acquittal takes away)."""

    call: NativeCall
    points: float


@dataclasses.dataclass
class _Isolated:
    """A suspect that must run alone. needed: good replies until it may run with others again."""

    needed: int
    shares: list[Points]


class Blame:
    """Books deaths on models, and decides which models run alone."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._isolated: dict[str, _Isolated] = {}
        self._times_suspected: dict[str, int] = {}
        self._kills: dict[str, int] = {}
        # Both empty as long as it is `quiet`; a fast call looks at them first.
        # The dicts themselves, never replaced: `Host.slow_path_reasons` holds them.
        self.cases: tuple[Sized, Sized] = (self._isolated, self._kills)

    @property
    def active(self) -> bool:
        """Whether any model must run alone. Cheap: asked before every call."""
        return bool(self._isolated)

    @property
    def quiet(self) -> bool:
        """Whether a good reply changes nothing. Cheap: asked after every call."""
        return not (self._isolated or self._kills)

    def must_run_alone(self, fingerprint: str) -> bool:
        """Whether no other native call may be under way while this model is inside one."""
        return fingerprint in self._isolated

    def on_death(
        self, status: ExitStatus | None, suspects: Iterable[NativeCall], why: Why = "died"
    ) -> list[Points]:
        """The host ended while these were inside native code. Gives what to add to their accounts."""
        # The same model twice in flight is one suspect.
        # Without a fingerprint the host died before it had read the model: there is nothing that an account
        # could name.
        suspects = list({call.fingerprint: call for call in suspects if call.fingerprint}.values())
        with self._lock:
            if not suspects or why == "ended-by-us":
                return []
            # "Hung" needs no exit code: this side ended the host because of the call.
            if why != "hung" and (status is None or not _may_be_its_fault(status)):
                if status is None or status.code.fault != "kill" or why != "memory-ran-out":
                    return []
                suspects = [call for call in suspects if self._killed_too_often(call)]
            # The sum is 1 for each death, so that a model that always runs beside others needs no more deaths
            # in all.
            share = 1.0 / len(suspects) if suspects else 0.0
            given = [Points(call, share) for call in suspects]
            if len(given) > 1:
                for points in given:
                    self._isolate(points)
            return given

    def on_good_reply(self, call: NativeCall) -> list[Points]:
        """A native call of this model ended well. Gives what to take off its account again, mostly nothing."""
        # Without the lock: asked after every call. A death that is booked at this moment gets the next reply.
        if not self._isolated and not self._kills:
            return []
        with self._lock:
            self._kills.pop(call.fingerprint, None)
            isolated = self._isolated.get(call.fingerprint)
            if isolated is None:
                return []
            isolated.needed -= 1
            if isolated.needed > 0:
                return []
            del self._isolated[call.fingerprint]
            # The shares of all deaths in which it stood beside others; points that it got alone stay.
            return [Points(share.call, -share.points) for share in isolated.shares]

    def forget(self, fingerprint: str) -> None:
        """The model is in quarantine, or its quarantine was cleared: nothing is left to prove."""
        with self._lock:
            self._isolated.pop(fingerprint, None)
            self._times_suspected.pop(fingerprint, None)
            self._kills.pop(fingerprint, None)

    # --- under the lock ---

    def _killed_too_often(self, call: NativeCall) -> bool:
        self._kills[call.fingerprint] = self._kills.get(call.fingerprint, 0) + 1
        return self._kills[call.fingerprint] >= KILLS_IN_A_ROW

    def _isolate(self, share: Points) -> None:
        fingerprint = share.call.fingerprint
        before = self._times_suspected.get(fingerprint, 0)
        self._times_suspected[fingerprint] = before + 1
        isolated = self._isolated.setdefault(fingerprint, _Isolated(0, []))
        isolated.needed = min(MAX_REPLIES_ALONE, 2**before)
        isolated.shares.append(share)


def _may_be_its_fault(status: ExitStatus) -> bool:
    # Loaders end programs at start, and no model is to blame for that; but also in the middle of native code, when
    # a function that is bound at its first call is missing (127, 0xC0000139).
    # Exit code 0 in the middle of native code means that something in there called exit().
    return status.code.blame or status.code.kind == "loader" or status.code.fault == "ok"


class IsolationLock:
    """Calls of suspects exclude all others; the others run together. Any thread."""

    def __init__(self, blame: Blame) -> None:
        self._blame = blame
        self._lock = Lock()
        self._changes: Changes[bool] = Changes()
        # Calls by a key of their own, with whether they exclude all others. Nothing is counted up and down: an
        # interrupted caller might leave that out.
        self._inside: dict[object, bool] = {}
        self._waiting_alone: dict[object, None] = {}

    @contextlib.contextmanager
    def isolate(self, context: CallContext, deadline: float | None) -> Iterator[None]:
        """Around one call. Raises `Deadline` if its turn does not come in time."""
        if not self._blame.active:
            yield
            return
        # Decided at the entry; a model that becomes a suspect meanwhile runs alone from its next call on.
        alone = self._blame.must_run_alone(context.fingerprint)
        me = object()

        def enter() -> bool:
            with self._lock:
                # The others also wait for a suspect that waits: else a steady stream of them would keep it
                # out for ever.
                if self._inside if alone else (True in self._inside.values() or self._waiting_alone):
                    return False
                self._inside[me] = alone
                return True

        try:
            if alone:
                self._waiting_alone[me] = None
            if not self._changes.wait_for(
                enter, None if deadline is None else max(0.0, deadline - time.monotonic())
            ):
                raise Deadline("not-started")
            self._waiting_alone.pop(me, None)
            yield
        finally:
            self._inside.pop(me, None)
            # All steps here are single operations of C: an exception of a signal handler leaves none half
            # done (`_shield`).
            self._waiting_alone.pop(me, None)
            self._changes.notify()
