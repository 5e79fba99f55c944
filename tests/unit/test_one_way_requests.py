"""One-way requests do not wait for other requests, are not lost, and are not sent late."""

from __future__ import annotations

import threading
from typing import Any

from tests.fakes.later import is_taken, taken_by_another

from qnnbridge._transport.open_requests import OneWayRequests


class Pipe:
    """Pipe that accepts as many bytes as it has space for."""

    def __init__(self, room: int = 10) -> None:
        self.lock = threading.RLock()
        self.room = room
        self.written: list[int] = []
        self.posts = OneWayRequests(self.lock, self.write)

    def write(self, header: dict[str, Any]) -> bool:
        assert self.lock._is_owned()  # type: ignore[attr-defined]
        if len(self.written) >= self.room:
            return False
        self.written.append(header["slab"])
        return True

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.posts.add({"op": "slab.release", "slab": number})


def test_a_request_is_written_immediately_if_the_lock_is_free() -> None:
    pipe = Pipe()
    pipe.add(1, 2)
    assert pipe.written == [1, 2]
    assert not is_taken(pipe.lock)


def test_a_request_is_left_to_the_thread_that_holds_the_lock() -> None:
    pipe = Pipe()
    with taken_by_another(pipe.lock):
        pipe.add(1, 2)
        assert pipe.written == []
    pipe.posts.send()
    assert pipe.written == [1, 2]


def test_a_request_that_is_posted_during_a_write_is_written_after_it() -> None:
    """The lock is held, so the posting thread returns."""
    pipe = Pipe()
    write = pipe.write

    def write_slowly(header: dict[str, Any]) -> bool:
        if header["slab"] < 3:
            other = threading.Thread(target=pipe.add, args=(header["slab"] + 1,))
            other.start()
            other.join()
        return write(header)

    pipe.posts = OneWayRequests(pipe.lock, write_slowly)
    pipe.add(1)
    assert pipe.written == [1, 2, 3]


def test_requests_that_do_not_fit_into_the_pipe_keep_their_order() -> None:
    pipe = Pipe(room=1)
    pipe.add(1, 2, 3)
    assert pipe.written == [1]
    assert len(pipe.posts) == 2
    pipe.room = 10
    pipe.add(4)
    assert pipe.written == [1, 2, 3, 4]
    assert not pipe.posts
