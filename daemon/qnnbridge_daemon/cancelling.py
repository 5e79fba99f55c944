"""Stops one call of a client wherever it is: before its turn, on its way to the NPU host, or inside of it.

Any thread may cancel, at any time; nobody waits for what comes of it. What was cancelled stays so: whoever begins
the next step of the call looks first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from qnnbridge_protocol.errors import Cancelled


class Cancellation:
    """Belongs to one call. A `qnnbridge._terminate_relay.Terminable`, and what a `StopHandle` attaches."""

    __slots__ = ("_listeners", "_lock", "_terminate")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._terminate = False
        self._listeners: list[Callable[[], None]] = []

    @property
    def terminate(self) -> bool:
        return self._terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if value:
            self.stop()

    def stop(self) -> None:
        """Cancel. Returns at once."""
        with self._lock:
            if self._terminate:
                return
            self._terminate = True
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def check(self) -> None:
        """Raises `Cancelled`."""
        if self._terminate:
            raise Cancelled("The request was cancelled before it started.")

    def on_stop(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Called when it is cancelled, at once if it was; must not wait. Returns what takes it away again."""
        with self._lock:
            stopped = self._terminate
            if not stopped:
                self._listeners.append(listener)
        if stopped:
            listener()
        return lambda: self._remove(listener)

    def add_terminate_listener(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """As that of `RunOptions`. This one may wait: it asks the NPU host, and has a thread for that."""

        def ask() -> None:
            threading.Thread(target=listener, args=(True,), name="qnnbridge cancel", daemon=True).start()

        with self._lock:
            self._listeners.append(ask)
        return lambda: self._remove(ask)

    def _remove(self, listener: Callable[[], Any]) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
