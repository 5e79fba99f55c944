"""Crashes, deadlines and cancellations of calls over fast channels have the same results as for all other calls."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.fair_clock import FairClock
from tests.fakes.hosts import fake_host, script
from tests.fakes.later import GRACE_S, Later, X, in_thread, until, warm

import qnnbridge
from qnnbridge import errors
from qnnbridge._session import fast_calls


@pytest.fixture
def host(no_leaks: Any) -> Iterator[qnnbridge.Host]:
    with fake_host(shared_memory=True) as host:
        yield host


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the state of an abandoned call as long as a busy machine may need."""
    monkeypatch.setattr("qnnbridge._session.fast_calls.CANCEL_TIMEOUT_S", GRACE_S)
    monkeypatch.setattr("qnnbridge._transport.channel.CANCEL_TIMEOUT_S", GRACE_S)


def quick_calls(host: qnnbridge.Host) -> int:
    return host.stats.shared_calls


def test_a_call_during_a_crash_is_repeated_in_the_next_host(host: qnnbridge.Host, tmp_path: Path):
    model = Later(tmp_path, "segv")
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    calls = quick_calls(host)
    model.now()
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert quick_calls(host) == calls + 1
    assert (session.generation, host.stats.retried_calls, host.stats.crashes) == (2, 1, 1)
    assert "SIGSEGV" in str(host.stats.last_crash)
    for _ in range(3):
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert quick_calls(host) > calls + 1, "the next host has channels again"


def test_without_retries_the_crash_is_reported_with_the_model_that_was_running(
    host: qnnbridge.Host, tmp_path: Path
):
    model = Later(tmp_path, "abort")
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    model.now()
    with pytest.raises(errors.HostCrashed) as caught:
        session.run(None, {"x": X}, retry=0)
    assert "while running model" in str(caught.value)
    assert [call["fingerprint"] for call in caught.value.details["suspects"]] == [
        session._remote.suspect.run.fingerprint
    ]


def test_of_two_calls_only_the_one_inside_of_native_code_is_suspected(host: qnnbridge.Host, tmp_path: Path):
    """Both calls are for the NPU: the second one waits in the lane."""
    (tmp_path / "a").mkdir()
    gate = tmp_path / "gate"
    guilty = Later(tmp_path / "a", f"wait:{gate}", "segv")
    healthy = tmp_path / "healthy"
    healthy.write_bytes(script(scale=2))
    first = qnnbridge.InferenceSession(guilty.path, host=host)
    second = qnnbridge.InferenceSession(healthy, host=host)
    warm(first)
    warm(second)
    guilty.now()
    one, told = in_thread(lambda: first.run(None, {"x": X}, retry=0))
    until(lambda: (tmp_path / "a" / "once").exists())
    two, result = in_thread(lambda: second.run(None, {"x": X}))
    until(lambda: host.stats.calls_in_flight == 2)
    gate.touch()
    one.join()
    two.join()
    assert isinstance(told[0], errors.HostCrashed)
    suspects = [call["fingerprint"] for call in told[0].details["suspects"]]
    assert suspects == [first._remote.suspect.run.fingerprint]
    assert np.array_equal(result[0][0], X * 2)


def test_a_call_past_its_deadline_is_reported_and_the_session_stays_usable(host: qnnbridge.Host, tmp_path: Path):
    gate = tmp_path / "gate"
    model = Later(tmp_path, f"wait:{gate}", npu=False)
    session = qnnbridge.InferenceSession(model.path, host=host, providers=["CPUExecutionProvider"])
    warm(session)
    model.now()
    seconds: list[float] = []

    def call() -> None:
        clock = FairClock()
        try:
            session.run(None, {"x": X}, timeout=0.2)
        finally:
            seconds.append(clock.seconds)

    assert model.late(call).state == "still-running"
    assert min(seconds) < 1.2 + GRACE_S / 10
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3), "over another channel"
    gate.touch()
    process = host.supervisor.running
    assert process is not None
    until(lambda: not process.channel.requests.abandoned)
    assert process.pool is not None
    process.pool.reap()
    assert session.generation == 1
    assert len(process.pool) == 1


