"""The application's end of a fast channel: two pipes that carry one call at a time.

The calling thread writes the call and reads the answer, and no other thread uses the channel meanwhile. If the
exchange fails (deadline, Ctrl+C, malformed answer), the channel stays `broken` and is not used again, because
unread bytes of the old answer may follow.

During a call (`busy`), the channel is an entry of the table of open requests (see `open_requests` for the states of
a call).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from qnnbridge._fastpath.call import CallKey, CallSignature, Out, TensorSignature
from qnnbridge._fastpath.memory import Array, SharedBlock, Slab, SlabOfArrays
from qnnbridge._transport.open_requests import NO_CONTEXT, CallContext, ChannelFailed
from qnnbridge_os.processes import ChannelStreams, wait_readable, wait_writable, writer
from qnnbridge_protocol.errors import desync, from_wire
from qnnbridge_protocol.fastpath import (
    CHANNEL_MAGIC,
    HEAD,
    HEAD_BYTES,
    LAST_NUMBER,
    NUMBER_AT,
    PHASE_RECORD,
    PHASES,
    PLAN_AT,
    ChannelKind,
    Head,
    TailReader,
    call_id,
    layout,
    next_number,
    pack_head,
    parse_head,
    tail_of,
)
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.limits import Limits

# Interval in seconds at which a waiting caller or the maintenance thread checks whether the host can still answer.
CHECK_INTERVAL_S = 5.0

_CHECK_INTERVAL_MS = CHECK_INTERVAL_S * 1000

# Seconds that an eager caller polls before it sleeps: about as long as waking a thread on another core takes.
SPIN_S = 25e-6

# Maximum number of calls without polling after polling has failed, because the host is slower than `SPIN_S`.
_MAX_BACK_OFF = 64


# Head of a message and expected head of its answer, each with a view of its 32-bit words. All calls use the same
# heads, in which only the numbers change: assigning to a word is five times faster than packing a head.
Heads = tuple[bytearray, memoryview, bytearray, memoryview]


def _heads(kind: ChannelKind, answer: ChannelKind, tail_bytes: int = 0) -> Heads:
    out, expected = bytearray(pack_head(kind, 0, tail_bytes=tail_bytes)), bytearray(pack_head(answer, 0))
    return out, memoryview(out).cast("I"), expected, memoryview(expected).cast("I")


class ChannelEnded(Exception):
    """The host has closed its end of the channel, or the host process has ended."""


class ChannelTimeout(Exception):
    """The caller's deadline has expired."""


