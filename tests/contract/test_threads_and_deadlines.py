"""Many threads that use one host, large tensors in both directions, and expired deadlines, with the real engine."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge import errors
from tests.contract.small_models import CPU, MODELS, counting_loop, identity
from tests.fakes.fair_clock import FairClock
from tests.fakes.later import in_thread, until

pytestmark = pytest.mark.simulator

THREADS = 8
MIB = 1024 * 1024
# Maximum time by which a call may exceed its deadline.
GRACE_S = 1.0

BUSY_TRIES = 10

# Number of iterations that takes minutes.
MINUTES = np.array(10**9, np.int64)


@pytest.fixture(scope="module")
def loop(host: qnnbridge.Host) -> qnnbridge.InferenceSession:
    """Return a model whose input sets its duration, and which can be stopped."""
    return qnnbridge.InferenceSession(counting_loop(), providers=[CPU], host=host)


def turns(number: Any) -> dict[str, Any]:
    return {"n": np.asarray(number, np.int64), "x": np.zeros(1, np.float32)}


def in_parallel(works: list[Callable[[], Any]]) -> list[Any]:
    """Run all functions concurrently, each in a separate thread, and return their results."""
    barrier = threading.Barrier(len(works))

    def begin(work: Callable[[], Any]) -> Any:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(begin, works))


def run_at_once(sessions: list[qnnbridge.InferenceSession], name: str, shape: tuple[int, ...]) -> None:
    """Every thread has a different input and checks that it gets the matching results."""
    inputs = [np.random.default_rng(number).random(shape, np.float32) for number in range(THREADS)]
    expected = [sessions[number % len(sessions)].run(None, {name: x})[0] for number, x in enumerate(inputs)]

    def work(number: int) -> bool:
        session = sessions[number % len(sessions)]
        return all(
            session.run(None, {name: inputs[number]})[0].tobytes() == expected[number].tobytes() for _ in range(10)
        )

    assert in_parallel([partial(work, number) for number in range(THREADS)]) == [True] * THREADS


# --- threads ---------------------------------------------------------------------------------------------


def test_eight_threads_share_one_session_on_qnn(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(MODELS / "q.onnx", host=host) as session:
        run_at_once([session], "x", (1, 3, 64, 64))


def test_eight_threads_share_one_session_on_the_cpu(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(MODELS / "f.onnx", providers=[CPU], host=host) as session:
        run_at_once([session], "x", (1, 3, 64, 64))


def test_eight_threads_use_sessions_of_all_kinds_at_the_same_time(host: qnnbridge.Host) -> None:
    quantized, floating = MODELS / "q.onnx", MODELS / "f.onnx"
    sessions = [
        qnnbridge.InferenceSession(quantized, host=host),
        qnnbridge.InferenceSession(quantized, providers=[CPU], host=host),
        qnnbridge.InferenceSession(floating, host=host),
        qnnbridge.InferenceSession(floating, providers=[CPU], host=host),
    ]
    run_at_once(sessions, "x", (1, 3, 64, 64))
    for session in sessions:
        session.close()


def test_eight_threads_create_and_close_sessions_at_the_same_time(host: qnnbridge.Host) -> None:
    x = np.ones((3, 2), np.float32)

    def make_and_run(number: int) -> Any:
        providers = [CPU] if number % 2 else None
        with qnnbridge.InferenceSession(MODELS / "mul_1.onnx", providers=providers, host=host) as session:
            return session.run(None, {"X": x})[0].shape

    assert in_parallel([partial(make_and_run, number) for number in range(THREADS)]) == [(3, 2)] * THREADS


def test_large_tensors_are_transferred_in_both_directions_at_the_same_time(host: qnnbridge.Host) -> None:
    """Use more bytes than any pipe holds: a side that only wrote would wait for the other forever."""
    with qnnbridge.InferenceSession(identity(), providers=[CPU], host=host) as session:
        inputs = [np.full(64 * MIB // 4, number, np.float32) for number in range(4)]

        def work(number: int) -> bool:
            return bool((session.run(None, {"x": inputs[number]})[0] == number).all())

        assert in_parallel([partial(work, number) for number in range(4)]) == [True] * 4


# --- deadlines -------------------------------------------------------------------------------------------


def stopped(loop: qnnbridge.InferenceSession, timeout: float) -> errors.DeadlineExceeded:
    """Return the error of a run that was stopped at its deadline.

    On a busy machine the run may not start in time, or stop too late for its caller: then the run is repeated.
    """
    for _ in range(BUSY_TRIES):
        begin, clock = time.monotonic(), FairClock()
        with pytest.raises(errors.DeadlineExceeded) as caught:
            loop.run(None, turns(MINUTES), timeout=timeout)
        assert time.monotonic() - begin >= timeout
        assert clock.seconds < timeout + GRACE_S
        if caught.value.state == "stopped":
            break
    assert caught.value.state == "stopped"
    return caught.value


def test_a_run_past_its_deadline_is_stopped_and_the_session_stays_usable(loop: qnnbridge.InferenceSession) -> None:
    error = stopped(loop, 0.5)
    assert "0.5 s (the work is stopped)" in str(error)
    assert isinstance(error, TimeoutError)
    assert loop.run(None, turns(3))[0].tolist() == [3]
    assert loop.generation == 1


def made_in_time(host: qnnbridge.Host, timeout: float) -> qnnbridge.InferenceSession:
    """Repeat a creation that exceeds the session's deadline, which may happen on a busy machine."""
    for _ in range(BUSY_TRIES):
        try:
            return qnnbridge.InferenceSession(counting_loop(), providers=[CPU], host=host, timeout=timeout)
        except errors.DeadlineExceeded:
            continue
    raise AssertionError("it was never made in time")


