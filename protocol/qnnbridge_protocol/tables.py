"""Tables of texts in JSON: exit codes, log rules, error messages.

A text may contain a reference to a shared text: `$compile_again` stands for the text with that name. The object
`texts` of a document contains its shared texts; the caller may pass more. A row may have a `note` for its editors.
`docs/dev/tables.schema.json` describes all tables. Pure functions; any thread may call them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_SHARED = re.compile(r"\$([a-z]\w*)")


def read_tables(document: str, shared: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the tables of a document with all shared texts inserted, and without notes.

    Raises:
        KeyError: a text refers to a shared text that does not exist.
    """
    tables: dict[str, Any] = json.loads(document)
    texts = {**(shared or {}), **tables.pop("texts", {})}
    tables.pop("$schema", None)
    return {name: [_row(row, texts) for row in rows] for name, rows in tables.items()}


def _row(row: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    return {
        key: _SHARED.sub(lambda match: texts[match[1]], value) if isinstance(value, str) else value
        for key, value in row.items()
        if key != "note"
    }
