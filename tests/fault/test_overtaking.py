"""Different threads of the host read a channel and the connection: in any order, no call may hang or be lost.

Each test causes one order of events.
"""

from __future__ import annotations

import collections
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.hosts import fake_host, script
from tests.fakes.later import GRACE_S, Later, X, in_thread, taken_by_another, until, warm
from tests.fakes.stopping import stop

import qnnbridge
from qnnbridge import errors
from qnnbridge._fastpath.channel import ChannelPlans, FastChannel
from qnnbridge._fastpath.channel_pool import ChannelPool
from qnnbridge._supervision.host_process import HostProcess
from qnnbridge_os.processes import wait_readable
from qnnbridge_protocol.fastpath import call_id

CPU = "CPUExecutionProvider"
# More bytes than any pipe holds.
LARGE = np.zeros(1_000_000, np.float32)

LONGER_THAN_PATIENCE_S = 1.5

NEVER_S = 3600.0

UNTIL_IT_IS_MADE_S = 0.5


@pytest.fixture
def host(no_leaks: Any) -> Iterator[qnnbridge.Host]:
    with fake_host(shared_memory=True) as host:
        yield host


def running(host: qnnbridge.Host) -> tuple[HostProcess, ChannelPool]:
    process = host.supervisor.running
    assert process is not None
    assert process.pool is not None
    return process, process.pool


def taken(pool: ChannelPool) -> ChannelPlans:
    plans = pool.take_idle()
    assert plans is not None
    return plans


@pytest.fixture
def nobody_takes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the reads by the application's maintenance thread, as if it were too slow or of an older version."""
    monkeypatch.setattr("qnnbridge._fastpath.channel_pool.ChannelPool.take_in", lambda _self: False)


def give_up(model: Later, session: qnnbridge.InferenceSession, x: np.ndarray) -> None:
    """Abandon a call that the host has started and continues."""
    assert model.late(lambda: session.run(None, {"x": x}, timeout=0.5)).state == "still-running"


