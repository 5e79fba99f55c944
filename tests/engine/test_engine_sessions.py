"""Sessions of the real engine: where the nodes run, and that results are those of ONNX Runtime alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_models import (
    CPU,
    MODELS,
    QNN,
    assert_same,
    direct_cpu_session,
    direct_session,
    quantized_relu,
    random_feeds,
    relu,
    relu_then_det,
)

from qnnbridge_protocol import errors

pytestmark = pytest.mark.simulator

PNET_SIZES = {"N": 1, "M1": 64, "M2": 64}


@pytest.mark.parametrize("name", ["mul_1", "sigmoid"])
def test_a_static_model_runs_on_qnn_with_the_same_bits_as_a_direct_session(create: Any, name: str) -> None:
    session = create(MODELS / f"{name}.onnx")
    placement = session.info.placement
    assert (placement.known, placement.qnn_nodes, placement.cpu_nodes, placement.partitions) == (True, 1, 0, 1)
    feeds = random_feeds(session)
    assert_same(session.run(None, feeds), direct_session(str(MODELS / f"{name}.onnx")).run(None, feeds))


def test_a_dynamic_model_runs_on_qnn_once_its_dimensions_are_fixed(create: Any) -> None:
    session = create(MODELS / "pnet.onnx", free_dimensions_by_name=PNET_SIZES)
    assert [info.shape for info in session.info.inputs] == [(1, 64, 64, 3)]
    assert (session.info.placement.qnn_nodes, session.info.placement.cpu_nodes) == (10, 0)

    fixed = onnx.load(MODELS / "pnet.onnx")
    for dim, size in zip(fixed.graph.input[0].type.tensor_type.shape.dim, [1, 64, 64, 3], strict=True):
        dim.dim_value = size
    feeds = random_feeds(session)
    assert_same(session.run(None, feeds), direct_session(fixed).run(None, feeds))


def test_without_a_provider_argument_qnn_is_used(create: Any) -> None:
    session = create(relu(), provider=None)
    assert session.info.providers[0] == QNN
    assert session.info.placement.qnn_nodes == 1


def test_the_simulator_computes_for_x_elite_by_default_and_reports_it(create: Any) -> None:
    info = create(relu()).info
    assert (info.placement.simulator, info.placement.backend, info.placement.soc_model) == (True, "htp", "60")
    assert info.provider_options[QNN]["soc_model"] == "60"
    assert create(relu(), options={"soc_model": "SM8650"}).info.placement.soc_model == "57"
    assert create(relu(), options={"htp_arch": "81"}).info.placement.soc_model == "88"


def test_the_cpu_provider_is_used_when_it_is_requested(create: Any) -> None:
    session = create(MODELS / "logreg_iris.onnx", provider=CPU)
    assert session.info.providers == (CPU,)
    assert (session.info.placement.qnn_nodes, session.info.placement.cpu_nodes) == (0, 3)
    feeds = {"float_input": np.array([[5.1, 3.5], [6.7, 3.0], [1.0, 0.1]], np.float32)}
    direct = direct_cpu_session(str(MODELS / "logreg_iris.onnx"))
    assert_same(session.run(None, feeds), direct.run(None, feeds))


def test_with_fallback_allowed_the_placement_lists_the_nodes_on_the_cpu(create: Any) -> None:
    placement = create(relu_then_det(), fallback="cpu").info.placement
    assert (placement.qnn_nodes, placement.cpu_nodes) == (1, 1)
    assert placement.cpu_list == (("det", "Det"),)
    assert "Det (det)" in (placement.cause or "")


def test_with_fallback_allowed_a_dynamic_model_runs_on_the_cpu_with_the_reason(create: Any) -> None:
    session = create(MODELS / "pnet.onnx", fallback="cpu")
    assert session.info.placement.qnn_nodes == 0
    assert "'input_1': N, M1, M2" in (session.info.placement.cause or "")
    feeds = random_feeds(session, PNET_SIZES)
    assert_same(session.run(None, feeds), direct_cpu_session(str(MODELS / "pnet.onnx")).run(None, feeds))


def test_quantization_of_inputs_and_outputs_is_on_qnn_in_a_strict_session_and_otherwise_on_the_cpu(
    create: Any,
) -> None:
    strict = create(quantized_relu()).info.placement
    assert strict.cpu_nodes == 0
    relaxed = create(quantized_relu(), fallback="cpu").info.placement
    assert relaxed.cpu_nodes > 0
    assert strict.qnn_nodes == relaxed.qnn_nodes + relaxed.cpu_nodes
    assert "leaves quantization at the graph's edges to the CPU" in (relaxed.cause or "")
    assert "does not support" not in (relaxed.cause or "")


def test_a_model_is_given_as_a_path_or_as_any_bytes_object(create: Any) -> None:
    data = relu().SerializeToString()
    feeds = {"x": np.array([[-1, 0, 2, -3]], np.float32)}
    expected = direct_session(data).run(None, feeds)
    for source in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8).data):
        assert_same(create(source).run(None, feeds), expected)


def test_a_model_at_a_non_ascii_path_is_loaded(create: Any, tmp_path: Path) -> None:
    path = tmp_path / "modèle 模型 é.onnx"
    shutil.copy(MODELS / "sigmoid.onnx", path)
    assert create(path).info.placement.qnn_nodes == 1


def test_a_session_describes_inputs_outputs_and_metadata_as_onnx_runtime_does(create: Any) -> None:
    info = create(MODELS / "logreg_iris.onnx", provider=CPU).info
    direct = direct_cpu_session(str(MODELS / "logreg_iris.onnx"))
    for told, real in ((info.inputs, direct.get_inputs()), (info.outputs, direct.get_outputs())):
        assert [(n.name, n.type, list(n.shape)) for n in told] == [(n.name, n.type, n.shape) for n in real]
    meta = direct.get_modelmeta()
    assert info.modelmeta == {
        name: getattr(meta, name)
        for name in (
            "producer_name",
            "graph_name",
            "domain",
            "description",
            "graph_description",
            "version",
            "custom_metadata_map",
        )
    }


def test_the_phases_are_reported_before_the_native_steps(create: Any) -> None:
    phases: list[str] = []
    create(relu(), on_phase=phases.append)
    assert phases == ["creating", "compiling"]
    phases.clear()
    create(relu(), provider=CPU, on_phase=phases.append)
    assert phases == ["creating"]


def test_a_compiled_model_loads_if_compiling_is_forbidden(create: Any, tmp_path: Path) -> None:
    compiled = tmp_path / "relu_ctx.onnx"
    phases: list[str] = []
    create(relu(), config_entries={"ep.context_enable": "1", "ep.context_file_path": str(compiled)})
    loaded = create(compiled, config_entries={"session.disable_model_compile": "1"}, on_phase=phases.append)
    assert phases == ["creating"]
    assert loaded.info.placement.qnn_nodes == 1
    feeds = {"x": np.array([[-1, 0, 2, 3]], np.float32)}
    assert_same(loaded.run(None, feeds), create(relu()).run(None, feeds))


def test_a_closed_session_refuses_to_run(create: Any) -> None:
    session = create(relu())
    session.close()
    with pytest.raises(errors.Closed):
        session.run(None, {"x": np.zeros((1, 4), np.float32)})


def test_the_engine_reports_the_versions_of_its_parts(engine: Any) -> None:
    of_the_source = {"onnxruntime_qnn", "qnn_sdk", "ep_source", "ep_version", "ep_package"}
    assert set(engine.versions()) == {"python", "numpy", "onnxruntime", *of_the_source}
    told = engine.describe()
    assert told["qnn_source"]["engine"] == "wheel"
    assert told["simulator"] is True
    assert told["qnn_problem"] is None
    assert [device["device_type"] for device in told["devices"]] == ["CPU"]
    assert {QNN, CPU} <= set(told["providers"])
