"""The order of calls into the NPU host: turns, shares, cancelled calls."""

from __future__ import annotations

import threading
import time

import pytest

from qnnbridge.errors import Busy, Cancelled
from qnnbridge_daemon.fair_share import ACTIVE_S, Cancellation, FairShare, Queue
from tests.daemon.brokers import GRACE_S, until


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Call:
    """A call in a separate thread, which runs in the host until `end`."""

    def __init__(self, share: FairShare, queue: Queue, order: list[Call] | None = None) -> None:
        self.cancellation = Cancellation()
        self.inside = threading.Event()
        self.error: BaseException | None = None
        self._go = threading.Event()
        self._order = order
        before = len(queue.waiting)
        self._thread = threading.Thread(target=self._work, args=(share, queue), daemon=True)
        self._thread.start()
        # Wait until the call has a turn, waits for one, or has failed.
        until(lambda: self.inside.is_set() or len(queue.waiting) > before or self.error is not None)

    def _work(self, share: FairShare, queue: Queue) -> None:
        try:
            with share.turn(queue, self.cancellation):
                if self._order is not None:
                    self._order.append(self)
                self.inside.set()
                assert self._go.wait(GRACE_S)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._go.set()
        self._thread.join(GRACE_S)
        assert not self._thread.is_alive()


def test_a_disconnected_client_gets_no_turn() -> None:
    share = FairShare(1, 10)
    there, gone = share.join(), share.join()
    share.leave(gone)
    call = Call(share, there)
    late = Call(share, gone)
    assert isinstance(late.error, Cancelled)
    late.end()
    call.end()
    assert share.running == 0


def test_a_single_client_gets_all_slots_and_no_more() -> None:
    share = FairShare(2, 10)
    queue = share.join()
    calls = [Call(share, queue) for _ in range(3)]
    assert [call.inside.is_set() for call in calls] == [True, True, False]
    calls[0].end()
    assert calls[2].inside.wait(GRACE_S)
    for call in calls[1:]:
        call.end()
    assert share.running == share.waiting == 0


def test_clients_take_turns_however_many_calls_one_of_them_has_queued() -> None:
    share = FairShare(1, 100)
    flood, single = share.join(), share.join()
    order: list[Call] = []
    first = Call(share, flood, order)
    many = [Call(share, flood, order) for _ in range(5)]
    few = [Call(share, single, order) for _ in range(2)]
    first.end()
    seen = [first]
    for _ in range(7):
        until(lambda: len(order) > len(seen))
        seen.append(order[-1])
        seen[-1].end()
    ours = ["single" if call in few else "flood" for call in seen]
    assert ours[:5] == ["flood", "single", "flood", "single", "flood"]
    assert len(many) == ours.count("flood") - 1


def test_a_flood_gets_no_more_slots_than_a_client_with_a_single_thread() -> None:
    clock = Clock()
    share = FairShare(4, 100, clock)
    single, flood = share.join(), share.join()
    one = Call(share, single)
    many = [Call(share, flood) for _ in range(3)]
    assert [call.inside.is_set() for call in many] == [True, False, False]
    one.end()
    # The client's thread is between two calls and will make another one.
    many[0].end()
    assert many[1].inside.wait(GRACE_S)
    assert flood.running == 1
    clock.now += 2 * ACTIVE_S  # the client makes no call in this time
    assert many[2].inside.wait(GRACE_S)
    for call in many[1:]:
        call.end()


def test_two_floods_share_the_slots() -> None:
    share = FairShare(4, 100)
    queues = [share.join(), share.join()]
    calls = [Call(share, queues[number % 2]) for number in range(8)]
    share_of_first = queues[0].running
    assert share_of_first in (1, 2)
    assert 1 <= queues[1].running <= 2
    for call in calls:
        call._go.set()
    for call in calls:
        call.end()
    assert share.running == share.waiting == 0


def test_another_turn_of_an_accepted_request_is_never_refused_as_busy() -> None:
    share = FairShare(1, 1)
    queue = share.join()
    running, waiting = Call(share, queue), Call(share, queue)
    assert isinstance(Call(share, queue).error, Busy)
    entered = threading.Event()

    def go_on() -> None:
        with share.turn(queue, Cancellation(), again=True):
            entered.set()

    further = threading.Thread(target=go_on, daemon=True)
    further.start()
    running.end()
    waiting.end()
    further.join(GRACE_S)
    assert entered.is_set()
    assert share.running == share.waiting == 0


def test_a_queued_call_can_be_cancelled_and_its_slot_is_free() -> None:
    share = FairShare(1, 1)
    queue = share.join()
    running, waiting = Call(share, queue), Call(share, queue)
    refused = Call(share, queue)
    assert isinstance(refused.error, Busy)
    assert refused.error.details == {"limit": "queued", "value": 1}
    assert "--max-queued" in (refused.error.fix or "")
    waiting.cancellation.stop()
    waiting.end()
    assert isinstance(waiting.error, Cancelled)
    last = Call(share, queue)
    running.end()
    last.end()
    assert last.error is None


def test_a_call_that_was_cancelled_earlier_is_not_counted() -> None:
    share = FairShare(1, 1)
    queue, cancellation = share.join(), Cancellation()
    cancellation.stop()
    with pytest.raises(Cancelled), share.turn(queue, cancellation):
        raise AssertionError("it ran")
    assert share.running == 0


def test_slots_of_a_disconnected_client_are_free_when_its_calls_end() -> None:
    share = FairShare(1, 10)
    gone, other = share.join(), share.join()
    running = Call(share, gone)
    waiting = Call(share, other)
    share.leave(gone)
    assert not waiting.inside.is_set()
    running.end()
    assert waiting.inside.wait(GRACE_S)
    waiting.end()
    assert share.wait_idle(time.monotonic() + GRACE_S)


def test_waiting_for_idle_ends_at_its_deadline() -> None:
    share = FairShare(1, 10)
    call = Call(share, share.join())
    assert not share.wait_idle(time.monotonic())
    call.end()
    assert share.wait_idle(time.monotonic() + GRACE_S)


def test_a_call_after_closing_gets_no_turn_and_does_not_wait() -> None:
    share = FairShare(1, 10)
    queue, other = share.join(), share.join()
    running, waiting = Call(share, queue), Call(share, queue)
    share.close()
    cancellation, errors = Cancellation(), list[BaseException]()

    def come_late() -> None:
        try:
            with share.turn(other, cancellation):
                errors.append(AssertionError("it has got a turn"))
        except Cancelled as error:
            errors.append(error)

    late = threading.Thread(target=come_late, daemon=True)
    late.start()
    running.end()
    assert waiting.inside.wait(GRACE_S)
    waiting.end()
    assert share.wait_idle(time.monotonic())
    late.join(ACTIVE_S * 2)
    assert late.is_alive()
    cancellation.stop()
    late.join(GRACE_S)
    assert [type(error) for error in errors] == [Cancelled]
