"""Runs a call that was made before over a channel, or says that it has to go by the connection.

What always holds: a call gets here only if nothing stands in its way that the long way would look after (a new
generation, suspects that run alone, quarantine, a planned restart). What fails here is handed to the long way
together with the process that it failed in, and there it is treated like any other failure: explained, and repeated
if that is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge._fastpath.arrays import SharedBlock, shared_blocks
from qnnbridge._fastpath.channel import ChannelEnded, ChannelTimeout, FastChannel
from qnnbridge._fastpath.channel_plan import BOOL, CallPlan
from qnnbridge._fastpath.failure import FastCallFailed, without_traceback
from qnnbridge._fastpath.plans import CallPlans
from qnnbridge._fastpath.signatures import CallSignature, Refusal
from qnnbridge._platform import _fds
from qnnbridge._supervision.deadlines import deadline_after
from qnnbridge._transport.channel import CANCEL_TIMEOUT_S, ChannelFailed, ChannelRetired, Deadline
from qnnbridge_protocol.errors import BridgeError, ModelQuarantined, ProtocolDesync
from qnnbridge_protocol.fastpath import ChannelKind
from qnnbridge_protocol.frames import desync
from qnnbridge_protocol.values import Decoder

if TYPE_CHECKING:
    from qnnbridge._fastpath.channel_pool import ChannelPool
    from qnnbridge._remote_session import RemoteSession
    from qnnbridge._transport.host_process import HostProcess

# How long the answer of a call that was stopped is waited for, so that the channel can be used again.
SETTLE_TIMEOUT_S = 0.2

# As often as the quarantine's file is looked at.
UPKEEP_INTERVAL_S = 1.0

# A channel has ended: what the host has at least, whatever the caller has left, to show that it has not.
ALIVE_GRACE_S = 0.25

Array = np.ndarray[Any, np.dtype[Any]]


OnChannel = Callable[["HostProcess", FastChannel], None]


class OptionalOutputs(list["Array | None"]):
    """Arrays for the outputs that need not be used: outputs that do not fit are returned as they are."""


def run(
    remote: RemoteSession,
    shape: CallSignature,
    feed: Mapping[str, Any],
    timeout_s: float | None,
    borrow: bool,
    out: Any,
    on_channel: OnChannel | None = None,
) -> list[Any] | None:
    """The outputs, or ``None`` if the call has to go the long way. Raises `FastCallFailed`.

    shape: of the call; `feed` and `out` (a list) fit it. on_channel: told the process and the channel by which the
    call is about to go.
    """
    process = remote.live
    if process is None or process.retiring or process.channel.requests.failure is not None:
        return None
    if shape.refusal is not None and shape.refusal.holds(process.generation, monotonic()):
        return None
    if (any(remote.host.slow_path_reasons) or monotonic() >= remote.next_upkeep) and not _upkeep(remote, process):
        return None
    pool = process.pool
    if pool is None:
        return None
    deadline = None if timeout_s is None else deadline_after(timeout_s)
    try:
        plans = pool.take(deadline)
    except (ChannelFailed, ChannelRetired, Deadline, BridgeError) as error:
        raise FastCallFailed(process, error, deadline) from None
    if plans is None:
        return None
    channel, borrowed = plans.channel, borrow and out is None
    try:
        channel.context = remote.context
        plan = plans.again(shape, remote.session_id, feed, out)
        if plan is None or (borrowed and not plan.tight):
            plan = _plan(remote, process, plans, shape, feed, out, deadline, borrowed)
            if plan is None:
                return None
        if on_channel is not None:
            # A cancel may come from now on. Should the call not be made, the next one would bear its number.
            channel.broken = True
            on_channel(process, channel)
        elif remote.fast_call is None:
            remote.fast_call = bind_fast_call(remote, process, pool)
        return _carry_out(process, plans, plan, feed, deadline, borrowed, out)
    except BaseException as error:
        _look_after(process, plans, error, deadline, feed, out)
        raise
    finally:
        if not channel.abandoned:
            pool.give_back(plans)


FastCall = Callable[
    ["RemoteSession", "Sequence[str] | None", "Mapping[str, Any]", "float | None", bool, Any], "list[Any] | None"
]


def bind_fast_call(remote: RemoteSession, process: HostProcess, pool: ChannelPool) -> FastCall:
    """What makes the call that the session made last in this process once more; ``None`` if this is another one.

    Nothing need have been checked. It raises `FastCallFailed`. It is `run` with everything at hand: a call that
    moves large tensors finds nothing of the bridge's own in the processor's caches, and what takes time then is to
    look for it from object to object.

    The session keeps it, so it must not keep the session: it is given that with each call.
    """
    requests, take, give_back = process.channel.requests, pool.idle.pop, pool.give_back
    left, solo, kills = remote.host.slow_path_reasons
    session, forks, sharing = remote.session_id, _fds.forks, process.sharing
    assert sharing is not None

    def repeat(
        remote: RemoteSession,
        output_names: Sequence[str] | None,
        feed: Mapping[str, Any],
        timeout_s: float | None,
        borrow: bool,
        out: Any,
    ) -> list[Any] | None:
        if remote.live is not process or remote.session_id != session:
            remote.fast_call = None  # made by a call that was overtaken by the next host
            return None
        if (
            process.retiring
            or requests.failure is not None
            or left
            or solo
            or kills
            or _fds.forks != forks
            or monotonic() >= remote.next_upkeep
        ):
            return None
        deadline = None if timeout_s is None else deadline_after(timeout_s)
        try:
            plans = take()
        except IndexError:
            return None
        channel = plans.channel
        try:
            plan = plans.last(session, output_names, feed, out)
            if plan is None or (borrow and out is None and not plan.tight):
                return None
            channel.context = remote.context
            if plan.inline or borrow:
                return _carry_out(process, plans, plan, feed, deadline, borrow and out is None, out)
            # What that comes to in most calls.
            plan.used = True
            if plan.copies:
                plan.put_in(feed)
            sharing.shared_calls += 1
            head = plan.call(deadline)
            if head is not None:
                return _other_answer(plans, head, deadline, out)
            return list(out) if plan.filled and out is not None else plan.take_out(out)
        except BaseException as error:
            _look_after(process, plans, error, deadline, feed, out)
            raise
        finally:
            if not channel.abandoned:
                give_back(plans)

    return repeat


def _carry_out(
    process: HostProcess,
    plans: CallPlans,
    plan: CallPlan,
    feed: Mapping[str, Any],
    deadline: float | None,
    borrowed: bool,
    out: Any,
) -> list[Any]:
    sharing = process.sharing
    assert sharing is not None
    plan.used = True
    if plan.inline:
        sharing.inline_calls += 1
        return _run_inline(plans, plan, feed, deadline, out)
    if plan.copies:
        plan.put_in(feed)
    sharing.shared_calls += 1
    head = plan.call(deadline)
    if head is not None:
        return _other_answer(plans, head, deadline, out)
    if plan.filled and out is not None:
        return list(out)
    if borrowed:
        if plans.may_borrow and sharing.budget.may_borrow:
            return plan.borrow_outputs()
        sharing.borrows_refused += 1
    return plan.take_out(out)


def _look_after(
    process: HostProcess,
    plans: CallPlans,
    error: BaseException,
    deadline: float | None,
    feed: Mapping[str, Any],
    out: Any,
) -> None:
    """A call has failed, or was interrupted. Raises `FastCallFailed`, unless it is the caller's own business."""
    channel = plans.channel
    try:
        if isinstance(error, ChannelEnded):
            _host_gone(process, deadline)
            error = ChannelRetired()
        elif isinstance(error, ChannelTimeout):
            error = Deadline(_give_up(process, plans, _blocks_of(feed, out)) if channel.sent else "not-started")
        elif isinstance(error, ProtocolDesync):
            error = process.channel.fail(error)
        elif channel.broken and channel.busy and not isinstance(error, (ChannelFailed, ChannelRetired, Deadline)):
            # Ctrl+C, for one: the host is told. It may have the call all the same if it was not noted as sent yet.
            _give_up(process, plans, _blocks_of(feed, out))
    except (ChannelFailed, ChannelRetired, Deadline, BridgeError) as found:
        error = found
    if isinstance(error, (ChannelFailed, ChannelRetired, Deadline, BridgeError)):
        raise FastCallFailed(process, error, deadline) from None


