"""Calls over one connection, from any number of threads, without a separate reader thread.

Each caller writes its own request. One of the waiting callers, which "has the lead", reads the answers of all
callers. It passes answers to the other callers, and when it has its own answer, it wakes the next caller to take
the lead. A single caller never waits for another thread, which is three to twenty times faster than a separate
reader thread (ADR 0002).

Deadlines are times of `time.monotonic()`. If a frame was partly written before its caller's deadline, the next
sender completes it; if no byte was written, the request is withdrawn.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from qnnbridge._transport.open_requests import (
    MAX_STREAMS,
    NO_CONTEXT,
    CallContext,
    Callers,
    CallTimedOut,
    ChannelFailed,
    ChannelRetired,
    Header,
    Lost,
    OneWayRequests,
    OpenRequests,
    Waiter,
    descriptors_closed,
    error_of,
    forked,
    inside,
    interrupted,
    reentered,
    remaining,
    stalled,
)
from qnnbridge_os.descriptors import ByteReader, ByteWriter, last_first
from qnnbridge_os.fds import is_device, is_marked, mark_of
from qnnbridge_os.native import RLock
from qnnbridge_os.processes import is_writing, let_ctrl_c_through, wait_readable, wait_writable, writer
from qnnbridge_os.shield import TooLate, in_turn
from qnnbridge_protocol.connection import Agreement, Connection, Hello, Role, State, refusal
from qnnbridge_protocol.errors import BridgeError, ProtocolDesync, from_wire
from qnnbridge_protocol.frames import Frame, Kind

__all__ = [
    "CANCEL_TIMEOUT_S",
    "MAX_STREAMS",
    "CallContext",
    "CallTimedOut",
    "Channel",
    "ChannelFailed",
    "ChannelRetired",
    "Lost",
    "ReplyStream",
]


OnSilence = Callable[[], "ChannelFailed | None"]
Message = tuple[Kind, Header, tuple[Any, ...]]

# Maximum seconds without data in the middle of a frame. The host writes a frame without pause, so a longer gap
# means that the process is stopped. Swapping causes much shorter gaps.
STALL_TIMEOUT_S = 60.0

# Interval in seconds at which a waiting caller calls `on_silence` to check whether the host can still answer.
SILENCE_INTERVAL_S = 5.0

# Seconds that a caller waits after its deadline to learn the state of its call.
CANCEL_TIMEOUT_S = 0.8
# Maximum seconds for one call of `take_in`, so that a host that sends continuously does not block the thread.
TAKE_IN_TIMEOUT_S = 1.0

# Maximum seconds to read the last output of a dead host from the pipe, after a write to the host has failed.
LAST_WORDS_TIMEOUT_S = 1.0


class Channel:
    """Send requests over one connection and read their answers. Thread-safe.

    Args:
        on_silence: function that is called periodically while no data arrives. If it returns a failure, the
            connection ends.
    """

    def __init__(self, write_fd: int, read_fd: int, hello: Hello, on_silence: OnSilence = lambda: None) -> None:
        self._connection = Connection(Role.CLIENT, hello)
        self._reader = ByteReader(read_fd)
        self._writer = ByteWriter(writer(write_fd))
        self._write_fd, self._read_fd = write_fd, read_fd
        # Identity of the pipes, with which `_check_ours` detects that other code closed the descriptors and opened
        # files with the same numbers.
        self._marks = {fd: mark_of(fd) for fd in (write_fd, read_fd)}
        # Time at which the pipe stopped accepting bytes from any caller; ``None`` while it accepts bytes.
        self._stuck_since: float | None = None
        self._on_silence = on_silence
        self._owner = os.getpid()
        # The locks are reentrant, as `in_turn` requires. No thread holds both locks, except in `_after_last_output`
        # (first the send lock, then the lead).
        self._send_lock = RLock()
        self._lead = RLock()
        # Number of reads. A signal handler may make a call while its thread waits for bytes, and read the answer
        # for which the thread waits. The thread detects this by the changed number.
        self._reads = 0
        self._callers = Callers(hello.limits.max_in_flight)
        self._greeting: Frame | None = None
        self._retired = False
        self._said_goodbye = False
        self.requests = OpenRequests()
        # Sender of requests whose answers are not needed.
        self.one_way = OneWayRequests(self._send_lock, self._write_one_way)

    @property
    def failed(self) -> bool:
        return self.requests.failure is not None

    @property
    def peer(self) -> Hello:
        """The host's HELLO. Only available after `greet`."""
        assert self._connection.peer is not None
        return self._connection.peer

    @property
    def agreement(self) -> Agreement | None:
        """Version and features that both sides support. Only available after `greet`."""
        return self._connection.agreement

    @property
    def preamble(self) -> bytes:
        """Output of the host process on stdout before the protocol began."""
        return self._connection.preamble

    def greet(self, deadline: float) -> None:
        """Exchange HELLO messages. Raise `VersionMismatch`, `ChannelFailed` or `CallTimedOut`. A second call
        continues the exchange."""
        with self._send_lock:
            # In a second attempt after `CallTimedOut` do not send HELLO again: it was sent, or the writer still
            # contains a part of it.
            greeted = self._connection.state is not State.START
            self._write([] if greeted else self._connection.send_hello(), deadline)
        with self._lead:
            while self._greeting is None:
                self._read(deadline)
        if self._greeting.kind is Kind.HELLO_ERR:
            raise refusal(self._greeting.header)
        assert self._connection.agreement is not None
        self._callers.room = self._connection.agreement.limits.max_in_flight

    def call(
        self,
        header: Header,
        buffers: tuple[Any, ...] = (),
        deadline: float | None = None,
        context: CallContext | None = None,
        on_sent: Callable[[int], None] | None = None,
        on_news: Callable[[Frame], None] | None = None,
    ) -> Frame:
        """Send a request and wait for its REPLY.

        Args:
            deadline: time at which to stop waiting; ``None`` waits forever.
            context: description of the call, for blame; ``None`` for internal requests.
            on_sent: function that is called with the request's id after the request was written.
            on_news: see `Waiter`.

        Raises:
            BridgeError: the host answered with an error.
            CallTimedOut: the deadline has expired; the work is cancelled if possible.
            ChannelFailed: the connection failed.
            ChannelRetired, TooLarge: the request was not sent.
            CallBackFailed: the host waits for a function that runs in this thread.
        """
        # The host cannot answer while it waits for a function that runs in this thread. Allow only requests to
        # close a session, whose answer is not needed.
        if getattr(inside, "channel", None) is self and header.get("op") != "session.close":
            raise reentered(header.get("op"))
        waiter = Waiter(on_news)
        try:
            if not self._callers.enter(waiter, None if deadline is None else remaining(deadline)):
                raise CallTimedOut("not-started")
            answer = self._exchange(
                (Kind.REQUEST, header, buffers), deadline, context or NO_CONTEXT, on_sent, waiter
            )
        finally:
            # Remove the caller, even after an exception of `enter`. Each line is one C operation, which a signal
            # handler's exception cannot interrupt (see `shield`).
            self._callers.waiting.pop(waiter, None)
            self._callers.has_left()
        if answer.kind is Kind.ERROR:
            raise error_of(answer, retired=self._retired)
        return answer

    def ping(self, deadline: float | None) -> None:
        """Wait until the host answers a PING. A missing answer proves nothing: native code may hold the host's
        GIL."""
        self._exchange((Kind.PING, {}, ()), deadline, NO_CONTEXT, None)

    def cancel(self, request_id: int, deadline: float) -> str:
        """Withdraw a request. Return its state: "not-started", "stopped", "finished" or "still-running"."""
        answer = self._exchange((Kind.CANCEL, {"target": request_id}, ()), deadline, NO_CONTEXT, None)
        return str(answer.header.get("state"))

    def give_back(self, request_id: int, header: Header, buffers: tuple[Any, ...]) -> None:
        """Answer a CALL_BACK of the host (a request to call a function). Drop the answer if the host no longer
        waits. Raise `ChannelFailed`."""
        with self._send_lock:
            self._check_owner()
            if self.requests.failure is not None:
                raise self.requests.failure.again()
            chunks = self._connection.give_back(request_id, header, buffers)
            if chunks is not None:
                self._write(chunks, None)

    def take_in(self) -> None:
        """If no caller reads, read the bytes in the pipe, so that the host can write the answers of abandoned
        calls.

        Called by threads that do not wait for an answer on this connection. If the connection has failed, the next
        caller raises the failure.
        """
        # Only answers of abandoned requests have no reader, so they could fill the pipe and block the host.
        if not self.requests.abandoned:
            return
        deadline = time.monotonic() + TAKE_IN_TIMEOUT_S
        self._read_while(lambda: self._connection.mid_frame or wait_readable(self._read_fd, 0), 0, deadline)

    def goodbye(self, deadline: float) -> bool:
        """Ask the host to finish its work and end. Return True if the host confirmed in time."""

        def send() -> None:
            self._check_owner()
            self._retired = True
            self._write(self._connection.send(Frame(Kind.GOODBYE, 0, {})), deadline)

        def listen() -> None:
            while not self._said_goodbye:
                self._read(deadline)

        with contextlib.suppress(TooLate, ChannelFailed, CallTimedOut, RuntimeError):
            # Wait for each lock only for the remaining time. If a caller holds the lock longer, the goodbye fails
            # instead of waiting forever.
            in_turn(self._send_lock, remaining(deadline), send)
            # The lead may be held for long: a caller without a deadline has it as long as its call lasts.
            in_turn(self._lead, remaining(deadline), listen)
        return self._said_goodbye

    def fail(self, reason: BridgeError | None) -> ChannelFailed:
        """End the connection: every caller gets the failure. If called again, keep the first reason."""
        return self.requests.fail(reason)

    def release(self, timeout_s: float) -> bool:
        """Wait, after `fail` and the end of the process, until no thread uses the descriptors.

        Only then may the descriptors be closed: the next host's pipes may get the same numbers, and a thread that
        still reads would take bytes from these pipes. Return False if a caller still reads because another process
        keeps the pipe open.
        """
        with contextlib.suppress(TooLate):
            # Acquire each lock once, to wait until no thread is inside a read or a write any more.
            in_turn(self._send_lock, timeout_s, self._writer.discard)
            in_turn(self._lead, timeout_s, lambda: None)
            return True
        return False

    # --- requests ---

    def _exchange(
        self,
        message: Message,
        deadline: float | None,
        context: CallContext,
        on_sent: Callable[[int], None] | None,
        waiter: Waiter | None = None,
    ) -> Frame:
        waiter, settled = waiter or Waiter(), True
        try:
            # If `_send` raises `CallTimedOut`, it has already withdrawn or abandoned the request. `settled` is then
            # true, so that the error handler below does not abandon the request again.
            self._send(message, deadline, waiter, context)
            settled = False
            if on_sent is not None:
                on_sent(waiter.request_id or 0)
            answer = self._await(waiter, deadline)
            assert answer is not None
            return answer
        except ChannelFailed as failure:
            failure.request_id = waiter.request_id
            raise
        except BaseException as error:
            # The deadline has expired, or the caller was interrupted.
            request_id = waiter.request_id
            if request_id is None or (settled and isinstance(error, CallTimedOut)):
                raise
            # Abandon the request first, so that another caller drops the answer. Then ask the host to stop the
            # work.
            still_open = self._leave(request_id)
            if message[0] is not Kind.REQUEST or not (still_open or isinstance(error, CallTimedOut)):
                raise
            state = self._withdraw(request_id)
            if state == "not-started":
                self.requests.withdraw(request_id)
            # If there is an answer, it arrived between the deadline and the CANCEL.
            if waiter.answer is not None:
                state = "finished"
            if isinstance(error, CallTimedOut):
                raise CallTimedOut(state) from None
            raise

    def _leave(self, request_id: int) -> bool:
        """Abandon the request: another caller reads and drops its answer. Return False if the request was answered
        or withdrawn."""
        left = self.requests.leave(request_id)
        self.requests.wake_next()
        return left

    def _send(self, message: Message, deadline: float | None, waiter: Waiter | None, context: CallContext) -> None:
        """Write a request."""

        write = functools.partial(self._write_request, message, deadline, waiter, context)
        try:
            in_turn(self._send_lock, remaining(deadline), write)
        except TooLate:
            raise CallTimedOut("not-started") from None
        finally:
            # Send the one-way requests that other threads queued while this thread held the lock.
            if self.one_way:
                self.one_way.send()

    def _write_request(
        self, message: Message, deadline: float | None, waiter: Waiter | None, context: CallContext
    ) -> None:
        """Write a request. The send lock must be held."""
        self._check_owner()
        # Check `_retired` first, because the end of the stream after a GOODBYE is not a failure.
        if self._retired:
            raise ChannelRetired
        if self.requests.failure is not None:
            raise self.requests.failure.again()
        try:
            request_id, chunks = self._connection.ask(*message)
        except RuntimeError:
            if self.requests.failure is not None:  # the stream ended after the check above
                raise self.requests.failure.again() from None
            raise
        added = False
        try:
            self.requests.add(request_id, waiter, context)
            # The writer takes chunks from the end of its list, so insert them at the beginning in reverse order.
            pieces = last_first(chunks)
            self._writer.rest[:0] = pieces
            added = True  # no signal handler runs between the last line and this line: neither calls Python code
            self._write((), deadline)
        except CallTimedOut:
            # If no byte was written, withdraw the request. Otherwise the next sender must complete the frame, or
            # the stream becomes unusable.
            if self._writer.take_back(chunks):
                self.requests.withdraw(request_id)
                raise
            self._leave(request_id)
            # The next sender writes the rest of the frame, followed by a CANCEL.
            cancel_id, cancel = self._connection.ask(Kind.CANCEL, {"target": request_id})
            self.requests.add(cancel_id, None, NO_CONTEXT)
            self._writer.add(cancel)
            raise CallTimedOut("still-running") from None
        except ChannelFailed as failure:
            failure.request_id = request_id
            raise
        except BaseException:
            # A signal handler raised an exception. The next sender must complete a partly written frame.
            if not added or self._writer.take_back(chunks):
                self.requests.withdraw(request_id)
            else:
                self._leave(request_id)
            raise
        self.requests.sent(request_id)

    def _write_one_way(self, header: Header) -> bool:
        """Write a one-way request. The send lock must be held. Return False if the pipe is full and the request was
        not sent."""
        try:
            self._write_request((Kind.REQUEST, header, ()), time.monotonic(), None, NO_CONTEXT)
        except CallTimedOut:
            return False
        except (ChannelFailed, ChannelRetired, BridgeError):
            pass  # no caller waits for the answer, so ignore the error
        return True

    def _write(self, chunks: Sequence[memoryview], deadline: float | None) -> None:
        """Write the chunks. The send lock must be held."""
        pipe = self._writer
        if pipe.torn:
            raise self.fail(interrupted())
        pipe.add(chunks)
        # Choose the write function for each frame, because the handling of SIGPIPE may have changed.
        pipe.write = writer(self._write_fd)
        while pipe.pending:
            self._check_ours(self._write_fd)
            try:
                pipe.write_some()
                self._stuck_since = None
            except BlockingIOError:
                self._wait_for_room(deadline)
            except OSError:
                raise self._after_last_output(deadline) from None

    def _wait_for_room(self, deadline: float | None) -> None:
        """Wait until the pipe accepts data. Add up consecutive waits of all callers, to detect a stopped host."""
        now = time.monotonic()
        # Keep `_stuck_since` when a deadline expires: the waits of several callers with short deadlines add up
        # until they reveal a host that does not read.
        if self._stuck_since is None:
            self._stuck_since = now
        stuck_until = self._stuck_since + STALL_TIMEOUT_S
        until = stuck_until if deadline is None else min(stuck_until, deadline)
        if wait_writable(self._write_fd, max(0.0, until - now)):
            return
        if until == stuck_until:
            raise self.fail(stalled("accept", STALL_TIMEOUT_S))
        raise CallTimedOut("not-started")

    def _after_last_output(self, deadline: float | None) -> ChannelFailed:
        """Read the phases and answers that a host left in the pipe when it stopped reading."""
        until = time.monotonic() + LAST_WORDS_TIMEOUT_S
        if deadline is not None:
            # Read for a short time after the deadline, because the last output may contain the cause of the death.
            until = min(until, deadline + LAST_WORDS_TIMEOUT_S / 4)
        self._read_while(lambda: not self.failed, remaining(until), until)
        return self.fail(None)

    def _withdraw(self, request_id: int) -> str:
        """Cancel the request. Return the state of its work."""
        try:
            return self.cancel(request_id, time.monotonic() + CANCEL_TIMEOUT_S)
        except (CallTimedOut, ChannelFailed, ChannelRetired, BridgeError):
            return "still-running"

    # --- answers ---

    def _await(self, waiter: Waiter, deadline: float | None) -> Frame | None:
        while waiter.answer is None and not waiter.news:
            if self.requests.failure is not None:
                raise self.requests.failure.again()
            # `_read_for` returns True if this caller had the lead and has received its answer, a failure or news.
            if self._read_for(waiter, deadline):
                continue
            left = SILENCE_INTERVAL_S if deadline is None else min(SILENCE_INTERVAL_S, remaining(deadline))
            # The reader wakes this caller when its answer has arrived or it must take the lead. Limit the wait, so
            # that a lost wake-up delays the caller by at most five seconds.
            if not waiter.wait(left) and deadline is not None and time.monotonic() >= deadline:
                raise CallTimedOut("still-running")
        return waiter.answer

    def _read_for(self, waiter: Waiter, deadline: float | None) -> bool:
        """Take the lead (the right to read), read until the waiter has its answer, and wake the next caller. Return
        False if another caller has the lead."""
        # The following lines do the same as `in_turn`, but create no closure in each call.
        lead = self._lead
        try:
            # Do not wait for the lead: the caller that has it wakes this caller when the answer has arrived or the
            # lead is free.
            if not lead.acquire(blocking=False):
                return False
            while waiter.answer is None and not waiter.news and not self.failed:
                self._read(deadline)
            return True
        finally:
            try:
                lead.release()
            except RuntimeError:
                pass
            else:
                # Wake another caller, which takes the lead. Otherwise all callers would sleep while answers are in
                # the pipe.
                self.requests.wake_next()

    def _read_while(self, wanted: Callable[[], bool], timeout_s: float, deadline: float) -> None:
        """Take the lead (the right to read) if it becomes free in time. Read and distribute frames while `wanted`
        returns true."""

        def read() -> None:
            try:
                while wanted():
                    self._read(deadline)
            finally:
                self.requests.wake_next()

        with contextlib.suppress(TooLate, ChannelFailed, CallTimedOut):
            in_turn(self._lead, timeout_s, read)

    def _read(self, deadline: float | None) -> None:
        """Read once and distribute the frames. The lead must be held."""
        self._check_owner()
        reader = self._reader
        if reader.torn:
            raise self.fail(interrupted())
        if self.requests.failure is not None:
            raise self.requests.failure.again()
        # Parse the bytes that have already been read first, because the pipe may be empty.
        if not reader.ready:
            if not self._wait_for_bytes(deadline):
                return
            # On Windows Ctrl+C does not interrupt a read of a pipe, so the main thread first waits for bytes, which
            # Ctrl+C does interrupt.
            let_ctrl_c_through(self._read_fd)
            self._check_ours(self._read_fd)
        try:
            reader.read_into(self._connection.get_buffer(), self._received)
        except ProtocolDesync as error:
            raise self.fail(error) from None
        except OSError:
            raise self.fail(None) from None

    def _wait_for_bytes(self, deadline: float | None) -> bool:
        """Wait for bytes. Return False if a nested call has read bytes meanwhile. Raise if the host is stopped, has
        ended, or pauses in the middle of a frame."""
        since, before = time.monotonic(), self._reads
        in_frame = self._connection.mid_frame
        while True:
            left_s = SILENCE_INTERVAL_S if deadline is None else min(SILENCE_INTERVAL_S, remaining(deadline))
            self._check_ours(self._read_fd)
            readable = wait_readable(self._read_fd, left_s)
            if self._reads != before:
                return False
            if readable:
                return True
            if self.requests.failure is not None:
                raise self.requests.failure.again()
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise CallTimedOut("still-running")
            silence = self._on_silence()
            if silence is not None:
                raise self.fail(silence.reason)
            # The host writes a frame without pause, so a gap inside a frame means that the process is stopped.
            if in_frame and now - since >= STALL_TIMEOUT_S:
                raise self.fail(stalled("send", STALL_TIMEOUT_S))

    def _received(self, count: int) -> None:
        self._reads += 1
        if not count:
            self.fail(None)
            self._connection.received_eof()
            # Do not assign the exception to a variable, which would create a reference cycle with the frame.
            raise self.fail(None)
        for frame in self._connection.received(count):
            self._hand_out(frame)

    def _hand_out(self, frame: Frame) -> None:
        kind = frame.kind
        if kind is Kind.PHASE:
            self.requests.declare(frame)
        elif kind in (Kind.EVENT, Kind.CALL_BACK):
            self.requests.pass_on(frame)
        elif kind in (Kind.HELLO_OK, Kind.HELLO_ERR):
            self._greeting = frame
        elif kind is Kind.GOODBYE:
            self._said_goodbye = True
        else:
            self.requests.answer(frame)

    def _check_ours(self, fd: int) -> None:
        # If other code has closed the descriptor, its number may refer to another file. After `DaemonLink.kill` the
        # descriptor refers to the null device.
        if not is_writing(fd) and not is_marked(fd, self._marks[fd]):
            ended = is_device(fd) and self._on_silence()
            raise self.fail(ended.reason if ended else descriptors_closed())

    def _check_owner(self) -> None:
        # Refuse in a fork, where the numbers of the descriptors may refer to other files.
        if self._owner != os.getpid():
            raise ChannelFailed(forked(self._owner))


