"""Lanes: first come, first served, one at a time.

The QNN execution provider serialises calls on a mutex (onnxruntime PR 18981) and an NPU has one queue, so all
QNN sessions share one lane; a second one serialises session creation. Work without a lane (CPU sessions, which
ONNX Runtime runs concurrently) starts at once.

No thread belongs to a lane: the thread that finds it free works through what queues up meanwhile, so a lone
request is never handed from thread to thread.
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

    def submit(self, item: T) -> None:
        """Work on `item` now if the lane is free, else leave it to the thread that is in the lane."""
        with self._lock:
            if self._busy:
                self._queue.append(item)
                return
            self._busy = True
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
