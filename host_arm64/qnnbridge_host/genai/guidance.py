"""Check JSON schemas for guidance before the guidance library reads them. Pure functions.

The library (llguidance in onnxruntime-genai) limits most of what a schema may contain, but not everything: an
integer near -2**63 crashes the process; a large `multipleOf`, thousands of properties and `minItems` take minutes
and gigabytes in a call that cannot be interrupted. The limits below were measured with onnxruntime-genai 0.18: each
part of a schema within them takes at most about three seconds on one core.

Regular expressions and grammars of other types are limited by the library only.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal
from urllib.parse import unquote

from qnnbridge_protocol.errors import GenerationError

# Maximum number of characters of a schema or grammar, and of nesting levels of a schema (the library's own maximum
# of levels is lower).
MOST_CHARACTERS: Final = 1_000_000
MOST_LEVELS: Final = 128
# Maximum sum of minItems and maxItems of all arrays of a schema; 100,000 take a second. The library creates a rule
# for each of these items, and itself refuses maxItems above 65,000.
MAX_ITEMS: Final = 100_000
# Maximum number of all alternatives: members of enum, anyOf, oneOf, allOf and prefixItems, and of arrays in const
# and enum.
MOST_ALTERNATIVES: Final = 10_000
# Maximum number of properties and of fields in constants, together. The time grows quadratically: 2,000 take 3 s.
MOST_PROPERTIES: Final = 1_000
MOST_REQUIRED: Final = 2_000
# Maximum number of characters of all property names and of the texts in const and enum; a million take 10 s.
MOST_TEXT: Final = 200_000
# Maximum number of schemas of numbers with a minimum or maximum; 300 take 1.3 s.
MOST_RANGES: Final = 500
# Maximum sum of all `multipleOf`, without decimal points and trailing zeros: the library creates a state for each
# remainder. 99,999 takes 6 s.
MOST_REMAINDERS: Final = 20_000
# Maximum number of characters of all regular expressions together, and maximum product of nested repetitions:
# (a{1000}){1000} takes 9 s.
MOST_PATTERN_CHARACTERS: Final = 20_000
MOST_REPETITIONS: Final = 100_000
# Maximum magnitude of integers: integers below about -2**63 crash the process.
LARGEST: Final = 2**62

_COUNTS: Final = ("minItems", "maxItems")
_PATTERNS: Final = ("pattern", "whitespace_pattern", "item_separator", "key_separator")
# Role of a value in the document: a schema, a map whose keys the author chose, a value that an answer may have, or
# a comment.
_Place = Literal["schema", "map", "data", "comment"]
_PLACES: Final[Mapping[str, _Place]] = {
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), "map"),
    **dict.fromkeys(("enum", "const"), "data"),
    **dict.fromkeys(("default", "examples", "title", "description", "$comment"), "comment"),
}
_IN_GRAMMAR: Final = re.compile(r"%json\s*")


def check_guidance(kind: str, data: str) -> None:
    """Raise `GenerationError` for a schema that the library must not read.

    The library itself refuses invalid JSON.
    """
    if len(data) > MOST_CHARACTERS:
        raise _refused(f"The {kind} has {len(data):,} characters, more than {MOST_CHARACTERS:,}.", "Shorten it.")
    bounds = _Bounds()
    for schema in _schemas(kind, data):
        bounds.add(schema)
        _refuse_cycle(schema)


class _Bounds:
    """Counts items, properties and other parts in all schemas of a grammar. Refuses a count above its limit."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(_MOST, 0)

    def add(self, schema: Any) -> None:
        # Use a list instead of recursion, because the client chooses the depth of a schema.
        left: list[tuple[Any, int, _Place]] = [(schema, 0, "schema")]
        while left:
            value, level, place = left.pop()
            if level > MOST_LEVELS:
                raise _refused(f"The JSON schema has more than {MOST_LEVELS} levels.", "Flatten it, or use $ref.")
            if isinstance(value, dict):
                if place == "schema":
                    self._keywords(value)
                elif place == "data":
                    self._count("properties", len(value))
                if place != "schema":
                    self._count("characters of names and texts", sum(map(len, value)))
                inner = [(one, level + 1, _place_below(place, name)) for name, one in value.items()]
                left += [one for one in inner if one[2] != "comment"]
            elif isinstance(value, list):
                if place == "data":
                    self._count("alternatives", len(value))
                left += [(one, level + 1, place) for one in value]
            elif isinstance(value, str):
                if place == "data":
                    self._count("characters of names and texts", len(value))
            elif isinstance(value, int) and value < -LARGEST:
                raise _refused(
                    f"The JSON schema has the integer {str(value)[:40]}, which is out of range.",
                    f"Use integers of at least -2**62 ({-LARGEST}).",
                )

    def _keywords(self, schema: dict[str, Any]) -> None:
        for name in _COUNTS:
            if isinstance(schema.get(name), (int, float)):
                self._count("items", min(max(0, schema[name]), MAX_ITEMS + 1))
        for what, names in _LISTS.items():
            given = [schema[name] for name in names if isinstance(schema.get(name), (dict, list))]
            self._count(what, sum(map(len, given)))
        self._count("ranges", any(name in schema for name in _LIMITS))
        step = schema.get("multipleOf")
        if isinstance(step, (int, float)) and not isinstance(step, bool):
            self._count("remainders", min(_remainders(step), MOST_REMAINDERS + 1))
        named = schema.get("patternProperties")
        patterns = [schema[name] for name in _PATTERNS if isinstance(schema.get(name), str)]
        for pattern in [*patterns, *(named if isinstance(named, dict) else ())]:
            self._count("characters of patterns", len(pattern))
            if _repetitions(pattern) > MOST_REPETITIONS:
                raise _refused(
                    "A pattern of the JSON schema has nested repetitions with a product of more than "
                    f"{MOST_REPETITIONS:,}: {pattern[:60]}",
                    "Lower the count of the inner or the outer repetition, or use * or +.",
                )

    def _count(self, what: str, number: float) -> None:
        self._sums[what] += int(number)
        most, fix = _MOST[what]
        if self._sums[what] > most:
            raise _refused(f"The JSON schema has more than {most:,} {what}, counted over all of its parts.", fix)


