"""Host's side of the fast path: repeated calls on separate channels, with tensors in shared memory.

Channels are pairs of streams in addition to the connection, each with a thread that reads, runs and answers calls.
This module maps the client's slabs (blocks of shared memory), and checks each plan (the client's description of a
call on slabs). The server creates channels for the first request that needs one; the daemon uses them for its
clients. This module may import the protocol, `engine` and `request`.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from qnnbridge_host.engine.calls import BoundCall, BoundTensor, StopHandle
from qnnbridge_host.request.client import describe
from qnnbridge_host.request.in_flight import Request
from qnnbridge_os.descriptors import ByteWriter, blocking_write
from qnnbridge_os.sharing import drop, map_memory, open_stream
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    InvalidArgument,
    ProtocolDesync,
    UnknownOperation,
    desync,
)
from qnnbridge_protocol.fastpath import (
    CALL_SHIFT,
    HEAD_BYTES,
    LAST_NUMBER,
    MAX_CHANNELS,
    MAX_PLANS,
    MAX_SLABS,
    NUMBER_AT,
    PHASE_RECORD_BYTES,
    PHASE_WORD,
    PHASES,
    PLAN_AT,
    ChannelKind,
    TailReader,
    call_id,
    comes_after,
    pack_head,
    parse_head,
    tail_of,
)
from qnnbridge_protocol.frames import ALIGNMENT, Frame, Kind
from qnnbridge_protocol.limits import Limits
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# --- shared memory of the client, by slab number ------------------------------------------------------------

# Request fields that contain handles of shared memory.
HANDLE_FIELDS = ("read", "write", "where")


def drop_handles(header: Mapping[str, Any]) -> None:
    """Close the unopened handles of shared memory in a request that was answered or will not be served."""
    for name in HANDLE_FIELDS:
        share_handle = header.get(name)
        if isinstance(share_handle, dict):
            drop(share_handle)


class AttachedSlab:
    """A mapped slab of the client. host_writes: True if only the host writes to it, else only the client does."""

    __slots__ = ("data", "host_writes")

    def __init__(self, data: npt.NDArray[np.uint8], host_writes: bool) -> None:
        self.data = data
        self.host_writes = host_writes

    def view(self, shape: Sequence[int], dtype: np.dtype[Any], offset: int) -> npt.NDArray[Any]:
        """Return a tensor in the slab."""
        import numpy as np

        view: npt.NDArray[Any] = np.ndarray(tuple(shape), dtype, self.data, offset)
        return view


class Slabs:
    """Attached slabs. A plan keeps its slabs mapped after their release.

    asked: id of the request to attach or release. Ids show in which order the client sent the requests.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: dict[int, AttachedSlab] = {}
        # Id of the release request for each slab that is not attached (yet). A client that does not wait for the
        # reply to an attach sends the release right after it, and the release may be served first.
        self._released_at: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slabs)

    def __contains__(self, number: int) -> bool:
        return number in self._slabs

    def attach(self, number: int, where: dict[str, Any], size: int, *, host_writes: bool, asked: int) -> None:
        with self._lock:
            full = len(self._slabs) >= MAX_SLABS or number in self._slabs
        if full:
            raise InvalidArgument(
                f"Slab {number} cannot be attached: its number is in use, or {MAX_SLABS} slabs are attached."
            )
        # Map without the lock, because mapping large memory takes time. A release meanwhile is detected below.
        slab = self._map(where, size, host_writes)
        with self._lock:
            # Several threads serve the requests. Request ids show whether the release was sent after the attach.
            if self._released_at.pop(number, 0) > asked:
                raise InvalidArgument(f"Slab {number} was released before it was attached.")
            self._slabs[number] = slab

    def _map(self, where: dict[str, Any], size: int, host_writes: bool) -> AttachedSlab:
        """Map a slab. Raise `OSError` or `ValueError` if the memory cannot be mapped."""
        import numpy as np

        return AttachedSlab(np.frombuffer(map_memory(where, size, write=host_writes), np.uint8), host_writes)

    def release(self, number: int, *, asked: int) -> None:
        """Remove a slab from the table. An unknown slab is not an error."""
        with self._lock:
            if self._slabs.pop(number, None) is None:
                self._released_at[number] = asked
                if len(self._released_at) > MAX_SLABS:
                    # Drop the oldest record: a client that only sends releases must not fill the memory.
                    del self._released_at[next(iter(self._released_at))]

    def get(self, number: int) -> AttachedSlab:
        with self._lock:
            slab = self._slabs.get(number)
        if slab is None:
            raise InvalidArgument(f"There is no slab {number}.")
        return slab


