"""The requests in flight, their states, and the lanes that they wait in.

States of a request, with the method that changes each:

    read ---------- announce
      |
    announced ----- add: too many ------------------------> refused (Busy)
      | add
    queued -------- cancel --> withdrawn -- take_withdrawn -> answered (Cancelled); `start` then returns False
      | start
    started ------- cancel --> stopping: `enter` calls the stopper
      | enter
    in phase ------ cancel --> stopping: the stopper is called at once
      | enter (next native step), or about_to_answer
    answering: in no phase, no longer counts for the limit
      | finish
    gone

`InFlight.carry` takes a call of a fast channel from `add` to `finish` in one go if its lane is free.

A native death takes the whole process, so the client must know beforehand which requests were inside native code: a
PHASE frame declares it. A request that is alone in the host is the only suspect and needs no frame. As soon as
there are two, every native step is declared.

Lanes: the QNN execution provider serialises calls on a mutex (onnxruntime PR 18981) and an NPU has one queue, so
all QNN sessions share one lane; a second lane serialises session creation. Requests without a lane (CPU sessions,
which ONNX Runtime runs concurrently) start at once.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    from qnnbridge_host.request.client import CallsBack

T = TypeVar("T")

# Header and buffers of a REPLY.
Answer = tuple[dict[str, Any], tuple[Any, ...]]

# The phase of a request that is out of native code again, and goes on with other work.
NO_STEP = "ready"


class Lane(Generic[T]):
    """A queue with at most one item in work. Any thread may submit.

    No thread belongs to a lane. The thread that finds it free works through the items that queue up meanwhile, so a
    lone request never changes threads. The only reader of a channel works on its own item alone, since its channel
    would not be read meanwhile; the queue behind that item goes to a thread that lives as long as the queue.
    """

    def __init__(self, work: Callable[[T], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._queue: collections.deque[T] = collections.deque()
        self._busy = False

    def submit(self, item: T, *, stay: bool = True, on_placed: Callable[[], None] | None = None) -> None:
        """Work on `item` now if the lane is free, else leave it to the thread that is in the lane.

        Args:
            item: the work.
            stay: whether the caller's thread may also work on items that others submit meanwhile.
            on_placed: called when `item` has its place, before the work on it begins here.
        """
        with self._lock:
            mine = not self._busy
            self._busy = True
            if not mine:
                self._queue.append(item)
        if on_placed is not None:
            on_placed()
        if not mine:
            return
        if stay:
            self._work_from(item)
            return
        try:
            self._work(item)
        finally:
            self.leave()

    def enter(self) -> bool:
        """Take the lane if it is free. The caller then does its work and calls `leave`."""
        with self._lock:
            if self._busy:
                return False
            self._busy = True
            return True

    def leave(self) -> None:
        """Hand the lane to the next item."""
        with self._lock:
            next_item = self._queue.popleft() if self._queue else None
            self._busy = next_item is not None
        if next_item is not None:
            self._hand_over(next_item)

    def _hand_over(self, item: T) -> None:
        try:
            threading.Thread(target=self._work_from, args=(item,), name="qnnbridge lane", daemon=True).start()
        except RuntimeError:  # no further thread can be started
            self._work_from(item)

    def _work_from(self, item: T) -> None:
        """Work until the queue is empty. The lane is the caller's."""
        defect: BaseException | None = None
        while True:
            try:
                self._work(item)
            except BaseException as error:  # noqa: BLE001 - raised below, after the waiting items
                defect = defect or error
            # The same lock as in `submit`: an item that comes after the look at the queue finds the lane free.
            with self._lock:
                if not self._queue:
                    self._busy = False
                    break
                item = self._queue.popleft()
        if defect is not None:
            raise defect

    def __len__(self) -> int:
        return len(self._queue) + self._busy


# Operations that do not count for the limit. The client sends them while all its places are taken, and a refusal
# would leak the session, object or memory that it releases.
RELEASING_OPERATIONS = ("slab.release", "session.close", "object.release")

# Operations whose result a client that leaves does not need. They may take minutes in a worker.
MAKING_OPERATIONS = ("session.create", "model.compile", "model.identify", "model.choose")


class Stoppable(Protocol):
    def stop(self) -> None: ...


