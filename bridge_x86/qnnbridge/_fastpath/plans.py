"""The plans of one channel and the memory of its calls. Used by the thread that has the channel.

All plans of a channel share one slab for inputs and one for outputs, since a channel carries one call at a time.
"""

from __future__ import annotations

import itertools
from typing import Any, Protocol

import numpy as np

from qnnbridge._fastpath.call import CallKey, CallSignature, Out, TensorSignature
from qnnbridge._fastpath.channel import FastChannel
from qnnbridge._fastpath.memory import SharedBlock, Slab, SlabOfArrays
from qnnbridge_protocol.fastpath import layout

# Plans of one channel; the host takes twice as many.
MAX_PLANS = 128

# A channel that is this many times larger than its calls is not kept when idle, unless it is small.
ROOMY = 4
SMALL_BYTES = 1024 * 1024

Array = np.ndarray[Any, np.dtype[Any]]

BOOL = np.dtype(np.bool_)


class NoSharedMemory(Exception):
    """There is no shared memory, or not enough: the call goes by the connection."""


class SlabSource(Protocol):
    """Allocates and frees the memory shared with one host process. Any thread."""

    def new_slab(self, wanted: int, deadline: float | None, *, host_writes: bool) -> Slab:
        """A slab that the host has attached. Raises `NoSharedMemory`, and the errors that end a call."""

    def release(self, number: int) -> None:
        """The host need not know the slab any more."""

    def show(self, slab: SlabOfArrays, deadline: float | None) -> None:
        """Attach a slab of the application's arrays unless the host knows it already."""


class CallPlan:
    """A call that both sides know, on one channel.

    Attributes:
        number: its number on the channel.
        size: bytes of inputs and outputs without a place of their own.
    """

    __slots__ = ("_inputs", "_outputs", "number", "signature", "size")

    def __init__(
        self,
        number: int,
        signature: CallSignature,
        inputs: list[Array | None],
        outputs: list[Array | None],
        size: int,
    ) -> None:
        """inputs: where they are copied to. outputs: where they come. ``None`` for one with a place."""
        self.number = number
        self.signature = signature
        self.size = size
        self._inputs = tuple(
            (index, target, target.dtype == BOOL) for index, target in enumerate(inputs) if target is not None
        )
        self._outputs = tuple(
            (source, tensor.dtype == BOOL) for source, tensor in zip(outputs, signature.outputs, strict=True)
        )

    def put_in(self, arrays: tuple[Array, ...]) -> None:
        """Copy the inputs into shared memory."""
        for index, target, is_bool in self._inputs:
            if is_bool:
                _copy_bools(target, arrays[index])
            else:
                target[...] = arrays[index]  # as copyto, without its dispatch: 0.3 us

    def take_out(self, out: Out | None) -> list[Array]:
        """The results as new arrays, or in the arrays of `out`."""
        results: list[Array] = []
        for index, (source, is_bool) in enumerate(self._outputs):
            target = None if out is None else out[index]
            if target is None:
                assert source is not None
                if not is_bool:
                    results.append(source.copy())
                    continue
                target = np.empty(source.shape, BOOL)
            if is_bool:
                _copy_bools(target, target if source is None else source)
            elif source is not None:
                np.copyto(target, source)
            results.append(target)
        return results


def _copy_bools(target: Array, source: Array) -> None:
    """With bytes that are all 0 or 1: either side may use any byte for true."""
    np.not_equal(source.view(np.uint8), 0, out=target)


