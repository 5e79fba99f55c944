"""`qnnbridge profile` with a real host and the simulator."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests import needs
from tests.fakes.commands import COMMAND, in_a_process, qnnbridge
from tests.fakes.models import model, saved, tensor

from qnnbridge_protocol.errors import BridgeError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

run = functools.partial(qnnbridge, "profile")
MODELS = Path(__file__).parents[1] / "models"
COMPILED = MODELS / "compiled" / "good.onnx"
PNET = [str(MODELS / "pnet.onnx"), "--dim", "N=1", "--dim", "M1=32", "--dim", "M2=24"]
FOLDER = "qnnbridge-profile-*"


def told(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def made(path: Path, nodes: list[Any], shape: list[int | str], output: list[int | str] | None = None) -> Path:
    return saved(model(nodes, [tensor("x", shape)], [tensor("y", output)], ir_version=9), path)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with two parts on QNN and a node between them that QNN lacks; one name is a trap for CSV and
    HTML.
    """
    node = onnx.helper.make_node
    return made(
        tmp_path_factory.mktemp("profile") / "parts.onnx",
        [
            node("Softmax", ["x"], ["a"], 'soft, "<b>\nmax'),
            node("Det", ["a"], ["b"], "det"),
            node("Relu", ["b"], ["c"], "relu"),
            node("Mul", ["c", "c"], ["y"], "square"),
        ],
        [1, 4, 8, 8],
        [1, 4],
    )


@dataclasses.dataclass(frozen=True)
class Profiled:
    document: dict[str, Any]
    page: str


@pytest.fixture(scope="module")
def profiled(parts: Path) -> Profiled:
    html = parts.with_name("profile.html")
    document = told(parts, "--runs", "4", "--html", html)
    return Profiled(document, html.read_text(encoding="utf-8"))


def test_every_part_has_times_of_onnxruntime_and_of_qnn(profiled: Profiled) -> None:
    first, second = profiled.document["partitions"]
    assert first["operators"] == ['soft, "<b>\nmax']
    assert second["operators"] == ["relu", "square"]
    for part in (first, second):
        for node, execute, accelerator in zip(
            part["seconds"]["values"],
            part["execute_seconds"]["values"],
            part["accelerator_seconds"]["values"],
            strict=True,
        ):
            assert node >= execute >= accelerator > 0
        assert len(part["seconds"]["values"]) == 4
        assert {"Number of HVX threads used", "Accelerator (execute) time (cycles)"} <= {
            figure["name"] for figure in part["figures"]
        }
    assert (first["bytes_in"], first["bytes_out"]) == (1024, 1024)
    assert (second["bytes_in"], second["bytes_out"]) == (16, 16)


def test_the_components_of_each_run_add_up_to_the_time_of_the_call(profiled: Profiled) -> None:
    whole = profiled.document["run_seconds"]["values"]
    components = profiled.document["components"]
    assert {"bridge", "cpu", "provider", "accelerator"} <= {one["key"] for one in components}
    for number, call in enumerate(whole):
        assert sum(one["seconds"]["values"][number] for one in components) == pytest.approx(call, abs=2e-6)


def test_the_phases_of_loading_add_up_to_the_time_of_the_call(profiled: Profiled) -> None:
    load = profiled.document["load"]
    names = [phase["name"] for phase in load["phases"]]
    assert [name for name in names if "compiles" in name] == ["QNN compiles part 1", "QNN compiles part 2"]
    assert sum(phase["seconds"] for phase in load["phases"]) == pytest.approx(load["create_seconds"])
    compiled = next(phase for phase in load["phases"] if phase["name"] == "QNN compiles part 1")
    assert "Graph Optimizations" in [part["name"] for part in compiled["parts"]]


def test_operators_have_the_names_in_the_model_and_the_types_of_qnn(profiled: Profiled) -> None:
    operators = profiled.document["operators"]
    assert {(one["name"], one["type"], one["partition"]) for one in operators if not one["is_transfer"]} == {
        ('soft, "<b>\nmax', "Softmax", "part 1"),
        ("relu", "Relu", "part 2"),
        ("square", "ElementWiseMultiply", "part 2"),
    }
    assert sum(one["share"] for one in operators) == pytest.approx(1.0)
    assert sum(one["is_transfer"] for one in operators) == 4


def test_nodes_on_the_cpu_are_listed_with_the_reason(profiled: Profiled) -> None:
    [node] = profiled.document["cpu_nodes"]
    assert (node["name"], node["operator"], node["provider"]) == ("det", "Det", "CPUExecutionProvider")
    assert any("QNN does not support" in note for note in profiled.document["notes"])


def test_the_report_notes_that_a_simulator_is_not_an_npu(profiled: Profiled) -> None:
    assert profiled.document["simulator"] is True
    assert any("do not apply to an NPU" in note for note in profiled.document["notes"])
    assert "do not apply to an NPU" in profiled.page


def test_the_page_shows_parts_operators_and_the_cpu(profiled: Profiled) -> None:
    assert "<b>" not in profiled.page
    assert "soft, &quot;&lt;b&gt;\\nmax" in profiled.page
    for words in ("Parts on QNN: 2", "det (Det)", "QNN compiles part 2", "square"):
        assert words in profiled.page
    assert profiled.page.count("<svg") == 6
    assert "<script" not in profiled.page