def test_a_call_that_can_be_stopped_is_stopped_and_its_channel_is_closed(
    tmp_path: Path, no_leaks: Any, long_waits: None
):
    model = Later(tmp_path, "stoppable:60", npu=False)
    with fake_host(f"--cancel-grace={GRACE_S}", shared_memory=True) as host:
        session = qnnbridge.InferenceSession(model.path, host=host, providers=["CPUExecutionProvider"])
        warm(session)
        model.now()
        assert model.late(lambda: session.run(None, {"x": X}, timeout=0.2)).state == "stopped"
        for _ in range(3):
            assert np.array_equal(session.run(None, {"x": X}, timeout=GRACE_S)[0], X * 3)
        assert host.stats.channels == 1


def test_a_call_past_its_deadline_ends_the_host_if_on_deadline_is_kill(host: qnnbridge.Host, tmp_path: Path):
    model = Later(tmp_path, "hold_gil:60")
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    model.now()
    generations: list[int] = []

    def call() -> None:
        generations.append(host.stats.generation)
        session.run(None, {"x": X}, timeout=0.2, on_deadline="kill")

    assert model.late(call).state == "stopped"
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert session.generation == generations[-1] + 1


def test_a_call_that_is_queued_behind_another_one_can_be_cancelled(
    host: qnnbridge.Host, tmp_path: Path, long_waits: None
):
    gate = tmp_path / "gate"
    model = Later(tmp_path, f"wait:{gate}")
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    two, _ = in_thread(lambda: warm(session))
    two.join()
    model.now()
    one, result = in_thread(lambda: session.run(None, {"x": X}))
    until(lambda: (tmp_path / "once").exists())
    with pytest.raises(errors.DeadlineExceeded) as caught:
        session.run(None, {"x": X}, timeout=0.2)
    assert caught.value.details["state"] == "not-started"
    gate.touch()
    one.join()
    assert np.array_equal(result[0][0], X * 3)
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)


def test_a_channel_that_ends_alone_fails_no_call(host: qnnbridge.Host, tmp_path: Path):
    model = Later(tmp_path)
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    process = host.supervisor.running
    assert process is not None
    assert process.pool is not None
    (plans,) = process.pool.idle
    null = os.open(os.devnull, os.O_RDONLY)
    read_fd = plans.channel._streams.read_fd
    os.dup2(null, read_fd)  # end of file
    os.close(null)
    for _ in range(3):
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert session.generation == 1
    assert host.stats.crashes == 0
    os.close(read_fd)  # the descriptor no longer belongs to the channel, which has not used it


