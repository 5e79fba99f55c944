"""Suspects run alone, and get their turn however busy the others are."""

from __future__ import annotations

import contextlib
import threading
import time

from qnnbridge._supervision.blame import Blame, Deadline, IsolationLock, NativeCall
from qnnbridge._transport.channel import CallContext

GRACE_S = 20.0
"""Only a defect waits this long."""

SUSPECT, OTHER, THIRD = (CallContext("session.run", name, name * 64, "0") for name in "abc")


def gate_with_suspects(*contexts: CallContext) -> IsolationLock:
    blame = Blame()
    calls = [
        NativeCall(context.fingerprint, "0", "running")
        for context in (*contexts, CallContext("x", "z", "z" * 64, "0"))
    ]
    blame.on_death(None, calls, "hung")
    assert blame.must_run_alone(contexts[0].fingerprint)
    return IsolationLock(blame)


class Caller:
    """A call in a thread of its own, which stays inside until it is told to leave."""

    def __init__(self, gate: IsolationLock, context: CallContext) -> None:
        self.inside, self._leave = threading.Event(), threading.Event()
        self._gate, self._context = gate, context
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def _call(self) -> None:
        with self._gate.enter(self._context, None):
            self.inside.set()
            self._leave.wait(GRACE_S)

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(GRACE_S)
        assert not self._thread.is_alive()


def enters_at_once(gate: IsolationLock, context: CallContext) -> bool:
    with contextlib.suppress(Deadline), gate.enter(context, time.monotonic()):
        return True
    return False


def waiting(gate: IsolationLock) -> None:
    """Until a suspect waits."""
    until = time.monotonic() + GRACE_S
    while not gate._waiting_alone:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_the_others_run_together() -> None:
    gate = gate_with_suspects(SUSPECT)
    first = Caller(gate, OTHER)
    assert first.inside.wait(GRACE_S)
    assert enters_at_once(gate, THIRD)
    first.leave()


def test_a_suspect_runs_alone() -> None:
    gate = gate_with_suspects(SUSPECT)
    suspect = Caller(gate, SUSPECT)
    assert suspect.inside.wait(GRACE_S)
    assert not enters_at_once(gate, OTHER)
    suspect.leave()
    assert enters_at_once(gate, OTHER)


def test_who_comes_later_waits_for_the_suspect_that_waits() -> None:
    """Under steady load of the others there is always one inside: the suspect would never get its turn."""
    gate = gate_with_suspects(SUSPECT)
    first = Caller(gate, OTHER)
    assert first.inside.wait(GRACE_S)
    suspect = Caller(gate, SUSPECT)
    waiting(gate)
    assert not enters_at_once(gate, THIRD)
    newcomer = Caller(gate, THIRD)
    first.leave()
    assert suspect.inside.wait(GRACE_S)
    assert not newcomer.inside.is_set()
    suspect.leave()
    assert newcomer.inside.wait(GRACE_S)
    newcomer.leave()


def test_a_suspect_that_gave_up_holds_nobody_back() -> None:
    gate = gate_with_suspects(SUSPECT)
    first = Caller(gate, OTHER)
    assert first.inside.wait(GRACE_S)
    assert not enters_at_once(gate, SUSPECT)
    assert enters_at_once(gate, THIRD)
    first.leave()


def test_those_that_waited_behind_it_go_on_when_it_gives_up() -> None:
    gate = gate_with_suspects(SUSPECT)
    first = Caller(gate, OTHER)
    assert first.inside.wait(GRACE_S)

    seen = threading.Event()

    def give_up() -> None:
        while not seen.is_set():  # it was too quick for this test to see it wait
            with contextlib.suppress(Deadline), gate.enter(SUSPECT, time.monotonic() + 0.3):
                pass

    threading.Thread(target=give_up, daemon=True).start()
    waiting(gate)
    seen.set()
    newcomer = Caller(gate, THIRD)
    assert newcomer.inside.wait(GRACE_S)
    for caller in (first, newcomer):
        caller.leave()


def test_two_suspects_come_one_after_the_other() -> None:
    gate = gate_with_suspects(SUSPECT, OTHER)
    first = Caller(gate, SUSPECT)
    assert first.inside.wait(GRACE_S)
    second = Caller(gate, OTHER)
    waiting(gate)
    assert not second.inside.is_set()
    first.leave()
    assert second.inside.wait(GRACE_S)
    second.leave()
