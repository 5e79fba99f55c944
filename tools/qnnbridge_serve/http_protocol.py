"""HTTP/1.1 for the server: connections, answers, and the guard for requests that are not to be served.

`HttpProtocol` is uvicorn's protocol, with an end for every request that it cannot read.

The event loop's thread only.
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
from qnnbridge_serve.pacing import PacedConnection, PacedFlow, SoftEnd, StallWatch
from qnnbridge_serve.transport import ClientGone, Ticket

_log = log_of("qnnbridge.serve")

# After the end of what a client sends: when it is asked whether it is still there.
PROBES_S: Final = (0.0, 0.2, 2.0)

# How long a connection without a request is kept when the server ends: the client may just be sending one.
LINGER_S: Final = 0.5

# From the begin of a connection, or the first byte after an answer, to the end of the next request's head. uvicorn
# waits for both for ever.
HEAD_TIMEOUT_S: Final = 30.0

_CLOSE: Final = (b"connection", b"close")
_NO_HTTP: Final = "This is no valid HTTP request."

# How long a client may go on sending after an answer that did not wait for its whole request. To close a connection
# with unread bytes resets it, and the client might lose the answer.
DRAIN_S: Final = 2.0


class HttpProtocol(H11Protocol):
    """One connection. A request that is no HTTP gets status 400 if one can still be sent, and the end of it."""

    _ending = False
    # Whether the last answer of the connection was sent and all that comes is dropped.
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
        """The application, for one request of this connection."""
        names = [name for name, _ in scope["headers"]]
        # Of these two the second counts. A proxy in front may have read it otherwise, and what follows is then no
        # request of the same client (RFC 9112, 6.1).
        if b"content-length" in names and b"transfer-encoding" in names:
            self._announce_end()

        async def sent(message: Any) -> None:
            # Nobody reads the rest of the request: to read it here would let a client without a token keep the
            # event loop busy.
            if message["type"] == "http.response.start" and self.conn.their_state is h11.SEND_BODY:
                self._announce_end()
                self.cycle.transport = SoftEnd(self.transport, self._drain)  # type: ignore[assignment]
            await send(message)

        await self._application(scope, receive, sent)

    def data_received(self, data: bytes) -> None:
        if self._draining:
            return
        try:
            if self.conn.held_back:  # a turn is coming
                self.conn.receive_data(data)
                return
            super().data_received(data)
        except RuntimeError as error:  # of h11: bytes after the end
            self._give_up(f"{type(error).__name__}: {error}")
        if self._ending:
            self._announce_end()
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self._waiting.cancel()
        elif self._waiting.cancelled():  # the next head has begun, or what is left of a body that was refused
            self._waiting = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def handle_events(self) -> None:
        """Process one turn; the next one follows the turns of other connections."""
        self.conn.begin_turn()
        try:
            super().handle_events()
        # uvicorn catches h11's RemoteProtocolError alone.
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
        """Close the connection when the client has had the time to read its answer; drop what it still sends."""
        if self._draining or self.transport.is_closing():
            return
        self._draining = True
        self.flow.release()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(DRAIN_S, self.transport.close)
        self._stall.look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.look()

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
        # A client has to accept any number of answers with 1xx before the final one (RFC 9110, 15.2).
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
        # What is left of a short answer, and one at the end of a connection: the transport waits for ever to send
        # it.
        self._stall.look()
        if self._draining:
            self.server_state.total_requests += 1
            return
        try:
            super().on_response_complete()
        except (h11.LocalProtocolError, RuntimeError) as error:  # the next request on the connection
            self._give_up(f"{type(error).__name__}: {error}")
        if self._ending:
            self._linger()

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
        """A request to upgrade is served without: the client may ask, and the library's advice is none of ours."""

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


# --- answers ---

_CLIENT_GONE: Final = 499  # the code of web servers' logs; it is not received

_PART_BYTES: Final = 256 * 1024

# In the extensions of a request's scope: a function that ends its connection at once.
ABORT: Final = "qnnbridge.abort"

# In a request's scope: the path that it was served by, without the names in it.
ROUTE: Final = "qnnbridge.route"

Endpoint = Callable[[Request], Awaitable[Response]]


