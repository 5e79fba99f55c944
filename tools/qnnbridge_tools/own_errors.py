"""Explain qnnbridge's own errors and warnings by the name of their class, and errors by their code.

`str(error)` contains cause and fix. These tables are for readers who have only a name, from a log, an
`except` clause or the table of `docs/errors.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from qnnbridge_protocol import errors
from qnnbridge_protocol.tables import read_tables

_TABLES: Final = read_tables(Path(__file__).with_name("assets").joinpath("own_errors.json").read_text("utf-8"))
# Class -> (cause, fix). A subclass without an entry uses its base class's entry.
TABLE: Final[dict[type[errors.BridgeError], tuple[str, str]]] = {
    getattr(errors, row["name"]): (row["cause"], row["fix"]) for row in _TABLES["errors"]
}

# Warnings by their class, as Python writes them: `file.py:3: NumbersWarning: ...`.
WARNINGS: Final = {row["name"]: (row["cause"], row["fix"]) for row in _TABLES["warnings"]}

_WARNING: Final = re.compile(r"^(?:.*:\d+: )?(?:qnnbridge\.(?:\w+\.)*)?(?P<name>[A-Z]\w+Warning)(?=:|$)")
_LINE: Final = re.compile(r"(?P<module>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Z]\w+)(?=:|$)")


def _all(base: type[errors.BridgeError]) -> Iterator[type[errors.BridgeError]]:
    yield base
    for one in base.__subclasses__():
        if one.__module__ == errors.__name__:
            yield from _all(one)


def in_lines(lines: Iterable[str]) -> Iterator[tuple[type[errors.BridgeError], str, str, str]]:
    """Find errors at the start of a line, before a colon or the end, as Python prints them.

    Yields:
        The class, its cause, its fix, and the line.
    """
    named = {one.__name__: one for one in _all(errors.BridgeError)}
    by_code = {one.code: one for one in named.values()}
    for line in lines:
        text = line.strip()
        match = _LINE.match(text)
        found = by_code.get(text.strip("[]"))
        if found is None and match is not None and _is_ours(match, text):
            found = named.get(match["name"])
        if found is not None:
            yield found, *next(TABLE[one] for one in found.__mro__ if one in TABLE), text


def warnings_in(lines: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    """Find warnings as Python prints them: after a file name and line number, or at the start of a line.

    Yields:
        The name, its cause and its fix, and the line.
    """
    for line in lines:
        match = _WARNING.match(line.strip())
        if match is not None and match["name"] in WARNINGS:
            yield match["name"], *WARNINGS[match["name"]], line.strip()


def _is_ours(match: re.Match[str], text: str) -> bool:
    """Return whether a name refers to a class of qnnbridge. A line `Fail: ...` without more context may come from
    another program.
    """
    if match["module"]:
        return match["module"].startswith("qnnbridge")
    found = getattr(errors, match["name"], None)
    return match[0] == text or not (isinstance(found, type) and issubclass(found, errors.OrtError))
