"""`qnnbridge host service`: the files for systemd and Task Scheduler, checked by systemd itself where it is
installed."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tests import needs
from tests.fakes.commands import qnnbridge

from qnnbridge_tools.host import service
from qnnbridge_tools.host.service import ServiceCommand, this_computer

NAMESPACE = {"t": service.NAMESPACE}
ODD = ServiceCommand(
    "/opt/my python/bin/python3",
    ("-m", "qnnbridge_tools", "host", "run", "--python", '/opt/50% of $HOME/"q"\\x'),
    {"QNNBRIDGE_STATE_DIR": "/var/tmp/50% of it", "QNNBRIDGE_CACHE_MAX_BYTES": "20G"},
    "DESKTOP\\Jürgen & Söhne",
)


def run_command(*arguments: str) -> tuple[int, str, str]:
    result = qnnbridge("host", "service", *arguments)
    return result.returncode, result.stdout, result.stderr


def sections(text: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names have capitals
    parser.read_string(text)
    return parser


def unescaped(words: str) -> list[str]:
    """Parse a command line as systemd does: quotes and backslashes as in a shell, %% and $$ for single ones."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(words)]


def of_the_task(text: str | bytes) -> dict[str, str]:
    """Return every leaf by its name. The parser determines the encoding from the declaration and the byte order
    mark.
    """
    return {leaf.tag.partition("}")[2]: leaf.text or "" for leaf in ET.fromstring(text).iter() if not len(leaf)}


# --- systemd ---


def test_the_unit_runs_this_python_in_the_foreground() -> None:
    code, text, _ = run_command("--systemd", "--idle-unload", "60", "--max-bytes", "1G")
    assert code == 0
    unit = sections(text)
    assert unescaped(unit["Service"]["ExecStart"]) == [
        *(sys.executable, "-m", "qnnbridge_tools", "host", "run"),
        *("--idle-unload", "60", "--max-bytes", str(1 << 30)),
    ]
    assert unit["Install"]["WantedBy"] == "default.target"


def test_the_unit_restarts_the_daemon_but_not_if_another_one_runs() -> None:
    from qnnbridge_daemon.main import EXIT_RUNNING

    unit = sections(run_command("--systemd")[1])["Service"]
    assert unit["Restart"] == "on-failure"
    assert unit["RestartPreventExitStatus"] == str(EXIT_RUNNING)
    assert unit["KillMode"] == "mixed"
    assert unit["WorkingDirectory"] == "/"  # a random.py in the home folder would shadow Python's module


