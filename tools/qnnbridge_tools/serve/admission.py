"""How many requests, and how many bytes of them, are held at once; more are refused as busy. Any thread."""

from __future__ import annotations

import threading
from types import TracebackType

from qnnbridge_protocol.errors import Busy


class Admission:
    """most: requests that are worked on or wait for that. most_bytes: of the bodies of all, as received and as
    unpacked, also of those that are still coming."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._count = 0
        self._bytes = 0

    def enter(self) -> Ticket:
        """For a request of which the body is yet to come. Raises `Busy` if it would find no place now."""
        with self._lock:
            self._refuse_if_full()
        return Ticket(self)

    def take_place(self) -> None:
        with self._lock:
            self._refuse_if_full()
            self._count += 1

    def _refuse_if_full(self) -> None:
        if self._count >= self._most:
            raise Busy(
                f"{self._count} requests are being worked on or wait, and no more are taken.",
                fix="Send it again a little later, or give the server a longer --queue.",
            )

    def take(self, size: int) -> None:
        with self._lock:
            if self._bytes + size > self._most_bytes:
                raise Busy(
                    f"The requests that are being worked on have {self._bytes} bytes; {size} more are not taken.",
                    fix="Send it again a little later, or give the server a larger --max-request.",
                )
            self._bytes += size

    def leave(self, places: int, size: int) -> None:
        with self._lock:
            self._count -= places
            self._bytes -= size


class Ticket:
    """What one request holds; given back with the ``with``. One thread at a time."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._places = 0
        self._bytes = 0

    def take_place(self) -> None:
        """The whole request is there: it counts from now on. A client that is slow to send keeps nobody out. Raises
        `Busy`."""
        self._admission.take_place()
        self._places += 1

    def take(self, size: int) -> None:
        """That many bytes more. Raises `Busy`."""
        self._admission.take(size)
        self._bytes += size

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.leave(self._places, self._bytes)
