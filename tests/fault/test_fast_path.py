"""Calls on the fast path leave no stale plan, lost channel or reference cycle for later calls."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.hosts import fake_host, script
from tests.fakes.later import GRACE_S, Later, X, in_thread, until, warm

import qnnbridge
from qnnbridge import errors
from qnnbridge._fastpath.channel import ChannelPlans
from qnnbridge._fastpath.channel_pool import ChannelPool
from qnnbridge._supervision.host_process import HostProcess
from qnnbridge._supervision.supervisor import RETIRE_TIMEOUT_S
from qnnbridge_protocol.fastpath import MAX_PLANS

CPU = "CPUExecutionProvider"


@pytest.fixture
def host(no_leaks: Any) -> Iterator[qnnbridge.Host]:
    with fake_host(shared_memory=True) as host:
        yield host


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Disable the garbage collector, as applications do that cannot accept its pauses."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def running(host: qnnbridge.Host) -> tuple[HostProcess, ChannelPool]:
    process = host.supervisor.running
    assert process is not None
    assert process.pool is not None
    return process, process.pool


def quick_calls(host: qnnbridge.Host) -> int:
    return host.stats.shared_calls


# --- objects that are freed without the garbage collector ---


def test_a_dropped_session_is_freed_immediately(host: qnnbridge.Host, no_collector: None) -> None:
    """The session's model, which may have been given as bytes, is freed, too."""
    # A comparison with the CPU would hold the session until it ends.
    session = qnnbridge.InferenceSession(script(scale=3), host=host, verify=False)
    for _ in range(3):
        warm(session)
    left = [weakref.ref(session), weakref.ref(session._remote), weakref.ref(session._remote.recipe)]
    del session
    assert [reference() for reference in left] == [None] * 3


def test_channels_and_arrays_of_a_crashed_host_are_freed_immediately(
    host: qnnbridge.Host, no_collector: None
) -> None:
    session = qnnbridge.InferenceSession(script(scale=3), host=host)

    def call(**how: Any) -> list[weakref.ref[Any]]:
        x = X.copy()
        (y,) = session.run(None, {"x": x}, **how)
        return [weakref.ref(array) for array in (x, y, *how.get("out", ()))]

    def calls() -> list[weakref.ref[Any]]:
        ways: list[Callable[[], dict[str, Any]]] = [
            dict,
            lambda: {"borrow": True},
            lambda: {"timeout": GRACE_S},
            lambda: {"out": [np.empty_like(X)]},
            lambda: {"out": [session.empty_output("y", X.shape)]},
        ]
        return [left for way in ways for _ in range(3) for left in call(**way())]

    def end(way: str) -> None:
        if way == "killed":
            os.kill(host.info.pid, signal.SIGKILL)
        elif way == "restarted":
            host.restart()
        else:
            host.close()

    for way in ("killed", "restarted", "closed"):
        left = calls()
        _, pool = running(host)
        for plans in pool.idle:
            left += [weakref.ref(thing) for thing in (plans, plans.channel, plans.channel._streams)]
            left += [weakref.ref(slab.data) for slab in (plans._request, plans._reply) if slab is not None]
        assert len(left) > 15
        del plans, pool
        end(way)
        if way != "closed":
            left += call()
        assert [reference() for reference in left if reference() is not None] == [], way


# --- stale plans and calls ---