@pytest.mark.parametrize("npu", [True, False], ids=["lane", "no lane"])
def test_the_answer_of_an_abandoned_call_is_read_in_the_background(
    host: qnnbridge.Host, tmp_path: Path, npu: bool, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise the host would block on the answer, in the lane of the NPU."""
    monkeypatch.setattr("qnnbridge._fastpath.channel.CHECK_INTERVAL_S", NEVER_S)
    monkeypatch.setattr("qnnbridge._fastpath.channel._CHECK_INTERVAL_MS", NEVER_S * 1000)
    gate = tmp_path / "gate"
    (tmp_path / "slow").mkdir()
    slow = Later(tmp_path / "slow", f"wait:{gate}", npu=npu)
    slow.now()
    session = qnnbridge.InferenceSession(Later(tmp_path).path, host=host)
    given_up = qnnbridge.InferenceSession(slow.path, host=host, providers=None if npu else [CPU])
    warm(session)
    give_up(slow, given_up, LARGE)
    gate.touch()
    process, _ = running(host)
    thread, result = in_thread(lambda: session.run(None, {"x": X}))
    thread.join(GRACE_S)
    went_on = not thread.is_alive()
    until(lambda: not process.channel.requests.abandoned)
    thread.join()
    assert went_on
    assert np.array_equal(result[0][0], X * 3)


@pytest.mark.usefixtures("nobody_takes_in")
def test_an_unread_answer_does_not_block_calls_on_a_channel(host: qnnbridge.Host, tmp_path: Path):
    """The answer fills the connection, which is read again only by the next call on the connection."""
    gate = tmp_path / "gate"
    (tmp_path / "slow").mkdir()
    slow = Later(tmp_path / "slow", f"wait:{gate}", npu=False)
    slow.now()
    model = Later(tmp_path)
    session = qnnbridge.InferenceSession(model.path, host=host)
    given_up = qnnbridge.InferenceSession(slow.path, host=host, providers=[CPU])
    warm(session)
    give_up(slow, given_up, LARGE)
    gate.touch()
    process, _ = running(host)
    assert wait_readable(process.channel._read_fd, GRACE_S), "the host answers"
    thread, result = in_thread(lambda: session.run(None, {"x": X}))
    thread.join(GRACE_S)
    went_on = not thread.is_alive()
    process.channel.ping(None)  # reads the answer
    thread.join()
    assert went_on
    assert np.array_equal(result[0][0], X * 3)


@pytest.mark.usefixtures("nobody_takes_in")
def test_an_unread_phase_frame_does_not_block_calls_on_a_channel(
    host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An answer fills the connection while a session is to be created, whose phase must be declared first."""
    monkeypatch.setattr("qnnbridge._fastpath.channel.CHECK_INTERVAL_S", 3600.0)  # not read meanwhile
    gate, made = tmp_path / "gate", tmp_path / "made"
    (tmp_path / "slow").mkdir()
    slow = Later(tmp_path / "slow", f"wait:{gate}", npu=False)
    slow.now()
    session = qnnbridge.InferenceSession(Later(tmp_path).path, host=host)
    given_up = qnnbridge.InferenceSession(slow.path, host=host, providers=[CPU])
    third = tmp_path / "third"
    third.write_bytes(script(on_create=[f"note:{made}"], npu=False))
    warm(session)
    give_up(slow, given_up, LARGE)
    gate.touch()
    process, _ = running(host)
    assert wait_readable(process.channel._read_fd, GRACE_S), "the host answers"
    spec = {**session._remote.recipe.spec.to_wire(), "model_path": str(third)}
    process.channel.one_way.add({"op": "session.create", "spec": spec})
    process.channel.one_way.add({"op": "session.close", "session": given_up._remote.session_id})

    def call_for_a_while() -> None:
        end = time.monotonic() + UNTIL_IT_IS_MADE_S
        while time.monotonic() < end:
            assert np.array_equal(session.run(None, {"x": X})[0], X * 3)

    thread, problems = in_thread(call_for_a_while)
    thread.join(GRACE_S)
    went_on, entered = not thread.is_alive(), made.exists()
    process.channel.ping(None)  # reads the answer
    thread.join()
    assert went_on
    assert problems == [None]
    assert not entered, "it has not been told"
    until(made.exists)


@pytest.mark.usefixtures("nobody_takes_in")
def test_a_thread_that_waits_on_a_channel_reads_abandoned_answers_of_the_connection(
    host: qnnbridge.Host, tmp_path: Path
):
    gate = tmp_path / "gate"
    model = Later(tmp_path, f"wait:{gate}", npu=False)
    model.now()
    session = qnnbridge.InferenceSession(model.path, host=host, providers=[CPU])
    give_up(model, session, LARGE)
    gate.touch()
    process, pool = running(host)
    assert wait_readable(process.channel._read_fd, GRACE_S), "the host answers"
    assert process.channel.requests.abandoned

    def looked() -> bool:
        assert pool._check_host() is None
        return not process.channel.requests.abandoned

    until(looked)
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)


@pytest.mark.parametrize("npu", [True, False], ids=["lane", "no lane"])
def test_a_cancel_ahead_of_its_call_is_not_lost(host: qnnbridge.Host, tmp_path: Path, npu: bool):
    model = Later(tmp_path, f"note:{tmp_path / 'ran'}", npu=npu)
    session = qnnbridge.InferenceSession(model.path, host=host, providers=None if npu else [CPU])
    warm(session)
    process, pool = running(host)
    model.now()
    plans = taken(pool)
    channel, (plan,) = plans.channel, plans.plans.values()
    assert process.channel.cancel(channel.next_call_id, process.started_at + 3600) == "not-started"
    with pytest.raises(errors.Cancelled):
        call(channel, plan.number)
    assert process.channel.cancel(channel.call_id, process.started_at + 3600) in ("finished", "stopped"), "answered"
    assert process.channel.cancel(call_id(channel.number + 1, 1), process.started_at + 3600) == "finished", (
        "no such channel"
    )
    pool.give_back(plans)
    assert not (tmp_path / "ran").exists()
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3), "the next one is not meant"
    assert (host.stats.channels, host.stats.generation) == (1, 1)


def call(channel: FastChannel, plan: int) -> None:
    """Make a call that does not return a result."""
    head = channel.exchange(channel.to_call, plan, None)
    assert head is not None
    channel.read_frame(head, None)