# Limit of each sum, and the fix in the error message.
_MOST: Final[Mapping[str, tuple[int, str]]] = {
    "items": (MAX_ITEMS, "Lower minItems and maxItems, or omit maxItems."),
    "alternatives": (MOST_ALTERNATIVES, "Describe the values by a pattern, or remove some of them."),
    "properties": (MOST_PROPERTIES, "Remove some properties, or describe them by additionalProperties."),
    "required names": (MOST_REQUIRED, "Remove some names from required."),
    "characters of names and texts": (
        MOST_TEXT,
        "Shorten the strings in const and enum, and the names of properties.",
    ),
    "ranges": (MOST_RANGES, "Remove minimum and maximum, and check the answer afterwards."),
    "remainders": (MOST_REMAINDERS, "Use a multipleOf with fewer digits, or check the answer afterwards."),
    "characters of patterns": (
        MOST_PATTERN_CHARACTERS,
        "Shorten the patterns; use enum for a list of fixed strings.",
    ),
}
_LISTS: Final = {
    "alternatives": ("anyOf", "oneOf", "allOf", "prefixItems"),
    "properties": ("properties", "patternProperties"),
    "required names": ("required",),
}
_LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_REPETITION: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def _repetitions(pattern: str) -> int:
    """Return the largest product of nested counted repetitions; 0 if no repetition contains another."""
    # Largest product within each open group. The first entry is for the whole pattern.
    groups, at, closed, worst = [1], 0, 1, 0
    while at < len(pattern):
        sign = pattern[at]
        counted = _REPETITION.match(pattern, at)
        if sign == "\\":
            at += 2
            closed = 1
        elif sign == "[":
            end = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]?", re.DOTALL).match(pattern, at)
            at = end.end() if end is not None else len(pattern)
            closed = 1
        elif counted is not None:
            count = max(int(number[:12] or 0) for number in (counted[1], counted[2] or "0"))
            product = max(1, count) * closed
            worst = max(worst, product if closed > 1 else 0)
            groups[-1], closed, at = max(groups[-1], product), product, counted.end()
        else:
            if sign == "(":
                groups.append(1)
            closed = groups.pop() if sign == ")" and len(groups) > 1 else 1
            groups[-1] = max(groups[-1], closed)
            at += 1
    return worst


def _place_below(place: _Place, name: str) -> _Place:
    if place == "schema":
        return _PLACES.get(name, "schema")
    return "data" if place == "data" else "schema"


def _remainders(step: float) -> int:
    """Return the number of remainders of a division by `multipleOf`, in units of its last digit."""
    # Trailing zeros cost nothing: 1,000,000 has as few states as 1.
    digits = "".join(map(str, decimal.Decimal(str(step)).as_tuple().digits)).rstrip("0")
    return int(digits[:20] or "0")


def _refuse_cycle(schema: Any) -> None:
    """Refuse schemas that refer to themselves without a property or an item in between: no value matches them.

    The library would let the empty answer match such a schema.
    """
    by_id: dict[int, dict[str, Any]] = {}
    done: set[int] = set()
    left: list[Any] = [schema]
    while left:
        one = left.pop()
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        if isinstance(one, dict):
            by_id[id(one)] = one
    for number in by_id:
        path: list[tuple[int, Iterator[int]]] = []
        if number not in done:
            path.append((number, iter(_same_value(schema, by_id[number]))))
        inside = {number}
        while path:
            current, following = path[-1]
            after = next(following, None)
            if after is None:
                path.pop()
                inside.discard(current)
                done.add(current)
            elif after in inside:
                raise _refused(
                    "The JSON schema refers to itself without a property or an item in between.",
                    "Put a property or an item into each cycle of $ref.",
                )
            elif after not in done and after in by_id:
                inside.add(after)
                path.append((after, iter(_same_value(schema, by_id[after]))))


def _same_value(schema: Any, one: dict[str, Any]) -> list[int]:
    """Return the ids of the schemas that apply to the same value as this schema."""
    found = [_target(schema, one["$ref"])] if isinstance(one.get("$ref"), str) else []
    for name in ("allOf", "anyOf", "oneOf"):
        found += one[name] if isinstance(one.get(name), list) else []
    return [id(inner) for inner in found if isinstance(inner, dict)]


def _target(schema: Any, reference: str) -> Any:
    """Return the target of a reference in the document; `None` for other references (the library handles them)."""
    if not reference.startswith("#"):
        return None
    found = schema
    for part in filter(None, unquote(reference[1:]).split("/")):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and len(name) < 9 and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


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
        except (ValueError, RecursionError) as error:
            if isinstance(error, RecursionError) or "integer string conversion" in str(error):
                raise _refused("The JSON schema is nested too deeply, or a number is too long.") from None
            continue


def _refused(text: str, fix: str = "Correct the schema.") -> GenerationError:
    return GenerationError(
        text,
        cause="The guidance library would take minutes or gigabytes for such a schema, or crash.",
        fix=fix,
        details={"guidance": "refused"},
    )
