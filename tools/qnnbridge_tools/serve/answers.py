"""Answers as HTTP responses. The event loop's thread only."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.serve.refusals import Refused, refusal_of
from qnnbridge_tools.serve.workers import ClientGone

_log = logging.getLogger("qnnbridge.serve")

_CLIENT_GONE: Final = 499  # what web servers write in their logs for it; nobody receives it

_PART_BYTES: Final = 1024 * 1024

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


def error_answer(refused: Refused) -> Response:
    """KServe's form of an error: one object with one text."""
    return json_answer({"error": refused.text}, refused.status, refused.headers)


def answered(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with an answer for whatever it raises. What nobody expected is logged with its traceback."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientGone:
            return Response(status_code=_CLIENT_GONE)
        except asyncio.CancelledError:  # by the server, which has waited for it long enough
            return error_answer(Refused(503, "The server is ending; this request was not finished."))
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            if not isinstance(error, (Refused, BridgeError)):
                _log.exception("%s %s", request.method, request.url.path)
            return error_answer(refusal_of(error))

    return answer
