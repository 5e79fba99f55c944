"""How many requests, and how many bytes of them, are held at once; more are refused as busy. Any thread."""

from __future__ import annotations

import threading
from types import TracebackType

from qnnbridge_protocol.errors import Busy


class Admission:
    """most: requests that are worked on or wait. most_bytes: of their bodies, as received and as unpacked."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._count = 0
        self._bytes = 0

    def enter(self) -> Ticket:
        """A place for one request. Raises `Busy`."""
        with self._lock:
            if self._count >= self._most:
                raise Busy(
                    f"{self._count} requests are being worked on or wait, and no more are taken.",
                    fix="Send it again a little later, or give the server a longer --queue.",
                )
            self._count += 1
        return Ticket(self)

    def take(self, size: int) -> None:
        with self._lock:
            if self._bytes + size > self._most_bytes:
                raise Busy(
                    f"The requests that are being worked on have {self._bytes} bytes; {size} more are not taken.",
                    fix="Send it again a little later, or give the server a larger --max-request.",
                )
            self._bytes += size

    def leave(self, size: int) -> None:
        with self._lock:
            self._count -= 1
            self._bytes -= size


class Ticket:
    """The place of one request; leaves with the ``with``. One thread at a time."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0

    def take(self, size: int) -> None:
        """That many bytes more. Raises `Busy`."""
        self._admission.take(size)
        self._bytes += size

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.leave(self._bytes)
