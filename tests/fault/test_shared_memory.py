"""Shared memory: a crash of either side, invalid messages, and a lack of memory."""

from __future__ import annotations

import gc
import importlib.util
import os
import resource
import signal
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.faultlab.mixed import HEAP_SETTING, Rest, mixed_soak
from lab.faultlab.slots import kill_hosts
from tests.fakes.descriptors import no_more_than
from tests.fakes.fair_clock import FairClock
from tests.fakes.hosts import fake_host, script
from tests.fakes.later import GRACE_S, Later, in_thread, is_taken, taken_by_another, until, warm
from tests.fakes.stopping import stop

import qnnbridge
from qnnbridge import errors
from qnnbridge._transport.channel import CallTimedOut, Channel, ChannelFailed

X = np.arange(4, dtype=np.float32)
LARGE = np.ones(800_000, np.float32)
FLOAT = 1


@pytest.fixture
def host(no_leaks: Any) -> Iterator[qnnbridge.Host]:
    with fake_host(shared_memory=True) as host:
        yield host


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def ask(host: qnnbridge.Host, session: qnnbridge.InferenceSession, inputs: list[Any], outputs: list[Any]) -> None:
    """Send a request with arbitrary tensors to the host, as a faulty client might."""
    process = host.supervisor.running
    assert process is not None
    assert process.pool is not None
    plans = process.pool.take_idle()
    assert plans is not None
    try:
        header = {"op": "plan.make", "plan": 1000, "session": session._remote.session_id}
        plans.channel.ask({**header, "inputs": inputs, "outputs": outputs}, None)
    finally:
        process.pool.give_back(plans)


def slabs(host: qnnbridge.Host) -> tuple[int, int]:
    """Return the numbers of a slab that the client writes and of one that the host writes."""
    process = host.supervisor.running
    assert process is not None
    assert process.pool is not None
    (plans,) = process.pool.idle
    assert plans._request is not None
    assert plans._reply is not None
    return plans._request.number, plans._reply.number


# --- crashes of either side ---


def test_hosts_that_crash_while_slots_are_held_leak_nothing(no_leaks: Any) -> None:
    """Each host has borrowed results, application arrays and a running call; ``--slots 1000`` is the long form."""
    result = kill_hosts(8)
    assert result.good, str(result)


def test_a_crash_releases_the_arrays_of_its_call(host: qnnbridge.Host) -> None:
    """The arrays must not wait for the garbage collector, since they may be large."""
    session = qnnbridge.InferenceSession(script(scale=2, npu=False), host=host, providers=["CPUExecutionProvider"])

    def call(retry: int) -> list[weakref.ref[Any]]:
        arrays = [session.empty_input("x", (4,)), X.copy()]
        for array in arrays:
            array[:] = 1
            warm(session, array)
            os.kill(host.info.pid, 9)
            try:
                session.run(None, {"x": array}, retry=retry)
            except errors.HostCrashed:
                assert not retry
            session.run(None, {"x": array})
        return [weakref.ref(array) for array in arrays]

    gc.collect()
    gc.disable()
    try:
        assert [left() for left in (*call(1), *call(0))] == [None] * 4
    finally:
        gc.enable()
    host.arrays.collect()
    assert len(host.arrays) == 0


# --- invalid messages ---


@pytest.mark.parametrize(
    ("slab", "shape", "offset"),
    [
        pytest.param("ours", [1 << 20], 0, id="longer than the slab"),
        pytest.param("ours", [4], 1 << 20, id="beyond the slab"),
        pytest.param("ours", [4], 1 << 62, id="far beyond"),
        pytest.param("ours", [4], -64, id="before the slab"),
        pytest.param("ours", [4], 4, id="not aligned"),
        pytest.param("ours", [1 << 62], 0, id="more than there can be"),
        pytest.param("theirs", [4], 0, id="an output where only the application writes"),
    ],
)
def test_a_tensor_outside_of_its_slab_is_refused(
    host: qnnbridge.Host, slab: str, shape: list[int], offset: int
) -> None:
    session = qnnbridge.InferenceSession(script(scale=2), host=host)
    warm(session)
    ours, theirs = slabs(host)
    number = ours if slab == "ours" else theirs
    good = [["x", FLOAT, [4], ours, 0]], [["y", FLOAT, [4], theirs, 0]]
    if number == ours:  # an input may also be in a slab that the host writes
        with pytest.raises(errors.ProtocolDesync, match=r"slab|lies|location|shape"):
            ask(host, session, [["x", FLOAT, shape, number, offset]], good[1])
    with pytest.raises(errors.ProtocolDesync, match=r"slab|lies|location|shape"):
        ask(host, session, good[0], [["y", FLOAT, shape, ours if number == theirs else theirs, offset]])
    assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
    assert session.generation == 1
    ask(host, session, *good)


def test_slabs_of_an_earlier_host_are_unknown_to_the_next_one(host: qnnbridge.Host) -> None:
    session = qnnbridge.InferenceSession(script(scale=2), host=host)
    warm(session)
    old, _ = slabs(host)
    os.kill(host.info.pid, 9)
    warm(session)
    _, theirs = slabs(host)
    with pytest.raises(errors.InvalidArgument, match=f"no slab {old}"):
        ask(host, session, [["x", FLOAT, [4], old, 0]], [["y", FLOAT, [4], theirs, 0]])
    assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
    assert session.generation == 2


