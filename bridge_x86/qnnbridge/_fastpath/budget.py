"""How much memory one `Host` shares with its processes, all generations together, and when it may have more.

Two accounts with a limit each: slabs of channels (also those that the application still looks at when their
channel, or their host, is gone), and arrays that the application asked for. They are kept apart so that neither can
starve the other: without a slab for its small tensors no call is quick. What is over a limit is not shared: tensors
travel in the pipes, arrays are ordinary ones.

Any thread. Finalizers do not get here: whoever asks for memory next looks for what came back (`sweep`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

MAX_KEPT_SLABS = 64
"""Slabs without a channel that the application still looks at. Beyond that, results are copied."""

MAX_ARRAY_SLABS = 256
"""Each costs the application a descriptor, because the next host has to be shown it."""


class Budget:
    """See the module. limit: bytes of each account."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._channel_bytes = 0
        self._array_bytes = 0
        self._array_slabs = 0
        self._kept: list[tuple[int, Callable[[], bool]]] = []

    @property
    def bytes(self) -> int:
        return self._channel_bytes + self._array_bytes

    @property
    def may_borrow(self) -> bool:
        """Whether another result may be borrowed: an application that keeps them all would end without memory."""
        if len(self._kept) >= MAX_KEPT_SLABS:
            self.sweep()
        return len(self._kept) < MAX_KEPT_SLABS

    def take(self, size: int) -> bool:
        """For a slab of a channel. False if that were too much."""
        if self._channel_bytes + size > self.limit:
            self.sweep()
        with self._lock:
            if self._channel_bytes + size > self.limit:
                return False
            self._channel_bytes += size
        return True

    def give(self, size: int) -> None:
        with self._lock:
            self._channel_bytes -= size

    def keep(self, size: int, is_free: Callable[[], bool]) -> None:
        """A slab lost its channel while the application looks at it: it still counts."""
        with self._lock:
            self._kept.append((size, is_free))

    def sweep(self) -> None:
        """Look for kept slabs that nobody looks at any more."""
        with self._lock:
            still = []
            for size, is_free in self._kept:
                if is_free():
                    self._channel_bytes -= size
                else:
                    still.append((size, is_free))
            self._kept = still

    def take_array(self, size: int) -> bool:
        with self._lock:
            if self._array_bytes + size > self.limit or self._array_slabs >= MAX_ARRAY_SLABS:
                return False
            self._array_bytes += size
            self._array_slabs += 1
        return True

    def give_array(self, size: int) -> None:
        with self._lock:
            self._array_bytes -= size
            self._array_slabs -= 1