# --- a request whose answer comes in parts, EVENT frames first and the REPLY last ---------------------------- The
# caller reads a part only when it needs it, so the host must limit the number of parts that it sends in advance.
# Only one thread at a time may use a stream, but several threads may use streams of one channel.


class ReplyStream:
    """A request whose answer comes in parts. Create it with `open`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._news: collections.deque[Frame] = collections.deque()
        self._waiter = Waiter(self._take_news)
        self._waiter.news = self._news
        self._open = True

    @classmethod
    def open(
        cls,
        channel: Channel,
        header: dict[str, Any],
        buffers: tuple[Any, ...],
        deadline: float | None,
        context: CallContext,
    ) -> ReplyStream | None:
        """Send the request. Return ``None`` if too many streams are open. In this case use `Channel.call`, which
        returns only the REPLY.

        Raises:
            ChannelFailed, ChannelRetired, CallTimedOut, TooLarge: as for `Channel.call`.
        """
        if len(channel.requests.streams) >= MAX_STREAMS:
            return None
        stream = cls(channel)
        try:
            # Register the stream before the request is sent, so that there are never more than `MAX_STREAMS`.
            # `abandon` removes the stream.
            channel.requests.streams[stream._waiter] = None
            channel._send((Kind.REQUEST, header, buffers), deadline, stream._waiter, context)
        except BaseException:
            stream.abandon()
            raise
        return stream

    @property
    def request_id(self) -> int:
        return self._waiter.request_id or 0

    def next(self, deadline: float | None) -> Frame:
        """Return the next EVENT frame, or the REPLY frame, which comes last. The stream can still be used after a
        missed deadline.

        Raises:
            BridgeError: the error that the host answered with.
            CallTimedOut, ChannelFailed: as for `Channel.call`.
        """
        while True:
            if self._news:
                return self._news.popleft()
            try:
                answer = self._channel._await(self._waiter, deadline)
            except ChannelFailed as failure:
                failure.request_id = self._waiter.request_id
                self._release()
                raise
            if answer is None or self._news:
                # Even if the REPLY has arrived, return the EVENT frames first, one per call, in the order in which
                # the host sent them.
                continue
            self._release()
            if answer.kind is Kind.ERROR:
                raise from_wire(answer.header.get("error") or {})
            return answer

    def close(self) -> None:
        """Ask the host to stop, and drop the frames that it still sends. Idempotent."""
        if not self._open:
            return
        self._release()
        if self._waiter.answer is None and not self._channel.failed:
            # Abandon the request first, so that frames that still arrive are dropped.
            self._channel._leave(self.request_id)
            self._channel._withdraw(self.request_id)

    def abandon(self) -> None:
        """Drop the stream without a message to the host, which completes the request. For finalizers."""
        if self._open:
            self._release()
            self._channel.requests.leave(self.request_id)

    def _take_news(self, frame: Frame) -> None:
        if frame.kind is Kind.EVENT:
            self._news.append(frame)
            self._waiter.wake()

    def _release(self) -> None:
        self._open = False
        self._channel.requests.streams.pop(self._waiter, None)