class FastChannel:
    """Two pipes that carry one call at a time.

    Args:
        number: number of the channel, never reused on this connection.
        slot: index of the channel's record in the phase slab, where the host records the native step of the call.
        streams: the two pipes.
        limits: the agreed limits.
        check_host: function that is called periodically while nothing arrives; a returned failure ends the call.
        record: the channel's phase record.
        eager: whether callers poll before they sleep.

    Attributes:
        pinned: objects that keep the memory of the current call alive, in addition to the channel's slabs.
        slabs: the slabs that were created for this channel.
    """

    def __init__(
        self,
        number: int,
        slot: int,
        streams: ChannelStreams,
        limits: Limits,
        check_host: Callable[[], ChannelFailed | None],
        record: memoryview,
        *,
        eager: bool = False,
    ) -> None:
        self.number = number
        self.slot = slot
        self.busy = False
        self.sent = False
        self.broken = False
        self.context: CallContext = NO_CONTEXT
        self.pinned: object = None
        self.slabs: list[Slab] = []
        # The `ChannelPlans` of the channel; ``None`` after a caller has abandoned a call that may still be running.
        self.owner: weakref.ref[ChannelPlans] | None = None
        self._streams = streams
        self._limits = limits
        self._check_host = check_host
        self._record = record
        self._call_number = 0
        self._eager = eager
        self._back_off = self._skip = 0
        # Create the buffers once, so that a call allocates nothing. They need no lock, because only one thread at a
        # time uses the channel.
        self._in = bytearray(HEAD_BYTES)
        self.to_call = _heads(ChannelKind.CALL, ChannelKind.RESULT)
        self._to_ping = _heads(ChannelKind.PING, ChannelKind.PONG)
        # `readinto` of a raw file reads into existing memory without creating a bytes object; os.readinto requires
        # Python 3.14. `streams` closes the descriptor.
        self._file = io.FileIO(streams.read_fd, "rb", closefd=False)
        self._readinto = self._file.readinto
        # On Windows (`MAY_BLOCK` is false) only the host can end a blocking read, so callers wait in `poll`.
        self._may_block = streams.MAY_BLOCK and not eager
        self._blocked = False
        self._woken = False

    @property
    def calls(self) -> int:
        """Number of the last call. Each call has a different number."""
        return self._call_number

    @property
    def call_id(self) -> int:
        """Id by which the current call can be cancelled."""
        return call_id(self.number, self._call_number)

    @property
    def next_call_id(self) -> int:
        """Id of the next call. Only the thread that uses the channel may read it."""
        return call_id(self.number, next_number(self._call_number))

    @property
    def owned(self) -> bool:
        """Whether a caller uses the channel or the pool keeps it for later calls."""
        return self.owner is not None and self.owner() is not None

    @property
    def abandoned(self) -> bool:
        """Whether an abandoned call may still be running in the host."""
        return self.busy and not self.owned

    @property
    def phase(self) -> str | None:
        """Native step of the current call, as recorded by the host."""
        # The host writes this record without a lock, so check that the record belongs to the current call.
        number, phase = PHASE_RECORD.unpack_from(self._record)
        return PHASES[phase] if number == self._call_number and 0 < phase < len(PHASES) else None

    # --- methods for the maintenance thread, which checks the host for callers in a blocking read ---

    @property
    def blocked(self) -> bool:
        """Whether a caller waits in a blocking read, in which it cannot check the host. Thread-safe."""
        return self._blocked and self.busy and self.owned

    def wake_reader(self) -> None:
        """Wake the caller from its read, because the host is considered dead. Thread-safe.

        Later data of this channel is not reliable.
        """
        # Set the flag before writing the bytes that wake the reader, because the reader then checks the flag.
        self._woken = True
        with contextlib.suppress(OSError):
            self._streams.wake_reader(HEAD.pack(CHANNEL_MAGIC, ChannelKind.PHASE, 0, 0, self._call_number, 0, 0, 0))

    # --- calls ---

    def exchange(
        self, heads: Heads, plan: int, deadline: float | None, tail: memoryview | None = None
    ) -> Head | None:
        """Send a message and wait for its answer.

        Return ``None`` if the answer is the expected answer in `heads`. Otherwise return the head of the answer,
        whose tail has not been read.
        """
        # The channel counts as broken until the answer has been read, so that no later call uses a channel that
        # contains half an answer.
        self.broken = True
        self.sent = False
        # Block in the read, because polling would take a tenth of the call's time. `wake_reader` ends the read if
        # the host dies.
        self._blocked = blocked = deadline is None and self._may_block
        number = self._call_number
        self._call_number = number = number + 1 if number < LAST_NUMBER else 1
        self.busy = True
        out, words, expected, expected_words = heads
        words[NUMBER_AT] = expected_words[NUMBER_AT] = number
        words[PLAN_AT] = plan
        try:
            # Send the head with `write`, which checks that the descriptor still belongs to this channel.
            self._streams.write(out)
        except OSError:
            raise ChannelEnded from None
        if tail is not None:
            self._send_all(tail, deadline)
        self.sent = True
        if not blocked:
            self._wait(deadline)
        count = self._readinto(self._in)
        # Compare the 32 bytes with the expected answer, which is faster than parsing them. A write of up to
        # PIPE_BUF (4,096 bytes on Linux) arrives in one read; `_head` handles all other answers.
        if count == HEAD_BYTES and self._in == expected:
            # Reset the flags last: an exception before this line leaves the channel broken, so it will be closed.
            self.busy = self.broken = False
            return None
        if not count:
            raise ChannelEnded
        return self._head(deadline, count)

    def ping(self, deadline: float | None) -> None:
        head = self.exchange(self._to_ping, 0, deadline)
        if head is not None:
            raise desync(f"{head.kind.name} as the answer to a PING")

    def ask(self, header: dict[str, Any], deadline: float | None) -> None:
        """Send a request to create or drop plans. Raise the host's errors."""
        chunks, size = tail_of(Frame(Kind.REQUEST, 1, header), self._limits)
        heads = _heads(ChannelKind.ASK, ChannelKind.ANSWER, size)
        answer = self.exchange(heads, 0, deadline, memoryview(b"".join(chunks)))
        if answer is None:
            self.broken = True
            raise desync("ANSWER without a tail")
        frame = self.read_frame(answer, deadline)
        if answer.kind is not ChannelKind.ANSWER:
            self.broken = True
            raise desync(f"{answer.kind.name} as the answer to a question", frame.header.get("op", b""))

    def read_frame(self, head: Head, deadline: float | None) -> Frame:
        """Read the frame that follows the head of an answer. Raise the error that an ERROR frame contains."""
        tail = TailReader(head.tail_bytes, self._limits)
        while tail.frame is None:
            buffer = tail.buffer()
            if not buffer.nbytes:
                raise desync(f"{head.kind.name} without a tail")
            self._wait(deadline)
            count = self._readinto(buffer)
            if not count:
                raise ChannelEnded
            tail.received(count)
        self.busy = self.broken = False
        if head.kind is ChannelKind.ERROR:
            raise from_wire(tail.frame.header.get("error") or {})
        return tail.frame

    # --- after a failed call ---

    def answered(self) -> bool:
        """Return whether the answer to an abandoned call has arrived, or the channel was closed. Thread-safe."""
        try:
            # Do not use `self._streams.poll`, which only one thread at a time may call.
            return wait_readable(self._streams.read_fd, 0)
        except OSError:  # the channel is closed
            return True

    def close(self) -> None:
        self.broken = True
        self._streams.close()

    # --- parts ---

    def _send_all(self, rest: memoryview, deadline: float | None) -> None:
        fd = self._streams.write_fd
        while rest.nbytes:
            try:
                rest = rest[writer(fd)([rest]) :]
            except BlockingIOError:
                # A host that does not read blocks the write. Wait in intervals to notice the deadline or the host's
                # death.
                left_s = (
                    CHECK_INTERVAL_S if deadline is None else min(CHECK_INTERVAL_S, deadline - time.monotonic())
                )
                if not wait_writable(fd, max(0.0, left_s)):
                    self._check(deadline)
            except OSError:
                raise ChannelEnded from None

    def _head(self, deadline: float | None, filled: int) -> Head:
        """Return the next head. Skip PHASE heads, which only wake the reader. filled: bytes already read."""
        view = memoryview(self._in)
        while True:
            while filled < HEAD_BYTES:
                self._wait(deadline)
                count = self._readinto(view[filled:])
                if not count:
                    raise ChannelEnded
                filled += count
            head = parse_head(self._in, self._limits, from_client=False)
            if head.number != self._call_number:
                raise desync(f"answer to call {head.number} on a channel, expected {self._call_number}", self._in)
            # `wake_reader` may have written these bytes because the host is considered dead. `_check` then raises
            # the host's failure. If `_check` does not raise, the host is running, so read its answer.
            if self._woken:
                self._check(deadline)
            if head.kind is not ChannelKind.PHASE:
                return head
            filled = 0

    def _wait(self, deadline: float | None) -> None:
        """Wait for data. Raise an error if the deadline has passed or the host has failed."""
        if self._eager and self._spin():
            return
        while True:
            left_ms = _CHECK_INTERVAL_MS
            if deadline is not None:
                left_ms = min(left_ms, max(0.0, (deadline - time.monotonic()) * 1000))
            if self._streams.poll(left_ms):
                return
            self._check(deadline)

    def _check(self, deadline: float | None) -> None:
        """Raise `ChannelTimeout` if the deadline has passed, or the error if the host has failed."""
        if deadline is not None and time.monotonic() >= deadline:
            raise ChannelTimeout
        silence = self._check_host()
        if silence is not None:
            raise silence

    def _spin(self) -> bool:
        """Poll for `SPIN_S`. After each failure, double the number of calls that skip the polling."""
        if self._skip:
            self._skip -= 1
            return False
        until = time.perf_counter() + SPIN_S
        while not self._streams.poll(0):
            if time.perf_counter() >= until:
                # `or 1` begins the doubling when the value is 0.
                self._back_off = min(_MAX_BACK_OFF, self._back_off * 2 or 1)
                self._skip = self._back_off
                return False
        self._back_off = 0
        return True


