"""Looks after the channels of one host process from time to time: those that nobody needs, callers that get no
answer, and answers that have no caller any more.

One thread for each process that has channels; it ends with them, and does not keep them alive.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

from qnnbridge._fastpath import channel as fast_channel

# A channel that was not used in so many intervals of `channel.LOOK_INTERVAL_S` is closed, and its memory given
# back.
TRIM_LOOKS = 2

# Between two looks for an answer that nobody waits for. Until it is read the host may stand still with it, and with
# it the NPU.
LATE_INTERVAL_S = 0.1


class WakeEvent:
    """Wakes the thread up. Any thread, also a signal handler in the middle of this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it has been woken up already and did not look yet

    def wait(self, timeout_s: float) -> None:
        self._lock.acquire(timeout=max(0.0, timeout_s))


class Maintained(Protocol):
    """The channels. Any thread may call."""

    closed: bool

    def take_in(self) -> bool:
        """Read what nobody waits for. Whether more of that may come."""

    def look(self, under_way: dict[int, int]) -> None:
        """After callers that wait; `under_way` is what it noted the last time."""

    def trim(self, seen: dict[int, int]) -> bool:
        """After what was not used; `seen` as above. False if there is nothing left to look after."""


def maintain(reference: weakref.ref[Maintained], wake: WakeEvent) -> None:
    """What the thread does. wake: when the channels are closed, and when a call has been given up."""
    under_way: dict[int, int] = {}
    seen: dict[int, int] = {}
    looks = 0
    late = False
    next_look = time.monotonic() + fast_channel.LOOK_INTERVAL_S
    while True:
        left_s = next_look - time.monotonic()
        wake.wait(min(left_s, LATE_INTERVAL_S) if late else left_s)
        pool = reference()
        if pool is None or pool.closed:
            return
        late = pool.take_in()
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + fast_channel.LOOK_INTERVAL_S
            pool.look(under_way)
            looks += 1
            if looks % TRIM_LOOKS == 0 and not pool.trim(seen):
                return
        del pool


__all__ = ["Maintained", "WakeEvent", "maintain"]
