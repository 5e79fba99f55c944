"""Verdicts on numbers: kept by the key, bounded in number and age, and never a reason for an error."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from qnnbridge_host.cache import memo
from qnnbridge_host.cache.memo import MAX_ATTEMPTS, Verdicts
from qnnbridge_host.serve import numbers_service
from qnnbridge_protocol.model_records import NumbersReport, OutputNumbers

BAD = OutputNumbers("differs", 100, 3.5, 2.0, 0.5, 0.7, output="y")
REPORT = NumbersReport("differs", (BAD,), "the inputs of a call", "y is wrong", 0.4, time.time(), cause="Pad")


def test_a_verdict_is_read_as_it_was_written_but_kept(tmp_path: Path) -> None:
    Verdicts(tmp_path).write("key", REPORT)
    assert Verdicts(tmp_path).read("key") == dataclasses.replace(REPORT, kept=True)
    assert Verdicts(tmp_path).read("other") is None


def test_a_verdict_by_other_rules_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Verdicts(tmp_path).write("key", REPORT)
    monkeypatch.setattr(memo, "RULES", memo.RULES + 1)
    assert Verdicts(tmp_path).read("key") is None


def test_an_infinite_difference_survives(tmp_path: Path) -> None:
    lost = dataclasses.replace(BAD, max_relative=float("inf"), lost=3)
    Verdicts(tmp_path).write("key", dataclasses.replace(REPORT, outputs=(lost,)))
    found = Verdicts(tmp_path).read("key")
    assert found is not None
    assert found.outputs == (lost,)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"sha256": "0", "content": {}}', b"\xff" * 100])
def test_a_damaged_verdict_is_none(content: bytes, tmp_path: Path) -> None:
    kept = Verdicts(tmp_path)
    kept.write("key", REPORT)
    (tmp_path / "verdicts" / "key.json").write_bytes(content)
    assert kept.read("key") is None
    assert kept.begin("key")


def test_an_old_verdict_is_none(tmp_path: Path) -> None:
    kept = Verdicts(tmp_path)
    kept.write("key", dataclasses.replace(REPORT, when=time.time() - memo.VERDICTS_MAX_AGE_S - 1))
    assert kept.read("key") is None


def test_comparisons_that_come_to_no_end_are_not_begun_for_ever(tmp_path: Path) -> None:
    kept = Verdicts(tmp_path)
    assert [kept.begin("key") for _ in range(MAX_ATTEMPTS + 1)] == [True] * MAX_ATTEMPTS + [False]
    assert kept.read("key") is None
    kept.write("key", REPORT)
    assert kept.begin("key"), "one that came to an end counts anew"


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MAX_VERDICTS", 3)
    kept = Verdicts(tmp_path)
    for number in range(5):
        kept.write(f"key{number}", REPORT)
        time.sleep(0.01)
    assert kept.keys() == ["key2", "key3", "key4"]
    assert kept.remove("key3")
    assert not kept.remove("key3")


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / "verdicts").write_text("a file")
    kept = Verdicts(tmp_path)
    kept.write("key", REPORT)
    assert kept.begin("key")
    assert (kept.read("key"), kept.keys()) == (None, [])


def test_a_model_that_does_not_fit_into_the_memory_is_not_loaded() -> None:
    assert numbers_service._too_large(0) == ""
    assert "MiB are free" in numbers_service._too_large(1 << 60)
