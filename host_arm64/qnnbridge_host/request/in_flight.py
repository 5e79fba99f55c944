"""Requests in flight, their states, and the lanes (queues) in which they wait.

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

`InFlight.carry` takes a call of a fast channel from `add` to `finish` in one step if its lane is free.

A native crash ends the whole process, so the client must be informed beforehand which requests are inside native
code: a PHASE frame reports ("declares") each native step. A single request in the host is the only possible cause
and does not need a frame. With two or more requests every native step is declared.

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

# Type of an answer: header and buffers of a REPLY.
Answer = tuple[dict[str, Any], tuple[Any, ...]]

# Phase of a request that has left native code and continues with other work.
NO_STEP = "ready"


class Lane(Generic[T]):
    """A queue with at most one item being processed. Any thread may submit.

    No thread belongs to a lane. The thread that finds the lane free also processes the items that are queued in
    the meantime, so a single request never changes threads. The thread that reads a channel processes only its own
    item, because nobody else reads its channel; further items in the queue go to a new thread, which ends when the
    queue is empty.
    """

    def __init__(self, work: Callable[[T], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._queue: collections.deque[T] = collections.deque()
        self._busy = False

    def submit(self, item: T, *, stay: bool = True, on_placed: Callable[[], None] | None = None) -> None:
        """Process `item` now if the lane is free, else queue it for the thread that currently uses the lane.

        Args:
            item: the work.
            stay: whether the caller's thread may also process items that other threads submit in the meantime.
            on_placed: called when `item` has its position in the queue, before it is processed here.
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
        """Take the lane if it is free, and return whether it was free. The caller then works and calls `leave`."""
        # Avoid `with`, which takes three times as long: every call of a session on the NPU enters and leaves.
        self._lock.acquire()
        try:
            if self._busy:
                return False
            self._busy = True
            return True
        finally:
            self._lock.release()

    def leave(self) -> None:
        """Release the lane, or start a thread that processes the queued items."""
        self._lock.acquire()
        try:
            next_item = self._queue.popleft() if self._queue else None
            self._busy = next_item is not None
        finally:
            self._lock.release()
        if next_item is not None:
            self._hand_over(next_item)

    def _hand_over(self, item: T) -> None:
        try:
            threading.Thread(target=self._work_from, args=(item,), name="qnnbridge lane", daemon=True).start()
        except RuntimeError:  # no more threads can be started
            self._work_from(item)

    def _work_from(self, item: T) -> None:
        """Process items until the queue is empty. The caller has taken the lane."""
        defect: BaseException | None = None
        while True:
            try:
                self._work(item)
            except BaseException as error:  # noqa: BLE001 - raised below, after the queued items are processed
                defect = defect or error
            # Use the same lock as in `submit`, so that an item that arrives after this check finds the lane free.
            with self._lock:
                if not self._queue:
                    self._busy = False
                    break
                item = self._queue.popleft()
        if defect is not None:
            raise defect

    def __len__(self) -> int:
        return len(self._queue) + self._busy


# Operations that do not count for the limit. The client sends them even when it has reached the limit, and a
# refusal would leak the session, object or memory that they release.
RELEASING_OPERATIONS = ("slab.release", "session.close", "object.release")

# Operations that are withdrawn when the client leaves, because nobody needs their results. They may take minutes.
MAKING_OPERATIONS = ("session.create", "model.compile", "model.identify", "model.choose")


class Stoppable(Protocol):
    def stop(self) -> None: ...


