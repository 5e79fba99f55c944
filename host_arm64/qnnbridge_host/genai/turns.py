"""`Turns`: generations of one device take turns, token by token, in the order in which they asked."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A lock that is handed over in order. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = False
        self._waiting: collections.deque[threading.Lock] = collections.deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Around one native step."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            if not self._busy:
                self._busy = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def _leave(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._busy = False