# --- the plans of one channel, and the memory of its calls --------------------------------------------------

# Maximum number of plans of one channel. The host allows twice as many, because after an exception it may still
# have the old plans.
MAX_PLANS = 128

# Maximum ratio of an idle channel's memory to the memory that its recent calls needed. A channel with a higher
# ratio is closed if its memory is larger than `SMALL_BYTES`.
ROOMY = 4
SMALL_BYTES = 1024 * 1024

BOOL = np.dtype(np.bool_)


class NoSharedMemory(Exception):
    """Shared memory is not available or too small, so the call uses the connection."""


class SlabSource(Protocol):
    """Interface for allocating and freeing memory that is shared with one host process. Thread-safe."""

    def new_slab(self, wanted: int, deadline: float | None, *, host_writes: bool) -> Slab:
        """Return a slab that the host has attached. Raise `NoSharedMemory`, or another error that ends the call."""

    def release(self, number: int) -> None:
        """Tell the host that it may detach a slab."""

    def ensure_attached(self, slab: SlabOfArrays, deadline: float | None) -> None:
        """Attach a slab of the application's arrays unless the host has attached it already."""


class CallPlan:
    """A repeated call, prepared on both sides of a channel.

    Attributes:
        number: number of the plan, unique on its channel.
        size: bytes of the inputs and outputs that are not in shared blocks of the application.
        used: whether a call used the plan since the last check of the maintenance thread.
    """

    __slots__ = ("_inputs", "_outputs", "number", "signature", "size", "used")

    def __init__(
        self,
        number: int,
        signature: CallSignature,
        inputs: list[Array | None],
        outputs: list[Array | None],
        size: int,
    ) -> None:
        """
        Args:
            inputs: arrays in shared memory to which the inputs are copied; ``None`` for an input that is in shared
                memory already.
            outputs: arrays in shared memory that receive the outputs; ``None`` for an output for which the
                application has given shared memory.
        """
        self.number = number
        self.signature = signature
        self.size = size
        self.used = True
        self._inputs = tuple(
            (index, target, target.dtype == BOOL) for index, target in enumerate(inputs) if target is not None
        )
        self._outputs = tuple(
            (source, tensor.dtype == BOOL) for source, tensor in zip(outputs, signature.outputs, strict=True)
        )

    def put_in(self, arrays: Sequence[Array]) -> None:
        """Copy the inputs into shared memory."""
        for index, target, is_bool in self._inputs:
            if is_bool:
                _copy_bools(target, arrays[index])
            else:
                target[...] = arrays[index]  # 0.3 us faster than `np.copyto`

    def take_out(self, out: Out | None) -> list[Array]:
        """Return the results as new arrays, or copied to the arrays of `out`."""
        results: list[Array] = []
        for source, is_bool in self._outputs:
            target = None if out is None else out[len(results)]
            if target is None:
                assert source is not None
                target = np.empty(source.shape, BOOL) if is_bool else source.copy()
            elif source is not None and not is_bool:
                target[...] = source
            if is_bool:
                _copy_bools(target, target if source is None else source)
            results.append(target)
        return results


