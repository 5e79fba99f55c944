"""Reads requests from one connection and answers them, in any order.

Theory of operation. Frames come in from one client; each REQUEST gets exactly one REPLY or ERROR. Between the two
a request passes the states of `in_flight`, and waits in a lane if its operation has one: calls of QNN sessions
share a lane, because the provider runs one at a time.

Threads: a pool of leader and followers. Exactly one thread, the leader, reads. With a request read, it gives the
lead away and serves the request itself, so a lone request never changes threads. The leader never writes, so a
client that is busy writing always finds a reader, and the two sides cannot block each other. Answers are written
under one lock.

Invariants: requests enter their lanes in the order in which they were read. Before native code is entered, the
PHASE frame that names the request is written, if the client could not know it otherwise: after a death the client
knows by these frames alone which requests were inside of it. Calls of fast channels pass the same table and lanes
(`accept`).

What fails: an error of a handler goes to the client as ERROR. A violation of the protocol ends the connection
(`broken`), because what follows in the stream cannot be trusted. The end of the stream ends the process of a
host, and in the daemon only the client. A defect of this module ends it with `EXIT_DEFECT` and a line on stderr.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from qnnbridge_host.request.client import SHORT_TEXT, describe, in_one_line
from qnnbridge_host.request.in_flight import Answer, Declaration, InFlight, Lane, Request
from qnnbridge_os.descriptors import ByteReader, ByteWriter, blocking_write
from qnnbridge_protocol.connection import Connection, Hello, Role, State
from qnnbridge_protocol.errors import (
    Busy,
    Cancelled,
    HandshakeFailed,
    ProtocolDesync,
    TooLarge,
    VersionMismatch,
)
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.limits import Limits

if TYPE_CHECKING:
    from qnnbridge_host.fastpath import BoundRuns, FastCall, OpenChannels, Slabs
    from qnnbridge_host.request.client import CallsBack


# How long a cancel waits for its effect.
# Below the 0.8 s that the application waits for the answer to its CANCEL.
CANCEL_GRACE_S = 0.3

# Threads that wait for the lead. Further threads, which a burst of requests needed, end after it.
# Starting a thread takes longer than a short request, so a few are kept.
SPARE_THREADS = 4

# Operations of `OpenChannels`.
CHANNEL_OPERATIONS = frozenset(("channel.open", "slab.attach", "slab.release"))


class Handlers(Protocol):
    """The operations behind the requests."""

    def start(self, declare_phase: Callable[..., None]) -> None:
        """The client has greeted: start slow imports. declare_phase: gets each phase and its versions."""

    def lane_of(self, request: Request) -> str | None:
        """The lane that a request waits in, or ``None``."""

    def handle(self, request: Request, enter: Callable[[str], None]) -> Answer:
        """Serve the request. `enter` is called before each native step."""

    def find(self, session: int) -> tuple[BoundRuns, str | None]:
        """The session with this number, and the lane that its runs wait in. Raises `Closed`."""

    def close(self) -> None:
        """Release all sessions."""


class Server:
    """Serves one client, then leaves its transport, which usually ends the process."""

    def __init__(
        self,
        transport: ServerTransport,
        hello: Hello,
        handlers: Handlers,
        connection: Connection | None = None,
        on_mismatch: Callable[[VersionMismatch, Hello], None] = lambda error, client: None,
    ) -> None:
        """connection: one on which HELLOs were exchanged already; default a new one. on_mismatch: called before a
        client of another version gets the error."""
        self._transport = transport
        self._connection = connection or Connection(Role.HOST, hello)
        self._handlers = handlers
        self._on_mismatch = on_mismatch
        self._own_limits = hello.limits
        self._write_lock = threading.Lock()
        # Order of locks: lead, then idle lock. No thread takes the write lock while it has the lead, but to
        # say goodbye.
        self._lead = threading.Lock()
        # Frames that one read brought, the last first: `pop` takes the next. Belongs to the leader.
        self._frames: list[Frame] = []
        self._idle = 0
        self._idle_lock = threading.Lock()
        self._lanes: dict[str, Lane[Request]] = {}
        self._in_flight = InFlight(self._declare, hello.limits.max_in_flight)
        # Of requests in which functions of the client may be called.
        self._calls_back: dict[int, CallsBack] = {}
        self._channels: OpenChannels | None = None
        self._channels_lock = threading.Lock()

    def run(self) -> NoReturn:
        """Greet, serve until the client leaves, leave."""
        if self._connection.agreement is None:
            self._greet()
        self._handlers.start(
            lambda phase, versions=None: self._send(_phase(0, phase, {"versions": versions} if versions else {}))
        )
        self._work()
        raise AssertionError("unreachable: _work only ends by leaving")

    def abandon(self) -> None:
        """The client is gone and the process continues: withdraw its requests, release its memory."""
        self._open_channels().close()
        self._in_flight.withdraw_all()

    @property
    def unanswered(self) -> int:
        """Number of requests without a complete answer."""
        return len(self._in_flight)

    def drain(self, timeout_s: float) -> bool:
        """Wait until all requests are answered; False if one is not in time. Any thread."""
        return self._in_flight.drain(timeout_s)

    @property
    def greeted(self) -> bool:
        """Whether the client has said HELLO, and was not refused."""
        return self._connection.agreement is not None

    # --- as `CallSink` of the channels ---

    @property
    def limits(self) -> Limits:
        agreement = self._connection.agreement
        return self._own_limits if agreement is None else agreement.limits

    def find(self, session: int) -> tuple[BoundRuns, str | None]:
        return self._handlers.find(session)

    # --- reading ---

    def _greet(self) -> None:
        frame = self._next_frame()
        assert frame.kind is Kind.HELLO
        try:
            chunks = self._connection.accept_hello()
        except (HandshakeFailed, VersionMismatch) as error:
            if isinstance(error, VersionMismatch) and self._connection.peer is not None:
                self._on_mismatch(error, self._connection.peer)
            # The only answer that a client of another version understands.
            self._write(self._connection.refuse_hello(error.to_wire()))
            self._transport.leave(EXIT_PROTOCOL)
        self._write(chunks)

    def _work(self, *, may_end: bool = False) -> None:
        """Never raises: the end of the main thread would be the end of the interpreter, amid its other threads."""
        try:
            self._lead_and_follow(may_end=may_end)
        except Exception as error:  # noqa: BLE001 - a defect is reported in one sentence, with its place
            self._transport.complain(f"a defect: {in_one_line(error)}")
            self._transport.leave(EXIT_DEFECT)

    def _lead_and_follow(self, *, may_end: bool) -> None:
        while True:
            with self._idle_lock:  # counts the threads that wait for the lead
                if may_end and self._idle >= SPARE_THREADS:
                    return
                self._idle += 1
            with self._lead:
                with self._idle_lock:
                    self._idle -= 1
                frame = self._next_frame()
                if frame.kind is Kind.GOODBYE:
                    self._say_goodbye()
                if frame.kind is Kind.REQUEST:
                    # While this thread still has the lead: later requests cannot overtake one that is
                    # announced.
                    self._in_flight.announce(frame.request_id)
                # Nobody waits for the lead: without another thread the next frame (a CANCEL, for example)
                # would not be read until this request is served.
                if self._idle <= 0:
                    self._transport.start_thread(functools.partial(self._work, may_end=True))
            # Hand over the only reference: a thread that waits, or works for others, holds no tensors.
            taken = [frame]
            del frame
            self._take(taken)

    def _next_frame(self) -> Frame:
        while not self._frames:
            try:
                self._transport.read_into(self._connection.get_buffer(), self._received)
            except OSError:
                self._transport.leave(EXIT_OK)
            except ProtocolDesync as error:
                self.broken(error)
                self._transport.leave(EXIT_PROTOCOL)
        return self._frames.pop()

    def _received(self, count: int) -> None:
        if not count:
            # The client is gone without a GOODBYE: nobody reads an exit code, and a reader of logs needs no
            # error.
            self._transport.leave(EXIT_OK)
        self._frames = self._connection.received(count)[::-1]

    def _say_goodbye(self) -> NoReturn:
        """The client leaves: finish and answer the requests under way first."""
        # Creations may take minutes; runs are finished, since their callers still wait.
        self._in_flight.withdraw_useless()
        self._in_flight.drain(self._transport.drain_timeout_s)
        self._send(Frame(Kind.GOODBYE, 0, {}))
        self._handlers.close()
        self._transport.leave(EXIT_OK)

    def broken(self, error: ProtocolDesync) -> None:
        """The client violates the protocol."""
        self._transport.complain(str(error))
        self._transport.end(EXIT_PROTOCOL)

    # --- serving ---

    def _take(self, taken: list[Frame]) -> None:
        frame = taken.pop()
        if frame.kind is Kind.PING:
            self._send(Frame(Kind.PONG, frame.request_id, {}))
        elif frame.kind is Kind.RETURN:
            calls_back = self._calls_back.get(frame.request_id)
            if calls_back is not None:
                calls_back.returned(frame)
        elif frame.kind is Kind.CANCEL:
            target = frame.header.get("target")
            target = target if type(target) is int else 0
            # Served by this thread and not in a lane: a cancel must not wait behind what it cancels.
            state = self._cancel(target)
            self._send(Frame(Kind.REPLY, frame.request_id, {"state": state}))
            # Answered at once: its lane may reach it only minutes later.
            withdrawn = self._in_flight.take_withdrawn(target) if state == "not-started" else None
            if withdrawn is not None:
                _drop_handles(withdrawn)
                self._send_error(withdrawn, Cancelled("The request was cancelled before it started."))
        else:
            request = Request(frame.request_id, frame.header, frame.buffers)
            del frame
            self._accept(request)

    def _cancel(self, target: int) -> str:
        """The state of the cancelled request. A call on a channel may be read later than its cancel on the
        connection."""
        channels = self._channels
        open_still = channels is not None and channels.withdraw(target)
        state = self._in_flight.cancel(target, CANCEL_GRACE_S)
        # Between the two looks the call may have been read, or answered: the second look at the channel
        # decides.
        if state == "finished" and channels is not None and open_still and channels.withdraw(target):
            return "not-started"
        return state

    def _accept(self, request: Request) -> None:
        """Serve a request. Requests enter their lanes in the order in which they were read."""
        lane = None
        try:
            # Always before the lane, so that a CANCEL finds it.
            taken = self._in_flight.add(request)
            lane = self._lane_of(request) if taken else None
        finally:
            if lane is None:
                self._in_flight.arrive(request.id)
        if not taken:
            _drop_handles(request)
            self._send_error(request, Busy("Too many requests are in flight.", fix="Call again later."))
        elif lane is None:
            self._serve(request)
        else:
            self._in_flight.await_turn(request.id)
            number = request.id
            self._lane(lane).submit(request, on_placed=lambda: self._in_flight.arrive(number))

    def _lane_of(self, request: Request) -> str | None:
        try:
            return self._handlers.lane_of(request)
        except Exception:  # noqa: BLE001 - its handler refuses it, and answers
            return None

    def accept(self, call: FastCall, lane: str | None) -> None:
        """Serve a call of a fast channel: in the same table and lanes as all requests."""
        place = None if lane is None else self._lane(lane)
        # The lane is busy: the call is queued like any other, and the thread in the lane will serve it.
        if place is not None and not place.enter():
            self._in_flight.add(call)
            if call.withdrawn_ahead:
                self._serve_call(call)
            else:
                place.submit(call, stay=False)
            return
        try:
            self._in_flight.carry(call)
        finally:
            if place is not None:
                place.leave()
            call.served()

    def _lane(self, name: str) -> Lane[Request]:
        lane = self._lanes.get(name)
        if lane is None:
            # setdefault: two threads may create a lane at once.
            lane = self._lanes.setdefault(name, Lane(self._serve))
        return lane

    def enter(self, request: Request, phase: str) -> None:
        """The request is about to enter native code."""
        self._in_flight.enter(request, phase)

    def _serve(self, request: Request) -> None:
        if request.on_channel:
            self._serve_call(request)
            return
        if not self._in_flight.start(request):
            return
        failed = True
        try:
            header, buffers = self._handle(request)
            # The phase ends before the answer is written: a death during the write is not the model's.
            self._in_flight.about_to_answer(request)
            self._send(Frame(Kind.REPLY, request.id, header, buffers))
            failed = False
        except BaseException as error:  # noqa: BLE001 - errors of a handler go to the client
            self._in_flight.about_to_answer(request)
            self._send_error(request, error)
        finally:
            self._in_flight.finish(request, failed=failed)

    def _serve_call(self, call: Request) -> None:
        well = False
        try:
            if self._in_flight.start(call):
                try:
                    well = call.serve()
                finally:
                    self._in_flight.finish(call, failed=not well)
        finally:
            call.served()

    def _handle(self, request: Request) -> Answer:
        op = str(request.op)
        if op in CHANNEL_OPERATIONS:
            try:
                # In any thread and in no lane: attaching memory must not wait for a run.
                self._open_channels().operations[op](request.header, request.id)
            finally:
                _drop_handles(request)
            return {}, ()
        number = request.id  # not the request: it would keep itself
        request.emit = functools.partial(self._emit, number)
        functions = request.header.get("functions")
        if functions:
            from qnnbridge_host.request.client import CallsBack

            timeout_s = request.header.get("function_timeout_s")
            request.calls_back = self._calls_back[number] = CallsBack(request, functions, timeout_s, self._send)
        try:
            return self._handlers.handle(request, lambda phase: self._in_flight.enter(request, phase))
        finally:
            if functions:
                self._calls_back.pop(number, None)

    def _open_channels(self) -> OpenChannels:
        """Created on demand: making a session does not import the fast path."""
        with self._channels_lock:
            if self._channels is None:
                from qnnbridge_host.fastpath import OpenChannels

                self._channels = OpenChannels(self, self._transport.slabs)
            return self._channels

    # --- writing ---

    def _declare(self, what: Declaration) -> None:
        with self._write_lock:
            if what.due:
                self._send_phase(what.id, what.phase, what.request.blame)
                what.made()

    def _send_phase(self, request_id: int, phase: str, blame: Mapping[str, Any]) -> None:
        """Under the lock."""
        try:
            self._send_next(_phase(request_id, phase, blame))
        except TooLarge:  # a name of kilobytes
            short = {key: text[:SHORT_TEXT] if isinstance(text, str) else text for key, text in blame.items()}
            self._send_next(_phase(request_id, phase, short))

    def _send_error(self, request: Request, error: BaseException) -> None:
        if request.on_channel:
            request.refuse(error)
            return
        self._send(Frame(Kind.ERROR, request.id, {"error": describe(error, self.limits.max_header)}))

    def _emit(self, request_id: int, event: dict[str, Any]) -> None:
        """An event is news; one that the client does not take is not sent."""
        with contextlib.suppress(TooLarge):
            self._send(Frame(Kind.EVENT, request_id, event))

    def _send(self, frame: Frame) -> None:
        with self._write_lock:
            self._send_next(frame)

    def _send_next(self, frame: Frame) -> None:
        """Under the lock."""
        if self._connection.state is State.CLOSED:  # GOODBYE was sent meanwhile
            self._transport.leave(EXIT_OK)
        self._write(self._connection.send(frame))

    def _write(self, chunks: list[memoryview]) -> None:
        try:
            self._transport.write_all(chunks)
        except OSError:
            self._transport.leave(EXIT_OK)


def _drop_handles(request: Request) -> None:
    if request.op in CHANNEL_OPERATIONS:
        from qnnbridge_host.fastpath import drop_handles

        drop_handles(request.header)


def _phase(request_id: int, phase: str, blame: Mapping[str, Any] = MappingProxyType({})) -> Frame:
    return Frame(Kind.PHASE, request_id, {"phase": phase, **blame})


# --- what a server reads and writes: its client's streams, and the process that ends with the client --------

# After GOODBYE. The client may kill the host earlier.
DRAIN_TIMEOUT_S = 10.0

EXIT_OK = 0
EXIT_PROTOCOL = 3
# A defect of the host itself.
EXIT_DEFECT = 4


class ServerTransport(Protocol):
    """The streams and the process of a server: its own process, or one shared with servers of other clients."""

    @property
    def slabs(self) -> Slabs:
        """For the client's shared memory."""

    @property
    def drain_timeout_s(self) -> float:
        """Seconds that calls under way may take after the client's GOODBYE."""

    def read_into(self, buffer: memoryview, use: Callable[[int], None]) -> None:
        """Wait for bytes of the client, then ``use(count)``; 0 at the end. Raises `OSError`."""

    def write_all(self, chunks: list[memoryview]) -> None:
        """Send the client everything. Raises `OSError`."""

    def start_thread(self, work: Callable[[], None]) -> None: ...

    def complain(self, text: str) -> None:
        """Log an error of the client."""

    def end(self, code: int) -> None:
        """Stop serving the client. Returns in a process that continues."""

    def leave(self, code: int) -> NoReturn:
        """`end` for a thread of the server: never returns."""


class ProcessTransport:
    """A process that ends with its client."""

    def __init__(self, in_fd: int, out_fd: int) -> None:
        self.read_into = ByteReader(in_fd).read_into
        self.write_all = ByteWriter(blocking_write(out_fd)).write_all
        self.drain_timeout_s = DRAIN_TIMEOUT_S
        self._slabs: Slabs | None = None

    @property
    def slabs(self) -> Slabs:
        if self._slabs is None:  # one server asks, under its lock
            from qnnbridge_host.fastpath import Slabs

            self._slabs = Slabs()
        return self._slabs

    def start_thread(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="qnnbridge worker", daemon=True).start()

    def complain(self, text: str) -> None:
        print(f"qnnbridge host: {text}", file=sys.stderr, flush=True)

    def end(self, code: int) -> None:
        leave(code)

    def leave(self, code: int) -> NoReturn:
        leave(code)


def leave(code: int) -> NoReturn:
    """End the process now.

    Not `sys.exit`: a daemon thread inside native code at interpreter exit aborts the process (measured with the
    QNN libraries: "terminate called without an active exception").
    """
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)
