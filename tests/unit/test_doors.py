"""Options, JSON documents and rewritten models equal the golden files of `tests/golden/doors`, unless they were
changed deliberately.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.golden import doors


def differences(now: Any, before: Any, place: str = "") -> list[str]:
    if isinstance(now, dict) and isinstance(before, dict):
        both = [
            one
            for key in now.keys() & before.keys()
            for one in differences(now[key], before[key], f"{place}/{key}")
        ]
        return [
            *both,
            *(f"{place}/{key} is new" for key in now.keys() - before.keys()),
            *(f"{place}/{key} is gone" for key in before.keys() - now.keys()),
        ]
    return [] if now == before else [f"{place}: {before!r:.200} -> {now!r:.200}"]


# Inspecting a compiled model asks a child process whether the QNN provider loads.
MARKS = {"documents": pytest.mark.process}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in doors.DOORS])
def test_an_interface_matches_its_golden_file(name: str) -> None:
    before = json.loads((doors.FOLDER / f"{name}.json").read_text("utf-8"))
    now = json.loads(doors.text_of(name))
    found = sorted(differences(now, before))
    assert found == [], (
        "if the change is meant: run python -m tests.golden.doors, and describe the change in CHANGELOG.md"
    )


def test_a_difference_at_any_depth_is_detected() -> None:
    assert differences({"a": {"b": [1]}, "new": 1}, {"a": {"b": [2]}, "gone": 1}) == [
        "/a/b: [2] -> [1]",
        "/new is new",
        "/gone is gone",
    ]
    assert differences({"a": {"b": [1]}}, {"a": {"b": [1]}}) == []
