"""The doctor on installations where little or nothing works, and with wrong arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import doctor, environment, own_copy, python_of

BARE = ("numpy", "msgpack", "psutil", "platformdirs", "typer", "rich", "filelock", "onnxruntime", "onnxruntime_qnn")


def codes(report: dict[str, Any]) -> list[str]:
    return [one["code"] for one in report["findings"]]


def said(*arguments: str, python: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [python or sys.executable, "-m", "qnnbridge_tools", *arguments]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False
    )


def test_an_application_of_python_3_10_without_a_host_is_told_what_to_install(python310: Path) -> None:
    report = doctor(python=str(python310))
    assert codes(report) == ["host.none"]
    found = report["findings"][0]
    assert any("Python 3.10" in seen for seen in found["seen"])
    (command,) = found["commands"]
    # --python: otherwise the result depends on the PATH of this machine
    assert command.partition(" --python ")[0] == "qnnbridge setup"
    assert any(one["text"] == "not made: there is no host to start" for one in report["healthy"])


def test_without_any_library_doctor_still_reports_what_is_missing(tmp_path: Path) -> None:
    python = python_of(environment(tmp_path / "env", dict.fromkeys(BARE)))
    report = doctor(python=python)
    assert codes(report) == ["host.packages-missing", "application.packages-missing"]
    assert python in report["findings"][0]["fix"]
    assert "this interpreter lacks numpy, msgpack" in report["findings"][1]["title"]
    other = said("demo", python=python)
    assert other.returncode == 1
    assert "is incomplete: No module named" in other.stderr
    assert "doctor" in other.stderr
    assert "Traceback" not in other.stderr


def test_an_installation_that_was_interrupted_is_found(tmp_path: Path) -> None:
    site = environment(tmp_path / "env", {})
    for entry in own_copy(site, "onnxruntime").iterdir():
        if entry.name != "capi":
            entry.unlink()
    report = doctor("--quick", "--host-python", python_of(site))
    assert codes(report)[0] == "packages.half-installed"
    assert "onnxruntime" in report["findings"][0]["title"]
    assert "--force-reinstall --no-deps onnxruntime==" in report["findings"][0]["fix"]


def test_an_incomplete_numpy_is_found_on_both_sides(tmp_path: Path) -> None:
    site = environment(tmp_path / "env", {})
    numpy = own_copy(site, "numpy")
    for entry in numpy.iterdir():
        if entry.name != "__init__.py":
            entry.unlink()
    report = doctor("--quick", python=python_of(site))
    assert codes(report) == ["packages.half-installed"]
    assert "numpy" in report["findings"][0]["title"]


@pytest.mark.parametrize(
    ("python", "code", "word"),
    [
        ("{}/absent/python", "host.file-missing", "is not there"),
        ("{}", "host.file-missing", "it is a folder"),
        ("no-such-program", "host.file-missing", "on the PATH"),
        ("{}/text", "host.does-not-start", "does not start"),
        ("/bin/true", "host.does-not-start", "is not a Python interpreter"),
    ],
)
def test_a_file_that_is_not_an_interpreter_is_reported_as_such(
    python: str, code: str, word: str, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("hello")
    report = doctor("--quick", "--host-python", python.format(tmp_path))
    assert codes(report) == [code]
    found = report["findings"][0]
    assert word in found["title"] + " ".join(found["seen"])
    assert report["exit_code"] == 2


def test_a_missing_or_invalid_model_file_is_reported(tmp_path: Path) -> None:
    text = tmp_path / "net.onnx"
    text.write_text("<html>")
    assert codes(doctor("--quick", "--model", tmp_path / "absent.onnx")) == ["model.missing"]
    assert codes(doctor("--quick", "--model", text)) == ["model.unreadable"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b'{"kind": "qnnbridge doctor snapshot"}'])
def test_a_damaged_snapshot_is_refused_with_an_explanation(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_bytes(content)
    done = said("doctor", "--from-snapshot", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert "snapshot.json" in done.stderr
    assert "Traceback" not in done.stderr
    as_json = said("doctor", "--json", "--from-snapshot", str(path))
    assert "snapshot.json" in json.loads(as_json.stdout)["error"]["message"]


def test_a_snapshot_that_cannot_be_written_is_refused_before_the_diagnosis(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = said("doctor", "--quick", "--snapshot", str(tmp_path / "file" / "x.json"))
    assert done.stdout == ""
    assert f"Cause: {tmp_path / 'file'} is a file." in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize(
    "arguments", [["--timeout", "0"], ["--timeout", "soon"], ["--bogus"], ["--dim", "N"], ["--host-python"]]
)
def test_a_wrong_command_line_is_refused_before_anything_is_started(arguments: list[str]) -> None:
    done = said("doctor", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_fix_asks_no_question_without_a_terminal(tmp_path: Path) -> None:
    done = said("doctor", "--quick", "--fix", "--host-python", str(tmp_path / "absent"))
    assert "not fixed by --fix (host.file-missing): follow the fix in the report" in done.stdout


def test_both_command_lines_print_the_same_report() -> None:
    """Compare the subcommand with the command that needs only the standard library."""
    program = "import sys; from qnnbridge_tools.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "doctor", "--quick", "--json"],
        capture_output=True,
        check=False,
        timeout=100,
    )
    told, other = json.loads(done.stdout), doctor("--quick")
    assert told.pop("seconds") > 0
    del other["seconds"]
    assert told == other
    assert done.returncode == told["exit_code"]
