"""Read requests from one connection and answer them, in any order.

Theory of operation. One client sends frames; each REQUEST gets exactly one REPLY or ERROR. Until then a request
passes through the states in `in_flight`, and waits in a lane (a queue) if its operation has one: calls of QNN
sessions share a lane, because the provider runs one call at a time.

Threads: a leader-follower pool. Exactly one thread, the leader, reads. After reading a request, the leader passes
the lead to another thread and serves the request itself, so a single request never changes threads. The leader
never writes. So somebody always reads while the client writes, and the two sides cannot block each other. Answers
are written under one lock.

Invariants: requests enter their lanes in the order in which they were read. Before native code is entered, the
PHASE frame of the request is written if the client could not know the phase otherwise: after a crash these frames
are the client's only evidence of which requests were inside native code. Calls of fast channels use the same table
and lanes (`accept`).

Failures: an error of a handler is sent to the client as ERROR. A violation of the protocol ends the connection
(`broken`), because the rest of the stream cannot be trusted. The end of the stream ends the process of a host, and
in the daemon only the client. A defect of this module ends the process with `EXIT_DEFECT` and a line on stderr.
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


# Seconds that a cancel request waits for its effect. This is less than the 0.8 s that the application waits for the
# answer.
CANCEL_GRACE_S = 0.3

# Maximum number of threads waiting for the lead. Further threads, started by a burst of requests, end after their
# request. A few threads are kept, because starting a thread takes longer than a short request.
SPARE_THREADS = 4

# Operations that `OpenChannels` serves.
CHANNEL_OPERATIONS = frozenset(("channel.open", "slab.attach", "slab.release"))


class Handlers(Protocol):
    """Operations that serve the requests."""

    def start(self, declare_phase: Callable[..., None]) -> None:
        """Start slow imports after the client's HELLO. declare_phase: function that reports each phase of the
        imports, and QNN's versions."""

    def lane_of(self, request: Request) -> str | None:
        """Return the lane in which a request waits, or ``None``."""

    def handle(self, request: Request, enter: Callable[[str], None]) -> Answer:
        """Serve a request. `enter` is called before each native step."""

    def find(self, session: int) -> tuple[BoundRuns, str | None]:
        """Return the session with this number, and the lane of its runs. Raise `Closed` for an unknown number."""

    def close(self) -> None:
        """Release all sessions."""


