"""The requests in flight: who waits for what, how far it is, and what it is doing natively.

A native death takes the process, so the client must know beforehand which request was inside native code. A
PHASE frame says so. A request that is alone in the host needs none (it is the only suspect); as soon as there
are two, whatever is inside native code is declared, so the quick path of a single caller costs no extra frame.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

RELEASING_OPERATIONS = ("slab.release", "session.close")
"""Operations that do not count for the limit: refused, they would leave here what the client has no more use for,
and it sends them while it has as many calls under way as it may."""


class Stoppable(Protocol):
    def stop(self) -> None: ...


class Request:
    """One request of the client.

    on_line: it did not come by the connection, and has its own way to be served and to declare what it enters.
    counted: whether it is one of those of which there may be so many.
    """

    on_channel = False

    __slots__ = (
        "after",
        "blame",
        "buffers",
        "counted",
        "declared",
        "done",
        "emit",
        "failed",
        "has_place",
        "header",
        "id",
        "op",
        "phase",
        "refused",
        "started",
        "stopper",
        "withdrawn",
    )

    def __init__(self, request_id: int, header: dict[str, Any], buffers: tuple[Any, ...]) -> None:
        self.id = request_id
        self.op = header.get("op")
        self.counted = not self.on_channel and self.op not in RELEASING_OPERATIONS
        self.header = header
        self.buffers = buffers
        self.phase: str | None = None
        self.declared = False
        """Whether the client knows the phase, or will before it is entered."""
        self.started = False
        self.has_place = False
        """Whether it counts for the client's limit. Not while it is being answered."""
        self.withdrawn = False
        self.refused = False
        """Whether somebody answers it because it was withdrawn."""
        self.failed = False
        self.done: threading.Event | None = None
        self.stopper: Stoppable | None = None
        self.blame: dict[str, Any] = {}
        """What PHASE says besides: the model on which a death in the phase is to be booked."""
        self.emit: Callable[[dict[str, Any]], None] = _no_events
        """Sends an EVENT about it."""
        self.after: Callable[[], None] | None = None
        """What is to be done when it has been answered, once."""

    def serve(self) -> bool:
        """Do it and answer it; whether it went well. This and what follows: only of one that came by a channel."""
        raise AssertionError("it did not come by a channel")

    def served(self) -> None:
        """Nobody has it in hand any more."""
        raise AssertionError("it did not come by a channel")

    def refuse(self, error: BaseException) -> None:
        """Answer with an error."""
        raise AssertionError("it did not come by a channel")

    def declare(self, what: Declaration) -> None:
        """Tell the client the native step that it enters, if that is due still."""
        raise AssertionError("it did not come by a channel")

    def release(self) -> None:
        """Forget the tensors: nobody will look at them any more, but the request may wait in its lane for long."""
        self.buffers = ()
        self.header.pop("inputs", None)
        self.header.pop("initializers", None)


def _no_events(_event: dict[str, Any]) -> None:
    """Of a request that did not come by the connection."""


class Declaration(NamedTuple):
    """That a request is in this phase. Who tells it has the stream to the client while he asks whether it is `due`,
    writes it and says so (`made`): then none is behind the answer of its request, and none is written twice.

    id: of the request when it was in that phase. One that came by a channel may be another call by now.
    own: whether it enters the phase only when this is told. Else it is in there, and anybody may tell it.
    """

    request: Request
    id: int
    phase: str
    own: bool
    table: threading.Lock

    @property
    def due(self) -> bool:
        """Who answers a request ends its phase before he asks for the stream."""
        request = self.request
        return request.phase == self.phase and request.id == self.id and (self.own or not request.declared)

    def made(self) -> None:
        with self.table:
            if self.due:
                self.request.declared = True


