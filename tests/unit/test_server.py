"""The server's threads: how many wait, and that none keeps tensors which it does not work on."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qnnbridge_host import server as server_module
from qnnbridge_host.requests import Request
from qnnbridge_host.server import Answer, Server
from qnnbridge_protocol.connection import Connection, Role
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.hello import Hello

GRACE_S = 20.0
"""Only a defect waits this long."""


class Tensor:
    """Something that can be watched, in the place of a received buffer."""


class Handlers:
    """`stuck` waits in the lane until `go`; all others answer at once."""

    def __init__(self) -> None:
        self.go, self.inside = threading.Event(), threading.Event()
        self.served: list[int] = []

    def start(self, tell_phase: Callable[[str], None]) -> None:
        pass

    def lane_of(self, request: Request) -> str | None:
        return "lane" if request.op in ("stuck", "queued") else None

    def handle(self, request: Request, enter: Callable[[str], None]) -> Answer:
        if request.op == "stuck":
            self.inside.set()
            assert self.go.wait(GRACE_S)
        self.served.append(request.id)
        return {}, ()

    def close(self) -> None:
        pass


class Peer:
    """A server in threads of this process, and its client's end of the pipes."""

    def __init__(self) -> None:
        self.handlers = Handlers()
        to_host, from_host = os.pipe(), os.pipe()
        self._to_host, self._from_host = to_host[1], from_host[0]
        self.fds = [*to_host, *from_host]
        self.server = Server(to_host[0], from_host[1], Hello(), self.handlers)
        self._connection = Connection(Role.CLIENT, Hello())
        threading.Thread(target=self.server.run, daemon=True).start()
        for chunk in self._connection.hello():
            os.write(self._to_host, chunk)
        self.read()
        self._next_id = 0

    def send(self, op: str) -> int:
        self._next_id += 1
        frame = Frame(Kind.REQUEST, self._next_id, {"op": op})
        for chunk in self._connection.send(frame):
            os.write(self._to_host, chunk)
        return self._next_id

    def read(self) -> list[Frame]:
        data = os.read(self._from_host, 65536)
        buffer = self._connection.get_buffer()
        buffer[: len(data)] = data
        return self._connection.received(len(data))


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    def leave(_code: int) -> Any:
        raise SystemExit  # of this thread only

    monkeypatch.setattr(server_module, "leave", leave)
    made = Peer()
    yield made
    made.handlers.go.set()
    for fd in made.fds[1::2]:
        os.close(fd)


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + GRACE_S
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def test_a_request_in_a_stuck_lane_keeps_nobody_waiting_who_has_another(peer: Peer) -> None:
    peer.send("stuck")
    assert peer.handlers.inside.wait(GRACE_S)
    queued = [peer.send("queued") for _ in range(20)]
    free = peer.send("free")
    assert eventually(lambda: free in peer.handlers.served)
    assert peer.handlers.served == [free]
    peer.handlers.go.set()
    assert eventually(lambda: peer.handlers.served == [free, 1, *queued])


def test_the_threads_that_wait_are_counted_right_after_many_requests(peer: Peer) -> None:
    for _ in range(300):
        peer.send("free")
    assert eventually(lambda: len(peer.handlers.served) == 300)
    # One has the lead and is not counted; each thread is either there or waits to be.
    workers = [t for t in threading.enumerate() if "worker" in t.name or "run" in t.name]
    assert eventually(lambda: 0 <= peer.server._idle <= max(1, len(workers)))


def test_a_thread_that_queued_a_request_does_not_keep_its_tensors() -> None:
    handlers = Handlers()
    server = Server(0, 1, Hello(), handlers)
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
    server = Server(0, 1, Hello(), handlers)
    server._send = lambda _frame: None  # type: ignore[method-assign]
    tensor = Tensor()
    gone = weakref.ref(tensor)
    taken = [Frame(Kind.REQUEST, 1, {"op": "queued"}, (tensor,))]
    del tensor

    # While the first request is served, one comes that gets stuck: the same thread goes on with it.
    serve, handle = server._serve, handlers.handle

    def handle_first(request: Request, enter: Callable[[str], None]) -> Answer:
        if request.id == 1:
            server._take([Frame(Kind.REQUEST, 2, {"op": "stuck"})])
        return handle(request, enter)

    handlers.handle = handle_first  # type: ignore[method-assign]
    assert serve
    thread = threading.Thread(target=server._take, args=(taken,), daemon=True)
    thread.start()
    assert handlers.inside.wait(GRACE_S)
    assert gone() is None
    handlers.go.set()
    thread.join(GRACE_S)


def test_a_thread_that_waits_for_the_lead_does_not_keep_what_it_read_last(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[weakref.ref[Any]] = []
    take = peer.server._take

    class Watched(list):  # type: ignore[type-arg]
        pass

    def watch(taken: list[Frame]) -> None:
        frame = taken[0]
        tensor = Tensor()
        watched.append(weakref.ref(tensor))
        taken[0] = Frame(frame.kind, frame.request_id, frame.header, (tensor,))
        del frame, tensor
        take(taken)

    monkeypatch.setattr(peer.server, "_take", watch)
    peer.send("free")
    assert eventually(lambda: len(peer.handlers.served) == 1)
    assert eventually(lambda: watched[0]() is None)
