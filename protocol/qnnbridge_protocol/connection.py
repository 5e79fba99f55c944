"""One connection without any I/O: bytes in, frames out, and the rules which side may send which frame in which
state.

The rules are the tables below. A state lists the kinds that may be sent and received in it, and the state that
follows. What is not listed is forbidden: sending it is a bug of ours (`RuntimeError`), receiving it is the
peer's (`ProtocolDesync`).

A client numbers its requests, cancels and pings 1, 2, 3 ... and never reuses a number. Each gets exactly one
answer: REQUEST a REPLY or ERROR, CANCEL a REPLY, PING a PONG. PHASE and EVENT may come in between, and CALL_BACK,
which asks the other way round: one at a time within a request, answered by RETURN.
"""

from __future__ import annotations

import enum

from qnnbridge_protocol.frames import Frame, Kind, desync
from qnnbridge_protocol.framing import FrameReader, write_frame
from qnnbridge_protocol.hello import Agreement, Hello, negotiate
from qnnbridge_protocol.limits import Limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Role(enum.Enum):
    CLIENT = "client"
    HOST = "host"


class State(enum.Enum):
    START = "start"
    GREETING = "greeting"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"


_ASKING = {Kind.REQUEST, Kind.CANCEL, Kind.PING}
_ANSWERING = {Kind.REPLY, Kind.ERROR, Kind.PONG}
_TELLING = {Kind.PHASE, Kind.EVENT}
_CALLING = {Kind.CALL_BACK}


def _stay(state: State, kinds: set[Kind]) -> dict[Kind, State]:
    return dict.fromkeys(kinds, state)


# (role, state) -> what it may send, and the state after it.
_SENDS: dict[tuple[Role, State], dict[Kind, State]] = {
    (Role.CLIENT, State.START): {Kind.HELLO: State.GREETING},
    (Role.CLIENT, State.READY): _stay(State.READY, _ASKING | {Kind.RETURN}) | {Kind.GOODBYE: State.CLOSING},
    (Role.HOST, State.GREETING): {Kind.HELLO_OK: State.READY, Kind.HELLO_ERR: State.CLOSED},
    (Role.HOST, State.READY): _stay(State.READY, _ANSWERING | _TELLING | _CALLING),
    (Role.HOST, State.CLOSING): _stay(State.CLOSING, _ANSWERING | _TELLING) | {Kind.GOODBYE: State.CLOSED},
}

# (role, state) -> what it may receive, and the state after it.
_RECEIVES: dict[tuple[Role, State], dict[Kind, State]] = {
    (Role.CLIENT, State.GREETING): {Kind.HELLO_OK: State.READY, Kind.HELLO_ERR: State.CLOSED},
    (Role.CLIENT, State.READY): _stay(State.READY, _ANSWERING | _TELLING | _CALLING),
    # One that crosses a GOODBYE is dropped.
    (Role.CLIENT, State.CLOSING): _stay(State.CLOSING, _ANSWERING | _TELLING | _CALLING)
    | {Kind.GOODBYE: State.CLOSED},
    (Role.HOST, State.START): {Kind.HELLO: State.GREETING},
    (Role.HOST, State.READY): _stay(State.READY, _ASKING | {Kind.RETURN}) | {Kind.GOODBYE: State.CLOSING},
}

_ANSWERS = {Kind.REQUEST: {Kind.REPLY, Kind.ERROR}, Kind.CANCEL: {Kind.REPLY}, Kind.PING: {Kind.PONG}}