# --- borrowed memory, and memory that may still be written ---


def test_borrowed_results_are_never_overwritten(host: qnnbridge.Host) -> None:
    session = qnnbridge.InferenceSession(script(scale=2), host=host)
    kept = []
    for number in range(40):
        x = np.full(20_000, number, np.float32)
        kept.append(session.run(None, {"x": x}, borrow=True)[0])
        session.run(None, {"x": -x})
    assert sum(type(y.base).__name__ == "SharedBlock" for y in kept) > 30, "they are where the host wrote them"
    for number, y in enumerate(kept):
        assert (y == 2 * number).all()


def test_a_small_borrowed_result_does_not_keep_a_large_slab(host: qnnbridge.Host) -> None:
    session = qnnbridge.InferenceSession(script(scale=2), host=host)
    warm(session, LARGE)
    warm(session)
    before = host.stats.shared_bytes
    kept = [session.run(None, {"x": X}, borrow=True)[0] for _ in range(6)]
    assert host.stats.shared_bytes - before < 1_000_000
    assert all(np.array_equal(y, X * 2) for y in kept)


def test_memory_of_an_overdue_call_is_not_reused(host: qnnbridge.Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    model = Later(tmp_path, f"wait:{gate}", npu=False)
    session = qnnbridge.InferenceSession(model.path, host=host, providers=["CPUExecutionProvider"])
    out = session.empty_output("y", (4,))
    for _ in range(3):
        session.run(None, {"x": X}, out=[out])
    assert np.array_equal(out, X * 3)
    place = out.base.place
    model.now()
    given = [out]
    model.late(lambda: session.run(None, {"x": X}, out=given, timeout=0.2))
    given.clear()
    del out
    gc.collect()  # the frames of the error
    others = [session.empty_output("y", (4,)) for _ in range(3)]
    assert place not in [array.base.place for array in others]
    gate.touch()
    process = host.supervisor.running
    assert process is not None
    assert process.pool is not None
    until(lambda: not process.channel.requests.abandoned)
    process.pool.reap()
    others += [session.empty_output("y", (4,)) for _ in range(3)]
    assert place in [array.base.place for array in others]


# --- released memory ---


def test_a_release_during_another_send_is_sent_after_it(no_leaks: Any) -> None:
    with fake_host(shared_memory=False) as host:
        idle = qnnbridge.InferenceSession(script(scale=2), host=host)
        busy = qnnbridge.InferenceSession(script(scale=3), host=host)
        process = host.supervisor.running
        assert process is not None
        stop(host.info.pid)
        try:
            caller, out = in_thread(lambda: busy.run(None, {"x": LARGE}))
            until(
                lambda: is_taken(process.channel._send_lock)
            )  # for a long time: the tensor is larger than the pipe
            idle._remote.unload()(0.0)
            assert len(process.channel.one_way) == 1
        finally:
            os.kill(host.info.pid, signal.SIGCONT)
        caller.join(GRACE_S)
        assert np.array_equal(out[0][0], LARGE * 3)
        assert not process.channel.one_way
        until(lambda: process.channel.call({"op": "host.stats"}).header["sessions"] == 1)


def test_memory_released_during_its_mapping_is_unmapped(host: qnnbridge.Host) -> None:
    """The caller's deadline expires while the host is about to map the memory."""
    session = qnnbridge.InferenceSession(script(scale=3), host=host)
    warm(session)
    pid = host.info.pid
    before = Rest.of(pid).shared
    own = session.empty_input("x", (LARGE.size,))
    own[...] = 2
    session.run(None, {"x": LARGE})
    stop(pid)
    try:
        with pytest.raises(errors.DeadlineExceeded):
            session.run(None, {"x": own}, timeout=0.05)
        del own
        host.arrays.collect()
    finally:
        os.kill(pid, signal.SIGCONT)
    session.run(None, {"x": X})
    process = host.supervisor.running
    assert process is not None
    assert process.pool is not None
    seen: dict[int, int] = {}
    process.pool.trim(seen)
    process.pool.trim(seen)
    until(lambda: Rest.of(pid).shared <= before)


# --- no memory or descriptors available ---


def test_large_tensors_use_the_connection_if_shared_memory_is_scarce(host: qnnbridge.Host) -> None:
    session = qnnbridge.InferenceSession(script(scale=2), host=host)
    with limited(resource.RLIMIT_FSIZE, 1_000_000):
        for _ in range(3):
            assert np.array_equal(session.run(None, {"x": LARGE})[0], LARGE * 2)
            assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
        array = session.empty_input("x", LARGE.shape)
        array[:] = 1
        assert np.array_equal(session.run(None, {"x": array})[0], LARGE * 2)
        stats = host.stats
    assert stats.shared_calls == 2
    assert stats.arrays_copied == 1
    assert stats.shared_memory.startswith("off: ")


def test_a_slow_mapping_in_the_host_does_not_exceed_the_deadline(host: qnnbridge.Host) -> None:
    session = qnnbridge.InferenceSession(script(scale=3), host=host)
    warm(session)
    session.run(None, {"x": LARGE})  # the next such call needs memory that the host has not mapped
    own = session.empty_input("x", (LARGE.size,))
    own[...] = 2
    pid = host.info.pid
    for x in (LARGE, own):
        stop(pid)
        try:
            clock = FairClock()
            with pytest.raises(errors.DeadlineExceeded):
                session.run(None, {"x": x}, timeout=0.2)
            assert clock.seconds < 1.2 + GRACE_S / 10
        finally:
            os.kill(pid, signal.SIGCONT)
        assert np.array_equal(session.run(None, {"x": x})[0], x * 3)
    before = host.stats.shared_calls
    session.run(None, {"x": own})
    assert host.stats.shared_calls == before + 1
    assert host.stats.generation == 1


def test_calls_work_without_shared_memory_and_use_it_when_it_is_available(host: qnnbridge.Host) -> None:
    session = qnnbridge.InferenceSession(script(scale=2), host=host)
    with limited(resource.RLIMIT_FSIZE, 100):
        for _ in range(3):
            assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
        stats = host.stats
        assert stats.shared_calls == 0
        assert "too large" in stats.shared_memory.lower()

    def shared() -> bool:
        assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
        return host.stats.shared_calls > 0

    until(shared)
    assert host.stats.shared_memory == "available"


def test_calls_use_the_connection_until_descriptors_are_available(host: qnnbridge.Host) -> None:
    session = qnnbridge.InferenceSession(script(scale=2), host=host)
    session.run(None, {"x": X})
    with no_more_than(0):
        for _ in range(3):
            assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
    assert host.stats.channels == 0
    assert "open files" in host.stats.shared_memory

    def shared() -> bool:
        session.run(None, {"x": X})
        return host.stats.shared_calls > 0

    until(shared)
    assert host.stats.shared_memory == "available"


# --- handles in a request ---


@pytest.mark.parametrize(
    ("way", "raised"),
    [
        ("not sent", CallTimedOut),
        ("half sent", CallTimedOut),
        ("refused", errors.ProtocolDesync),
        ("host gone", ChannelFailed),
    ],
)
def test_only_handles_that_were_not_sent_are_reclaimed(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch, way: str, raised: type[Exception]
) -> None:
    """On Windows the host owns a handle after it was sent, and may have reused its number."""
    session = qnnbridge.InferenceSession(script(scale=2), host=host)
    warm(session)
    process = host.supervisor.running
    assert process is not None
    assert process.pool is not None
    taken_back: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "qnnbridge._fastpath.channel_pool.reclaim", lambda share_handle, _pid: taken_back.append(share_handle)
    )
    share_handle = {"handle": 1}
    header = {"op": "slab.attach", "slab": 0, "size": 0, "host_writes": False}
    if way == "half sent":
        monkeypatch.setattr(process.channel, "_write", partial(half_written, process.channel))
    elif way == "host gone":
        os.kill(process.real_pid, signal.SIGKILL)
    with (
        taken_by_another(process.channel._send_lock) if way == "not sent" else nullcontext(),
        pytest.raises(raised),
    ):
        process.pool._give(
            header, {"where": share_handle}, time.monotonic() + (0.2 if raised is CallTimedOut else GRACE_S)
        )
    assert taken_back == ([share_handle] if way == "not sent" else [])


