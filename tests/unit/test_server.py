"""The server's threads: the number of idle ones, and that none keeps tensors that it no longer uses."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from qnnbridge_host import fastpath
from qnnbridge_host.fastpath import AttachedSlab
from qnnbridge_host.request.in_flight import Request
from qnnbridge_host.serve import server as server_module
from qnnbridge_host.serve.server import Answer, ProcessTransport, Server
from qnnbridge_protocol.connection import Connection, Hello, Role
from qnnbridge_protocol.frames import Frame, Kind

# Timeout that only a defect reaches.
GRACE_S = 20.0


class Tensor:
    """A replacement of a received buffer that supports weak references."""


class Handlers:
    """Handlers for tests: `stuck` waits for `go` in the lane, `long` outside of it, `late` before it enters the
    lane.

    All other operations answer at once.
    """

    def __init__(self) -> None:
        self.go, self.inside = threading.Event(), threading.Event()
        self.let_in = threading.Event()
        self.served: list[int] = []
        self.buffers: list[weakref.ref[Any]] = []

    def start(self, declare_phase: Callable[[str], None]) -> None:
        pass

    def lane_of(self, request: Request) -> str | None:
        if request.header.get("queued"):
            return "lane"
        if request.op == "late":
            assert self.let_in.wait(GRACE_S)
            return "lane"
        return "lane" if request.op in ("stuck", "queued") else None

    def handle(self, request: Request, enter: Callable[[str], None]) -> Answer:
        if request.op in ("stuck", "long"):
            self.inside.set()
            assert self.go.wait(3 * GRACE_S)
        self.served.append(request.id)
        self.buffers.extend(map(weakref.ref, request.buffers))
        return {}, ()

    def close(self) -> None:
        pass


class ProcessEnds(Exception):
    """Exception that is raised instead of ending the process."""


class EndingServer(Server):
    """A server whose threads end where the process would end."""

    def run(self) -> Any:
        self._greet()
        self._work()

    def _work(self, *, may_end: bool = False) -> None:
        with contextlib.suppress(ProcessEnds):
            super()._work(may_end=may_end)


class Peer:
    """A server in threads of this process, and the client's ends of its pipes. The answers are not read."""

    def __init__(self) -> None:
        self.handlers = Handlers()
        (in_fd, self._to_host), (self._from_host, out_fd) = os.pipe(), os.pipe()
        self._host_fds = (in_fd, out_fd)
        self.server = EndingServer(ProcessTransport(in_fd, out_fd), Hello(), self.handlers)
        self._connection = Connection(Role.CLIENT, Hello())
        self._before = set(threading.enumerate())
        threading.Thread(target=self.server.run, daemon=True).start()
        self._write(self._connection.send_hello())
        answered = False
        while not answered:
            buffer = self._connection.get_buffer()
            data = os.read(self._from_host, len(buffer))
            buffer[: len(data)] = data
            answered = bool(self._connection.received(len(data)))

    def send(self, op: str, *buffers: bytes, **header: Any) -> int:
        return self.ask(Kind.REQUEST, {"op": op, **header}, buffers)

    def ask(self, kind: Kind, header: dict[str, Any], buffers: tuple[bytes, ...] = ()) -> int:
        request_id, chunks = self._connection.ask(kind, header, buffers)
        self._write(chunks)
        return request_id

    def workers(self) -> set[threading.Thread]:
        return set(threading.enumerate()) - self._before

    def close(self) -> None:
        self.handlers.go.set()
        os.close(self._to_host)
        for thread in self.workers():
            thread.join(GRACE_S)
        for fd in (self._from_host, *self._host_fds):
            os.close(fd)

    def _write(self, chunks: list[memoryview]) -> None:
        for chunk in chunks:
            os.write(self._to_host, chunk)


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    def leave(_code: int) -> Any:
        raise ProcessEnds

    monkeypatch.setattr("qnnbridge_host.serve.server.leave", leave)
    made = Peer()
    yield made
    made.close()


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + GRACE_S
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def test_a_lane_is_entered_in_the_order_of_arrival(peer: Peer) -> None:
    """The order does not depend on which thread is faster on the way from the connection to the lane."""
    late, queued = peer.send("late"), peer.send("queued")
    free = [peer.send("free") for _ in range(20)]
    assert eventually(lambda: set(free) <= set(peer.handlers.served))
    peer.handlers.let_in.set()
    assert eventually(lambda: {late, queued} <= set(peer.handlers.served))
    assert [number for number in peer.handlers.served if number not in free] == [late, queued]