class Connection:
    """The state of one connection. Sending and receiving may be done by two threads at a time, one each."""

    def __init__(self, role: Role, hello: Hello) -> None:
        self.role = role
        self.state = State.START
        self.hello = hello
        self.peer: Hello | None = None
        self.agreement: Agreement | None = None
        # Answers to requests that were given up; they are dropped.
        self.unclaimed_answers = 0
        self._limits: Limits = hello.limits
        self._reader = FrameReader(hello.limits, allow_preamble=role is Role.CLIENT)
        self._last_id = 0
        self._open: dict[int, Kind] = {}
        # The answers still come and have to be matched, or they would be answers to nothing.
        self._given_up: set[int] = set()
        # Requests in which the host waits for a function of the client.
        self._called_back: set[int] = set()

    # --- receiving ---

    @property
    def preamble(self) -> bytes:
        """Text that the peer's process printed before its HELLO."""
        return self._reader.preamble

    @property
    def mid_frame(self) -> bool:
        """Whether a frame has begun to arrive and is not complete."""
        return self._reader.mid_frame

    def get_buffer(self) -> memoryview:
        """Where to put the next bytes."""
        return self._reader.get_buffer()

    def received(self, count: int) -> list[Frame]:
        """`count` bytes are in the last buffer. Returns complete, legal frames; raises `ProtocolDesync`."""
        return [frame for frame in self._reader.advance(count) if self._accept(frame)]

    def received_eof(self) -> bool:
        """The stream ended. True if it could end here: between frames, after GOODBYE or HELLO_ERR."""
        clean = self.state in (State.CLOSING, State.CLOSED) and not self._reader.mid_frame
        self.state = State.CLOSED
        return clean

    def _accept(self, frame: Frame) -> bool:
        after = _RECEIVES.get((self.role, self.state), {}).get(frame.kind)
        if after is None:
            raise desync(f"{frame.kind.name} is not allowed in state {self.state.value}")
        if self.role is Role.CLIENT and frame.kind in _ANSWERING and not self._close_request(frame):
            return False
        if frame.kind is Kind.CALL_BACK and not self._open_call(frame):
            return False
        if self.role is Role.HOST and frame.kind in _ASKING:
            # Numbers only rise, so a repeated or old frame is noticed with one comparison.
            if frame.request_id <= self._last_id:
                raise desync(f"request id {frame.request_id} after {self._last_id}")
            self._last_id = frame.request_id
        self._move(after)
        if frame.kind in (Kind.HELLO, Kind.HELLO_OK):
            self.peer = Hello.from_wire(frame.header, self._reader.hello_version)
            if frame.kind is Kind.HELLO_OK:
                self._agree(negotiate(self.hello, self.peer))
        return True

    def _close_request(self, frame: Frame) -> bool:
        """Whether a caller waits for this answer."""
        asked = self._open.pop(frame.request_id, None)
        if asked is None:
            raise desync(f"{frame.kind.name} to request {frame.request_id}, which is not open")
        self._called_back.discard(frame.request_id)
        if frame.kind not in _ANSWERS[asked]:
            raise desync(f"{frame.kind.name} to a {asked.name}")
        if frame.request_id in self._given_up:
            self._given_up.discard(frame.request_id)
            self.unclaimed_answers += 1
            return False
        return True

    def _open_call(self, frame: Frame) -> bool:
        """Whether there may be a caller whose function is called."""
        number = frame.request_id
        if self._open.get(number) is not Kind.REQUEST:
            raise desync(f"CALL_BACK of request {number}, which is not open")
        if number in self._called_back:
            raise desync(f"CALL_BACK of request {number}, whose last one is not answered")
        if self.state is State.CLOSING or number in self._given_up:
            return False
        self._called_back.add(number)
        return True

    # --- sending ---

    def send_hello(self) -> list[memoryview]:
        """Client: open the conversation."""
        return self.send(Frame(Kind.HELLO, 0, self.hello.to_wire()))

    def accept_hello(self) -> list[memoryview]:
        """Host: answer the client's HELLO. Raises `VersionMismatch` and `HandshakeFailed`, which belong into
        `refuse_hello`."""
        assert self.peer is not None
        # Before anything is sent: if they do not fit, the answer is HELLO_ERR.
        agreement = negotiate(self.peer, self.hello)
        chunks = self.send(Frame(Kind.HELLO_OK, 0, self.hello.to_wire()))
        self._agree(agreement)
        return chunks

    def refuse_hello(self, error: dict[str, Any]) -> list[memoryview]:
        """Host: say why not. The connection is over."""
        return self.send(Frame(Kind.HELLO_ERR, 0, {"error": error}))

    def ask(
        self, kind: Kind, header: dict[str, Any], buffers: tuple[Any, ...] = ()
    ) -> tuple[int, list[memoryview]]:
        """Client: the next request, cancel or ping. Returns its id and the bytes to write."""
        request_id = self._last_id + 1
        # First: a frame that is too large uses up no number and opens nothing.
        chunks = self.send(Frame(kind, request_id, header, buffers))
        self._last_id = request_id
        self._open[request_id] = kind
        return request_id, chunks

    def give_back(
        self, request_id: int, header: dict[str, Any], buffers: tuple[Any, ...] = ()
    ) -> list[memoryview] | None:
        """Client: the RETURN to the open CALL_BACK of a request; ``None`` if the host does not wait any more."""
        if request_id not in self._called_back or self.state is not State.READY:
            return None
        # First: the next CALL_BACK may be read before this returns.
        self._called_back.discard(request_id)
        try:
            return self.send(Frame(Kind.RETURN, request_id, header, buffers))
        except BaseException:
            self._called_back.add(request_id)
            raise

    def give_up(self, request_id: int) -> None:
        """Client: the caller has given up this answer."""
        if request_id in self._open:
            self._given_up.add(request_id)

    def send(self, frame: Frame) -> list[memoryview]:
        """The bytes of a frame. Raises `TooLarge`, and `RuntimeError` for a frame that is not allowed now."""
        after = _SENDS.get((self.role, self.state), {}).get(frame.kind)
        if after is None:
            raise RuntimeError(f"{self.role.value} may not send {frame.kind.name} in state {self.state.value}")
        chunks = write_frame(frame, self._limits)
        self._move(after)
        return chunks

    def _move(self, after: State) -> None:
        # Only a true change is written: the other direction's thread may just have moved on to CLOSING.
        if (after is not self.state and self.state is not State.CLOSING) or after is State.CLOSED:
            self.state = after

    def _agree(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self._limits = self._reader.limits = agreement.limits
