"""Settings, counters and the memory budget of the fast path of one `Host`. Imports no heavy module."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable

from qnnbridge._platform import CHANNELS, MEMORY
from qnnbridge_protocol.hello import FEATURES, SHARING_FEATURES

# Slabs without a channel that the application still uses. Beyond that, results are copied.
MAX_KEPT_SLABS = 64

# Each keeps a descriptor open, because the next host has to be shown it.
MAX_ARRAY_SLABS = 256


class Budget:
    """How much memory one `Host` shares with its processes, all generations together.

    Two accounts have a limit of `limit` bytes each: slabs of channels (including those that the application still
    uses after their channel or host is gone), and arrays that the application requested. They are separate so that
    neither starves the other: without a slab for its small tensors no call is fast. Beyond the limit tensors travel
    in the pipes, and arrays are ordinary ones.

    Any thread. Finalizers do not call it: the next request for memory looks for freed slabs (`sweep`).
    """

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
        """Whether another result may be borrowed. A limit protects applications that keep all results."""
        if len(self._kept) >= MAX_KEPT_SLABS:
            self.sweep()
        return len(self._kept) < MAX_KEPT_SLABS

    def take(self, size: int) -> bool:
        """Take memory for a slab of a channel. False beyond the limit."""
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
        """Keep counting a slab whose channel is closed while the application still uses it."""
        with self._lock:
            self._kept.append((size, is_free))

    def sweep(self) -> None:
        """Stop counting kept slabs that the application no longer uses."""
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


# Environment variable: 0 switches shared memory off.
SHARED_MEMORY = "QNNBRIDGE_SHARED_MEMORY"

# Limit of one `Host` for channels, and the same again for the application's arrays.
MEMORY_LIMIT_BYTES = 1 << 30

# Slab numbers are unique in the process, since the application's arrays are shown to several hosts.
_numbers = itertools.count(1)


def next_slab_number() -> int:
    return next(_numbers)


class Sharing:
    """Settings and counters of one `Host`, for all its generations. Any thread.

    Args:
        channels: use fast channels.
        memory_limit: bytes of shared memory, see `Budget`; 0 switches shared memory off.
        spin: callers poll for some microseconds before they sleep.
    """

    def __init__(self, *, channels: bool = True, memory_limit: int, spin: bool = False) -> None:
        self.budget = Budget(memory_limit)
        # Frees unused memory of the application's arrays; set when the first array is made.
        self.collect: Callable[[], None] | None = None
        self.spin = spin
        self.why_not: str | None = (
            None if channels and CHANNELS else "switched off" if CHANNELS else "not on this system"
        )
        self.why_no_memory: str | None = self.why_not
        if self.why_no_memory is None and not (memory_limit and MEMORY):
            self.why_no_memory = "switched off" if MEMORY else "not on this system"
        # Why the last attempt to open a channel or get memory failed. The next may succeed.
        self.last_error: str | None = None
        self.shared_calls = 0
        self.inline_calls = 0
        # Results that were copied because too many are borrowed.
        self.borrows_refused = 0
        # Arrays that are ordinary ones because no memory could be shared.
        self.arrays_refused = 0

    @property
    def memory_status(self) -> str:
        """For `HostStats`."""
        why = self.why_not or self.why_no_memory or self.last_error
        return f"off: {why}" if why else "available"

    def features(self) -> frozenset[str]:
        """The features that this side's HELLO offers."""
        unwanted = SHARING_FEATURES if self.why_not is not None else frozenset[str]()
        if self.why_no_memory is not None:
            unwanted |= {"shm1"}
        return FEATURES - unwanted


def default_sharing(shared_memory: bool | None, spin: bool) -> Sharing:
    """shared_memory: ``None`` leaves it to the environment."""
    if shared_memory is None:
        shared_memory = os.environ.get(SHARED_MEMORY) != "0"
    return Sharing(memory_limit=MEMORY_LIMIT_BYTES if shared_memory else 0, spin=spin)
