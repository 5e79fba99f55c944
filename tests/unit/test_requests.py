"""Requests in flight: their limit, cancellation, declared phases, and errors as responses."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.wire_streams import feed, wire

from qnnbridge_host.request.client import describe
from qnnbridge_host.request.in_flight import RELEASING_OPERATIONS, Declaration, InFlight, Request
from qnnbridge_protocol.errors import OptionError, from_wire
from qnnbridge_protocol.frames import Frame, FrameReader, Kind
from qnnbridge_protocol.limits import Limits

# Timeout that only a defect reaches.
GRACE_S = 20.0

NO_GRACE_S = 0.0


class Stopper:
    """A run that can be stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


class Table:
    """Requests in flight, and the declarations that were sent."""

    def __init__(self, limit: int = 10) -> None:
        self.told: list[tuple[int, str]] = []
        self.in_flight = InFlight(self.tell, limit)
        # Whether the client reads written data.
        self.has_room = threading.Event()
        self.has_room.set()
        # A thread is about to send a declaration.
        self.waits = threading.Event()
        self.stream = threading.Lock()

    def tell(self, what: Declaration) -> None:
        self.waits.set()
        with self.stream:
            assert self.has_room.wait(GRACE_S)
            if what.due:
                self.told.append((what.id, what.phase))
                what.made()

    def answer(self, request: Request) -> None:
        self.in_flight.about_to_answer(request)
        with self.stream:
            self.told.append((request.id, "answered"))
        self.in_flight.finish(request, failed=False)

    def request(self, request_id: int, *, started: bool = True) -> Request:
        request = Request(request_id, {"op": "session.run"}, ())
        assert self.in_flight.add(request)
        if started:
            assert self.in_flight.start(request)
        return request


# --- the limit -------------------------------------------------------------------------------------------


def test_a_request_over_the_limit_is_refused_until_another_one_ends() -> None:
    table = Table(limit=2)
    first = table.request(1)
    table.request(2)
    third = Request(3, {}, ())
    assert not table.in_flight.add(third)
    assert len(table.in_flight) == 2
    table.in_flight.finish(first, failed=False)
    assert table.in_flight.add(third)


def test_a_request_may_arrive_before_the_previous_answered_one_has_ended() -> None:
    """A client at its limit sends the next request as soon as it has read an answer, while the thread that wrote
    the answer has not finished yet.
    """
    table = Table(limit=1)
    first = table.request(1)
    table.in_flight.about_to_answer(first)
    second = Request(2, {}, ())
    assert table.in_flight.add(second)
    assert not table.in_flight.add(Request(3, {}, ()))
    table.in_flight.about_to_answer(second)
    assert not table.in_flight.add(Request(4, {}, ())), "unread answers have a limit too"
    table.in_flight.finish(first, failed=False)
    assert table.in_flight.add(Request(5, {}, ()))


def test_no_phase_is_declared_for_a_request_that_is_being_answered() -> None:
    """The answer may fill the pipe, and the declaration would wait for it and block the table."""
    table = Table()
    first = table.request(1)
    table.in_flight.enter(first, "running")
    table.in_flight.about_to_answer(first)
    table.request(2)
    assert table.told == []


@pytest.mark.parametrize("op", RELEASING_OPERATIONS)
def test_a_release_request_is_accepted_over_the_limit(op: str) -> None:
    """Refusing it would leave unused memory in the host, unnoticed."""
    table = Table(limit=1)
    table.request(1)
    giving_back = Request(2, {"op": op}, ())
    assert table.in_flight.add(giving_back)
    assert not table.in_flight.add(Request(3, {"op": "session.run"}, ()))
    table.in_flight.finish(giving_back, failed=False)
    assert not table.in_flight.add(Request(4, {"op": "session.run"}, ())), "it made no room"


def test_cancelling_a_refused_request_reports_finished() -> None:
    table = Table(limit=1)
    table.request(1)
    table.in_flight.add(Request(2, {}, ()))
    assert table.in_flight.cancel(2, NO_GRACE_S) == "finished"


def test_draining_waits_for_the_last_answer() -> None:
    table = Table()
    assert table.in_flight.drain(NO_GRACE_S), "nothing to wait for"
    request = table.request(1)
    assert not table.in_flight.drain(NO_GRACE_S)
    drained: list[bool] = []
    thread = threading.Thread(target=lambda: drained.append(table.in_flight.drain(GRACE_S)))
    thread.start()
    table.in_flight.finish(request, failed=False)
    thread.join(GRACE_S)
    assert drained == [True]


