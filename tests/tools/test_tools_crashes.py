"""`qnnbridge crashes`, `quarantine` and `explain`."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests import needs
from tests.fakes.commands import qnnbridge as command_line

from qnnbridge._diagnosis import CrashReports
from qnnbridge._diagnosis.crash import CrashRecord, OpenCall
from qnnbridge._diagnosis.exit_codes import ExitStatus
from qnnbridge._supervision.blame import NativeCall, Points, Quarantine

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
    result = command_line(*arguments)
    return result.returncode, result.output


def written(record: CrashRecord = DEATH) -> str:
    path = CrashReports().write(record)
    assert path is not None
    return path.stem


@pytest.mark.parametrize("arguments", [["crashes"], ["crashes", "list"]])
def test_without_reports_the_list_names_the_searched_folder(arguments: list[str], state: Path) -> None:
    assert qnnbridge(*arguments) == (0, f"No crash reports in {state / 'crashes'}.\n")


def test_reports_are_listed_with_exit_phase_and_model() -> None:
    report_id = written()
    code, told = qnnbridge("crashes")
    assert code == 0
    (row,) = [line for line in told.splitlines() if line.startswith(report_id)]
    assert "SIGSEGV" in row
    assert "running" in row
    assert "detector.onnx" in row


def test_a_report_is_selected_by_a_prefix_of_its_id_or_as_the_last() -> None:
    report_id = written()
    for arguments in (["crashes", "show"], ["crashes", "show", "last"], ["crashes", "show", report_id[:-2]]):
        code, told = qnnbridge(*arguments)
        assert code == 0
        assert told.startswith(f"qnnbridge crash report {report_id}")
        assert "Most likely causes, best first:\n1. " in told
        assert r"\x1b[1;31mlast words" in told or "  last words" in told
        assert "\x1b" not in told


def test_a_report_and_the_list_are_available_as_json() -> None:
    report_id = written()
    code, told = qnnbridge("crashes", "show", report_id, "--json")
    assert code == 0
    assert json.loads(told)["id"] == report_id
    code, told = qnnbridge("crashes", "list", "--json")
    assert code == 0
    assert [report["id"] for report in json.loads(told)["reports"]] == [report_id]


def test_a_host_that_was_ended_deliberately_is_not_listed_as_a_crash_and_can_still_be_shown(state: Path) -> None:
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
    assert "No crash report matches" in told


def test_the_folder_of_the_reports_is_printed(state: Path) -> None:
    assert qnnbridge("crashes", "path") == (0, f"{state / 'crashes'}\n")


def quarantine_command(*arguments: str) -> tuple[int, str]:
    result = command_line("quarantine", *arguments)
    return result.returncode, result.output


def poison(model: str, phase: str = "running") -> str:
    """Quarantine a model, as two crashes would; return its id."""
    call = NativeCall(fingerprint=f"fingerprint of {model}", options_hash="o", phase=phase, model=model)
    kept = Quarantine(versions="onnxruntime 1, QNN 2")
    kept.add(Points(call, 1.0), exit_text="-11 SIGSEGV", report="/reports/1.txt")
    account = kept.add(Points(call, 1.0), exit_text="-6 SIGABRT", report="/reports/2.txt")
    assert account is not None
    return account.id


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_an_empty_quarantine_is_explained(arguments: list[str]) -> None:
    assert quarantine_command(*arguments) == (0, "No model is in quarantine.\n")


def test_models_of_all_versions_are_listed_with_their_last_crash() -> None:
    account_id = poison("bad.onnx")
    code, told = quarantine_command("list")
    assert code == 0
    (row,) = [line for line in told.splitlines() if line.startswith(account_id)]
    for text in ("bad.onnx", "running", "2", "-6 SIGABRT", "onnxruntime 1, QNN 2", "/reports/2.txt"):
        assert text in row


def test_the_list_is_available_as_json() -> None:
    account_id = poison("bad.onnx")
    code, told = quarantine_command("list", "--json")
    assert code == 0
    (account,) = json.loads(told)["accounts"]
    assert account["id"] == account_id
    assert [death["exit"] for death in account["deaths"]] == ["-11 SIGSEGV", "-6 SIGABRT"]
    assert account["until"].endswith("+00:00")


def test_one_model_is_cleared_by_its_id_and_the_others_stay() -> None:
    first, second = poison("first.onnx"), poison("second.onnx")
    assert quarantine_command("clear", first) == (0, "Cleared: first.onnx.\n")
    assert [account.id for account in Quarantine().accounts()] == [second]


def test_one_model_is_cleared_by_its_name() -> None:
    poison("first.onnx", "creating")
    poison("first.onnx", "running")
    second = poison("second.onnx")
    assert quarantine_command("clear", "first.onnx") == (0, "Cleared: first.onnx.\n")
    assert [account.id for account in Quarantine().accounts()] == [second]


def test_a_name_that_two_models_share_clears_none() -> None:
    kept = Quarantine(versions="v")
    for fingerprint in ("one", "other"):
        call = NativeCall(fingerprint=fingerprint, options_hash="o", phase="running", model="same.onnx")
        for _ in range(2):
            kept.add(Points(call, 1.0), exit_text="-6 SIGABRT", report="/reports/2.txt")
    namesakes = [account.id for account in Quarantine().accounts()]
    other = poison("other.onnx")
    code, told = quarantine_command("clear", "same.onnx")
    assert code == 2
    assert "More than one model" in told
    assert all(f"{account_id} (same.onnx)" in told for account_id in namesakes)
    assert other not in told
    assert len(Quarantine().accounts()) == 3


def test_clearing_a_model_clears_it_in_every_phase() -> None:
    poison("bad.onnx", "creating")
    assert quarantine_command("clear", poison("bad.onnx", "running")) == (0, "Cleared: bad.onnx.\n")
    assert Quarantine().accounts() == []


def test_all_models_are_cleared_on_request() -> None:
    poison("first.onnx")
    poison("second.onnx")
    code, told = quarantine_command("clear", "--all")
    assert code == 0
    assert "first.onnx" in told
    assert "second.onnx" in told
    assert Quarantine().accounts() == []
    assert quarantine_command("clear", "--all") == (0, "No model was in quarantine.\n")


@pytest.mark.parametrize("arguments", [[], [""], ["abc", "--all"]])
def test_clearing_needs_either_an_id_or_all(arguments: list[str]) -> None:
    poison("bad.onnx")
    code, told = quarantine_command("clear", *arguments)
    assert code == 2
    assert "No model to clear is given." in told
    assert len(Quarantine().accounts()) == 1


def test_an_unknown_id_is_bad_input_and_the_error_lists_the_known_ones() -> None:
    account_id = poison("bad.onnx")
    code, told = quarantine_command("clear", "zzz")
    assert code == 2
    assert account_id in told


def test_a_prefix_that_several_ids_share_clears_none() -> None:
    ids = [poison(f"{number}.onnx") for number in range(17)]  # sixteen digits: two ids have the same beginning
    digit = next(account_id[0] for account_id in ids if sum(other[0] == account_id[0] for other in ids) > 1)
    code, told = quarantine_command("clear", digit)
    assert code == 2
    assert "More than one model" in told
    assert len(Quarantine().accounts()) == 17


@needs.posix
def test_a_quarantine_that_cannot_be_written_is_an_error() -> None:
    poison("bad.onnx")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0));"
        "sys.argv = ['qnnbridge', 'quarantine', 'clear', '--all'];"
        "from qnnbridge_tools.cli import main; sys.exit(main())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "could not be cleared" in result.stderr
    assert len(Quarantine().accounts()) == 1


def explain(*arguments: str) -> tuple[int, str]:
    result = command_line("explain", *arguments)
    return result.returncode, result.output


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("3221226505", "STATUS_STACK_BUFFER_OVERRUN"),
        ("0xC0000409", "STATUS_STACK_BUFFER_OVERRUN"),
        ("-1073740791", "STATUS_STACK_BUFFER_OVERRUN"),
        ("-11", "SIGSEGV"),
        ("-6", "SIGABRT"),
        ("SIGBUS", "SIGBUS"),
    ],
)
def test_a_code_is_explained_with_its_name_and_a_fix(code: str, name: str) -> None:
    exit_code, told = explain(code)
    assert exit_code == 0
    assert name in told
    assert "Fix:" in told


def test_exit_code_127_is_explained_with_all_its_meanings() -> None:
    exit_code, told = explain("127")
    assert exit_code == 0
    assert "Git Bash" in told
    assert "WinError 127" in told
    assert "not found" in told


def test_several_codes_are_explained_one_after_the_other() -> None:
    exit_code, told = explain("-11", "-1073740791", "--json")
    assert exit_code == 0
    assert [explanation["number"] for explanation in json.loads(told)["explanations"]] == [-11, -1073740791]


def test_an_invalid_code_is_refused_with_an_example() -> None:
    exit_code, told = explain("banana")
    assert exit_code == 2
    assert "is not an exit code" in told
    assert "Fix:" in told
