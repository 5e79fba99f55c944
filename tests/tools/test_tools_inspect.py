"""`qnnbridge inspect`: the contents of any model, and whether a compiled model can run here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.commands import qnnbridge

from qnnbridge_host.model.manifest import write_manifest
from qnnbridge_tools.inspection import QUESTION

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402
from tests.unit import epcontext_models as models  # noqa: E402

MODELS = Path(__file__).parents[1] / "models"


@pytest.fixture(autouse=True)
def no_host_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QNNBRIDGE_HOST_PYTHON", str(tmp_path / "no python"))


@pytest.fixture
def this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime_qnn")
    monkeypatch.setenv("QNNBRIDGE_HOST_PYTHON", sys.executable)


def inspect(*arguments: str | Path) -> Any:
    return qnnbridge("inspect", *arguments)


def told(*arguments: str | Path) -> dict[str, Any]:
    result = inspect(*arguments, "--json")
    assert result.returncode == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def line(text: str, label: str) -> str:
    return next(row for row in text.splitlines() if row.strip().startswith(label)).strip()


# --- any model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.name)
def test_the_document_describes_an_original_model(path: Path) -> None:
    document, text = told(path), inspect(path).output
    model = onnx.load(path)
    assert document["is_compiled"] is False
    assert document["compiled"] is document["verdict"] is document["host"] is None
    assert document["size_bytes"] == path.stat().st_size
    assert document["initializers"] == len(model.graph.initializer)
    assert [value["name"] for value in document["outputs"]] == [value.name for value in model.graph.output]
    assert "compiled" in text
    assert len(text.splitlines()) <= 40
    for value in document["inputs"]:
        assert value["name"] in text


def test_the_text_describes_an_original_model() -> None:
    text = inspect(MODELS / "silero_vad_openvino_16k.onnx").output
    assert "1.2 MiB" in line(text, "size")
    assert "spox" in line(text, "made by")
    assert line(text, "versions").endswith("opset 16; IR 8")
    assert "167 in the file: Constant 98, Slice 18" in line(text, "nodes")
    assert line(text, "compiled") == "compiled  no"
    assert line(text, "state").split() == ["state", "tensor(float)", "2x1x128"]


def test_other_files_of_the_model_are_listed_with_their_sizes(tmp_path: Path) -> None:
    tensors = []
    for name in ("there.bin", "gone.bin"):
        tensor = onnx.TensorProto(name=name, data_type=1, dims=[4], data_location=1)
        tensor.external_data.add(key="location", value=name)
        tensors.append(tensor)
    path = models.save(models.model_of(initializer=tensors), tmp_path / "m.onnx")
    (tmp_path / "there.bin").write_bytes(bytes(2048))
    assert told(path)["external_data"] == [
        {"name": "there.bin", "size_bytes": 2048},
        {"name": "gone.bin", "size_bytes": None},
    ]
    text = inspect(path).output
    assert "there.bin, 2.0 KiB" in text
    assert "gone.bin, MISSING" in text


def test_a_node_that_resembles_a_compiled_one_is_reported(tmp_path: Path) -> None:
    path = models.save(models.model_of(models.in_if(models.context_node("odd", domain="own"))), tmp_path / "m.onnx")
    document, text = told(path), inspect(path).output
    assert document["is_compiled"] is False
    assert [node["domain"] for node in document["lookalikes"]] == ["own"]
    assert "node odd: operator EPContext of domain own in then_branch of the If node 'branch'" in text


def test_functions_are_reported(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    call = helper.make_node("Block", ["x"], ["y"], domain="own")
    path = models.save(models.model_of(call, functions=(models.function_with(relu),)), tmp_path / "m.onnx")
    assert told(path)["functions"] == ["own.Block"]
    assert "1, containing 1 node (counted above at each call of the function): own.Block" in inspect(path).output


def test_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    model = models.model_of(node)
    model.producer_name = "evil\x1b[2J"
    model.graph.input[0].name = "in\x1b[31m"
    text = inspect(models.save(model, tmp_path / "m.onnx")).output
    assert "\x1b" not in text
    assert "evil\\x1b[2J" in text


def test_a_large_model_still_fits_the_screen(tmp_path: Path) -> None:
    nodes = [helper.make_node(f"Kind{index}", ["x"], ["y"], domain="own") for index in range(300)]
    model = models.model_of(*nodes)
    for index in range(100):
        model.graph.input.append(helper.make_tensor_value_info(f"input_{index}", 1, [1]))
    text = inspect(models.save(model, tmp_path / "m.onnx")).output
    assert len(text.splitlines()) < 40
    assert "and 93 more" in text
    assert "and 292 more kinds" in text


def test_the_ort_format_of_onnx_runtime_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "m.ort").write_bytes(b"\x18\x00\x00\x00ORTM" + bytes(100))
    assert "ONNX Runtime's own (.ort)" in inspect(tmp_path / "m.ort").output
    assert told(tmp_path / "m.ort")["format"] == "ort"


@pytest.mark.parametrize(
    ("data", "words"),
    [(None, "There is no model file"), (b"", "is empty"), (b"<html>", "it is a text"), (b"\xff" * 50, "cut off")],
)
def test_a_file_that_is_not_a_model_is_bad_input(data: bytes | None, words: str, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "m.onnx").write_bytes(data)
    result = inspect(tmp_path / "m.onnx")
    assert result.returncode == 2
    assert words in result.stderr
    assert "Fix:" in result.stderr


# --- a compiled model ------------------------------------------------------------------------------------


def test_the_document_describes_a_compiled_model(this_host: None, tmp_path: Path) -> None:
    path = models.real(tmp_path)
    document = told(path)
    compiled = document["compiled"]
    assert document["is_compiled"] is True
    assert compiled["sources"] == ["QNNExecutionProvider"]
    assert compiled["qnn_sdk"] == "2.51.0.260929181845"
    assert compiled["targets"] == [{"soc_model": 60, "chip": "SC8380XP", "htp_arch": 73, "vtcm_mb": 8}]
    assert compiled["left_on_cpu"] == {"com.microsoft.QuantizeLinear": 1, "com.microsoft.DequantizeLinear": 1}
    (blob,) = compiled["blobs"]
    assert (blob["name"], blob["size_bytes"], blob["is_whole"]) == ("a_qnn.bin", 73728, True)
    assert compiled["compatibility"]["text"] == "v2:6:2.51.0:5.51.0:0:60:0:0"
    assert compiled["manifest"] is None
    assert document["verdict"]["level"] == "ok"
    assert document["host"]["simulator"] is True


def test_the_text_describes_a_compiled_model(this_host: None, tmp_path: Path) -> None:
    text = inspect(models.real(tmp_path)).output
    assert "QNNExecutionProvider, QNN SDK 2.51.0" in text
    assert line(text, "made for").endswith("SoC 60 (SC8380XP, V73); 8 MB of VTCM")
    assert "2: com.microsoft.DequantizeLinear 1, com.microsoft.QuantizeLinear 1" in line(text, "left on the CPU")
    assert line(text, "context binary").endswith("a_qnn.bin, 72.0 KiB, whole")
    assert "= HTP backend, QNN SDK 2.51.0, backend API 5.51.0" in text
    assert line(text, "verdict") == "verdict  ok"
    assert len(text.splitlines()) <= 40


def test_a_model_that_cannot_run_is_shown_with_cause_and_fix(this_host: None, tmp_path: Path) -> None:
    path = models.real(tmp_path)
    models.retarget(tmp_path / "a_qnn.bin", "SC8480XP", 81)
    text = inspect(path).output
    assert "cannot run here: compiled with QNN 2.51 for SoC 88 (V81); this host has QNN 2.51" in line(
        text, "verdict"
    )
    assert "recompile from the original model" in line(text, "fix")
    assert told(path)["verdict"]["level"] == "cannot run here"
    assert told(path, "--soc-model", "SC8480XP")["verdict"]["level"] == "ok"


def test_a_missing_context_binary_is_reported_without_a_host_too(tmp_path: Path) -> None:
    path = models.real(tmp_path)
    (tmp_path / "a_qnn.bin").unlink()
    assert "its context binary a_qnn.bin is missing" in line(inspect(path).output, "verdict")
    assert told(path)["verdict"]["level"] == "cannot run here"


def test_without_a_host_the_verdict_is_unknown_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = models.real(tmp_path)
    text, document = inspect(path).output, told(path)
    assert "unknown, because no host was found" in line(text, "verdict")
    assert "QNNBRIDGE_HOST_PYTHON" in text
    assert document["verdict"]["level"] == "unknown"
    assert document["compiled"]["qnn_sdk"] == "2.51.0.260929181845"


def test_a_given_host_interpreter_that_is_invalid_is_an_error(tmp_path: Path) -> None:
    result = inspect(models.real(tmp_path), "--host-python", tmp_path / "nothing")
    assert result.returncode == 2
    assert "nothing" in result.stderr


def test_a_manifest_is_shown_and_checked(this_host: None, tmp_path: Path) -> None:
    path = models.real(tmp_path)
    write_manifest(tmp_path, "good.onnx", ["a_qnn.bin"], source_name="f.onnx")
    assert told(path)["compiled"]["manifest"]["source_name"] == "f.onnx"
    data = bytearray((tmp_path / "a_qnn.bin").read_bytes())
    data[50000] ^= 1
    (tmp_path / "a_qnn.bin").write_bytes(data)
    assert "differs from the manifest" in told(path)["verdict"]["reason"]


def test_an_unknown_chip_is_bad_input(tmp_path: Path) -> None:
    result = inspect(models.real(tmp_path), "--soc-model", "SC8380")
    assert result.returncode == 2
    assert "SC8380XP=60" in result.stderr


def test_neither_qnn_nor_onnx_runtime_is_loaded(this_host: None, tmp_path: Path) -> None:
    """Neither this process nor the host's interpreter, which reports its installed packages, loads them."""
    names = {"onnx", "onnxruntime", "onnxruntime_qnn"}
    program = (
        "import sys; from qnnbridge_tools.cli import main; code = main();"
        f"assert not {names!r} & set(sys.modules), sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "inspect", str(models.real(tmp_path)), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"]["level"] == "ok"
    asked = f"{QUESTION}\nimport sys; assert not {names!r} & set(sys.modules), sys.modules"
    subprocess.run([sys.executable, "-I", "-c", asked], capture_output=True, timeout=60, check=True)