@needs.linux
def test_systemd_finds_no_error_in_the_unit(tmp_path: Path) -> None:
    """Use every kind of character that has a meaning in a unit. Without systemd, only the text is checked."""
    program = tmp_path / "my python"
    program.symlink_to(sys.executable)
    odd = ServiceCommand(str(program), ODD.arguments, ODD.environment, "")
    text = service.unit_text(odd, 4)
    assert unescaped(sections(text)["Service"]["ExecStart"]) == [str(program), *ODD.arguments]
    path = tmp_path / service.UNIT_NAME
    path.write_text(text)
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        done = subprocess.run(
            [analyze, "verify", "--user", str(path)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_contains_the_variables_that_decide_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_RUNTIME_DIR", "/run/my folder")
    monkeypatch.setenv("QNNBRIDGE_DEBUG", "1")
    text = run_command("--systemd")[1]
    assert 'Environment="QNNBRIDGE_RUNTIME_DIR=/run/my folder"' in text.splitlines()
    assert "QNNBRIDGE_DEBUG" not in text


def test_relative_paths_are_absolute_in_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A service starts in another folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", "state")
    monkeypatch.setenv("QNNBRIDGE_HOST_PYTHON", os.path.join("host", "python"))
    monkeypatch.setenv("QNNBRIDGE_ENGINE", "folder")
    monkeypatch.setenv("QNNBRIDGE_EP_PATH", "provider")
    code, text, _ = run_command("--systemd", "--python", os.path.join("venv", "python"))
    assert code == 0
    unit = sections(text)["Service"]
    assert unescaped(unit["ExecStart"])[-1] == str(tmp_path / "venv" / "python")
    carried = {line.removeprefix("Environment=").strip('"') for line in text.splitlines()}
    assert f"QNNBRIDGE_STATE_DIR={tmp_path / 'state'}" in carried
    assert f"QNNBRIDGE_HOST_PYTHON={tmp_path / 'host' / 'python'}" in carried
    assert {"QNNBRIDGE_ENGINE=folder", f"QNNBRIDGE_EP_PATH={tmp_path / 'provider'}"} <= carried


# --- Task Scheduler ---


def test_the_task_is_valid_xml_with_the_requested_settings() -> None:
    told = of_the_task(service.task_text(ODD))
    assert told["Command"] == ODD.program
    assert told["Arguments"].startswith("-m qnnbridge_tools host run --python ")
    assert told["UserId"] == ODD.user
    assert (told["ExecutionTimeLimit"], told["MultipleInstancesPolicy"]) == ("PT0S", "IgnoreNew")
    assert (told["StopIfGoingOnBatteries"], told["LogonType"]) == ("false", "InteractiveToken")


def test_the_task_is_restarted_within_the_limits_of_its_schema() -> None:
    root = ET.fromstring(service.task_text(ODD))
    again = root.find("t:Settings/t:RestartOnFailure", NAMESPACE)
    assert again is not None
    count, interval = again.findtext("t:Count", "", NAMESPACE), again.findtext("t:Interval", "", NAMESPACE)
    assert 1 <= int(count) <= 255
    assert interval == "PT1M"


def test_the_printed_task_is_valid_in_every_encoding_of_a_shell() -> None:
    text = service.task_text(ODD)
    assert text.isascii()
    for data in (text.encode("cp1252"), text.encode("utf-8-sig"), text.encode("utf-16")):
        assert of_the_task(data)["UserId"] == ODD.user


def test_the_file_is_utf_16_with_a_byte_order_mark_as_task_scheduler_requires(tmp_path: Path) -> None:
    path = tmp_path / "task.xml"
    code, out, told = run_command("--task-scheduler", "--output", str(path))
    assert (code, out) == (0, "")
    data = path.read_bytes()
    assert data.startswith((b"\xff\xfe", b"\xfe\xff"))
    assert 'encoding="UTF-16"' in data.decode("utf-16")
    assert of_the_task(data)["Arguments"] == "-m qnnbridge_tools host run"
    assert str(path) in told
    assert "UTF-16" in told


def test_on_windows_the_interpreter_without_a_console_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python.exe"
    python.write_bytes(b"")
    monkeypatch.setattr("qnnbridge_tools.host.service.ON_WINDOWS", True)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("USERDOMAIN", "DESKTOP")
    monkeypatch.setenv("USERNAME", "maria")
    assert this_computer((), windows=True).program == str(python)
    python.with_name("pythonw.exe").write_bytes(b"")
    made = this_computer(("--slots", "2"), windows=True)
    assert (made.program, made.user) == (str(tmp_path / "pythonw.exe"), "DESKTOP\\maria")
    assert made.arguments == ("-m", "qnnbridge_tools", "host", "run", "--slots", "2")


def test_variables_that_a_task_would_not_get_are_named() -> None:
    note = service.variables_note(ODD)
    assert 'setx QNNBRIDGE_STATE_DIR "/var/tmp/50% of it"' in note
    assert service.variables_note(ServiceCommand("", (), {}, "")) == ""


# --- the command ---


@needs.linux
def test_by_default_the_file_is_for_this_system_and_stdout_contains_nothing_else() -> None:
    code, text, told = run_command()
    assert code == 0
    assert text == run_command("--systemd")[1]
    assert "systemctl --user enable --now qnnbridge.service" in told
    assert "systemctl" not in text


@needs.linux
def test_a_task_generated_on_another_system_names_what_to_fill_in() -> None:
    _, text, told = run_command("--task-scheduler")
    assert of_the_task(text)["Command"] == r"C:\path\to\pythonw.exe"
    assert "replace the placeholders by your interpreter and user" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--systemd", "--task-scheduler"], "different systems"),
        (["--max-bytes", "much"], '--max-bytes "much" is not a size'),
        (["--recycle-bytes", "0"], '--recycle-bytes "0" is not a size'),
        (["--output", "/"], "is a folder"),
        (["--python", "/a\udcff/python"], "read UTF-8 text without control characters"),
        (["--python", "/a\nb/python"], "read UTF-8 text without control characters"),
    ],
)
def test_invalid_options_are_bad_input(arguments: list[str], words: str) -> None:
    code, text, told = run_command(*arguments)
    assert (code, text) == (2, "")
    assert words in told
