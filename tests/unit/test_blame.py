"""Which model is blamed for a crash; suspects run alone, and get their turn even if other models are busy."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable

import pytest

from qnnbridge._diagnosis.exit_codes import ExitStatus
from qnnbridge._supervision.blame import (
    MAX_REPLIES_ALONE,
    WINDOW_S,
    Blame,
    CallTimedOut,
    IsolationLock,
    NativeCall,
    Points,
)
from qnnbridge._supervision.deaths import _with_implied_phase
from qnnbridge._transport.channel import CallContext, Lost
from qnnbridge_protocol.fastpath import call_id

SEGV = ExitStatus(-11, "posix")
KILL = ExitStatus(-9, "posix")


def call(name: str, phase: str = "running") -> NativeCall:
    return NativeCall(fingerprint=name * 64, options_hash="0", phase=phase, model=f"{name}.onnx")


A, B, C = call("a"), call("b"), call("c")


def test_a_single_suspect_gets_one_point_and_may_continue_with_others() -> None:
    blame = Blame()
    assert blame.on_death(SEGV, [A]) == [Points(A, 1.0)]
    assert not blame.active
    assert not blame.must_run_alone(A.fingerprint)


def test_several_suspects_share_the_point_and_must_run_alone() -> None:
    blame = Blame()
    assert blame.on_death(SEGV, [A, B, C]) == [Points(one, 1 / 3) for one in (A, B, C)]
    assert blame.active
    assert all(blame.must_run_alone(one.fingerprint) for one in (A, B, C))
    assert not blame.must_run_alone("x" * 64)


def test_two_calls_of_the_same_model_are_one_suspect() -> None:
    blame = Blame()
    assert blame.on_death(SEGV, [A, A]) == [Points(A, 1.0)]


def test_a_crash_without_native_calls_blames_no_model() -> None:
    blame = Blame()
    assert blame.on_death(SEGV, []) == []
    assert blame.on_death(SEGV, [NativeCall("", "", "importing")]) == []


def test_a_successful_run_alone_clears_a_suspect_and_its_points() -> None:
    blame = Blame()
    blame.on_death(SEGV, [A, B])
    assert blame.on_good_reply(B) == [Points(B, -0.5)]
    assert not blame.must_run_alone(B.fingerprint)
    assert blame.must_run_alone(A.fingerprint)
    assert blame.on_good_reply(B) == []


def test_a_suspect_is_cleared_by_the_phase_in_which_it_was_suspected() -> None:
    blame, making = Blame(), call("b", "creating")
    blame.on_death(SEGV, [A, making])
    assert blame.on_good_reply(call("a", "creating")) == []
    assert blame.must_run_alone(A.fingerprint)
    assert blame.on_good_reply(making) == [Points(making, -0.5)]
    assert blame.on_good_reply(A) == [Points(A, -0.5)]


def test_an_unused_suspect_is_forgotten_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    blame = Blame()
    blame.on_death(SEGV, [A, B])
    begin = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: begin + WINDOW_S - 5)
    assert blame.active
    assert not blame.quiet
    monkeypatch.setattr(time, "monotonic", lambda: begin + WINDOW_S + 5)
    assert not blame.active
    assert blame.quiet


def test_a_crash_with_a_single_running_call_leaves_one_suspect() -> None:
    blame = Blame()
    blame.on_death(SEGV, [A, B])
    assert blame.on_death(SEGV, [A]) == [Points(A, 1.0)]


def test_each_new_suspicion_needs_twice_as_many_good_replies_alone() -> None:
    blame = Blame()
    needed = []
    for _ in range(6):
        blame.on_death(SEGV, [A, B])
        count = 0
        while blame.must_run_alone(A.fingerprint):
            blame.on_good_reply(A)
            count += 1
        needed.append(count)
    assert needed == [1, 2, 4, 8, 16, MAX_REPLIES_ALONE]


@pytest.mark.parametrize(
    "status",
    [
        KILL,
        ExitStatus(-15, "posix"),
        ExitStatus(-2, "posix"),
        ExitStatus(1, "win32"),
        ExitStatus(0xC000013A, "win32"),
        None,
    ],
    ids=["SIGKILL", "SIGTERM", "SIGINT", "TerminateProcess", "Ctrl+C", "unknown"],
)
def test_a_host_that_was_killed_from_outside_blames_no_model(status: ExitStatus | None) -> None:
    blame = Blame()
    for _ in range(10):
        assert blame.on_death(status, [A]) == []


def test_a_host_that_the_bridge_ended_blames_no_model_unless_it_hung() -> None:
    blame = Blame()
    assert blame.on_death(KILL, [A], "ended-by-us") == []
    assert blame.on_death(KILL, [A], "hung") == [Points(A, 1.0)]


def test_only_the_third_out_of_memory_kill_in_a_row_blames_the_model() -> None:
    blame = Blame()
    assert blame.on_death(KILL, [A], "memory-ran-out") == []
    assert blame.on_death(KILL, [A], "memory-ran-out") == []
    assert blame.on_death(KILL, [A], "memory-ran-out") == [Points(A, 1.0)]
    assert blame.on_death(KILL, [A], "memory-ran-out") == [Points(A, 1.0)]


def test_a_crash_during_memory_shortage_counts_as_any_other() -> None:
    assert Blame().on_death(SEGV, [A], "memory-ran-out") == [Points(A, 1.0)]


def test_a_good_reply_between_the_kills_starts_the_count_again() -> None:
    blame = Blame()
    for _ in range(20):
        blame.on_death(KILL, [A], "memory-ran-out")
        blame.on_death(KILL, [A], "memory-ran-out")
        blame.on_good_reply(A)
    assert blame.on_death(KILL, [A], "memory-ran-out") == []


def test_kills_of_different_models_are_not_added_up() -> None:
    blame = Blame()
    assert [blame.on_death(KILL, [one], "memory-ran-out") for one in (A, B, C, A, B, C)] == [[]] * 6


def test_a_quarantined_model_is_no_longer_a_suspect() -> None:
    blame = Blame()
    blame.on_death(SEGV, [A, B])
    blame.forget(A.fingerprint)
    assert not blame.must_run_alone(A.fingerprint)
    assert blame.must_run_alone(B.fingerprint)
    assert blame.on_good_reply(A) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("chance_to_kill", [1.0, 0.3])
def test_a_crashing_model_is_found_and_concurrent_models_keep_no_points(seed: int, chance_to_kill: float) -> None:
    """Four models run concurrently, and one of them crashes; suspects run alone, as the host's gate ensures."""
    chance = random.Random(seed)
    blame = Blame()
    account = dict.fromkeys("abcd", 0.0)
    worst = dict.fromkeys("abcd", 0.0)

    def book(all_points: list[Points]) -> None:
        for points in all_points:
            account[points.call.fingerprint[0]] += points.points
            worst[points.call.fingerprint[0]] = max(
                worst[points.call.fingerprint[0]], account[points.call.fingerprint[0]]
            )

    for _ in range(500):
        models = chance.sample("abcd", 3)
        alone = [m for m in models if blame.must_run_alone(m * 64)]
        batch = alone[:1] or models
        if "d" in batch and chance.random() < chance_to_kill:
            book(blame.on_death(SEGV, [call(m) for m in batch]))
        else:
            for model in batch:
                book(blame.on_good_reply(call(model)))
        if account["d"] >= 2:
            break
    assert account["d"] >= 2, "the poison model was never found"
    assert max(worst[m] for m in "abc") < 2


