"""The plans of one channel and the memory of its calls. Used by the thread that has the channel.

All plans of a channel share one slab for inputs and usually one for outputs, since a channel carries one call at a
time. While the application borrows results, further slabs for outputs are added; those are not much larger than the
results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy import ndarray

from qnnbridge._fastpath.arrays import Blocks, SharedBlock, no_array
from qnnbridge._fastpath.call import BOOL, CallPlan, CallSignature, InPlaceOutputs, TensorSignature, Whole
from qnnbridge._fastpath.channel import FastChannel
from qnnbridge._fastpath.memory import SMALLEST_SLAB_BYTES, Slab
from qnnbridge_protocol.fastpath import layout

# Plans of one channel; the host takes twice as many.
MAX_PLANS = 128

# Borrowed slabs of one channel; beyond that, results are copied.
MAX_BORROWED_SLABS = 8

# Slabs for outputs of one channel. Free ones are replaced by slabs of another size.
MAX_REPLIES = MAX_BORROWED_SLABS + 4

# A slab larger than this many times the need is not borrowed, and not kept when idle.
ROOMY = 4

# Time before a refused amount of memory is requested again.
MEMORY_RETRY_S = 1.0

# Less memory than this is not given back.
SMALL_BYTES = 1024 * 1024

Array = np.ndarray[Any, np.dtype[Any]]


class NoSharedMemory(Exception):
    """There is no shared memory, or not enough: the call is made inline."""


class SlabSource(Protocol):
    """Allocates and frees the memory shared with one host process. Any thread."""

    def new_slab(self, wanted: int, deadline: float | None, *, host_writes: bool) -> Slab:
        """A slab that the host has attached. Raises `NoSharedMemory`, and the errors that end a call."""

    def drop_slab(self, slab: Slab) -> None: ...

    def show(self, slab: Slab, deadline: float | None) -> None:
        """Attach a slab of the application's arrays unless the host knows it already."""