class Server:
    """Serves one client, then ends its threads, and in a host the process (`ServerTransport.leave`)."""

    def __init__(
        self,
        transport: ServerTransport,
        hello: Hello,
        handlers: Handlers,
        connection: Connection | None = None,
        on_mismatch: Callable[[VersionMismatch, Hello], None] = lambda error, client: None,
    ) -> None:
        """Create a server.

        connection: a connection on which HELLOs were exchanged already; default: a new one. on_mismatch: called
            before a client with another version gets the error.
        """
        self._transport = transport
        self._connection = connection or Connection(Role.HOST, hello)
        self._handlers = handlers
        self._on_mismatch = on_mismatch
        self._own_limits = hello.limits
        self._write_lock = threading.Lock()
        # Lock order: the lead, then the idle lock. A thread with the lead takes the write lock only to send
        # GOODBYE.
        self._lead = threading.Lock()
        # Frames of the last read in reverse order: `pop` takes the next frame. Only the leader uses them.
        self._frames: list[Frame] = []
        self._idle = 0
        self._idle_lock = threading.Lock()
        self._lanes: dict[str, Lane[Request]] = {}
        self._in_flight = InFlight(self._declare, hello.limits.max_in_flight)
        # Open requests that may call functions of the client.
        self._calls_back: dict[int, CallsBack] = {}
        self._channels: OpenChannels | None = None
        self._channels_lock = threading.Lock()

    def run(self) -> NoReturn:
        """Exchange HELLOs, and serve until the client leaves. Never returns."""
        if self._connection.agreement is None:
            self._greet()
        self._handlers.start(
            lambda phase, versions=None: self._send(_phase(0, phase, {"versions": versions} if versions else {}))
        )
        self._work()
        raise AssertionError("unreachable: _work only ends by leaving the transport")

    def abandon(self) -> None:
        """Withdraw the client's requests and release its memory after the client has gone; the process
        continues."""
        self._open_channels().close()
        self._in_flight.withdraw_all()

    @property
    def unanswered(self) -> int:
        """Number of requests without a complete answer."""
        return len(self._in_flight)

    def drain(self, timeout_s: float) -> bool:
        """Wait until all requests are answered; return False after the timeout. Any thread may call this."""
        return self._in_flight.drain(timeout_s)

    @property
    def greeted(self) -> bool:
        """True if the client has sent HELLO and was not refused."""
        return self._connection.agreement is not None

    # --- methods of `CallSink`, for the channels ---------------------------------------------------------

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
            # This is the only answer that a client with another version understands.
            self._write(self._connection.refuse_hello(error.to_wire()))
            self._transport.leave(EXIT_PROTOCOL)
        self._write(chunks)

    def _work(self, *, may_end: bool = False) -> None:
        """Serve in turn as leader and follower. Never raise, because the end of the main thread would end the
        interpreter."""
        try:
            self._lead_and_follow(may_end=may_end)
        except Exception as error:  # noqa: BLE001 - a defect is reported in one line with its location
            self._transport.complain(f"a defect: {in_one_line(error)}")
            self._transport.leave(EXIT_DEFECT)

    def _lead_and_follow(self, *, may_end: bool) -> None:
        while True:
            with self._idle_lock:  # this lock protects the number of threads that wait for the lead
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
                    # Announce the request while holding the lead, so that no later request can overtake it.
                    self._in_flight.announce(frame.request_id)
                # Ensure that a thread waits for the lead. Otherwise the next frame (such as a CANCEL) would not be
                # read until this request is served.
                if self._idle <= 0:
                    self._transport.start_thread(functools.partial(self._work, may_end=True))
            # Hand over the only reference, so that a thread that waits or serves another request does not keep
            # tensors alive.
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
            # The client is gone without a GOODBYE: the exit code does not matter, and no error is logged.
            self._transport.leave(EXIT_OK)
        self._frames = self._connection.received(count)[::-1]

    def _say_goodbye(self) -> NoReturn:
        """Finish and answer the open requests, then stop serving the client, because it has sent GOODBYE."""
        # Withdraw creations, which may take minutes. Finish runs, because their callers are still waiting.
        self._in_flight.withdraw_useless()
        self._in_flight.drain(self._transport.drain_timeout_s)
        self._send(Frame(Kind.GOODBYE, 0, {}))
        self._handlers.close()
        self._transport.leave(EXIT_OK)

    def broken(self, error: ProtocolDesync) -> None:
        """Stop serving a client that violates the protocol."""
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
            # Serve the cancel request here, outside of all lanes, because it must not wait behind its target.
            state = self._cancel(target)
            self._send(Frame(Kind.REPLY, frame.request_id, {"state": state}))
            # Answer the withdrawn request now, because its lane may reach it only after minutes.
            withdrawn = self._in_flight.take_withdrawn(target) if state == "not-started" else None
            if withdrawn is not None:
                _drop_handles(withdrawn)
                self._send_error(withdrawn, Cancelled("The request was cancelled before it started."))
        else:
            request = Request(frame.request_id, frame.header, frame.buffers)
            del frame
            self._accept(request)

    def _cancel(self, target: int) -> str:
        """Cancel a request and return its state. A call on a channel is cancelled even if it was not read yet."""
        channels = self._channels
        open_still = channels is not None and channels.withdraw(target)
        state = self._in_flight.cancel(target, CANCEL_GRACE_S)
        # Check the channel again: the call may have been read or answered between the two checks.
        if state == "finished" and channels is not None and open_still and channels.withdraw(target):
            return "not-started"
        return state

    def _accept(self, request: Request) -> None:
        """Serve a request. Requests enter their lanes in the order in which they were read."""
        lane = None
        try:
            # Enter the table before the lane, so that a CANCEL finds the request.
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
        except Exception:  # noqa: BLE001 - the handler will refuse the request and answer
            return None

    def accept(self, call: FastCall, lane: str | None) -> None:
        """Serve a call of a fast channel, with the same table and lanes as other requests."""
        place = None if lane is None else self._lane(lane)
        # If the lane is busy, queue the call like any other call; the thread in the lane will serve it.
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
            # Use `setdefault`, because two threads may create a lane at once.
            lane = self._lanes.setdefault(name, Lane(self._serve))
        return lane

    def enter(self, request: Request, phase: str) -> None:
        """Record that the request is about to enter native code."""
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
            # End the phase before writing the answer, so that a crash in the write is not blamed on the model.
            self._in_flight.about_to_answer(request)
            self._send(Frame(Kind.REPLY, request.id, header, buffers))
            failed = False
        except BaseException as error:  # noqa: BLE001 - errors of a handler are sent to the client
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
                # Serve these operations outside of lanes, because attaching memory must not wait for a run.
                self._open_channels().operations[op](request.header, request.id)
            finally:
                _drop_handles(request)
            return {}, ()
        number = request.id  # `emit` refers only to the id: a reference to the request would be a cycle
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
        """Create the channels on first use, so that creating a session does not import the fast path."""
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
        """Send a PHASE frame. The caller holds the write lock."""
        try:
            self._send_next(_phase(request_id, phase, blame))
        except TooLarge:  # the name of the model is too long for a frame
            short = {key: text[:SHORT_TEXT] if isinstance(text, str) else text for key, text in blame.items()}
            self._send_next(_phase(request_id, phase, short))

    def _send_error(self, request: Request, error: BaseException) -> None:
        if request.on_channel:
            request.refuse(error)
            return
        self._send(Frame(Kind.ERROR, request.id, {"error": describe(error, self.limits.max_header)}))

    def _emit(self, request_id: int, event: dict[str, Any]) -> None:
        """Send an event; drop it if the client's limits are too small."""
        with contextlib.suppress(TooLarge):
            self._send(Frame(Kind.EVENT, request_id, event))

    def _send(self, frame: Frame) -> None:
        with self._write_lock:
            self._send_next(frame)

    def _send_next(self, frame: Frame) -> None:
        """Send a frame. The caller holds the write lock."""
        if self._connection.state is State.CLOSED:  # GOODBYE was sent in the meantime
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


