"""Every refusal of the engine has a cause and a fix."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_models import CPU, FLOAT, MODELS, QNN, model, node, relu, relu_then_det, tensor
from onnx import TensorProto, helper

from qnnbridge_protocol import errors
from qnnbridge_protocol.specs import NO_OPERATOR, ProviderSpec

pytestmark = pytest.mark.simulator


def refusal_of(create: Any, source: Any, **spec: Any) -> errors.BridgeError:
    with pytest.raises(errors.BridgeError) as caught:
        create(source, **spec)
    return caught.value


def test_the_refusal_of_a_strict_session_names_the_nodes_that_qnn_refuses(create: Any) -> None:
    error = refusal_of(create, relu_then_det())
    assert isinstance(error, errors.PlacementRefused)
    assert "1 of 2 nodes of the model would run on the CPU" in error.message
    assert "Det (det)" in (error.cause or "")
    assert "fallback='cpu'" in (error.fix or "")
    assert (error.details["qnn_nodes"], error.details["cpu_nodes"]) == (1, 1)
    assert error.details["cpu_list"] == [["det", "Det"]]


def test_the_refusal_of_a_dynamic_model_names_the_dimensions_to_fix(create: Any) -> None:
    error = refusal_of(create, MODELS / "pnet.onnx")
    assert isinstance(error, errors.PlacementRefused)
    assert "No node of pnet.onnx can run on the NPU (13 nodes after optimisation)" in error.message
    assert "'input_1': N, M1, M2" in (error.cause or "")
    assert "add_free_dimension_override_by_name('M1', SIZE)" in (error.fix or "")
    assert error.details["dynamic_inputs"] == {"input_1": ["N", "M1", "M2"]}


def test_a_dimension_name_that_two_axes_share_is_not_suggested_for_an_override(create: Any) -> None:
    shared = model([node("Relu", ["x"], ["y"])], [tensor("x", ["?", "?", None])], [tensor("y", ["?", "?", None])])
    error = refusal_of(create, shared)
    assert error.details["dynamic_inputs"] == {"x": ["?", "?", "axis 2"]}
    assert "Export the model with fixed shapes" in (error.fix or "")
    assert "override" not in (error.fix or "")


def test_the_refusal_of_a_model_without_any_operator_for_qnn_says_that_none_can_run(create: Any) -> None:
    error = refusal_of(create, MODELS / "logreg_iris.onnx")
    assert isinstance(error, errors.PlacementRefused)
    assert "No node of logreg_iris.onnx" in error.message
    assert error.details["cpu_nodes"] == 3


def test_nodes_outside_of_the_context_of_a_compiled_model_need_the_original_model(
    create: Any, tmp_path: Path
) -> None:
    entries = {"ep.context_enable": "1", "ep.context_file_path": str(tmp_path / "c.onnx")}
    create(relu_then_det(), fallback="cpu", config_entries=entries)
    error = refusal_of(create, tmp_path / "c.onnx")
    assert "its context binary lacks these nodes: Det (det)" in (error.cause or "")
    assert "Change these nodes in the original model" in (error.fix or "")
    assert error.cause == create(tmp_path / "c.onnx", fallback="cpu").info.placement.cause


def test_the_refusal_of_a_compiled_model_writes_no_error_of_another_backend_to_the_log(
    create: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    entries = {"ep.context_enable": "1", "ep.context_file_path": str(tmp_path / "c.onnx")}
    create(relu_then_det(), fallback="cpu", config_entries=entries)
    capfd.readouterr()
    refusal_of(create, tmp_path / "c.onnx")
    assert "contextCreateFromBinary failed" not in capfd.readouterr().err


@pytest.mark.parametrize("damage", ["missing", "short"])
@pytest.mark.parametrize("provider", [QNN, CPU])
@pytest.mark.parametrize("operator", ["Conv", "MatMul"])
def test_the_error_for_an_incomplete_weights_file_names_the_file(
    create: Any, tmp_path: Path, operator: str, provider: str, damage: str
) -> None:
    """QNN reports this model as having an unsupported operator, or in three words."""
    shape = [4, 3, 3, 3] if operator == "Conv" else [8, 16]
    made = model(
        [node(operator, ["x", "w"], ["y"])],
        [tensor("x", [1, 3, 8, 8] if operator == "Conv" else [1, 8])],
        [tensor("y", [1, 4, 6, 6] if operator == "Conv" else [1, 16])],
        [onnx.numpy_helper.from_array(np.ones(shape, np.float32), "w")],
    )
    path, weights = tmp_path / "m.onnx", tmp_path / "m.data"
    onnx.save(made, path, save_as_external_data=True, location="m.data", size_threshold=0)
    create(path, provider=provider)
    size = weights.stat().st_size
    if damage == "missing":
        weights.unlink()
    else:
        os.truncate(weights, size // 2)
    error = refusal_of(create, path, provider=provider)
    assert "weights" in (error.cause or "")
    assert "Copy or download" in (error.fix or "")
    said = "No such file" if damage == "missing" else f"has {size // 2} bytes, but the model needs {size} bytes"
    assert len(error.evidence) == 1
    assert said in error.evidence[0]
    assert str(weights) in error.evidence[0]


def test_the_search_for_the_refused_nodes_writes_no_extra_file(create: Any, tmp_path: Path) -> None:
    error = refusal_of(
        create,
        relu_then_det(),
        settings={
            "enable_profiling": True,
            "profile_file_prefix": str(tmp_path / "profile"),
            "optimized_model_filepath": str(tmp_path / "optimized.onnx"),
        },
        config_entries={"ep.context_enable": "1", "ep.context_file_path": str(tmp_path / "ctx.onnx")},
    )
    # The refused creation (also by ONNX Runtime alone) leaves these files; the second creation, which determines
    # the placement, must neither add files nor fail because of them ("exists already").
    left = [name.partition("_20")[0] for name in sorted(os.listdir(tmp_path))]
    assert left == ["ctx.onnx", "ctx_qnn.bin", "profile"]
    assert error.details["cpu_nodes"] == 1
    assert "with_fallback" not in error.details


def test_a_configuration_entry_that_allows_the_cpu_is_respected(create: Any) -> None:
    session = create(relu_then_det(), config_entries={"session.disable_cpu_ep_fallback": "0"})
    assert session.info.placement.cpu_nodes == 1


def test_the_error_for_a_missing_provider_lists_the_available_ones(create: Any) -> None:
    error = refusal_of(create, relu(), provider="CUDAExecutionProvider")
    assert isinstance(error, errors.ProviderUnavailable)
    assert "CUDAExecutionProvider" in error.message
    assert QNN in (error.fix or "")
    assert CPU in (error.fix or "")


def test_the_cpu_before_qnn_is_refused_because_qnn_would_get_no_node(create: Any) -> None:
    error = refusal_of(create, relu(), providers=(ProviderSpec(CPU), ProviderSpec(QNN)))
    assert isinstance(error, errors.OptionError)


def test_the_cpu_after_qnn_does_not_weaken_a_strict_session(create: Any) -> None:
    providers = (ProviderSpec(QNN), ProviderSpec(CPU))
    assert create(relu(), providers=providers).info.placement.cpu_nodes == 0
    assert isinstance(refusal_of(create, relu_then_det(), providers=providers), errors.PlacementRefused)


def test_fixed_sizes_are_not_advised_if_qnn_has_none_of_the_operators(create: Any) -> None:
    scaler = helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.0, 1.0], scale=[1.0, 2.0])

    def of(*nodes: Any) -> onnx.ModelProto:
        made = model(list(nodes), [tensor("x", ["N", 2])], [tensor("y", ["N", 2])])
        made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
        return made

    error = refusal_of(create, of(scaler, node("Hardmax", ["s"], ["y"])))
    assert "No node of the model can run on the NPU (2 nodes after optimisation)" in error.message
    assert (
        error.cause or ""
    ) == "QNN has no operator Hardmax, ai.onnx.ml.Scaler, and the model has no other operators."
    assert "dimension" not in (error.fix or "")
    assert "CPU provider" in (error.fix or "")
    error = refusal_of(create, of(scaler, node("Relu", ["s"], ["y"])))
    assert "'x': N. QNN has no operator ai.onnx.ml.Scaler" in (error.cause or "")
    assert "add_free_dimension_override_by_name('N', SIZE)" in (error.fix or "")
    placed = create(of(scaler, node("Hardmax", ["s"], ["y"])), fallback="cpu").info.placement
    assert (placed.cause or "").startswith(NO_OPERATOR)


def test_a_quantised_model_gets_no_advice_to_quantise_it(create: Any) -> None:
    quantise = [["QuantizeLinear", "x", "q"], ["DequantizeLinear", "q", "d"], ["Hardmax", "d", "y"]]
    nodes = [node(op, [given] if op == "Hardmax" else [given, "s", "z"], [made]) for op, given, made in quantise]
    steps = {"s": np.float32(0.1), "z": np.uint8(128)}
    error = refusal_of(create, model(nodes, [tensor("x", [1, 8])], [tensor("y", [1, 8])], steps))
    assert "quantise the float model again" in (error.fix or "")
    assert "quantize these nodes" not in (error.fix or "")
    float_one = model(
        [node("Relu", ["x"], ["r"]), node("Hardmax", ["r"], ["y"])], [tensor("x", [1, 8])], [tensor("y", [1, 8])]
    )
    assert "Change or quantize these nodes" in (refusal_of(create, float_one).fix or "")


def test_a_failed_finalization_is_explained_by_the_chip(create: Any) -> None:
    # Code 1002 means "memory"; V68 chips lack float InstanceNormalization.
    normalize = model(
        [node("InstanceNormalization", ["x", "s", "b"], ["y"])],
        [tensor("x", [1, 4, 8, 8])],
        [tensor("y", [1, 4, 8, 8])],
        {"s": np.ones(4, np.float32), "b": np.zeros(4, np.float32)},
    )
    error = refusal_of(create, normalize, options={"soc_model": "30"})
    assert isinstance(error, errors.EPFail)
    assert error.details["qnn_code"] == 1002
    assert "soc_model=30 (SM8350)" in (error.cause or "")
    assert "older than HTP V73" in (error.fix or "")
    assert create(normalize).info.placement.cpu_nodes == 0


def test_a_layout_failure_keeps_its_message_and_gets_an_explanation(create: Any) -> None:
    double = TensorProto.DOUBLE
    convolution = model(
        [node("Conv", ["x", "w"], ["y"])],
        [tensor("x", [1, 3, 8, 8], double), tensor("w", [4, 3, 3, 3], double)],
        [tensor("y", [1, 4, 6, 6], double)],
    )
    error = refusal_of(create, convolution, fallback="cpu")
    assert isinstance(error, errors.Fail)
    assert "was inserted using the NHWC format" in error.message
    assert "channels-last" in (error.cause or "")


def test_a_truncated_compiled_model_is_explained(create: Any, tmp_path: Path) -> None:
    compiled = tmp_path / "relu_ctx.onnx"
    create(relu(), config_entries={"ep.context_enable": "1", "ep.context_file_path": str(compiled)})
    binary = next(tmp_path.glob("*.bin"))
    binary.write_bytes(binary.read_bytes()[:-1])
    error = refusal_of(create, compiled)
    assert isinstance(error, errors.InvalidGraph)
    assert "cut off" in (error.cause or "")


def test_a_compiled_model_without_its_context_binary_is_explained(create: Any, tmp_path: Path) -> None:
    compiled = tmp_path / "relu_ctx.onnx"
    create(relu(), config_entries={"ep.context_enable": "1", "ep.context_file_path": str(compiled)})
    next(tmp_path.glob("*.bin")).unlink()
    error = refusal_of(create, compiled)
    assert isinstance(error, errors.InvalidGraph)
    assert "not in its folder" in (error.cause or "")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"\x89PNG\r\n\x1a\n" * 9, "is not an ONNX model"),
    ],
)
def test_the_error_for_a_file_that_is_not_a_model_describes_the_file(
    create: Any, tmp_path: Path, content: bytes, cause: str
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    for provider in (QNN, CPU):
        error = refusal_of(create, path, provider=provider)
        assert isinstance(error, (errors.InvalidProtobuf, errors.InvalidArgument))
        assert cause in (error.cause or "")


def test_a_folder_and_a_missing_file_have_different_errors(create: Any, tmp_path: Path) -> None:
    folder = refusal_of(create, tmp_path)
    assert isinstance(folder, errors.InvalidProtobuf)
    assert "is a folder" in (folder.cause or "")
    assert isinstance(refusal_of(create, tmp_path / "missing.onnx"), errors.NoSuchFile)


def test_a_session_on_the_saver_backend_reports_that_outputs_are_not_results(
    create: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the saver writes its recording there
    session = create(relu(), options={"backend_type": "saver"})
    assert session.info.placement.backend == "saver"
    assert "not results" in (session.info.placement.cause or "")


def test_a_backend_that_is_not_installed_is_refused_and_not_replaced_by_the_cpu(create: Any) -> None:
    for options in (
        {"backend_type": "cpu"},
        {"backend_path": "/nowhere/libQnnHtp.so"},
        {"backend_path": "QnnHtp.dll"},
    ):
        error = refusal_of(create, relu(), options=options, fallback="cpu")
        assert isinstance(error, errors.OptionError)
        assert "silent" not in error.message
        assert "CPU" in (error.cause or "")


def test_the_name_of_a_backend_library_is_sufficient(create: Any) -> None:
    session = create(relu(), options={"backend_path": "libQnnHtp.so"})
    assert os.path.isabs(session.info.provider_options[QNN]["backend_path"])


def test_a_session_without_a_model_is_an_error(create: Any) -> None:
    assert isinstance(refusal_of(create, None, provider=CPU), errors.InvalidArgument)


def test_a_graph_without_inputs_is_refused_with_an_alternative(create: Any) -> None:
    constant = model(
        [node("ConstantOfShape", ["s"], ["c"]), node("RandomNormalLike", ["c"], ["y"], dtype=FLOAT)],
        [],
        [tensor("y", [2])],
        {"s": np.array([2], np.int64)},
    )
    error = refusal_of(create, constant)
    assert error.fix