# --- cancellation ----------------------------------------------------------------------------------------


def test_a_waiting_request_is_cancelled() -> None:
    table = Table()
    request = table.request(1, started=False)
    assert table.in_flight.cancel(1, GRACE_S) == "not-started"
    assert not table.in_flight.start(request), "it must not run when its turn comes"


def test_a_cancel_is_not_handled_before_its_request() -> None:
    """Another thread has read the request but not yet added it."""
    table = Table()
    table.in_flight.announce(1)
    states: list[str] = []
    canceller = threading.Thread(target=lambda: states.append(table.in_flight.cancel(1, GRACE_S)))
    canceller.start()
    request = table.request(1, started=False)
    table.in_flight.arrive(1)
    canceller.join(GRACE_S)
    assert states == ["not-started"]
    assert not table.in_flight.start(request)


def test_a_request_waits_for_those_that_were_read_before_it() -> None:
    table = Table()
    for number in (1, 2):
        table.in_flight.announce(number)
    table.in_flight.await_turn(1)
    order: list[int] = []

    def second() -> None:
        table.in_flight.await_turn(2)
        order.append(2)

    thread = threading.Thread(target=second)
    thread.start()
    order.append(1)
    table.in_flight.arrive(1)
    thread.join(GRACE_S)
    assert order == [1, 2]


class Carried(Request):
    """A call on a channel, with memory for its phases."""

    on_channel = True

    def serve(self) -> bool:
        return True


