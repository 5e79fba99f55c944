"""`StopSignal`: ends a request that waits, or works in a process of its own, when its client withdraws it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from qnnbridge_protocol.errors import Cancelled


class StopSignal:
    """Set once by `stop`, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        # The callbacks are called outside of the lock, since they may take long, and each only once.
        with self._lock:
            self._stopped = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """Raises `Cancelled` if the request was withdrawn."""
        if self._stopped:
            raise Cancelled("The request was cancelled.")

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """While the block runs, a stop calls `callback`; at once if the stop came before."""
        with self._lock:
            stopped = self._stopped
            if not stopped:
                self._callbacks.append(callback)
        if stopped:
            callback()
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._callbacks.remove(callback)
