"""The fast channels of one host process: opened when a call finds none free, closed when they are unused for a
while.

The channel used last is used first, so a single caller always has the same one, and channels of a past burst are
recognised as idle. Without channels or shared memory `Sharing` tells why, and calls take another way.

Threads: any. Taking and returning a channel are single operations on a deque; everything rare is under a lock. A
maintenance thread serves idle channels, callers without an answer, and answers of abandoned calls. It exists
while there are channels, and does not keep the pool alive.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from qnnbridge._fastpath import channel as fast_channel
from qnnbridge._fastpath.channel import ChannelEnded, ChannelTimeout, FastChannel
from qnnbridge._fastpath.memory import Slab, slab_size
from qnnbridge._fastpath.plans import CallPlans, NoSharedMemory
from qnnbridge._fastpath.sharing import Sharing, next_slab_number
from qnnbridge._platform import ChannelStreams, ShareHandle, _fds, reclaim
from qnnbridge._transport.channel import ChannelRetired, Deadline
from qnnbridge._transport.open_requests import NO_CONTEXT, ChannelFailed
from qnnbridge_protocol.errors import BridgeError, InvalidArgument, ProtocolDesync
from qnnbridge_protocol.fastpath import MAX_CHANNELS, PHASE_RECORD_BYTES, PHASE_SLAB_BYTES

if TYPE_CHECKING:
    from qnnbridge._transport.channel import Channel


# A channel unused for this many intervals of `channel.LOOK_INTERVAL_S` is closed and its memory freed.
TRIM_LOOKS = 2

# Interval between two looks for answers of abandoned calls. Until such an answer is read, the host and the NPU may
# be blocked.
LATE_INTERVAL_S = 0.1


class WakeEvent:
    """Wakes the maintenance thread. Any thread, also a signal handler that interrupts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it is already awake and has not looked yet

    def wait(self, timeout_s: float) -> None:
        self._lock.acquire(timeout=max(0.0, timeout_s))


class Maintained(Protocol):
    """An object that the maintenance thread serves. Any thread may call."""

    closed: bool

    def take_in(self) -> bool:
        """Read answers of abandoned calls. Whether more may come."""

    def look(self, under_way: dict[int, int]) -> None:
        """Look after waiting callers; `under_way`: its notes of the last look."""

    def trim(self, seen: dict[int, int]) -> bool:
        """Close unused channels; `seen`: its notes of the last look. False if nothing is left to look after."""


def maintain(reference: weakref.ref[Maintained], wake: WakeEvent) -> None:
    """The maintenance thread. wake: set when the pool is closed, and when a call is abandoned."""
    under_way: dict[int, int] = {}
    seen: dict[int, int] = {}
    looks = 0
    late = False
    next_look = time.monotonic() + fast_channel.LOOK_INTERVAL_S
    while True:
        left_s = next_look - time.monotonic()
        wake.wait(min(left_s, LATE_INTERVAL_S) if late else left_s)
        pool = reference()
        if pool is None or pool.closed:
            return
        late = pool.take_in()
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + fast_channel.LOOK_INTERVAL_S
            pool.look(under_way)
            looks += 1
            if looks % TRIM_LOOKS == 0 and not pool.trim(seen):
                return
        del pool


# Channels of abandoned calls come on top, up to the host's limit.
MAX_OPEN_CHANNELS = 32

# Time before another attempt after a channel could not be opened.
RETRY_S = 1.0


