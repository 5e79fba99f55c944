"""Make repeated calls over fast channels, or leave them to the slow path.

Invariant: a call gets here only if nothing needs the slow path (a new generation, suspects that run alone,
quarantine, a planned restart). A failure goes to the slow path together with its process (`FastCallFailed`) and is
explained and repeated like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge._fastpath.call import CallKey, CallSignature, Feed, Find, Names, Out, Wish, fits, key_of
from qnnbridge._fastpath.channel import (
    BOOL,
    CallPlan,
    ChannelEnded,
    ChannelPlans,
    ChannelTimeout,
    FastChannel,
    NoSharedMemory,
)
from qnnbridge._fastpath.memory import SHARED_BYTES, allocate
from qnnbridge._supervision.host_process import FastCallFailed, deadline_after
from qnnbridge._transport.channel import CANCEL_TIMEOUT_S, CallTimedOut, ChannelFailed, ChannelRetired
from qnnbridge_os.native import locks_hold
from qnnbridge_protocol.errors import BridgeError, ModelQuarantined, ProtocolDesync, desync
from qnnbridge_protocol.fastpath import ChannelKind
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.values import decode_all

if TYPE_CHECKING:
    from qnnbridge._fastpath.channel_pool import ChannelPool
    from qnnbridge._host import Host
    from qnnbridge._session.replay import Live, ReplayingSession
    from qnnbridge._supervision.host_process import HostProcess


# How long to wait for the answer of a stopped call, so that its channel can be used again.
SETTLE_TIMEOUT_S = 0.2

# Interval between two looks at the state that makes calls take the slow path, such as the quarantine's file.
UPKEEP_INTERVAL_S = 1.0

# Least time for the host to show that it lives when a channel has ended, whatever the caller has left.
ALIVE_GRACE_S = 0.25

# Time before a plan is asked for again that the host refused, or had no memory for. Asking costs a question and its
# answer; the reason may pass (memory, a session that is being closed).
REFUSED_S = 1.0

Array = np.ndarray[Any, np.dtype[Any]]
OnChannel = Callable[["HostProcess", FastChannel], None]


_PLAIN = Wish()


def run(
    remote: ReplayingSession,
    find: Find,
    names: Names,
    feed: Feed,
    timeout_s: float | None,
    wish: Wish | None = None,
    on_channel: OnChannel | None = None,
) -> list[Any] | None:
    """Make a repeated call. Returns the outputs, or ``None`` if the call must take the slow path.

    Args:
        remote: the session.
        find: returns the signature of a call without a plan.
        names: of the outputs.
        feed: values by name.
        timeout_s: seconds for the call; ``None`` for no limit.
        wish: where the outputs go; default: new arrays. An output whose type or shape is not the expected one is
            returned in a new array.
        on_channel: called with the process and the channel before the call is sent.

    Raises:
        FastCallFailed: the call failed; the slow path continues it.
    """
    # Read once: process and number belong together (`Live`), and another thread may replace them at any time.
    live = remote.live
    if live is None:
        return None
    wish = wish or _PLAIN
    process, host, out = live.process, remote.host, wish.out
    # Both are plain attributes. A host that fails right after this check fails the call below, which is handled
    # like any crash.
    if process.retiring or process.channel.requests.failure is not None:
        return None
    # The reasons are the collections themselves (waiting releases, suspects, kills), so no flag can differ from
    # them.
    if (any(host.slow_path_reasons) or monotonic() >= remote.next_upkeep) and not _upkeep(remote, process, feed):
        return None
    pool = process.pool
    if pool is None:
        return None
    signature = None
    if wish.fresh:
        # A result that may stay in shared memory is allocated before the key is made: its memory is part of the
        # key.
        signature = find(names, feed)
        if signature is None:
            return None
        out = _fresh(host, signature, wish)
    key = key_of(live.session, names, feed, out, host.own_arrays, in_place=wish.in_place)
    if key is None:
        return None
    deadline = None if timeout_s is None else deadline_after(timeout_s)
    # From here on this thread has the channel. `finally` gives it back, unless the call was abandoned.
    plans = pool.take_idle()
    try:
        plan = None if plans is None else plans.find(key)
        if plan is None:
            signature = signature or find(names, feed)
            # Each channel has its own plans, so a known call may have none on this one.
            if signature is None or signature.slow or signature.not_before > monotonic():
                return None
            if plans is None:
                plans = _open(process, pool, deadline)
                if plans is None:
                    return None
        else:
            signature = plan.signature
        assert plans is not None
        # Arrays that do not fit go by the connection, which raises the application's error or converts.
        if signature.slow or (out is not None and not fits(out, signature, writeable=not wish.fresh)):
            return None
        return _call(remote, live, plans, plan, key, signature, out, deadline, on_channel)
    finally:
        if plans is not None and not plans.channel.abandoned:
            pool.give_back(plans)


def _open(process: HostProcess, pool: ChannelPool, deadline: float | None) -> ChannelPlans | None:
    try:
        return pool.open(deadline)
    except (ChannelFailed, ChannelRetired, CallTimedOut, BridgeError) as error:
        raise FastCallFailed(process, error, deadline) from None


def _call(
    remote: ReplayingSession,
    live: Live,
    plans: ChannelPlans,
    plan: CallPlan | None,
    key: CallKey,
    signature: CallSignature,
    out: Out | None,
    deadline: float | None,
    on_channel: OnChannel | None,
) -> list[Any] | None:
    process, channel = live.process, plans.channel
    channel.context = remote.context
    # The host may read and write these arrays until the call is over, also if this side gives it up. Set before
    # anything is sent: an exception may come between two lines, and `_retire` keeps pinned arrays alive for as long
    # as the host may write to them.
    channel.pinned = key
    try:
        if plan is None:
            plan = _plan(live, plans, key, signature, deadline)
            if plan is None:
                return None
        if on_channel is not None:
            # A cancel may come from now on. Unless the channel is given up, it would hit the next call if this one
            # is not made.
            channel.broken = True
            on_channel(process, channel)
        # The deadline does not cover the copy: memory bandwidth bounds it, and a half copied input is harmless.
        plan.put_in(key.arrays)
        # Not exact with several threads, which is enough for a statistic.
        remote.host.sharing.shared_calls += 1
        remote.calls += 1
        head = channel.call(plan.number, deadline)
        if head is None:
            return plan.take_out(out)
        return _other_answer(channel, head, signature, deadline)
    except BaseException as error:
        _look_after(process, plans, error, deadline, key, out)
        raise


def _fresh(host: Host, signature: CallSignature, wish: Wish) -> list[Array | None]:
    """Return the arrays for the outputs, with new ones in shared memory for large results."""
    out: list[Array | None] = list(wish.out or (None,) * len(signature.outputs))
    borrowed = wish.fresh == "borrowed"
    for index, tensor in enumerate(signature.outputs):
        # Bools are copied: the host may use any nonzero byte for true.
        if index < len(out) and out[index] is None and tensor.nbytes >= SHARED_BYTES and tensor.dtype != BOOL:
            array = allocate(host, tensor.shape, tensor.dtype, host_writes=True, reusable=True, read_only=borrowed)
            host.sharing.borrows_refused += array is None
            out[index] = array
    return out


def _plan(
    live: Live, plans: ChannelPlans, key: CallKey, signature: CallSignature, deadline: float | None
) -> CallPlan | None:
    """Return the new plan for this call; ``None`` if the host refuses it or has too little memory."""
    try:
        return plans.make(live.session, key, signature, deadline)
    # The request for a plan computes nothing, so the call itself has not begun.
    except ChannelTimeout:
        raise CallTimedOut("not-started") from None
    except ProtocolDesync:
        raise
    except (BridgeError, NoSharedMemory):
        # The slow path raises the error, if any.
        signature.not_before = monotonic() + REFUSED_S
        return None


def _other_answer(channel: FastChannel, head: Any, signature: CallSignature, deadline: float | None) -> list[Any]:
    """Read an error, or outputs of other types or shapes than the plan's."""
    frame = channel.read_frame(head, deadline)
    if head.kind is not ChannelKind.VALUES:
        channel.broken = True
        raise desync(f"{head.kind.name} to a call")
    # Permanently: a model whose output shapes depend on values would otherwise request a plan that fails each time.
    signature.slow = True
    return decode_all(field(frame.header, "outputs", "tuple[Any, ...]"), frame.buffers)


