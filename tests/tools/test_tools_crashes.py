"""`qnnbridge crashes`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qnnbridge._diagnosis.crash import CrashRecord, OpenCall
from qnnbridge._diagnosis.exit_codes import ExitStatus
from qnnbridge._diagnosis.reports import CrashReports
from qnnbridge_tools.cli import app

DEATH = CrashRecord(
    exit=ExitStatus(-11, "posix"),
    in_flight=(OpenCall(7, "run", model="detector.onnx", phase="running"),),
    stderr_tail="\x1b[1;31mlast words\x1b[0m\n",
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", str(tmp_path))
    return tmp_path


def qnnbridge(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def written(record: CrashRecord = DEATH) -> str:
    path = CrashReports().write(record)
    assert path is not None
    return path.stem


@pytest.mark.parametrize("arguments", [["crashes"], ["crashes", "list"]])
def test_without_reports_the_list_says_where_it_looked(arguments: list[str], state: Path) -> None:
    assert qnnbridge(*arguments) == (0, f"No crash reports in {state / 'crashes'}.\n")


def test_reports_are_listed_with_exit_phase_and_model() -> None:
    report_id = written()
    code, told = qnnbridge("crashes")
    assert code == 0
    (row,) = [line for line in told.splitlines() if line.startswith(report_id)]
    assert "SIGSEGV" in row
    assert "running" in row
    assert "detector.onnx" in row


def test_a_report_is_shown_by_the_beginning_of_its_id_or_as_the_last() -> None:
    report_id = written()
    for arguments in (["crashes", "show"], ["crashes", "show", "last"], ["crashes", "show", report_id[:-2]]):
        code, told = qnnbridge(*arguments)
        assert code == 0
        assert told.startswith(f"qnnbridge crash report {report_id}")
        assert "Most likely causes, best first:\n1. " in told
        assert r"\x1b[1;31mlast words" in told or "  last words" in told
        assert "\x1b" not in told


def test_a_report_and_the_list_can_be_had_as_json() -> None:
    report_id = written()
    code, told = qnnbridge("crashes", "show", report_id, "--json")
    assert code == 0
    assert json.loads(told)["id"] == report_id
    code, told = qnnbridge("crashes", "list", "--json")
    assert code == 0
    assert [report["id"] for report in json.loads(told)["reports"]] == [report_id]


def test_a_host_that_was_ended_on_purpose_is_no_crash_and_can_be_looked_at_all_the_same(state: Path) -> None:
    report_id = written(dataclasses.replace(DEATH, killed_because="a call ran past its deadline", on_purpose=True))
    assert qnnbridge("crashes") == (0, f"No crash reports in {state / 'crashes'}.\n")
    assert qnnbridge("crashes", "show", report_id)[0] == 2
    code, told = qnnbridge("crashes", "list", "--ended")
    assert code == 0
    assert [line for line in told.splitlines() if line.startswith(report_id) and "past its deadline" in line]
    code, told = qnnbridge("crashes", "show", "--ended")
    assert code == 0
    assert told.startswith(f"qnnbridge report of an ended host {report_id}")


def test_an_unknown_report_is_bad_input() -> None:
    code, told = qnnbridge("crashes", "show", "19990101")
    assert code == 2
    assert "There is no crash report" in told


def test_the_folder_of_the_reports_is_printed(state: Path) -> None:
    assert qnnbridge("crashes", "path") == (0, f"{state / 'crashes'}\n")
