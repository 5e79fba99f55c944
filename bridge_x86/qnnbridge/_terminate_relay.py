"""Hands ``RunOptions.terminate = True`` on to the host while a run is under way.

Owns nothing but the listener on the options, for as long as the run lasts. The thread that runs enters and leaves
it, the thread that assigns `terminate` comes in through the listener.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from qnnbridge._transport.channel import CANCEL_TIMEOUT_S, ChannelFailed, ChannelRetired, Deadline
from qnnbridge_protocol.errors import BridgeError

if TYPE_CHECKING:
    from qnnbridge._transport.host_process import HostProcess


class Terminable(Protocol):
    """Says when a run is to stop; `RunOptions` is one. `terminate`: whether it is."""

    @property
    def terminate(self) -> bool: ...

    def add_terminate_listener(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """What to call when `terminate` is assigned; returns what takes the listener away again."""


class TerminateRelay:
    """A context manager around the call of a run; entered, it is what `Channel.call` takes as ``on_sent``."""

    def __init__(self, options: Terminable | None, process: HostProcess, told: bool) -> None:
        """told: the request itself says that it is to be stopped at once."""
        self._options = options
        self._told = told
        self._process = process
        self._request_id = 0
        self._remove: Callable[[], None] | None = None

    def __enter__(self) -> Callable[[int], None] | None:
        if self._options is None:
            return None
        self._remove = self._options.add_terminate_listener(self._on_terminate)
        return self._on_sent

    def __exit__(self, *_: object) -> None:
        if self._remove is not None:
            self._remove()

    def _on_sent(self, request_id: int) -> None:
        self._request_id = request_id
        if self._options is not None and self._options.terminate and not self._told:
            # Assigned before there was a number to send; and also before the listener, so no other thread does it.
            self._on_terminate(True)

    def _on_terminate(self, terminate: bool) -> None:
        if terminate and self._request_id:
            try:
                self._process.channel.cancel(self._request_id, time.monotonic() + CANCEL_TIMEOUT_S)
            except (BridgeError, ChannelFailed, ChannelRetired, Deadline):
                pass  # the run itself reports what happened
