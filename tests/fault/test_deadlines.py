"""Calls whose deadline expires, and the effect on other calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.fair_clock import FairClock
from tests.fakes.hosts import fake_host, script
from tests.fakes.later import late, until
from tests.fakes.stopping import stop

import qnnbridge
from qnnbridge import errors
from qnnbridge._supervision.blame import Quarantine

X = np.arange(4, dtype=np.float32)
# Time after a deadline that the README promises.
GRACE_S = 1.0

WAIT_S = 50.0
HOUR_S = 3600.0


def in_flight(host: qnnbridge.Host, count: int) -> None:
    """Wait until this number of requests is in flight and completely written."""
    process = host.supervisor.running
    assert process is not None
    requests = process.channel.requests
    until(lambda: requests.waiting >= count and all(entry.sent for entry in list(requests._open.values())))


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the state of abandoned work as long as a busy host may need to report it."""
    monkeypatch.setattr("qnnbridge._transport.channel.CANCEL_TIMEOUT_S", WAIT_S)


@pytest.fixture
def an_hour_passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that lets the deadline of a call expire immediately, however busy the machine is."""
    monkeypatch.setattr("qnnbridge._transport.channel.SILENCE_INTERVAL_S", 0.02)
    hours, real = [0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + hours[0] * HOUR_S)

    def passes() -> None:
        hours[0] += 1

    return passes


def timed(work: Callable[[], Any]) -> tuple[float, errors.DeadlineExceeded]:
    clock = FairClock()
    with pytest.raises(errors.DeadlineExceeded) as caught:
        work()
    return clock.seconds, caught.value


def abandon(session: qnnbridge.InferenceSession, began: Path) -> tuple[float, errors.DeadlineExceeded]:
    """Abandon a run that has started, which the model reports by creating a file.

    If the run has not started in time on a busy machine, try again.
    """
    seconds = 0.0

    def call() -> None:
        nonlocal seconds
        clock = FairClock()
        try:
            session.run(None, {"x": X}, timeout=0.2)
        finally:
            seconds = clock.seconds

    error = late(call, began.exists)
    assert error.state == "still-running"
    return seconds, error


def test_a_run_that_cannot_be_interrupted_continues_and_its_caller_returns(tmp_path: Path, long_waits: None):
    """Cover row 29 of the fault table: the lane is busy until the work ends, then everything works as before."""
    began, end = tmp_path / "began", tmp_path / "end"
    with fake_host() as host:
        slow = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", f"wait:{end}"]), host=host)
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        seconds, error = abandon(slow, began)
        assert seconds < 0.2 + GRACE_S
        assert "on_deadline='kill'" in str(error.fix)
        seconds, error = timed(lambda: other.run(None, {"x": X}, timeout=0.1))
        assert error.state == "not-started", "the NPU works on one thing at a time"
        assert seconds < 0.1 + GRACE_S
        end.touch()
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
        assert np.array_equal(slow.run(None, {"x": X}, timeout=WAIT_S)[0], X * 2)
        assert host.stats.generation == 1


def test_a_session_on_the_cpu_does_not_wait_for_the_npu(tmp_path: Path):
    began, end = tmp_path / "began", tmp_path / "end"
    with fake_host() as host:
        slow = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", f"wait:{end}"]), host=host)
        cpu = qnnbridge.InferenceSession(script(scale=3, npu=False), host=host)
        abandon(slow, began)
        assert np.array_equal(cpu.run(None, {"x": X}, timeout=WAIT_S)[0], X * 3)
        end.touch()


def test_on_deadline_kill_ends_the_host_and_the_other_calls_are_repeated(
    tmp_path: Path, an_hour_passes: Callable[[], None], no_leaks: Any
):
    """Cover row 30 of the fault table in docs/dev/verification.md."""
    began = tmp_path / "began"
    with fake_host() as host, ThreadPoolExecutor(2) as pool:
        slow = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", "sleep:60"]), host=host)
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        late_call = pool.submit(slow.run, None, {"x": X}, timeout=HOUR_S / 2, on_deadline="kill")
        until(began.exists)
        waits = pool.submit(other.run, None, {"x": X})
        in_flight(host, 2)
        an_hour_passes()
        assert np.array_equal(waits.result(WAIT_S)[0], X * 3)
        assert isinstance(late_call.exception(WAIT_S), errors.DeadlineExceeded)
        assert host.stats.generation == 2
        assert host.stats.retried_calls == 1


@pytest.mark.parametrize(("somebody_waits", "ended"), [(True, False), (False, True)])
def test_a_queued_call_past_its_deadline_ends_the_host_only_if_no_caller_waits_for_the_running_work(
    somebody_waits: bool, ended: bool, tmp_path: Path, no_leaks: Any, long_waits: None
):
    """Otherwise a model that hangs would block the NPU for later callers after its own caller has returned."""
    began, end = tmp_path / "began", tmp_path / "end"
    with fake_host() as host, ThreadPoolExecutor(1) as pool:
        slow = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", f"wait:{end}"]), host=host)
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        if somebody_waits:
            waits = pool.submit(slow.run, None, {"x": X})
            until(began.exists)
        else:
            abandon(slow, began)
        _, error = timed(lambda: other.run(None, {"x": X}, timeout=0.1, on_deadline="kill"))
        assert error.state == ("stopped" if ended else "not-started")
        end.touch()
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
        assert host.stats.generation == (2 if ended else 1)
        if somebody_waits:
            assert np.array_equal(waits.result(WAIT_S)[0], X * 2)


def test_a_model_that_hangs_is_blamed_and_not_the_one_queued_after_it(
    tmp_path: Path, an_hour_passes: Callable[[], None]
):
    """Cover row 30 of the fault table: the caller of the hanging model has returned when the host is ended, and the
    next call never started.
    """
    began = tmp_path / "began"
    with fake_host() as host, ThreadPoolExecutor(2) as pool:
        slow = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", "sleep:60"]), host=host)
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        for _ in range(2):
            hangs = pool.submit(slow.run, None, {"x": X}, timeout=HOUR_S / 2, on_deadline="kill")
            until(began.exists)
            waits = pool.submit(other.run, None, {"x": X})
            in_flight(host, 2)
            an_hour_passes()
            assert np.array_equal(waits.result(WAIT_S)[0], X * 3)
            began.unlink()
            assert isinstance(hangs.exception(WAIT_S), errors.DeadlineExceeded)
        with pytest.raises(errors.ModelQuarantined) as caught:
            slow.run(None, {"x": X})
        assert "while running" in str(caught.value)
        (account,) = Quarantine().accounts()
        assert account.fingerprint == slow._remote.recipe.fingerprint
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)


def test_a_crash_of_abandoned_work_is_blamed_on_that_work(tmp_path: Path):
    """The caller of the call that crashes has returned; another call is queued, and must not be blamed."""
    began, end = tmp_path / "began", tmp_path / "end"
    with fake_host() as host, ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            end.unlink(missing_ok=True)
            began.unlink(missing_ok=True)
            poison = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", f"wait:{end}", "segv"]), host=host)
            other = qnnbridge.InferenceSession(script(scale=3), host=host)
            abandon(poison, began)
            waits = pool.submit(other.run, None, {"x": X})
            in_flight(host, 1)
            end.touch()
            assert np.array_equal(waits.result(WAIT_S)[0], X * 3)
        (account,) = Quarantine().accounts()
        assert account.fingerprint == poison._remote.recipe.fingerprint


def test_abandoned_work_that_has_ended_is_not_blamed_for_later_crashes(tmp_path: Path):
    began, end = tmp_path / "began", tmp_path / "end"
    with fake_host() as host:
        slow = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", f"wait:{end}"]), host=host)
        poison = qnnbridge.InferenceSession(script(on_run=["segv"]), host=host)
        abandon(slow, began)
        end.touch()
        assert np.array_equal(slow.run(None, {"x": X})[0], X * 2)
        with pytest.raises(errors.HostCrashed) as caught:
            poison.run(None, {"x": X}, retry=0)
        (suspect,) = caught.value.details["suspects"]
        assert suspect["fingerprint"] == poison._remote.recipe.fingerprint


@pytest.mark.parametrize("before", [True, False], ids=["queued", "running"])
def test_terminate_stops_runs_that_can_be_stopped(before: bool, tmp_path: Path):
    """Cover row 31 of the fault table: set terminate in the run options from another thread, as with ONNX Runtime."""
    end = tmp_path / "end"
    with fake_host() as host, ThreadPoolExecutor(2) as pool:
        first = qnnbridge.InferenceSession(script(on_run=[f"wait:{end}"]), host=host)
        began = tmp_path / "began"
        session = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", "stoppable:600"]), host=host)
        if before:
            blocks = pool.submit(first.run, None, {"x": X})
            in_flight(host, 1)
        options = qnnbridge.RunOptions()
        stopped = pool.submit(session.run, None, {"x": X}, options)
        in_flight(host, 1 + before)
        while not before and not began.exists():
            threading.Event().wait(0.002)
        options.terminate = True
        error = stopped.exception(WAIT_S)
        end.touch()
        assert isinstance(error, errors.Fail), error  # onnxruntime has no queue
        if before:
            assert np.array_equal(blocks.result(WAIT_S)[0], X * 2)
        assert host.stats.generation == 1


@pytest.mark.parametrize(
    ("action", "grace_s", "state"),
    [
        ("stoppable:60", WAIT_S, "stopped"),
        ("sleep:1", WAIT_S, "finished"),  # within the time for querying the state of the call
        ("sleep:60", 0.3, "still-running"),
    ],
)
def test_the_error_reports_what_happened_to_the_work(
    action: str, grace_s: float, state: str, monkeypatch: pytest.MonkeyPatch
):
    """Cover row 31 of the fault table in docs/dev/verification.md."""
    monkeypatch.setattr("qnnbridge._transport.channel.CANCEL_TIMEOUT_S", WAIT_S)
    with fake_host(f"--cancel-grace={grace_s}") as host:
        session = qnnbridge.InferenceSession(script(on_run=[action]), host=host)
        told = "not-started"
        while told == "not-started":  # until the thread runs, on a busy machine
            with pytest.raises(errors.DeadlineExceeded) as caught:
                session.run(None, {"x": X}, timeout=0.5)
            told = caught.value.state
        assert told == state
        assert isinstance(caught.value, TimeoutError)


def test_a_creation_past_its_deadline_is_reported_in_time(tmp_path: Path):
    end = tmp_path / "end"
    with fake_host() as host:
        host.start()
        model = script(on_create=[f"wait:{end}"])
        seconds, _ = timed(lambda: qnnbridge.InferenceSession(model, host=host, timeout=0.2))
        assert seconds < 0.2 + GRACE_S
        end.touch()
        assert np.array_equal(qnnbridge.InferenceSession(model, host=host).run(None, {"x": X})[0], X * 2)


def test_the_deadline_holds_while_the_host_does_not_start(no_leaks):
    with fake_host("--first=sleep:60") as host:
        seconds, error = timed(lambda: qnnbridge.InferenceSession(script(), host=host, timeout=0.3))
        assert seconds < 0.3 + GRACE_S
        assert error.state == "not-started"


def test_callers_with_short_deadlines_get_their_host_eventually(tmp_path: Path, no_leaks):
    """The start continues without a waiting caller."""
    end = tmp_path / "end"
    with fake_host(f"--first=wait:{end}") as host:
        for _ in range(3):
            timed(lambda: qnnbridge.InferenceSession(script(), host=host, timeout=0.05))
        end.touch()
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert host.stats.generation == 1


def test_a_host_that_does_not_start_in_time_is_ended_and_reported(no_leaks):
    with fake_host("--first=print:Hello from a banner", "--first=stop_process", start_timeout=1.0) as host:
        with pytest.raises(errors.HandshakeFailed, match="within 1 s"):
            host.start()


def test_the_deadline_holds_while_a_large_input_is_being_sent(tmp_path: Path, no_leaks):
    """The host is stopped, so the pipe fills. The next call writes the remaining data."""
    import os
    import signal

    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        large = np.ones(8 << 20, np.float32)
        pid = host.info.pid
        stop(pid)
        try:
            seconds, _ = timed(lambda: session.run(None, {"x": large}, timeout=0.2))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert seconds < 0.2 + GRACE_S
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert host.info.pid == pid


def test_a_wall_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    """Cover row 39 of the fault table in docs/dev/verification.md."""
    year_s = 365 * 86400.0
    real = time.time
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(scale=3, on_run=["sleep:0.05"]), host=host)
        for jump in (year_s, -year_s):
            monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
            assert np.array_equal(session.run(None, {"x": X}, timeout=WAIT_S)[0], X * 3)
            with pytest.raises(errors.HostCrashed):
                qnnbridge.InferenceSession(script(scale=jump, on_run=["segv"]), host=host).run(
                    None, {"x": X}, retry=0
                )
            assert np.array_equal(session.run(None, {"x": X}, timeout=WAIT_S)[0], X * 3)


def test_an_hour_of_sleep_in_the_middle_of_a_call_kills_no_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Cover row 39 of the fault table: the machine was suspended, and the monotonic clock has advanced."""
    end = tmp_path / "end"
    real = time.monotonic
    with fake_host() as host, ThreadPoolExecutor(1) as pool:
        session = qnnbridge.InferenceSession(script(scale=3, on_run=[f"wait:{end}"]), host=host)
        monkeypatch.setattr("qnnbridge._transport.channel.SILENCE_INTERVAL_S", 0.02)
        call = pool.submit(session.run, None, {"x": X})
        in_flight(host, 1)
        monkeypatch.setattr(time, "monotonic", lambda: real() + 3600.0)
        end.touch()
        assert np.array_equal(call.result(WAIT_S)[0], X * 3)
        assert host.stats.generation == 1


def test_the_deadline_of_a_run_includes_the_encoding_of_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding millions of texts takes seconds."""
    from qnnbridge_protocol.values import Encoder

    add = Encoder.add

    def slow_add(self: Encoder, *arguments: Any) -> Any:
        time.sleep(1.5)
        return add(self, *arguments)

    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(on_run=["sleep:30"]), host=host)
        monkeypatch.setattr(Encoder, "add", slow_add)
        seconds, _ = timed(lambda: session.run(None, {"x": X}, timeout=2.0))
    assert seconds < 2.0 + GRACE_S