# --- plans: the client's description of a repeated call, checked and bound to memory ------------------------


class BoundRuns(Protocol):
    """Target of a plan, usually a session."""

    def run_bound(self, call: BoundCall, stop: StopHandle, enter: Callable[[str], None]) -> list[Any] | None:
        """Run a call (see `EngineSession.run_bound`). enter: called before each native step."""


class BoundPlan(NamedTuple):
    """A checked plan.

    Attributes:
        session: the session that runs the plan's calls.
        lane: lane in which calls of the plan wait; ``None`` if they do not wait.
        slabs: numbers of the slabs that contain the plan's tensors.
    """

    session: BoundRuns
    lane: str | None
    call: BoundCall
    slabs: frozenset[int]


def make_plan(
    description: Mapping[str, Any], find: Callable[[int], tuple[BoundRuns, str | None]], slabs: Slabs
) -> BoundPlan:
    """Check a plan. Raise `ProtocolDesync` if it is malformed, `InvalidArgument` or `Closed` for other faults."""
    number, inputs, outputs = (description.get(key) for key in ("session", "inputs", "outputs"))
    if type(number) is not int or type(inputs) is not list or type(outputs) is not list:
        raise desync("plan.make without a proper description")
    # `find` raises `Closed` for an unknown session. The client may then request the plan again later.
    session, lane = find(number)
    used: set[int] = set()
    call = BoundCall(
        tuple([_bind(item, slabs, used, written=False) for item in inputs]),
        tuple([_bind(item, slabs, used, written=True) for item in outputs]),
    )
    # `feeds` is a dict: with a duplicate name it is shorter than the list.
    if len(call.feeds) != len(inputs) or len(set(call.output_names)) != len(outputs) or not outputs:
        raise desync("plan.make with a duplicate name, or without an output")
    return BoundPlan(session, lane, call, frozenset(used))


def _bind(item: Any, slabs: Slabs, used: set[int], *, written: bool) -> BoundTensor:
    """Return a tensor of a plan in its memory, and add the slab's number to `used`."""
    from qnnbridge_protocol.elements import LAYOUTS, ElementType, measure

    if type(item) is not list or len(item) != 5 or type(item[0]) is not str or type(item[2]) is not list:
        raise desync("a tensor of a plan is not a list [name, element, shape, slab, offset]")
    name, element_number, shape, number, offset = item
    try:
        if any(type(dim) is not int for dim in shape):
            raise ValueError("a dimension is not an integer")
        element = ElementType(element_number)
        # Python integers do not overflow; the size is compared with the slab below.
        size = measure(LAYOUTS[element].bits, shape)[1]
    except (ValueError, TypeError, KeyError) as error:
        raise desync(f"a tensor of a plan has an invalid type or shape ({error})") from None
    kind = LAYOUTS[element]
    if not kind.named or kind.packed or element is ElementType.STRING:
        raise InvalidArgument(f"A {element.text} tensor cannot be part of a plan.")
    if type(number) is not int or type(offset) is not int or offset < 0 or offset % ALIGNMENT:
        raise desync("a tensor of a plan has an invalid location")
    slab = slabs.get(number)
    # Only one side may write to a slab: the client's next inputs could overwrite an output in the client's slab.
    if written and not slab.host_writes:
        raise desync("an output lies in memory that the host does not write")
    if offset + size > slab.data.nbytes:
        raise desync(
            f"a tensor of {size} bytes at offset {offset} ends beyond its slab of {slab.data.nbytes} bytes"
        )
    used.add(number)
    return BoundTensor(name, slab.view(shape, kind.storage, offset))


# --- channels ------------------------------------------------------------------------------------------------
#
# The thread of a channel reads a call, runs it and answers it, so no other thread has to wake up. If the NPU's lane
# is busy, the thread in that lane runs the call instead. When the client abandons a channel, the channel ends
# silently: the running call continues and its answer is dropped.


