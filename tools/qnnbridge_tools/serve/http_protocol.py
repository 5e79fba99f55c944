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

from qnnbridge_tools.serve.responses import ABORT

_log = logging.getLogger("qnnbridge.serve")

# From the begin of a connection, or the first byte after an answer, to the end of the next request's head. uvicorn
# waits for both for ever.
HEAD_TIMEOUT_S: Final = 30.0

_NO_HTTP: Final = "This is no valid HTTP request."


class HttpProtocol(H11Protocol):
    """One connection. A request that is no HTTP gets status 400 if one can still be sent, and the end of it."""

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
        self._let_abort()
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self._waiting.cancel()
        elif self._waiting.cancelled():  # the next head has begun, or what is left of a body that was refused
            self._waiting = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def on_response_complete(self) -> None:
        try:
            super().on_response_complete()
        except (h11.LocalProtocolError, RuntimeError) as error:  # the next request on the connection
            self._give_up(f"{type(error).__name__}: {error}")
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
