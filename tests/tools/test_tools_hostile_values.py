"""Values that an impatient user gives to any command: numbers out of range, missing files, unwritable outputs.

The tests visit all options of all commands. A new command must be entered in `ARGUMENTS`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import model_work_models as models
import numpy as np
import pytest
import typer
from tests import needs
from tests.fakes.commands import COMMAND, qnnbridge
from tests.speech import tiny_whisper
from tests.unit.epcontext_models import COMPILED

pytest.importorskip("onnxruntime")

from qnnbridge_tools.cli import app

NO_HOST = {"QNNBRIDGE_HOST_PYTHON": "/no/such/python"}
# Valid arguments of the commands that read or write files.
ARGUMENTS = {
    "run": ["MODEL", "--random"],
    "bench": ["--model", "MODEL"],
    "transcribe": ["WAV", "--model", "WHISPER"],
    "chat": ["FOLDER"],
    "inspect": ["MODEL"],
    "analyze": ["MODEL"],
    "fix": ["MODEL", "-o", "out.onnx"],
    "optimize": ["MODEL", "-o", "out.onnx"],
    "quantize": ["MODEL", "-o", "out.onnx", "--calibration", "FOLDER"],
    "compile": ["MODEL"],
    "wrap": ["BINARY", "-o", "out.onnx"],
    "verify": ["MODEL"],
    "evaluate": ["MODEL", "--input", "FOLDER"],
    "prepare": ["MODEL", "-o", "out"],
    "profile": ["MODEL"],
    "serve": ["--model", "a=MODEL", "--host", "private", "--http", "127.0.0.1:0"],
    "report": ["--quick"],
    "doctor": ["--quick"],
    "versions": [],
    "host service": [],
    "pull": ["a/b", "--offline"],
    "setup": ["--dry-run"],
    "setup-host": ["--dry-run"],
}
OUTPUTS = ("--output", "--html", "--snapshot")
# A missing folder of a model or an environment is found by the host, or is created.
NOT_CHECKED = {("chat", "FOLDER"), ("bench", "--llm"), ("setup", "--dir"), ("setup-host", "--dir")}


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, below in getattr(command, "commands", {}).items():
        yield from walk(below, (*path, name))
    if not hasattr(command, "commands"):
        yield from ((" ".join(path), parameter) for parameter in command.params)


PARAMETERS = list(walk(typer.main.get_command(app)))
OPTIONS = [(command, one) for command, one in PARAMETERS if one.param_type_name == "option"]


def numbers() -> list[tuple[str, Any]]:
    # The names of the types depend on the version of typer.
    return [(command, one) for command, one in OPTIONS if one.type.name.split()[0] in ("int", "integer", "float")]


def named(found: list[tuple[str, Any]]) -> list[Any]:
    return [pytest.param(command, one, id=f"{command} {one.opts[0]}") for command, one in found]


@pytest.mark.parametrize(("command", "option"), named(numbers()))
def test_a_number_out_of_range_is_refused_with_the_range(command: str, option: Any) -> None:
    values = ["nan", "inf", "-inf", "1e30", "-99999999999999999999", "9" * 5000, "", "abc", "\u00b2"]
    for value in values:
        done = qnnbridge(*command.split(), option.opts[-1], value)
        assert done.returncode == 2
        said = " ".join(done.stderr.split())
        assert any(name in said for name in option.opts), said
        assert "number from " in said, said
        assert len(said) < 400


def test_numbers_were_found() -> None:
    found = {(command, one.opts[0]) for command, one in numbers()}
    assert {("run", "--timeout"), ("compile", "--htp-arch"), ("serve", "--drain"), ("top", "--interval")} <= found
    assert len(found) > 60


@pytest.mark.parametrize(
    ("command", "option"), named([(command, one) for command, one in OPTIONS if one.metavar == "SIZE"])
)
def test_a_size_in_bytes_is_refused_by_the_name_of_its_option(command: str, option: Any, tmp_path: Path) -> None:
    for value in ("9" * 5000, "-1", "nan", "1e3", "", "5X"):
        done = qnnbridge(*command.split(), *given(command, tmp_path), option.opts[-1], value)
        assert done.returncode == 2
        assert f'{option.opts[-1]} "' in done.stderr
        assert "is not a size" in done.stderr


SIZED = ("--dim", "--shape", "--bucket", "--soc-model", "--chip")


@pytest.mark.parametrize(
    ("command", "option"),
    named(
        [
            (command, one)
            for command, one in OPTIONS
            if one.opts[0] in SIZED and command not in ("doctor", "exec", "setup", "setup-host", "pull")
        ]
    ),
)
@pytest.mark.parametrize("value", ["9" * 5000, "99999999999999999999"], ids=["long", "large"])
def test_a_size_of_a_dimension_out_of_range_is_refused(
    command: str, option: Any, value: str, tmp_path: Path
) -> None:
    form = {"--bucket": "a:n=" if command == "serve" else "n=", "--dim": "n=", "--shape": "x="}
    text = form.get(option.opts[0], "") + value
    done = qnnbridge(*command.split(), *given(command, tmp_path), option.opts[0], text, **NO_HOST)
    if option.opts[0] in ("--soc-model", "--chip"):  # the host knows its chips
        assert "Unexpected" not in done.stderr
        return
    assert done.returncode == 2, done.stderr
    assert option.opts[0] in done.stderr


def given(command: str, folder: Path) -> list[str]:
    """Return the arguments of a command, and create their files."""
    model = models.saved(models.conv_net(), folder / "detector.onnx")
    (folder / "samples").mkdir(exist_ok=True)
    np.savez(folder / "samples" / "a.npz", x=np.ones((1, 3, 16, 16), np.float32))
    tiny_whisper.write_wav(folder / "speech.wav", tiny_whisper.sound(1, 0.1))
    binary = folder / "binary.bin"
    binary.write_bytes((COMPILED / "a_qnn.bin").read_bytes())
    texts = {"MODEL": model, "FOLDER": folder / "samples", "WAV": folder / "speech.wav", "BINARY": binary}
    texts["WHISPER"] = folder / "whisper"
    if command == "transcribe" and not texts["WHISPER"].exists():
        tiny_whisper.write_folder(texts["WHISPER"], "separate")
    found = []
    for word in ARGUMENTS.get(command, []):
        for name, path in texts.items():
            word = word.replace(name, str(path))
        found.append(str(folder / word) if word in ("out", "out.onnx") else word)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")
    }


WRITING = [
    (command, one)
    for command, one in OPTIONS
    if one.opts[0] in OUTPUTS and command not in ("pull",)  # pull finds its model first
]


def test_every_command_that_writes_is_listed_here() -> None:
    assert {command for command, _ in WRITING} <= set(ARGUMENTS)
    assert {("run", "--output"), ("verify", "--html"), ("prepare", "--output"), ("doctor", "--snapshot")} <= {
        (command, one.opts[0]) for command, one in WRITING
    }


@pytest.mark.parametrize(("command", "option"), named(WRITING))
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    command: str, option: Any, tmp_path: Path
) -> None:
    words = given(command, tmp_path)
    (tmp_path / "file").write_text("keep me")
    before = contents(tmp_path)
    if "-o" in option.opts and "-o" in words:
        at = words.index("-o")
        del words[at : at + 2]
    targets = [tmp_path / "file" / "out.onnx", tmp_path / ("n" * 300) / "out.onnx"]
    for target in targets:
        done = qnnbridge(*command.split(), *words, option.opts[0], target, **NO_HOST)
        assert done.returncode == 2, done.stderr
        assert "cannot be written" in done.stderr
        assert "Cause: " in done.stderr
        assert contents(tmp_path) == before


def reading() -> list[tuple[str, Any]]:
    """Return the arguments and options of a file or a folder that must exist."""
    metavars = ("FILE", "MODEL", "FOLDER", "NAME=PATH", "NAME=FOLDER", "FILE.py:FUNC", "PATH", "BINARY", "Q.onnx")
    more = ("FILE.toml", "MODEL...", "FILE...", "DIR")
    return [
        (command, one)
        for command, one in PARAMETERS
        if one.metavar in (*metavars, *more)
        and one.opts[0] not in (*OUTPUTS, "--from-snapshot", "--backend-path")
        and (command, one.opts[0] if one.param_type_name == "option" else one.metavar) not in NOT_CHECKED
        # Its survey reports what is missing.
        and command not in ("doctor", "setup", "setup-host")
    ]


@pytest.mark.parametrize(("command", "parameter"), named(reading()))
def test_a_missing_file_is_explained_with_the_most_similar_name(
    command: str, parameter: Any, tmp_path: Path
) -> None:
    words = given(command, tmp_path)
    (tmp_path / "precious.txt").write_text("x")
    forms = {"NAME=PATH": "a={}", "NAME=FOLDER": "a={}", "FILE.py:FUNC": "{}:f"}
    form = (
        "x={}" if parameter.opts[0] == "--input" and command != "evaluate" else forms.get(parameter.metavar, "{}")
    )
    for name, cause in (
        ("precius.txt", "does not contain it"),
        ("precious.txt/below", "is not a folder"),
        ("none/below", "does not exist"),
    ):
        value = form.format(tmp_path / name)
        with_value = (
            [*words, parameter.opts[0], value] if parameter.param_type_name == "option" else [value, *words[1:]]
        )
        if command == "prepare" and parameter.opts[0] == "--calibration":
            with_value.append("--quantize")
        done = qnnbridge(*command.split(), *with_value, **NO_HOST)
        assert done.returncode == 2, done.output
        assert cause in done.stderr, done.stderr
        assert "precious" not in name or f'Did you mean "{tmp_path / "precious.txt"}' in done.stderr or "/" in name


ENDS = """
import signal, tempfile
from qnnbridge_tools.signals import ended_by_signals
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` makes the whole test run ignore this signal
with ended_by_signals(), tempfile.TemporaryDirectory() as folder:
    print(folder, flush=True)
    signal.pause()
"""


@needs.posix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_a_command_leaves_no_temporary_folder(name: str) -> None:
    number = getattr(signal, name)
    with subprocess.Popen([sys.executable, "-c", ENDS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        try:
            assert folder.is_dir()
            process.send_signal(number)
            assert process.wait(30) == 128 + number
        finally:
            process.kill()
    assert not folder.exists()


IGNORES = """
import os, signal
from qnnbridge_tools.signals import ended_by_signals
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with ended_by_signals():
    os.kill(os.getpid(), signal.SIGHUP)
"""


@needs.posix
def test_a_command_that_nohup_started_outlives_its_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", IGNORES], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs.posix
def test_a_command_ends_at_sigterm_without_a_stack_trace(tmp_path: Path) -> None:
    pipe = tmp_path / "in.npy"
    os.mkfifo(pipe)
    model = models.saved(models.conv_net(), tmp_path / "m.onnx")
    with subprocess.Popen(
        [*COMMAND, "run", str(model), "--input", f"x={pipe}"], stderr=subprocess.PIPE, text=True
    ) as process:
        with pipe.open("wb"):  # returns when the command reads its input
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert said == ""
