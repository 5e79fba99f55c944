"""The fast channels of one host process: opened when a call finds none free, closed when unused for a while.

The most recently used channel is used first, so a single caller always has the same one, and channels of a past
burst are recognised as idle. Without channels or shared memory `Sharing` contains the reason, and calls use the
connection.

A channel has an owner as long as something refers to its `ChannelPlans`: the deque of idle ones, or a running call.
A caller that gives up a running call drops its channel, and so does an exception of a signal handler between two
lines. `reap` closes a channel without an owner, once the host does not use its memory any more.

Thread-safe. Taking and returning a channel are single operations on a deque; everything rare happens under a lock.
A maintenance thread serves idle channels, callers without an answer, and channels without an owner. It runs while
there are channels, and does not keep the pool alive.
"""

from __future__ import annotations

import collections
import itertools
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qnnbridge._fastpath import Sharing
from qnnbridge._fastpath import channel as fast_channel
from qnnbridge._fastpath.channel import ChannelEnded, ChannelPlans, ChannelTimeout, FastChannel, NoSharedMemory
from qnnbridge._fastpath.memory import Slab, SlabOfArrays, slab_size
from qnnbridge._transport.channel import CallTimedOut, ChannelRetired
from qnnbridge._transport.open_requests import NO_CONTEXT, ChannelFailed, WakeEvent, remaining
from qnnbridge_os import fds
from qnnbridge_os.native import RLock
from qnnbridge_os.processes import ChannelStreams, ShareHandle, reclaim
from qnnbridge_os.shield import TooLate, in_turn, start_thread
from qnnbridge_protocol.errors import BridgeError, ProtocolDesync
from qnnbridge_protocol.fastpath import MAX_CHANNELS, PHASE_RECORD_BYTES, PHASE_SLAB_BYTES

if TYPE_CHECKING:
    from qnnbridge._transport.channel import Channel


# A channel unused for this many intervals of `channel.CHECK_INTERVAL_S` is closed and its memory freed.
TRIM_CHECKS = 2

# Interval of checks for answers of abandoned calls. Until such an answer is read, the host and the NPU may be
# blocked.
LATE_INTERVAL_S = 0.1


def maintain(reference: weakref.ref[ChannelPool], wake: WakeEvent) -> None:
    """Run the maintenance thread. `wake` is set when the pool is closed, and when a call is abandoned."""
    # The thread's state between two rounds; it must not keep the pool or a channel alive.
    under_way: dict[int, int] = {}
    seen: dict[int, int] = {}
    checks = 0
    late = False
    next_check = time.monotonic() + fast_channel.CHECK_INTERVAL_S
    while True:
        left_s = next_check - time.monotonic()
        wake.wait(min(left_s, LATE_INTERVAL_S) if late else left_s)
        # Refer to the pool for one round only, and not during the wait: a pool without other references ends, and
        # so does its thread.
        pool = reference()
        if pool is None or pool.closed:
            return
        late = pool.take_in()
        if time.monotonic() >= next_check:
            next_check = time.monotonic() + fast_channel.CHECK_INTERVAL_S
            pool.check_blocked(under_way)
            # A channel is trimmed if it was unused for a whole interval between two trims, so after 10 to 20
            # seconds.
            checks += 1
            if checks % TRIM_CHECKS == 0 and not pool.trim(seen):
                return
        del pool


# Limit of the channels with an owner. The host's own limit applies to all channels.
MAX_OPEN_CHANNELS = 32

# Time until the next attempt after a channel could not be opened, or memory was not available.
RETRY_S = 1.0


