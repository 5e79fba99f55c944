"""Options that several commands take are declared in one place and equal everywhere; the test compares all
commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import model_work_models as models
import numpy as np
import pytest
import typer
from tests.fakes.commands import qnnbridge

pytest.importorskip("onnxruntime")

from qnnbridge_tools import arguments, options
from qnnbridge_tools.cli import app

RUN_A_MODEL = {"run", "profile", "verify", "prepare", "compile", "bench"}
TAKE_AN_ORIGINAL = {"run", "compile", "bench", "analyze", "fix", "optimize", "prepare", "profile", "verify"}
# The commands that can use each option. A new command must be entered here, or this test fails.
WHO_CAN_USE = {
    "--dim": TAKE_AN_ORIGINAL | {"quantize", "doctor", "serve", "exec"},
    "--shape": TAKE_AN_ORIGINAL,
    "--constant": TAKE_AN_ORIGINAL,
    "--input": RUN_A_MODEL,
    "--soc-model": {"run", "compile", "analyze", "inspect", "prepare", "profile", "verify", "quantize", "pull"},
    "--provider-option": {
        *("run", "compile", "analyze", "prepare", "profile", "verify", "quantize", "serve", "transcribe"),
    },
    "--html": {"analyze", "bench", "inspect", "profile", "quantize", "verify", "versions"},
    "--json": {
        *("demo", "doctor", "run", "compile", "bench", "explain", "inspect", "analyze", "fix", "optimize"),
        *(
            "quantize",
            "verify",
            "prepare",
            "profile",
            "versions",
            "setup",
            "setup-host",
            "top",
            "wrap",
            "transcribe",
            "pull",
        ),
    },
}
# Options with another meaning, and commands whose options are planned.
OTHER_MEANING = {("evaluate", "--input")}  # a folder of samples
ALSO_POSSIBLE = {"evaluate", "fix", "quantize", "sweep"}


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return {name: command for name, command in group.commands.items() if not hasattr(command, "commands")}


def declared(option: str) -> list[typer.models.OptionInfo]:
    """Return the declarations of an option in options.py: one, or one for a single value and one for several."""
    found = []
    for value in vars(options).values():
        for information in get_args(value)[1:]:
            # typer stores the first name in the field of the default.
            names = [getattr(information, "default", None), *(getattr(information, "param_decls", None) or ())]
            found += [information] if option in names else []
    return found


@pytest.mark.parametrize("option", WHO_CAN_USE)
def test_an_option_is_on_every_command_that_can_use_it_with_the_same_help(option: str) -> None:
    known = {(one.metavar, one.help) for one in declared(option)}
    assert 1 <= len(known) <= 2
    found = set()
    for name, command in commands().items():
        for parameter in command.params:
            if option in parameter.opts:
                found.add(name)
                if (name, option) in OTHER_MEANING:
                    continue
                if option != "--json":
                    assert (parameter.metavar, parameter.help) in known, f"{name} has its own {option}"
                else:
                    assert parameter.help, name
    missing = WHO_CAN_USE[option] - found
    assert not missing, f"{option} is missing on {missing}"
    assert found - WHO_CAN_USE[option] <= ALSO_POSSIBLE, (
        f"{option} is new on {found - WHO_CAN_USE[option]}: enter it"
    )


def test_every_command_was_considered() -> None:
    assert {"run", "compile", "analyze", "verify"} <= set(commands())


def test_the_formats_of_inputs_are_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=np.ones(2))
    files, archives = arguments.read_input_files(["x=a.npy", str(tmp_path / "all.npz"), "y=b.npz:k"])
    assert [(file.name, str(file.path), file.key) for file in files] == [("x", "a.npy", None), ("y", "b.npz", "k")]
    assert archives == [tmp_path / "all.npz"]
    assert arguments.input_paths(["x=a.npy", str(tmp_path / "all.npz")]) == [Path("a.npy"), tmp_path / "all.npz"]


def summed(folder: Path) -> Path:
    """Return x of a free size plus a number from an input."""
    node = models.helper.make_node
    made = models.model(
        [node("Add", ["x", "plus"], ["y"], name="add")],
        [models.value("x", ["n", 4]), models.value("plus", [])],
        [models.value("y", ["n", 4])],
    )
    return models.saved(made, folder / "m.onnx")


@pytest.mark.process
def test_run_accepts_shapes_constants_and_one_archive(tmp_path: Path) -> None:
    model = summed(tmp_path)
    np.savez(tmp_path / "in.npz", x=np.ones((2, 4), np.float32))
    sized = ["--shape", "x=2,4", "--constant", "plus=3", "--provider", "cpu", "--json"]
    for given in (["--input", tmp_path / "in.npz"], ["--inputs", tmp_path / "in.npz"]):
        done = qnnbridge("run", model, *given, *sized)
        assert done.returncode == 0, done.output
        told = json.loads(done.stdout)
        assert told["model"] == str(model), "not that of the copy"
        assert [one["name"] for one in told["inputs"]] == ["x"]
        assert (told["outputs"][0]["min"], told["outputs"][0]["max"]) == (4.0, 4.0)


@pytest.mark.simulator
def test_verify_accepts_single_files_shapes_and_constants(tmp_path: Path) -> None:
    model = summed(tmp_path)
    np.save(tmp_path / "x.npy", np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4))
    arguments_ = ["--input", f"x={tmp_path / 'x.npy'}", "--shape", "x=2,4", "--constant", "plus=3"]
    done = qnnbridge("verify", model, *arguments_, "--soc-model", "60", "--no-extreme", "--json")
    assert done.returncode == 0, done.output
    told = json.loads(done.stdout)
    assert told["model"] == str(model)
    assert told["rows"][0]["inputs"] == "given: files"
    assert told["given"][0]["state"] == "agrees"


@pytest.mark.simulator
def test_compile_accepts_shapes_and_constants_and_writes_to_the_folder_of_the_model(tmp_path: Path) -> None:
    model = summed(tmp_path)
    options_ = ["--shape", "x=2,4", "--constant", "plus=3", "--soc-model", "60", "--json"]
    done = qnnbridge("compile", model, *options_)
    assert done.returncode == 0, done.output
    assert (tmp_path / "m_ctx.onnx").is_file()


def sized_by_value(folder: Path) -> Path:
    """Return a model whose second input contains the size of the result."""
    node = models.helper.make_node
    made = models.model(
        [
            node("Sigmoid", ["x"], ["s"]),
            node("Concat", ["ones", "size"], ["full"], axis=0),
            node("Resize", ["s", "", "", "full"], ["y"], mode="linear"),
        ],
        [models.value("x", [1, 1, 8, 8]), models.value("size", [2], models.TensorProto.INT64)],
        [models.value("y", [1, 1, "height", "width"])],
        [models.constant("ones", np.ones(2, np.int64))],
    )
    return models.saved(made, folder / "m.onnx")


@pytest.mark.process
def test_run_fix_and_optimize_accept_several_numbers_as_a_constant(tmp_path: Path) -> None:
    model = sized_by_value(tmp_path)
    done = qnnbridge("run", model, "--constant", "size=12,20", "--provider", "cpu", "--random", "--json")
    assert done.returncode == 0, done.output
    told = json.loads(done.stdout)
    assert [one["name"] for one in told["inputs"]] == ["x"]
    assert told["outputs"][0]["shape"] == [1, 1, 12, 20]
    for command in ("fix", "optimize"):
        done = qnnbridge(command, model, "-o", tmp_path / f"{command}.onnx", "--constant", "size=12,20")
        assert done.returncode == 0, done.output
        done = qnnbridge(command, model, "-o", tmp_path / "wrong.onnx", "--constant", "size=12,20,3")
        assert done.returncode == 2
        assert "Give 2 numbers: --constant size=V,V" in done.output
        assert not (tmp_path / "wrong.onnx").exists()


@pytest.mark.simulator
def test_verify_compile_and_analyze_accept_several_numbers_as_a_constant(tmp_path: Path) -> None:
    model = sized_by_value(tmp_path)
    given = ["--constant", "size=12,20", "--soc-model", "60", "--json"]
    done = qnnbridge("verify", model, "--no-extreme", *given)
    assert done.returncode == 0, done.output
    assert json.loads(done.stdout)["verdict"] == "agrees"
    done = qnnbridge("compile", model, *given)
    assert done.returncode == 0, done.output
    done = qnnbridge("analyze", model, *given)
    assert done.returncode == 0, done.output
    assert json.loads(done.stdout)["advice"] == []


@pytest.mark.parametrize("command", ["analyze", "verify"])
def test_two_chips_are_refused_before_a_host_is_started(command: str, tmp_path: Path) -> None:
    """Sessions refuse two chips, too. Earlier one command used the first chip and another one the second."""
    model = models.saved(models.conv_net(), tmp_path / "m.onnx")
    given = [command, model, "--soc-model", "60", "--provider-option", "soc_model=88"]
    done = qnnbridge(*given)
    assert done.returncode != 0
    assert '"soc_model" is given two values' in done.output


def test_optimize_never_overwrites_its_model(tmp_path: Path) -> None:
    model = summed(tmp_path)
    done = qnnbridge("optimize", model, "-o", model, "--overwrite", "--shape", "x=2,4")
    assert done.returncode == 2
    assert "OUT is the same file as MODEL" in done.output


@pytest.mark.simulator
def test_run_uses_the_cpu_if_qnn_fails_and_that_is_allowed_and_reports_it(tmp_path: Path) -> None:
    import verify_models

    model = models.saved(verify_models.zero_size(), tmp_path / "m.onnx")  # crashes the host at every attempt
    command = ["run", str(model), "--random", "--soc-model", "60", "--json"]
    refused = qnnbridge(*command)
    assert refused.returncode == 1
    moved = qnnbridge(*command, "--fallback", "cpu")
    assert moved.returncode == 0, moved.output
    told = json.loads(moved.stdout)
    assert told["placement"]["qnn_nodes"] == 0
    assert told["moved_because"]
    text = qnnbridge(*command[:-1], "--fallback", "cpu").stdout
    assert "to the CPU, as --fallback cpu allows, because QNN failed: " in text
