"""Deaths, deadlines and cancellations of calls that go over lines: what holds for all calls holds for them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.hosts import fake_host, script

import qnnbridge
from qnnbridge import errors

X = np.arange(4, dtype=np.float32)
GRACE_S = 20.0


@pytest.fixture(params=[True, False], ids=["shared", "inline"])
def host(request: pytest.FixtureRequest, no_leaks: Any):
    with fake_host(shared_memory=request.param) as host:
        yield host


def quick_calls(host: qnnbridge.Host) -> int:
    return host.stats.shared_calls + host.stats.inline_calls


def warm(session: qnnbridge.InferenceSession, x: np.ndarray = X) -> None:
    """The next call goes over a line that is open, with a plan that is made."""
    for _ in range(2):
        session.run(None, {"x": x})


class Later:
    """A model that behaves until the file is there, and then does what it says, once."""

    def __init__(self, folder: Path, *actions: str, npu: bool = True) -> None:
        self._once, self.path = folder / "once", folder / "model"
        self._once.touch()
        self.path.write_bytes(script(scale=3, on_run=list(actions), once=str(self._once), npu=npu))

    def now(self) -> None:
        self._once.unlink()


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    out: list[Any] = []

    def work() -> None:
        try:
            out.append(call())
        except BaseException as error:
            out.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, out


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + GRACE_S
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.005)


def test_a_death_under_a_call_is_repeated_in_the_next_host(host: qnnbridge.Host, tmp_path: Path):
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
    assert quick_calls(host) > calls + 1, "the next host has lines again"


def test_without_repetition_the_death_is_told_with_the_model_that_was_running(host: qnnbridge.Host, tmp_path: Path):
    model = Later(tmp_path, "abort")
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    model.now()
    with pytest.raises(errors.HostCrashed) as caught:
        session.run(None, {"x": X}, retry=0)
    assert "while running model" in str(caught.value)
    assert [call["fingerprint"] for call in caught.value.details["suspects"]] == [session._remote.note.fingerprint]


def test_of_two_calls_only_the_one_inside_native_code_is_suspected(host: qnnbridge.Host, tmp_path: Path):
    """Both are for the NPU: the second one waits in the lane."""
    (tmp_path / "a").mkdir()
    gate = tmp_path / "gate"
    guilty = Later(tmp_path / "a", f"wait:{gate}", "segv")
    innocent = tmp_path / "innocent"
    innocent.write_bytes(script(scale=2))
    first = qnnbridge.InferenceSession(guilty.path, host=host)
    second = qnnbridge.InferenceSession(innocent, host=host)
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
    assert suspects == [first._remote.note.fingerprint]
    assert np.array_equal(result[0][0], X * 2)


def test_a_call_that_is_late_says_so_and_the_session_goes_on(host: qnnbridge.Host, tmp_path: Path):
    gate = tmp_path / "gate"
    model = Later(tmp_path, f"wait:{gate}", npu=False)
    session = qnnbridge.InferenceSession(model.path, host=host, providers=["CPUExecutionProvider"])
    warm(session)
    model.now()
    begin = time.monotonic()
    with pytest.raises(errors.DeadlineExceeded) as caught:
        session.run(None, {"x": X}, timeout=0.2)
    assert time.monotonic() - begin < 1.2 + GRACE_S / 10
    assert caught.value.details["state"] == "still-running"
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3), "over another line"
    gate.touch()
    process = host.supervisor.running
    assert process is not None
    until(lambda: not process.channel.requests.abandoned)
    assert process.lines is not None
    process.lines.reap()
    assert session.generation == 1
    assert len(process.lines) == 1


def test_a_call_that_can_be_stopped_is_stopped_and_its_line_is_used_again(host: qnnbridge.Host, tmp_path: Path):
    model = Later(tmp_path, "stoppable:60", npu=False)
    session = qnnbridge.InferenceSession(model.path, host=host, providers=["CPUExecutionProvider"])
    warm(session)
    model.now()
    with pytest.raises(errors.DeadlineExceeded) as caught:
        session.run(None, {"x": X}, timeout=0.2)
    assert caught.value.details["state"] == "stopped"
    for _ in range(3):
        assert np.array_equal(session.run(None, {"x": X}, timeout=GRACE_S)[0], X * 3)
    assert host.stats.lines == 1


def test_a_late_call_ends_the_host_if_it_may(host: qnnbridge.Host, tmp_path: Path):
    model = Later(tmp_path, "hold_gil:60")
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    model.now()
    with pytest.raises(errors.DeadlineExceeded) as caught:
        session.run(None, {"x": X}, timeout=0.2, on_deadline="kill")
    assert caught.value.details["state"] == "stopped"
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert session.generation == 2


def test_what_waits_behind_another_call_can_be_withdrawn(host: qnnbridge.Host, tmp_path: Path):
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


def test_a_line_that_ends_alone_costs_nothing(host: qnnbridge.Host, tmp_path: Path):
    model = Later(tmp_path)
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    process = host.supervisor.running
    assert process is not None
    assert process.lines is not None
    (plans,) = process.lines._idle
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, plans.line._streams.read_fd)  # end of file
    os.close(null)
    for _ in range(3):
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert session.generation == 1
    assert host.stats.crashes == 0


def test_memory_that_is_released_ahead_of_its_last_call_costs_no_host(tmp_path: Path, no_leaks: Any):
    """A caller that is interrupted behind its call gives the memory back, and the host may take that in first."""
    with fake_host() as host:
        model = Later(tmp_path)
        session = qnnbridge.InferenceSession(model.path, host=host)
        warm(session)
        process = host.supervisor.running
        assert process is not None
        assert process.lines is not None
        plans = process.lines.take(None)
        assert plans is not None
        (plan,) = plans._plans.values()
        assert plan.reply is not None
        process.channel.call({"op": "slab.release", "slab": plan.reply.number})
        head = plans.line.call(plan.number, None)
        with pytest.raises(errors.InvalidArgument, match="was released before the call was read"):
            plans.line.read_frame(head, None)
        plans.line.broken = True
        process.lines.give_back(plans)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert host.stats.generation == 1


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


def test_ctrl_c_under_a_call_leaves_the_session_usable(host: qnnbridge.Host, tmp_path: Path):
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


def test_a_fork_does_not_use_its_parents_lines(host: qnnbridge.Host, tmp_path: Path):
    model = Later(tmp_path)
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    child = os.fork()
    if not child:
        try:
            session.run(None, {"x": X})
        except errors.ForkedClient:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)


def test_requests_of_other_threads_leave_no_word_about_a_call_behind_its_answer(
    host: qnnbridge.Host, tmp_path: Path
):
    """They make the host tell which native step a call is in, at any moment: never when it is answered already."""
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


def test_a_host_that_is_stopped_under_a_repeated_call_is_replaced_and_the_call_repeated(
    host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller waits in a read, without a deadline: somebody else finds out for it, and lets it know."""
    monkeypatch.setattr("qnnbridge.repeated.line.LOOK_INTERVAL_S", 0.05)
    monkeypatch.setattr("qnnbridge.repeated.line._LOOK_INTERVAL_MS", 50.0)
    model = Later(tmp_path, "stop_process")
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    before = quick_calls(host)
    model.now()
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert quick_calls(host) > before
    assert host.stats.generation == 2


def test_what_a_closed_line_had_as_its_number_is_not_written_to(host: qnnbridge.Host, tmp_path: Path) -> None:
    """A nudge may come as late as that: by then the number may be that of a file of the application's."""
    model = Later(tmp_path)
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    process = host.supervisor.running
    assert process is not None
    assert process.lines is not None
    plans = process.lines.take(None)
    assert plans is not None
    fd = plans.line._streams.read_fd
    own, end = os.pipe()
    kept = os.dup(fd)
    os.dup2(own, fd)
    try:
        plans.line.nudge()
        os.set_blocking(fd, False)
        with pytest.raises(BlockingIOError):
            os.read(fd, 1)
    finally:
        os.dup2(kept, fd)
        for number in (own, end, kept):
            os.close(number)
        plans.line.broken = True
        process.lines.give_back(plans)
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
