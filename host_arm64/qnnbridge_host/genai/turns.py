"""`Turns`: generations of one device take turns, token by token, in the order in which they asked."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A lock that is handed over in order, used as a context manager around one native step. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = False
        self._waiting: collections.deque[threading.Lock] = collections.deque()
        self._prompts = 0

    @property
    def has_prompt(self) -> bool:
        """Whether a prompt is processed, or waits for its turn: the next turn may come late."""
        return self._prompts > 0

    @contextmanager
    def prompt(self) -> Iterator[None]:
        """Around the processing of a prompt: a turn that may be long."""
        with self._lock:
            self._prompts += 1
        try:
            with self:
                yield
        finally:
            with self._lock:
                self._prompts -= 1

    def __enter__(self) -> None:
        with self._lock:
            if not self._busy:
                self._busy = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._busy = False
