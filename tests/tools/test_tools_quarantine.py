"""`qnnbridge quarantine`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests import needs
from typer.testing import CliRunner

from qnnbridge._supervision.blame import NativeCall, Points
from qnnbridge._supervision.quarantine import Quarantine
from qnnbridge_tools.cli import app


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", str(tmp_path))
    return tmp_path


def qnnbridge(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["quarantine", *arguments])
    return result.exit_code, result.output


def poison(model: str, phase: str = "running") -> str:
    """Puts a model into quarantine, as two deaths would; its id."""
    call = NativeCall(fingerprint=f"fingerprint of {model}", options_hash="o", phase=phase, model=model)
    kept = Quarantine(versions="onnxruntime 1, QNN 2")
    kept.add(Points(call, 1.0), exit_text="-11 SIGSEGV", report="/reports/1.txt")
    account = kept.add(Points(call, 1.0), exit_text="-6 SIGABRT", report="/reports/2.txt")
    assert account is not None
    return account.id


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_an_empty_quarantine_is_told_in_words(arguments: list[str]) -> None:
    assert qnnbridge(*arguments) == (0, "No model is in quarantine.\n")


def test_models_of_all_versions_are_listed_with_their_last_death() -> None:
    account_id = poison("bad.onnx")
    code, told = qnnbridge("list")
    assert code == 0
    (row,) = [line for line in told.splitlines() if line.startswith(account_id)]
    for text in ("bad.onnx", "running", "2", "-6 SIGABRT", "onnxruntime 1, QNN 2", "/reports/2.txt"):
        assert text in row


def test_the_list_can_be_had_as_json() -> None:
    account_id = poison("bad.onnx")
    code, told = qnnbridge("list", "--json")
    assert code == 0
    (account,) = json.loads(told)["accounts"]
    assert account["id"] == account_id
    assert [death["exit"] for death in account["deaths"]] == ["-11 SIGSEGV", "-6 SIGABRT"]
    assert account["until"].endswith("+00:00")


def test_one_model_is_cleared_by_its_id_and_the_others_stay() -> None:
    first, second = poison("first.onnx"), poison("second.onnx")
    assert qnnbridge("clear", first) == (0, "Cleared: first.onnx.\n")
    assert [account.id for account in Quarantine().accounts()] == [second]


def test_one_model_is_cleared_by_its_name() -> None:
    poison("first.onnx", "creating")
    poison("first.onnx", "running")
    second = poison("second.onnx")
    assert qnnbridge("clear", "first.onnx") == (0, "Cleared: first.onnx.\n")
    assert [account.id for account in Quarantine().accounts()] == [second]


def test_a_name_that_two_models_have_clears_none() -> None:
    kept = Quarantine(versions="v")
    for fingerprint in ("one", "other"):
        call = NativeCall(fingerprint=fingerprint, options_hash="o", phase="running", model="same.onnx")
        for _ in range(2):
            kept.add(Points(call, 1.0), exit_text="-6 SIGABRT", report="/reports/2.txt")
    code, told = qnnbridge("clear", "same.onnx")
    assert code == 2
    assert "More than one model" in told
    assert len(Quarantine().accounts()) == 2


def test_clearing_a_model_clears_it_in_every_phase() -> None:
    poison("bad.onnx", "creating")
    assert qnnbridge("clear", poison("bad.onnx", "running")) == (0, "Cleared: bad.onnx.\n")
    assert Quarantine().accounts() == []


def test_all_models_are_cleared_when_asked() -> None:
    poison("first.onnx")
    poison("second.onnx")
    code, told = qnnbridge("clear", "--all")
    assert code == 0
    assert "first.onnx" in told
    assert "second.onnx" in told
    assert Quarantine().accounts() == []
    assert qnnbridge("clear", "--all") == (0, "No model was in quarantine.\n")


@pytest.mark.parametrize("arguments", [[], [""], ["abc", "--all"]])
def test_clearing_needs_an_id_or_all_and_not_both(arguments: list[str]) -> None:
    poison("bad.onnx")
    code, told = qnnbridge("clear", *arguments)
    assert code == 2
    assert "Say which model to clear." in told
    assert len(Quarantine().accounts()) == 1


def test_an_unknown_id_is_bad_input_that_names_the_known_ones() -> None:
    account_id = poison("bad.onnx")
    code, told = qnnbridge("clear", "zzz")
    assert code == 2
    assert account_id in told


def test_an_id_that_fits_several_models_clears_none() -> None:
    ids = [poison(f"{number}.onnx") for number in range(17)]  # sixteen digits: two of the ids begin alike
    digit = next(account_id[0] for account_id in ids if sum(other[0] == account_id[0] for other in ids) > 1)
    code, told = qnnbridge("clear", digit)
    assert code == 2
    assert "More than one model" in told
    assert len(Quarantine().accounts()) == 17


@needs.posix
def test_a_quarantine_that_cannot_be_written_is_a_failure() -> None:
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
