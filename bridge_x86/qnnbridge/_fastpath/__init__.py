"""The fast path: repeated calls, with tensors in memory that both processes have mapped.

Theory of operation. A call goes by the connection (`replay`) first, which checks it, and reports the types and
shapes of its outputs. `KnownCalls` keeps these, and a later call with the same names, types and shapes takes a
*channel*: two pipes of its own, on which a call is 32 bytes there and 32 bytes back. What those bytes mean was
agreed before, as a *plan*: the host has bound the session's inputs and outputs to fixed places in shared memory.

One dictionary decides whether a plan serves a call: `ChannelPlans`, one for each channel. Its key has

- the session, by its number in that host process (a channel belongs to one process, and numbers are not used
  twice);
- the outputs asked for: ``None`` for all, else their names in order;
- of each input its name, type, shape, and *place*: the application's block of shared memory that the host reads
  itself, or ``None`` for any other array, which is copied into the channel's memory with each call;
- of each output its place, in the same way.

Nothing else can matter. The host reads the named bytes of shared memory, and no others: arrays without a place are
copied there with every call, whatever object, layout or address they have, and a place is the number of a piece of
memory (never used twice) with the offset in it, together with type and shape. Of outputs the model's answer is what
counts: the host compares it with the plan, and an answer of another type or shape comes as values, and sends the
call to the connection for good (`CallSignature.slow`). Nothing is remembered as "last": each call looks its plan
up.

Everything irregular goes by the connection, which checks, explains and repeats: another class of array, empty and
string tensors, a suspected model, a restart, no shared memory. A failure here goes there together with its process
(`FastCallFailed`).

Signal handlers may raise at any place. So what is held follows from what lives, not from counters and lists: a
channel belongs to the holder of its `ChannelPlans`, memory counts as long as its `Room` lives, a piece of a block
is free when its array is gone. What an exception dropped between two lines is found by the maintenance thread.

`_session.fast_calls` makes the call, `call` has the key, `channel` the pipes and the plans, `channel_pool` opens
and closes channels, `memory` has the shared memory, `_io_binding` the values of bindings. Settings,
counters and limits of memory are here, since a host needs them before anything heavy is imported.

Sessions and the daemon call it. The folder imports `_transport`, `qnnbridge_os` and `_feed_rules`.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable

from qnnbridge_os.native import Lock
from qnnbridge_os.processes import CHANNELS, MEMORY
from qnnbridge_protocol.connection import FEATURES, SHARING_FEATURES

# Far below the usual limit of 1,024 descriptors of a process on Linux.
# Each piece of arrays keeps a descriptor open, because the next host has to be shown it.
MAX_ARRAY_SLABS = 256

# Environment variable: 0 switches shared memory off.
SHARED_MEMORY = "QNNBRIDGE_SHARED_MEMORY"

# Limit of one `Host` for channels, and the same again for the application's arrays.
MEMORY_LIMIT_BYTES = 1 << 30


class Room:
    """Room for one piece of shared memory; it is taken for as long as this object lives."""

    __slots__ = ("__weakref__", "size")

    def __init__(self, size: int) -> None:
        self.size = size


class Budget:
    """How much memory one `Host` shares for one purpose, all generations together. Any thread.

    What is taken is the sum over the rooms that live: there is no count that an exception could leave wrong.
    """

    def __init__(self, limit: int, most: int | None = None) -> None:
        """limit: in bytes. most: pieces."""
        self._limit = limit
        self._most = most
        self._lock = Lock()
        self._rooms: dict[int, weakref.ref[Room]] = {}

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(room.size for room in self._living())

    def take(self, size: int) -> Room | None:
        """``None`` beyond the limit."""
        with self._lock:
            living = self._living()
            if sum(room.size for room in living) + size > self._limit or len(living) == self._most:
                return None
            room = Room(size)
            # An id may be used again when its object is gone: then the dead entry is replaced.
            self._rooms[id(room)] = weakref.ref(room)
            return room

    def _living(self) -> list[Room]:
        living = []
        for number, reference in list(self._rooms.items()):
            room = reference()
            if room is None:
                del self._rooms[number]
            else:
                living.append(room)
        return living


# Unique in the process, since the application's arrays are shown to several hosts.
slab_numbers = itertools.count(1)


class Sharing:
    """Settings and counters of one `Host`, for all its generations. Any thread.

    Channels and arrays have a budget each, so that neither starves the other: without memory for its small tensors
    no call is fast.

    Args:
        memory_limit: bytes of shared memory for channels, and again for arrays; 0 switches shared memory off.
        spin: callers poll for some microseconds before they sleep.
    """

    def __init__(self, *, memory_limit: int, spin: bool = False) -> None:
        self.channel_memory = Budget(memory_limit)
        self.array_memory = Budget(memory_limit, MAX_ARRAY_SLABS)
        # Frees unused memory of the application's arrays; set when the first array is made.
        self.collect: Callable[[], None] | None = None
        self.spin = spin
        # Off in HELLO means off for good: the host is not asked for channels or memory at all.
        self.why_not: str | None = None if memory_limit else "switched off"
        if not (CHANNELS and MEMORY):
            self.why_not = "not on this system"
        # Why the last attempt to open a channel or get memory failed. The next may succeed.
        self.last_error: str | None = None
        self.shared_calls = 0
        # Results that were copied because there is no memory for them that the application could keep.
        self.borrows_refused = 0
        # Arrays that are ordinary ones because no memory could be shared.
        self.arrays_refused = 0

    @property
    def bytes(self) -> int:
        return self.channel_memory.bytes + self.array_memory.bytes

    @property
    def memory_status(self) -> str:
        """For `HostStats`."""
        why = self.why_not or self.last_error
        return f"off: {why}" if why else "available"

    def features(self) -> frozenset[str]:
        """The features that this side's HELLO offers."""
        return FEATURES - (SHARING_FEATURES if self.why_not is not None else frozenset[str]())


def default_sharing(shared_memory: bool | None, spin: bool) -> Sharing:
    """shared_memory: ``None`` leaves it to the environment."""
    if shared_memory is None:
        shared_memory = os.environ.get(SHARED_MEMORY) != "0"
    return Sharing(memory_limit=MEMORY_LIMIT_BYTES if shared_memory else 0, spin=spin)