def in_threads(*calls: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def over(threads: list[threading.Thread], within_s: float = GRACE_S) -> bool:
    for thread in threads:
        thread.join(within_s)
    return not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("op", ["session.run", *RELEASING_OPERATIONS])
def test_requests_do_not_wait_for_a_phase_frame_that_the_client_does_not_read(op: str) -> None:
    """A request that is about to declare a phase is not in native code yet."""
    table = Table()
    first = table.request(1)
    table.has_room.clear()
    teller = in_threads(lambda: table.in_flight.enter(first, "compiling"))
    assert table.waits.wait(GRACE_S)

    def another() -> None:
        table.in_flight.announce(2)
        second = Request(2, {"op": op}, ())
        assert table.in_flight.add(second)
        table.in_flight.arrive(2)
        assert table.in_flight.start(second)
        table.in_flight.about_to_answer(second)
        table.in_flight.finish(second, failed=False)

    others = in_threads(
        another,
        lambda: table.in_flight.carry(Carried(2**32 + 1, {}, ())),
        lambda: table.in_flight.cancel(1, NO_GRACE_S),
        lambda: table.in_flight.take_withdrawn(1),
        lambda: table.in_flight.drain(NO_GRACE_S),
    )
    went_on = over(others)
    waited = not over(teller, NO_GRACE_S)
    table.has_room.set()
    assert over(teller)
    assert went_on
    assert waited, "who enters the step"
    assert table.told == [(1, "compiling")]


@pytest.mark.parametrize("op", RELEASING_OPERATIONS)
def test_a_release_request_causes_no_phase_declaration_of_other_requests(op: str) -> None:
    """A declaration would wait for the client, which does not read the answer."""
    table = Table()
    table.in_flight.enter(table.request(1), "running")
    assert table.in_flight.add(Request(2, {"op": op}, ()))
    assert table.told == []
    table.request(3)
    assert table.told == [(1, "running")]


@pytest.mark.parametrize("by_channel", [True, False], ids=["channel", "connection"])
def test_a_new_request_waits_until_the_running_one_is_declared_to_the_client(by_channel: bool) -> None:
    """Until the client knows which request runs, no other request may enter native code."""
    table = Table()
    table.in_flight.enter(table.request(1), "running")
    table.has_room.clear()

    def come(number: int) -> None:
        if by_channel:
            table.in_flight.carry(Carried(number, {}, ()))
        else:
            table.request(number)

    threads = in_threads(*(lambda number=number: come(number) for number in (2, 3, 4)))  # type: ignore[misc]
    assert table.waits.wait(GRACE_S)
    entered = over(threads, 0.05)
    assert table.in_flight.cancel(1, NO_GRACE_S) == "still-running", "the table is free"
    table.has_room.set()
    assert over(threads)
    assert not entered
    assert table.told == [(1, "running")]


@pytest.mark.parametrize("then", ["answered", "creating", "another call"])
def test_an_outdated_phase_is_not_declared(then: str) -> None:
    """If the answer or the next phase is sent first, or the call has a new id, an earlier declaration is outdated."""
    table = Table()
    first = table.request(1)
    table.in_flight.enter(first, "running")
    expected = [(1, then)]
    with table.stream:
        threads = in_threads(lambda: table.request(2))
        assert table.waits.wait(GRACE_S)
        if then == "another call":
            first.id, expected = 7, []
        elif then == "creating":
            threads += in_threads(lambda: table.in_flight.enter(first, then))
        else:
            threads += in_threads(lambda: table.answer(first))
        until = time.monotonic() + GRACE_S
        while first.id == 1 and first.phase == "running":
            assert time.monotonic() < until
            time.sleep(0.001)
    assert over(threads)
    assert table.told == expected


class Between:
    """A lock that calls a function after its first release."""

    def __init__(self, lock: Any, act: Callable[[], None]) -> None:
        self._lock = lock
        self._acts = [act]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._acts:
            self._acts.pop()()


def test_two_concurrent_cancels_answer_the_request_once() -> None:
    """A second answer would be invalid for the client."""
    table = Table()
    table.request(1, started=False)
    for _ in range(2):
        assert table.in_flight.cancel(1, NO_GRACE_S) == "not-started"
    taken: list[Request | None] = []
    table.in_flight._lock = Between(table.in_flight._lock, lambda: taken.append(table.in_flight.take_withdrawn(1)))  # type: ignore[assignment]
    taken.append(table.in_flight.take_withdrawn(1))
    assert sum(request is not None for request in taken) == 1


def test_cancelling_twice_reports_the_same_state() -> None:
    table = Table()
    table.request(1, started=False)
    assert [table.in_flight.cancel(1, GRACE_S) for _ in range(2)] == ["not-started", "not-started"]


@pytest.mark.parametrize(("failed", "state"), [(True, "stopped"), (False, "finished")])
def test_a_request_that_ends_within_the_grace_period_reports_stopped_or_finished(failed: bool, state: str) -> None:
    table = Table()
    request = table.request(1)
    request.stopper = stopper = Stopper()

    def work() -> None:
        assert stopper.stopped.wait(GRACE_S)
        table.in_flight.finish(request, failed=failed)

    thread = threading.Thread(target=work)
    thread.start()
    assert table.in_flight.cancel(1, GRACE_S) == state
    thread.join(GRACE_S)


def test_a_request_that_does_not_stop_continues() -> None:
    table = Table()
    request = table.request(1)
    request.stopper = stopper = Stopper()
    assert table.in_flight.cancel(1, NO_GRACE_S) == "still-running"
    assert stopper.stopped.is_set()
    assert len(table.in_flight) == 1


def test_a_request_that_cannot_be_stopped_continues() -> None:
    table = Table()
    table.request(1)
    assert table.in_flight.cancel(1, NO_GRACE_S) == "still-running"


@pytest.mark.parametrize("request_id", [1, 2, 0, 2**64 - 1])
def test_cancelling_an_answered_or_unknown_request_reports_finished(request_id: int) -> None:
    table = Table()
    table.in_flight.finish(table.request(1), failed=True)
    assert table.in_flight.cancel(request_id, GRACE_S) == "finished"


def test_a_cancel_before_the_native_call_stops_the_request() -> None:
    """A request decodes its tensors between its start and its native call; a cancel then must not be lost."""
    table = Table()
    request = table.request(1)
    assert table.in_flight.cancel(1, NO_GRACE_S) == "still-running"
    request.stopper = stopper = Stopper()
    table.in_flight.enter(request, "running")
    assert stopper.stopped.is_set()


# --- which phases are declared ---------------------------------------------------------------------------


def test_a_single_run_is_not_declared() -> None:
    table = Table()
    request = table.request(1)
    table.in_flight.enter(request, "running")
    table.in_flight.finish(request, failed=False)
    assert table.told == []


@pytest.mark.parametrize("phase", ["creating", "compiling", "importing", "registering"])
def test_other_phases_are_always_declared(phase: str) -> None:
    table = Table()
    table.in_flight.enter(table.request(1), phase)
    assert table.told == [(1, phase)]


def test_a_run_that_starts_while_another_request_is_open_is_declared() -> None:
    table = Table()
    table.request(1, started=False)
    table.in_flight.enter(table.request(2), "running")
    assert table.told == [(2, "running")]


def test_a_running_run_is_declared_once_when_a_second_request_arrives() -> None:
    table = Table()
    table.in_flight.enter(table.request(1), "running")
    table.request(2, started=False)
    table.request(3, started=False)
    assert table.told == [(1, "running")]


def test_a_queued_request_is_not_declared() -> None:
    table = Table()
    for number in (1, 2, 3):
        table.request(number, started=False)
    assert table.told == []


def test_the_steps_of_one_request_are_declared_one_after_the_other() -> None:
    table = Table()
    request = table.request(1)
    for phase in ("creating", "compiling"):
        table.in_flight.enter(request, phase)
    assert table.told == [(1, "creating"), (1, "compiling")]


def test_a_single_run_after_concurrent_runs_is_not_declared() -> None:
    table = Table()
    first, second = table.request(1), table.request(2)
    for request in (first, second):
        table.in_flight.enter(request, "running")
        table.in_flight.finish(request, failed=False)
    table.told.clear()
    table.in_flight.enter(table.request(3), "running")
    assert table.told == []


def test_a_request_returns_the_operation_of_its_header_if_any() -> None:
    assert Request(1, {"op": "host.info"}, ()).op == "host.info"
    assert Request(1, {}, ()).op is None


# --- errors as answers -----------------------------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def deep(levels: int) -> list[Any]:
    return [deep(levels - 1)] if levels else []


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        Unprintable(),
        KeyboardInterrupt(),
        FileNotFoundError(2, "No such file or directory", os.fsdecode(b"/caf\xe9.onnx")),
        OptionError(
            "a name with half a pair: \ud83d", fix="\udc80", evidence=["\udc80"], details={"\udc80": "\udc80"}
        ),
        OptionError("details that msgpack cannot carry", details={"set": {1}, "object": object()}),
        OptionError("a number of more than 64 bits", details={"number": 2**64}),
        OptionError("keys that are no text", details={1: 2}),  # type: ignore[dict-item]
        OptionError("deeper than a header may be", details={"deep": deep(20)}),
        RuntimeError("x" * 5 * 1024 * 1024),
        OptionError("long evidence", evidence=["x" * 1024] * 5000),
    ],
    ids=lambda error: f"{type(error).__name__} {error.args[0] if error.args else ''}"[:40],
)
def test_any_exception_of_a_handler_can_be_sent_as_an_error(error: BaseException) -> None:
    """An answer that cannot be encoded would leave the caller waiting and end the serving thread."""
    answer = Frame(Kind.ERROR, 1, {"error": describe(error)})
    (got,) = feed(FrameReader(Limits()), wire(answer, Limits()))
    travelled = from_wire(got.header["error"])
    assert travelled.code == describe(error)["code"]
    assert travelled.message
    str(travelled).encode()


