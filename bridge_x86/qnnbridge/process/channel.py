"""Calls over one connection, from any number of threads, without a thread of its own.

The caller writes its request itself. Of the callers that wait, one reads (it has the lead): it keeps its own
answer, hands the others theirs, and on leaving wakes the next one. A lone caller never waits for another
thread, which is three to twenty times quicker than a reader thread (`docs/performance.md`).

Deadlines are points of `time.monotonic()`. A frame that could not be written whole before its deadline is
finished by the next sender, so that one caller's deadline costs the others nothing.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any, overload

from qnnbridge._platform import let_ctrl_c_through, wait_readable, write_some
from qnnbridge_protocol.connection import Connection, Role, State
from qnnbridge_protocol.drivers.descriptors import ByteReader, ByteWriter
from qnnbridge_protocol.errors import BridgeError, HostHung, ProtocolDesync, from_wire
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.hello import Hello

STALL_TIMEOUT_S = 60.0
"""Silence in the middle of a frame. The host writes a frame in one go, so this means a stopped process."""

SILENCE_INTERVAL_S = 5.0
"""How often a caller without a deadline asks `on_silence` whether the host can move at all."""

CANCEL_TIMEOUT_S = 0.8
"""How long a caller whose deadline has passed waits to hear what became of its work."""


LAST_WORDS_TIMEOUT_S = 1.0
"""From a write that finds nobody to the end of what the dead host has left in the other pipe."""


class ChannelFailed(Exception):
    """The connection is of no use any more: the host is gone, hung, or talks nonsense (`reason`)."""

    def __init__(self, reason: BridgeError | None = None) -> None:
        super().__init__(str(reason or "end of stream"))
        self.reason = reason


class Deadline(Exception):
    """The caller's time is up. ``state`` says what became of the work, ``request_id`` names it."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state


class ChannelRetired(Exception):
    """The connection is being closed in good order; nothing was sent. Ask its successor."""


@dataclasses.dataclass(frozen=True)
class Note:
    """What a request is about, for the case that the host does not survive it."""

    op: str
    model: str = ""
    fingerprint: str = ""
    options_hash: str = ""


@dataclasses.dataclass(frozen=True)
class Lost:
    """A request that was open when the connection failed.

    phase: what the host declared for it, if anything. sent: whether it was written whole, so that the host can
    have begun with it.
    """

    request_id: int
    note: Note
    phase: str | None
    sent: bool = True


class _Waiter:
    __slots__ = ("answer", "note", "wakeup")

    def __init__(self, note: Note) -> None:
        self.answer: Frame | None = None
        self.note = note
        self.wakeup = threading.Lock()
        self.wakeup.acquire()

    def wake(self) -> None:
        try:
            self.wakeup.release()
        except RuntimeError:
            pass  # it has been woken already and did not look yet


