"""Who may ask: the token, and without one only programs of this machine, not pages that its browser shows.

Wraps the application; the event loop's thread only.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from qnnbridge_tools.serve.answers import error_answer
from qnnbridge_tools.serve.refusals import Refused
from qnnbridge_tools.serve.token_file import shows_token

FREE_PATHS: Final = frozenset({"/v2/health/live", "/v2/health/ready"})
"""A load balancer asks these without a token. They tell nothing but yes or no, and why not."""


class Guard:
    """token: ``None`` where the server can be reached from this machine only."""

    def __init__(self, app: ASGIApp, token: bytes | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._judge(scope) if scope["type"] == "http" else None
        app = self._app if refused is None else error_answer(refused)
        await app(scope, receive, send)

    def _judge(self, scope: Scope) -> Refused | None:
        headers = dict(scope["headers"])
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
        for header in ("host", "origin"):
            host = _machine_in(headers.get(header.encode()))
            if host is not None and not _is_local(host):
                return Refused(
                    403,
                    f"Without a token only this machine is served, and the header {header.title()} names another: "
                    f"{host[:80]!r}. Start the server with --token-file, or let the proxy in front send its own.",
                )
        return None


def _machine_in(header: bytes | None) -> str | None:
    """The machine that a Host (``name:port``) or Origin (``scheme://name:port``) header names."""
    if header is None:
        return None
    text = header.decode("latin-1")
    try:
        return urlsplit(text if "//" in text else f"//{text}").hostname or text
    except ValueError:
        return text


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
