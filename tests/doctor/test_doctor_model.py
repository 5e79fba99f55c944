"""``--model``: the doctor's findings about real model files, on computers that can and cannot run them."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from machines import SimulatedMachine, add_python, add_quarantine, install_genai, linux, make_host, snapdragon
from tests.genai.tiny_decoders import write_model

from qnnbridge_tools.arguments import read_dimensions
from qnnbridge_tools.doctor.examine import SurveyOptions, diagnose, survey
from qnnbridge_tools.doctor.facts import ExaminedModel, ProbeResult
from qnnbridge_tools.doctor.findings import Report

MODELS = Path(__file__).parents[1] / "models"
X2_ELITE = "Snapdragon(R) X2 Elite - X2E80100 - Qualcomm(R) Oryon(TM) CPU"


def simulator(qnn: str = "2.7.0") -> SimulatedMachine:
    machine = linux()
    make_host(add_python(machine, "/opt/python", "3.11.7", "x86_64", running=True), qnn)
    return machine


def examined(machine: SimulatedMachine, model: Path, probe: ProbeResult | None = None) -> Report:
    """Return the report about a model. probe: result of the model's own probe; the general probe succeeds."""
    machine.put(str(model))
    well = ProbeResult(simulator=machine.machine == "x86_64", qnn_nodes=2, difference=0.0)

    def answer(order: Any) -> ProbeResult:
        machine.probed.append(order)
        return (probe or well) if order.model else well

    machine.probe = answer  # type: ignore[method-assign]
    return diagnose(survey(machine, SurveyOptions(model=str(model))))


def codes(report: Report) -> list[str]:
    return [one.code for one in report.findings]


def test_a_model_that_runs_gets_a_line_and_no_finding() -> None:
    report = examined(simulator(), MODELS / "f.onnx", ProbeResult(simulator=True, qnn_nodes=5))
    assert codes(report) == []
    line = next(one.text for one in report.healthy if one.check == "model")
    assert "f.onnx" in line
    assert "5 nodes on QNN, 0 on the CPU" in line


def test_free_dimensions_are_named_with_the_command_that_fixes_them() -> None:
    failed = ProbeResult(failed="create", error="PlacementRefused", message="13 nodes on the CPU", cpu_nodes=13)
    report = examined(simulator(), MODELS / "pnet.onnx", failed)
    assert codes(report) == ["model.dynamic-shape"]
    assert "input_1: N, M1, M2" in report.findings[0].seen
    assert report.findings[0].remedy.commands[0].endswith(" --dim N=SIZE --dim M1=SIZE --dim M2=SIZE")
    assert report.verdict.startswith("This model cannot be used on QNN without changes, because ")
    assert report.exit_code == 2


def test_a_free_dimension_without_a_name_is_given_by_input_and_axis(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, ["batch size", 8, None])],
        [helper.make_tensor_value_info("y", kind, ["batch size", 8, None])],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    report = examined(simulator(), path, ProbeResult(failed="create", error="PlacementRefused"))
    (line,) = report.findings[0].remedy.commands
    assert line.endswith(' --dim "batch size=SIZE" --dim x:2=SIZE')
    dimensions = read_dimensions(text.replace("SIZE", "2") for text in shlex.split(line)[-3::2])
    assert dimensions.size_of("x", 0, "batch size") == dimensions.size_of("x", 2, None) == 2


def test_an_older_snapshot_names_all_free_dimensions_too() -> None:
    facts = survey(simulator(), SurveyOptions())
    model = ExaminedModel("net.onnx", dynamic=("x: N, M", "z: N"))
    (found,) = diagnose(dataclasses.replace(facts, model=model)).findings
    assert found.remedy.commands == ("qnnbridge run net.onnx --random --dim N=SIZE --dim M=SIZE",)


def test_free_dimensions_that_the_user_has_fixed_are_not_a_finding() -> None:
    report = examined(simulator(), MODELS / "pnet.onnx", ProbeResult(simulator=True, qnn_nodes=10))
    assert codes(report) == []


def test_free_dimensions_are_found_without_a_probe_too() -> None:
    machine = simulator()
    machine.put(str(MODELS / "pnet.onnx"))
    report = diagnose(survey(machine, SurveyOptions(model=str(MODELS / "pnet.onnx"), quick=True)))
    assert codes(report) == ["model.dynamic-shape"]


def test_a_size_of_zero_is_found_before_it_crashes_the_host(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, [0, 8])],
        [helper.make_tensor_value_info("y", kind, [0, 8])],
    )
    path = tmp_path / "empty.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    report = examined(simulator(), path, ProbeResult(failed="create", error="HostCrashed", exit_code=-8))
    assert codes(report) == ["model.zero-size"]
    assert "x" in report.findings[0].seen


def test_a_compiled_model_of_a_newer_qnn_cannot_run_and_is_not_tried() -> None:
    machine = simulator("2.4.0")
    report = examined(machine, MODELS / "compiled" / "good.onnx")
    assert codes(report) == ["model.compiled-unusable"]
    assert "QNN 2.51" in report.findings[0].seen[0]
    assert "qnnbridge compile" in report.findings[0].fix
    assert [order.model for order in machine.probed] == [None]


