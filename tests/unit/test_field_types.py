"""A field with another type than its record declares is refused, and the error contains the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from qnnbridge_protocol.errors import ProtocolDesync
from qnnbridge_protocol.field_types import field, reader
from qnnbridge_protocol.model_records import CacheSettings, CompileResult, EntryFault, ModelIdentity, Validation
from qnnbridge_protocol.specs import CompileSpec, NodeInfo, Placement, ProviderSpec, SessionInfo, SessionSpec

SPEC = SessionSpec("/a.onnx", (ProviderSpec("CPU", {"a": "b"}),), initializers=("W",)).to_wire()


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        ("str", ["", "a"], [None, 1, b"a", []]),
        ("int", [0, -1, 2**63], [True, 1.0, "1", None]),
        ("bool", [True, False], [0, 1, None, "True"]),
        ("float", [0.5, 1, float("inf")], [True, "1", None]),
        ("str | None", ["a", None], [1, False]),
        ("int | str | None", [1, "N", None], [1.5, [1], True]),
        ("tuple[int, ...]", [(), (1, 2)], [None, "12", {}, (1, "2"), 5]),
        ("tuple[int | str | None, ...] | None", [None, (1, "N", None)], [(1.5,), "ab", {}]),
        ("tuple[tuple[str, int], ...]", [(("a", 1),)], [(("a",),), (("a", 1, 2),), ((1, "a"),), ("ab",)]),
        ("Mapping[str, Any]", [{}, {"a": [1]}], [None, [], "a", {1: 2}]),
        ("Mapping[str, Mapping[str, str]]", [{"a": {"b": "c"}}], [{"a": "b"}, {"a": {"b": 1}}]),
    ],
)
def test_each_declared_type_accepts_its_values_and_no_others(
    declared: str, good: list[Any], bad: list[Any]
) -> None:
    read = reader(declared, {})
    for value in good:
        assert read(value, "x") == value
        assert read(list(value) if type(value) is tuple else value, "x") == value, "a list from the wire"
    for value in bad:
        with pytest.raises(ProtocolDesync):
            read(value, "x")


@pytest.mark.parametrize(
    ("record", "data", "named"),
    [
        (SessionSpec, [], "SessionSpec is list"),
        (SessionSpec, {}, "SessionSpec has no model_path"),
        (SessionSpec, {**SPEC, "options": []}, r"SessionSpec\.options is list"),
        (SessionSpec, {**SPEC, "providers": [{"name": 5}]}, r"SessionSpec\.providers\[0\]\.name is int 5, not str"),
        (
            SessionSpec,
            {**SPEC, "providers": [{"name": "a", "options": {"b": 1}}]},
            r"providers\[0\]\.options\['b'\]",
        ),
        (SessionSpec, {**SPEC, "initializers": "W"}, r"SessionSpec\.initializers is str"),
        (SessionSpec, {**SPEC, "fallback": None}, r"SessionSpec\.fallback is null"),
        (CompileSpec, {"session": SPEC, "output": ""}, "CompileSpec is not a valid CompileSpec"),
        (CompileSpec, {"session": SPEC, "output": "a", "share": "x"}, "CompileSpec is not a valid CompileSpec"),
        (NodeInfo, {"name": "x", "type": "t", "shape": [1.5]}, r"NodeInfo\.shape\[0\]"),
        (SessionInfo, {"inputs": [5], "outputs": []}, r"SessionInfo\.inputs\[0\]"),
        (Placement, {"cpu_list": [["a"]]}, r"Placement\.cpu_list\[0\] has 1 items, not 2"),
        (CacheSettings, {"folder": "a", "max_bytes": True}, r"CacheSettings\.max_bytes is bool True, not int"),
        (EntryFault, {"key": "k", "id": "i", "fault": "odd", "reason": ""}, "not a fault of an entry: 'odd'"),
        (ModelIdentity, {"fingerprint": "f", "label": "l", "files": [["p", 1, "2"]]}, r"files\[0\]\[2\] is str"),
        (Validation, {"differences": [{"output": "y"}]}, r"Validation\.differences\[0\] has no level"),
        (CompileResult, {"path": "p"}, "CompileResult has no"),
    ],
)
def test_a_refused_record_is_reported_with_the_name_of_its_field(record: Any, data: Any, named: str) -> None:
    with pytest.raises(ProtocolDesync, match=named):
        record.from_wire(data)


def test_the_error_for_a_field_of_a_request_names_the_operation() -> None:
    header = {"op": "session.run", "outputs": None, "inputs": 5}
    with pytest.raises(ProtocolDesync, match="inputs is int 5, not"):
        field(header, "inputs", "tuple[tuple[str, Any], ...]")
    with pytest.raises(ProtocolDesync, match=r"session\.run without options"):
        field(header, "options", "Mapping[str, str]")
    assert field(header, "outputs", "tuple[str, ...] | None", None) is None
    assert field(header, "names", "tuple[str, ...] | None", None) is None
