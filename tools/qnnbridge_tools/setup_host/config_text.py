"""Puts the host's interpreter into the text of the configuration file and leaves everything else as it is.

Pure functions; the text is TOML, edited by lines so that comments stay.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

_TABLE = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_PYTHON = re.compile(r"^\s*(?:python|\"python\"|'python')\s*=")


def with_host(text: str, python: str) -> str | None:
    """The text with ``[host] python`` set; ``None`` if that cannot be done without changing more than that."""
    setting = f"python = {toml_string(python)}"
    line_end = "\r\n" if "\r\n" in text else "\n"
    lines = text.removesuffix(line_end).split(line_end) if text else []
    start = next((index for index, line in enumerate(lines) if _table_name(line) == "host"), None)
    if start is None:
        made = [*lines, *([""] if lines else []), "[host]", setting]
    else:
        end = next((index for index in range(start + 1, len(lines)) if _table_name(lines[index]) is not None), None)
        table = lines[start + 1 : end]
        old = next((index for index, line in enumerate(table) if _PYTHON.match(line)), None)
        table[slice(0, 0) if old is None else slice(old, old + 1)] = [setting]
        made = [*lines[: start + 1], *table, *(lines[end:] if end is not None else [])]
    result = line_end.join(made) + line_end
    return result if _only_that_changed(text, result, python) else None


def toml_string(text: str) -> str:
    """In single quotes a backslash is a backslash."""
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _table_name(line: str) -> str | None:
    found = _TABLE.match(line)
    return found[1].strip("\"'") if found else ("" if line.lstrip().startswith("[[") else None)


def _only_that_changed(old: str, new: str, python: str) -> bool:
    try:
        before, after = _parsed(old), _parsed(new)
    except ValueError:
        return False
    host = before.setdefault("host", {})
    if not isinstance(host, dict):
        return False
    host["python"] = python
    return before == after


def _parsed(text: str) -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(toml.loads(text))