def _copy_bools(target: Array, source: Array) -> None:
    """Copy booleans as bytes 0 or 1: the source may contain other bytes for true."""
    np.not_equal(source.view(np.uint8), 0, out=target)


class ChannelPlans:
    """The plans of one channel, and the memory of its calls. The holder of this object may use the channel."""

    def __init__(self, channel: FastChannel, slabs: SlabSource) -> None:
        self.channel = channel
        channel.owner = weakref.ref(self)
        self._slabs = slabs
        # Plans by `CallKey.key`.
        self.plans: dict[tuple[Any, ...], CallPlan] = {}
        self._numbers = itertools.count(1)
        self._request: Slab | None = None
        self._reply: Slab | None = None

    def make(self, session: int, key: CallKey, signature: CallSignature, deadline: float | None) -> CallPlan:
        """Create a plan in the host. Raise the host's errors, or `NoSharedMemory`."""
        places = key.outputs or (None,) * len(signature.outputs)
        in_at, in_size = _layout(signature.inputs, key.inputs)
        out_at, out_size = _layout(signature.outputs, places)
        # If the memory is too small, drop all plans, because they contain offsets in the memory that is replaced.
        # If there are too many plans, drop all, too: to find the oldest plans, each use would have to be recorded,
        # which would slow down every call.
        pairs = (self._request, in_size), (self._reply, out_size)
        too_small = any(wanted and (slab is None or slab.size < wanted) for slab, wanted in pairs)
        if len(self.plans) >= MAX_PLANS or too_small:
            self._start_again(in_size, out_size, deadline)
        header: dict[str, Any] = {
            "op": "plan.make",
            "plan": next(self._numbers),
            "session": session,
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
                    # Arrays outlive hosts, so this host may not have attached the memory yet.
                    self._slabs.ensure_attached(block.slab, deadline)
                    views[side].append(None)
                    place = block.place
                header[side].append([tensor.name, int(tensor.element), list(tensor.shape), *place])
        # Add the plan only after the host has accepted it. If an exception prevents this, the plan's number is not
        # used again, and the host drops the plan with the channel.
        self.channel.ask(header, deadline)
        plan = CallPlan(header["plan"], signature, views["inputs"], views["outputs"], in_size + out_size)
        self.plans[key.key] = plan
        return plan

    def outgrown(self) -> bool:
        """Return whether the channel has much more memory than the calls since the last check needed."""
        there = sum(slab.size for slab in (self._request, self._reply) if slab is not None)
        needed = max([plan.size for plan in self.plans.values() if plan.used], default=0)
        for plan in self.plans.values():
            plan.used = False
        return there > max(SMALL_BYTES, ROOMY * needed)

    # --- parts ---

    def _start_again(self, in_size: int, out_size: int, deadline: float | None) -> None:
        """Drop all plans, and replace memory that is too small for this call."""
        plans, self.plans = self.plans, {}
        if plans:
            dropped = [plan.number for plan in plans.values()]
            self.channel.ask({"op": "plan.drop", "plans": dropped}, deadline)
        self._request = self._slab_for(self._request, in_size, deadline, host_writes=False)
        self._reply = self._slab_for(self._reply, out_size, deadline, host_writes=True)

    def _slab_for(self, old: Slab | None, wanted: int, deadline: float | None, *, host_writes: bool) -> Slab | None:
        if not wanted or (old is not None and old.size >= wanted):
            return old
        slab = self._slabs.new_slab(wanted, deadline, host_writes=host_writes)
        # Record the new slab before releasing the old one: after an exception, closing the channel frees both.
        self.channel.slabs.append(slab)
        if old is not None:
            self._slabs.release(old.number)
            self.channel.slabs.remove(old)
        return slab


def _layout(tensors: Sequence[TensorSignature], places: Sequence[SharedBlock | None]) -> tuple[list[int], int]:
    """Return the offset of each tensor in the channel's memory, and the total size. Tensors in shared blocks take
    no space there."""
    return layout([0 if block else tensor.nbytes for tensor, block in zip(tensors, places, strict=True)])