def half_written(channel: Channel, _chunks: Sequence[memoryview], _deadline: float | None) -> None:
    channel._writer.rest.pop()
    raise CallTimedOut("not-started")


# --- the soak test ---


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared", "connection"])
def test_calls_of_all_sizes_and_kinds_leak_nothing(shared_memory: bool, no_leaks: Any) -> None:
    """``python -m lab.faultlab --mixed 1000000`` is the long form."""
    if importlib.util.find_spec("onnxruntime") is None:  # importing it here would open files
        pytest.skip("needs onnxruntime")
    from qnnbridge_tools.bench.work import ASSETS

    host = qnnbridge.Host(shared_memory=shared_memory, env=HEAP_SETTING)
    result = mixed_soak(host, ASSETS / "add.onnx", calls=320, kills=0, seed=5, laps=4)
    assert result.good, str(result)
    assert result.shared_calls > 100 or not shared_memory


def test_the_soak_test_detects_growth() -> None:
    from lab.faultlab.mixed import MixedResult

    rest = Rest(fds=10, own=50_000_000, shared=0)
    assert MixedResult(laps=[(rest, rest)] * 8).flat
    for grown in (Rest(20, 50_000_000, 0), Rest(10, 150_000_000, 0), Rest(10, 50_000_000, 1_000_000)):
        assert not MixedResult(laps=[(rest, rest)] * 4 + [(rest, grown)] * 4).flat
        assert not MixedResult(laps=[(rest, rest)] * 4 + [(grown, rest)] * 4).flat
    assert not MixedResult(laps=[(rest, rest)] * 8, peak=2, limit=1).flat