class InFlight:
    """All requests between their arrival and their answer. Any thread.

    What always holds: nobody waits for the client under the lock of the table. What is to be declared is found out
    under it and told behind it: by the request's own thread, which enters the step when that is told, or, of one
    that was alone when it entered, by whoever comes next, who must not be in native code before the client can tell
    the two apart. One that is in no native step, because its answer or its own declaration is being written, keeps
    nobody waiting.
    """

    def __init__(self, tell_phase: Callable[[Declaration], None], limit: int) -> None:
        """tell_phase: writes it to the connection, if it is due."""
        self._tell_phase = tell_phase
        self._limit = limit
        self._lock = threading.Lock()
        self._requests: dict[int, Request] = {}
        self._by_connection = 0
        self._places_taken = 0
        self._arriving: set[int] = set()
        """Requests that have been read and are not in the table, and in their lane, yet: no cancel must overtake
        them, and none that came later."""
        self._arrived = threading.Condition()
        """Of a lock of its own: it has waiters to wake up, and whoever announces is the one who reads."""
        self._draining = False
        self._empty = threading.Condition(self._lock)

    def __len__(self) -> int:
        return len(self._requests)

    def announce(self, request_id: int) -> None:
        """A request has been read; `add` and `arrive` follow, in whatever thread. Never waits for the client."""
        with self._arrived:
            self._arriving.add(request_id)

    def add(self, request: Request) -> bool:
        """False when there are too many already."""
        with self._lock:
            if request.counted:  # of channels there is a number of their own, and each carries one
                if self._places_taken >= self._limit or self._by_connection >= 2 * self._limit:
                    return False
                self._by_connection += 1
                self._places_taken += 1
                request.has_place = True
            self._requests[request.id] = request
            # What gives something back enters no step that a death would be put down to.
            untold = [] if request.op in RELEASING_OPERATIONS else self._untold()
        for what in untold:
            self._tell(what)
        return True

    def await_turn(self, request_id: int) -> None:
        """Before it goes into a lane: until all that were read before it are where they belong."""
        with self._arrived:
            self._arrived.wait_for(lambda: min(self._arriving, default=request_id) >= request_id)

    def arrive(self, request_id: int) -> None:
        """It is where it belongs, or was refused."""
        with self._arrived:
            self._arriving.discard(request_id)
            self._arrived.notify_all()

    def carry(self, call: Request) -> None:
        """`add`, `start`, serve and `finish`, in one go: a call that came by a channel and waits for nothing."""
        lock, requests = self._lock, self._requests
        call.started = True
        with lock:
            if requests:
                for other in requests.values():
                    if other.phase and not other.declared:
                        self._put_and_tell(call)
                        break
            requests[call.id] = call
        well = False
        try:
            well = call.serve()
        finally:
            with lock:
                call.phase = None
                call.failed = not well
                requests.pop(call.id, None)
                if self._draining and not requests:
                    self._empty.notify_all()
                done = call.done
            if done is not None:
                done.set()

    def start(self, request: Request) -> bool:
        """The request leaves its queue. False if it was withdrawn (and answered, see `take_withdrawn`)."""
        with self._lock:
            request.started = not request.withdrawn
            return request.started

    def enter(self, request: Request, phase: str) -> None:
        """`request` is about to enter native code."""
        with self._lock:
            request.phase = phase
            request.declared = declare = phase != "running" or len(self._requests) > 1
            withdrawn = request.withdrawn
        if declare:
            self._tell(Declaration(request, request.id, phase, True, self._lock))
        if withdrawn and request.stopper is not None:
            request.stopper.stop()

    def about_to_answer(self, request: Request) -> None:
        """One of the connection is done. The client may ask for more as soon as it has the answer, and may take its
        time to read that."""
        with self._lock:
            request.phase = None
            if request.has_place:
                request.has_place = False
                self._places_taken -= 1

    def finish(self, request: Request, *, failed: bool) -> None:
        with self._lock:
            request.phase = None
            request.failed = failed
            open_still = self._requests.pop(request.id, None) is not None
            if not request.on_channel:
                # The thread that served it may go on in the lane for others, with this one on its stack.
                request.release()
                if open_still and request.counted:
                    self._by_connection -= 1
                    self._places_taken -= request.has_place
            if self._draining and not self._requests:
                self._empty.notify_all()
            done = request.done
            after, request.after = request.after, None
        if after is not None:
            after()
        if done is not None:
            done.set()

    def cancel(self, request_id: int, grace_s: float) -> str:
        """not-started, stopped, finished or still-running: what became of the request within `grace_s`."""
        with self._arrived:
            self._arrived.wait_for(lambda: request_id not in self._arriving, grace_s)
        with self._lock:
            request = self._requests.get(request_id)
            if request is None:
                return "finished"
            if not request.started:
                request.withdrawn = True
                request.release()
                return "not-started"
            # Remembered for `enter`: it may not have anything to be stopped by yet.
            request.withdrawn = True
            stopper = request.stopper
            # Made here, because hardly any request is ever cancelled.
            done = request.done = request.done or threading.Event()
        if stopper is not None:
            stopper.stop()
        if not done.wait(grace_s):
            return "still-running"
        return "stopped" if request.failed else "finished"

    def take_withdrawn(self, request_id: int) -> Request | None:
        """A request that was withdrawn in its queue, once: whoever takes it answers it, now and not at its turn."""
        with self._lock:
            request = self._requests.get(request_id)
            if request is None or request.started or not request.withdrawn or request.refused:
                return None
            request.refused = True  # there may be two cancels of it at once
        self.finish(request, failed=True)
        return request

    def withdraw_all(self) -> None:
        """Nobody waits for anything any more. Waits for nothing."""
        with self._lock:
            # The newest first: they wait for the others, and must not come to their turn when those are stopped.
            requests = list(self._requests.values())[::-1]
            for request in requests:
                request.withdrawn = True
        for request in requests:
            if request.stopper is not None:
                request.stopper.stop()

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight."""
        with self._empty:
            self._draining = True
            return self._empty.wait_for(lambda: not self._requests, timeout_s)

    def _put_and_tell(self, call: Request) -> None:
        """Put it into the table, and let go of the lock, which the caller has, while others are declared."""
        self._requests[call.id] = call
        untold = self._untold()
        self._lock.release()
        try:
            for what in untold:
                self._tell(what)
        finally:
            self._lock.acquire()

    def _untold(self) -> list[Declaration]:
        """What is inside of native code and was alone when it entered. Under the lock."""
        return [
            Declaration(request, request.id, request.phase, False, self._lock)
            for request in self._requests.values()
            if request.phase and not request.declared
        ]

    def _tell(self, what: Declaration) -> None:
        if what.request.on_channel:
            what.request.declare(what)
        else:
            self._tell_phase(what)
