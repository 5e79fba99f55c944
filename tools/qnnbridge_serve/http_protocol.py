"""HTTP/1.1 for the server: connections, answers, and the guard against unauthorised requests.

`HttpProtocol` is uvicorn's protocol, extended so that every unreadable request is answered or its connection
closed.

Only the thread of the event loop may use this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import h11
from h11._connection import DEFAULT_MAX_INCOMPLETE_EVENT_SIZE
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.visible import log_of
from qnnbridge_serve.errors import Refused, refusal_of
from qnnbridge_serve.openai_forms import error_document
from qnnbridge_serve.options import shows_token
from qnnbridge_serve.pacing import JoinedHead, PacedConnection, PacedFlow, SoftEnd, StallWatch
from qnnbridge_serve.transport import ClientGone, Ticket

_log = log_of("qnnbridge.serve")

# Seconds after which probes are sent to a client that has closed its sending side, to check whether the client
# still exists.
PROBES_S: Final = (0.0, 0.2, 2.0)

# How long an idle connection stays open when the server ends, because a request may already be on its way.
LINGER_S: Final = 0.5

# Maximum time from the beginning of a connection, or from the first byte after an answer, to the end of the next
# request's head. uvicorn has no such limit.
HEAD_TIMEOUT_S: Final = 30.0

_CLOSE: Final = (b"connection", b"close")
_NO_HTTP: Final = "This is not a valid HTTP request."

# If an answer is sent before the request is complete: how long to read and drop the rest of the request. Closing
# the connection with unread bytes would reset it, and the client might lose the answer.
DRAIN_S: Final = 2.0


class HttpProtocol(H11Protocol):
    """Connection of a client.

    An invalid request is answered with status 400, unless an answer has already begun, and the connection is
    closed.
    """

    _ending = False
    # Whether the last answer has been sent and further bytes of the client are dropped.
    _draining = False

    def __init__(self, config: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self.conn: PacedConnection = PacedConnection(
            config.h11_max_incomplete_event_size or DEFAULT_MAX_INCOMPLETE_EVENT_SIZE
        )
        self._application = self.app
        self.app = self._serve

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: PacedFlow = PacedFlow(transport)
        self._stall = StallWatch(self.loop, transport)
        self._waiting = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.cancel()
        self._stall.end()
        super().connection_lost(exc)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Call the application for one request of this connection."""
        names = [name for name, _ in scope["headers"]]
        # Transfer-Encoding overrides Content-Length. A proxy in front may have used Content-Length; the following
        # bytes may then be a smuggled request (RFC 9112, 6.1), so close the connection after the answer.
        if b"content-length" in names and b"transfer-encoding" in names:
            self._announce_end()

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                transport: Any = self.transport
                # Do not read the rest of a request that is already answered: otherwise a client without a token
                # could keep the event loop busy.
                if self.conn.their_state is h11.SEND_BODY:
                    self._announce_end()
                    transport = SoftEnd(transport, self._drain)
                self.cycle.transport = JoinedHead(transport)  # type: ignore[assignment]
            await send(message)

        await self._application(scope, receive, sent)

    def data_received(self, data: bytes) -> None:
        if self._draining:
            return
        try:
            if self.conn.held_back:  # a scheduled callback of the event loop will parse these bytes
                self.conn.receive_data(data)
                return
            super().data_received(data)
        except RuntimeError as error:  # h11 raises this error for bytes after the end of the connection
            self._give_up(f"{type(error).__name__}: {error}")
        if self._ending:
            self._announce_end()
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self._waiting.cancel()
        # If bytes arrive while no request is running, start the timeout: they belong to the next head, or to a
        # refused body.
        elif self._waiting.cancelled():
            self._waiting = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def handle_events(self) -> None:
        """Process at most `pacing.PARTS_PER_TURN` parts of a body, then let the event loop serve other connections.

        The rest is processed in the loop's next turn.
        """
        self.conn.begin_turn()
        try:
            super().handle_events()
        # Also catch the errors of h11 that uvicorn does not catch.
        except (h11.LocalProtocolError, RuntimeError) as error:
            self._give_up(f"{type(error).__name__}: {error}")
        self._let_abort()
        if self.conn.held_back and not self.transport.is_closing():
            self.flow.hold()
            self.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        if self.transport.is_closing() or self._draining:
            return
        self.handle_events()
        if not self.conn.held_back:
            self.flow.release()

    def _drain(self) -> None:
        """Close the connection once the client has had time to read its answer.

        Drop further bytes of the client.
        """
        if self._draining or self.transport.is_closing():
            return
        self._draining = True
        self.flow.release()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(DRAIN_S, self.transport.close)
        self._stall.start()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.start()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle the end of the client's data: the client may still wait for its answer, or be gone.

        Send probes to find out: a client that is gone answers the next byte with a reset.

        Returns:
            Whether the connection is kept for the answer.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or self.conn.their_state not in (h11.DONE, h11.MUST_CLOSE):
            return False
        cycle.keep_alive = False
        # clients of older versions do not support informational responses
        if self.conn.their_http_version == b"1.1":
            for delay_s in PROBES_S:
                self.loop.call_later(delay_s, self._probe)
        return True

    def _probe(self) -> None:
        """Send an informational response before the answer. If the client has gone, this resets the connection."""
        # A client has to accept any number of 1xx responses before the final one (RFC 9110, 15.2).
        if self.conn.our_state is h11.SEND_RESPONSE and not self.transport.is_closing():
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")

    def shutdown(self) -> None:
        """End the connection after the running request, or wait `LINGER_S` for a request that may be arriving."""
        self._ending = True
        if self.cycle is None or self.cycle.response_complete:
            self._linger()
        else:
            self._announce_end()

    def _announce_end(self) -> None:
        """Add `Connection: close` to the answer, so that the client does not send another request.

        If the answer has begun already, the next answer contains the header.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_started:
            cycle.keep_alive = False
            cycle.scope["headers"] = [*cycle.scope["headers"], _CLOSE]  # uvicorn copies this header into the answer

    def _linger(self) -> None:
        self.loop.call_later(LINGER_S, self._end_of_linger)

    def _end_of_linger(self) -> None:
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def on_response_complete(self) -> None:
        # Abort the connection if the client stops reading its answer: the transport would otherwise wait forever.
        self._stall.start()
        if self._draining:
            self.server_state.total_requests += 1
            return
        try:
            super().on_response_complete()
        except (h11.LocalProtocolError, RuntimeError) as error:  # h11 raises them for the client's next request
            self._give_up(f"{type(error).__name__}: {error}")
        if self._ending:
            self._linger()

    def _let_abort(self) -> None:
        """Add to the request's scope a function that aborts the connection if the client does not read."""
        if self.cycle is not None:
            extensions: dict[str, Any] = self.cycle.scope.setdefault("extensions", {})
            extensions[ABORT] = self.transport.abort

    def send_400_response(self, msg: str) -> None:
        """Send status 400 with the usual error document. h11 allows this only before an answer has begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._give_up(msg)
            return
        self._abandon_cycle()
        # The answer to HEAD has no body; h11 raises an error for one.
        head = self.cycle is not None and self.cycle.scope["method"] == "HEAD"
        body = b"" if head else json.dumps({"error": self.conn.refusal or _NO_HTTP}).encode()
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
        self._drain()

    def _unsupported_upgrade_warning(self) -> None:
        """Do not log uvicorn's advice about upgrades: the request is served without an upgrade."""

    def _give_up(self, reason: str) -> None:
        """Close the connection immediately, and log the reason."""
        client: Any = self.client or ("?", 0)
        _log.warning("connection of %s closed: %s", client[0], " ".join(reason.split())[:200])
        self._abandon_cycle()
        self.transport.close()

    def _abandon_cycle(self) -> None:
        """Stop sending the answer of the running request, if there is one."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()


# --- answers ---

_CLIENT_GONE: Final = 499  # status that web servers log for a client that has gone; no client receives it

_PART_BYTES: Final = 256 * 1024

# Key in the extensions of a request's scope: a function that ends the connection immediately.
ABORT: Final = "qnnbridge.abort"

# Key in a request's scope: the route of the request, with placeholders instead of names.
ROUTE: Final = "qnnbridge.route"

Endpoint = Callable[[Request], Awaitable[Response]]


class PartedResponse(Response):
    """Response whose body is sent in parts, and counts in `Admission` until the client has received it.

    The event loop does other work between the parts. Sending in parts also prevents asyncio before Python 3.12 from
    copying the rest of the body after each piece that the network accepts.

    Args:
        ticket: ticket of the request.
        place: exit stack that releases the ticket; closed at the end of the answer, even after an error.
    """

    def __init__(
        self,
        body: bytes,
        headers: Mapping[str, str],
        media_type: str,
        ticket: Ticket,
        place: contextlib.ExitStack,
    ) -> None:
        super().__init__(body, 200, headers, media_type)
        self._ticket = ticket
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        abort = (scope.get("extensions") or {}).get(ABORT, lambda: None)
        loop = asyncio.get_running_loop()

        def abort_soon() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, because the server has ended
                loop.call_soon_threadsafe(abort)

        with self._place:
            body = memoryview(self.body)
            self._ticket.begin_answer(len(body), abort_soon)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            # An empty body is also sent, as one part that ends the answer.
            for begin in range(0, max(1, len(body)), _PART_BYTES):
                part = body[begin : begin + _PART_BYTES]
                more = begin + _PART_BYTES < len(body)
                await send({"type": "http.response.body", "body": part, "more_body": more})
                self._ticket.note_progress()


def json_answer(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(document), status, headers, "application/json")


# Prefix of the paths of OpenAI's interface, which has its own error documents.
OPENAI_PATHS: Final = "/v1/"


def error_answer(refused: Refused, path: str = "") -> Response:
    """Return an error answer: {"error": TEXT} as KServe does, or OpenAI's error document for OpenAI's paths."""
    if path.startswith(OPENAI_PATHS):
        return json_answer(error_document(refused), refused.status, refused.headers)
    return json_answer({"error": refused.text}, refused.status, refused.headers)


class AnsweredEndpoint:
    """ASGI application of one endpoint. It answers every error, and logs unexpected errors with their
    tracebacks.

    Args:
        route: path of the endpoint, stored in the scope for the metrics.
        endpoint: the endpoint.
    """

    def __init__(self, route: str, endpoint: Endpoint) -> None:
        self._route = route
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        request.scope[ROUTE] = self._route
        try:
            return await self._endpoint(request)
        except ClientGone:
            return Response(status_code=_CLIENT_GONE)
        except asyncio.CancelledError:  # the server is ending, and the time for running requests is over
            ending = Refused(503, "The server is ending; this request was not finished.")
            return error_answer(ending, request.url.path)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            path = request.url.path
            log_unexpected(f"{request.method} {path}", error)
            return error_answer(refusal_of(error), path)


def log_unexpected(doing: str, error: BaseException) -> None:
    """Log the traceback of an unexpected error. The answer refers to the log."""
    if not isinstance(error, (Refused, BridgeError)):
        _log.error("%s", doing, exc_info=error)


# --- authorisation ---

# Paths that load balancers request without a token. The answers contain only yes or no, and the reason.
FREE_PATHS: Final = frozenset({"/v2/health/live", "/v2/health/ready"})


class Guard:
    """Middleware that refuses requests of foreign web pages, without the token, or with a foreign name as `Host`.

    Args:
        app: the application.
        token: required token; ``None`` if the server can be reached from this machine only.
        origins: origins of pages of other servers that may use this server.
        page: paths of the server's own page, which need no token; empty without a page.
    """

    def __init__(
        self, app: ASGIApp, token: bytes | None, origins: Sequence[str] = (), page: Collection[str] = ()
    ) -> None:
        self._app = app
        self._token = token
        self._origins = frozenset(origins)
        self._has_page = bool(page)
        self._free = FREE_PATHS.union(page)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._judge(scope) if scope["type"] == "http" else None
        app = self._app if refused is None else error_answer(refused, scope["path"])
        await app(scope, receive, send)

    def _judge(self, scope: Scope) -> Refused | None:
        headers = dict(scope["headers"])
        # Without this check, any web page in a browser on this machine could send requests to the server.
        origin = headers.get(b"origin", b"").decode("latin-1")
        if b"origin" in headers and origin not in self._origins and not self._is_own(origin, scope, headers):
            return Refused(
                403,
                "Web pages may send requests only if --allow-origin allows them. The origin of this page is "
                f"{origin[:80]!r}. Start the server with --allow-origin and this origin.",
            )
        if self._token is not None:
            if scope["path"] in self._free or shows_token(headers.get(b"authorization"), self._token):
                return None
            given = b"authorization" in headers
            return Refused(
                401,
                "The token is wrong."
                if given
                else "A token is needed: send the header Authorization: Bearer TOKEN.",
                {"www-authenticate": "Bearer"},
            )
        # DNS rebinding: a foreign page whose name resolves to this machine sends its own name as Host, and no
        # Origin with a GET.
        host = _machine_in(headers.get(b"host"))
        if host is not None and not _is_local(host):
            return Refused(
                403,
                "Without a token the server serves only this machine, but the header Host contains another "
                f"name: {host[:80]!r}. Start the server with --token-file, or let the proxy in front send the "
                "server's own name as Host.",
            )
        return None

    def _is_own(self, origin: str, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether the request comes from the page of this server.

        With DNS rebinding, the origin of a foreign page also equals `Host`. Other checks stop such a page: a server
        without a token refuses the foreign name, and a server with a token refuses the page because it does not
        know the token.
        """
        host = headers.get(b"host")
        return self._has_page and host is not None and origin == f"{scope['scheme']}://{host.decode('latin-1')}"


def _machine_in(header: bytes | None) -> str | None:
    """Return the name of the machine in a Host header (``name:port``)."""
    if header is None:
        return None
    # latin-1 decodes any byte, so that a broken header does not raise an error.
    text = header.decode("latin-1")
    try:
        return urlsplit(f"//{text}").hostname or text
    except ValueError:
        return text


def _is_local(host: str) -> bool:
    # Names under .localhost are not local: some systems look them up in DNS in spite of RFC 6761, so a foreign DNS
    # server could first answer with its own address and later with this machine's (DNS rebinding).
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