def test_an_unsent_call_with_a_possible_cancel_discards_its_channel(host: qnnbridge.Host, tmp_path: Path):
    """The next call on the channel would have the id of the cancelled one."""
    from qnnbridge._session import fast_calls

    model = Later(tmp_path)
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    _, pool = running(host)
    (plans,) = pool.idle

    def on_channel(process: HostProcess, channel: FastChannel) -> None:
        process.channel.cancel(channel.next_call_id, process.started_at + 3600)
        raise errors.Cancelled("before it was sent")

    with pytest.raises(fast_calls.FastCallFailed):
        fast_calls.run(session._remote, session._runner._known.find, None, {"x": X}, None, on_channel=on_channel)
    assert plans.channel.broken
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)


def test_releasing_memory_before_its_last_call_does_not_end_the_host(tmp_path: Path, no_leaks: Any):
    """A caller that is interrupted after its call releases the memory, and the host may read that request first."""
    with fake_host() as host:
        model = Later(tmp_path)
        session = qnnbridge.InferenceSession(model.path, host=host)
        warm(session)
        process, pool = running(host)
        plans = taken(pool)
        (plan,) = plans.plans.values()
        assert plans._reply is not None
        process.channel.call({"op": "slab.release", "slab": plans._reply.number})
        head = plans.channel.exchange(plans.channel.to_call, plan.number, None)
        with pytest.raises(errors.InvalidArgument, match="was released before the call was read"):
            plans.channel.read_frame(head, None)
        plans.channel.broken = True
        pool.give_back(plans)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert host.stats.generation == 1


def test_abandoning_a_call_of_an_ended_host_leaves_no_channel(host: qnnbridge.Host, tmp_path: Path):
    """The caller may be slower than the thread that cleans up."""
    session = qnnbridge.InferenceSession(Later(tmp_path).path, host=host)
    warm(session)
    process, pool = running(host)
    plans = taken(pool)
    process.close()
    plans.channel.broken = plans.channel.busy = True
    pool.give_back(plans)
    assert len(pool) == 0
    assert plans.channel._streams.read_fd == -1


class Interrupted(collections.deque[tuple[str, int, int]]):
    """A queue whose first `popleft` is interrupted by Ctrl+C."""

    def popleft(self) -> tuple[str, int, int]:
        if len(self) > 1:
            self.pop()
            raise KeyboardInterrupt
        return super().popleft()


def test_dropped_objects_are_released_by_the_next_call_after_an_interrupted_one(
    host: qnnbridge.Host, tmp_path: Path
):
    session = qnnbridge.InferenceSession(Later(tmp_path).path, host=host)
    host._releases.waiting = Interrupted([("session.close", 1, 99), ("session.close", 1, 98)])
    with pytest.raises(KeyboardInterrupt):
        session.run(None, {"x": X})
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert not host._releases.waiting


def test_a_session_is_unloaded_while_another_caller_holds_the_send_lock(host: qnnbridge.Host, tmp_path: Path):
    session = qnnbridge.InferenceSession(Later(tmp_path).path, host=host)
    (tmp_path / "b").mkdir()
    other = qnnbridge.InferenceSession(Later(tmp_path / "b").path, host=host)
    process, _ = running(host)
    with taken_by_another(process.channel._send_lock):
        session._remote.unload()(0.0)
    other.run(None, {"x": X})
    until(lambda: host.call({"op": "host.stats"}).header["sessions"] == 1)
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)


def test_a_slow_host_is_not_considered_dead_when_a_channel_ends(host: qnnbridge.Host, tmp_path: Path):
    model = Later(tmp_path)
    session = qnnbridge.InferenceSession(model.path, host=host)
    warm(session)
    process, pool = running(host)
    (plans,) = pool.idle
    null = os.open(os.devnull, os.O_RDONLY)
    read_fd = plans.channel._streams.read_fd
    os.dup2(null, read_fd)  # end of file
    os.close(null)
    stop(process.real_pid)
    thread, result = in_thread(lambda: session.run(None, {"x": X}))
    thread.join(LONGER_THAN_PATIENCE_S)
    os.kill(process.real_pid, signal.SIGCONT)
    thread.join()
    assert np.array_equal(result[0][0], X * 3)
    assert (session.generation, host.stats.crashes) == (1, 0)
    os.close(read_fd)  # the descriptor no longer belongs to the channel, which must not have closed it