def test_a_call_that_the_next_host_interrupts_does_not_move_later_calls_to_the_slow_path(
    host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call searches its plan in the old host while the session is created in the new one."""
    gate = tmp_path / "gate"
    slow = qnnbridge.InferenceSession(script(on_run=[f"wait:{gate}"], npu=False), host=host, providers=[CPU])
    session = qnnbridge.InferenceSession(script(scale=3), host=host)
    warm(session)
    keeps_it_open, _ = in_thread(lambda: slow.run(None, {"x": X}))
    waiting, go_on = threading.Event(), threading.Event()
    careful = ChannelPool.take_idle

    def wait(*arguments: Any) -> Any:
        waiting.set()
        assert go_on.wait(GRACE_S)
        return careful(*arguments)

    monkeypatch.setattr(ChannelPool, "take_idle", wait)
    overtaken, result = in_thread(lambda: session.run(None, {"x": X}))
    assert waiting.wait(GRACE_S)
    monkeypatch.setattr(ChannelPool, "take_idle", careful)
    host.supervisor.retire(running(host)[0], wait=False)
    session.run(None, {"x": X})
    go_on.set()
    overtaken.join()
    assert np.array_equal(result[0][0], X * 3)
    gate.touch()
    keeps_it_open.join()
    warm(session)
    warm(session)
    monkeypatch.setattr(ChannelPlans, "make", lambda *_: pytest.fail("it has no plan"))
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)


def test_many_sessions_find_their_plans_without_creating_them_again(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [qnnbridge.InferenceSession(script(scale=scale), host=host) for scale in range(2, 22)]
    for session in sessions:
        warm(session)
    monkeypatch.setattr(ChannelPlans, "make", lambda *_: pytest.fail("it has no plan"))
    for _ in range(3):
        for scale, session in enumerate(sessions, 2):
            assert np.array_equal(session.run(None, {"x": X})[0], X * scale)


def test_a_session_that_is_created_repeatedly_leaves_no_plans_in_memory(host: qnnbridge.Host) -> None:
    session = qnnbridge.InferenceSession(script(scale=3), host=host)
    warm(session)
    before = quick_calls(host)
    for _ in range(MAX_PLANS + 4):
        session._remote.unload()(0.0)
        session.run(None, {"x": X})  # creates the plan
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert quick_calls(host) - before == MAX_PLANS + 4
    assert host.stats.channels == 1


def test_a_planned_restart_does_not_wait_for_an_abandoned_call(host: qnnbridge.Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    model = Later(tmp_path, f"wait:{gate}", npu=False)
    session = qnnbridge.InferenceSession(model.path, host=host, providers=[CPU])
    warm(session)
    model.now()
    process, _ = running(host)
    late, told = in_thread(lambda: model.late(lambda: session.run(None, {"x": X}, timeout=1.0)))
    until(lambda: model.begun)
    begin = time.monotonic()
    host.restart()
    assert time.monotonic() - begin < RETIRE_TIMEOUT_S / 2
    assert process.exit_code(0) is not None
    late.join()
    assert isinstance(told[0], errors.DeadlineExceeded)
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)


def test_several_threads_may_query_the_result_of_an_abandoned_call_at_the_same_time(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    """A caller that opens a channel, a caller whose deadline has expired, and the maintenance thread may query it."""
    gate = tmp_path / "gate"
    model = Later(tmp_path, f"wait:{gate}", npu=False)
    session = qnnbridge.InferenceSession(model.path, host=host, providers=[CPU])
    warm(session)
    model.now()
    model.late(lambda: session.run(None, {"x": X}, timeout=0.2))
    process, pool = running(host)

    def ask(what: Callable[[], object]) -> None:
        for _ in range(5000):
            what()

    askers = [
        in_thread(lambda: ask(pool.reap)),
        in_thread(lambda: ask(lambda: process.channel.requests.abandoned)),
    ]
    for thread, told in askers:
        thread.join()
        assert told == [None]
    gate.touch()
    until(lambda: not process.channel.requests.abandoned)
    pool.reap()
    assert not process.channel.requests.waiting


# --- Ctrl+C ---


class Interrupting:
    """Wrapper of a function: once `armed`, it raises KeyboardInterrupt after the function if `then` holds."""

    def __init__(self, function: Callable[..., Any], then: Callable[[], bool] = lambda: True) -> None:
        self._function = function
        self._then = then
        self.armed = False

    def __call__(self, *arguments: Any) -> Any:
        result = self._function(*arguments)
        if self.armed:
            self.armed = False
            until(self._then)
            raise KeyboardInterrupt
        return result


def test_an_interrupt_before_the_call_does_not_close_the_channel(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel is taken only after all other preparations."""
    session = qnnbridge.InferenceSession(script(scale=3), host=host)
    warm(session)
    with monkeypatch.context() as patch:
        patch.setattr("qnnbridge._session.fast_calls.deadline_after", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            session.run(None, {"x": X}, timeout=GRACE_S)
    _, pool = running(host)
    assert len(pool.idle) == len(pool) == 1


def test_an_interrupt_after_the_answer_does_not_close_the_channel(host: qnnbridge.Host) -> None:
    """The channel has no pending answer."""
    session = qnnbridge.InferenceSession(script(scale=3), host=host)
    warm(session)
    process, pool = running(host)
    for number in range(3):
        (plans,) = pool.idle
        read = plans.channel._readinto = Interrupting(plans.channel._readinto)
        x = np.full(8 + number, number, np.float32)
        warm(session, x)  # uses the plan of this array
        read.armed = True
        with pytest.raises(KeyboardInterrupt):
            session.run(None, {"x": x})
        assert not process.channel.requests.abandoned
        assert not process.channel.requests.waiting
        assert np.array_equal(session.run(None, {"x": x})[0], x * 3)
        assert len(pool) == 1
    assert session.generation == 1


@pytest.mark.parametrize("moment", ["behind the call", "twice"])
def test_memory_of_an_interrupted_call_is_not_reused(
    moment: str, host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    model = Later(tmp_path, f"wait:{gate}", npu=False)
    session = qnnbridge.InferenceSession(model.path, host=host, providers=[CPU])
    warm(session)
    process, pool = running(host)
    (plans,) = pool.idle
    # The host has started the call: otherwise the cancellation might overtake it, and it would never start.
    write = Interrupting(plans.channel._streams.write, then=lambda: model.begun)
    monkeypatch.setattr(plans.channel._streams, "write", write)
    out = session.empty_output("y", (4,))
    place = out.base.place
    for _ in range(2):
        session.run(None, {"x": X}, out=[out])
    model.now()
    given = [out]
    if moment == "twice":
        monkeypatch.setattr(process.channel, "cancel", lambda *_: signal.raise_signal(signal.SIGINT))
        thread, _ = in_thread(lambda: (until(lambda: model.begun), os.kill(os.getpid(), signal.SIGINT)))
    else:
        write.armed = True
    with pytest.raises(KeyboardInterrupt):
        session.run(None, {"x": X}, out=given)
    if moment == "twice":
        thread.join()
    until(lambda: model.begun)
    given.clear()
    del out
    gc.collect()  # the frames of the error
    monkeypatch.undo()
    others = [session.empty_output("y", (4,)) for _ in range(3)]
    assert place not in [array.base.place for array in others]
    gate.touch()
    until(lambda: not process.channel.requests.abandoned)
    pool.reap()
    others += [session.empty_output("y", (4,)) for _ in range(3)]
    assert place in [array.base.place for array in others]
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert not process.channel.requests.waiting


def test_an_interrupt_while_memory_is_mapped_blocks_no_other_call(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KeyboardInterrupt is raised after the lock was taken and before that was recorded."""
    session = qnnbridge.InferenceSession(script(scale=3), host=host)
    warm(session)
    _, pool = running(host)
    turn = pool._attaching

    class Interrupted:
        release = turn.release

        def acquire(self, timeout: float) -> bool:
            turn.acquire(timeout=timeout)
            monkeypatch.setattr(pool, "_attaching", turn)
            raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_attaching", Interrupted())
    x = session.empty_input("x", X.shape)
    x[:] = X
    with pytest.raises(KeyboardInterrupt):
        session.run(None, {"x": x})
    thread, results = in_thread(lambda: session.run(None, {"x": x})[0])
    thread.join(GRACE_S)
    assert not thread.is_alive()
    assert np.array_equal(results[0], X * 3)
    assert host.stats.generation == 1