def test_a_cancelled_request_is_returned_once_for_its_answer() -> None:
    table = Table()
    request = table.request(1, started=False)
    assert table.in_flight.take_withdrawn(1) is None, "it is not withdrawn"
    table.in_flight.cancel(1, GRACE_S)
    assert table.in_flight.take_withdrawn(1) is request
    assert table.in_flight.take_withdrawn(1) is None
    assert not table.in_flight.start(request), "and is not answered again at its turn"
    running = table.request(2)
    table.in_flight.cancel(2, NO_GRACE_S)
    assert table.in_flight.take_withdrawn(2) is None, "it answers for itself"
    table.in_flight.finish(running, failed=False)


# --- tensors that are no longer needed -------------------------------------------------------------------


class Tensor:
    """A replacement of a received buffer that supports weak references."""


def test_cancelling_a_queued_request_releases_its_tensors() -> None:
    """A lane that is blocked in native code would keep the tensors of all callers that gave up."""
    table = Table()
    tensor = Tensor()
    gone = weakref.ref(tensor)
    request = Request(1, {"op": "session.run", "inputs": [["x", [1, [4], 0]]]}, (tensor,))
    assert table.in_flight.add(request)
    del tensor
    assert table.in_flight.cancel(1, NO_GRACE_S) == "not-started"
    assert gone() is None
    assert "inputs" not in request.header
    assert request.op == "session.run"
    assert table.in_flight.take_withdrawn(1) is request


def test_a_running_request_keeps_its_tensors() -> None:
    table = Table()
    request = Request(1, {"inputs": []}, (Tensor(),))
    table.in_flight.add(request)
    table.in_flight.start(request)
    assert table.in_flight.cancel(1, NO_GRACE_S) == "still-running"
    assert len(request.buffers) == 1
    assert "inputs" in request.header
    table.in_flight.finish(request, failed=False)
    assert not request.buffers