def test_the_text_output_has_tables_and_bars(parts: Path) -> None:
    result = in_a_process(
        "profile", parts, "--runs", "2", "--level", "basic", PYTHONIOENCODING="cp437", PYTHONUTF8="0"
    )
    assert result.returncode == 0, result.stderr
    for words in (
        "Profile of",
        "level basic, 2 runs",
        "QNN compiles part 1",
        "One run:",
        "bridge: transfer to the host and back",
        "Parts on QNN: 2",
        "relu, square",
        "Nodes on the CPU: 1",
        "host and QNN, part 2",
        "The level basic records no operator times",
        "do not apply to an NPU",
    ):
        assert words in result.stdout, words
    assert "Operators on QNN" not in result.stdout
    assert "Traceback" not in result.stderr


def test_a_compiled_model_is_profiled_without_mentioning_compilation(tmp_path: Path) -> None:
    shape = next(iter(onnx.load(str(COMPILED)).graph.input)).type.tensor_type.shape.dim
    arrays: dict[str, Any] = {}
    name = onnx.load(str(COMPILED)).graph.input[0].name
    arrays[name] = np.zeros([dim.dim_value for dim in shape], np.float32)
    np.savez(tmp_path / "in.npz", **arrays)
    document = told(COMPILED, "--runs", "2", "--input", tmp_path / "in.npz", "--soc-model", "60")
    assert document["compiled"] is True
    assert [one["source"] for one in document["inputs"]] == [f"{tmp_path / 'in.npz'}:{name}"]
    names = [phase["name"] for phase in document["load"]["phases"]]
    assert "QNN loads the context binary" in names
    assert not any("compiles" in name for name in names)
    [part] = document["partitions"]
    assert len(part["operators"]) > 5
    assert part["execute_seconds"]["first"] > 0
    assert (tmp_path / "in.npz").exists()


def test_a_real_model_with_fixed_dimensions_is_one_part() -> None:
    document = told(*PNET, "--runs", "2", "--level", "basic")
    assert document["placement"]["cpu_nodes"] == 0
    [part] = document["partitions"]
    assert len(part["operators"]) >= 10
    assert "QNN compiles part 1" in [phase["name"] for phase in document["load"]["phases"]]
    assert document["operators"] == []


def test_a_model_that_runs_only_on_the_cpu_is_profiled_with_a_note(tmp_path: Path) -> None:
    model = made(tmp_path / "det.onnx", [onnx.helper.make_node("Det", ["x"], ["y"], "det")], [2, 3, 3], [2])
    document = told(model, "--runs", "3", "--html", tmp_path / "det.html")
    assert document["partitions"] == document["operators"] == []
    assert [node["name"] for node in document["cpu_nodes"]] == ["det"]
    assert document["notes"][0].startswith("Nothing ran on QNN")
    assert "Nothing ran on QNN" in (tmp_path / "det.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.onnx"], "There is no model file none.onnx"),
        ([str(COMPILED), "--html", "."], "is a folder"),
        (
            [str(COMPILED), "--provider-option", "profiling_level=optrace"],
            "cannot be given, because this command sets it",
        ),
        ([str(COMPILED), "--input", "a.npz", "--input", "b.npz"], "two archives"),
        ([str(COMPILED), "--input", "none.npz"], "There is no file none.npz"),
        ([str(COMPILED), "--input", "nonsense"], "NAME=FILE.npy"),
        ([str(COMPILED), "--dim", "x"], "NAME=SIZE"),
        ([*PNET, "--dim", "Q=3"], 'no free dimension "Q"'),
        ([str(COMPILED), "--timeout", "0"], "is not above 0"),
        ([str(COMPILED), "--runs", "0"], "--runs"),
        ([str(COMPILED), "--level", "optrace"], "--level"),
    ],
)
def test_invalid_requests_are_refused_before_a_host_is_started(arguments: list[str], words: str) -> None:
    result = run(*arguments, QNNBRIDGE_HOST_PYTHON="/no/such/python")
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_is_not_a_model_is_an_error_with_an_explanation(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"<html>not found</html>")
    result = run(tmp_path / "m.onnx", "--json")
    assert result.returncode == 2, result.stderr
    assert json.loads(result.stdout)["error"]["message"]
    assert "Traceback" not in result.stderr


def test_runs_end_early_when_the_profile_would_become_too_large_to_read(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qnnbridge_models.profiling import recording

    monkeypatch.setattr(recording, "MAX_PROFILE_BYTES", 3 << 20)
    seen: list[int] = []

    def watch(stage: str, done: int, total: int) -> None:
        seen.append(done)
        if stage == "Running" and done == 2:
            monkeypatch.setattr(recording, "MAX_PROFILE_BYTES", 10)

    request = recording.ProfileRequest(parts, level="basic", runs=1000)
    with pytest.raises(BridgeError, match="The profile of QNN is too large"):
        recording.record(request, watch)
    assert seen[-1] == 2


@pytest.fixture
def endless(parts: Path, private_temporary_folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Interrupt the command in the middle of its runs; it must not leave files in the temporary folder."""
    process = subprocess.Popen(
        [*COMMAND, "profile", str(parts), "--runs", "1000000", "--level", "basic"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),
    )
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("Running"):
                break
        assert list(private_temporary_folder.glob(FOLDER))
        yield process
    assert not list(private_temporary_folder.glob(FOLDER))


@needs.posix
def test_ctrl_c_leaves_no_files(endless: subprocess.Popen[str]) -> None:
    endless.send_signal(signal.SIGINT)
    output, errors = endless.communicate(timeout=30)
    assert endless.returncode == 130
    assert output == ""
    assert "Interrupted." in errors


def test_a_host_that_crashes_during_profiling_is_an_error_with_an_explanation(
    endless: subprocess.Popen[str],
) -> None:
    for child in psutil.Process(endless.pid).children():
        child.kill()
    output, errors = endless.communicate(timeout=60)
    assert endless.returncode == 1
    assert output == ""
    assert "Error: " in errors
    assert "Traceback" not in errors
