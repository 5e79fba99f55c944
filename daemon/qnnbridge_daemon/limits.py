"""What one client holds of the daemon, and the `Busy` that it is told when that is enough. Any thread."""

from __future__ import annotations

import collections
import threading
import weakref
from typing import Any

from qnnbridge_daemon.metering import Meter
from qnnbridge_daemon.settings import Limits
from qnnbridge_protocol.errors import Busy

HIGHER = {
    "sessions": "`qnnbridge host start --max-sessions N`",
    "queued": "`qnnbridge host start --max-queued N`",
    "bytes": "`qnnbridge host start --max-bytes N`",
}
"""How to raise a limit, by its name in `Limits`."""


def busy(limit: str, value: int, what: str, instead: str) -> Busy:
    """`limit` is the name in `Limits`."""
    return Busy(
        f"The daemon takes no more from this application: {what} (limit {limit}: {value}).",
        cause="The daemon is shared with other applications, so each has limits.",
        fix=f"{instead}, or start the daemon with a higher limit: {HIGHER[limit]}.",
        details={"limit": limit, "value": value},
    )


class Account:
    """Of one client. What was taken is given back by whoever took it, once."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.meter = Meter()
        self._lock = threading.Lock()
        self.sessions = 0
        self.in_flight_bytes = 0
        self.shared_bytes = 0
        self._freed: collections.deque[int] = collections.deque()
        self._unshared: collections.deque[int] = collections.deque()

    def open_session(self) -> None:
        """Raises `Busy`."""
        with self._lock:
            full = self.sessions >= self.limits.sessions
            self.sessions += not full
        if full:
            self.meter.refused()
            raise busy(
                "sessions",
                self.limits.sessions,
                f"it has {self.limits.sessions} sessions open",
                "Close sessions that are not needed",
            )

    def close_session(self) -> None:
        with self._lock:
            self.sessions -= 1

    def take(self, size: int) -> None:
        """Memory of a call. Raises `Busy`."""
        self.settle()
        with self._lock:
            full = size > 0 and self.in_flight_bytes + self.shared_bytes + size > self.limits.bytes
            self.in_flight_bytes += 0 if full else size
        if full:
            self._refuse_bytes(size)

    def give_back(self, size: int) -> None:
        with self._lock:
            self.in_flight_bytes -= size

    def share(self, size: int) -> None:
        """Shared memory. Raises `Busy`."""
        self.settle()
        with self._lock:
            full = self.in_flight_bytes + self.shared_bytes + size > self.limits.bytes
            self.shared_bytes += 0 if full else size
        if full:
            self._refuse_bytes(size)

    def unshare(self, size: int) -> None:
        with self._lock:
            self.shared_bytes -= size

    def give_back_with(self, memory: Any, size: int) -> None:
        """What was taken is given back when this memory is gone."""
        weakref.finalize(memory, self._freed.append, size).atexit = False

    def unshare_with(self, memory: Any, size: int) -> None:
        """The same of shared memory."""
        weakref.finalize(memory, self._unshared.append, size).atexit = False

    def settle(self) -> None:
        """Work through what finalizers have left, which must not lock."""
        while self._freed:
            self.give_back(self._freed.popleft())
        while self._unshared:
            self.unshare(self._unshared.popleft())

    def _refuse_bytes(self, size: int) -> None:
        self.meter.refused()
        raise busy(
            "bytes",
            self.limits.bytes,
            f"its calls under way and its shared memory would need {size} bytes more than is left",
            "Wait for answers before asking for more, or send less at a time",
        )
