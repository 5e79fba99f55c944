"""Quantised models on the real QNN provider (HTP simulator): every node on QNN, and the results of the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import needs

pytest.importorskip("onnxruntime_qnn")

import model_work_models as models

from qnnbridge_models.quantize import QnnHostOptions, QuantizeResult

pytestmark = pytest.mark.simulator
X_ELITE = QnnHostOptions({"soc_model": "60"}, timeout_s=100)


def assert_on_qnn(result: QuantizeResult, agrees: float = 17.0) -> None:
    assert result.qnn is not None
    assert result.qnn.error is None
    assert result.qnn.placement is not None
    assert result.qnn.all_on_qnn, result.qnn.placement
    assert result.qnn.placement.qnn_nodes > 1
    for output in result.qnn.against_cpu:
        assert output.snr_db is not None
        assert output.snr_db > agrees, output


# Start from the end: the first model, which reads lines of text, takes half a minute on the simulator.
@pytest.mark.parametrize("name", needs.some(reversed(models.FIXED_SIZES)))
def test_every_real_model_is_on_qnn_as_a_whole(name: str, tmp_path: Path) -> None:
    sizes = models.FIXED_SIZES[name]
    source = models.MODELS / f"{name}.onnx"
    samples = models.samples_for(source, sizes, 6, tmp_path / "samples")
    result = models.quantize(source, tmp_path / "q.onnx", samples, dims=sizes, qnn=X_ELITE)
    assert_on_qnn(result)
    assert result.snr_db is not None
    assert result.snr_db > 13


@pytest.mark.parametrize(
    "made",
    [
        models.conv_net(np.float16),
        models.conv_net_of_constant_nodes(),
        models.weights_as_inputs(),
        models.branching(),
    ],
    ids=["float16", "constant nodes", "weights as inputs", "if"],
)
def test_models_with_a_trap_are_on_qnn_as_a_whole(made: Any, tmp_path: Path) -> None:
    source = models.saved(made, tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 5, tmp_path / "samples")
    assert_on_qnn(models.quantize(source, tmp_path / "q.onnx", samples, qnn=X_ELITE))


@pytest.mark.parametrize(
    "settings",
    needs.some(
        [
            {},
            {"per_channel": False},
            {"activation_type": "uint8"},
            {"weight_type": "int16"},
            {"weight_type": "int4"},
        ]
    ),
    ids=str,
)
def test_a_transformer_is_on_qnn_with_every_combination_of_types(settings: dict[str, Any], tmp_path: Path) -> None:
    source = models.saved(models.attention(-3.4e38), tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 5, tmp_path / "samples")
    for file in samples.iterdir():
        arrays = dict(np.load(file))
        arrays["m"] = np.float32(arrays["m"] > -0.5)
        np.savez(file, **arrays)
    assert_on_qnn(models.quantize(source, tmp_path / "q.onnx", samples, qnn=X_ELITE, **settings))


def test_the_command_reports_placement_and_difference_in_one_document(tmp_path: Path) -> None:
    """Run in a separate process: stdout may contain only the document, whatever the quantizer and QNN print."""
    samples = models.samples_for(models.MODELS / "rnet.onnx", {"N": 1}, 5, tmp_path / "samples")
    arguments = [str(models.MODELS / "rnet.onnx"), "-o", str(tmp_path / "q.onnx"), "--calibration", str(samples)]
    options = ["--dim", "N=1", "--check-qnn", "--provider-option", "soc_model=60", "--method", "entropy", "--json"]
    result = subprocess.run(
        [sys.executable, "-m", "qnnbridge_tools", "quantize", *arguments, *options],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["qnn"]["all_on_qnn"] is True
    assert told["qnn"]["placement"]["qnn_nodes"] > 10
    assert {output["name"] for output in told["qnn"]["against_float"]} == {"dense_2", "softmax_1"}
    assert "calibrating 5/5" in result.stderr


def test_nodes_that_stay_on_the_cpu_are_reported(tmp_path: Path) -> None:
    source = models.saved(models.attention(-1e4), tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 4, tmp_path / "samples2")
    result = models.quantize(source, tmp_path / "q.onnx", samples, activation_type="int16", qnn=X_ELITE)
    assert result.qnn is not None
    assert not result.qnn.all_on_qnn
    assert any("run on the CPU" in warning and "LayerNormalization" in warning for warning in result.warnings)


def test_a_host_that_cannot_be_started_does_not_undo_the_result(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    result = subprocess.run(
        [
            *[sys.executable, "-m", "qnnbridge_tools", "quantize", str(source), "-o", str(tmp_path / "q.onnx")],
            *["--random", "3", "--check-qnn", "--host-python", "/no/such/python"],
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2
    assert "Fix:" in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "q.onnx").exists()
    assert "Quantised model compared with the float model" in result.stdout


@pytest.mark.parametrize("shape", [(1, 8, 24), (1, 8, 6, 5)], ids=["time", "picture"])
def test_a_normalization_that_cannot_be_merged_into_a_conv_is_right_on_qnn(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Without the rewrite, the channel with the largest offset gets the opposite offset."""
    import onnx
    from onnx import helper

    rng = np.random.default_rng(4)
    values = {
        "scale": rng.uniform(0.7, 1.3, 8),
        "bias": np.array([0.1, 0.9, 0.3, -0.2, 0.4, 0.0, -0.5, 0.2]),
        "mean": rng.normal(0, 0.2, 8),
        "variance": rng.uniform(0.5, 1.5, 8),
    }
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], name="before"),
        helper.make_node("BatchNormalization", ["t", *values], ["y"], name="norm"),
    ]
    constants = {name: value.astype(np.float32) for name, value in values.items()}
    made = models.model(nodes, [models.value("x", shape)], [models.value("y", shape)], constants)
    source = models.saved(made, tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 5, tmp_path / "samples")
    result = models.quantize(source, tmp_path / "q.onnx", samples, qnn=X_ELITE)
    assert_on_qnn(result, 40.0)
    assert any("BatchNormalization" in change for change in result.changes)
    kinds = [node.op_type for node in onnx.load(str(tmp_path / "q.onnx")).graph.node]
    assert "Conv" in kinds
    assert "BatchNormalization" not in kinds
