"""Answers as HTTP responses, and the guard that refuses requests without the token or from other machines.

The event loop's thread only.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_serve.errors import Refused, refusal_of
from qnnbridge_serve.options import shows_token
from qnnbridge_serve.transport import ClientGone

_log = logging.getLogger("qnnbridge.serve")

_CLIENT_GONE: Final = 499  # the code of web servers' logs; it is not received

_PART_BYTES: Final = 1024 * 1024

# In the extensions of a request's scope: a function that ends its connection at once (`http_protocol`).
ABORT: Final = "qnnbridge.abort"

Endpoint = Callable[[Request], Awaitable[Response]]


class PartedResponse(Response):
    """A response of which the body is sent in parts.

    The event loop is free between them; before Python 3.12 its transports also move all that is left of a body
    after each piece that the network takes.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for begin in range(0, max(1, len(body)), _PART_BYTES):
            part = body[begin : begin + _PART_BYTES]
            more = begin + _PART_BYTES < len(body)
            await send({"type": "http.response.body", "body": part, "more_body": more})


def json_answer(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(document), status, headers, "application/json")


# Paths of OpenAI's interface, which has its own form of errors.
OPENAI_PATHS: Final = "/v1/"


def error_answer(refused: Refused, path: str = "") -> Response:
    """KServe's form of an error: one object with one text; or OpenAI's, for its paths."""
    if path.startswith(OPENAI_PATHS):
        from qnnbridge_serve.openai_forms import error_document

        return json_answer(error_document(refused), refused.status, refused.headers)
    return json_answer({"error": refused.text}, refused.status, refused.headers)


def answered(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with an answer for every error. An unexpected one is logged with its traceback."""

    async def answer(request: Request) -> Response:
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


# A load balancer asks these without a token. They tell nothing but yes or no, and why not.
FREE_PATHS: Final = frozenset({"/v2/health/live", "/v2/health/ready"})


class Guard:
    """token: ``None`` where the server can be reached from this machine only. origins: of pages that are served."""

    def __init__(self, app: ASGIApp, token: bytes | None, origins: Sequence[str] = ()) -> None:
        self._app = app
        self._token = token
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._judge(scope) if scope["type"] == "http" else None
        app = self._app if refused is None else error_answer(refused, scope["path"])
        await app(scope, receive, send)

    def _judge(self, scope: Scope) -> Refused | None:
        headers = dict(scope["headers"])
        # Every page that a browser of this machine shows could send requests, also one of a server on this machine.
        origin = headers.get(b"origin", b"").decode("latin-1")
        if b"origin" in headers and origin not in self._origins:
            return Refused(
                403,
                f"Pages in a browser are served only if they are named: this one is of {origin[:80]!r}. "
                "Start the server with --allow-origin and that address.",
            )
        if self._token is not None:
            if scope["path"] in FREE_PATHS or shows_token(headers.get(b"authorization"), self._token):
                return None
            given = b"authorization" in headers
            return Refused(
                401,
                "The token is wrong."
                if given
                else "A token is needed: send the header Authorization: Bearer TOKEN.",
                {"www-authenticate": "Bearer"},
            )
        host = _machine_in(headers.get(b"host"))
        if host is not None and not _is_local(host):
            return Refused(
                403,
                f"Without a token only this machine is served, and the header Host names another: {host[:80]!r}. "
                "Start the server with --token-file, or let the proxy in front send its own.",
            )
        return None


def _machine_in(header: bytes | None) -> str | None:
    """The machine that a Host header (``name:port``) names."""
    if header is None:
        return None
    text = header.decode("latin-1")
    try:
        return urlsplit(f"//{text}").hostname or text
    except ValueError:
        return text


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