def test_a_call_whose_plan_was_refused_uses_the_fast_path_again(
    host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The reason why the host could not create a plan may no longer exist."""
    model = Later(tmp_path)
    session = qnnbridge.InferenceSession(model.path, host=host)
    wide = np.arange(8, dtype=np.float32)
    warm(session)

    def quick_ones_of(calls: int) -> int:
        before = quick_calls(host)
        for _ in range(calls):
            assert np.array_equal(session.run(None, {"x": wide})[0], wide * 3)
        return quick_calls(host) - before

    def refuse_the_next_plan() -> None:
        process = host.supervisor.running
        assert process is not None
        assert process.pool is not None
        (plans,) = process.pool.idle
        plans._numbers = itertools.count(1)  # so that the next plan gets the number of an existing one

    monkeypatch.setattr(fast_calls, "REFUSED_S", 3600.0)
    refuse_the_next_plan()
    assert quick_ones_of(4) == 0
    monkeypatch.setattr(fast_calls, "REFUSED_S", 0.0)
    wide = np.arange(16, dtype=np.float32)
    refuse_the_next_plan()
    assert quick_ones_of(4) == 2, "of the first its shape is learnt, with the second the plan is refused"


def test_a_planned_restart_loses_no_call(host: qnnbridge.Host, tmp_path: Path):
    model = Later(tmp_path, npu=False)
    session = qnnbridge.InferenceSession(model.path, host=host, providers=["CPUExecutionProvider"])
    warm(session)
    stop, wrong = threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            if not np.array_equal(session.run(None, {"x": X}, retry=0)[0], X * 3):
                wrong.append(1)

    callers = [in_thread(work) for _ in range(3)]
    for _ in range(3):
        host.restart()
        session.run(None, {"x": X})
    stop.set()
    for thread, out in callers:
        thread.join()
        assert out == [None]
    assert not wrong
    assert host.stats.crashes == 0


def test_ctrl_c_during_a_call_leaves_the_session_usable(host: qnnbridge.Host, tmp_path: Path):
    gate = tmp_path / "gate"
    model = Later(tmp_path, f"wait:{gate}", npu=False)
    session = qnnbridge.InferenceSession(model.path, host=host, providers=["CPUExecutionProvider"])
    warm(session)
    model.now()

    def strike() -> None:
        until(lambda: (tmp_path / "once").exists())
        os.kill(os.getpid(), signal.SIGINT)

    thread, _ = in_thread(strike)
    with pytest.raises(KeyboardInterrupt):
        session.run(None, {"x": X})
    thread.join()
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    gate.touch()
    assert session.generation == 1


def test_a_fork_does_not_use_the_channels_of_its_parent(host: qnnbridge.Host, tmp_path: Path):
    model = Later(tmp_path)
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    child = os.fork()
    if not child:
        code = 1
        try:
            warm(session)
            code = 7 if session.generation == 2 and host.stats.shared_calls else 2
            host.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)


def test_requests_of_other_threads_cause_no_phase_message_after_the_answer_of_a_call(
    host: qnnbridge.Host, tmp_path: Path
):
    """The requests let the host report the native step of a call at any moment, but never after the call's answer."""
    model = Later(tmp_path, npu=False)
    session = qnnbridge.InferenceSession(model.path, host=host, providers=["CPUExecutionProvider"])
    warm(session)
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            host.call({"op": "host.info"})

    thread, out = in_thread(ask)
    for _ in range(400):
        assert np.array_equal(session.run(None, {"x": X}, retry=0)[0], X * 3)
    stop.set()
    thread.join()
    assert out == [None]
    assert host.stats.crashes == 0


def test_a_host_that_is_stopped_during_a_repeated_call_is_replaced_and_the_call_is_repeated(
    host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller waits in a read without a deadline: another thread notices the crash and wakes the caller."""
    monkeypatch.setattr("qnnbridge._fastpath.channel.CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr("qnnbridge._fastpath.channel._CHECK_INTERVAL_MS", 50.0)
    model = Later(tmp_path, "stop_process")
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    before = quick_calls(host)
    model.now()
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert quick_calls(host) > before
    assert host.stats.generation == 2


def test_the_descriptor_number_of_a_closed_channel_is_not_written_to(host: qnnbridge.Host, tmp_path: Path) -> None:
    """A wake-up may be that late: the descriptor number may already belong to a file of the application."""
    model = Later(tmp_path)
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    process = host.supervisor.running
    assert process is not None
    assert process.pool is not None
    plans = process.pool.take_idle()
    assert plans is not None
    fd = plans.channel._streams.read_fd
    own, end = os.pipe()
    kept = os.dup(fd)
    os.dup2(own, fd)
    try:
        plans.channel.wake_reader()
        os.set_blocking(fd, False)
        with pytest.raises(BlockingIOError):
            os.read(fd, 1)
    finally:
        os.dup2(kept, fd)
        for number in (own, end, kept):
            os.close(number)
        plans.channel.broken = True
        process.pool.give_back(plans)
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
