"""A host that does not answer: stopped, holding its GIL, slow, or busy writing. The state of its process decides."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.fakes.fair_clock import FairClock
from tests.fakes.hosts import fake_host, script
from tests.fakes.stopping import stop

import qnnbridge
from qnnbridge import errors
from qnnbridge._supervision.blame import Quarantine
from qnnbridge_protocol.limits import Limits

X = np.arange(4, dtype=np.float32)
WAIT_S = 60.0
GRACE_S = 1.0
# Long enough for a busy machine to start the work.
BUDGET_S = 3.0
# Longer than all steps of ending a host together.
CLOSE_TIMEOUT_S = 10.0


@pytest.fixture
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check every 50 ms instead of every five seconds whether a silent host is stopped."""
    monkeypatch.setattr("qnnbridge._transport.channel.SILENCE_INTERVAL_S", 0.05)


def wait_until(condition) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        threading.Event().wait(0.002)


@pytest.mark.usefixtures("frequent_checks")
def test_a_host_that_is_stopped_during_a_call_is_replaced_and_the_call_is_repeated(tmp_path: Path, no_leaks):
    """Cover row 26 of the fault table in docs/dev/verification.md."""
    with fake_host() as host:
        model = script(scale=3, on_run=["stop_process"], once=str(tmp_path / "once"))
        session = qnnbridge.InferenceSession(model, host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert host.stats.generation == 2


@pytest.mark.usefixtures("frequent_checks")
def test_a_host_that_is_always_stopped_is_reported_as_a_hang(no_leaks):
    """Cover row 26 of the fault table in docs/dev/verification.md."""
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(on_run=["stop_process"]), host=host)
        with pytest.raises(errors.HostHung) as caught:
            session.run(None, {"x": X}, retry=0)
        assert "is stopped" in str(caught.value)
        assert caught.value.details["report"]


