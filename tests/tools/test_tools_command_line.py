"""The command itself: help, usage errors, terminals that cannot show everything, Ctrl+C."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from tests import needs
from tests.fakes.commands import COMMAND, in_a_process, qnnbridge
from tests.fakes.later import until

from qnnbridge_tools import __main__, cli, command_line
from qnnbridge_tools.commands import run
from qnnbridge_tools.examples import GUIDES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["demo"],
        ["run"],
        ["verify"],
        ["prepare"],
        ["profile"],
        ["explain"],
        ["crashes"],
        ["quarantine"],
        ["host"],
        ["top"],
    ],
)
def test_every_command_has_help(command: list[str]) -> None:
    result = qnnbridge(*command, "--help")
    assert result.returncode == 0
    assert "--help" in result.stdout
    for line in result.stdout.splitlines():
        assert line.isascii(), line


def test_help_shows_each_command_in_one_group_on_one_complete_line() -> None:
    lines = qnnbridge("--help").stdout.splitlines()
    shown = lines[lines.index("Start:") :]
    assert [line[:-1] for line in shown if line.endswith(":")] == list(cli.GROUPS)
    rows = [line.split(maxsplit=1) for line in shown if line.startswith("  ")]
    assert [name for name, _ in rows] == list(cli.COMMANDS), "a second line begins with another word"
    assert all(what.endswith(".") and not what.endswith("...") for _, what in rows)


@pytest.mark.parametrize("command", ["host", "cache", "crashes", "quarantine"])
def test_subcommands_are_on_complete_lines_too(command: str) -> None:
    shown = qnnbridge(command, "-h").stdout.partition("Commands:")[2]
    assert shown
    assert "..." not in shown


def commands() -> list[list[str]]:
    """Return all commands, including subcommands."""
    found = [[]]
    for name in cli.COMMANDS:
        below = getattr(cli._Commands(cli.COMMANDS)[name], "commands", {})
        found += [[name], *([name, one] for one in below)]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_fits_into_80_columns(command: list[str]) -> None:
    for line in qnnbridge(*command, "--help").stdout.splitlines():
        # A command of the examples is on one line, so that it can be copied.
        assert len(line) <= 80 or line.startswith("    qnnbridge "), line


def test_every_command_has_examples_and_names_a_page_that_exists() -> None:
    assert set(GUIDES) == set(cli.COMMANDS)
    for guide in GUIDES.values():
        assert (DOCS / guide.page).is_file(), guide.page
        assert len(guide.examples) == 3


@pytest.mark.parametrize("words", [example for guide in GUIDES.values() for example, _ in guide.examples])
def test_examples_can_be_typed_without_changes(words: str) -> None:
    """Every option and argument is accepted. cmd.exe supports double quotes only."""
    assert "'" not in words
    arguments = shlex.split(words)
    command: Any = typer.main.get_command(cli.app)
    name = "qnnbridge"
    while hasattr(command, "get_command") and arguments:
        name = arguments.pop(0)
        command = command.get_command(None, name)
    try:
        assert command.make_context(name, arguments).command is command
    except typer.Exit as ended:  # `fix --list` exits while it is parsed
        assert ended.exit_code == 0


@pytest.mark.parametrize("name", list(GUIDES))
def test_the_help_of_a_command_ends_with_its_examples(name: str) -> None:
    text = qnnbridge(name, "-h").stdout
    for example, what in GUIDES[name].examples:
        assert f"    # {what}\n    qnnbridge {example}\n" in text


@needs.posix
def test_a_shell_completes_commands() -> None:
    asked = {"_QNNBRIDGE_COMPLETE": "complete_bash", "COMP_WORDS": "qnnbridge ver", "COMP_CWORD": "1"}
    assert in_a_process(**asked).stdout.split() == ["versions", "verify"]


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "onnx", "onnxruntime", "qnnbridge", "msgpack", "psutil")
    code = (
        "import sys; from qnnbridge_tools.cli import main; sys.argv = ['qnnbridge', '--help']; main();"
        f"print('imported:', *sorted(set(sys.modules) & set({heavy!r})))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "imported:"


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["run"],
        ["run", "m.onnx", "--repeat", "0"],
        ["run", "m.onnx", "--repeat", "many"],
        ["run", "m.onnx", "--fallback", "maybe"],
        ["run", "m.onnx", "--provider", "gpu"],
        ["run", "m.onnx", "--seed", "-1"],
        ["explain"],
        ["demo", "--bogus"],
    ],
)
def test_wrong_usage_exits_with_2_and_an_error_on_stderr(arguments: list[str]) -> None:
    result = qnnbridge(*arguments)
    assert result.returncode == 2
    assert "Error" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "none.onnx"], "There is no model file none.onnx."),
        (["run", __file__, "--input", "x"], "not of the form NAME=FILE.npy"),
        (["run", __file__, "--dim", "x=0"], "with a size from 1 to 2147483647"),
        (["run", __file__, "--provider-option", "x"], "not of the form KEY=VALUE"),
        (["run", __file__, "--input", "x=none.npy"], "There is no file none.npy."),
    ],
)
def test_bad_input_is_refused_before_a_host_is_started(arguments: list[str], told: str) -> None:
    result = qnnbridge(*arguments, QNNBRIDGE_HOST_PYTHON="/no/such/python")
    assert result.returncode == 2, result.stderr
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_with_json_a_refused_command_still_prints_one_document() -> None:
    result = in_a_process("run", "none.onnx", "--json")
    assert result.returncode == 2
    assert json.loads(result.stdout)["error"]["code"] == "ort.NoSuchFile"


def test_a_name_that_the_terminal_cannot_show_is_escaped() -> None:
    result = in_a_process("run", "日本.onnx", PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    assert result.returncode == 2
    assert r"There is no model file \u65e5\u672c.onnx." in result.stderr


@needs.posix
def test_ctrl_c_exits_with_130(tmp_path: Path) -> None:
    model, pipe = tmp_path / "m.onnx", tmp_path / "x.npy"
    model.write_bytes(b"")
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [*COMMAND, "run", str(model), "--input", f"x={pipe}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def unblock() -> None:
        process.wait()
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))  # or a command that fails early would hang the test

    threading.Thread(target=unblock, daemon=True).start()
    with pipe.open("wb"):  # returns when the command has opened the other end, and is about to wait for the array
        # CPython does not notice a signal just before its read starts until bytes arrive.
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err == "Interrupted.\n"
    assert out == ""


PRINTING = [
    pytest.param(["--help"], id="help"),
    pytest.param(["explain", "127"], id="text"),
    pytest.param(["versions", "--json"], id="much JSON"),
    pytest.param(["explain", "127", "--json"], id="JSON"),
    pytest.param(["run", "/nowhere.onnx", "--random", "--json"], id="an error as JSON"),
    pytest.param(["doctor", "--explain", "127", "--json"], id="doctor"),
]


def printing_to(stdout: int, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *command], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60)


@pytest.mark.parametrize("command", PRINTING)
def test_a_closed_output_pipe_is_not_an_error(command: list[str]) -> None:
    """Behave as `qnnbridge ... | head -1`, which ends without a message."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        result = printing_to(write_end, command)
    finally:
        os.close(write_end)
    assert result.returncode
    assert "Error: " not in result.stderr or "nowhere" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr


