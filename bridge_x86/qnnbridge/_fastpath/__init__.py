"""The fast path: repeated calls whose tensors are in memory that both processes have mapped.

Theory of operation. The first call uses the connection (`replay`). The host checks the call and reports the types
and shapes of its outputs, which `KnownCalls` stores. A later call with the same inputs, outputs, types and shapes
uses a *channel*: two separate pipes, on which a call is 32 bytes and its answer 32 bytes. The 32 bytes refer to a
*plan*: the host has bound the session's inputs and outputs to fixed places in shared memory.

Each channel has a dictionary of plans (`ChannelPlans.plans`). Its key contains

- the session, by its number in that host process (a channel belongs to one process, and numbers are not reused);
- the requested outputs: ``None`` for all, otherwise their names in order;
- of each input its name, type, shape, and *place*: the application's block of shared memory that the host reads
  directly, or ``None`` for any other array, which is copied into the channel's memory with each call;
- of each output its place, in the same way, and the type and shape of an array that the application gives for it.

Nothing else can affect the result. The host reads exactly the given bytes of shared memory. Arrays without a place
are copied there with every call, whatever object, layout or address they have. A place is the number of a block of
shared memory (never reused) and the offset in it. The host compares the types and shapes of the model's outputs
with the plan. If they differ, it sends the outputs as values, and later calls with this signature use the
connection (`CallSignature.slow`). The last plan is not cached: each call searches the dictionary.

Calls with subclasses of arrays, with empty or string tensors, of models suspected of a crash, after a restart or
without shared memory use the connection, which checks inputs, explains errors and repeats calls. A failure on a
channel is raised as `FastCallFailed` with the host process, and the call is repeated on the connection.

Signal handlers may raise an exception at any line, which could prevent the update of a counter or list. So each
resource is tied to an object, and is released when the object is freed: a channel is in use while its
`ChannelPlans` exists, memory while its `MemoryReservation` exists, and a block while its array exists. If an
exception drops the reference to a channel, or a call was abandoned, the maintenance thread closes it once the host
no longer uses its memory.

`_session.fast_calls` makes the call, `call` contains the key, `channel` contains the pipes and the plans;
`channel_pool` opens and closes channels, `memory` provides the shared memory, `_io_binding` provides the values of
bindings. Settings, counters and memory limits are here, because `Host` needs them without importing NumPy.

Sessions and the daemon use this package, which imports `_transport`, `qnnbridge_os` and `_values.feed_rules`.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable

from qnnbridge_os.native import Lock
from qnnbridge_os.processes import CHANNELS, MEMORY
from qnnbridge_protocol.connection import FEATURES, SHARING_FEATURES

# Maximum number of slabs (allocations of shared memory) for arrays. Each slab keeps a descriptor open, so that the
# next host can map the memory, and a process on Linux usually has at most 1,024 descriptors.
MAX_ARRAY_SLABS = 256

# Environment variable: 0 disables shared memory.
SHARED_MEMORY = "QNNBRIDGE_SHARED_MEMORY"

# Limit of one `Host`'s shared memory for channels. The application's arrays have a second limit of this size.
MEMORY_LIMIT_BYTES = 1 << 30


class MemoryReservation:
    """Reservation of shared memory, which ends when this object is freed."""

    __slots__ = ("__weakref__", "size")

    def __init__(self, size: int) -> None:
        self.size = size


class Budget:
    """Limit of the shared memory that one `Host` uses for channels, or for arrays. Thread-safe.

    The used amount is the sum of the existing reservations, because an exception could make a counter wrong.

    Args:
        limit: maximum number of bytes.
        most: maximum number of reservations.
    """

    def __init__(self, limit: int, most: int | None = None) -> None:
        self._limit = limit
        self._most = most
        self._lock = Lock()
        self._reservations: dict[int, weakref.ref[MemoryReservation]] = {}

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(reservation.size for reservation in self._living())

    def take(self, size: int) -> MemoryReservation | None:
        """Reserve memory; return ``None`` if the limit would be exceeded."""
        with self._lock:
            living = self._living()
            if sum(reservation.size for reservation in living) + size > self._limit or len(living) == self._most:
                return None
            reservation = MemoryReservation(size)
            # Python may reuse the id of a freed reservation; this line then replaces the entry of the freed
            # reservation.
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


# Slab numbers are unique in the process, because successive hosts attach the same arrays of the application.
slab_numbers = itertools.count(1)


class Sharing:
    """Settings and counters of one `Host`, for all its successive processes. Thread-safe.

    Channels and arrays have separate budgets, so that arrays cannot use up the memory that channels need.

    Args:
        memory_limit: maximum bytes for channels, and the same for arrays; 0 disables shared memory.
        spin: whether callers poll for some microseconds before they sleep.
    """

    def __init__(self, *, memory_limit: int, spin: bool = False) -> None:
        self.channel_memory = Budget(memory_limit)
        self.array_memory = Budget(memory_limit, MAX_ARRAY_SLABS)
        # Function that frees unused memory of the application's arrays; set when the first array is created.
        self.collect: Callable[[], None] | None = None
        self.spin = spin
        # Reason why shared memory is disabled, or ``None``. If it is set, HELLO does not offer channels and memory.
        self.why_not: str | None = None if memory_limit else "switched off"
        if not (CHANNELS and MEMORY):
            self.why_not = "not on this system"
        # Error of the last attempt to open a channel or allocate memory. A later attempt may succeed.
        self.last_error: str | None = None
        self.shared_calls = 0
        # Number of results that were copied because no shared memory was left for new arrays.
        self.borrows_refused = 0
        # Number of arrays that were allocated in ordinary memory because no shared memory was left.
        self.arrays_refused = 0

    @property
    def bytes(self) -> int:
        return self.channel_memory.bytes + self.array_memory.bytes

    @property
    def memory_status(self) -> str:
        """Status of shared memory for `HostStats`."""
        why = self.why_not or self.last_error
        return f"off: {why}" if why else "available"

    def features(self) -> frozenset[str]:
        """Return the features that this side's HELLO offers."""
        return FEATURES - (SHARING_FEATURES if self.why_not is not None else frozenset[str]())


def default_sharing(shared_memory: bool | None, spin: bool) -> Sharing:
    """Return the settings of a host. If `shared_memory` is ``None``, use the environment variable."""
    if shared_memory is None:
        shared_memory = os.environ.get(SHARED_MEMORY) != "0"
    return Sharing(memory_limit=MEMORY_LIMIT_BYTES if shared_memory else 0, spin=spin)