@pytest.mark.usefixtures("frequent_checks")
def test_a_host_that_is_stopped_for_a_moment_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Cover row 26 of the fault table: the host is found stopped fewer times than needed to kill it."""
    monkeypatch.setattr(
        "qnnbridge._supervision.host_process.STOPPED_CHECKS", 10_000
    )  # however late this test continues
    end = tmp_path / "end"
    with fake_host() as host, ThreadPoolExecutor(1) as pool:
        session = qnnbridge.InferenceSession(script(scale=3, on_run=[f"wait:{end}"]), host=host)
        call = pool.submit(session.run, None, {"x": X})
        wait_until(lambda: host.stats.calls_in_flight == 1)
        process = host.supervisor.running
        stop(process.pid)
        wait_until(lambda: process._seen_stopped >= 2)
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: process._seen_stopped == 0)
        end.touch()
        assert np.array_equal(call.result(WAIT_S)[0], X * 3)
        assert host.stats.generation == 1


def test_a_stopped_idle_host_costs_a_call_no_more_than_its_deadline():
    """Cover row 26 of the fault table in docs/dev/verification.md."""
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        stop(host.info.pid)
        clock = FairClock()
        with pytest.raises(errors.DeadlineExceeded):
            session.run(None, {"x": X}, timeout=0.2, on_deadline="kill")
        assert clock.seconds < 0.2 + GRACE_S
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert host.stats.generation == 2


def test_a_stopped_host_can_still_be_closed(no_leaks):
    host = fake_host()
    host.start()
    process = host.supervisor.running
    stop(process.pid)
    clock = FairClock()
    host.close()
    assert clock.seconds < CLOSE_TIMEOUT_S
    assert "kill" in process.end_steps


def test_a_late_pong_does_not_kill_the_host_and_the_call_succeeds(tmp_path: Path):
    """Cover row 27 of the fault table: native code holds the GIL, so nothing in the host can answer."""
    with fake_host() as host, ThreadPoolExecutor(1) as pool:
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        began = tmp_path / "began"
        model = script(scale=5, on_create=[f"note:{began}", "hold_gil:1.2"])
        told = ""
        while not told:  # repeat if this machine was so busy that the host answered before or after that
            began.unlink(missing_ok=True)
            creates = pool.submit(qnnbridge.InferenceSession, model, host=host)
            wait_until(began.exists)
            try:
                host.ping(timeout=0.2)
                creates.result(WAIT_S).close()
            except errors.DeadlineExceeded as error:
                told = error.message
        assert "did not answer a ping" in told
        assert np.array_equal(other.run(None, {"x": X}, timeout=WAIT_S)[0], X * 3), "it waits, and gets its turn"
        assert np.array_equal(creates.result(WAIT_S).run(None, {"x": X})[0], X * 5)
        assert host.ping(timeout=WAIT_S) < WAIT_S
        assert (host.stats.generation, host.stats.crashes) == (1, 0)


def test_a_creation_that_holds_the_gil_past_its_budget_is_ended_by_the_watchdog_of_the_host():
    """Cover row 28 of the fault table: no thread of the host can run except that of faulthandler. The report has
    the stack.
    """
    with fake_host("--watchdog-grace=0.2") as host:
        qnnbridge.InferenceSession(script(), host=host)  # the host runs and has loaded everything
        model = script(on_create=["hold_gil:600"])
        clock = FairClock()
        with pytest.raises(errors.DeadlineExceeded):
            qnnbridge.InferenceSession(model, host=host, timeout=BUDGET_S, retry=0)
        assert clock.seconds < BUDGET_S + GRACE_S
        process = host.supervisor.running
        if process is not None:
            assert process.exit_code(WAIT_S) == 1
        assert np.array_equal(qnnbridge.InferenceSession(script(), host=host).run(None, {"x": X})[0], X * 2)
        crash = host.supervisor.counters.last_crash
        assert "watchdog" in str(crash)
        assert "hold_gil" in crash.details["stderr_head"] or "in act" in crash.details["stderr_head"]


@pytest.mark.usefixtures("frequent_checks")
@pytest.mark.parametrize("action", ["sleep:60", "hold_gil:60"])
@pytest.mark.parametrize(
    ("step", "words"),
    [("import", "importing ONNX Runtime"), ("register", "loading the QNN execution provider")],
)
def test_a_library_that_never_finishes_loading_is_ended_within_the_budget_of_the_start(
    step: str, words: str, action: str, no_leaks
):
    """Cover rows 26 and 28 of the fault table: a declared phase may last until its budget ends, with or without the
    GIL.
    """
    with fake_host(f"--{step}={action}") as host:
        host.start()
        process = host.supervisor.running
        process.load_timeout_s = 0.5
        with pytest.raises(errors.HostHung, match=f"did not finish {words} within 0.5 s") as caught:
            qnnbridge.InferenceSession(script(), host=host, retry=0)
        assert caught.value.fix
        assert caught.value.details["report"]
        assert process.exit_code(WAIT_S) is not None
    assert Quarantine().accounts() == [], "no model was inside native code"


@pytest.mark.usefixtures("frequent_checks")
def test_a_silent_host_within_the_budget_of_loading_is_not_killed():
    """Cover row 26 of the fault table: many checks that find no fault."""
    with fake_host("--import=sleep:1") as host:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert host.stats.generation == 1


def test_both_sides_may_write_more_than_the_pipes_hold_at_the_same_time():
    """Cover row 24 of the fault table in docs/dev/verification.md."""
    large = np.ones(4 << 20, np.float32)
    with fake_host() as host, ThreadPoolExecutor(4) as pool:
        sessions = [qnnbridge.InferenceSession(script(scale=n), host=host) for n in range(1, 5)]
        calls = [pool.submit(s.run, None, {"x": large}, timeout=60.0) for s in sessions for _ in range(3)]
        for n, call in enumerate(calls):
            assert call.result(WAIT_S)[0][-1] == n // 3 + 1


def test_more_calls_than_the_host_accepts_wait_for_their_turn():
    """Cover row 25 of the fault table: no call is refused, and all credits are released at the end."""
    with fake_host(limits=Limits(max_in_flight=4)) as host, ThreadPoolExecutor(40) as pool:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        calls = [pool.submit(session.run, None, {"x": X}) for _ in range(400)]
        assert all(np.array_equal(call.result(WAIT_S)[0], X * 3) for call in calls)
        assert host.stats.calls_in_flight == 0
        assert host.supervisor.running.channel._callers.room == 4


def test_an_application_that_reads_late_only_makes_the_host_wait():
    """Cover row 23 of the fault table: the answers accumulate in the host, its memory grows by nothing else, and
    all arrive.
    """
    large = np.ones(2 << 20, np.float32)
    with fake_host() as host, ThreadPoolExecutor(6) as pool:
        session = qnnbridge.InferenceSession(script(scale=3, npu=False), host=host)
        channel = host.supervisor.running.channel
        with channel._lead:  # no reader
            calls = [pool.submit(session.run, None, {"x": large}) for _ in range(6)]
            wait_until(lambda: host.stats.calls_in_flight == 6 and not channel._writer.pending)
            used = psutil.Process(host.supervisor.running.pid).memory_info().rss
        channel.requests.wake_next()
        assert used < 6 * 3 * large.nbytes + (150 << 20)
        for call in calls:
            assert call.result(WAIT_S)[0][-1] == 3
        assert host.stats.generation == 1