class PartedResponse(Response):
    """A response of which the body is sent in parts, and counts in admission until its client has taken it.

    The event loop is free between them; before Python 3.12 its transports also move all that is left of a body
    after each piece that the network takes.

    Args:
        place: Holds the ticket; closed at the end of the answer, however it ends.
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
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(abort)

        with self._place:
            body = memoryview(self.body)
            self._ticket.begin_answer(len(body), abort_soon)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            # `max`: an empty body is one part too, with which the answer ends.
            for begin in range(0, max(1, len(body)), _PART_BYTES):
                part = body[begin : begin + _PART_BYTES]
                more = begin + _PART_BYTES < len(body)
                await send({"type": "http.response.body", "body": part, "more_body": more})
                self._ticket.taken_on()


def json_answer(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(document), status, headers, "application/json")


# Paths of OpenAI's interface, which has its own form of errors.
OPENAI_PATHS: Final = "/v1/"


def error_answer(refused: Refused, path: str = "") -> Response:
    """KServe's form of an error: one object with one text; or OpenAI's, for its paths."""
    if path.startswith(OPENAI_PATHS):
        return json_answer(error_document(refused), refused.status, refused.headers)
    return json_answer({"error": refused.text}, refused.status, refused.headers)


def answered(route: str, endpoint: Endpoint) -> Endpoint:
    """The endpoint, with an answer for every error. An unexpected one is logged with its traceback.

    route: its path, which it leaves for the figures.
    """

    async def answer(request: Request) -> Response:
        request.scope[ROUTE] = route
        path = request.url.path
        try:
            return await endpoint(request)
        except ClientGone:
            return Response(status_code=_CLIENT_GONE)
        except asyncio.CancelledError:  # by the server, which has waited for it long enough
            return error_answer(Refused(503, "The server is ending; this request was not finished."), path)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            log_unexpected(f"{request.method} {path}", error)
            return error_answer(refusal_of(error), path)

    return answer


def log_unexpected(doing: str, error: BaseException) -> None:
    """The traceback of an error that is none of ours; its answer refers to the log."""
    if not isinstance(error, (Refused, BridgeError)):
        _log.error("%s", doing, exc_info=error)


# --- who is served ---

# A load balancer asks these without a token. They tell nothing but yes or no, and why not.
FREE_PATHS: Final = frozenset({"/v2/health/live", "/v2/health/ready"})


class Guard:
    """Refuses requests of foreign pages, of clients without the token, and for names of other machines.

    Args:
        token: ``None`` where the server can be reached from this machine only.
        origins: Of other servers' pages that may use this server.
        page: Paths of the server's own page, which need no token; empty without a page.
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
        # Every page that a browser of this machine shows could send requests, also one of a server on this machine.
        origin = headers.get(b"origin", b"").decode("latin-1")
        if b"origin" in headers and origin not in self._origins and not self._is_own(origin, scope, headers):
            return Refused(
                403,
                f"Pages in a browser are served only if they are named: this one is of {origin[:80]!r}. "
                "Start the server with --allow-origin and that address.",
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
        # A page whose name was made to resolve to this machine (DNS rebinding) sends that name, and for reading
        # no Origin.
        host = _machine_in(headers.get(b"host"))
        if host is not None and not _is_local(host):
            return Refused(
                403,
                f"Without a token only this machine is served, and the header Host names another: {host[:80]!r}. "
                "Start the server with --token-file, or let the proxy in front send its own.",
            )
        return None

    def _is_own(self, origin: str, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether the request comes from the page of this server.

        A page whose name was made to resolve to this machine has the same origin and `Host`, too. It is refused by
        its name where there is no token, and has no token where one is needed.
        """
        host = headers.get(b"host")
        return self._has_page and host is not None and origin == f"{scope['scheme']}://{host.decode('latin-1')}"


def _machine_in(header: bytes | None) -> str | None:
    """The machine that a Host header (``name:port``) names."""
    if header is None:
        return None
    # latin-1 takes any byte, so that a broken header is judged and does not raise.
    text = header.decode("latin-1")
    try:
        return urlsplit(f"//{text}").hostname or text
    except ValueError:
        return text


def _is_local(host: str) -> bool:
    # Not the names under .localhost: some systems ask the network for them in spite of RFC 6761, and a network may
    # answer with its own address first and with this machine's afterwards.
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