class ChannelPool:
    """See the module. Also the `SlabSource` of the plans."""

    def __init__(self, connection: Channel, sharing: Sharing, on_look: Callable[[], ChannelFailed | None]) -> None:
        self._connection = connection
        self._requests = connection.requests
        self._sharing = sharing
        self._on_look = on_look
        self._forks = _fds.forks
        self._lock = threading.RLock()
        # Held while the host attaches memory that several callers may want to attach, which may take long.
        # Re-entrant locks know their owner, so Ctrl+C between taking it and entering the block cannot leave it
        # taken.
        self._attaching = threading.RLock()
        # Idle channels; the one used last is the last.
        self.idle: collections.deque[CallPlans] = collections.deque()
        self._all: dict[int, CallPlans] = {}
        self._abandoned: list[CallPlans] = []
        self._kept: list[object] = []
        self._slots = list(range(MAX_CHANNELS))
        self._channel_numbers = itertools.count(1)
        self._attached: set[int] = set()
        # Slabs that the host may have attached, or may still attach: its reply did not come in time.
        self._unsure: set[int] = set()
        self._next_try = 0.0
        self._phases: Slab | None = None
        self._trimmer: threading.Thread | None = None
        self._wake = WakeEvent()
        self.closed = False
        connection.requests.on_left = self._wake

    def __len__(self) -> int:
        return len(self._all)

    def take(self, deadline: float | None) -> CallPlans | None:
        """A channel for the calling thread alone; ``None`` if none is available.

        Raises the errors that end a call on the connection.
        """
        if self._forks != _fds.forks:
            return None
        try:
            return self.idle.pop()
        except IndexError:
            return self._open(deadline)

    def ping(self, deadline: float | None) -> bool:
        """Ask the host for a sign of life. False if no channel is idle, or the channel has ended."""
        try:
            plans = self.idle.pop() if self._forks == _fds.forks else None
        except IndexError:
            return False
        if plans is None:
            return False
        channel = plans.channel
        channel.context = NO_CONTEXT
        try:
            channel.ping(deadline)
            return True
        except ChannelEnded:
            return False
        except ChannelTimeout:
            raise Deadline("still-running") from None
        except ProtocolDesync as error:
            raise self._connection.fail(error) from None
        finally:
            self.give_back(plans)

    def give_back(self, plans: CallPlans) -> None:
        """Return a channel after a call, successful or not."""
        channel = plans.channel
        channel.busy = False
        if channel.broken or self.closed:
            self._retire(plans)
        else:
            self.idle.append(plans)
            if self.closed:
                self._close_idle()
        if self._requests.idle_wanted:
            self._requests.channel_is_free()

    def abandon(self, plans: CallPlans, pinned: object = None) -> None:
        """Abandon the running call. The host may continue it, and write to `pinned`."""
        plans.pinned = pinned
        with self._lock:
            plans.channel.abandoned = True
            self._abandoned.append(plans)
            if not plans.channel.records:  # the next frame may be a phase, not the answer
                self._kept.append(plans.pinned)
        if self.closed:
            self._close_abandoned()
        if self._requests.idle_wanted:
            self._requests.channel_is_free()
        self._wake()

    def take_in(self) -> bool:
        """Read the arrived answers of abandoned calls. Returns whether more may arrive."""
        self._connection.take_in()
        self.reap()
        return self._requests.abandoned

    def reap(self) -> None:
        """Close the channels of abandoned calls whose answers have arrived."""
        with self._lock:
            over = [plans for plans in self._abandoned if plans.channel.answered()]
            for plans in over:
                self._abandoned.remove(plans)
        for plans in over:
            plans.channel.busy = False
            self._retire(plans)

    def close(self) -> None:
        """The host is gone: close all channels. A caller closes the channel that it still has."""
        self.closed = True
        self._wake()
        self._close_idle()
        self._close_abandoned()

    def _close_abandoned(self) -> None:
        with self._lock:
            abandoned, self._abandoned = self._abandoned, []
            self._kept.clear()
        for plans in abandoned:
            plans.channel.busy = False
            self._retire(plans)

    # --- opening and closing ---

    def _open(self, deadline: float | None) -> CallPlans | None:
        sharing = self._sharing
        agreement = self._connection.agreement
        if sharing.why_not is not None or self.closed or agreement is None or time.monotonic() < self._next_try:
            return None
        if "fast1" not in agreement.features:
            sharing.why_not = "the host has none, or belongs to another system"
            return None
        if self._abandoned:
            self.reap()
        with self._lock:
            if not self._slots or len(self._all) - len(self._abandoned) >= MAX_OPEN_CHANNELS:
                return None
            slot = self._slots.pop(0)
        plans = None
        try:
            plans = self._open_in(slot, deadline)
        except (BridgeError, OSError) as error:
            # For example out of descriptors: calls use the connection until that passes.
            sharing.last_error, self._next_try = str(error), time.monotonic() + RETRY_S
        finally:
            if plans is None:
                with self._lock:
                    self._slots.insert(0, slot)
        return plans

    def _open_in(self, slot: int, deadline: float | None) -> CallPlans:
        number = next(self._channel_numbers)
        phases = self._phase_slab(deadline)
        streams = ChannelStreams()
        try:
            read, write = streams.share_handles(self._connection.peer.pid)
            header = {"op": "channel.open", "channel": number, "slot": slot, "phases": phases and phases.number}
            self._give(header, {"read": read, "write": write}, deadline)
            streams.opened()
        except BaseException:
            streams.close()
            raise
        record = None
        if phases is not None:
            at = slot * PHASE_RECORD_BYTES
            record = phases.data.data[at : at + PHASE_RECORD_BYTES]
        else:
            streams.enlarge()
        agreement = self._connection.agreement
        assert agreement is not None
        channel = FastChannel(
            number, slot, streams, agreement.limits, self._on_look, record, eager=self._sharing.spin
        )
        plans = CallPlans(channel, self, shared=self._shares_memory)
        with self._lock:
            self._all[number] = plans
            self._requests.channels[number] = channel
            if self._trimmer is None:
                self._trimmer = threading.Thread(
                    target=maintain, args=(weakref.ref(self), self._wake), name="qnnbridge channels", daemon=True
                )
                self._trimmer.start()
        return plans

    def _retire(self, plans: CallPlans) -> None:
        channel = plans.channel
        with self._lock:
            if self._all.pop(channel.number, None) is None:
                return
            self._requests.channels.pop(channel.number, None)
            self._slots.append(channel.slot)
        channel.close()
        plans.close()

    def _close_idle(self) -> None:
        while self.idle:
            try:
                plans = self.idle.pop()
            except IndexError:
                return
            self._retire(plans)

    def forget(self, number: int) -> None:
        """Release a slab of the application's arrays."""
        with self._lock:
            known = number in self._attached or number in self._unsure
            self._attached.discard(number)
            self._unsure.discard(number)
        if known:
            self._release(number)

    def look(self, under_way: dict[int, int]) -> None:
        """Check for callers that wait in a read whether the host can answer at all.

        under_way: the calls that were waited for at the last look, by channel.
        """
        with self._lock:
            blocked = [plans.channel for plans in self._all.values() if plans.channel.blocked]
        stuck = any(under_way.get(channel.number) == channel.calls for channel in blocked)
        under_way.clear()
        under_way.update((channel.number, channel.calls) for channel in blocked)
        if stuck and self._on_look() is not None:
            for channel in blocked:
                channel.wake_reader()

    def trim(self, seen: dict[int, int]) -> bool:
        """Close channels that were unused since the last look, or are much too large for their calls.

        seen: the number of the last call of each channel at the last look. Returns False if nothing is left to look
        after.
        """
        self.take_in()
        for _ in range(len(self.idle)):
            try:
                plans = self.idle.popleft()
            except IndexError:
                break
            if seen.get(plans.channel.number) == plans.channel.calls or plans.outgrown():
                self._retire(plans)
            else:
                self.idle.append(plans)
        if self._sharing.collect is not None:
            self._sharing.collect()
        self._sharing.budget.sweep()
        self._connection.one_way.send()
        seen.clear()
        with self._lock:
            seen.update((number, plans.channel.calls) for number, plans in self._all.items())
            if not self._all and not self._attached and not self._connection.one_way:
                self._trimmer = None
                return False
        return True

    # --- memory ---

    def _shares_memory(self) -> bool:
        return self._sharing.why_no_memory is None

    def new_slab(self, wanted: int, deadline: float | None, *, host_writes: bool) -> Slab:
        size = slab_size(wanted)
        budget = self._sharing.budget
        if not budget.take(size):
            raise NoSharedMemory
        try:
            slab = Slab(next_slab_number(), size, host_writes=host_writes)
            self._attach(slab, deadline)
        except BaseException as error:
            budget.give(size)
            if isinstance(error, Deadline):
                self.forget(slab.number)
            if isinstance(error, (BridgeError, OSError)):
                self._sharing.last_error = str(error)
                raise NoSharedMemory from None
            raise
        slab.close()
        self._sharing.last_error = None
        return slab

    def drop_slab(self, slab: Slab) -> None:
        if slab.borrows.free():
            self._sharing.budget.give(slab.size)
        else:
            self._sharing.budget.keep(slab.size, slab.borrows.free)
        self._release(slab.number)

    def show(self, slab: Slab, deadline: float | None) -> None:
        if slab.number in self._attached:
            return
        with self._one_at_a_time(deadline):
            if slab.number not in self._attached:
                try:
                    (self._attach_again if slab.number in self._unsure else self._attach)(slab, deadline)
                except (BridgeError, OSError) as error:
                    self._sharing.last_error = str(error)
                    raise NoSharedMemory from None
                with self._lock:
                    self._attached.add(slab.number)

    @contextlib.contextmanager
    def _one_at_a_time(self, deadline: float | None) -> Iterator[None]:
        try:
            if not self._attaching.acquire(
                timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())
            ):
                raise Deadline("not-started")
            yield
        finally:
            try:
                self._attaching.release()
            except RuntimeError:  # another thread has it
                pass

    def _attach(self, slab: Slab, deadline: float | None) -> None:
        share_handle = slab.share_handle(self._connection.peer.pid)
        header = {"op": "slab.attach", "slab": slab.number, "size": slab.size, "host_writes": slab.host_writes}
        try:
            self._give(header, {"where": share_handle}, deadline)
        except Deadline:
            self._unsure.add(slab.number)
            raise

    def _give(self, header: dict[str, Any], share_handles: dict[str, ShareHandle], deadline: float | None) -> None:
        """Send a request that carries share handles: the host owns them once it is told, whatever it answers."""
        sent: list[int] = []
        try:
            self._connection.call({**header, **share_handles}, deadline=deadline, on_sent=sent.append)
        except (Deadline, ChannelRetired, BridgeError) as error:
            # A request that was written in part arrives with the next frame.
            if not sent and not (isinstance(error, Deadline) and error.state == "still-running"):
                for share_handle in share_handles.values():
                    reclaim(share_handle, self._connection.peer.pid)
            raise

    def _attach_again(self, slab: Slab, deadline: float | None) -> None:
        """Attach a slab after an attach that timed out: release it first, and again if the late attach came in
        between."""
        for last in (False, True):
            self._connection.call({"op": "slab.release", "slab": slab.number}, deadline=deadline)
            try:
                self._attach(slab, deadline)
                break
            except InvalidArgument:
                if last:
                    raise
        self._unsure.discard(slab.number)

    def _release(self, number: int) -> None:
        if not self.closed:
            self._connection.one_way.add({"op": "slab.release", "slab": number})

    def _phase_slab(self, deadline: float | None) -> Slab | None:
        agreement = self._connection.agreement
        if not self._shares_memory() or agreement is None or "shm1" not in agreement.features:
            self._sharing.why_no_memory = self._sharing.why_no_memory or "the host has none"
            return None
        with self._one_at_a_time(deadline):
            if self._phases is None:
                try:
                    slab = Slab(next_slab_number(), PHASE_SLAB_BYTES, host_writes=True)
                    self._attach(slab, deadline)
                    slab.close()
                except Deadline:
                    self.forget(slab.number)
                    raise
                except (BridgeError, OSError) as error:
                    self._sharing.last_error = str(error)
                    return None
                self._phases = slab
            return self._phases


__all__ = ["ChannelPool", "Maintained", "WakeEvent", "maintain"]