class ChannelPlans:
    """The plans of one channel, and the memory of its calls. The thread that has this object has the channel."""

    def __init__(self, channel: FastChannel, slabs: SlabSource) -> None:
        self.channel = channel
        self._slabs = slabs
        self._plans: dict[tuple[Any, ...], CallPlan] = {}
        self._numbers = itertools.count(1)
        self._request: Slab | None = None
        self._reply: Slab | None = None
        # Bytes that the largest call since the last look of the maintenance thread needed.
        self._needed = 0

    def find(self, key: CallKey) -> CallPlan | None:
        plan = self._plans.get(key.key)
        # The maintenance thread reads and resets it in `outgrown` without a lock: it has the channel then.
        if plan is not None and plan.size > self._needed:
            self._needed = plan.size
        return plan

    def make(self, session: int, key: CallKey, signature: CallSignature, deadline: float | None) -> CallPlan:
        """Raises the host's errors, and `NoSharedMemory`."""
        places = key.outputs or (None,) * len(signature.outputs)
        in_at, in_size = _layout(signature.inputs, key.inputs)
        out_at, out_size = _layout(signature.outputs, places)
        # All plans go at once: they hold offsets in the memory that is replaced, and a list of which one was
        # used last would cost each call.
        if len(self._plans) >= MAX_PLANS or self._too_small(in_size, out_size):
            self._start_again(in_size, out_size, deadline)
        header: dict[str, Any] = {
            "op": "plan.make",
            "plan": next(self._numbers),
            "session": session,
            "inline": False,
        }
        views: dict[str, list[Array | None]] = {"inputs": [], "outputs": []}
        for side, tensors, blocks, offsets, slab in (
            ("inputs", signature.inputs, key.inputs, in_at, self._request),
            ("outputs", signature.outputs, places, out_at, self._reply),
        ):
            header[side] = []
            for tensor, block, offset in zip(tensors, blocks, offsets, strict=True):
                if block is None:
                    assert slab is not None
                    views[side].append(slab.view(tensor.shape, tensor.dtype, offset))
                    place = (slab.number, offset)
                else:
                    # Arrays outlive hosts, so this host may not have been shown the memory yet.
                    self._slabs.show(block.slab, deadline)
                    views[side].append(None)
                    place = block.place
                header[side].append([tensor.name, int(tensor.element), list(tensor.shape), *place])
        # The plan is entered only when the host has accepted it; after an interrupt in between the number is
        # used up, and the host drops the plan with the channel.
        self.channel.ask(header, deadline)
        plan = CallPlan(header["plan"], signature, views["inputs"], views["outputs"], in_size + out_size)
        self._plans[key.key] = plan
        self._needed = max(self._needed, plan.size)
        return plan

    def outgrown(self) -> bool:
        """Whether the calls since the last look needed much less memory than the channel has."""
        there = sum(slab.size for slab in (self._request, self._reply) if slab is not None)
        needed, self._needed = self._needed, 0
        return there > max(SMALL_BYTES, ROOMY * needed)

    # --- parts ---

    def _too_small(self, in_size: int, out_size: int) -> bool:
        for slab, wanted in ((self._request, in_size), (self._reply, out_size)):
            if wanted and (slab is None or slab.size < wanted):
                return True
        return False

    def _start_again(self, in_size: int, out_size: int, deadline: float | None) -> None:
        """Drop all plans, and replace memory that is too small for this call."""
        plans, self._plans = self._plans, {}
        if plans:
            dropped = [plan.number for plan in plans.values()]
            self.channel.ask({"op": "plan.drop", "plans": dropped}, deadline)
        self._request = self._slab_for(self._request, in_size, deadline, host_writes=False)
        self._reply = self._slab_for(self._reply, out_size, deadline, host_writes=True)

    def _slab_for(self, old: Slab | None, wanted: int, deadline: float | None, *, host_writes: bool) -> Slab | None:
        if not wanted or (old is not None and old.size >= wanted):
            return old
        slab = self._slabs.new_slab(wanted, deadline, host_writes=host_writes)
        # Entered before the old one is released: if an exception comes here, the channel's end releases both.
        self.channel.slabs.append(slab.number)
        if old is not None:
            self._slabs.release(old.number)
            self.channel.slabs.remove(old.number)
        return slab


def _layout(tensors: tuple[TensorSignature, ...], places: tuple[SharedBlock | None, ...]) -> tuple[list[int], int]:
    """Offsets of the tensors without a place, and their size."""
    return layout([0 if block else tensor.nbytes for tensor, block in zip(tensors, places, strict=True)])