def _upkeep(remote: RemoteSession, process: HostProcess) -> bool:
    """What every call on the connection looks after, once a second. False if the call has to go that way."""
    supervisor = remote.host.supervisor
    if remote.closed or not remote.host.blame.quiet or supervisor.current is not process:
        return False
    remote.next_upkeep = monotonic() + UPKEEP_INTERVAL_S
    try:
        supervisor.check_quarantine(remote.context)
    except ModelQuarantined:
        return False
    remote.host.before_call(process)
    return process.usable


def _plan(
    remote: RemoteSession,
    process: HostProcess,
    plans: CallPlans,
    shape: CallSignature,
    feed: Mapping[str, Any],
    out: Sequence[Array | None] | None,
    deadline: float | None,
    borrowed: bool,
) -> CallPlan | None:
    """The plan for this call, made if need be; ``None`` if the host will not have it."""
    inputs = outputs = None
    own = remote.host.own_arrays
    if own is not None:
        inputs = shared_blocks(map(feed.__getitem__, shape.input_names), own, host_writes=False)
        if out is not None:
            outputs = shared_blocks(out, own, host_writes=True)
    try:
        plan = plans.plan(shape, remote.session_id, inputs, outputs, deadline, borrowed)
        shape.refusal = None
        return plan
    except ChannelTimeout:
        raise Deadline("not-started") from None
    except ProtocolDesync:
        raise
    except BridgeError:
        # The long way says what is wrong, if anything is.
        shape.refusal = Refusal(process.generation, monotonic(), shape.refusal)
        return None


