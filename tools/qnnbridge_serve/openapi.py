"""`GET /openapi.json`: the server's paths, with their descriptions from `assets/openapi.json`."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterable
from typing import Any, Final

from qnnbridge_protocol import __version__
from qnnbridge_serve.http_protocol import OPENAI_PATHS

OPENAPI_PATH: Final = "/openapi.json"

_FILE: Final = importlib.resources.files(__package__).joinpath("assets").joinpath("openapi.json")
_VERSION: Final = "/versions/{version}"
_NAME: Final = re.compile(r"\{(\w+)\}")


def openapi_document(routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the OpenAPI document for these routes.

    Args:
        routes: path in Starlette's notation, and method, of each route.

    Raises:
        KeyError: a route has no description.
    """
    document: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    described = document.pop("operations")
    paths: dict[str, dict[str, Any]] = {}
    for route, method in routes:
        path = route.replace(":path}", "}")
        # A path with a version has the same description as the path without the version.
        row = described[f"{method} {path.replace(_VERSION, '')}"]
        versioned = {"operationId": f"{row['operationId']}OfVersion"} if _VERSION in path else {}
        names = _NAME.findall(path)
        parameters = (
            {"parameters": [{"$ref": f"#/components/parameters/{name}"} for name in names]} if names else {}
        )
        form = "OpenAIError" if path.startswith(OPENAI_PATHS) else "Error"
        responses = {**row["responses"], "default": {"$ref": f"#/components/responses/{form}"}}
        paths.setdefault(path, {})[method.lower()] = {**row, **versioned, **parameters, "responses": responses}
    return {**document, "info": {**document["info"], "version": __version__}, "paths": paths}
