"""The fast path: repeated calls, with tensors in memory that both processes have mapped.

Theory of operation. The first call uses the connection (`replay`), which checks it and reports the types and shapes
of its outputs. `KnownCalls` stores these, and a later call with the same inputs, outputs, types and shapes uses a
*channel*: two separate pipes, on which a call is 32 bytes and its answer 32 bytes. A *plan* gives these bytes their
meaning: the host has bound the session's inputs and outputs to fixed places in shared memory.

Each channel has a dictionary of plans (`ChannelPlans.plans`). Its key contains

- the session, by its number in that host process (a channel belongs to one process, and numbers are not reused);
- the requested outputs: ``None`` for all, otherwise their names in order;
- of each input its name, type, shape, and *place*: the application's block of shared memory that the host reads
  directly, or ``None`` for any other array, which is copied into the channel's memory with each call;
- of each output its place, in the same way, and the type and shape of an array that the application gives for it.

Nothing else can matter. The host reads exactly the given bytes of shared memory: arrays without a place are copied
there with every call, whatever object, layout or address they have, and a place is the number of a piece of memory
(never reused) and the offset in it, together with type and shape. The model's answer decides the outputs: the host
compares it with the plan; an answer of another type or shape arrives as values and moves the call to the connection
permanently (`CallSignature.slow`). No "last" plan is cached: each call searches the dictionary.

Everything irregular uses the connection, which checks, explains and repeats: another class of array, empty and
string tensors, a suspected model, a restart, no shared memory. A failure here is passed to the connection with its
process (`FastCallFailed`).

Signal handlers may raise an exception at any place. So resources follow from living objects, not from counters
and lists: a channel belongs to the holder of its `ChannelPlans`, memory counts as long as its `MemoryReservation`
lives, and a block is free when its array is gone. The maintenance thread closes a channel that an exception dropped
between two lines, or whose call was given up, once the host does not use its memory any more.

`_session.fast_calls` makes the call, `call` contains the key, `channel` the pipes and the plans; `channel_pool`
opens and closes channels, `memory` provides the shared memory, `_io_binding` the values of bindings.
Settings, counters and limits of memory are here, since a host needs them before anything heavy is imported.

Sessions and the daemon call the package. It imports `_transport`, `qnnbridge_os` and `_values.feed_rules`.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable

from qnnbridge_os.native import Lock
from qnnbridge_os.processes import CHANNELS, MEMORY
from qnnbridge_protocol.connection import FEATURES, SHARING_FEATURES

# Maximum number of slabs of arrays. Each keeps a descriptor open, with which the next host maps the memory, and a
# process on Linux usually has at most 1,024 descriptors.
MAX_ARRAY_SLABS = 256

# Environment variable: 0 disables shared memory.
SHARED_MEMORY = "QNNBRIDGE_SHARED_MEMORY"

# Limit of one `Host` for channels, and the same again for the application's arrays.
MEMORY_LIMIT_BYTES = 1 << 30


class MemoryReservation:
    """Reservation of one piece of shared memory; it counts as long as this object lives."""

    __slots__ = ("__weakref__", "size")

    def __init__(self, size: int) -> None:
        self.size = size


class Budget:
    """Amount of memory that one `Host` shares for one purpose, all generations together. Thread-safe.

    The used amount is the sum over the living reservations; not a counter, which an exception could leave
    wrong.
    """

    def __init__(self, limit: int, most: int | None = None) -> None:
        """Initialize.

        Args:
            limit: in bytes.
            most: number of pieces.
        """
        self._limit = limit
        self._most = most
        self._lock = Lock()
        self._reservations: dict[int, weakref.ref[MemoryReservation]] = {}

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(reservation.size for reservation in self._living())

    def take(self, size: int) -> MemoryReservation | None:
        """Reserve memory; return ``None`` beyond the limit."""
        with self._lock:
            living = self._living()
            if sum(reservation.size for reservation in living) + size > self._limit or len(living) == self._most:
                return None
            reservation = MemoryReservation(size)
            # The id of a dead object may be reused; then the dead entry is replaced.
            self._reservations[id(reservation)] = weakref.ref(reservation)
            return reservation

    def _living(self) -> list[MemoryReservation]:
        living = []
        for number, reference in list(self._reservations.items()):
            reservation = reference()
            if reservation is None:
                del self._reservations[number]
            else:
                living.append(reservation)
        return living


# Slab numbers are unique in the process, because several hosts attach the application's arrays.
slab_numbers = itertools.count(1)


class Sharing:
    """Settings and counters of one `Host`, for all its generations. Thread-safe.

    Channels and arrays have separate budgets, so that neither starves the other: without memory for its small
    tensors no call is fast.

    Args:
        memory_limit: bytes of shared memory for channels, and again for arrays; 0 disables shared memory.
        spin: callers poll for some microseconds before they sleep.
    """

    def __init__(self, *, memory_limit: int, spin: bool = False) -> None:
        self.channel_memory = Budget(memory_limit)
        self.array_memory = Budget(memory_limit, MAX_ARRAY_SLABS)
        # Function that frees unused memory of the application's arrays; set when the first array is created.
        self.collect: Callable[[], None] | None = None
        self.spin = spin
        # If disabled in HELLO, the host is never asked for channels or memory.
        self.why_not: str | None = None if memory_limit else "switched off"
        if not (CHANNELS and MEMORY):
            self.why_not = "not on this system"
        # Error of the last attempt to open a channel or get memory. The next attempt may succeed.
        self.last_error: str | None = None
        self.shared_calls = 0
        # Number of results that were copied for lack of memory that the application could keep.
        self.borrows_refused = 0
        # Number of arrays that are ordinary because no memory could be shared.
        self.arrays_refused = 0

    @property
    def bytes(self) -> int:
        return self.channel_memory.bytes + self.array_memory.bytes

    @property
    def memory_status(self) -> str:
        """Value for `HostStats`."""
        why = self.why_not or self.last_error
        return f"off: {why}" if why else "available"

    def features(self) -> frozenset[str]:
        """Return the features that this side's HELLO offers."""
        return FEATURES - (SHARING_FEATURES if self.why_not is not None else frozenset[str]())


def default_sharing(shared_memory: bool | None, spin: bool) -> Sharing:
    """Return the settings. `shared_memory`: ``None`` lets the environment variable decide."""
    if shared_memory is None:
        shared_memory = os.environ.get(SHARED_MEMORY) != "0"
    return Sharing(memory_limit=MEMORY_LIMIT_BYTES if shared_memory else 0, spin=spin)
