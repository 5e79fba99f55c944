"""`qnnbridge quantize` writes a model that computes what the float model computes, despite errors of the
quantizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

import model_work_models as models

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.numerics.judge import snr_db
from qnnbridge_models.accuracy import measure
from qnnbridge_models.quantize import QuantizeResult, faithful
from qnnbridge_models.quantize.ort_quantizer import CalibratedModel
from qnnbridge_protocol.errors import ModelError

node = onnx.helper.make_node


def normal(shape: Any) -> Any:
    return np.random.default_rng(4).standard_normal(shape)


def quantized(made: Any, folder: Path, **settings: Any) -> tuple[QuantizeResult, list[float]]:
    """Return the result, and the true SNR of each output on samples that were not used."""
    source = models.saved(made, folder / "m.onnx")
    calibration = models.samples_for(source, {}, 12, folder / "samples")
    result = models.quantize(source, folder / "q.onnx", calibration, **settings)
    sessions = [cpu.open_session(path, "m") for path in (source, folder / "q.onnx")]
    rng = np.random.default_rng(99)
    shapes = {value.name: value.shape for value in sessions[0].get_inputs() if "float" in value.type}
    others = {value.name: value.shape for value in sessions[0].get_inputs() if "int" in value.type}
    feeds = {name: (rng.random(shape) * 2 - 1).astype(np.float32) for name, shape in shapes.items()}
    feeds |= {name: rng.integers(0, 4, shape) for name, shape in others.items()}
    pairs = zip(*(session.run(None, feeds) for session in sessions), strict=True)
    return result, [snr_db(a.astype(np.float64), b.astype(np.float64)) for a, b in pairs]


def gemm(bias: Any, **attributes: Any) -> Any:
    turned = attributes.get("transB", 0)
    return models.model(
        [node("Gemm", ["x", "w", "b"], ["y"], name="gemm", **attributes)],
        [models.value("x", [4, 16])],
        [models.value("y", [4, 10])],
        [models.weights("w", *((10, 16) if turned else (16, 10))), models.constant("b", np.float32(bias))],
    )


@pytest.mark.parametrize(
    "shape", [(10,), (1, 10), (1,), (), (1, 1), (4, 1), (4, 10)], ids=lambda shape: "x".join(map(str, shape)) or "0"
)
@pytest.mark.parametrize("attributes", [{}, {"beta": 2.0, "alpha": -0.5, "transB": 1}, {"beta": 0.0}], ids=str)
def test_gemm_keeps_its_factors_and_any_bias(shape: tuple[int, ...], attributes: Any, tmp_path: Path) -> None:
    result, true = quantized(gemm(normal(shape) * 3, **attributes), tmp_path)
    assert min(true) > 30
    assert result.snr_db is not None
    assert result.snr_db > 30


@pytest.mark.parametrize("reader", ["Gather", "Reshape", "Add"])
def test_a_weight_that_is_used_in_two_ways_is_quantised_for_both(reader: str, tmp_path: Path) -> None:
    first = {
        "Gather": node("Gather", ["table", "ids"], ["e"], name="first"),
        "Reshape": node("Reshape", ["table", "form"], ["e"], name="first"),
        "Add": node("Add", ["table", "x"], ["e"], name="first"),
    }[reader]
    given = [models.value("ids", [16], onnx.TensorProto.INT64)] if reader == "Gather" else []
    made = models.model(
        [
            first,
            node("MatMul", ["e", "v"], ["a"], name="matmul"),
            node("Add", ["a", "x"], ["s"], name="add"),
            node("Gemm", ["s", "table"], ["y"], name="gemm", transB=1),
        ],
        [models.value("x", [16, 8]), *given],
        [models.value("y", [16, 16])],
        [
            models.weights("table", 16, 8),
            models.weights("v", 8, 8),
            models.constant("form", np.array([16, 8], np.int64)),
        ],
    )
    _, true = quantized(made, tmp_path)
    assert min(true) > 24


@pytest.mark.parametrize(
    "name",
    [
        *("b0", "b1", "x_scale", "x_zero_point", "x_QuantizeLinear_Output", "x_DequantizeLinear_Output"),
        *("w1_quantized", "b_quantized_scale", "y_QuantizeLinear_Input", "b0_quantized_zero_point"),
    ],
)
@pytest.mark.parametrize("place", ["inside", "input", "output"])
def test_generated_names_of_the_quantizer_may_also_occur_in_the_model(
    name: str, place: str, tmp_path: Path
) -> None:
    names = {"x2": "x2", "t": "t", "y2": "y2", {"inside": "t", "input": "x2", "output": "y2"}[place]: name}
    made = models.model(
        [
            node("Conv", ["x", "w1", "b"], [names["t"]], name="x_QuantizeLinear", pads=[1] * 4),
            node("Add", [names["t"], names["x2"]], ["s"], name="add"),
            node("Conv", ["s", "w2", "b"], ["y"], name="last", pads=[1] * 4),
            node("Sigmoid", ["s"], [names["y2"]], name="sigmoid"),
        ],
        [models.value("x", [1, 8, 8, 8]), models.value(names["x2"], [1, 8, 8, 8])],
        [models.value("y", [1, 8, 8, 8]), models.value(names["y2"], [1, 8, 8, 8])],
        [models.weights("w1", 8, 8, 3, 3), models.weights("w2", 8, 8, 3, 3), models.weights("b", 8)],
    )
    _, true = quantized(made, tmp_path)
    assert min(true) > 30
    graph = onnx.load(str(tmp_path / "q.onnx")).graph
    assert [value.name for value in graph.input] == ["x", names["x2"]]
    assert [value.name for value in graph.output] == ["y", names["y2"]]
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)


@pytest.mark.parametrize("settings", [{}, {"activation_type": "uint8", "symmetric_activations": True}], ids=str)
@pytest.mark.parametrize(("op", "limits"), [("Relu", ()), ("Clip", (-0.1, 0.2)), ("Clip", (0.1, 0.6))])
def test_relu_and_clip_are_kept_if_no_range_replaces_them(
    op: str, limits: tuple[float, ...], settings: Any, tmp_path: Path
) -> None:
    constants = [models.constant(f"limit{number}", np.float32(limit)) for number, limit in enumerate(limits)]
    made = models.model(
        [
            node("MatMul", ["x", "w"], ["a"], name="matmul"),
            node(op, ["a", *(tensor.name for tensor in constants)], ["y"], name="limited"),
            node("MatMul", ["y", "v"], ["b"], name="second"),
            node(op, ["b", *(tensor.name for tensor in constants)], ["z"], name="last"),
        ],
        [models.value("x", [4, 8])],
        # The input of the first node is also an output.
        [models.value("a", [4, 8]), models.value("z", [4, 8])],
        [models.weights("w", 8, 8), models.weights("v", 8, 8), *constants],
    )
    result, true = quantized(made, tmp_path, **settings)
    assert min(true) > 24
    assert result.verdict != "useless"


def test_scatter_elements_stays_float(tmp_path: Path) -> None:
    indices = np.array([[0, 3, 1, 2], [1, 2, 0, 3]])
    made = models.model(
        [
            node("MatMul", ["x", "w"], ["a"], name="matmul"),
            node("ScatterElements", ["a", "i", "u"], ["y"], name="scatter", axis=0),
        ],
        [models.value("x", [4, 4]), models.value("u", [2, 4])],
        [models.value("y", [4, 4])],
        [models.weights("w", 4, 4), models.constant("i", indices)],
    )
    result, _ = quantized(made, tmp_path)
    assert result.precision.float_nodes == {"scatter"}
    assert any("ScatterElements stay float" in change for change in result.changes)


def test_changes_by_the_quantizer_are_detected_in_the_written_file() -> None:
    """Check the file, not a run: a lost factor may resemble the noise of few bits."""
    plain = gemm(normal(10), beta=2.0)
    scale, zero = np.float32(0.01), np.int32(0)
    bias = onnx.numpy_helper.to_array(plain.graph.initializer[1])

    def written(values: Any, **attributes: Any) -> list[str]:
        made = models.model(
            [
                node("DequantizeLinear", ["q", "s", "z"], ["b"], name="dq"),
                node("Gemm", ["x", "w", "b"], ["y"], name="gemm", **attributes),
            ],
            [models.value("x", [4, 16])],
            [models.value("y", [4, 10])],
            [
                plain.graph.initializer[0],
                models.constant("q", np.round(values / scale).astype(np.int32)),
                models.constant("s", scale),
                models.constant("z", zero),
            ],
        )
        return faithful.unlike_operators(ModelIndex(plain), made)

    assert written(bias, beta=2.0) == []
    assert written(bias) == ["Gemm gemm has different attributes"]
    (line,) = written(bias * 2, beta=2.0)
    assert "constant 2 (b) is off by" in line


def test_changes_by_the_preparation_are_not_attributed_to_the_quantizer(tmp_path: Path) -> None:
    """Use casts at inputs and outputs of a float16 model, and nodes with the names of the quantizer's."""
    source = models.saved(models.conv_net(np.float16), tmp_path / "m.onnx")
    calibration = models.samples_for(source, {}, 6, tmp_path / "samples")
    result = models.quantize(source, tmp_path / "q.onnx", calibration)
    assert result.snr_db is not None
    assert result.snr_db > 26
    assert not any("changes operators" in change for change in result.changes)


