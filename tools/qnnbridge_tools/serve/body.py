"""Receives a request's body: no larger than allowed, from a client that keeps sending. The event loop's thread."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request

from qnnbridge_tools.serve.admission import Ticket
from qnnbridge_tools.serve.refusals import Refused, bad_request
from qnnbridge_tools.serve.workers import ClientGone

SILENCE_TIMEOUT_S: Final = 30.0
"""How long a client may pause in the middle of a body."""


async def receive_body(request: Request, ticket: Ticket, most: int) -> list[bytes]:
    """The parts of the body. Raises `Refused`, `Busy` and `ClientGone`."""
    announced = request.headers.get("content-length")
    if announced is not None:
        if not (announced.isascii() and announced.isdecimal()) or len(announced) > 18:
            raise bad_request("Content-Length is no number.")
        if int(announced) > most:
            raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            message = await asyncio.wait_for(request.receive(), SILENCE_TIMEOUT_S)
        except (asyncio.TimeoutError, TimeoutError):
            raise Refused(408, f"Nothing came for {SILENCE_TIMEOUT_S:g} s in the middle of the request.") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_large(most)
        ticket.take(len(part))  # not what was announced: who is slow to send it would keep others out
        parts.append(part)
        if not message.get("more_body", False):
            return parts


def _too_large(most: int) -> Refused:
    return Refused(
        413, f"The request has more than {most} bytes; the server's --max-request says how many it takes."
    )