class ChannelPool:
    """Opens, lends and closes the fast channels of one host process. Also the `SlabSource` of the plans."""

    def __init__(
        self, connection: Channel, sharing: Sharing, check_host: Callable[[], ChannelFailed | None]
    ) -> None:
        self._connection = connection
        self._requests = connection.requests
        self._sharing = sharing
        self._check_host = check_host
        # A forked child has the same descriptors as its parent. It must neither write to them nor take a channel.
        self._forks = fds.forks
        self._lock = RLock()
        # Lock for attaching memory that several callers may want to attach, which may take long. A re-entrant
        # lock stores its owner, so Ctrl+C between taking the lock and entering the block cannot leave it
        # locked.
        self._attaching = RLock()
        # Idle channels; the most recently used one is the last.
        self.idle: collections.deque[ChannelPlans] = collections.deque()
        # All channels by number. The requests' table is the same: a busy channel is an open request.
        self._all: dict[int, FastChannel] = {}
        self._channel_numbers = itertools.count(1)
        # Slabs of arrays by number. False while the host may have attached the slab but has not replied.
        self._attached: dict[int, bool] = {}
        self._next_try = 0.0
        self._phases: Slab | None = None
        # Whether the maintenance thread runs.
        self._maintained = False
        self._wake = WakeEvent()
        self.closed = False
        connection.requests.on_left = self._wake.wake
        connection.requests.channels = self._all

    def __len__(self) -> int:
        return len(self._all)

    def take_idle(self) -> ChannelPlans | None:
        """Return an idle channel for the calling thread alone; ``None`` if none is idle."""
        if self._forks != fds.forks:
            return None
        try:
            # `deque.pop` and `append` are atomic under the GIL, so the usual call takes no lock.
            return self.idle.pop()
        except IndexError:
            return None

    def ping(self, deadline: float | None) -> bool:
        """Request a sign of life from the host. Return False if no channel is idle, or the channel has ended."""
        plans = self.take_idle()
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
            raise CallTimedOut("still-running") from None
        except ProtocolDesync as error:
            raise self._connection.fail(error) from None
        finally:
            channel.busy = False  # a ping uses no memory
            self.give_back(plans)

    def give_back(self, plans: ChannelPlans) -> None:
        """Return a channel after a call, successful or not.

        If the host may still work on the call, the channel is given up: it stays an open request, and the memory
        that the host may write to stays reserved, until `reap`.
        """
        channel = plans.channel
        if not channel.broken:
            channel.pinned = None
            self.idle.append(plans)
            # Check this afterwards: `close` empties the deque, perhaps just before the line above.
            if self.closed:
                self._close_idle()
        elif channel.busy and not self.closed:
            channel.owner = None
            self._wake.wake()
            if self.closed:
                self.reap()
        else:
            self._retire(channel)
        # If the host accepts no more concurrent calls, callers wait for a free channel.
        if self._requests.idle_wanted:
            self._requests.channel_is_free()

    def take_in(self) -> bool:
        """Read answers of abandoned calls. Return whether more may come."""
        self._connection.take_in()
        self.reap()
        return self._requests.abandoned

    def reap(self) -> None:
        """Close the channels without an owner: of calls that were given up, once their answers have arrived, and
        those that an exception dropped."""
        with self._lock:
            for channel in list(self._all.values()):
                if not channel.owned and (self.closed or not channel.busy or channel.answered()):
                    self._retire(channel)

    def close(self) -> None:
        """Close all channels, because the host is gone. A running caller closes its own channel."""
        self.closed = True
        self._wake.wake()
        self._close_idle()
        self.reap()

    # --- opening and closing ---

    def open(self, deadline: float | None) -> ChannelPlans | None:
        """Open a channel for the calling thread; return ``None`` if that is impossible now.

        Raises:
            CallTimedOut, ChannelFailed: errors that end a call on the connection.
        """
        sharing = self._sharing
        agreement = self._connection.agreement
        if self._forks != fds.forks or sharing.why_not is not None or self.closed or agreement is None:
            return None
        # After a failure calls use the connection for a second, instead of failing to open a channel each time.
        if time.monotonic() < self._next_try:
            return None
        # HELLO decides this. A Windows host under Wine and a Linux application share neither pipes nor memory.
        if not agreement.features >= {"fast1", "shm1"}:
            sharing.why_not = "the host has none, or belongs to another system"
            return None
        self.reap()
        try:
            return self._open(deadline)
        except (BridgeError, OSError) as error:
            # Use the connection for `RETRY_S`: the cause may be temporary, such as a lack of descriptors.
            sharing.last_error, self._next_try = str(error), time.monotonic() + RETRY_S
            return None

    def _open(self, deadline: float | None) -> ChannelPlans | None:
        phases = self._phase_slab(deadline)
        agreement = self._connection.agreement
        if agreement is None:
            return None
        number = next(self._channel_numbers)
        with self._lock:
            # The slot is the index of the channel's record in the phase slab, where the host records its native
            # step.
            taken = {channel.slot for channel in self._all.values()}
            free = [slot for slot in range(MAX_CHANNELS) if slot not in taken]
            if not free or sum(channel.owned for channel in self._all.values()) >= MAX_OPEN_CHANNELS:
                return None
            streams = ChannelStreams()
            at = free[0] * PHASE_RECORD_BYTES
            record = phases.data.data[at : at + PHASE_RECORD_BYTES]
            channel = FastChannel(
                number, free[0], streams, agreement.limits, self._check_host, record, eager=self._sharing.spin
            )
            # Register the channel, with its slot, before the host opens it, so that no other thread can assign a
            # slot that the host uses.
            plans = ChannelPlans(channel, self)
            self._all[number] = channel
        try:
            read, write = streams.share_handles(self._connection.peer.pid)
            header = {"op": "channel.open", "channel": number, "slot": channel.slot, "phases": phases.number}
            self._give(header, {"read": read, "write": write}, deadline)
            # Closes this side's copies of the host's ends: otherwise the end of the host would never show as end of
            # file.
            streams.opened()
        except BaseException:
            self._retire(channel)
            raise
        with self._lock:
            if not self._maintained:
                # Set the flag after the start: an interrupt in between causes a second thread, which does no harm.
                start_thread("qnnbridge channels", maintain, weakref.ref(self), self._wake)
                self._maintained = True
        return plans

    def _retire(self, channel: FastChannel) -> None:
        """Close a channel that neither a caller nor the host uses."""
        channel.busy = False
        # `pop` with a default: an interrupted `_retire` may be repeated, and each step can be done twice.
        self._all.pop(channel.number, None)
        channel.close()
        channel.pinned = None
        while channel.slabs:
            self.release(channel.slabs.pop().number)

    def _close_idle(self) -> None:
        while self.idle:
            try:
                plans = self.idle.pop()
            except IndexError:
                return
            self._retire(plans.channel)

    def check_blocked(self, under_way: dict[int, int]) -> None:
        """Check, for callers in a blocking read, whether the host can answer at all.

        `under_way`: the waiting calls at the last check, by channel.
        """
        # Iterate over a copy, because other threads open and close channels meanwhile.
        blocked = [channel for channel in list(self._all.values()) if channel.blocked]
        # A call that is found at two checks has waited for at least `CHECK_INTERVAL_S`. Only then check the host,
        # because a check takes time.
        stuck = any(under_way.get(channel.number) == channel.calls for channel in blocked)
        under_way.clear()
        under_way.update((channel.number, channel.calls) for channel in blocked)
        if stuck and self._check_host() is not None:
            for channel in blocked:
                channel.wake_reader()

    def trim(self, seen: dict[int, int]) -> bool:
        """Close channels that were unused since the last check, or are much too large for their calls.

        Args:
            seen: channel -> number of its last call at the last check.

        Returns:
            False if nothing remains to be maintained.
        """
        self.take_in()
        # Take from the left, the least recently used end, and append on the right: one turn keeps the order. A
        # caller may take a channel meanwhile, so the deque may be empty.
        for _ in range(len(self.idle)):
            try:
                plans = self.idle.popleft()
            except IndexError:
                break
            if seen.get(plans.channel.number) == plans.channel.calls or plans.outgrown():
                self._retire(plans.channel)
            else:
                self.idle.append(plans)
        if self._sharing.collect is not None:
            self._sharing.collect()
        self._connection.one_way.send()
        seen.clear()
        seen.update((number, channel.calls) for number, channel in list(self._all.items()))
        with self._lock:
            # Under the lock, like the start of the thread: either this thread sees a new channel, or its opener
            # sees that there is no thread.
            if not self._all and not self._attached and not self._connection.one_way:
                self._maintained = False
                return False
        return True

    # --- memory ---

    def new_slab(self, wanted: int, deadline: float | None, *, host_writes: bool) -> Slab:
        size = slab_size(wanted)
        reservation = self._sharing.channel_memory.take(size)
        if reservation is None:
            raise NoSharedMemory
        try:
            slab = Slab(size, reservation, host_writes=host_writes)
        except OSError as error:
            self._sharing.last_error = str(error)
            raise NoSharedMemory from None
        self._attach_new(slab, deadline)
        return slab

    def _attach_new(self, slab: Slab, deadline: float | None) -> None:
        """Attach a slab that no later host will attach. Raise `NoSharedMemory`."""
        try:
            self._attach(slab, deadline)
        except BaseException as error:
            self.release(slab.number)
            if not isinstance(error, (BridgeError, OSError)):
                raise
            self._sharing.last_error = str(error)
            raise NoSharedMemory from None
        # The descriptor is not needed any more: only the application's arrays are attached by the next host.
        slab.close()
        self._sharing.last_error = None

    def release(self, number: int) -> None:
        """Tell the host that it may detach the slab, if it has attached it."""
        self._attached.pop(number, None)
        # A host that has ended needs no message.
        if not self.closed:
            self._connection.one_way.add({"op": "slab.release", "slab": number})

    def forget(self, number: int) -> None:
        """Forget a slab of arrays that is gone, and that the host may never have attached."""
        if number in self._attached:
            self.release(number)

    def ensure_attached(self, slab: SlabOfArrays, deadline: float | None) -> None:
        if self._attached.get(slab.number):
            return

        def attach() -> None:
            if self._attached.get(slab.number):
                return
            try:
                if slab.number in self._attached:
                    # The host refuses to attach a slab twice, and does not attach one that was released since.
                    self._connection.call({"op": "slab.release", "slab": slab.number}, deadline=deadline)
                # False from before the request until after its answer, because an exception may come at any place.
                self._attached[slab.number] = False
                self._attach(slab, deadline)
                self._attached[slab.number] = True
            except (BridgeError, OSError) as error:
                self._sharing.last_error = str(error)
                raise NoSharedMemory from None

        # If two callers attach one slab at once, the host refuses the second attempt.
        self._one_at_a_time(attach, deadline)

    def _one_at_a_time(self, work: Callable[[], None], deadline: float | None) -> None:
        try:
            in_turn(self._attaching, remaining(deadline), work)
        except TooLate:
            raise CallTimedOut("not-started") from None

    def _attach(self, slab: SlabOfArrays, deadline: float | None) -> None:
        share_handle = slab.share_handle(self._connection.peer.pid)
        header = {"op": "slab.attach", "slab": slab.number, "size": slab.size, "host_writes": slab.host_writes}
        self._give(header, {"where": share_handle}, deadline)

    def _give(self, header: dict[str, Any], share_handles: dict[str, ShareHandle], deadline: float | None) -> None:
        """Send a request with share handles. The host that receives it owns the handles, whatever it answers."""
        sent: list[int] = []
        try:
            # On Windows a share handle is a handle inside the host's process: if the request never arrives, the
            # host does not know the handle, so it is closed from here.
            self._connection.call({**header, **share_handles}, deadline=deadline, on_sent=sent.append)
        except (CallTimedOut, ChannelRetired, BridgeError) as error:
            # A partly written request arrives with the next frame.
            if not sent and not (isinstance(error, CallTimedOut) and error.state == "still-running"):
                for share_handle in share_handles.values():
                    reclaim(share_handle, self._connection.peer.pid)
            raise

    def _phase_slab(self, deadline: float | None) -> Slab:
        """Return the slab of phase records. Raise `OSError`, or an error that ends a call on the connection."""

        def make() -> None:
            if self._phases is None:
                slab = Slab(PHASE_SLAB_BYTES, None, host_writes=True)
                try:
                    self._attach_new(slab, deadline)
                except NoSharedMemory:
                    raise OSError(self._sharing.last_error) from None
                self._phases = slab

        if self._phases is None:
            self._one_at_a_time(make, deadline)
        assert self._phases is not None
        return self._phases


__all__ = ["ChannelPool", "WakeEvent", "maintain"]