def test_a_blocked_lane_does_not_block_requests_of_other_lanes(peer: Peer) -> None:
    peer.send("stuck")
    assert peer.handlers.inside.wait(GRACE_S)
    queued = [peer.send("queued") for _ in range(20)]
    free = peer.send("free")
    assert eventually(lambda: free in peer.handlers.served)
    assert peer.handlers.served == [free]
    peer.handlers.go.set()
    assert eventually(lambda: peer.handlers.served == [free, 1, *queued])


def test_the_count_of_waiting_threads_is_right_after_many_requests(peer: Peer) -> None:
    """With a too high count no thread would read while the leader is busy; with a too low one threads pile up."""
    for _ in range(300):
        peer.send("free")
    assert eventually(lambda: len(peer.handlers.served) == 300)
    # One of them reads, and all others wait to become the leader.
    assert eventually(lambda: peer.server._idle == len(peer.workers()) - 1)


def test_threads_that_a_burst_needed_end_afterwards(peer: Peer) -> None:
    for _ in range(20):
        peer.send("long")
    assert eventually(lambda: len(peer.workers()) > 20)
    peer.handlers.go.set()
    assert eventually(lambda: len(peer.handlers.served) == 20)
    # The limit does not include the reading thread and the first thread, which do not end.
    assert eventually(lambda: len(peer.workers()) <= server_module.SPARE_THREADS + 2)
    free = peer.send("free")
    assert eventually(lambda: free in peer.handlers.served)
    assert eventually(lambda: peer.server._idle == len(peer.workers()) - 1)


def test_a_wrong_count_of_idle_threads_does_not_stop_the_server(peer: Peer) -> None:
    peer.send("free")
    assert eventually(lambda: peer.server._idle == len(peer.workers()) - 1 > 0)
    peer.server._idle -= 5
    for _ in peer.workers():
        peer.send("long")
    free = peer.send("free")
    assert eventually(lambda: free in peer.handlers.served)


def test_a_thread_that_queued_a_request_does_not_keep_its_tensors() -> None:
    handlers = Handlers()
    server = Server(ProcessTransport(0, 1), Hello(), handlers)
    server._send = lambda _frame: None  # type: ignore[method-assign]
    first = threading.Thread(target=server._take, args=([Frame(Kind.REQUEST, 1, {"op": "stuck"})],), daemon=True)
    first.start()
    assert handlers.inside.wait(GRACE_S)
    tensor = Tensor()
    gone = weakref.ref(tensor)
    server._take([Frame(Kind.REQUEST, 2, {"op": "queued"}, (tensor,))])
    del tensor
    assert gone() is not None, "it waits in the lane"
    server._take([Frame(Kind.CANCEL, 3, {"target": 2})])
    assert gone() is None
    handlers.go.set()
    first.join(GRACE_S)
    assert handlers.served == [1]


def test_a_thread_that_works_for_others_in_a_lane_does_not_keep_its_own_tensors() -> None:
    handlers = Handlers()
    server = Server(ProcessTransport(0, 1), Hello(), handlers)
    server._send = lambda _frame: None  # type: ignore[method-assign]
    tensor = Tensor()
    gone = weakref.ref(tensor)
    taken = [Frame(Kind.REQUEST, 1, {"op": "queued"}, (tensor,))]
    del tensor

    # While the first request is served, one arrives that gets stuck: the same thread continues with it.
    handle = handlers.handle

    def handle_first(request: Request, enter: Callable[[str], None]) -> Answer:
        if request.id == 1:
            server._take([Frame(Kind.REQUEST, 2, {"op": "stuck"})])
        return handle(request, enter)

    handlers.handle = handle_first  # type: ignore[method-assign]
    thread = threading.Thread(target=server._take, args=(taken,), daemon=True)
    thread.start()
    assert handlers.inside.wait(GRACE_S)
    assert gone() is None
    handlers.go.set()
    thread.join(GRACE_S)