class CallSink(Protocol):
    """The part of the server that a channel uses. Any thread may call it."""

    @property
    def limits(self) -> Limits:
        """Limits of requests and messages, agreed on in HELLO."""

    def find(self, session: int) -> tuple[BoundRuns, str | None]:
        """Return the session with this number, and the lane of its runs. Raise `Closed` for an unknown number."""

    def accept(self, call: FastCall, lane: str | None) -> None:
        """Serve a call, now or at its turn in the lane."""

    def broken(self, error: ProtocolDesync) -> None:
        """Stop serving a client that violates the protocol."""


class ShortAnswer:
    """A reusable answer that consists of a head only. The number in the head changes from call to call."""

    __slots__ = ("head", "words")

    def __init__(self, kind: ChannelKind) -> None:
        self.head = bytearray(pack_head(kind, 0))
        self.words = memoryview(self.head).cast("I")


class FastCall(Request):
    """A call on a channel. The object is reused for a later call once no thread uses it any more."""

    __slots__ = ("_first_id", "channel", "number", "plan", "stop")

    on_channel = True

    def __init__(self, channel: HostChannel) -> None:
        super().__init__(0, {"op": "session.run"}, ())
        self.channel = channel
        self.number = 0
        self.plan: BoundPlan | None = None
        self.stopper = self.stop = StopHandle()
        # Id of call 0. Adding a call's number to it takes less time than `call_id`.
        self._first_id = call_id(channel.number, 0)
        # No PHASE frame is needed: the client reads the phase from the phase record in shared memory.
        self.declared = True

    def renew(self, number: int, plan: BoundPlan) -> None:
        self.id = self._first_id + number
        self.number = number
        self.plan = plan
        self.started = False
        # If the previous call was cancelled, use a new handle: a late stop of that call must not stop this call.
        if self.withdrawn:
            self.stopper = self.stop = StopHandle()
            self.withdrawn = self.refused = False
            self.done = None

    # Do nothing: the tensors of a call belong to its plan, which stays in use.
    def release(self) -> None:
        pass

    @property
    def withdrawn_ahead(self) -> bool:
        """True if the call's cancel was read before the call itself."""
        return self.number == self.channel.withdrawn

    def serve(self) -> bool:
        """Run and answer the call; return whether it succeeded. Errors are sent as answers, never raised."""
        plan, channel = self.plan, self.channel
        assert plan is not None
        try:
            if channel.withdrawn == self.number:
                raise Cancelled("The request was cancelled before it started.")
            # `channel.note` writes this number to the channel's phase record. A channel serves one call at a time.
            channel.current = self.number
            values = plan.session.run_bound(plan.call, self.stop, channel.note)
            if values is None:
                channel.answer_shortly(channel.result, self.number)
            else:
                channel.answer(self, values)
            return True
        except BaseException as error:  # noqa: BLE001 - every error is sent to the caller
            channel.answer_error(self, error)
            return False

    def refuse(self, error: BaseException) -> None:
        self.channel.answer_error(self, error)

    def served(self) -> None:
        channel = self.channel
        self.plan = None  # free the plan's memory before the next call
        channel.spare.append(self)
        if channel.ended:
            channel.close_if_unused()


_PHASE_NUMBERS = {name: number for number, name in enumerate(PHASES)}
# Beginning and end of the head of a CALL without a tail. The numbers of the call and of its plan are in between.
_CALL, _NO_TAIL = pack_head(ChannelKind.CALL, 0)[:8], bytes(16)


