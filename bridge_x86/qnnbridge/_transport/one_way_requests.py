"""Requests of which nobody wants the answer: they give something back (memory, sessions), and cost no caller time.

What always holds: one is written as soon as nobody is in the way, by whoever was. `add` leaves it here before it
tries the lock, and who lets go of the lock looks here afterwards, so one of both sees it. Only a pipe that is full
keeps one for longer: until somebody else has something to send, or `send` is called.

Threads: any. The lock is that of the sender, and is never waited for.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any

Header = dict[str, Any]


class OneWayRequests:
    """See the module."""

    def __init__(self, lock: threading.Lock, write: Callable[[Header], bool]) -> None:
        """write: called with the lock. Writes a request, or returns False if it is to be written again later."""
        self._lock = lock
        self._write = write
        self._waiting: collections.deque[Header] = collections.deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, header: Header) -> None:
        """Have it sent, if that goes without waiting now, else soon."""
        self._waiting.append(header)
        self.send()

    def send(self) -> None:
        """What waits here, as far as that goes without waiting."""
        while self._waiting and self._lock.acquire(blocking=False):
            try:
                if not self._send_next():
                    return
            finally:
                self._lock.release()

    def _send_next(self) -> bool:
        try:
            header = self._waiting.popleft()
        except IndexError:  # who was in the way has sent it meanwhile
            return True
        if self._write(header):
            return True
        self._waiting.appendleft(header)
        return False


__all__ = ["Header", "OneWayRequests"]
