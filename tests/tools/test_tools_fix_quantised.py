"""The rewrites of exporters' patterns in QDQ models of onnxruntime's quantizer: equal results, still quantised, on
QNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime_qnn")

import exported_models as exported
import model_work_models as models
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

import qnnbridge
from qnnbridge_models.fix import fix_model

pytestmark = [pytest.mark.simulator, pytest.mark.process]

Feeds = dict[str, Any]
TYPES = {"a8": QuantType.QUInt8, "a16": QuantType.QUInt16}
FLOAT = "tensor(float)"


class Samples(CalibrationDataReader):
    """Three samples of a model's inputs, which `get_next` returns one after another."""

    def __init__(self, model: bytes, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        inputs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()
        self.all: list[Feeds] = []
        for _ in range(3):
            self.all.append(
                {
                    one.name: random.uniform(-1, 1, one.shape).astype(np.float32)
                    if one.type == FLOAT
                    else random.integers(0, 2, one.shape).astype(bool if "bool" in one.type else one.type[7:-1])
                    for one in inputs
                }
            )
        self._left = iter(self.all)

    def get_next(self) -> Feeds | None:
        return next(self._left, None)


def quantised(made: onnx.ModelProto, form: str, folder: Path) -> tuple[Path, list[Feeds]]:
    """Return the QDQ model that the quantizer writes with QNN's configuration, and the samples."""
    source, target = models.saved(made, folder / "float.onnx"), folder / "quantised.onnx"
    samples = Samples(source.read_bytes())
    config = get_qnn_qdq_config(
        source, samples, activation_type=TYPES[form], weight_type=QuantType.QInt8, per_channel=True
    )
    samples = Samples(source.read_bytes())
    config.calibration_data_reader = samples
    quantize(source, target, config)
    return target, samples.all


def pairs(path: Path) -> int:
    return sum(node.op_type == "QuantizeLinear" for node in onnx.load(path).graph.node)


# One model for each rewrite, with activations of 8 or 16 bits. The names are those of `exported_models`.
CASES = {
    "bhid,bhjd->bhij": "a8",
    "nctv,vw->nctw": "a16",
    "mask by some places": "a8",
    "rows of a uint8 table": "a16",
    "split of one size": "a8",
    "scattered rows, add": "a16",
    "scattered rows, min": "a8",
    "DFT of real values": "a16",
    "fold": "a8",
    "Equal of truth values": "a16",
    "Neg of integers": "a8",
    "Pad of integers": "a16",
    "Sin of five dimensions": "a8",
    "LayerNormalization of five dimensions": "a16",
}
# A product that QNN computes in half floats has 47 dB, whatever the step; one of 8 bits has 38 dB or more.
GOOD_DB = 38.0


@pytest.mark.parametrize("what", CASES)
def test_a_quantised_pattern_is_rewritten_and_stays_quantised(what: str, host: Any, tmp_path: Path) -> None:
    name, make = exported.ONE_OF_EACH[what]
    source, samples = quantised(make(), CASES[what], tmp_path)
    result = fix_model(source, tmp_path / "fixed.onnx")
    assert name in [step.rewrite for step in result.steps if step.kept], result
    assert not result.warnings
    assert pairs(tmp_path / "fixed.onnx") >= pairs(source) > 0
    for feeds in samples:
        assert snr_db(on_cpu(source, feeds), on_cpu(tmp_path / "fixed.onnx", feeds)) > 50, "at most one step"
    providers = [("QNNExecutionProvider", {"soc_model": "60"})]
    with qnnbridge.InferenceSession(tmp_path / "fixed.onnx", providers=providers, host=host, fix=False) as session:
        assert session.placement.cpu_nodes == 0
        for feeds in samples:
            assert snr_db(on_cpu(source, feeds), session.run(None, feeds)[0]) > GOOD_DB


def on_cpu(model: Any, feeds: Any) -> Any:
    """Run a model without graph optimisation, since products of 8 bits saturate on x86 processors without VNNI."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def snr_db(right: Any, found: Any) -> float:
    error = np.square(np.asarray(right, np.float64) - found).sum()
    return float(10 * np.log10(np.square(np.asarray(right, np.float64)).sum() / error)) if error else np.inf


def test_a_group_normalization_with_five_dimensions_runs(host: Any, tmp_path: Path) -> None:
    source = models.saved(exported.ONE_OF_EACH["GroupNormalization in space"][1](), tmp_path / "m.onnx")
    feeds = Samples(source.read_bytes()).all[0]
    right = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    providers = [("QNNExecutionProvider", {"soc_model": "60"})]
    with qnnbridge.InferenceSession(source, providers=providers, host=host, fix=True) as session:
        assert session.placement.cpu_nodes == 0
        assert snr_db(right, session.run(None, feeds)[0]) > GOOD_DB
