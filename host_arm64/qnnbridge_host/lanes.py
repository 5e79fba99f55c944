"""Lanes: first come, first served, one at a time.

The QNN execution provider serialises calls on a mutex (onnxruntime PR 18981) and an NPU has one queue, so all
QNN sessions share one lane; a second one serialises session creation. Work without a lane (CPU sessions, which
ONNX Runtime runs concurrently) starts at once.

No thread belongs to a lane: the thread that finds it free works through what queues up meanwhile, so a lone
request is never handed from thread to thread. A thread that nobody stands in for (the only reader of its channel)
does no more than its own item: busy others would keep it for ever, and its channel would not be read. What has
queued up behind it goes to a thread that lives as long as there is a queue.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lane(Generic[T]):
    """A queue with at most one item in work. Any thread may submit."""

    def __init__(self, work: Callable[[T], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._queue: collections.deque[T] = collections.deque()
        self._busy = False

    def submit(self, item: T, *, stay: bool = True, on_placed: Callable[[], None] | None = None) -> None:
        """Work on `item` now if the lane is free, else leave it to the thread that is in the lane.

        stay: whether the caller's thread may be kept for what others bring meanwhile.
        on_placed: called when `item` has its place, before it is worked on here.
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
        """Whether the lane is free. Then it is the caller's, who does what there is to do, up to `leave`."""
        with self._lock:
            if self._busy:
                return False
            self._busy = True
            return True

    def leave(self) -> None:
        """To whatever waits for it."""
        with self._lock:
            next_item = self._queue.popleft() if self._queue else None
            self._busy = next_item is not None
        if next_item is not None:
            self._hand_over(next_item)

    def _hand_over(self, item: T) -> None:
        try:
            threading.Thread(target=self._work_from, args=(item,), name="qnnbridge lane", daemon=True).start()
        except RuntimeError:  # no thread to be had
            self._work_from(item)

    def _work_from(self, item: T) -> None:
        """Until the queue is empty. The lane is the caller's."""
        defect: BaseException | None = None
        while True:
            try:
                self._work(item)
            except BaseException as error:  # noqa: BLE001 - raised below: what waits must not suffer for it
                defect = defect or error
            with self._lock:
                if not self._queue:
                    self._busy = False
                    break
                item = self._queue.popleft()
        if defect is not None:
            raise defect

    def __len__(self) -> int:
        return len(self._queue) + self._busy
