"""Schemas that are passed to the guidance library, and those that are refused before:
`qnnbridge_host.genai.guidance`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("numpy")

from qnnbridge_host.genai.guidance import check_guidance
from qnnbridge_protocol.errors import GenerationError

REFUSED: dict[str, Any] = {
    "ends the process": {"const": -(2**63)},
    "ends the process, too": {"enum": [1, {"a": [-(2**63) + 10]}]},
    "a state for each remainder": {"type": "integer", "multipleOf": 123456789},
    "many small ones": {"properties": {f"k{n}": {"multipleOf": 997 + n} for n in range(50)}},
    "quadratic": {"required": [f"k{n}" for n in range(5000)]},
    "properties": {"properties": {f"k{n}": {} for n in range(1001)}},
    "fields of a constant": {"const": {f"k{n}": n for n in range(1001)}},
    "values": {"enum": list(range(10_001))},
    "alternatives": {"anyOf": [{"const": n} for n in range(10_001)]},
    "a long text": {"const": "k" * 200_001},
    "repetitions": {"pattern": "^(a{1000}){1000}$"},
    "white space of the library's own": {"x-guidance": {"whitespace_pattern": "(a{1000}){1000}"}},
    "items": {"anyOf": [{"minItems": 60_000}, {"minItems": 60_000}]},
    "ranges": {"properties": {f"k{n}": {"minimum": n} for n in range(501)}},
    "a reference to itself": {"$ref": "#"},
    "a circle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}},
        "$ref": "#/$defs/a",
    },
    "levels": json.loads("[" * 200 + "]" * 200),
}
ACCEPTED: dict[str, Any] = {
    "ordinary": {"type": "object", "properties": {"a": {"type": "integer", "minimum": -5}}, "required": ["a"]},
    "a large integer": {"const": 2**63 - 1},
    "a large fraction": {"const": -1e300},
    "a comment": {"default": -(2**63), "examples": [-(2**63)], "description": "x" * 300_000},
    "a round number": {"multipleOf": 1_000_000},
    "a hundredth": {"multipleOf": 0.01},
    "a tree": {"$defs": {"n": {"properties": {"l": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
    "a property called as a keyword": {"properties": {"multipleOf": {"const": 123456789}, "const": {"minimum": 1}}},
    "a constant that looks like a schema": {"const": {"multipleOf": 123456789, "pattern": "(a{1000}){1000}"}},
    "one long repetition": {"pattern": "^.{0,1000000}$"},
    "no repetition": {"pattern": r"^(\{1000\}){1000}[({1000}]{1000}$"},
    "a truth": {"properties": {"a": True}, "additionalProperties": False},
    "many values": {"enum": [f"value{n}" for n in range(9_000)]},
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("form", ["{}", 'start: "a" %json {}'])
def test_dangerous_schemas_are_refused(name: str, form: str) -> None:
    kind = "json_schema" if form == "{}" else "lark_grammar"
    with pytest.raises(GenerationError) as caught:
        check_guidance(kind, form.replace("{}", json.dumps(REFUSED[name])))
    assert caught.value.fix
    assert caught.value.details["guidance"]


@pytest.mark.parametrize("name", ACCEPTED)
def test_ordinary_schemas_are_accepted(name: str) -> None:
    check_guidance("json_schema", json.dumps(ACCEPTED[name]))


def test_all_schemas_of_a_grammar_are_counted_together() -> None:
    one = json.dumps({"properties": {f"k{n}": {} for n in range(600)}})
    check_guidance("lark_grammar", f"start: %json {one}")
    with pytest.raises(GenerationError, match="properties"):
        check_guidance("lark_grammar", f'start: "a" %json {one} | %json {one}')


def test_very_long_numbers_are_refused_and_invalid_json_is_left_to_the_library() -> None:
    with pytest.raises(GenerationError):
        check_guidance("json_schema", '{"const": 1' + "0" * 5000 + "}")
    check_guidance("json_schema", "{")  # the library reports the error
    check_guidance("regex", "a{")
