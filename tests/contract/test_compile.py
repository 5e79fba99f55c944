"""`qnnbridge.compile` with the real compiler, on the simulator."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import qnnbridge
from qnnbridge.errors import CompiledModelRefused, CompileFailed, InvalidProtobuf, OptionError, PlacementRefused
from qnnbridge_host.model.scan import scan_model
from qnnbridge_tools.compile.matrix import compile_bundle
from tests import needs
from tests.contract.small_models import model, node, tensor

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

MODELS = Path(__file__).parent.parent / "models"
MUL = MODELS / "mul_1.onnx"


def run(path: str | Path, **options: Any) -> tuple[list[Any], qnnbridge.Placement]:
    """Run the compiled model on ones and return its outputs."""
    with qnnbridge.InferenceSession(str(path), provider_options=[{"soc_model": "60"}], **options) as session:
        feeds = {x.name: np.ones(x.shape, np.float32) for x in session.get_inputs()}
        return session.run(None, feeds), session.placement


def relu_then_det(folder: Path) -> Path:
    """Return a model with one node that QNN supports and one that it does not."""
    nodes = [node("Relu", ["x"], ["r"], name="relu"), node("Det", ["r"], ["y"], name="det")]
    path = folder / "partly.onnx"
    onnx.save(model(nodes, [tensor("x", [2, 3, 3])], [tensor("y", [2])]), str(path))
    return path


def big_exp(folder: Path) -> Path:
    """Return a model that computes exp(30 x), which exceeds 16-bit floats; QNN does not report that."""
    path = folder / "big.onnx"
    nodes = [node("Mul", ["x", "c"], ["m"]), node("Exp", ["m"], ["y"])]
    made = model(nodes, [tensor("x", [1, 8])], [tensor("y", [1, 8])], {"c": np.full((1, 8), 30, np.float32)})
    onnx.save(made, str(path))
    return path


def two_with_the_same_weights(folder: Path) -> list[Path]:
    weights = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    paths = []
    for name, last in (("first", "Relu"), ("second", "Sigmoid")):
        nodes = [node("MatMul", ["x", "w"], ["m"], name=f"{name} mm"), node(last, ["m"], ["y"], name=f"{name} act")]
        made = model(nodes, [tensor("x", [1, 64])], [tensor("y", [1, 256])], {"w": weights})
        made.graph.name = name
        paths.append(folder / f"{name}.onnx")
        onnx.save(made, str(paths[-1]))
    return paths


# --- results ---------------------------------------------------------------------------------------------


def test_compiling_writes_an_onnx_file_a_context_binary_and_a_manifest(tmp_path: Path) -> None:
    stages: list[tuple[str, float]] = []
    result = qnnbridge.compile(MUL, tmp_path, soc_model=60, on_progress=lambda *stage: stages.append(stage))
    assert sorted(os.listdir(tmp_path)) == ["mul_1_ctx.onnx", "mul_1_ctx.qnnbridge.json", "mul_1_ctx_qnn.bin"]
    assert result.path == str(tmp_path / "mul_1_ctx.onnx")
    assert result.blob == str(tmp_path / "mul_1_ctx_qnn.bin")
    assert result.placement is not None
    assert (result.placement.qnn_nodes, result.placement.cpu_nodes) == (1, 0)
    assert result.soc_model == "60"
    assert not result.warnings
    (difference,) = result.validation.differences
    assert difference.level == "ok"
    assert 0 < difference.max_abs < 0.01, "16-bit floats are near and not equal"
    assert stages[0][0] == "compiling"
    assert stages[-1][1] > stages[0][1]
    (compiled,), placement = run(result.path)
    assert placement.qnn_nodes == 1
    with qnnbridge.InferenceSession(str(MUL), providers=["CPUExecutionProvider"]) as original:
        x = original.get_inputs()[0]
        (expected,) = original.run(None, {x.name: np.ones(x.shape, np.float32)})
    np.testing.assert_allclose(compiled, expected, rtol=2e-3)
    json.dumps(result.to_json(), allow_nan=False)


def test_embedding_writes_a_single_file_that_can_be_moved(tmp_path: Path) -> None:
    result = qnnbridge.compile(MUL, tmp_path / "m.onnx", embed=True, soc_model=60)
    assert result.blob is None
    (context,) = scan_model(result.path).ep_contexts
    assert context.embeds
    moved = tmp_path / "elsewhere" / "x.onnx"
    moved.parent.mkdir()
    os.rename(result.path, moved)
    assert run(moved)[1].qnn_nodes == 1


def test_without_a_chip_option_the_result_names_the_chip_that_was_used(tmp_path: Path) -> None:
    result = qnnbridge.compile(MUL, tmp_path, validate=False)
    assert result.soc_model == "60"
    assert result.warnings == (
        "No chip was given, so the model was compiled for soc_model=60, the simulator's default.",
    )
    assert result.validation.skipped


def test_a_chip_option_overrides_an_architecture_option_with_a_warning(tmp_path: Path) -> None:
    result = qnnbridge.compile(MUL, tmp_path, validate=False, soc_model=60, htp_arch=81)
    assert result.warnings == ("Both a chip and an architecture were given: QNN uses the chip.",)


def test_the_result_does_not_depend_on_earlier_compilations(tmp_path: Path) -> None:
    """Within one process the precision of a compilation affects the next one; here each has its own process."""
    first = qnnbridge.compile(MUL, tmp_path / "a.onnx", validate=False)
    qnnbridge.compile(MUL, tmp_path / "b.onnx", validate=False, soc_model=30)
    third = qnnbridge.compile(MUL, tmp_path / "c.onnx", validate=False)
    assert first.blob is not None
    assert third.blob is not None
    assert len(Path(first.blob).read_bytes()) == len(Path(third.blob).read_bytes())
    assert run(first.path)[0][0].tobytes() == run(third.path)[0][0].tobytes()


def test_several_chips_give_one_file_each(tmp_path: Path) -> None:
    results = qnnbridge.compile(MUL, tmp_path / "out", soc_model=[60, "SC8480XP"])
    assert [os.path.basename(result.path) for result in results] == [
        "mul_1_soc60_ctx.onnx",
        "mul_1_socSC8480XP_ctx.onnx",
    ]
    assert [result.validation.skipped for result in results] == [None, None]


def test_a_model_given_as_bytes_is_compiled(tmp_path: Path) -> None:
    result = qnnbridge.compile(MUL.read_bytes(), tmp_path / "bytes.onnx", soc_model=60)
    assert result.validation.skipped is None
    assert run(result.path)[1].qnn_nodes == 1


def test_free_dimensions_are_fixed_by_the_session_options(tmp_path: Path) -> None:
    options = qnnbridge.SessionOptions()
    for name, size in {"N": 1, "M1": 60, "M2": 60}.items():
        options.add_free_dimension_override_by_name(name, size)
    result = qnnbridge.compile(MODELS / "pnet.onnx", tmp_path, sess_options=options, soc_model=60)
    assert result.placement is not None
    assert result.placement.qnn_nodes == 10
    assert len(result.validation.differences) == 2


def test_a_quantized_model_is_compared_with_the_tolerance_of_quantized_models(tmp_path: Path) -> None:
    result = qnnbridge.compile(MODELS / "q.onnx", tmp_path, soc_model=60)
    assert result.validation.tolerance.startswith("quantized")
    assert result.placement is not None
    assert result.placement.cpu_nodes == 0, (
        "quantization at the edges stays on QNN, or no strict session could load it"
    )
    assert run(result.path)[1].qnn_nodes == 1


@pytest.mark.parametrize("folder_name", ["plain", "Küche"])
def test_external_data_is_found(tmp_path: Path, folder_name: str) -> None:
    """Use also a path that is not ASCII, for which all files are staged."""
    folder = tmp_path / folder_name
    folder.mkdir()
    made = onnx.load(str(MODELS / "onet.onnx"))
    onnx.save(made, str(folder / "big.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    options = qnnbridge.SessionOptions()
    options.add_free_dimension_override_by_name("N", 1)
    result = qnnbridge.compile(folder / "big.onnx", sess_options=options, soc_model=60, validate=False)
    os.rename(folder / "w.bin", folder / "gone.bin")
    assert run(result.path)[1].qnn_nodes == 1


@pytest.mark.parametrize("name", needs.some(["ж Küche 模型", "a..b", "m" * 200, "x.y.z"]))
def test_a_model_with_any_file_name_is_compiled_and_loads(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "Ordner ö"
    folder.mkdir()
    path = folder / f"{name}.onnx"
    path.write_bytes(MUL.read_bytes())
    result = qnnbridge.compile(path, soc_model=60, validate=False)
    assert len(os.listdir(folder)) == 4
    assert run(result.path)[1].qnn_nodes == 1


# --- nodes for the CPU, and refused models ---------------------------------------------------------------


def test_nodes_that_qnn_refuses_stay_on_the_cpu_and_are_reported(tmp_path: Path) -> None:
    result = qnnbridge.compile(relu_then_det(tmp_path), soc_model=60)
    assert result.placement is not None
    assert (result.placement.qnn_nodes, result.placement.cpu_nodes) == (1, 1)
    assert "1 of 2 nodes stay on the CPU" in result.warnings[0]
    assert "Det" in result.warnings[0]
    assert run(result.path, fallback="cpu")[1].qnn_nodes == 1


def test_nodes_that_qnn_refuses_are_an_error_if_strict_is_requested(tmp_path: Path) -> None:
    path = relu_then_det(tmp_path)
    with pytest.raises(PlacementRefused, match=r"1 of 2 nodes of partly\.onnx"):
        qnnbridge.compile(path, fallback="error")
    assert os.listdir(tmp_path) == ["partly.onnx"]


@pytest.mark.parametrize(("name", "reason"), [("logreg_iris", "LinearClassifier"), ("pnet", "Cannot get shape")])
def test_a_model_without_any_node_for_qnn_is_an_error_and_is_not_copied(
    tmp_path: Path, name: str, reason: str
) -> None:
    with pytest.raises(CompileFailed, match="so there is nothing to compile") as caught:
        qnnbridge.compile(MODELS / f"{name}.onnx", tmp_path)
    assert any(reason in line for line in caught.value.evidence)
    assert os.listdir(tmp_path) == []


def test_a_compiled_model_is_refused(tmp_path: Path) -> None:
    compiled = MODELS / "compiled" / "good.onnx"
    with pytest.raises(CompiledModelRefused, match="qnnbridge compile needs the original model"):
        qnnbridge.compile(compiled, tmp_path)
    with pytest.raises(CompiledModelRefused, match="qnnbridge compile"):
        qnnbridge.compile(compiled.read_bytes(), tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("<html>not found</html>")
    with pytest.raises(InvalidProtobuf):
        qnnbridge.compile(tmp_path / "m.onnx")


def test_a_wrong_provider_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="soc_modle"):
        qnnbridge.compile(MUL, tmp_path, provider_options={"soc_modle": 60})
    with pytest.raises(OptionError, match="SC8380"):
        qnnbridge.compile(MUL, tmp_path, soc_model="SC8380")
    with pytest.raises(OptionError, match="validate=False"):
        qnnbridge.compile(MUL, tmp_path, inputs={"X": np.ones((3, 2), np.float32)}, validate=False)
    assert os.listdir(tmp_path) == []


def test_a_compiled_model_with_wrong_results_is_not_delivered(tmp_path: Path) -> None:
    path = big_exp(tmp_path)
    with pytest.raises(CompileFailed, match="its results differ from the original") as caught:
        qnnbridge.compile(path, soc_model=60)
    assert "--no-validate" in str(caught.value)
    assert caught.value.details["validation"]["outputs"][0]["level"] == "wrong"
    assert os.listdir(tmp_path) == ["big.onnx"]
    assert qnnbridge.compile(path, soc_model=60, validate=False).validation.skipped


def test_a_compiled_model_that_cannot_be_run_here_is_delivered_with_a_warning(tmp_path: Path) -> None:
    """Use types that numpy lacks: they bypass QNN, and no inputs can be generated."""
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["s"], ["t"])]
    text = TensorProto.BFLOAT16
    made = model(
        nodes, [tensor("x", [1, 4]), tensor("s", [1], text)], [tensor("y", [1, 4]), tensor("t", [1], text)]
    )
    onnx.save(made, str(tmp_path / "text.onnx"))
    result = qnnbridge.compile(tmp_path / "text.onnx", soc_model=60)
    assert result.validation.skipped == 'Input "s" is of a type that numpy does not have (tensor(bfloat16)).'
    assert any(warning.startswith("Not validated:") for warning in result.warnings)


def test_the_result_records_the_versions_and_options_of_the_compilation(tmp_path: Path) -> None:
    result = qnnbridge.compile(MUL, tmp_path, soc_model=60, fallback="error", validate=False)
    assert sorted(os.listdir(tmp_path)) == sorted(
        os.path.basename(path or "") for path in (result.path, result.blob, result.manifest)
    )
    assert result.provider_options["soc_model"] == "60"
    assert {"onnxruntime", "onnxruntime_qnn", "qnn_sdk", "qnnbridge"} <= set(result.versions)
    assert result.compile_seconds > 0
    assert not result.died_at_teardown


def test_a_strict_compilation_refuses_the_same_models_as_a_strict_session(tmp_path: Path) -> None:
    with pytest.raises(PlacementRefused, match="this session forbids the CPU"):
        qnnbridge.compile(MODELS / "pnet.onnx", tmp_path, fallback="error")


# --- shared weights --------------------------------------------------------------------------------------


def test_models_with_shared_weights_have_one_context_binary(tmp_path: Path) -> None:
    paths = two_with_the_same_weights(tmp_path)
    out = tmp_path / "out"
    results = compile_bundle(paths, out, soc_model=60)
    assert sorted(os.listdir(out)) == [
        "first_ctx.onnx",
        "first_ctx.qnnbridge.json",
        "first_ctx_qnn.bin",
        "second_ctx.onnx",
        "second_ctx.qnnbridge.json",
    ]
    assert [result.blob for result in results] == [str(out / "first_ctx_qnn.bin")] * 2
    apart = [qnnbridge.compile(path, tmp_path / "apart", soc_model=60, validate=False) for path in paths]
    assert all(result.blob is not None for result in apart)
    assert os.path.getsize(out / "first_ctx_qnn.bin") < sum(os.path.getsize(result.blob or "") for result in apart)
    for result in results:
        assert "simulator cannot load" in str(result.validation.skipped)
        assert any("Not validated" in warning for warning in result.warnings)
        manifest = json.loads(Path(result.manifest).read_text())
        assert manifest["extra"]["bundle"] == ["first_ctx.onnx", "second_ctx.onnx"]
        assert [record["name"] for record in manifest["files"]][1] == "first_ctx_qnn.bin"


def test_a_bundle_with_a_failing_model_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(CompileFailed, match="nothing to compile"):
        compile_bundle([MUL, MODELS / "logreg_iris.onnx"], tmp_path / "out", soc_model=60)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        ([MUL], {}, "at least two models"),
        ([MUL, MODELS / "sigmoid.onnx"], {"embed": True}, "cannot be embedded"),
    ],
)
def test_an_invalid_bundle_is_refused(models: list[Path], options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        compile_bundle(models, tmp_path, **options)