class HostChannel:
    """A channel. Its thread reads; the thread that serves a call writes, under a lock."""

    def __init__(self, owner: OpenChannels, number: int, ends: tuple[int, int], record: memoryview) -> None:
        self.number = number
        self._owner = owner
        self._sink = owner.sink
        self._in_fd, self._out_fd = ends
        self._record = record
        # Needs no lock: the channel's thread, and `forget_slab` in any thread, change it by single, atomic
        # operations.
        self._plans: dict[int, BoundPlan] = {}
        # Plans whose memory was released. A call of such a plan is not a violation of the protocol: a caller that
        # abandons a call releases the memory at once, and the release may be served before the call is read.
        self._forgotten: set[int] = set()
        # Call objects that no thread uses.
        self.spare: list[FastCall] = []
        self._write_lock = threading.Lock()
        self._writer = ByteWriter(blocking_write(self._out_fd))
        self.result = ShortAnswer(ChannelKind.RESULT)
        self._pong = ShortAnswer(ChannelKind.PONG)
        # Number of call objects. Each object is either spare or in use by a thread.
        self._made = 0
        # True once the client has closed the channel. The host then writes nothing to it.
        self.ended = False
        # Number of the call that was answered last: nothing further is sent for it. Protected by the write lock.
        self._answered = 0
        # Number of the last call that was cancelled before it was answered. The cancel may arrive before the call.
        self.withdrawn = 0
        # Number of the call that is being served.
        self.current = 0
        # Function that is called before each native step of the current call.
        self.note: Callable[[str], None] = self._note_phase

    def release(self) -> None:
        """Free the memory of all plans."""
        self._plans.clear()
        for call in list(self.spare):
            call.plan = None

    def start(self) -> None:
        threading.Thread(target=self._work, name=f"qnnbridge channel {self.number}", daemon=True).start()

    def forget_slab(self, number: int) -> None:
        """Drop plans that use a slab that the application has released. Any thread may call this."""
        # `copy` is atomic: the channel's own thread may add a plan meanwhile.
        for plan_number, plan in self._plans.copy().items():
            if number in plan.slabs:
                self._forgotten.add(plan_number)
                self._plans.pop(plan_number, None)

    def withdraw(self, number: int) -> bool:
        """Withdraw a call (see `OpenChannels.withdraw`). Any thread may call this method."""
        if not comes_after(number, self._answered):
            return False
        self.withdrawn = number
        return True

    # --- reading; the channel's own thread ---

    def _work(self) -> None:
        # `finally` below closes the descriptor, after the owner has removed the channel.
        file = io.FileIO(self._in_fd, "rb", closefd=False)
        head = bytearray(HEAD_BYTES)
        words = memoryview(head).cast("I")
        owner, plans, spare, accept, readinto = (
            self._owner,
            self._plans,
            self.spare,
            self._owner.sink.accept,
            file.readinto,
        )
        try:
            while not owner.closed:
                count = readinto(head)
                # A second read is rarely needed: a head nearly always arrives in one read.
                if count != HEAD_BYTES and not _fill_rest(file, memoryview(head), count or 0):
                    break
                number = words[NUMBER_AT]
                # A call of a known plan is recognised by comparing its bytes, which is faster than parsing them.
                plan = plans.get(words[PLAN_AT])
                if plan is not None and number and head.startswith(_CALL) and head.endswith(_NO_TAIL):
                    # Reuse an object, so that a repeated call creates no object.
                    call = spare.pop() if spare else self._new_call()
                    call.renew(number, plan)
                    accept(call, plan.lane)
                    # Do not keep the plan's memory during the next read, which may take a long time.
                    del call
                else:
                    self._take(file, head)
                plan = None
        except ProtocolDesync as error:
            self._sink.broken(error)
        except EOFError:
            pass
        except OSError as error:
            print(f"qnnbridge host: channel {self.number}: {error}", file=sys.stderr, flush=True)
        finally:
            self.release()
            # Remove the channel first, so that the owner does not use it once its descriptors are closed.
            self._owner.ended(self)
            os.close(self._in_fd)
            self.ended = True
            self.close_if_unused()

    def _take(self, file: io.FileIO, raw: bytearray) -> None:
        """Serve a message that is not a call of a known plan."""
        head = parse_head(raw, self._sink.limits, from_client=True)
        if head.kind is ChannelKind.PING:
            self.answer_shortly(self._pong, head.number)
        elif head.kind is ChannelKind.ASK:
            self._answer_question(head.number, _read_tail(file, head.tail_bytes, self._sink.limits))
        # The client is not at fault: it has given up the memory together with the call.
        elif head.plan in self._forgotten and not head.tail_bytes:
            error = InvalidArgument(f"The memory of plan {head.plan} was released before the call was read.")
            self._send_frame(ChannelKind.ERROR, head.number, Frame(Kind.ERROR, 1, {"error": describe(error)}))
        else:
            raise desync(f"the call has the unknown plan {head.plan}, or a tail of {head.tail_bytes} bytes", raw)

    def _new_call(self) -> FastCall:
        self._made += 1
        return FastCall(self)

    def _answer_question(self, number: int, question: Frame) -> None:
        header = question.header
        op = header.get("op")
        try:
            if op == "plan.make":
                plan_number = header.get("plan")
                if type(plan_number) is not int or not 0 < plan_number < 2**32:
                    raise desync("a plan without a proper number")
                if len(self._plans) >= MAX_PLANS or plan_number in self._plans:
                    raise InvalidArgument(f"Plan {plan_number} exists already, or there are too many plans.")
                self._plans[plan_number] = plan = make_plan(header, self._sink.find, self._owner.slabs)
                for slab in plan.slabs:
                    # Check the slab after adding the plan, so that a concurrent release of the slab finds the plan.
                    if slab not in self._owner.slabs:
                        self.forget_slab(slab)
            elif op == "plan.drop":
                for plan_number in header.get("plans") or ():
                    self._plans.pop(plan_number, None)
                    self._forgotten.discard(plan_number)
            else:
                raise UnknownOperation(f"This host does not support the operation {op!r} on a channel.")
        except (BridgeError, MemoryError, TypeError) as error:
            self._send_frame(ChannelKind.ERROR, number, Frame(Kind.ERROR, 1, {"error": describe(error)}))
            return
        self._send_frame(ChannelKind.ANSWER, number, Frame(Kind.REPLY, 1, {}))

    # --- answering; the thread that serves the call ---

    def _note_phase(self, phase: str) -> None:
        # The client reads the record only after a crash of this process: no frame and no wake-up is needed.
        record = self._record
        # Write the number last: the client ignores a phase with another call's number.
        record[PHASE_WORD] = _PHASE_NUMBERS.get(phase, 1)
        record[0] = self.current

    def answer(self, call: FastCall, values: list[Any]) -> None:
        """Answer with outputs whose shapes differ from the plan's."""
        from qnnbridge_protocol.values import Encoder

        encoder = Encoder()
        header = {"outputs": [encoder.add(value) for value in values]}
        frame = Frame(Kind.REPLY, 1, header, tuple(encoder.buffers))
        self._send_frame(ChannelKind.VALUES, call.number, frame)

    def answer_error(self, call: FastCall, error: BaseException) -> None:
        self._send_frame(ChannelKind.ERROR, call.number, Frame(Kind.ERROR, 1, {"error": describe(error)}))

    def answer_shortly(self, answer: ShortAnswer, number: int) -> None:
        """Answer with a head only: RESULT (the outputs are in the plan's memory) or PONG."""
        # A `with` statement takes three times as long.
        self._write_lock.acquire()
        try:
            if self.ended:
                return
            # Set this under the write lock and before the write: a cancel from now on is too late.
            self._answered = answer.words[NUMBER_AT] = number
            os.write(self._out_fd, answer.head)
        except OSError:  # the caller has closed the channel
            self.ended = True
        finally:
            self._write_lock.release()

    def _send_frame(self, kind: ChannelKind, number: int, frame: Frame) -> None:
        chunks, size = tail_of(frame, self._sink.limits)
        head = memoryview(pack_head(kind, number, tail_bytes=size))
        with self._write_lock:
            if self.ended:
                return
            self._answered = number
            try:
                self._writer.write_all([head, *chunks])
            except OSError:  # the caller has closed the channel
                self._writer.discard()
                self.ended = True

    def close_if_unused(self) -> None:
        """Close the write end of an ended channel once no call is in use."""
        with self._write_lock:
            # Calls in flight still write their answers to this descriptor. The last of them closes it in `served`.
            if len(self.spare) == self._made and self._out_fd >= 0:
                os.close(self._out_fd)
                self._out_fd = -1
                # Calls, plans and memory form a reference cycle that a daemon would keep until garbage collection.
                self.spare.clear()
                self._made = 0
                self._record = memoryview(b"")
                self.note = _ignore_phase