def _upkeep(remote: ReplayingSession, process: HostProcess, feed: Feed) -> bool:
    """Do once a second the checks of the slow path. Return False if the call must take the slow path."""
    supervisor = remote.host.supervisor
    # `locks_hold` is false once eventlet has replaced the locks of objects that exist (`_native`).
    if remote.closed or not (remote.host.blame.quiet and locks_hold()) or supervisor.current is not process:
        return False
    if remote.host.log_function is not None:
        return False
    # Before the quarantine's file is read, so that other threads do not all read it at the same time.
    remote.next_upkeep = monotonic() + UPKEEP_INTERVAL_S
    try:
        supervisor.check_quarantine(remote.context)
    except ModelQuarantined:
        return False
    # The choice of the calls that are compared is made here, too: to check each call would slow all of them.
    if remote.wants_comparison is not None and remote.wants_comparison(feed.values()):
        return False
    remote.host.before_call(process)
    return process.usable


# --- after a failed call ---------------------------------------------------------------------------------


def _look_after(
    process: HostProcess,
    plans: ChannelPlans,
    error: BaseException,
    deadline: float | None,
    key: CallKey,
    out: Out | None,
) -> None:
    """Settle a call that failed or was interrupted. Raise `FastCallFailed` unless the error is the caller's own."""
    channel = plans.channel
    try:
        if isinstance(error, ChannelEnded):
            # Either the host has ended or only the channel. Only the end of a host needs an explanation.
            _host_gone(process, deadline)
            error = ChannelRetired()
        elif isinstance(error, ChannelTimeout):
            error = CallTimedOut(_give_up(process, plans) if channel.sent else "not-started")
        elif isinstance(error, ProtocolDesync):
            error = process.channel.fail(error)
        # All other interruptions come from outside: KeyboardInterrupt, SystemExit, an exception of a signal
        # handler.
        elif (
            channel.broken and channel.busy and not isinstance(error, (ChannelFailed, ChannelRetired, CallTimedOut))
        ):
            # Ctrl+C, for example: cancel the call. The host may have it even if it is not marked as sent yet.
            _give_up(process, plans)
    except (ChannelFailed, ChannelRetired, CallTimedOut, BridgeError) as found:
        error = found
    if isinstance(error, ChannelFailed):
        error.request_id = channel.call_id
    if isinstance(error, (ChannelFailed, ChannelRetired, CallTimedOut, BridgeError)):
        # `busy` counts as well: an interrupt between the write and the assignment of `sent` leaves a call
        # that the host has.
        # Whether the host may have written over an input of the call.
        in_place = (channel.sent or channel.busy) and any(
            block is not None and any(np.may_share_memory(array, target) for array in key.arrays)
            for block, target in zip(key.outputs, out or (), strict=False)
        )
        raise FastCallFailed(process, error, deadline, in_place=in_place) from None