def _blocks_of(feed: Mapping[str, Any], out: Sequence[Array | None] | None) -> list[SharedBlock]:
    """What of the application's own memory the host may look at, or write to."""
    bases: list[Any] = [array.base for array in (*feed.values(), *(out or ())) if isinstance(array, np.ndarray)]
    return [base for base in bases if isinstance(base, SharedBlock)]


def _run_inline(
    plans: CallPlans,
    plan: CallPlan,
    feed: Mapping[str, Any],
    deadline: float | None,
    out: Sequence[Array | None] | None,
) -> list[Any]:
    channel, shape = plans.channel, plan.shape
    assert shape is not None
    chunks = [_bytes(feed[name]) for name in shape.input_names]
    results: list[Array] = []
    targets: list[memoryview] = []
    for index, tensor in enumerate(shape.outputs):
        given = None if out is None else out[index]
        direct = given is not None and given.flags.c_contiguous
        result = given if direct and given is not None else np.empty(tensor.shape, tensor.dtype)
        results.append(result)
        targets.append(result.data.cast("B"))
    head = channel.call_inline(plan.number, chunks, plan.size, targets, plan.reply_size, deadline)
    if head is not None:
        return _other_answer(plans, head, deadline, out)
    for index, result in enumerate(results):
        if result.dtype is BOOL:
            np.copyto(result, result.view(np.uint8) != 0)
        given = None if out is None else out[index]
        if given is not None and given is not result:
            np.copyto(given, result)
            results[index] = given
    return results


def _bytes(array: Array) -> memoryview:
    if array.dtype is BOOL:
        array = array.view(np.uint8) != 0
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.data.cast("B")


def _other_answer(
    plans: CallPlans, head: Any, deadline: float | None, out: Sequence[Array | None] | None
) -> list[Any]:
    """An error, or outputs of other shapes than the last time."""
    channel = plans.channel
    frame = channel.read_frame(head, deadline)
    if head.kind is not ChannelKind.VALUES:
        channel.broken = True
        raise desync(f"{head.kind.name} to a call")
    decoder = Decoder(frame.buffers)
    values = [decoder.value(item) for item in frame.header["outputs"]]
    decoder.finish()
    return values if out is None or isinstance(out, OptionalOutputs) else deliver(values, out)


def deliver(values: Sequence[Any], out: Sequence[Array | None]) -> list[Any]:
    """Results that came elsewhere, into the arrays that the application gave."""
    from qnnbridge_protocol.errors import InvalidArgument

    results: list[Any] = []
    for value, target in zip(values, out, strict=True):
        if target is None:
            results.append(value)
            continue
        if value.__class__ is not np.ndarray or value.dtype != target.dtype or value.shape != target.shape:
            got = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise InvalidArgument(
                f"An array of out= is {target.dtype} {target.shape}, the output is {got}.",
                fix="Give an array of the output's type and shape, or None for this output.",
            )
        results.append(target)
    for value, target in zip(values, out, strict=True):
        if target is not None:
            np.copyto(target, value)
    return results


def _host_gone(process: HostProcess, deadline: float | None) -> None:
    """Returns if only the channel has ended; raises `ChannelFailed` if it was the host.

    Its silence proves nothing: the machine may be busy. Whoever waits looks now and then whether it is dead or
    stopped.
    """
    try:
        process.channel.ping(None if deadline is None else max(deadline, monotonic() + ALIVE_GRACE_S))
    except Deadline:
        if process.exit_code(0) is not None:
            raise process.channel.fail(None) from None
        raise


def _give_up(process: HostProcess, plans: CallPlans, blocks: object) -> str:
    """Cancel the call: what became of the work. If it goes on, the channel is kept aside until its answer comes.

    blocks: of the application's arrays. As long as the host may write to them they are nobody else's.
    """
    channel, pool = plans.channel, process.pool
    assert pool is not None
    if channel.answer_begun:
        return "finished"
    state = "still-running"
    try:
        state = process.channel.cancel(channel.call_id, monotonic() + CANCEL_TIMEOUT_S)
        # One that was not started never will be, and may not even have been sent.
        if state != "still-running" and (channel.settle(SETTLE_TIMEOUT_S) or state == "not-started"):
            return state
        if state == "finished":
            state = "still-running"  # or its answer would be there
    except (Deadline, ChannelFailed, ChannelRetired, BridgeError):
        pass
    except BaseException:  # Ctrl+C once more
        pool.abandon(plans, blocks)
        raise
    pool.abandon(plans, blocks)
    return state


__all__ = ["FastCall", "FastCallFailed", "OptionalOutputs", "deliver", "run", "without_traceback"]