class Request:
    """One request of the client.

    on_channel: it came by a fast channel, and serves and declares itself. counted: whether it counts for the limit.
    """

    on_channel = False

    __slots__ = (
        "after",
        "blame",
        "buffers",
        "calls_back",
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
        # Whether the client knows the phase, or learns it before the step begins.
        self.declared = False
        self.started = False
        # Whether it holds a place of the limit. Not while it is being answered.
        # Apart from `counted`: a place is given back before the answer, the count of requests only after it.
        self.has_place = False
        self.withdrawn = False
        # Whether a cancel answers it, because it was withdrawn.
        self.refused = False
        self.failed = False
        self.done: threading.Event | None = None
        self.stopper: Stoppable | None = None
        # Further fields of PHASE: the model that a death in the phase counts against.
        self.blame: dict[str, Any] = {}
        # Sends an EVENT about the request.
        self.emit: Callable[[dict[str, Any]], None] = _no_events
        # The functions of the application that may be called meanwhile.
        self.calls_back: CallsBack | None = None
        # Called once after the answer.
        self.after: Callable[[], None] | None = None

    def serve(self) -> bool:
        """Run and answer it; whether it succeeded. This and the following methods: fast channels only."""
        raise AssertionError("it did not come by a channel")

    def served(self) -> None:
        """No thread uses it any more."""
        raise AssertionError("it did not come by a channel")

    def refuse(self, error: BaseException) -> None:
        """Answer with an error."""
        raise AssertionError("it did not come by a channel")

    def release(self) -> None:
        """Free the tensors of a request that will not run but may stay in its lane for long."""
        self.buffers = ()
        self.header.pop("inputs", None)
        self.header.pop("initializers", None)


def _no_events(_event: dict[str, Any]) -> None:
    """Of a request that did not come by the connection."""


class Declaration(NamedTuple):
    """A phase to be declared to the client.

    The writer holds the stream while it checks `due`, writes the frame and calls `made`. So no declaration follows
    the answer of its request, and none is written twice.

    Attributes:
        id: id of the request in that phase. The object of a fast call may be another call by now.
        own: whether the request enters the phase only after this declaration. Otherwise it is already inside, and
        any
            thread may declare it.
    """

    request: Request
    id: int
    phase: str
    own: bool
    table: threading.Lock

    @property
    def due(self) -> bool:
        """False once the request is being answered: its phase ends before its answer takes the stream."""
        request = self.request
        return request.phase == self.phase and request.id == self.id and (self.own or not request.declared)

    def made(self) -> None:
        with self.table:
            if self.due:
                self.request.declared = True


class InFlight:
    """All requests between their arrival and their answer. Any thread.

    Invariant: no thread waits for the client under the table's lock. Declarations are collected under it and
    written after it. The request's own thread writes its declaration before it enters the step. If a request was
    alone when it entered, the next request declares it before it enters native code itself, so the client knows
    the two apart. A request that is in no native step (its answer or its own declaration is being written) delays
    no other.
    """

    def __init__(self, declare_phase: Callable[[Declaration], None], limit: int) -> None:
        """declare_phase: writes a declaration to the connection, if it is due."""
        self._declare_phase = declare_phase
        self._limit = limit
        self._lock = threading.Lock()
        self._requests: dict[int, Request] = {}
        self._by_connection = 0
        self._places_taken = 0
        # Requests that are read but not yet in the table and their lane. Neither a cancel nor a later request may
        # overtake them.
        self._arriving: set[int] = set()
        # Has its own lock: the announcing thread is the reader and must not wait for the table.
        self._arrived = threading.Condition()
        self._draining = False
        self._empty = threading.Condition(self._lock)

    def __len__(self) -> int:
        return len(self._requests)

    def announce(self, request_id: int) -> None:
        """A request has been read; `add` and `arrive` follow in any thread. Never waits for the client."""
        with self._arrived:
            self._arriving.add(request_id)

    def add(self, request: Request) -> bool:
        """Enter the request into the table. False if there are too many already."""
        with self._lock:
            if request.counted:  # channels have their own limit, and each carries one call
                # The second number bounds requests whose answers are still being written to a slow client.
                if self._places_taken >= self._limit or self._by_connection >= 2 * self._limit:
                    return False
                self._by_connection += 1
                self._places_taken += 1
                request.has_place = True
            self._requests[request.id] = request
            # A releasing operation enters no native step that could be blamed for a death.
            # Collected under the lock, written after it: writing may wait for the client.
            undeclared = [] if request.op in RELEASING_OPERATIONS else self._undeclared()
        for what in undeclared:
            self._declare_phase(what)
        return True

    def await_turn(self, request_id: int) -> None:
        """Wait until all requests that were read earlier are in the table and their lanes."""
        with self._arrived:
            # Several threads carry requests to their lanes; the numbers say in which order they were read.
            self._arrived.wait_for(lambda: min(self._arriving, default=request_id) >= request_id)

    def arrive(self, request_id: int) -> None:
        """The request is in its lane, or was refused."""
        with self._arrived:
            self._arriving.discard(request_id)
            self._arrived.notify_all()

    def carry(self, call: Request) -> None:
        """`add`, `start`, serve and `finish` of a fast call that can run at once, in one step.

        Hand-inlined: two lock acquisitions instead of five, in the path that every repeated call takes.
        """
        lock, requests = self._lock, self._requests
        # Before it is in the table: no cancel can take it for waiting.
        call.started = True
        with lock:
            if requests:
                for other in requests.values():
                    if other.phase and not other.declared:
                        self._put_and_declare(call)
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
        """The request leaves its queue. False if it was withdrawn (`take_withdrawn` answers it)."""
        with self._lock:
            # One step under the lock: either the cancel sees a started request, or the start sees the cancel.
            request.started = not request.withdrawn
            return request.started

    def enter(self, request: Request, phase: str) -> None:
        """`request` is about to enter native code."""
        with self._lock:
            request.phase = phase
            # A run that is alone is not declared, which saves a frame for each call (ADR 0003): if the host
            # dies, the only open request is the suspect.
            request.declared = declare = phase != "running" or len(self._requests) > 1
            withdrawn = request.withdrawn
        if declare:
            self._declare_phase(Declaration(request, request.id, phase, True, self._lock))
        # The cancel came before there was a stopper.
        if withdrawn and request.stopper is not None:
            request.stopper.stop()

    def about_to_answer(self, request: Request) -> None:
        """A request of the connection is done.

        It gives its place up before the answer: the client may send the next request as soon as it has the answer,
        and may be slow to read it.
        """
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
                # The serving thread may serve other requests of the lane while this one is on its stack.
                request.release()
                if open_still and request.counted:
                    self._by_connection -= 1
                    self._places_taken -= request.has_place
            if self._draining and not self._requests:
                self._empty.notify_all()
            done = request.done
            after, request.after = request.after, None
        # Outside of the lock: `after` may do anything, for example return memory to an account.
        if after is not None:
            after()
        if done is not None:
            done.set()

    def cancel(self, request_id: int, grace_s: float) -> str:
        """Withdraw a request. Returns not-started, stopped, finished or still-running, after at most `grace_s`."""
        with self._arrived:
            # The CANCEL may be read before another thread has brought its request to the table.
            self._arrived.wait_for(lambda: request_id not in self._arriving, grace_s)
        with self._lock:
            request = self._requests.get(request_id)
            if request is None:
                return "finished"
            if not request.started:
                request.withdrawn = True
                request.release()
                return "not-started"
            # Remembered for `enter`: the request may not have a stopper yet.
            request.withdrawn = True
            stopper = request.stopper
            # Created here, because few requests are ever cancelled.
            done = request.done = request.done or threading.Event()
        if stopper is not None:
            stopper.stop()
        # ONNX Runtime stops between two nodes, so a short wait tells most callers the final state.
        if not done.wait(grace_s):
            return "still-running"
        return "stopped" if request.failed else "finished"

    def take_withdrawn(self, request_id: int) -> Request | None:
        """A request that was withdrawn in its queue, once: the caller answers it now, ahead of its turn."""
        with self._lock:
            request = self._requests.get(request_id)
            if request is None or request.started or not request.withdrawn or request.refused:
                return None
            request.refused = True  # there may be two cancels of it at once
        self.finish(request, failed=True)
        return request

    def withdraw_useless(self) -> None:
        """The client leaves: withdraw what nothing waits for, and what only makes something for later calls. Does
        not wait."""
        self._withdraw(lambda request: request.op in MAKING_OPERATIONS or bool(request.header.get("patient")))

    def withdraw_all(self) -> None:
        """Withdraw everything: the client is gone. Does not wait."""
        self._withdraw(lambda _request: True)

    def _withdraw(self, is_meant: Callable[[Request], bool]) -> None:
        with self._lock:
            # Newest first: they wait for the older ones, and must not start when those stop.
            requests = [request for request in list(self._requests.values())[::-1] if is_meant(request)]
            for request in requests:
                request.withdrawn = True
        for request in requests:
            if request.stopper is not None:
                request.stopper.stop()

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight."""
        with self._empty:
            # `finish` wakes a waiting thread only from here on, so calls do not pay for it.
            self._draining = True
            return self._empty.wait_for(lambda: not self._requests, timeout_s)

    def _put_and_declare(self, call: Request) -> None:
        """Enter the call into the table, and declare the others with the caller's lock released meanwhile."""
        self._requests[call.id] = call
        undeclared = self._undeclared()
        self._lock.release()
        try:
            for what in undeclared:
                self._declare_phase(what)
        finally:
            self._lock.acquire()

    def _undeclared(self) -> list[Declaration]:
        """Requests inside native code that were alone when they entered. Under the lock."""
        return [
            Declaration(request, request.id, request.phase, False, self._lock)
            for request in self._requests.values()
            if request.phase and not request.declared
        ]