def _host_gone(process: HostProcess, deadline: float | None) -> None:
    """Return if only the channel has ended; raise `ChannelFailed` if the host has.

    A missing answer proves nothing, since the machine may be busy: the waiting caller checks periodically whether
    the host is dead or stopped.
    """
    try:
        process.channel.ping(None if deadline is None else max(deadline, monotonic() + ALIVE_GRACE_S))
    except CallTimedOut:
        if process.exit_code(0) is not None:
            raise process.channel.fail(None) from None
        raise


def _give_up(process: HostProcess, plans: ChannelPlans) -> str:
    """Cancel the call and return the state of the work.

    If the work continues, the channel and the blocks that the host may write to stay reserved until its answer.
    """
    channel, pool = plans.channel, process.pool
    assert pool is not None
    # The work is done; only its answer was not read completely. `give_back` closes the broken channel.
    if channel.answer_begun:
        channel.busy = False
        return "finished"
    state = "still-running"
    try:
        state = process.channel.cancel(channel.call_id, monotonic() + CANCEL_TIMEOUT_S)
        # A call that was not started never will be, and perhaps was not sent. A cancelled call answers soon with
        # its error; once that is read, the channel can be used again.
        if state != "still-running" and (channel.settle(SETTLE_TIMEOUT_S) or state == "not-started"):
            channel.busy = False
            return state
        if state == "finished":
            state = "still-running"  # a finished call would have its answer here
    except (CallTimedOut, ChannelFailed, ChannelRetired, BridgeError):
        pass
    except BaseException:  # a second Ctrl+C
        pool.abandon(plans)
        raise
    pool.abandon(plans)
    return state


__all__ = ["FastCallFailed", "run"]
