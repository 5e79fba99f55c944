"""Stopping a request from another thread: a flag that is assigned, and what sends the CANCEL of the request.

A request first adds its listener and then reads the flag, so that no assignment falls between the two. Listeners
are called by the assigning thread.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from qnnbridge._transport.channel import CANCEL_TIMEOUT_S, ChannelFailed, ChannelRetired, Deadline
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import BridgeError

if TYPE_CHECKING:
    from qnnbridge._supervision.host_process import HostProcess


class Terminable(Protocol):
    """Says when a request is to stop. `terminate`: whether it is."""

    @property
    def terminate(self) -> bool: ...

    def add_terminate_listener(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """What to call when `terminate` is assigned; returns what takes the listener away again."""


class TerminateFlag:
    """A flag with listeners. Any thread."""

    __slots__ = ("_listeners", "_lock", "_terminate")

    def __init__(self) -> None:
        self._terminate = False
        self._listeners: list[Callable[[bool], None]] = []
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[TerminateFlag], tuple[()]]:
        # Of a pickled session: who could set it is in another process.
        return TerminateFlag, ()

    @property
    def terminate(self) -> bool:
        return self._terminate

    def assign(self, value: bool) -> None:
        with self._lock:
            self._terminate = value
            listeners = list(self._listeners)
        # Outside the lock: a listener may send a frame or take locks of its own.
        for listener in listeners:
            listener(value)

    def add_terminate_listener(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Call `listener` with each value assigned from now on; it must not raise.

        Returns what removes it again.
        """
        with self._lock:
            self._listeners.append(listener)

        def remove() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return remove


class TerminateRelay:
    """A context manager around a request; entered, it is what `Channel.call` takes as ``on_sent``."""

    def __init__(self, options: Terminable | None, process: HostProcess, ends_at_once: bool = False) -> None:
        """ends_at_once: the request itself says that it is to be stopped at once."""
        self._options = options
        self._ends_at_once = ends_at_once
        self._process = process
        self._request_id = 0
        self._remove: Callable[[], None] | None = None

    def __enter__(self) -> Callable[[int], None] | None:
        if self._options is None:
            return None
        # An exception of a signal handler may come before `__exit__`: a listener that is left behind does nothing.
        me = weakref.ref(self)

        def listener(terminate: bool) -> None:
            relay = me()
            if relay is not None:
                relay._on_terminate(terminate)

        self._remove = self._options.add_terminate_listener(listener)
        return self._on_sent

    def __exit__(self, *_: object) -> None:
        remove, self._remove = self._remove, None  # it holds this object: no circle is left behind
        if remove is not None:
            remove()

    def _on_sent(self, request_id: int) -> None:
        self._request_id = request_id
        if self._options is not None and self._options.terminate and not self._ends_at_once:
            # Assigned before there was a number to send; and also before the listener, so no other thread does it.
            self._on_terminate(True)

    def _on_terminate(self, terminate: bool) -> None:
        if terminate and self._request_id:
            try:
                self._process.channel.cancel(self._request_id, time.monotonic() + CANCEL_TIMEOUT_S)
            except (BridgeError, ChannelFailed, ChannelRetired, Deadline):
                pass  # the request itself reports what happened


__all__ = ["Terminable", "TerminateFlag", "TerminateRelay"]