def test_an_idle_thread_keeps_no_tensors_of_its_last_request(peer: Peer) -> None:
    peer.send("free", b"tensor")
    assert eventually(lambda: len(peer.handlers.buffers) == 1)
    assert eventually(lambda: peer.handlers.buffers[0]() is None)


def test_memory_is_released_at_the_limit_of_requests(peer: Peer) -> None:
    """The client does not wait for the answer of a release, so it would not repeat a refused one."""
    slabs = peer.server._transport.slabs
    slabs._slabs[7] = AttachedSlab(np.zeros(1, np.uint8), host_writes=True)
    for _ in range(Hello().limits.max_in_flight):
        peer.send("stuck")
    assert peer.handlers.inside.wait(GRACE_S)
    peer.send("slab.release", slab=7)
    assert eventually(lambda: len(slabs) == 0)


# --- handles in a request --------------------------------------------------------------------------------


CHANNEL = {"channel": 1, "slot": 0, "read": {"handle": 11}, "write": {"handle": 12}}
SLAB = {"slab": 7, "size": 4096, "host_writes": False, "where": {"handle": 13}}


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record handles that were closed because no request used them, instead of calling the Windows API."""
    numbers: list[int] = []

    def drop(where: dict[str, Any]) -> None:
        if "handle" in where:
            numbers.append(where.pop("handle"))

    monkeypatch.setattr(fastpath, "drop", drop)
    return numbers


@pytest.mark.parametrize(
    ("op", "header", "given"),
    [
        ("channel.open", {**CHANNEL, "phases": 4000}, [11, 12]),
        ("channel.open", {**CHANNEL, "channel": "one"}, [11, 12]),
        ("channel.open", {**CHANNEL, "read": None}, [12]),
        ("channel.open", CHANNEL, [11, 12]),
        ("slab.attach", {**SLAB, "slab": 1}, [13]),
        ("slab.attach", {**SLAB, "size": 0}, [13]),
        ("slab.attach", SLAB, [13]),
    ],
    ids=["no such memory", "no number", "one end", "no streams", "known memory", "no size", "no memory"],
)
def test_handles_of_a_refused_request_are_released(
    peer: Peer, dropped: list[int], op: str, header: dict[str, Any], given: list[int]
) -> None:
    peer.server._transport.slabs._slabs[1] = AttachedSlab(np.zeros(1, np.uint8), host_writes=True)
    peer.send(op, **header)
    assert eventually(lambda: sorted(dropped) == given)


def test_handles_of_a_request_over_the_limit_are_released(peer: Peer, dropped: list[int]) -> None:
    for _ in range(Hello().limits.max_in_flight):
        peer.send("stuck")
    assert peer.handlers.inside.wait(GRACE_S)
    peer.send("channel.open", **CHANNEL)
    assert eventually(lambda: sorted(dropped) == [11, 12])


def test_handles_of_a_withdrawn_request_are_released(peer: Peer, dropped: list[int]) -> None:
    peer.send("stuck")
    assert peer.handlers.inside.wait(GRACE_S)
    target = peer.send("slab.attach", queued=True, **SLAB)
    peer.ask(Kind.CANCEL, {"target": target})
    assert eventually(lambda: dropped == [13])


def test_handles_of_a_successful_request_are_not_released(
    peer: Peer, dropped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(where: dict[str, Any], size: int, *, write: bool) -> memoryview:
        assert where.pop("handle") == 13
        return memoryview(bytearray(size))

    monkeypatch.setattr(fastpath, "map_memory", take)
    peer.send("slab.attach", **SLAB)
    assert eventually(lambda: 7 in peer.server._transport.slabs)
    peer.send("channel.open", **CHANNEL)
    assert eventually(lambda: sorted(dropped) == [11, 12])
