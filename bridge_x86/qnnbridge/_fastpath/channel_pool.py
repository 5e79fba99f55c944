"""The fast channels of one host process. A call opens a channel if none is idle; unused channels are closed later.

The most recently used channel is used first, so a single caller always gets the same channel, and the additional
channels of past concurrent calls stay unused and are closed. Without channels or shared memory, `Sharing` contains
the reason, and calls use the connection.

A channel has an owner as long as its `ChannelPlans` is referenced: by the deque of idle channels, or by a running
call. A caller that abandons a running call drops its channel, and an exception of a signal handler may do so, too.
`reap` closes a channel without an owner once the host no longer uses its memory.

Thread-safe. Taking and returning a channel are single operations on a deque; rare operations take a lock. A
maintenance thread closes unused channels and channels without an owner, and checks the host for waiting callers.
The thread runs while there are channels, and does not keep the pool alive.
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


# A channel that is unused for this many intervals of `channel.CHECK_INTERVAL_S` is closed, and its memory is freed.
TRIM_CHECKS = 2

# Interval of checks for answers of abandoned calls. Until such an answer is read, the host and the NPU may be
# blocked.
LATE_INTERVAL_S = 0.1


def maintain(reference: weakref.ref[ChannelPool], wake: WakeEvent) -> None:
    """Main function of the maintenance thread. `wake` is set when the pool is closed or a call is abandoned."""
    # Call numbers at the last check, by channel number. The function must keep no reference to the pool or a
    # channel, so that they can be freed.
    under_way: dict[int, int] = {}
    seen: dict[int, int] = {}
    checks = 0
    late = False
    next_check = time.monotonic() + fast_channel.CHECK_INTERVAL_S
    while True:
        left_s = next_check - time.monotonic()
        wake.wait(min(left_s, LATE_INTERVAL_S) if late else left_s)
        # Do not refer to the pool during the wait, so that an unused pool is freed, which ends this thread.
        pool = reference()
        if pool is None or pool.closed:
            return
        late = pool.take_in()
        if time.monotonic() >= next_check:
            next_check = time.monotonic() + fast_channel.CHECK_INTERVAL_S
            pool.check_blocked(under_way)
            # Close the channels that were not used since the last trim, and so for 10 to 20 s.
            checks += 1
            if checks % TRIM_CHECKS == 0 and not pool.trim(seen):
                return
        del pool


# Maximum number of channels with an owner. The host's limit is higher, because it includes the channels of
# abandoned calls.
MAX_OPEN_CHANNELS = 32

# Seconds until the next attempt after a channel could not be opened or memory was not available.
RETRY_S = 1.0


class ChannelPool:
    """Open, lend and close the fast channels of one host process. Implements `SlabSource` for the plans."""

    def __init__(
        self, connection: Channel, sharing: Sharing, check_host: Callable[[], ChannelFailed | None]
    ) -> None:
        self._connection = connection
        self._requests = connection.requests
        self._sharing = sharing
        self._check_host = check_host
        # A forked child inherits the pipes of its parent, but must neither write to them nor take a channel.
        self._forks = fds.forks
        self._lock = RLock()
        # Lock for attaching memory, which may take long, and which several callers may need at once. A re-entrant
        # lock stores its owner, so Ctrl+C between taking the lock and entering the block cannot leave it locked.
        self._attaching = RLock()
        # Idle channels, with the most recently used channel at the end.
        self.idle: collections.deque[ChannelPlans] = collections.deque()
        # All channels by number. The table of open requests shares the dict: a busy channel is an open request.
        self._all: dict[int, FastChannel] = {}
        self._channel_numbers = itertools.count(1)
        # Slabs of arrays, by number: True if the host has attached the slab, False while it has not answered.
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
        """Wait until the host answers a PING. Return False if no channel is idle, or the channel was closed."""
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
            channel.busy = False  # even without an answer: a ping uses no memory, so the channel may be closed
            self.give_back(plans)

    def give_back(self, plans: ChannelPlans) -> None:
        """Return a channel after a call, successful or not.

        If the call may still be running in the host, the channel loses its owner: it stays an open request, and the
        memory that the host may write to stays reserved, until `reap` closes the channel.
        """
        channel = plans.channel
        if not channel.broken:
            channel.pinned = None
            self.idle.append(plans)
            # Check `closed` after appending, because `close` may have emptied the deque just before.
            if self.closed:
                self._close_idle()
        elif channel.busy and not self.closed:
            channel.owner = None
            self._wake.wake()
            if self.closed:
                self.reap()
        else:
            self._retire(channel)
        # Wake a caller that waits for a free channel, because the host accepts no more concurrent calls.
        if self._requests.idle_wanted:
            self._requests.channel_is_free()

    def take_in(self) -> bool:
        """Read answers of abandoned calls. Return whether more of these answers may arrive."""
        self._connection.take_in()
        self.reap()
        return self._requests.abandoned

    def reap(self) -> None:
        """Close the channels without an owner. Close a channel with an abandoned call only after the call's answer
        has arrived."""
        with self._lock:
            for channel in list(self._all.values()):
                if not channel.owned and (self.closed or not channel.busy or channel.answered()):
                    self._retire(channel)

    def close(self) -> None:
        """Close all channels, because the host has ended. Callers close the channels they are using."""
        self.closed = True
        self._wake.wake()
        self._close_idle()
        self.reap()

    # --- opening and closing ---

    def open(self, deadline: float | None) -> ChannelPlans | None:
        """Open a channel for the calling thread; return ``None`` if no channel can be opened now.

        Raises:
            CallTimedOut, ChannelFailed: as for `Channel.call`.
        """
        sharing = self._sharing
        agreement = self._connection.agreement
        if self._forks != fds.forks or sharing.why_not is not None or self.closed or agreement is None:
            return None
        # After a failure, calls use the connection for `RETRY_S`, instead of trying to open a channel each time.
        if time.monotonic() < self._next_try:
            return None
        # The host's HELLO reports whether it can share pipes and memory. For example, a Windows host under Wine
        # cannot share them with a Linux application.
        if not agreement.features >= {"fast1", "shm1"}:
            sharing.why_not = "the host does not support shared memory, or runs on another system"
            return None
        self.reap()
        try:
            return self._open(deadline)
        except (BridgeError, OSError) as error:
            # Try again after `RETRY_S`: the cause may be temporary, such as a lack of descriptors.
            sharing.last_error, self._next_try = str(error), time.monotonic() + RETRY_S
            return None

    def _open(self, deadline: float | None) -> ChannelPlans | None:
        phases = self._phase_slab(deadline)
        agreement = self._connection.agreement
        if agreement is None:
            return None
        number = next(self._channel_numbers)
        with self._lock:
            # The slot is the index of the channel's record in the phase slab. Each channel needs a separate record,
            # where the host records its native step.
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
            # Close our copies of the host's ends. Otherwise reads would not return end of file when the host ends.
            streams.opened()
        except BaseException:
            self._retire(channel)
            raise
        with self._lock:
            if not self._maintained:
                # Set the flag only after the start: an interrupt before the flag is set causes a second thread,
                # which is harmless.
                start_thread("qnnbridge channels", maintain, weakref.ref(self), self._wake)
                self._maintained = True
        return plans

    def _retire(self, channel: FastChannel) -> None:
        """Close a channel that neither a caller nor the host uses, and release its memory."""
        channel.busy = False
        # An interrupted `_retire` may be repeated, so each step must be allowed to run twice: `pop` has a default.
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
        """Check whether the host can still answer, on behalf of callers that are blocked in a read.

        under_way: number of the waiting call at the last check, by channel number. Updated here.
        """
        # Iterate over a copy, because other threads open and close channels meanwhile.
        blocked = [channel for channel in list(self._all.values()) if channel.blocked]
        # Checking the host takes time, so do it only if a call was waiting at the last check already,
        # `CHECK_INTERVAL_S` ago.
        stuck = any(under_way.get(channel.number) == channel.calls for channel in blocked)
        under_way.clear()
        under_way.update((channel.number, channel.calls) for channel in blocked)
        if stuck and self._check_host() is not None:
            for channel in blocked:
                channel.wake_reader()

    def trim(self, seen: dict[int, int]) -> bool:
        """Close channels that were unused since the last check, or that are much too large for their calls.

        Args:
            seen: number of the last call at the last check, by channel number. Updated here.

        Returns:
            False if nothing is left to maintain.
        """
        self.take_in()
        # Take each channel from the left (the least recently used) and append it on the right, which keeps the
        # order. The deque may become empty, because callers may take channels meanwhile.
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
            # `_open` starts the thread under the same lock. So either this thread sees the new channel, or `_open`
            # sees that the thread has ended, and starts another.
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
        """Attach a slab that only this host will use. Raise `NoSharedMemory` on failure."""
        try:
            self._attach(slab, deadline)
        except BaseException as error:
            self.release(slab.number)
            if not isinstance(error, (BridgeError, OSError)):
                raise
            self._sharing.last_error = str(error)
            raise NoSharedMemory from None
        # Close the descriptor, which only a later host would need.
        slab.close()
        self._sharing.last_error = None

    def release(self, number: int) -> None:
        """Tell the host that it may detach the slab, if it has attached it."""
        self._attached.pop(number, None)
        # A host that has ended needs no message.
        if not self.closed:
            self._connection.one_way.add({"op": "slab.release", "slab": number})

    def forget(self, number: int) -> None:
        """Release a slab of arrays that was freed, if the host may have attached it."""
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
                    # The host may have attached the slab although the answer did not arrive, and it refuses to
                    # attach a slab twice. The release also cancels an attach request that the host has not executed
                    # yet.
                    self._connection.call({"op": "slab.release", "slab": slab.number}, deadline=deadline)
                # Set False before the request: after an exception, the host may have attached the slab.
                self._attached[slab.number] = False
                self._attach(slab, deadline)
                self._attached[slab.number] = True
            except (BridgeError, OSError) as error:
                self._sharing.last_error = str(error)
                raise NoSharedMemory from None

        # Let one caller at a time attach a slab: the host would refuse the second attempt.
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
        """Send a request with share handles. A host that receives the request owns the handles, even if it answers
        with an error."""
        sent: list[int] = []
        try:
            # On Windows a share handle is a handle in the host process. If the request never arrives, the host
            # cannot close the handle, so this process closes the handle.
            self._connection.call({**header, **share_handles}, deadline=deadline, on_sent=sent.append)
        except (CallTimedOut, ChannelRetired, BridgeError) as error:
            # Keep the handles of a partly written request: the next frame completes the request, and the host then
            # owns the handles.
            if not sent and not (isinstance(error, CallTimedOut) and error.state == "still-running"):
                for share_handle in share_handles.values():
                    reclaim(share_handle, self._connection.peer.pid)
            raise

    def _phase_slab(self, deadline: float | None) -> Slab:
        """Return the slab of phase records. Raise `OSError`, or an error of `Channel.call`."""

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