def test_a_form_of_the_file_that_fails_is_reported_and_the_next_one_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CalibratedModel.write

    def fails_on_biases(self: CalibratedModel, *given: Any) -> Path:
        if not self.float_biases:
            raise ModelError("onnxruntime's quantizer failed on this model.", cause="IndexError: index 1")
        return write(self, *given)

    monkeypatch.setattr(CalibratedModel, "write", fails_on_biases)
    result, true = quantized(gemm(normal(10)), tmp_path)
    assert min(true) > 35
    assert any("biases stay float32" in change and "IndexError" in change for change in result.changes)
    kinds = {tensor.name: tensor.data_type for tensor in onnx.load(str(tmp_path / "q.onnx")).graph.initializer}
    assert onnx.TensorProto.INT32 not in kinds.values()


def test_an_output_that_is_nearly_constant_in_each_column_gets_the_verdict_not_shown() -> None:
    rng = np.random.default_rng(1)
    expected = [np.float32([[-1.07, 1.07]]) * (1 + 0.01 * rng.standard_normal((1, 2))) for _ in range(20)]
    found = [one + 3e-4 * rng.standard_normal((1, 2)) for one in expected]
    one = measure(["y"], [[value.astype(np.float32)] for value in expected], [[v] for v in found])[0]
    assert one.snr_db is not None
    assert one.snr_db > 60
    assert one.verdict == "not shown", "a constant has 40 dB"
    moving = [value * (1 + rng.random()) for value in expected]
    assert measure(["y"], [[v] for v in moving], [[v + 1e-4] for v in moving])[0].verdict == "good"
    close = [[value + 1e-6 * rng.standard_normal((1, 2))] for value in expected]
    assert measure(["y"], [[v] for v in expected], close)[0].verdict == "good", "the changes are right, too"


def test_a_useless_verdict_gives_its_reason_if_the_length_depends_on_values(tmp_path: Path) -> None:
    rows = [[np.arange(3.0)] for _ in range(4)]
    other = [[np.arange(3.0 + (number == 2))] for number in range(4)]
    one = measure(["y"], rows, other)[0]
    assert (one.verdict, "the output's length depends on values" in one.whole.judged.reason) == ("useless", True)