class Channel:
    """See the module. All methods may be called from any thread."""

    def __init__(
        self,
        write_fd: int,
        read_fd: int,
        hello: Hello,
        on_silence: Callable[[], BridgeError | None] = lambda: None,
    ) -> None:
        """on_silence: asked now and then while nothing comes; its error ends the connection."""
        self._connection = Connection(Role.CLIENT, hello)
        self._reader = ByteReader(read_fd)
        self._writer = ByteWriter(lambda chunks: write_some(write_fd, chunks, self._write_timeout_s))
        self._write_timeout_s = STALL_TIMEOUT_S
        self._stuck_since: float | None = None
        self._read_fd = read_fd
        self._on_silence = on_silence
        self._send_lock = threading.Lock()
        self._lead = threading.Lock()
        self._waiters: dict[int, _Waiter] = {}
        self._room = threading.Semaphore(hello.limits.max_in_flight)
        self._abandoned: dict[int, Note] = {}
        self._failure: ChannelFailed | None = None
        self._greeting: Frame | None = None
        self._unsent: int | None = None
        self._retired = False
        self._said_goodbye = False
        self._idle: threading.Event | None = None
        self.phases: dict[int, str] = {}
        """Request id -> the native step that the host said it is in; 0 is the host itself."""
        self.lost: tuple[Lost, ...] = ()
        """What was open when the connection failed, oldest first."""

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def peer(self) -> Hello:
        """The host's introduction; after `greet`."""
        assert self._connection.peer is not None
        return self._connection.peer

    @property
    def preamble(self) -> bytes:
        """What the host's process printed on its stdout before the protocol began."""
        return self._connection.preamble

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answer."""
        return len(self._waiters)

    def greet(self, deadline: float) -> None:
        """Exchange HELLOs. Raises `VersionMismatch`, `ChannelFailed` or `Deadline`; goes on if called again."""
        with self._send_lock:
            greeted = self._connection.state is not State.START
            self._write([] if greeted else self._connection.send_hello(), deadline)
        with self._lead:
            while self._greeting is None:
                self._read(deadline)
        if self._greeting.kind is Kind.HELLO_ERR:
            raise from_wire(self._greeting.header.get("error") or {})
        assert self._connection.agreement is not None
        # More than the host takes wait here, in the order they came.
        self._room = threading.Semaphore(self._connection.agreement.limits.max_in_flight)

    def call(
        self,
        header: dict[str, Any],
        buffers: tuple[Any, ...] = (),
        deadline: float | None = None,
        note: Note | None = None,
        on_sent: Callable[[int], None] | None = None,
    ) -> Frame:
        """Send a request and wait for its REPLY.

        Raises the error that the host answered with, `Deadline` when the time is up (the work is cancelled as
        far as that goes), `ChannelFailed` when the host is lost, `TooLarge` when nothing was sent.
        """
        if not self._room.acquire(timeout=_remaining(deadline, None)):
            raise Deadline("not-started")
        try:
            return self._call(header, buffers, deadline, note, on_sent)
        finally:
            self._room.release()

    def _call(
        self,
        header: dict[str, Any],
        buffers: tuple[Any, ...],
        deadline: float | None,
        note: Note | None,
        on_sent: Callable[[int], None] | None,
    ) -> Frame:
        request_id, waiter = self._ask(Kind.REQUEST, header, buffers, deadline, note)
        if on_sent is not None:
            on_sent(request_id)
        try:
            answer = self._await(waiter, deadline)
        except Deadline:
            raise Deadline(self._abandon(request_id, waiter)) from None
        except BaseException:
            # An interrupt of the caller: nobody waits any more, the host may stop working on it.
            self._abandon(request_id, None)
            raise
        if answer.kind is Kind.ERROR:
            raise from_wire(answer.header.get("error") or {})
        return answer

    def ping(self, deadline: float) -> None:
        """Ask for a sign of life. Its lack alone proves nothing: native code may hold the host's GIL."""
        request_id, waiter = self._ask(Kind.PING, {}, (), deadline)
        try:
            self._await(waiter, deadline)
        finally:
            self._forget(request_id)

    def cancel(self, request_id: int, deadline: float) -> str:
        """Withdraw a request. Returns not-started, stopped, finished or still-running."""
        cancel_id, waiter = self._ask(Kind.CANCEL, {"target": request_id}, (), deadline)
        try:
            return str(self._await(waiter, deadline).header.get("state"))
        finally:
            self._forget(cancel_id)

    def goodbye(self, deadline: float) -> bool:
        """Tell the host to finish what it has and leave. True if it said goodbye in time."""
        try:
            with self._send_lock:
                self._retired = True
                self._write(self._connection.send(Frame(Kind.GOODBYE, 0, {})), deadline)
            # A caller without a deadline may have the lead as long as its call lasts.
            if not self._lead.acquire(timeout=_remaining(deadline)):
                return self._said_goodbye
            try:
                while not self._said_goodbye:
                    self._read(deadline)
            finally:
                self._lead.release()
        except (ChannelFailed, Deadline, RuntimeError):
            return self._said_goodbye
        return True

    def fail(self, reason: BridgeError | None) -> ChannelFailed:
        """Nothing will come any more: every caller gets the failure. The first reason stays."""
        if self._failure is None:
            self._failure = ChannelFailed(reason)
            # What nobody waits for any more may be what the host is busy with.
            notes = {**self._abandoned, **{number: waiter.note for number, waiter in self._waiters.items()}}
            self.lost = tuple(
                Lost(number, note, self.phases.get(number), number != self._unsent)
                for number, note in sorted(notes.items())
                if note.op
            )
        for waiter in list(self._waiters.values()):
            waiter.wake()
        if self._idle is not None:
            self._idle.set()
        return self._failure

    def wait_idle(self, deadline: float) -> bool:
        """Wait until no request is open. True if none is."""
        self._idle = threading.Event()
        while self._waiters and not self.failed:
            if not self._idle.wait(_remaining(deadline)):
                return False
            self._idle.clear()
        return not self._waiters

    def release(self, timeout_s: float) -> bool:
        """After `fail` and the end of the process: nobody is inside of the descriptors any more, nor will be.

        Only then may they be closed: their numbers are given to the next host's pipes, and a caller that was about
        to read would take bytes out of those. False if a caller still waits (somebody keeps the pipe open).
        """
        assert self._failure is not None
        with self._send_lock:
            self._writer.discard()
        if not self._lead.acquire(timeout=timeout_s):
            return False
        self._lead.release()
        return True

    # --- asking ---

    def _ask(
        self,
        kind: Kind,
        header: dict[str, Any],
        buffers: tuple[Any, ...],
        deadline: float | None,
        note: Note | None = None,
    ) -> tuple[int, _Waiter]:
        waiter = _Waiter(note or _UNNOTED)
        if not self._send_lock.acquire(timeout=_remaining(deadline)):
            raise Deadline("not-started")
        try:
            # First: that the stream has ended since is no failure.
            if self._retired:
                raise ChannelRetired
            if self._failure is not None:
                raise self._failure
            try:
                request_id, chunks = self._connection.ask(kind, header, buffers)
            except RuntimeError:
                if self._failure is not None:  # the stream has ended this very moment
                    raise self._failure from None
                raise
            self._waiters[request_id] = waiter
            self._unsent = request_id
            try:
                self._write(chunks, deadline)
            except BaseException:
                self._forget(request_id)
                raise
            finally:
                self._unsent = None
        finally:
            self._send_lock.release()
        return request_id, waiter

    def _write(self, chunks: list[memoryview], deadline: float | None) -> None:
        """Write the chunks. Holds the send lock; what is left at the deadline is written by the next sender."""
        writer = self._writer
        if writer.torn:
            raise self.fail(_interrupted())
        writer.add(chunks)
        while writer.pending:
            self._write_timeout_s = min(STALL_TIMEOUT_S, _remaining(deadline, STALL_TIMEOUT_S))
            try:
                writer.write_some()
                self._stuck_since = None
            except TimeoutError:
                # Short deadlines of many callers add up: it is the host that does not read, not the caller.
                now = time.monotonic()
                self._stuck_since = self._stuck_since or now - self._write_timeout_s
                if now - self._stuck_since >= STALL_TIMEOUT_S:
                    raise self.fail(_stalled("take", STALL_TIMEOUT_S)) from None
                if deadline is not None and now >= deadline:
                    raise Deadline("not-started") from None
            except OSError:
                raise self._after_last_words() from None

    def _after_last_words(self) -> ChannelFailed:
        """The host takes nothing any more. What it said before is still in the pipe: phases, even answers."""
        until = time.monotonic() + LAST_WORDS_TIMEOUT_S
        if self._lead.acquire(timeout=LAST_WORDS_TIMEOUT_S):
            try:
                while self._failure is None:
                    self._read(until)
            except (ChannelFailed, Deadline):
                pass
            finally:
                self._lead.release()
        return self.fail(None)

    def _abandon(self, request_id: int, waiter: _Waiter | None) -> str:
        """Give an unanswered request up and tell the host. Returns what became of the work."""
        try:
            state = self.cancel(request_id, time.monotonic() + CANCEL_TIMEOUT_S)
        except (Deadline, ChannelFailed, ChannelRetired, BridgeError):
            state = "still-running"
        waiting = self._waiters.get(request_id)
        if waiting is not None and state == "still-running":
            # Its answer is still expected, so that a death until then is blamed on the right one.
            self._abandoned[request_id] = waiting.note
            self._take_waiter(request_id)
            return state
        if waiter is not None and waiter.answer is not None and state == "still-running":
            state = "finished"
        self._forget(request_id)
        return state

    def _forget(self, request_id: int) -> None:
        self._take_waiter(request_id)
        self.phases.pop(request_id, None)
        self._connection.give_up(request_id)

    def _take_waiter(self, request_id: int) -> _Waiter | None:
        waiter = self._waiters.pop(request_id, None)
        if self._idle is not None and not self._waiters:
            self._idle.set()
        return waiter

    # --- waiting ---

    def _await(self, waiter: _Waiter, deadline: float | None) -> Frame:
        while waiter.answer is None:
            if self._failure is not None:
                raise self._failure
            if self._lead.acquire(blocking=False):
                try:
                    while waiter.answer is None and self._failure is None:
                        self._read(deadline)
                finally:
                    self._lead.release()
                    self._promote()
            elif not waiter.wakeup.acquire(timeout=_remaining(deadline)):
                raise Deadline("still-running")
        return waiter.answer

    def _promote(self) -> None:
        """The lead is free: wake one that waits, so that somebody reads."""
        for waiter in list(self._waiters.values()):
            if waiter.answer is None:
                waiter.wake()
                return

    def _read(self, deadline: float | None) -> None:
        """Read once and hand out what came. Holds the lead."""
        reader = self._reader
        if reader.torn:
            raise self.fail(_interrupted())
        if self._failure is not None:
            raise self._failure
        if not reader.ready:
            if deadline is not None:
                if not wait_readable(self._read_fd, _remaining(deadline)):
                    raise Deadline("still-running")
            else:
                self._wait_with_patience()
                let_ctrl_c_through(self._read_fd)
        try:
            reader.read_into(self._connection.get_buffer(), self._received)
        except ProtocolDesync as error:
            raise self.fail(error) from None
        except OSError:
            raise self.fail(None) from None

    def _wait_with_patience(self) -> None:
        """Wait for bytes without a deadline. Only a host that cannot move, or stops within a frame, ends it."""
        in_frame_since = time.monotonic() if self._connection.mid_frame else None
        while not wait_readable(self._read_fd, SILENCE_INTERVAL_S):
            if self._failure is not None:
                raise self._failure
            reason = self._on_silence()
            if in_frame_since is not None and time.monotonic() - in_frame_since >= STALL_TIMEOUT_S:
                reason = reason or _stalled("send", STALL_TIMEOUT_S)
            if reason is not None:
                raise self.fail(reason)

    def _received(self, count: int) -> None:
        if not count:
            failure = self.fail(None)
            self._connection.received_eof()
            raise failure
        for frame in self._connection.received(count):
            self._hand_out(frame)

    def _hand_out(self, frame: Frame) -> None:
        kind = frame.kind
        if kind is Kind.PHASE:
            number = frame.request_id
            # The host may declare a request that it has just answered: a second one came in that moment.
            if not number or number in self._waiters or number in self._abandoned:
                self.phases[number] = str(frame.header.get("phase"))
        elif kind in (Kind.HELLO_OK, Kind.HELLO_ERR):
            self._greeting = frame
        elif kind is Kind.GOODBYE:
            self._said_goodbye = True
        elif kind is not Kind.EVENT:  # an event is news that this version does not know
            self.phases.pop(frame.request_id, None)
            self._abandoned.pop(frame.request_id, None)
            waiter = self._take_waiter(frame.request_id)
            if waiter is not None:
                waiter.answer = frame
                waiter.wake()


_UNNOTED = Note("")


@overload
def _remaining(deadline: float | None, forever: float = -1) -> float: ...
@overload
def _remaining(deadline: float | None, forever: None) -> float | None: ...
def _remaining(deadline: float | None, forever: float | None = -1) -> float | None:
    """Seconds left; without a deadline `forever`, by default what `Lock.acquire` takes for it."""
    return forever if deadline is None else max(0.0, deadline - time.monotonic())


def _stalled(verb: str, seconds: float) -> HostHung:
    return HostHung(
        f"The host stopped in the middle of a message: it did not {verb} a byte for {seconds:g} s.",
        cause="The host process is stopped (debugger, SIGSTOP, suspended) or the machine is out of memory.",
        fix="Nothing to do: the host is ended and started again with the next call.",
    )


def _interrupted() -> ProtocolDesync:
    return ProtocolDesync(
        "The place in the stream was lost because Ctrl+C struck while a message was taken apart.",
        fix="Nothing to do: the host is started again with the next call.",
    )