def test_the_deadline_of_the_session_applies_to_its_calls(host: qnnbridge.Host) -> None:
    with made_in_time(host, 0.5) as session:
        with pytest.raises(errors.DeadlineExceeded):
            session.run(None, turns(MINUTES))
        assert session.run(None, turns(100_000), timeout=60)[0].tolist() == [100_000]


def run_bound(session: qnnbridge.InferenceSession, timeout: float) -> None:
    binding = session.io_binding()
    for name, value in turns(MINUTES).items():
        binding.bind_cpu_input(name, value)
    binding.bind_output(session.get_outputs()[0].name)
    session.run_with_iobinding(binding, timeout=timeout)


def run_with_values(session: qnnbridge.InferenceSession, timeout: float) -> None:
    feeds = {name: qnnbridge.OrtValue.ortvalue_from_numpy(value) for name, value in turns(MINUTES).items()}
    session.run_with_ort_values(None, feeds, timeout=timeout)


@pytest.mark.parametrize("run", [run_bound, run_with_values])
def test_every_way_to_run_takes_a_deadline(
    run: Callable[[qnnbridge.InferenceSession, float], None], loop: qnnbridge.InferenceSession
) -> None:
    with pytest.raises(errors.DeadlineExceeded, match=r"0\.5 s"):
        run(loop, 0.5)
    assert loop.run(None, turns(3))[0].tolist() == [3]


def test_the_deadline_of_a_background_run_starts_when_the_run_is_requested(
    loop: qnnbridge.InferenceSession,
) -> None:
    """Use more calls than run at a time: those in the queue fail at the same time as the running ones."""
    told: queue.Queue[tuple[int, str]] = queue.Queue()
    for number in range(6):
        loop.run_async(None, turns(MINUTES), lambda _, n, error: told.put((n, error)), number, timeout=0.5)
    errors_told = dict(told.get(timeout=60) for _ in range(6))
    assert sorted(errors_told) == list(range(6))
    assert all("no answer within" in text for text in errors_told.values()), errors_told
    with pytest.raises(errors.OptionError):
        loop.run_async(None, turns(1), print, None, timeout=-1.0)
    assert loop.run(None, turns(3))[0].tolist() == [3]


def test_a_deadline_delays_no_other_call(loop: qnnbridge.InferenceSession) -> None:
    def late() -> str:
        return stopped(loop, 0.3).state

    def others() -> list[Any]:
        return [loop.run(None, turns(number))[0].tolist() for number in range(50)]

    assert in_parallel([late, others]) == ["stopped", [[number] for number in range(50)]]


def test_an_expired_deadline_sends_no_work_to_the_host(loop: qnnbridge.InferenceSession) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        loop.run(None, turns(MINUTES), timeout=0.0)
    assert loop.run(None, turns(1))[0].tolist() == [1]


def test_terminate_stops_a_run_from_another_thread(loop: qnnbridge.InferenceSession, host: qnnbridge.Host) -> None:
    options = qnnbridge.RunOptions()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(loop.run, None, turns(MINUTES), options)
        until(lambda: host.stats.calls_in_flight > 0)
        # The loop may not have entered native code yet; then it is stopped as soon as it enters.
        options.terminate = True
        with pytest.raises(errors.Fail):
            run.result(timeout=30)
    with pytest.raises(errors.Fail, match="terminate flag"):
        loop.run(None, turns(3), options)
    options.terminate = False
    assert loop.run(None, turns(3), options)[0].tolist() == [3]


def test_an_interrupted_caller_does_not_affect_other_callers_of_the_host(loop: qnnbridge.InferenceSession) -> None:
    """Ctrl+C in a run also stops the run in the host."""
    import signal

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def strike() -> None:
        until(lambda: loop.host.stats.calls_in_flight > 0)
        threading.Event().wait(0.3)  # by then the host is in native code, unless this machine is busy
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            striker, _ = in_thread(strike)
            loop.run(None, turns(MINUTES))
        striker.join()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert loop.run(None, turns(3), timeout=30)[0].tolist() == [3]
    assert loop.host.stats.calls_in_flight == 0
