"""How much of the quick way is used, and what it did. Imports nothing heavy."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

from qnnbridge._fastpath.budget import Budget
from qnnbridge._platform import CHANNELS, MEMORY
from qnnbridge_protocol.hello import FEATURES, SHARING_FEATURES

SHARED_MEMORY = "QNNBRIDGE_SHARED_MEMORY"
"""Environment variable; 0 switches shared memory off."""

MEMORY_LIMIT_BYTES = 1 << 30
"""Of one `Host`: for channels, and as much again for the arrays that the application asks for."""

_numbers = itertools.count(1)
"""Of slabs; the application's own arrays are shown to several hosts, so their numbers are good for all."""


def next_slab_number() -> int:
    return next(_numbers)


class Sharing:
    """What is used of it, and what it did: belongs to one `Host`, for all its generations. Any thread.

    memory_limit: bytes of shared memory, see `Budget`; 0 switches shared memory off.
    spin: callers ask without pause for some microseconds before they sleep.
    """

    def __init__(self, *, channels: bool = True, memory_limit: int, spin: bool = False) -> None:
        self.budget = Budget(memory_limit)
        self.collect: Callable[[], None] | None = None
        """Gives back what the application's own arrays do not need any more, once there are any."""
        self.spin = spin
        self.why_not: str | None = (
            None if channels and CHANNELS else "switched off" if CHANNELS else "not on this system"
        )
        self.why_no_memory: str | None = self.why_not
        if self.why_no_memory is None and not (memory_limit and MEMORY):
            self.why_no_memory = "switched off" if MEMORY else "not on this system"
        self.last_error: str | None = None
        """Why the last attempt to have a channel, or memory, came to nothing. The next may go well."""
        self.shared_calls = 0
        self.inline_calls = 0
        self.borrows_refused = 0
        """Results that were copied because too many were borrowed already."""
        self.arrays_refused = 0
        """Arrays that the application asked for and that are ordinary ones, for want of memory to share."""

    @property
    def memory_in_words(self) -> str:
        """For `HostStats`."""
        why = self.why_not or self.why_no_memory or self.last_error
        return f"off: {why}" if why else "available"

    def features(self) -> frozenset[str]:
        """What our HELLO offers."""
        unwanted = SHARING_FEATURES if self.why_not is not None else frozenset[str]()
        if self.why_no_memory is not None:
            unwanted |= {"shm1"}
        return FEATURES - unwanted


def default_sharing(shared_memory: bool | None, spin: bool) -> Sharing:
    """shared_memory: ``None`` leaves it to the environment."""
    if shared_memory is None:
        shared_memory = os.environ.get(SHARED_MEMORY) != "0"
    return Sharing(memory_limit=MEMORY_LIMIT_BYTES if shared_memory else 0, spin=spin)
