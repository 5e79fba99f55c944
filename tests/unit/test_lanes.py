"""A lane runs requests one at a time in the order of their arrival, in the thread that finds it free."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from qnnbridge_host.request.in_flight import Lane

# Timeout that only a defect reaches.
WAIT_S = 20.0


class Bench:
    """A lane whose work can be blocked, and which records the work."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.by: dict[int, int] = {}
        self.at_once = 0
        self.most_at_once = 0
        self.hold = -1
        self.held = threading.Event()
        self.go_on = threading.Event()
        self.lane: Lane[int] = Lane(self.work)

    def work(self, item: int) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if item == self.hold:
            self.held.set()
            assert self.go_on.wait(WAIT_S)
        self.by[item] = threading.get_ident()
        self.done.append(item)
        self.at_once -= 1

    def submit_held(self, item: int) -> threading.Thread:
        """Submit from another thread, which then stays in the lane until `go_on`."""
        self.hold = item

        def submit() -> None:
            with contextlib.suppress(ZeroDivisionError):  # one test makes the work fail
                self.lane.submit(item)

        thread = threading.Thread(target=submit)
        thread.start()
        assert self.held.wait(WAIT_S)
        return thread


def test_a_free_lane_works_immediately_in_the_submitting_thread() -> None:
    bench = Bench()
    bench.lane.submit(1)
    assert bench.done == [1]
    assert bench.by[1] == threading.get_ident()
    assert len(bench.lane) == 0


def test_a_busy_lane_accepts_more_without_waiting_and_keeps_the_order() -> None:
    bench = Bench()
    thread = bench.submit_held(0)
    for item in (1, 2, 3):
        bench.lane.submit(item)
    assert bench.done == []
    assert len(bench.lane) == 4
    bench.go_on.set()
    thread.join(WAIT_S)
    assert bench.done == [0, 1, 2, 3]
    assert set(bench.by.values()) == {thread.ident}, "the thread in the lane works off what queued up"
    assert len(bench.lane) == 0


def test_many_threads_get_everything_done_once_in_order_and_never_two_at_a_time() -> None:
    bench = Bench()

    def submit(first: int) -> None:
        for item in range(first, first + 200):
            bench.lane.submit(item)

    threads = [threading.Thread(target=submit, args=(first,)) for first in (0, 1000, 2000, 3000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert bench.most_at_once == 1
    for first in (0, 1000, 2000, 3000):
        assert [item for item in bench.done if first <= item < first + 1000] == list(range(first, first + 200))
    assert len(bench.done) == 800


def test_work_may_submit_more_work() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item < 3:
            lane.submit(item + 1)
        done.append(item)

    lane: Lane[int] = Lane(work)
    lane.submit(1)
    assert done == [1, 2, 3]


def test_work_that_fails_does_not_close_the_lane() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 0:
            raise ZeroDivisionError
        done.append(item)

    lane: Lane[int] = Lane(work)
    with contextlib.suppress(ZeroDivisionError):
        lane.submit(0)
    lane.submit(1)
    assert done == [1]


def test_work_that_fails_does_not_block_work_queued_after_it() -> None:
    bench = Bench()

    def work(item: int) -> None:
        bench.work(item)
        if item == 0:
            raise ZeroDivisionError

    bench.lane = Lane(work)
    thread = bench.submit_held(0)
    bench.lane.submit(1)
    bench.go_on.set()
    thread.join(WAIT_S)
    assert bench.done == [0, 1]
    assert len(bench.lane) == 0


def test_a_connection_thread_does_its_own_item_and_hands_further_work_to_another_thread() -> None:
    """Each item submits the next one, as busy clients do: the lane is never empty before the last item."""
    by: list[int] = []
    over = threading.Event()

    def work(item: int) -> None:
        by.append(threading.get_ident())
        if item < 5:
            lane.submit(item + 1)
        else:
            over.set()

    lane: Lane[int] = Lane(work)
    lane.submit(0, stay=False)
    assert over.wait(WAIT_S)
    assert by[0] == threading.get_ident()
    assert threading.get_ident() not in by[1:]
    assert len(set(by[1:])) == 1  # not a separate thread for each item


def test_without_a_further_thread_the_current_one_continues_in_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def work(item: int) -> None:
        done.append(item)
        if item < 3:
            lane.submit(item + 1)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lane: Lane[int] = Lane(work)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    lane.submit(0, stay=False)
    assert done == [0, 1, 2, 3]
    assert len(lane) == 0


def test_work_that_fails_in_another_thread_does_not_block_the_lane() -> None:
    done: list[int] = []
    over = threading.Event()

    def work(item: int) -> None:
        if not item:
            lane.submit(1)
            raise ZeroDivisionError
        done.append(item)
        over.set()

    lane: Lane[int] = Lane(work)
    with pytest.raises(ZeroDivisionError):
        lane.submit(0, stay=False)
    assert over.wait(WAIT_S)
    assert done == [1]


def test_work_that_is_submitted_to_an_entered_lane_runs_in_another_thread() -> None:
    bench, over = Bench(), threading.Event()
    assert bench.lane.enter()
    assert not bench.lane.enter()
    for item in (1, 2):
        bench.lane.submit(item)
    bench.lane.submit(3, on_placed=over.set)
    assert over.is_set()
    assert bench.done == []
    assert len(bench.lane) == 4
    bench.lane.leave()
    until = time.monotonic() + WAIT_S
    while len(bench.lane):
        assert time.monotonic() < until
    assert bench.done == [1, 2, 3]
    assert threading.get_ident() not in bench.by.values()
    assert bench.lane.enter()
    bench.lane.leave()
    assert len(bench.lane) == 0
