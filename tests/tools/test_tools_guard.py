"""Every command that works on a model's graph or weights refuses a compiled model with the same message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests import needs
from tests.fakes.commands import qnnbridge

from qnnbridge_protocol.errors import CompiledModelRefused
from qnnbridge_protocol.shell import shell_word
from qnnbridge_tools.cli import app

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper
from tests.unit import epcontext_models as models

# Further arguments of each command.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "compile": ("-o", "OUT"),
    "optimize": ("-o", "OUT"),
    "quantize": ("-o", "OUT", "--random", "1"),
    "fix": ("-o", "OUT"),
    "analyze": (),
    "verify": (),
    "prepare": ("-o", "OUT"),
}

# Commands that also accept compiled models.
TAKE_COMPILED_MODELS = {"run", "inspect", "profile", "bench", "serve", "evaluate"}

# Message of a command for a model that consists of one Relu. Other commands treat it like any model.
NOTHING_TO_DO = {"quantize": "This model has no operator that can be quantised."}

# An IR version that onnxruntime has supported for years, whatever the installed onnx writes.
IR_VERSION = 10

# Commands that take a model, but do not work on its graph, or that take a folder with several.
LEAVE_THE_MODEL_ALONE = {"doctor", "report", "transcribe"}


def commands_with_a_model() -> list[str]:
    group: Any = typer.main.get_command(app)
    return [
        name
        for name, command in group.commands.items()
        if {"model", "models"} & {parameter.name for parameter in command.params}
    ]


GUARDED = [name for name in commands_with_a_model() if name in ARGUMENTS]


def called(command: str, model: Path, folder: Path) -> Any:
    arguments = [str(folder / "out.onnx") if word == "OUT" else word for word in ARGUMENTS[command]]
    result = qnnbridge(command, model, *arguments, "--json")
    return result, json.loads(result.stdout) if result.stdout.strip() else {}


def test_every_command_that_takes_a_model_is_listed_here() -> None:
    assert set(commands_with_a_model()) <= set(ARGUMENTS) | TAKE_COMPILED_MODELS | LEAVE_THE_MODEL_ALONE
    assert {"compile", "fix", "optimize", "quantize"} <= set(GUARDED)


@pytest.mark.parametrize("place", models.PLACES)
@pytest.mark.parametrize("command", GUARDED)
def test_a_compiled_model_is_refused(command: str, place: str, tmp_path: Path) -> None:
    model = models.save(models.PLACES[place](models.context_node("part_7")), tmp_path / "m.onnx")
    result, document = called(command, model, tmp_path)
    error = document["error"]
    assert error["code"] == CompiledModelRefused.code, result.output
    assert result.returncode == 2
    assert error["message"].startswith("m.onnx is a compiled model (EPContext) made by QNNExecutionProvider; ")
    assert f"qnnbridge {command} needs the original model" in error["message"]
    assert "inside of a context binary" in error["cause"]
    assert error["fix"] == (f"Run qnnbridge {command} on the original ONNX model before its compilation.")
    assert any("part_7" in line for line in error["evidence"])
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"], "nothing is left behind"


@pytest.mark.parametrize("command", GUARDED)
def test_a_model_that_qnn_compiled_is_refused(command: str, tmp_path: Path) -> None:
    _, document = called(command, models.real(tmp_path), tmp_path)
    assert document["error"]["code"] == CompiledModelRefused.code


@pytest.mark.parametrize("command", GUARDED)
def test_a_node_that_is_named_epcontext_is_an_ordinary_node(command: str, tmp_path: Path) -> None:
    named = models.model_of(helper.make_node("Relu", ["x"], ["y"], name="EPContext"))
    named.ir_version = IR_VERSION
    result, document = called(command, models.save(named, tmp_path / "m.onnx"), tmp_path)
    said = document.get("error") or {}
    assert said.get("message", "").startswith(NOTHING_TO_DO.get(command, "")), result.output
    assert bool(said) == (command in NOTHING_TO_DO), result.output


@pytest.mark.parametrize("command", GUARDED)
def test_an_epcontext_operator_of_another_domain_is_not_refused_as_compiled(command: str, tmp_path: Path) -> None:
    """The command may fail because ONNX Runtime does not know the foreign operator, but not because the model is
    compiled.
    """
    foreign = models.model_of(models.context_node(domain="someone.else"))
    foreign.ir_version = IR_VERSION
    foreign.opset_import.add(domain="someone.else", version=1)
    result, document = called(command, models.save(foreign, tmp_path / "m.onnx"), tmp_path)
    error = document.get("error")
    if error is not None:
        assert error["code"] != CompiledModelRefused.code, result.output
        assert "someone.else:EPContext" in f"{error['message']} {error['cause']}", result.output


IN_A_PROCESS = """
import json, re, sys
HIDDEN
from qnnbridge_tools.cli import main
sys.argv = ["qnnbridge", *json.loads(sys.argv[1])]
code = main()
told = lambda file, name: int(re.search(name + r":\\s*(\\d+)", open("/proc/self/" + file).read())[1])
print(json.dumps({"code": code, "read": told("io", "rchar"), "kilobytes": told("status", "VmHWM")}))
"""


def in_a_process(command: str, model: Path, out: Path, hidden: str = "") -> tuple[dict[str, int], str]:
    """Run a command; return bytes read and peak memory, and its output. hidden: a package that cannot be imported."""
    words = [command, str(model), *(str(out) if word == "OUT" else word for word in ARGUMENTS[command])]
    code = IN_A_PROCESS.replace("HIDDEN", f"sys.modules[{hidden!r}] = None" if hidden else "")
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(words)], capture_output=True, text=True, timeout=100, check=True
    )
    return json.loads(done.stdout), done.stderr


@needs.linux
@pytest.mark.parametrize("command", GUARDED)
def test_a_compiled_model_of_2_gb_is_refused_without_reading_it(command: str, tmp_path: Path) -> None:
    model = tmp_path / "huge.onnx"
    models.write_huge(model, 2_000_000_000, models.context_node())
    measured, said = in_a_process(command, model, tmp_path / "out.onnx")
    assert measured["code"] == 2
    assert f"qnnbridge {command} needs the original model" in said
    assert measured["read"] < 20_000_000, "that is the modules of Python, and not the model"
    assert measured["kilobytes"] < 100_000


@pytest.mark.parametrize("command", needs.some(name for name in GUARDED if name != "compile"))
def test_a_compiled_model_is_refused_without_onnxruntime_installed(command: str, tmp_path: Path) -> None:
    measured, said = in_a_process(command, models.real(tmp_path), tmp_path / "out.onnx", hidden="onnxruntime")
    assert measured["code"] == 2
    assert f"qnnbridge {command} needs the original model" in said


@pytest.mark.parametrize("command", [*GUARDED, "run", "profile"])
def test_the_error_for_a_bare_context_binary_names_the_command_that_makes_a_model_of_it(
    command: str, tmp_path: Path
) -> None:
    binary = tmp_path / "model.bin"
    binary.write_bytes((models.COMPILED / "a_qnn.bin").read_bytes())
    arguments = [str(tmp_path / "out.onnx") if word == "OUT" else word for word in ARGUMENTS.get(command, ())]
    result = qnnbridge(command, binary, *arguments, "--json")
    error = json.loads(result.stdout)["error"]
    assert "is a QNN context binary" in f"{error['message']} {error['cause']}"
    assert f"qnnbridge wrap {shell_word(binary)} -o model_ctx.onnx" in error["fix"]
    assert result.returncode == 2
