"""A bound for JSON schemas that an answer keeps to, alone or in a grammar. Pure; any thread.

The library of guidance in onnxruntime-genai writes a rule for each item that an array may have: `minItems` of 10^9
took all memory of the machine, and `maxItems` of 10^7 6 GB, in a call that cannot be interrupted. Numbers in
patterns, lengths of texts, other keywords and other kinds of grammars are bounded there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from qnnbridge_protocol.errors import GenerationError

# Of the items of all arrays of a schema; takes a second. The library refuses `maxItems` above 65,000 itself.
MAX_ITEMS: Final = 100_000
_COUNTS: Final = ("minItems", "maxItems")
_IN_GRAMMAR: Final = re.compile(r"%json\s*")


def check_guidance(kind: str, data: str) -> None:
    """Raises `GenerationError` for a schema of too many items. What is no JSON is left to the library."""
    left: list[Any] = list(_schemas(kind, data))
    total = 0.0
    enough = MAX_ITEMS + 1
    while left:
        one: Any = left.pop()
        if isinstance(one, dict):
            counts = [one[name] for name in _COUNTS if isinstance(one.get(name), (int, float))]
            total += sum(min(max(0, count), enough) for count in counts)
            left += one.values()
        elif isinstance(one, list):
            left += one
    if total > MAX_ITEMS:
        raise GenerationError(
            f"The arrays of the JSON schema have more than {MAX_ITEMS:,} items together.",
            cause="Guidance writes out a rule for each item that minItems and maxItems name.",
            fix="Lower minItems and maxItems, or leave maxItems away.",
        )


def _schemas(kind: str, data: str) -> Iterator[Any]:
    if kind == "json_schema":
        begins = [len(data) - len(data.lstrip())]
    elif kind == "lark_grammar":
        begins = [found.end() for found in _IN_GRAMMAR.finditer(data)]
    else:
        return
    for begin in begins:
        try:
            yield json.JSONDecoder().raw_decode(data, begin)[0]
        except (ValueError, RecursionError):
            continue