# --- transport of a server: the streams of its client, and the process that ends with the client ---------

# Time limit for open requests after GOODBYE. The client may kill the host earlier.
DRAIN_TIMEOUT_S = 10.0

EXIT_OK = 0
EXIT_PROTOCOL = 3
# Exit code for a defect of the host itself.
EXIT_DEFECT = 4


class ServerTransport(Protocol):
    """Streams and process of a server. The process may be shared with servers of other clients."""

    @property
    def slabs(self) -> Slabs:
        """Shared memory that the client has passed."""

    @property
    def drain_timeout_s(self) -> float:
        """Seconds that requests in flight may take after the client's GOODBYE."""

    def read_into(self, buffer: memoryview, use: Callable[[int], None]) -> None:
        """Wait for bytes from the client and call ``use(count)``; `count` is 0 at the end. Raise `OSError`."""

    def write_all(self, chunks: list[memoryview]) -> None:
        """Send all chunks to the client. Raise `OSError`."""

    def start_thread(self, work: Callable[[], None]) -> None: ...

    def complain(self, text: str) -> None:
        """Log a protocol violation of the client, or a defect of the server."""

    def end(self, code: int) -> None:
        """Stop serving the client. In a process with only one client, this ends the process."""

    def leave(self, code: int) -> NoReturn:
        """Stop like `end`, and end the calling thread of the server. Never returns."""


class ProcessTransport:
    """Transport of a process that serves one client and ends with it."""

    def __init__(self, in_fd: int, out_fd: int) -> None:
        self.read_into = ByteReader(in_fd).read_into
        self.write_all = ByteWriter(blocking_write(out_fd)).write_all
        self.drain_timeout_s = DRAIN_TIMEOUT_S
        self._slabs: Slabs | None = None

    @property
    def slabs(self) -> Slabs:
        if self._slabs is None:  # no lock is needed: the only caller, the server, holds one
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

    `sys.exit` is not used: a daemon thread that is inside native code at interpreter exit aborts the process
    (measured with the QNN libraries: "terminate called without an active exception").
    """
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)
