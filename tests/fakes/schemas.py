"""Compare a value with a JSON schema, restricted to the keywords that this project uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_KINDS: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def hold(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> None:
    """Assert that a value matches a schema. `root`: the document with the definitions."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    assert any(isinstance(value, _KINDS[kind]) for kind in kinds), (value, kinds)
    assert not isinstance(value, bool) or "boolean" in kinds, (value, kinds)
    if "enum" in schema:
        assert value in schema["enum"]
    if "const" in schema:
        assert value == schema["const"]
    if "pattern" in schema and isinstance(value, str):
        assert re.search(schema["pattern"], value), (value, schema["pattern"])
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema["required"]) <= set(value) <= set(schema["properties"]), value
        for name, item in value.items():
            hold(item, schema["properties"][name], root)
    for item in value if isinstance(value, list) else ():
        hold(item, schema["items"], root)