# Timeout that only a defect reaches.
GRACE_S = 20.0

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
    """A call in a separate thread, which stays in native code until `leave`."""

    def __init__(self, gate: IsolationLock, context: CallContext) -> None:
        self.inside, self._leave = threading.Event(), threading.Event()
        self._gate, self._context = gate, context
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def _call(self) -> None:
        with self._gate.isolate(self._context, None):
            self.inside.set()
            self._leave.wait(GRACE_S)

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(GRACE_S)
        assert not self._thread.is_alive()


def enters_at_once(gate: IsolationLock, context: CallContext) -> bool:
    with contextlib.suppress(CallTimedOut), gate.isolate(context, time.monotonic()):
        return True
    return False


def waiting(gate: IsolationLock) -> None:
    """Wait until a suspect waits at the gate."""
    until = time.monotonic() + GRACE_S
    while not gate._waiting_alone:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_models_without_suspicion_run_together() -> None:
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


def test_a_new_call_waits_for_a_waiting_suspect() -> None:
    """Under steady load another call is always running, so that the suspect would never get its turn."""
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


@pytest.mark.parametrize("outer", [SUSPECT, OTHER])
@pytest.mark.parametrize("inner", [SUSPECT, OTHER])
def test_a_nested_call_does_not_wait_for_the_outer_call_of_its_thread(
    outer: CallContext, inner: CallContext
) -> None:
    """A signal handler makes the nested call; the outer call continues only when the handler returns."""
    gate = gate_with_suspects(SUSPECT)
    with gate.isolate(outer, None):
        assert enters_at_once(gate, inner)
    assert not gate._inside