class CallPlans:
    """See the module."""

    def __init__(self, channel: FastChannel, slabs: SlabSource, *, shared: Callable[[], bool]) -> None:
        self.channel = channel
        self._slabs = slabs
        self._shared = shared
        self._plans: dict[Any, CallPlan] = {}
        self._last_number = 0
        self._request: Slab | None = None
        self._replies: list[Slab] = []
        self._reply: Slab | None = None
        self._latest: dict[CallSignature, CallPlan] = {}
        # The last plan of each session.
        self._recent: dict[int, CallPlan] = {}
        # Pairs of plans for the same call in two slabs: while the application uses one result, the next goes to the
        # other.
        self._turns: dict[CallPlan, CallPlan] = {}
        self._too_much = 0
        self._retry_at = 0.0
        # Estimate of the host's memory for inline calls of this channel.
        self._inline_bytes = 0
        # Blocks that an abandoned call may still write to.
        self.pinned: object = None

    @property
    def may_borrow(self) -> bool:
        """Whether the free slab of this call may be borrowed, too."""
        slabs = self._replies
        return (
            len(slabs) <= MAX_BORROWED_SLABS or sum(not slab.borrows.free() for slab in slabs) < MAX_BORROWED_SLABS
        )

    def outgrown(self) -> bool:
        """Whether the calls since the last look needed much less memory than the channel has."""
        needed = 0
        for plan in self._plans.values():
            if plan.used:
                plan.used = False
                needed = max(needed, plan.needs)
        there = self._inline_bytes + sum(slab.size for slab in self._replies if slab.borrows.free())
        if self._request is not None:
            there += self._request.size
        return there > max(SMALL_BYTES, ROOMY * needed)

    def last(
        self, session: int, output_names: Sequence[str] | None, feed: Mapping[str, Any], out: Any
    ) -> CallPlan | None:
        """The plan of the session's last call if this call is the same.

        The caller has checked nothing. All checks are here in one pass, because large tensors evict the bridge's
        own objects from the processor's caches.
        """
        plan = self._recent.get(session)
        if plan is None or feed.__class__ is not dict or len(feed) != len(plan.given):
            return None
        if not _same_names(plan, output_names):
            return None
        if out is not None and (out.__class__ is not list or len(out) != len(plan.taken)):
            return None
        return self._fitting(plan, feed, out)

    def again(self, shape: CallSignature, session: int, feed: Mapping[str, Any], out: Any) -> CallPlan | None:
        """The plan of the last call with this signature, if it fits these arrays."""
        plan = self._latest.get(shape)
        return None if plan is None or plan.session != session else self._fitting(plan, feed, out)

    def _fitting(self, plan: CallPlan, feed: Mapping[str, Any], out: Any) -> CallPlan | None:
        reply = plan.reply
        if reply is not self._reply or (reply is not None and reply.borrows.held):
            free = self._in_free_memory(plan)
            if free is None:
                return None
            plan = free
        for name, dtype, dims, whole in plan.given:
            array = feed.get(name)
            if whole is no_array:
                if array.__class__ is not ndarray or array.base.__class__ is SharedBlock:
                    return None
            elif array is None or whole() is not array:  # an array that is gone gives ``None``, too
                return None
            if (
                array.dtype is not dtype or array.shape != dims
            ):  # also for the same array: both attributes can be set
                return None
        if out is None:
            return None if plan.fills else plan
        if plan.in_place and out.__class__ is not InPlaceOutputs:
            return None
        for target, (dtype, dims, whole) in zip(out, plan.taken):  # noqa: B905 - as many as there are outputs
            if target is None:  # also for an array that is gone
                if whole is not no_array:
                    return None
                continue
            if whole is no_array:
                if target.__class__ is not ndarray or target.base.__class__ is SharedBlock:
                    return None
            elif whole() is not target:
                return None
            if target.dtype is not dtype or target.shape != dims or not target.flags.writeable:
                return None
        return plan

    def _in_free_memory(self, plan: CallPlan) -> CallPlan | None:
        """This plan or its pair, whichever has a slab without borrowed results."""
        for candidate in (plan, self._turns.get(plan)):
            if candidate is not None and candidate.reply is not None and candidate.reply.borrows.free():
                candidate.reply.borrows.reuse()
                self._reply = candidate.reply
                return candidate
        return None

    def plan(
        self,
        shape: CallSignature,
        session: int,
        inputs: Blocks | None,
        outputs: Blocks | None,
        deadline: float | None,
        borrowed: bool,
    ) -> CallPlan:
        """The plan for this call, made if necessary. Raises the host's errors.

        Args:
            shape: the signature.
            session: number of the host's session.
            inputs, outputs: blocks of the application's arrays, ``None`` if there are none.
            deadline: when the caller's time is up.
            borrowed: the results stay in place.
        """
        if self._shared():
            wanted = shape.reply_bytes if outputs is None else _reply_bytes(shape, outputs)
            try:
                self._reply = self._reply_for(wanted, deadline, borrowed)
            except NoSharedMemory:
                self._reply = None
        reply = self._reply
        key: Any = (shape, reply)
        if inputs is not None or outputs is not None:
            key = (shape, reply, _key(inputs), _key(outputs))
        plan = self._plans.get(key)
        if plan is None or plan.session != session:
            plan = self._make(shape, session, inputs, outputs, deadline)
        plan.shape = shape
        if not plan.inline or not self._shared():
            if plan.inline:
                inputs = outputs = None
            plan.given = tuple(
                (tensor.name, tensor.dtype, tensor.shape, whole)
                for tensor, whole in zip(shape.inputs, _wholes(inputs, len(shape.inputs)), strict=True)
            )
            plan.taken = tuple(
                (tensor.dtype, tensor.shape, whole)
                for tensor, whole in zip(shape.outputs, _wholes(outputs, len(shape.outputs)), strict=True)
            )
            plan.fills = outputs is not None
            self._latest[shape] = plan
            before = self._recent.get(session)
            if before is not None and before is not plan and before.shape is shape:
                self._turns[before], self._turns[plan] = plan, before
            self._recent[session] = plan
        return plan

    def close(self) -> None:
        """Free all memory."""
        self._plans.clear()
        self._forget_which_were_last()
        for slab in (*self._replies, *((self._request,) if self._request is not None else ())):
            self._slabs.drop_slab(slab)
        self._replies = []
        self._request = self._reply = self.pinned = None

    # --- making plans ---

    def _make(
        self,
        shape: CallSignature,
        session: int,
        inputs: Blocks | None,
        outputs: Blocks | None,
        deadline: float | None,
    ) -> CallPlan:
        self._make_room(shape, session, deadline)
        if self._reply is not None:
            try:
                return self._make_shared(self._reply, shape, session, inputs, outputs, deadline)
            except NoSharedMemory:
                pass
        plan = self._plans.get((shape, None))
        if plan is None or plan.session != session:
            plan = CallPlan(self._next_number(), session, inline=True)
            plan.size = sum(tensor.nbytes for tensor in shape.inputs)
            plan.reply_size = sum(tensor.nbytes for tensor in shape.outputs)
            plan.needs = plan.size + shape.reply_bytes
            self._tell(
                plan, [_wire(t, 0, 0) for t in shape.inputs], [_wire(t, 0, 0) for t in shape.outputs], deadline
            )
            self._plans[shape, None] = plan
            self._inline_bytes = max(self._inline_bytes, plan.needs)
        return plan

    def _make_shared(
        self,
        reply: Slab,
        shape: CallSignature,
        session: int,
        inputs: Blocks | None,
        outputs: Blocks | None,
        deadline: float | None,
    ) -> CallPlan:
        in_blocks = inputs or (None,) * len(shape.inputs)
        out_blocks = outputs or (None,) * len(shape.outputs)
        in_at, in_size = layout([0 if b else t.nbytes for t, b in zip(shape.inputs, in_blocks, strict=True)])
        out_at, out_size = layout([0 if b else t.nbytes for t, b in zip(shape.outputs, out_blocks, strict=True)])
        request = self._request_for(in_size, deadline)
        plan = CallPlan(self._next_number(), session, inline=False)
        plan.needs = in_size + out_size
        plan.tight = _is_tight(reply, out_size)
        plan.reply = reply
        plan.call = self.channel.caller(plan.number)
        told: tuple[list[Any], list[Any]] = ([], [])
        for tensor, block, at in zip(shape.inputs, in_blocks, in_at, strict=True):
            told[0].append(self._locate(tensor, block, request, at, deadline))
            if block is None:
                plan.copies.append((tensor.name, request.view(tensor.shape, tensor.dtype, at)))
        for tensor, block, at in zip(shape.outputs, out_blocks, out_at, strict=True):
            told[1].append(self._locate(tensor, block, reply, at, deadline))
            if block is not None:
                plan.results.append(None)
                plan.interfaces.append({})
                continue
            view = reply.view(tensor.shape, tensor.dtype, at)
            plan.results.append(view)
            interface = dict(view.__array_interface__)
            interface["data"] = (interface["data"][0], True)
            plan.interfaces.append(interface)
        self._tell(plan, *told, deadline)
        plan.plain = inputs is None and outputs is None
        written = {block.location for block in out_blocks if block is not None}
        plan.in_place = any(block is not None and block.location in written for block in in_blocks)
        if any(tensor.dtype is BOOL for tensor in (*shape.inputs, *shape.outputs)):
            plan.plain = False
        else:
            plan.filled = all(result is None for result in plan.results)
        key: Any = (shape, reply)
        if inputs is not None or outputs is not None:
            key = (shape, reply, _key(inputs), _key(outputs))
        self._plans[key] = plan
        return plan

    def _locate(
        self, tensor: TensorSignature, block: SharedBlock | None, slab: Slab, offset: int, deadline: float | None
    ) -> list[Any]:
        if block is None:
            return _wire(tensor, slab.number, offset)
        self._slabs.show(block.slab, deadline)
        return _wire(tensor, block.slab.number, block.offset)

    def _tell(self, plan: CallPlan, inputs: list[Any], outputs: list[Any], deadline: float | None) -> None:
        self.channel.ask(
            {
                "op": "plan.make",
                "plan": plan.number,
                "session": plan.session,
                "inline": plan.inline,
                "inputs": inputs,
                "outputs": outputs,
            },
            deadline,
        )

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _make_room(self, shape: CallSignature, session: int, deadline: float | None) -> None:
        """Make room for one more plan; plans of the signature for an earlier session are dropped."""
        old = [key for key, plan in self._plans.items() if key[0] is shape and plan.session != session]
        if not old and len(self._plans) >= MAX_PLANS:
            old = list(self._plans)[: MAX_PLANS // 2]
        if old:
            self._drop(old, deadline)

    def _forget_which_were_last(self) -> None:
        self._latest.clear()
        self._recent.clear()
        self._turns.clear()

    def _drop(self, keys: Sequence[Any], deadline: float | None) -> None:
        self._forget_which_were_last()
        dropped = {plan.number for plan in map(self._plans.pop, keys)}
        dropped -= {plan.number for plan in self._plans.values()}
        if dropped:
            self.channel.ask({"op": "plan.drop", "plans": sorted(dropped)}, deadline)

    # --- memory ---

    def _new_slab(self, wanted: int, deadline: float | None, *, host_writes: bool) -> Slab:
        # Finding out that there is no memory may take milliseconds: not in each call.
        if wanted >= self._too_much and time.monotonic() < self._retry_at:
            raise NoSharedMemory
        try:
            return self._slabs.new_slab(wanted, deadline, host_writes=host_writes)
        except NoSharedMemory:
            self._too_much, self._retry_at = wanted, time.monotonic() + MEMORY_RETRY_S
            raise

    def _request_for(self, wanted: int, deadline: float | None) -> Slab:
        """The slab for inputs; one that is too small is replaced."""
        old = self._request
        if old is not None and old.size >= wanted:
            return old
        new = self._request = self._new_slab(wanted, deadline, host_writes=False)
        if old is not None:
            self._replace(old, lambda plan: not plan.inline, deadline)
        return new

    def _reply_for(self, wanted: int, deadline: float | None, borrowed: bool) -> Slab:
        """A slab for outputs without borrowed results. Raises `NoSharedMemory`.

        borrowed: the slab must not be much too large, since the application may keep it.
        """
        best = None
        for slab in self._replies:
            if slab.size < wanted or (borrowed and not _is_tight(slab, wanted)) or not slab.borrows.free():
                continue
            if slab is self._reply:
                best = slab
                break
            if best is None or slab.size < best.size:
                best = slab
        if best is None:
            before = [slab for slab in self._replies if slab.borrows.free()]
            best = self._new_slab(wanted, deadline, host_writes=True)
            self._replies.append(best)
            for slab in before:
                # Smaller slabs are of no more use, unless results are borrowed.
                if (not borrowed and slab.size < wanted) or len(self._replies) > MAX_REPLIES:
                    self._replies.remove(slab)
                    self._replace(slab, lambda plan, slab=slab: plan.reply is slab, deadline)  # type: ignore[misc]
        best.borrows.reuse()
        return best

    def _replace(self, slab: Slab, uses: Callable[[CallPlan], bool], deadline: float | None) -> None:
        try:
            self._drop([key for key, plan in self._plans.items() if uses(plan)], deadline)
        finally:
            self._slabs.drop_slab(slab)


def _same_names(plan: CallPlan, output_names: Any) -> bool:
    """Whether the plan's call asks for these outputs; False also for anything but a list or tuple of names."""
    wanted = plan.shape.wanted if plan.shape is not None else None
    if not output_names:
        return wanted is None
    return output_names.__class__ in (list, tuple) and wanted == tuple(output_names)


def _is_tight(slab: Slab, wanted: int) -> bool:
    return slab.size <= max(SMALLEST_SLAB_BYTES, ROOMY * wanted)


def _reply_bytes(shape: CallSignature, outputs: Blocks) -> int:
    """Bytes of the outputs outside of the application's blocks."""
    return layout([0 if b else t.nbytes for t, b in zip(shape.outputs, outputs, strict=True)])[1]


def _key(blocks: Blocks | None) -> tuple[tuple[int, int] | None, ...] | None:
    if blocks is None:
        return None
    if len(blocks) == 1:  # the usual case; a generator costs half a microsecond
        block = blocks[0]
        return (None if block is None else block.location,)
    return tuple([None if block is None else block.location for block in blocks])


def _wholes(blocks: Blocks | None, count: int) -> tuple[Whole, ...]:
    return tuple(no_array if block is None else block.array for block in blocks or (None,) * count)


def _wire(tensor: TensorSignature, slab: int, offset: int) -> list[Any]:
    return [tensor.name, int(tensor.element), list(tensor.shape), slab, offset]
