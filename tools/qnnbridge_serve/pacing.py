"""Limit the time and memory of a connection: bodies in small chunks, and answers that a client does not read.

Only the thread of the event loop may use this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.flow_control import FlowControl

# Number of parts of a body that h11 parses in one turn of the event loop. Each part takes about 25 microseconds
# whatever its size: 256 KB in chunks of one byte (43,000 parts) blocked all other connections for more than a
# second.
PARTS_PER_TURN: Final = 16
# Number of chunks that a body may have whatever their size.
FEW_CHUNKS: Final = 512
# Minimum average size in bytes of the chunks beyond `FEW_CHUNKS`.
CHUNK_BYTES: Final = 64
# Seconds after which a connection is aborted if its client reads nothing of a waiting answer.
STALL_TIMEOUT_S: Final = 30.0

SMALL_CHUNKS: Final = (
    f"The body consists of too many small chunks: after the first {FEW_CHUNKS}, they must have at least "
    f"{CHUNK_BYTES} bytes on average. Send the body with Content-Length, or in larger chunks."
)


class PacedConnection(h11.Connection):
    """h11 connection that parses a few parts of a body at a time, and refuses a body in too many small chunks.

    Attributes:
        held_back: whether received bytes are left to parse; `next_event` parses them after `begin_turn`.
        refusal: reason for refusing a request that is valid HTTP; "" if there is none.
    """

    def __init__(self, most_head_bytes: int) -> None:
        super().__init__(h11.SERVER, most_head_bytes)
        self.held_back = False
        self.refusal = ""
        self._left = PARTS_PER_TURN
        self._parts = self._bytes = 0

    def begin_turn(self) -> None:
        self._left, self.held_back = PARTS_PER_TURN, False

    def next_event(self) -> Any:
        if self._left <= 0 and self.their_state is h11.SEND_BODY:
            self.held_back = True
            return h11.NEED_DATA
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._parts = self._bytes = 0
        elif isinstance(event, h11.Data):
            # Do not count the first part of a turn: slow clients legitimately send small chunks one by one.
            self._parts += self._left < PARTS_PER_TURN
            self._left -= 1
            self._bytes += len(event.data)
            if self._parts > FEW_CHUNKS + self._bytes // CHUNK_BYTES:
                self.refusal = SMALL_CHUNKS
                raise h11.RemoteProtocolError(SMALL_CHUNKS)
        return event


class PacedFlow(FlowControl):
    """uvicorn's flow control, which also pauses reading while received bytes have not been parsed."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._holds = False
        self._wanted = True  # whether uvicorn wants to read; if so, `release` resumes reading

    def hold(self) -> None:
        """Stop reading until `release`."""
        self._holds = True
        super().pause_reading()

    def release(self) -> None:
        self._holds = False
        if self._wanted:
            super().resume_reading()

    def pause_reading(self) -> None:
        self._wanted = False
        super().pause_reading()

    def resume_reading(self) -> None:
        self._wanted = True
        if not self._holds:
            super().resume_reading()


class StallWatch:
    """Timer that aborts a connection whose client does not read any waiting bytes for `STALL_TIMEOUT_S`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0

    def start(self) -> None:
        """Start the timer if bytes are waiting to be sent."""
        if self._timer is None:
            self._begin()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._waiting = self._transport.get_write_buffer_size()
        if self._waiting:
            self._timer = self._loop.call_later(STALL_TIMEOUT_S, self._judge)

    def _judge(self) -> None:
        self._timer = None
        # Abort only if the number of waiting bytes is unchanged; otherwise the client has read some.
        if self._transport.get_write_buffer_size() == self._waiting:
            self._transport.abort()
        else:
            self._begin()


class JoinedHead:
    """Transport that holds back the head of an answer, and writes it together with the first part of the body.

    Each write would be a system call that sends a packet.
    """

    def __init__(self, transport: asyncio.Transport | SoftEnd) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head is None:
            self._head = data
        else:
            self._transport.write(self._head + data)
            self.write = self._transport.write  # type: ignore[method-assign]

    def close(self) -> None:
        self.write(b"")
        self._transport.close()


class SoftEnd:
    """Transport whose `close` is the given function, for an answer that precedes the end of the request."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close