def _ignore_phase(_phase: str) -> None:
    """Discard the phase of a call on an ended channel."""


def _fill_rest(file: io.FileIO, view: memoryview, count: int) -> bool:
    """Read until the view is full, after a first read of `count` bytes. Return False at the end of the stream."""
    while count < view.nbytes:
        more = file.readinto(view[count:]) if count else 0
        if not more:
            return False
        count += more
    return True


def _read_tail(file: io.FileIO, size: int, limits: Limits) -> Frame:
    tail = TailReader(size, limits)
    while tail.frame is None:
        count = file.readinto(tail.buffer())
        if not count:
            raise EOFError
        tail.received(count)
    return tail.frame


# --- all channels of one client -----------------------------------------------------------------------------


class OpenChannels:
    """Open channels of one client, and the requests that open them and attach memory. Thread-safe.

    Any thread of the server serves such a request, so requests may be served out of order. Where the order matters,
    request numbers are compared.
    """

    def __init__(self, sink: CallSink, slabs: Slabs) -> None:
        self.sink = sink
        self.slabs = slabs
        self.closed = False
        self._lock = threading.Lock()
        self._open: set[HostChannel] = set()
        self.operations: dict[str, Callable[[Mapping[str, Any], int], None]] = {
            "channel.open": self._open_channel,
            "slab.attach": self._attach,
            "slab.release": self._release,
        }

    def __len__(self) -> int:
        return len(self._open)

    def ended(self, channel: HostChannel) -> None:
        with self._lock:
            self._open.discard(channel)

    def close(self) -> None:
        """Stop accepting and answering calls: the client is gone, or its connection is broken.

        A channel ends when its client closes it, or with its next call.
        """
        # A channel checks this flag before each read; a channel that waits in a read ends when its client closes
        # the pipe.
        self.closed = True
        with self._lock:
            channels = list(self._open)
        for channel in channels:
            channel.ended = True
            channel.release()

    def withdraw(self, target: int) -> bool:
        """Record that the call with this id is cancelled, so that the call is not started if it is read later.
        Return whether the call is unanswered.

        The caller of this method then searches the requests in flight. An arriving call is added to them before the
        call checks for a recorded cancel, so the cancel is never lost.
        """
        with self._lock:
            # A linear search is fast enough: there are at most 64 channels, and cancels are rare.
            channel = next((channel for channel in self._open if channel.number == target >> CALL_SHIFT), None)
        return channel is not None and channel.withdraw(target & LAST_NUMBER)

    def _open_channel(self, header: Mapping[str, Any], _request_id: int) -> None:
        number, slot, phases = (header.get(key) for key in ("channel", "slot", "phases"))
        if (
            type(number) is not int
            or not 0 < number < 2**31
            or type(slot) is not int
            or not 0 <= slot < MAX_CHANNELS
        ):
            raise desync("channel.open without a proper description")
        if phases is None:
            raise InvalidArgument(
                "A channel needs shared memory for its phase record.", fix="Send calls over the connection instead."
            )
        at = slot * PHASE_RECORD_BYTES
        # A view of the slab: the host writes the phase there, and the application reads it after a crash.
        record = self.slabs.get(phases).data.data[at : at + PHASE_RECORD_BYTES].cast("I")
        with self._lock:
            if len(self._open) >= MAX_CHANNELS:
                raise InvalidArgument(f"There are {MAX_CHANNELS} channels already.")
            ends: list[int] = []
            try:
                ends.append(open_stream(_share_handle(header, "read"), write=False))
                ends.append(open_stream(_share_handle(header, "write"), write=True))
                channel = HostChannel(self, number, (ends[0], ends[1]), record)
                channel.start()
                self._open.add(channel)
            except (OSError, ValueError, RuntimeError) as error:
                # Close the descriptors here, because a `HostChannel` owns them only after its start.
                for fd in ends:
                    os.close(fd)
                raise InvalidArgument(f"The streams of a channel cannot be opened: {error}.") from error

    def _attach(self, header: Mapping[str, Any], request_id: int) -> None:
        number, size, writes = (header.get(key) for key in ("slab", "size", "host_writes"))
        if type(number) is not int or type(size) is not int or size <= 0 or type(writes) is not bool:
            raise desync("slab.attach without a proper description")
        try:
            self.slabs.attach(number, _share_handle(header, "where"), size, host_writes=writes, asked=request_id)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"Shared memory cannot be opened: {error}.") from error

    def _release(self, header: Mapping[str, Any], request_id: int) -> None:
        number = header.get("slab")
        if type(number) is int:
            self.slabs.release(number, asked=request_id)
            with self._lock:
                channels = list(self._open)
            for channel in channels:
                channel.forget_slab(number)


def _share_handle(header: Mapping[str, Any], name: str) -> dict[str, Any]:
    share_handle = header.get(name)
    if not isinstance(share_handle, dict):
        raise desync(f"{name} contains no share handle")
    return share_handle
