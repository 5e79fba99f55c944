"""Exit codes and error output of commands."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest
import typer
from tests import needs

from qnnbridge_os.files import TEMPORARY
from qnnbridge_protocol import errors
from qnnbridge_tools import reporting


def ended(error: BaseException, *, as_json: bool = False) -> int:
    with pytest.raises(typer.Exit) as caught, reporting.work(as_json=as_json):
        raise error
    return caught.value.exit_code


def test_an_error_is_reported_with_cause_evidence_and_fix_and_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = errors.ProviderUnavailable("No QNN.", cause="Missing library.", fix="Install it.", evidence=["line 1"])
    assert ended(error) == 1
    captured = capsys.readouterr()
    assert captured.err == "Error: No QNN.\n  Cause: Missing library.\n  Evidence: line 1\n  Fix: Install it.\n"
    assert captured.out == ""


def test_the_traceback_is_shown_when_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNBRIDGE_DEBUG", "1")
    ended(errors.Fail("x"))
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_with_json_the_error_is_a_document_on_stdout_too(capsys: pytest.CaptureFixture[str]) -> None:
    ended(errors.OptionError("Bad.", fix="Do."), as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["error"]["code"] == "option.Invalid"
    assert told["error"]["fix"] == "Do."


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.OptionError("x"), 2),
        (errors.NoSuchFile("x"), 2),
        (errors.InvalidProtobuf("x"), 2),
        (errors.InvalidArgument("x"), 2),
        (errors.HostCrashed("x"), 1),
        (errors.PlacementRefused("x"), 1),
        (errors.HostNotFound("x"), 1),
        (errors.HostNotFound("x", details={"source": "configuration file"}), 1),
        (errors.HostNotFound("x", details={"source": "argument"}), 2),
        (errors.RemoteMemoryError("x"), 1),
    ],
)
def test_bad_input_exits_with_2_and_failed_work_with_1(error: errors.BridgeError, code: int) -> None:
    assert ended(error) == code


def test_ctrl_c_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def test_a_full_disk_is_reported_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(OSError(errno.ENOSPC, "No space left on device", "out/y.npy")) == 1
    assert capsys.readouterr().err == (
        "Error: out/y.npy: No space left on device\n  Fix: Free some space, or choose a folder on another disk.\n"
    )


def test_a_folder_without_write_permission_is_named_and_not_a_temporary_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours = os.path.join("out", f"{TEMPORARY}12-ab.part")
    assert ended(OSError(errno.EACCES, "Permission denied", ours)) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "Error: No file can be written in out: Permission denied\n  Fix: Choose a file or a folder"
    )
    assert TEMPORARY not in said


@needs.linux
def test_a_full_disk_behind_stdout_is_reported_without_a_traceback_with_json_too() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "qnnbridge_tools", "explain", "127", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_handled_by_the_command_line_library() -> None:
    with pytest.raises(BrokenPipeError), reporting.work():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_name_that_windows_does_not_allow_is_an_error_about_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows has the same error number for this and for a closed pipe."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(typer.Exit), reporting.work():
        raise OSError(errno.EINVAL, "Invalid argument", "a?.html")
    assert capsys.readouterr().err == "Error: a?.html: Invalid argument\n"
    with pytest.raises(OSError, match="Invalid argument"), reporting.work():
        raise OSError(errno.EINVAL, "Invalid argument")


def test_an_internal_error_explains_how_to_report_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(ZeroDivisionError("division by zero")) == 1
    told = capsys.readouterr().err
    assert "Unexpected ZeroDivisionError: division by zero" in told
    assert "QNNBRIDGE_DEBUG=1" in told


def test_an_intended_exit_code_is_kept() -> None:
    assert ended(typer.Exit(7)) == 7