def test_a_compiled_model_of_an_older_chip_should_be_compiled_again() -> None:
    machine, _, _ = snapdragon(processor=X2_ELITE, device="Snapdragon(R) X2 Elite - X2E80100 - Hexagon(TM) NPU")
    report = examined(machine, MODELS / "compiled" / "good.onnx")
    assert codes(report) == ["model.recompile"]
    assert report.exit_code == 1


def test_a_compiled_model_that_fits_is_reported_as_ok() -> None:
    report = examined(simulator(), MODELS / "compiled" / "good.onnx", ProbeResult(simulator=True, qnn_nodes=1))
    assert codes(report) == []
    assert any("compiled: ok" in one.text for one in report.healthy)


@pytest.mark.parametrize("content", [b"", b"<html>", b"version https://git-lfs.github.com/spec/v1\n", bytes(64)])
def test_a_file_that_is_not_a_model_is_reported_as_such(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    machine = simulator()
    assert codes(examined(machine, path)) == ["model.unreadable"]
    assert [order.model for order in machine.probed] == [None]


def test_missing_external_weights_are_found_without_a_probe_too(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = onnx.TensorProto(name="w", data_type=kind, dims=[8], data_location=onnx.TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value="net.data")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, ["N", 8])],
        [helper.make_tensor_value_info("y", kind, ["N", 8])],
        [weights],
    )
    path = tmp_path / "net.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    machine = simulator()
    report = examined(machine, path)
    assert codes(report) == ["model.data-missing"]
    assert report.findings[0].seen == ("net.data",)
    assert [order.model for order in machine.probed] == [None]
    machine.put(str(tmp_path / "net.data"))
    assert "model.data-missing" not in codes(examined(machine, path))


def test_a_model_in_quarantine_is_reported() -> None:
    machine = simulator()
    add_quarantine(machine, "f.onnx")
    assert codes(examined(machine, MODELS / "f.onnx")) == ["model.quarantined", "state.quarantine"]


def test_nodes_that_qnn_refuses_are_named() -> None:
    refused = ProbeResult(
        failed="create",
        error="PlacementRefused",
        message="2 nodes on the CPU",
        evidence=("Det (n1): not supported",),
    )
    report = examined(simulator(), MODELS / "f.onnx", refused)
    assert codes(report) == ["model.on-cpu"]
    assert "Det (n1): not supported" in report.findings[0].seen


def test_a_model_that_crashes_the_host_is_reported() -> None:
    dead = ProbeResult(failed="run", error="HostCrashed", message="exit code -11 (SIGSEGV)", exit_code=-11)
    report = examined(simulator(), MODELS / "f.onnx", dead)
    assert codes(report) == ["model.fails"]
    assert "its process dies" in report.findings[0].title


def test_a_non_ascii_windows_path_is_named(tmp_path: Path) -> None:
    machine, _, _ = snapdragon()
    path = tmp_path / "größe.onnx"
    shutil.copy(MODELS / "f.onnx", path)
    report = examined(machine, path)
    assert codes(report) == ["model.not-ascii"]
    assert report.exit_code == 1


def test_a_folder_without_a_model_is_reported(tmp_path: Path) -> None:
    machine = simulator()
    machine.put(str(tmp_path / "net.onnx"))
    report = diagnose(survey(machine, SurveyOptions(model=str(tmp_path))))
    assert codes(report) == ["model.missing"]
    assert report.findings[0].title == f"{tmp_path.name} is a folder"


# --- folders for text generation ---


def folder_examined(folder: Path, version: str | None) -> Report:
    """Install a host with generation. version: version of its onnxruntime-genai."""
    machine = linux()
    host = make_host(add_python(machine, "/opt/python", "3.11.7", "x86_64", running=True))
    if version is not None:
        install_genai(host, version, ">=1.20.0")
    machine.put(str(folder / "genai_config.json"))
    return diagnose(survey(machine, SurveyOptions(model=str(folder), quick=True)))


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx")
    return write_model(tmp_path_factory.mktemp("doctor") / "sliding", "sliding")


def test_a_folder_that_the_host_can_generate_with_is_reported_as_ok(sliding: Path) -> None:
    report = folder_examined(sliding, "0.15.2")
    assert codes(report) == []
    lines = [one.text for one in report.healthy]
    assert any("for text generation, sliding layout" in line for line in lines)
    assert "onnxruntime-genai 0.15.2" in lines


def test_a_folder_is_reported_if_the_host_lacks_genai(sliding: Path) -> None:
    report = folder_examined(sliding, None)
    assert codes(report) == ["model.genai-missing"]
    assert report.findings[0].remedy.commands == ("/opt/python/bin/python3 -m pip install onnxruntime-genai",)
    assert report.verdict.startswith("This model cannot be used")


def test_a_release_that_cannot_run_the_layout_is_reported(sliding: Path) -> None:
    report = folder_examined(sliding, "0.18.0")
    assert codes(report) == ["model.genai-layout"]
    assert report.findings[0].fix.endswith("-m pip install onnxruntime-genai==0.15.2")


def test_a_folder_that_lacks_a_file_is_reported(sliding: Path, tmp_path: Path) -> None:
    shutil.copytree(sliding, tmp_path / "cut")
    (tmp_path / "cut" / "iterator.onnx").unlink()
    report = folder_examined(tmp_path / "cut", "0.15.2")
    assert codes(report) == ["model.genai-damaged"]
    assert "iterator.onnx" in report.findings[0].seen[0]
