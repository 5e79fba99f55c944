"""The rewrites of exporters' patterns in QDQ models of onnxruntime's quantizer: equal results, still quantised, on
QNN."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests import needs

pytest.importorskip("onnxruntime_qnn")

import exported_models as exported
import model_work_models as models
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
from quantised_products import LARGEST, LIMITS, product

import qnnbridge
from qnnbridge import errors
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


def computed(model: Path, host: Any, fix: bool | None, on_qnn: Path | None = None) -> tuple[Any, Any]:
    """Return the results of a model of `quantised_products` in process on the CPU, and in a session on QNN.

    on_qnn: another form of the model, for the session.
    """
    (given,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()
    feeds = {"x": np.random.default_rng(1).uniform(-LARGEST, LARGEST, given.shape).astype(np.float32)}
    providers = [("QNNExecutionProvider", {"soc_model": "60"})]
    # A cache or a comparison would start further sessions.
    alone = {"cache": False, "verify": False}
    with qnnbridge.InferenceSession(on_qnn or model, providers=providers, host=host, fix=fix, **alone) as session:
        assert session.placement.cpu_nodes == 0
        return on_cpu(model, feeds), session.run(None, feeds)[0]


@pytest.mark.parametrize(
    ("op", "activations"),
    needs.some(
        itertools.product(("Conv", "ConvTranspose", "MatMul", "Gemm"), ("uint8", "int8", "uint16", "int16"))
    ),
)
def test_weights_of_any_type_run_on_qnn_with_all_activations(
    op: str, activations: Any, host: Any, tmp_path: Path
) -> None:
    cases = [(kind, channels, 0) for kind in ("uint8", "int8", "uint4", "int4") for channels in (False, True)]
    cases += [(kind, channels, 1) for kind in ("uint4", "int4") for channels in (False, True)]
    low, high = LIMITS[activations]
    for number, (kind, channels, beside_middle) in enumerate(cases):
        # If the weights have a scale for each channel, the bias has one, too.
        bias = None if op == "MatMul" else [1.0] * 6 if channels else 1.0
        made = product(op, activations, kind, channels=channels, beside_middle=beside_middle, bias=bias)
        path = models.saved(made, tmp_path / f"{number}.onnx")
        fix_model(path, tmp_path / f"{number}_fixed.onnx")
        right, found = computed(path, host, False, tmp_path / f"{number}_fixed.onnx")
        # QNN computes products of 16 bits and 4 bits less exactly.
        steps = 2.5 if high - low == 255 else 4 if kind in ("uint8", "int8") else 80
        assert np.abs(found - right).max() < steps * 2 * LARGEST / (high - low), (kind, channels, beside_middle)


@pytest.mark.parametrize("kind", ["uint4", "int4"])
def test_a_default_session_runs_a_convolution_with_weights_of_four_bits(
    kind: Any, host: Any, tmp_path: Path
) -> None:
    path = models.saved(product("Conv", "uint8", kind, bias=1), tmp_path / "m.onnx")
    right, found = computed(path, host, fix=None)
    assert np.abs(found - right).max() < 2.5 * 2 * LARGEST / 255
    with pytest.raises(errors.Fail) as caught:
        computed(path, host, fix=False)
    assert "weights of four bits" in (caught.value.cause or "")
    assert "--only weight-type" in (caught.value.fix or "")


def test_an_unexplained_refusal_of_a_convolution_suggests_the_rewrites_and_the_quantizer(
    host: Any, tmp_path: Path
) -> None:
    path = models.saved(product("Conv", "uint8", "int8", channels=True, beside_middle=5), tmp_path / "m.onnx")
    with pytest.raises(errors.Fail) as caught:
        computed(path, host, fix=None)
    assert "number type of quantised weights" in (caught.value.cause or "")
    assert f"qnnbridge fix {path} -o m_fixed.onnx" in (caught.value.fix or "")
    assert "qnnbridge quantize" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("channels", "scales"),
    [(False, [1.0] * 6), (True, 1.0), (True, 5.0), (True, [5.0] * 6)],
    ids=[
        "one scale of the weights",
        "one scale of the bias",
        "another scale of the bias",
        "other scales of the bias",
    ],
)
@pytest.mark.parametrize("activations", ["uint8", "uint16"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm"])
def test_a_bias_with_other_scales_than_the_products_is_right_on_qnn(
    op: str, activations: Any, channels: bool, scales: Any, host: Any, tmp_path: Path
) -> None:
    path = models.saved(product(op, activations, "int8", channels=channels, bias=scales), tmp_path / "m.onnx")
    right, found = computed(path, host, fix=True)
    low, high = LIMITS[activations]
    assert np.abs(found - right).max() < 4 * 2 * LARGEST / (high - low)
    if np.ndim(scales) == 0 or not channels:
        _, by_default = computed(path, host, fix=None)
        np.testing.assert_array_equal(by_default, found)


def test_a_bias_with_the_scale_of_the_products_is_not_changed(tmp_path: Path) -> None:
    for number, (channels, scales) in enumerate([(False, 1.0), (False, 5.0), (True, [1.0] * 6)]):
        path = models.saved(
            product("Conv", "uint8", "int8", channels=channels, bias=scales), tmp_path / f"{number}.onnx"
        )
        assert fix_model(path, tmp_path / f"{number}_fixed.onnx").steps == ()


def test_weights_that_something_else_reads_are_not_changed(tmp_path: Path) -> None:
    made = product("Conv", "uint8", "uint4", channels=True)
    made.graph.output.append(models.value("wd", [6, 4, 3, 3]))
    assert fix_model(models.saved(made, tmp_path / "m.onnx"), tmp_path / "o.onnx").steps == ()