class Request:
    """A request of the client.

    on_channel: the request came from a fast channel, which serves it and reports its phase. counted: the request
        counts toward the client's limit on requests.
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
        # Whether the client is informed of the phase, or will be informed before the step begins.
        self.declared = False
        self.started = False
        # True while the request counts toward the limit on requests in progress, until its answer is about to be
        # written. There is also a limit on all requests, for which a request counts until its answer is written.
        self.has_place = False
        self.withdrawn = False
        # Whether the request was withdrawn before it started. If so, the thread of
        # the cancel request answers this request.
        self.refused = False
        self.failed = False
        self.done: threading.Event | None = None
        self.stopper: Stoppable | None = None
        # Further fields of PHASE: the model to which a crash in the phase is attributed.
        self.blame: dict[str, Any] = {}
        # Function that sends an EVENT about the request.
        self.emit: Callable[[dict[str, Any]], None] = _no_events
        # Functions of the application that the request may call.
        self.calls_back: CallsBack | None = None
        # Function that is called once after the answer.
        self.after: Callable[[], None] | None = None

    def serve(self) -> bool:
        """Run and answer the request; return whether it succeeded. Only for fast channels."""
        raise AssertionError("the request did not come from a channel")

    def served(self) -> None:
        """Record that no thread uses the request any more."""
        raise AssertionError("the request did not come from a channel")

    def refuse(self, error: BaseException) -> None:
        """Answer the request with an error."""
        raise AssertionError("the request did not come from a channel")

    def release(self) -> None:
        """Free the tensors of a request that will not run, because the request may stay in its lane for a long
        time."""
        self.buffers = ()
        self.header.pop("inputs", None)
        self.header.pop("initializers", None)


def _no_events(_event: dict[str, Any]) -> None:
    """Default of `emit`: discard the events of a request that did not come from the connection."""


class Declaration(NamedTuple):
    """A phase to declare to the client.

    The writing thread locks the stream while it checks `due`, writes the frame and calls `made`. So a declaration
    is never written after the answer to its request, and never twice.

    Attributes:
        id: id of the request in that phase. It is stored because the object of a fast call is reused for later
            calls.
        own: whether the request enters the phase only after this declaration. Otherwise it has entered the phase
            already, and any thread may declare it.
    """

    request: Request
    id: int
    phase: str
    own: bool
    table: threading.Lock

    @property
    def due(self) -> bool:
        """Return False once the request is being answered, because its phase ends before the answer is written."""
        request = self.request
        return request.phase == self.phase and request.id == self.id and (self.own or not request.declared)

    def made(self) -> None:
        with self.table:
            if self.due:
                self.request.declared = True


class InFlight:
    """All requests between arrival and answer. Thread-safe.

    Invariant: no thread waits for the client while holding the table's lock. Declarations are collected under the
    lock and written afterwards. The request's own thread writes its declaration before it enters the step. A
    request that was alone when it entered is declared by the next request, before the next request enters native
    code, so that the client can distinguish the two after a crash. Writing an answer or a declaration delays no
    other request.
    """

    def __init__(self, declare_phase: Callable[[Declaration], None], limit: int) -> None:
        """declare_phase: function that writes a declaration to the connection if it is due."""
        self._declare_phase = declare_phase
        self._limit = limit
        self._lock = threading.Lock()
        self._requests: dict[int, Request] = {}
        self._by_connection = 0
        self._places_taken = 0
        # Requests that were read but are not yet in the table and their lane. Neither a cancel request nor a later
        # request may overtake them.
        self._arriving: set[int] = set()
        # This lock is separate, because the announcing thread is the reader and must not wait for the table.
        self._arrived = threading.Condition()
        self._draining = False
        self._empty = threading.Condition(self._lock)

    def __len__(self) -> int:
        return len(self._requests)

    def announce(self, request_id: int) -> None:
        """Record that a request was read; `add` and `arrive` follow in any thread. Does not wait for the client."""
        with self._arrived:
            self._arriving.add(request_id)

    def add(self, request: Request) -> bool:
        """Enter the request into the table. Return False if the table is full."""
        with self._lock:
            if request.counted:  # a channel carries one call at a time, so its calls do not count
                # The second condition limits the requests whose answers are still being written to a slow client.
                if self._places_taken >= self._limit or self._by_connection >= 2 * self._limit:
                    return False
                self._by_connection += 1
                self._places_taken += 1
                request.has_place = True
            self._requests[request.id] = request
            # An operation that releases something enters no native step that could be blamed for a crash. Collect
            # the declarations under the lock and write them afterwards, because writing may wait for the client.
            undeclared = [] if request.op in RELEASING_OPERATIONS else self._undeclared()
        for what in undeclared:
            self._declare_phase(what)
        return True

    def await_turn(self, request_id: int) -> None:
        """Wait until all requests that were read earlier are in the table and their lanes."""
        with self._arrived:
            # Several threads put requests into their lanes; the numbers give the order in which the requests were
            # read.
            self._arrived.wait_for(lambda: min(self._arriving, default=request_id) >= request_id)

    def arrive(self, request_id: int) -> None:
        """Record that the request is in its lane, or was refused."""
        with self._arrived:
            self._arriving.discard(request_id)
            self._arrived.notify_all()

    def carry(self, call: Request) -> None:
        """Run `add`, `start`, serve and `finish` of a fast call whose lane is free, in one step.

        The steps are inlined by hand: two lock acquisitions instead of five, on the path of every repeated call.
        """
        lock, requests = self._lock, self._requests
        # Set this before the call is in the table, so that a cancel request does not treat the call as waiting.
        call.started = True
        # `with lock` takes three times as long.
        lock.acquire()
        try:
            if requests:
                for other in requests.values():
                    if other.phase and not other.declared:
                        self._put_and_declare(call)
                        break
            requests[call.id] = call
        finally:
            lock.release()
        well = False
        try:
            well = call.serve()
        finally:
            lock.acquire()
            try:
                call.failed = not well
                requests.pop(call.id, None)
                if self._draining and not requests:
                    self._empty.notify_all()
                done = call.done
            finally:
                lock.release()
            if done is not None:
                done.set()

    def start(self, request: Request) -> bool:
        """Mark the request as started. Return False if it was withdrawn (`take_withdrawn` answers it)."""
        with self._lock:
            # Check and set under the lock, so that either the cancel request finds a started request, or this start
            # finds the cancellation.
            request.started = not request.withdrawn
            return request.started

    def enter(self, request: Request, phase: str) -> None:
        """Record that `request` is about to enter native code."""
        with self._lock:
            request.phase = phase
            # Do not declare a run that is the only open request, which saves a frame for each call (ADR 0003): if
            # the host crashes, that request is the only suspect.
            request.declared = declare = phase != "running" or len(self._requests) > 1
            withdrawn = request.withdrawn
        if declare:
            self._declare_phase(Declaration(request, request.id, phase, True, self._lock))
        # Stop now if the cancel request came before the request had a stopper.
        if withdrawn and request.stopper is not None:
            request.stopper.stop()

    def about_to_answer(self, request: Request) -> None:
        """Record that a request of the connection has finished its work and is being answered.

        The request stops counting toward the limit before the answer is written: the client may send the next
        request as soon as it has received the answer, and writing to a slow client takes time.
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
                # Free the tensors now: this thread may serve other requests of the lane while this request is on
                # its stack.
                request.release()
                if open_still and request.counted:
                    self._by_connection -= 1
                    self._places_taken -= request.has_place
            if self._draining and not self._requests:
                self._empty.notify_all()
            done = request.done
            after, request.after = request.after, None
        # Call it without holding the lock: `after` may do anything, for example return reserved memory.
        if after is not None:
            after()
        if done is not None:
            done.set()

    def cancel(self, request_id: int, grace_s: float) -> str:
        """Withdraw a request. Return not-started, stopped, finished or still-running, after at most `grace_s`."""
        with self._arrived:
            # Wait: the CANCEL may be read before another thread has entered its target into the table.
            self._arrived.wait_for(lambda: request_id not in self._arriving, grace_s)
        with self._lock:
            request = self._requests.get(request_id)
            if request is None:
                return "finished"
            if not request.started:
                request.withdrawn = True
                request.release()
                return "not-started"
            # `enter` checks this flag, because the request may not have a stopper yet.
            request.withdrawn = True
            stopper = request.stopper
            # Create the event only here, because few requests are cancelled.
            done = request.done = request.done or threading.Event()
        if stopper is not None:
            stopper.stop()
        # Wait briefly, so that most callers get the final state: ONNX Runtime stops a run between two nodes.
        if not done.wait(grace_s):
            return "still-running"
        return "stopped" if request.failed else "finished"

    def take_withdrawn(self, request_id: int) -> Request | None:
        """Return a request that was withdrawn while it waited; the caller answers the request immediately. A second
        call returns ``None``."""
        with self._lock:
            request = self._requests.get(request_id)
            if request is None or request.started or not request.withdrawn or request.refused:
                return None
            request.refused = True  # a second cancel request must not answer the request again
        self.finish(request, failed=True)
        return request

    def withdraw_useless(self) -> None:
        """Withdraw the requests of a leaving client whose results nobody needs: `MAKING_OPERATIONS`, and
        comparisons in the background.

        This does not wait for the requests to end.
        """
        self._withdraw(lambda request: request.op in MAKING_OPERATIONS or bool(request.header.get("patient")))

    def withdraw_all(self) -> None:
        """Withdraw all requests, because the client is gone. This does not wait for the requests to end."""
        self._withdraw(lambda _request: True)

    def _withdraw(self, is_meant: Callable[[Request], bool]) -> None:
        with self._lock:
            # Begin with the newest request: newer requests wait for older requests, and must not start when the
            # older requests stop.
            requests = [request for request in list(self._requests.values())[::-1] if is_meant(request)]
            for request in requests:
                request.withdrawn = True
        for request in requests:
            if request.stopper is not None:
                request.stopper.stop()

    def drain(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; return False after the timeout."""
        with self._empty:
            # `finish` notifies waiting threads only if this is set, so ordinary calls do not notify.
            self._draining = True
            return self._empty.wait_for(lambda: not self._requests, timeout_s)

    def _put_and_declare(self, call: Request) -> None:
        """Enter the call into the table. Release the caller's lock while the other requests are declared."""
        self._requests[call.id] = call
        undeclared = self._undeclared()
        self._lock.release()
        try:
            for what in undeclared:
                self._declare_phase(what)
        finally:
            self._lock.acquire()

    def _undeclared(self) -> list[Declaration]:
        """Return the requests inside native code that were alone when they entered it. The caller holds the
        lock."""
        return [
            Declaration(request, request.id, request.phase, False, self._lock)
            for request in self._requests.values()
            if request.phase and not request.declared
        ]
