"""Make repeated calls over fast channels. Calls that cannot use a channel take the slow path (the connection).

Invariant: a call is sent on a fast channel only if no condition requires the slow path (a new host process,
suspects that run alone, quarantine, a planned restart). If the call fails, `FastCallFailed` passes the failure and
the host process to the slow path, which explains the failure and repeats the call.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge._fastpath.call import CallKey, CallSignature, Feed, Find, Names, Out, OutputPlacement, fits, key_of
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
    from qnnbridge._session.remote_session import RemoteSession
    from qnnbridge._supervision.host_process import HostProcess


# Seconds between two checks of conditions that require the slow path, such as the quarantine's file.
UPKEEP_INTERVAL_S = 1.0

# After a channel has ended, a ping checks whether the host still runs. Wait at least this many seconds for the
# answer, even if the call's deadline has passed.
ALIVE_GRACE_S = 0.25

# Seconds until a plan is requested again after the host refused it or memory ran out. A request costs a round trip,
# and the reason may be temporary (lack of memory, a session that is being closed).
REFUSED_S = 1.0

Array = np.ndarray[Any, np.dtype[Any]]
OnChannel = Callable[["HostProcess", FastChannel], None]


def run(
    remote: RemoteSession,
    find: Find,
    names: Names,
    feed: Feed,
    timeout_s: float | None,
    memory: OutputPlacement | None = None,
    on_channel: OnChannel | None = None,
) -> list[Any] | None:
    """Make a repeated call. Return the outputs, or ``None`` if the call must take the slow path.

    Args:
        remote: the session.
        find: function that returns the signature of a call for which there is no plan.
        names: names of the outputs.
        feed: values of the inputs by name.
        timeout_s: seconds for the call; ``None`` for no limit.
        memory: memory for the outputs; default: new arrays. An output of another type or shape than expected is
            returned in a new array.
        on_channel: function that is called with the process and the channel before the call is sent.

    Raises:
        FastCallFailed: the call failed; the slow path handles the failure.
    """
    # Read the attribute once, because another thread may replace the pair of process and session number.
    live = remote.live
    if live is None:
        return None
    process, session = live
    host = remote.host
    # If the host fails right after this check, the call below fails and is handled like any crash.
    if process.retiring or process.channel.requests.failure is not None:
        return None
    # `slow_path_reasons` contains the collections themselves (waiting releases, suspects, kills), so that no
    # separate flag can be out of date.
    if (any(host.slow_path_reasons) or monotonic() >= remote.next_upkeep) and not _periodic_checks(
        remote, process, feed
    ):
        return None
    pool = process.open_pool
    if pool is None:
        pool = process.pool
        if pool is None:
            return None
    out = signature = None
    in_place = False
    if memory is not None:
        out, fresh, in_place = memory
        if fresh:
            # Allocate large results before computing the key, which contains the place of each result in shared
            # memory. The signature provides the sizes of the results.
            signature = find(names, feed)
            if signature is None:
                return None
            out = _fresh(host, signature, memory)
    key = key_of(session, names, feed, out, host.own_arrays, in_place)
    if key is None:
        return None
    deadline = None if timeout_s is None else deadline_after(timeout_s)
    # This thread now owns the channel, until `finally` returns it to the pool.
    plans = pool.take_idle()
    channel = None
    try:
        plan = None if plans is None else plans.plans.get(key.key)
        # Each channel has its own plans. If this channel has no plan for the call, look up the signature of the
        # call.
        signature = signature or find(names, feed) if plan is None else plan.signature
        if signature is None or signature.slow:
            return None
        # If an array of `out` has another type or shape than the output, use the connection, which converts the
        # output or raises an error. With a plan all arrays fit, because their types and shapes are part of the key.
        if plan is None and (signature.not_before > monotonic() or not fits(out, signature)):
            return None
        if plans is None:
            plans = _open(process, pool, deadline)
            if plans is None:
                return None
        channel = plans.channel
        channel.context = remote.suspect.run
        # The host may read and write the arrays in `key` until the call ends, even after the caller has abandoned
        # the call, so the channel keeps them alive. Set `pinned` before sending, because an exception may occur at
        # any line.
        channel.pinned = key
        if plan is None:
            plan = _plan(session, plans, key, signature, deadline)
            if plan is None:
                return None
        plan.used = True
        if on_channel is not None:
            # After `on_channel` another thread may cancel the call. If the call is then not sent, the cancellation
            # would apply to the next call on this channel. So mark the channel as broken until the answer arrives.
            channel.broken = True
            on_channel(process, channel)
        # The deadline does not apply to the copy, which takes a short time.
        plan.put_in(key.arrays)
        # Several threads may change the counters at once. Lost increments do not matter for statistics.
        host.sharing.shared_calls += 1
        remote.calls += 1
        head = channel.exchange(channel.to_call, plan.number, deadline)
        if head is None:
            return plan.take_out(out)
        return _other_answer(channel, head, signature, deadline)
    except BaseException as error:
        if channel is not None:
            _settle(process, channel, error, deadline, key, out)
        raise
    finally:
        if plans is not None:
            pool.give_back(plans)


def _open(process: HostProcess, pool: ChannelPool, deadline: float | None) -> ChannelPlans | None:
    try:
        return pool.open(deadline)
    except (ChannelFailed, ChannelRetired, CallTimedOut, BridgeError) as error:
        raise FastCallFailed(process, error, deadline) from None


def _fresh(host: Host, signature: CallSignature, memory: OutputPlacement) -> list[Array | None]:
    """Return the arrays for the outputs: the caller's arrays, and new arrays in shared memory for other large
    outputs. ``None`` stands for an output without an array."""
    out: list[Array | None] = list(memory.out or (None,) * len(signature.outputs))
    borrowed = memory.fresh == "borrowed"
    for index, tensor in enumerate(signature.outputs):
        # Booleans must be copied, because the host may use any nonzero byte for true.
        if index < len(out) and out[index] is None and tensor.nbytes >= SHARED_BYTES and tensor.dtype != BOOL:
            array = allocate(host, tensor.shape, tensor.dtype, host_writes=True, reusable=True, read_only=borrowed)
            host.sharing.borrows_refused += array is None
            out[index] = array
    return out


def _plan(
    session: int, plans: ChannelPlans, key: CallKey, signature: CallSignature, deadline: float | None
) -> CallPlan | None:
    """Return a new plan for this call; ``None`` if the host refuses the plan or memory ran out."""
    try:
        return plans.make(session, key, signature, deadline)
    # The request for a plan does not run the model, so a timeout here means that the call has not started.
    except ChannelTimeout:
        plans.channel.busy = False
        raise CallTimedOut("not-started") from None
    except ProtocolDesync:
        raise
    except (BridgeError, NoSharedMemory):
        # Use the slow path, which raises the error again if it concerns the call and not only the plan.
        signature.not_before = monotonic() + REFUSED_S
        return None


def _other_answer(channel: FastChannel, head: Any, signature: CallSignature, deadline: float | None) -> list[Any]:
    """Raise the error in the answer, or return outputs whose types or shapes differ from the plan."""
    frame = channel.read_frame(head, deadline)
    if head.kind is not ChannelKind.VALUES:
        channel.broken = True
        raise desync(f"{head.kind.name} to a call")
    # Use the connection permanently for these calls: the output shapes depend on values, so each plan would fail.
    signature.slow = True
    return decode_all(field(frame.header, "outputs", "tuple[Any, ...]"), frame.buffers)


def _periodic_checks(remote: RemoteSession, process: HostProcess, feed: Feed) -> bool:
    """Perform the checks of the slow path, once a second. Return False if the call must take the slow path."""
    supervisor = remote.host.supervisor
    # If eventlet has replaced the locks of existing objects (`locks_hold` is false), the slow path raises an error.
    if remote.closed or not (remote.host.blame.quiet and locks_hold()) or supervisor.current is not process:
        return False
    if remote.host.log_function is not None:
        return False
    # Set the time before reading the quarantine's file, so that other threads do not read the file, too.
    remote.next_upkeep = monotonic() + UPKEEP_INTERVAL_S
    try:
        supervisor.check_quarantine(remote.suspect.run)
    except ModelQuarantined:
        return False
    # Decide here, once a second, whether to compare the call with the CPU: a check in every call would be slow.
    if remote.wants_comparison is not None and remote.wants_comparison(feed.values()):
        return False
    remote.host.before_call(process)
    return process.usable


# --- after a failed call ---------------------------------------------------------------------------------


def _settle(
    process: HostProcess,
    channel: FastChannel,
    error: BaseException,
    deadline: float | None,
    key: CallKey,
    out: Out | None,
) -> None:
    """Clean up after a failed or interrupted call. Raise `FastCallFailed` after a failure; return after an
    interruption (KeyboardInterrupt, for example), which the caller raises again."""
    # Whether the host may have overwritten an input of the call. Check `busy`, too: an interrupt may occur after
    # the call was written and before `sent` is set.
    in_place = (channel.sent or channel.busy) and any(
        block is not None and any(np.may_share_memory(array, target) for array in key.arrays)
        for block, target in zip(key.outputs, out or (), strict=False)
    )
    try:
        if isinstance(error, ChannelEnded):
            # Find out whether the host has ended, or only the channel: the end of a host must be investigated.
            _host_gone(process, deadline)
            error = ChannelRetired()
        elif isinstance(error, ChannelTimeout):
            error = CallTimedOut(_give_up(process, channel) if channel.sent else "not-started")
        elif isinstance(error, ProtocolDesync):
            error = process.channel.fail(error)
        # The call was interrupted by KeyboardInterrupt, SystemExit or an exception of a signal handler.
        elif channel.busy and not isinstance(error, (ChannelFailed, ChannelRetired, CallTimedOut)):
            # Cancel the call even if `sent` is not set, because the host may have received it already.
            _give_up(process, channel)
    except (ChannelFailed, ChannelRetired, CallTimedOut, BridgeError) as found:
        error = found
    if isinstance(error, ChannelFailed):
        error.request_id = channel.call_id
    if isinstance(error, (ChannelFailed, ChannelRetired, CallTimedOut, BridgeError)):
        raise FastCallFailed(process, error, deadline, in_place=in_place) from None


def _host_gone(process: HostProcess, deadline: float | None) -> None:
    """Return if only the channel has ended; raise `ChannelFailed` if the host has ended.

    A missing answer to the ping proves nothing, because the machine may be busy. While waiting, `ping` checks
    periodically whether the host is dead or stopped.
    """
    try:
        process.channel.ping(None if deadline is None else max(deadline, monotonic() + ALIVE_GRACE_S))
    except CallTimedOut:
        if process.exit_code(0) is not None:
            raise process.channel.fail(None) from None
        raise


def _give_up(process: HostProcess, channel: FastChannel) -> str:
    """Cancel the call and return its state in the host, as `Channel.cancel` does.

    If the call may still be running, the channel stays busy and keeps the memory that the host may write to.
    """
    try:
        state = process.channel.cancel(channel.call_id, monotonic() + CANCEL_TIMEOUT_S)
    except (CallTimedOut, ChannelFailed, ChannelRetired, BridgeError):
        return "still-running"
    channel.busy = state == "still-running"
    return state


__all__ = ["FastCallFailed", "run"]
