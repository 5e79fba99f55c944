"""Optimised models on the real QNN provider (HTP simulator): the default level costs no node, others do as warned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn")

import model_work_models as models

import qnnbridge
from qnnbridge.errors import BridgeError
from qnnbridge_host.engine import cpu
from qnnbridge_models.optimization import optimize_model

pytestmark = pytest.mark.simulator


def session(path: Path, host: qnnbridge.Host) -> qnnbridge.InferenceSession:
    return qnnbridge.InferenceSession(
        str(path),
        providers=["QNNExecutionProvider"],
        provider_options=[{"soc_model": "60"}],
        host=host,
        timeout=100,
    )


@pytest.mark.parametrize("name", ["onet", "rnet", "silero_vad_openvino_16k"])
def test_the_default_level_leaves_every_node_on_qnn(name: str, host: qnnbridge.Host, tmp_path: Path) -> None:
    source = models.MODELS / f"{name}.onnx"
    optimize_model(source, tmp_path / "o.onnx", dims=models.FIXED_SIZES[name])
    on_cpu = cpu.open_session(tmp_path / "o.onnx", "it")
    rng = np.random.default_rng(2)
    feeds = {node.name: rng.random(node.shape, dtype=np.float32) for node in on_cpu.get_inputs()}
    with session(tmp_path / "o.onnx", host) as on_qnn:
        assert on_qnn.placement.qnn_nodes > 1
        assert on_qnn.placement.cpu_nodes == 0
        found = on_qnn.run(None, feeds)
    for expected, other in zip(cpu.run(on_cpu, feeds, "it"), found, strict=True):
        assert np.allclose(expected, other, atol=5e-3 * max(1.0, float(np.abs(expected).max())))


def test_a_level_with_a_warning_is_refused_by_qnn(host: qnnbridge.Host, tmp_path: Path) -> None:
    result = optimize_model(models.MODELS / "silero_vad_openvino_16k.onnx", tmp_path / "o.onnx", level="extended")
    assert result.warnings
    with pytest.raises(BridgeError) as caught:
        session(tmp_path / "o.onnx", host)
    assert "FusedConv" in str(caught.value)


def test_a_float16_model_runs_on_qnn_after_optimising(host: qnnbridge.Host, tmp_path: Path) -> None:
    source = models.saved(models.conv_net(np.float16), tmp_path / "m.onnx")
    optimize_model(source, tmp_path / "o.onnx")
    with session(source, host) as original, session(tmp_path / "o.onnx", host) as on_qnn:
        assert on_qnn.placement.cpu_nodes == 0
        assert on_qnn.placement.qnn_nodes == original.placement.qnn_nodes