def test_a_nested_call_does_not_wait_for_the_queued_call_of_its_thread() -> None:
    gate = gate_with_suspects(SUSPECT)
    other = Caller(gate, OTHER)
    assert other.inside.wait(GRACE_S)
    entered = []

    def wait_for(enter: Callable[[], bool], _timeout: float | None) -> bool:
        if not entered:
            entered.append("begun")
            entered.append(enters_at_once(gate, THIRD))
        return enter()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate._changes, "wait_for", wait_for)
        assert not enters_at_once(gate, SUSPECT)
    assert entered == ["begun", True]
    other.leave()


def test_a_suspect_that_stopped_waiting_blocks_no_calls() -> None:
    gate = gate_with_suspects(SUSPECT)
    first = Caller(gate, OTHER)
    assert first.inside.wait(GRACE_S)
    assert not enters_at_once(gate, SUSPECT)
    assert enters_at_once(gate, THIRD)
    first.leave()


def test_calls_queued_after_a_waiting_suspect_continue_when_it_stops_waiting() -> None:
    gate = gate_with_suspects(SUSPECT)
    first = Caller(gate, OTHER)
    assert first.inside.wait(GRACE_S)

    seen = threading.Event()

    def give_up() -> None:
        while not seen.is_set():  # repeat if the wait was too short to be observed
            with contextlib.suppress(CallTimedOut), gate.isolate(SUSPECT, time.monotonic() + 0.3):
                pass

    threading.Thread(target=give_up, daemon=True).start()
    waiting(gate)
    seen.set()
    newcomer = Caller(gate, THIRD)
    assert newcomer.inside.wait(GRACE_S)
    for caller in (first, newcomer):
        caller.leave()


def test_two_suspects_run_one_after_the_other() -> None:
    gate = gate_with_suspects(SUSPECT, OTHER)
    first = Caller(gate, SUSPECT)
    assert first.inside.wait(GRACE_S)
    second = Caller(gate, OTHER)
    waiting(gate)
    assert not second.inside.is_set()
    first.leave()
    assert second.inside.wait(GRACE_S)
    second.leave()


def test_without_declarations_the_oldest_call_and_each_channel_call_count_as_running() -> None:
    def lost(number: int, *, sent: bool = True, op: str = "session.run") -> Lost:
        return Lost(number, CallContext(op), None, sent)

    def inside(*calls: Lost) -> list[int]:
        return [one.request_id for one in _with_implied_phase(calls) if one.phase == "running"]

    channel, other = call_id(1, 5), call_id(2, 3)
    assert inside(lost(7), lost(8)) == [7]
    assert inside(lost(7, sent=False), lost(8)) == [8]
    assert inside(lost(7), lost(channel), lost(9, op="host.info")) == [7, channel]
    assert inside(lost(channel), lost(other, sent=False)) == [channel]
    declared = dataclasses.replace(lost(other), phase="running")
    assert inside(lost(channel), declared) == [other]