def test_the_error_for_an_extra_argument_shows_a_command_that_works() -> None:
    result = qnnbridge("serve", "model.onnx")
    assert result.returncode == 2
    assert "unexpected extra argument" in result.stderr
    assert result.stderr.endswith("\n  Example: qnnbridge serve --model detector=model.onnx\n")


@needs.linux
@pytest.mark.parametrize("command", PRINTING)
def test_output_to_a_full_disk_is_reported_in_one_sentence(command: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        result = printing_to(full.fileno(), command)
    assert result.returncode
    assert result.stderr.startswith("Error: ")
    if "/nowhere.onnx" not in command:
        assert len(result.stderr.splitlines()) == 1
        assert "output cannot be written: No space left" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr


@pytest.mark.parametrize("module", ["typer", "json"])
def test_an_interrupt_during_the_import_of_commands_prints_no_traceback(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ended = in_a_process("versions", PYTHONPATH=paths)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.parametrize(("command", "expected"), [("explain", "1"), ("exec", "")])
def test_commands_disable_the_telemetry_of_onnxruntime_and_programs_keep_it(
    command: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")  # so that monkeypatch restores it
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    monkeypatch.setattr(sys, "argv", ["qnnbridge", command, "--help"])
    assert __main__.main() == 0
    assert os.environ.get("ORT_DISABLE_TELEMETRY", "") == expected
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "near"),
    [
        # The help of --http contains "HOST:PORT"; "host" looks like "port" and is something else.
        (["serve", "--port", "8000"], ["--http"]),
        (["run", "m.onnx", "--soc", "60"], ["--soc-model"]),
        (["run", "m.onnx", "--timout", "3"], ["--timeout"]),
        (["cache", "prune", "--days", "3"], ["--unused-days"]),
        (["run", "m.onnx", "--nothing-like-it"], []),
    ],
)
def test_an_unknown_option_suggests_the_options_that_fit(words: list[str], near: list[str]) -> None:
    done = qnnbridge(*words)
    assert done.returncode == 2
    for option in near:
        assert f"(Possible options: {option})" in " ".join(done.stderr.split())
    assert near or "Possible options" not in done.stderr


def test_the_options_of_a_command_are_found_in_the_annotations_of_its_function() -> None:
    parameters = inspect.signature(run).parameters.values()
    assert {"--dim", "--fallback", "--timeout", "--json"} <= {
        text for one in parameters for text in command_line.names_of(one)
    }


def test_a_file_that_is_not_a_snapshot_is_refused_with_the_way_to_write_one(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no snapshot\n", "utf-8")
    done = qnnbridge("doctor", "--from-snapshot", tmp_path / "text")
    assert done.returncode == 2
    assert "Cause: Expecting value" in done.stderr
    assert "Fix: Write a snapshot on the computer to diagnose: qnnbridge doctor --snapshot FILE" in done.stderr
