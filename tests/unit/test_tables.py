"""The tables of texts in JSON: their schema, their shared texts, and errors of an incomplete installation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import schemas

from qnnbridge._diagnosis import tables
from qnnbridge._diagnosis.crash import DEATH_RULES
from qnnbridge._diagnosis.log_rules import MODEL_RULES, SETUP_RULES
from qnnbridge_host.engine.ort_errors import Circumstances, hint
from qnnbridge_protocol.errors import HostError
from qnnbridge_protocol.tables import read_tables

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "dev" / "tables.schema.json"
FILES = {
    path.name: path
    for folder in ("bridge_x86", "host_arm64", "tools")
    for path in sorted((ROOT / folder).rglob("*.json"))
    if SCHEMA.name in path.read_text("utf-8")
}


def document(name: str) -> dict[str, Any]:
    return json.loads(FILES[name].read_text("utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_each_table_matches_its_schema(name: str) -> None:
    content = document(name)
    file, _, kind = content["$schema"].partition("#/$defs/")
    assert (FILES[name].parent / file).resolve() == SCHEMA
    root = json.loads(SCHEMA.read_text("utf-8"))
    schemas.hold(content, root["$defs"][kind], root)


def test_each_kind_of_table_has_its_file() -> None:
    assert {"exit_codes", "qnn_codes", "log_rules", "death_rules", "messages", "own_errors", "ort_hints"} == {
        document(name)["$schema"].rpartition("/")[2] for name in FILES
    }


def test_the_schema_refuses_a_row_with_an_unknown_field() -> None:
    root = json.loads(SCHEMA.read_text("utf-8"))
    row = {"name": "disk.slow", "pattern": "slow", "cause": "The disk is slow.", "fix": "Use another disk."}
    schemas.hold(row, root["$defs"]["log_rule"], root)
    for wrong in ({"fixes": "none"}, {"weight": "certain"}, {"setup": "yes"}, {"name": "Disk"}):
        with pytest.raises(AssertionError):
            schemas.hold({**row, **wrong}, root["$defs"]["log_rule"], root)


def test_each_shared_text_is_used() -> None:
    everything = "".join(path.read_text("utf-8") for path in FILES.values())
    shared = set(tables.TEXTS).union(*(document(name).get("texts", {}) for name in FILES))
    code = "".join(path.read_text("utf-8") for path in (ROOT / "bridge_x86/qnnbridge/_diagnosis").glob("*.py"))
    assert not [name for name in shared if f"${name}" not in everything and f'TEXTS["{name}"]' not in code]


def test_a_text_that_does_not_exist_is_refused() -> None:
    read = read_tables('{"texts": {"known": "Known."}, "rows": [{"fix": "First. $known", "note": "why"}]}')
    assert read == {"rows": [{"fix": "First. Known."}]}
    with pytest.raises(KeyError, match="unknown"):
        read_tables('{"rows": [{"fix": "$unknown"}]}')


@pytest.mark.parametrize("rule", [*SETUP_RULES, *MODEL_RULES], ids=lambda rule: rule.name)
def test_the_messages_of_a_log_rule_use_only_its_groups(rule: Any) -> None:
    groups = set(re.compile(rule.pattern).groupindex)
    known = groups | ({"meaning", "advice"} if "qnn" in groups else set())
    assert set(re.findall(r"\{(\w+)", rule.cause + rule.fix)) <= known


@pytest.mark.parametrize("rule", DEATH_RULES, ids=lambda rule: rule.cause[:40])
def test_the_cause_of_a_crash_uses_only_the_groups_of_its_line(rule: Any) -> None:
    groups = set(re.compile(rule.line).groupindex) if rule.line is not None else set()
    assert set(re.findall(r"\{(\w+)\}", rule.cause)) <= {*groups, "signal", "processor"}


def test_a_hint_is_a_text_of_the_table_or_of_a_function() -> None:
    assert hint("file path in ep_cache_context does not exist", Circumstances()) == (
        "This model is compiled, but the .bin file to which it refers is not in its folder.",
        "Keep the .onnx file and its .bin file together, and do not rename them.",
    )
    cause, fix = hint("MyOp(-1) is not a registered function/op", Circumstances(custom_op_libraries=("/a/b.so",)))
    assert "b.so" in str(cause)
    assert "library" in str(fix)


def test_an_installation_without_its_tables_is_refused_with_the_fix() -> None:
    with pytest.raises(HostError, match="incomplete") as caught:
        tables.read("absent.json")
    assert "--include-package-data=qnnbridge" in str(caught.value.fix)
