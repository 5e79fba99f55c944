"""HTTP/1.1 for the server: uvicorn's protocol, with an end for every request that it cannot read.

The event loop's thread only.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from qnnbridge_serve.responses import ABORT

_log = logging.getLogger("qnnbridge.serve")

# After the end of what a client sends: when it is asked whether it is still there.
PROBES_S: Final = (0.0, 0.2, 2.0)

# How long a connection without a request is kept when the server ends: the client may just be sending one.
LINGER_S: Final = 0.5

# From the begin of a connection, or the first byte after an answer, to the end of the next request's head. uvicorn
# waits for both for ever.
HEAD_TIMEOUT_S: Final = 30.0

_CLOSE: Final = (b"connection", b"close")
_NO_HTTP: Final = "This is no valid HTTP request."


class HttpProtocol(H11Protocol):
    """One connection. A request that is no HTTP gets status 400 if one can still be sent, and the end of it."""

    _ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except (h11.LocalProtocolError, RuntimeError) as error:
            self._give_up(f"{type(error).__name__}: {error}")
        if self._ending:
            self._announce_end()
        self._let_abort()
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self._waiting.cancel()
        elif self._waiting.cancelled():  # the next head has begun, or what is left of a body that was refused
            self._waiting = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more, and may wait for its answer all the same. One that has closed its
        connection altogether resets it at the next byte that it gets, so it gets one.

        Returns whether the connection is kept for the answer.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or self.conn.their_state not in (h11.DONE, h11.MUST_CLOSE):
            return False
        cycle.keep_alive = False
        if self.conn.their_http_version == b"1.1":  # older ones do not know such answers
            for delay_s in PROBES_S:
                self.loop.call_later(delay_s, self._probe)
        return True

    def _probe(self) -> None:
        """The first byte brings the reset, the next one fails by it. An answer itself is as good."""
        if self.conn.our_state is h11.SEND_RESPONSE and not self.transport.is_closing():
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")

    def shutdown(self) -> None:
        """The server ends: this request is the last one, or the one that may be on its way."""
        self._ending = True
        if self.cycle is None or self.cycle.response_complete:
            self._linger()
        else:
            self._announce_end()

    def _announce_end(self) -> None:
        """The answer says that it is the last one: a client that did not know would send its next request into the
        end of the connection. One that has begun cannot say it; the next will."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_started:
            cycle.keep_alive = False
            cycle.scope["headers"] = [*cycle.scope["headers"], _CLOSE]  # uvicorn repeats it in the answer

    def _linger(self) -> None:
        self.loop.call_later(LINGER_S, self._end_of_linger)

    def _end_of_linger(self) -> None:
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def on_response_complete(self) -> None:
        try:
            super().on_response_complete()
        except (h11.LocalProtocolError, RuntimeError) as error:  # the next request on the connection
            self._give_up(f"{type(error).__name__}: {error}")
        if self._ending:
            self._linger()
        self._let_abort()

    def _let_abort(self) -> None:
        """The application gets a way to end a connection whose client does not read."""
        if self.cycle is not None:
            extensions: dict[str, Any] = self.cycle.scope.setdefault("extensions", {})
            extensions[ABORT] = self.transport.abort

    def send_400_response(self, msg: str) -> None:
        """Answer with the form of all errors. h11 allows that only while no answer has begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._give_up(msg)
            return
        self._abandon_cycle()
        # The answer to HEAD has no body: to send one nevertheless is an error in h11.
        head = self.cycle is not None and self.cycle.scope["method"] == "HEAD"
        body = b"" if head else json.dumps({"error": _NO_HTTP}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """A request to upgrade is served without: the client may ask, and the library's advice is none of ours."""

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _give_up(self, reason: str) -> None:
        """Close the connection at once, with a line in the log."""
        client: Any = self.client or ("?", 0)
        _log.warning("connection of %s closed: %s", client[0], " ".join(reason.split())[:200])
        self._abandon_cycle()
        self.transport.close()

    def _abandon_cycle(self) -> None:
        """The answer under way, if there is one, is not sent any more."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
