"""Page at `GET /`: its files, and the headers that restrict it in a browser.

The files contain no data: scripts of the page request data from the server, with the token if there is one.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

_ASSETS: Final = importlib.resources.files(__package__).joinpath("assets")
# Content types by suffix. `mimetypes` would read them from the registry on Windows, where they may be wrong, and
# browsers refuse scripts of a wrong type.
_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FILES: Final = ("page.css", "icon.svg", "page.js", "common.js", "tensors.js", "forms.js", "operations.js")

# Files by the path at which they are served.
PAGE_FILES: Final[Mapping[str, str]] = {"/": "index.html", **{f"/page/{name}": name for name in _FILES}}

_HEADERS: Final[Mapping[str, str]] = {
    # The policy forbids foreign and inline content, and showing the page in a frame. With `trusted-types 'none'`
    # scripts cannot write HTML, so names and texts of models cannot become HTML.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob:; media-src blob:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Browsers must ask for the scripts again: old scripts may not fit the paths of an upgraded server.
    "cache-control": "no-cache",
}


class PageFiles:
    """Files of the page, read at the start so that an upgrade of the package does not mix two versions."""

    def __init__(self) -> None:
        self._bodies = {path: _ASSETS.joinpath(name).read_bytes() for path, name in PAGE_FILES.items()}

    async def show(self, request: Request) -> Response:
        path = request.url.path
        kind = _TYPES[PAGE_FILES[path].rpartition(".")[2]]
        return Response(self._bodies[path], 200, {**_HEADERS, "content-type": kind})
