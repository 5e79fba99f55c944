"""`qnnbridge quantize`: results for real models and for the quantizer's known traps, and refusals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.fakes.commands import qnnbridge

pytest.importorskip("onnxruntime")

import model_work_models as models

from qnnbridge_host.engine import cpu
from qnnbridge_models.quantize import QuantizeResult, candidates, preparing
from qnnbridge_protocol.errors import CompiledModelRefused, ModelError, NoSuchFile, OptionError


def command(*arguments: str | Path) -> Any:
    return qnnbridge("quantize", "--no-check-qnn", *arguments)


def quantized(made: Any, folder: Path, *, samples: int = 6, **settings: Any) -> QuantizeResult:
    """Quantise the model saved in `folder` with a few samples; the result is q.onnx."""
    source = models.saved(made, folder / "m.onnx")
    calibration = models.samples_for(source, {}, samples, folder / "samples")
    return models.quantize(source, folder / "q.onnx", calibration, **settings)


def op_types(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(str(path)).graph.node]


# --- the known traps ------------------------------------------------------------------------------------


def test_metadata_is_unchanged_in_the_result(tmp_path: Path) -> None:
    made = models.conv_net()
    entry = made.metadata_props.add()
    entry.key, entry.value = "character", "alphabet\nof a reader"
    quantized(made, tmp_path)
    written = onnx.load(str(tmp_path / "q.onnx"))
    assert [(e.key, e.value) for e in written.metadata_props] == [("character", "alphabet\nof a reader")]


def test_weights_in_constant_nodes_are_quantised(tmp_path: Path) -> None:
    result = quantized(models.conv_net_of_constant_nodes(), tmp_path)
    written = onnx.load(str(tmp_path / "q.onnx"))
    kinds = {tensor.name: tensor.data_type for tensor in written.graph.initializer}
    assert onnx.TensorProto.INT8 in kinds.values()
    assert not any(
        tensor.data_type == models.FLOAT and np.prod(tensor.dims) > 8 for tensor in written.graph.initializer
    ), "no weights are left in float"
    assert any("Constant" in change for change in result.changes)
    assert result.snr_db is not None
    assert result.snr_db > 26


@pytest.mark.parametrize(("ir_version", "opset"), [(3, 7), (8, 17)])
def test_weights_that_are_also_inputs_are_quantised(tmp_path: Path, ir_version: int, opset: int) -> None:
    result = quantized(models.weights_as_inputs(ir_version, opset), tmp_path)
    written = onnx.load(str(tmp_path / "q.onnx"))
    assert [value.name for value in written.graph.input] == ["x"]
    assert any(tensor.data_type == onnx.TensorProto.INT8 for tensor in written.graph.initializer)
    assert result.snr_db is not None
    assert result.snr_db > 26


def test_an_old_opset_is_converted_and_scales_per_channel_are_valid(tmp_path: Path) -> None:
    made = onnx.load(str(models.MODELS / "rnet.onnx"))  # opset 12, whose DequantizeLinear supports one scale only
    path = models.saved(made, tmp_path / "m.onnx")
    calibration = models.samples_for(path, {}, 4, tmp_path / "samples")
    result = models.quantize(path, tmp_path / "q.onnx", calibration, dims={"N": 1}, activation_type="uint8")
    assert result.settings.per_channel
    assert "opset 12 converted to 21" in result.changes
    onnx.checker.check_model(str(tmp_path / "q.onnx"))


def test_a_float16_model_keeps_its_inputs_and_outputs(tmp_path: Path) -> None:
    result = quantized(models.conv_net(np.float16), tmp_path)
    assert any("float16" in change for change in result.changes)
    written = onnx.load(str(tmp_path / "q.onnx"))
    for value in (written.graph.input[0], written.graph.output[0]):
        assert value.type.tensor_type.elem_type == models.FLOAT16
    assert result.snr_db is not None
    assert result.snr_db > 26


def masked_samples(folder: Path) -> Path:
    rng = np.random.default_rng(3)
    folder.mkdir()
    for number in range(8):
        mask = (rng.random((1, 8)) > 0.3).astype(np.float32)
        mask[0, 0] = 1
        np.savez(folder / f"{number}.npz", x=rng.standard_normal((1, 8, 16)).astype(np.float32), m=mask)
    return folder


def test_a_mask_with_the_lowest_float_is_reduced_so_that_scores_keep_their_steps(tmp_path: Path) -> None:
    samples = masked_samples(tmp_path / "samples")
    huge = models.saved(models.attention(-3.4e38), tmp_path / "huge.onnx")
    small = models.saved(models.attention(-1e4), tmp_path / "small.onnx")
    result = models.quantize(huge, tmp_path / "q.onnx", samples)
    assert any("masks" in change for change in result.changes)
    assert result.snr_db is not None
    assert result.snr_db > 16, "without the smaller mask it is far below"
    same = models.quantize(small, tmp_path / "s.onnx", samples)
    assert not any("masks" in change for change in same.changes)
    assert result.snr_db == pytest.approx(same.snr_db, abs=0.1)


@pytest.mark.parametrize(("scores", "size"), [(1.0, 128), (5.0, 512), (1000.0, None)])
def test_masks_for_eight_bit_activations_are_just_below_twice_the_range_of_the_scores(
    scores: float, size: int | None, tmp_path: Path
) -> None:
    samples = masked_samples(tmp_path / "samples")
    made = models.attention(-1e4)
    for tensor in made.graph.initializer:
        if tensor.name == "wq":
            factor = onnx.numpy_helper.to_array(tensor) * np.float32(scores)
            tensor.CopyFrom(onnx.numpy_helper.from_array(factor, "wq"))
    source = models.saved(made, tmp_path / "m.onnx")
    result = models.quantize(source, tmp_path / "q.onnx", samples, activation_type="uint8")
    told = [change for change in result.changes if "masks" in change]
    assert told == (
        []
        if size is None
        else [
            f"values of -10000 or less in attention masks changed to -{size}, so that the scores keep their precision"
        ]
    )
    assert result.snr_db is not None
    assert size is None or result.snr_db > 12, "with -1e4 it is below 6"


def test_a_huge_number_that_is_not_a_mask_is_not_changed(tmp_path: Path) -> None:
    """The model computes x * 1e9: a smaller factor would change its results."""
    node = onnx.helper.make_node
    made = models.model(
        [node("Mul", ["x", "big"], ["z"], name="mul"), node("MatMul", ["z", "w"], ["y"], name="matmul")],
        [models.value("x", [1, 4])],
        [models.value("y", [1, 4])],
        [models.constant("big", np.float32(1e9)), models.weights("w", 4, 4)],
    )
    result = quantized(made, tmp_path)
    assert not any("masks" in change for change in result.changes)
    assert result.snr_db is not None
    assert result.snr_db > 16


def test_layer_normalization_gets_the_only_type_of_scale_that_qnn_supports(tmp_path: Path) -> None:
    source = models.saved(models.attention(-1e4), tmp_path / "m.onnx")
    models.quantize(source, tmp_path / "q.onnx", masked_samples(tmp_path / "samples"))
    graph = onnx.load(str(tmp_path / "q.onnx")).graph
    made_by = {output: node for node in graph.node for output in node.output}
    norm = next(node for node in graph.node if node.op_type == "LayerNormalization")
    scale = made_by[norm.input[1]].input[0]
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert kinds[scale] == onnx.TensorProto.UINT8


def test_scales_per_channel_are_dropped_if_the_quantizer_refuses_them_with_layer_normalization(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime 1.20 to 1.23 refuse the combination; the test makes later ones refuse it, too."""
    from onnxruntime.quantization.execution_providers import qnn

    real = qnn.get_qnn_qdq_config

    def old(*arguments: Any, per_channel: bool, **others: Any) -> Any:
        if per_channel:
            raise ValueError("does not currently support the global per_channel option with LayerNormalization")
        return real(*arguments, per_channel=per_channel, **others)

    node = onnx.helper.make_node
    made = models.model(
        [
            node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
            node("LayerNormalization", ["c", "scale"], ["y"], axis=-1, name="norm"),
        ],
        [models.value("x", [1, 3, 16, 16])],
        [models.value("y", [1, 8, 16, 16])],
        [models.weights("w", 8, 3, 3, 3), models.constant("scale", np.linspace(0.5, 1.5, 16, dtype=np.float32))],
    )
    monkeypatch.setattr(qnn, "get_qnn_qdq_config", old)
    result = quantized(made, tmp_path)
    assert result.snr_db is not None
    assert result.snr_db > 26
    graph = onnx.load(str(tmp_path / "q.onnx")).graph
    weight = next(tensor for tensor in graph.initializer if list(tensor.dims) == [8, 3, 3, 3])
    assert weight.data_type == onnx.TensorProto.INT8
    reader = next(node for node in graph.node if node.input[:1] == [weight.name])
    assert [list(t.dims) for t in graph.initializer if t.name == reader.input[1]] == [[8]], (
        "a scale for each channel"
    )


def test_a_quantised_model_is_refused_with_an_explanation(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is already quantised") as caught:
        models.quantize(models.MODELS / "q.onnx", tmp_path / "o.onnx", random=3)
    assert "QuantizeLinear" in (caught.value.cause or "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "op", ["DynamicQuantizeMatMul", "MatMulInteger", "DynamicQuantizeLSTM", "MatMulIntegerToFloat"]
)
def test_a_dynamically_quantised_model_is_refused_with_advice(op: str, tmp_path: Path) -> None:
    node = onnx.helper.make_node(op, ["x", "w"], ["y"], domain="" if op == "MatMulInteger" else "com.microsoft")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])
    made = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], []))
    with pytest.raises(OptionError, match="is already quantised, dynamically") as caught:
        preparing.refuse_unsuitable(made, "m.onnx")
    assert f"1 {'' if op == 'MatMulInteger' else 'com.microsoft.'}{op}" in (caught.value.cause or "")
    assert "Quantise the original float model" in (caught.value.fix or "")


def test_classic_machine_learning_operators_are_refused_with_an_explanation(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not contain a neural network"):
        models.quantize(models.MODELS / "logreg_iris.onnx", tmp_path / "o.onnx", random=3)


def test_free_dimensions_are_refused_with_the_options_that_fix_them(tmp_path: Path) -> None:
    source = models.MODELS / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 48, 192), np.float32))
    with pytest.raises(OptionError, match="free dimensions") as caught:
        models.quantize(source, tmp_path / "o.onnx", tmp_path / "x.npy")
    fix = caught.value.fix or ""
    assert '--dim "x:2=48"' in fix
    assert '--dim "x:3=192"' in fix, "both axes have the name ?, so each is named by its number"
    told = command(source, "-o", tmp_path / "o.onnx", "--random", "3")
    assert told.returncode == 2
    assert "=SIZE" in told.output


def test_a_compiled_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompiledModelRefused, match=r"is a compiled model \(EPContext\)") as caught:
        models.quantize(models.COMPILED, tmp_path / "o.onnx", random=3)
    assert "qnnbridge quantize" in caught.value.message
    result = command(models.COMPILED, "-o", tmp_path / "o.onnx", "--random", "3")
    assert result.returncode != 0
    assert "original ONNX model" in result.output
    assert list(tmp_path.iterdir()) == []


# --- settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "activation", "weight"),
    [
        ({}, "UINT16", "INT8"),
        ({"activation_type": "uint8", "weight_type": "int8"}, "UINT8", "INT8"),
        ({"per_channel": False}, "UINT16", "UINT8"),
        ({"activation_type": "int8"}, "INT8", "INT8"),
        ({"activation_type": "int16"}, "INT16", "INT8"),
        ({"weight_type": "int4"}, "UINT16", "INT4"),
        ({"weight_type": "int16"}, "UINT16", "INT16"),
        ({"weight_type": "uint8", "symmetric_weights": True, "symmetric_activations": True}, "UINT16", "UINT8"),
        ({"method": "entropy", "activation_type": "uint8"}, "UINT8", "INT8"),
        ({"method": "percentile", "percentile": 99.9}, "UINT16", "INT8"),
    ],
)
def test_each_setting_gives_its_types(
    settings: dict[str, Any], activation: str, weight: str, tmp_path: Path
) -> None:
    result = quantized(models.conv_net(), tmp_path, **settings)
    graph = onnx.load(str(tmp_path / "q.onnx")).graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    zero_of_x = next(
        node.input[2] for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "x"
    )
    assert kinds[zero_of_x] == onnx.TensorProto.DataType.Value(activation)
    assert onnx.TensorProto.DataType.Value(weight) in kinds.values()
    assert result.snr_db is not None
    assert result.snr_db > 13


def test_percentile_calibration_ignores_outliers(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 5, tmp_path / "samples")
    spike = np.zeros((1, 3, 16, 16), np.float32)
    spike[0, 0, 0, 0] = 100
    np.savez(samples / "sample9.npz", x=spike)

    def scale_of_x(method: str) -> float:
        target = tmp_path / f"{method}.onnx"
        models.quantize(source, target, samples, method=method, percentile=99, held_out=0)
        graph = onnx.load(str(target)).graph
        name = next(node.input[1] for node in graph.node if node.input[0] == "x")
        return float(onnx.numpy_helper.to_array(next(t for t in graph.initializer if t.name == name)))

    assert scale_of_x("percentile") < scale_of_x("minmax") / 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"activation_type": "uint8", "weight_type": "int16"},
            "QNN cannot run uint8 activations with int16 weights",
        ),
        ({"activation_type": "int8", "weight_type": "uint8"}, "QNN cannot run int8 activations"),
        ({"weight_type": "uint8", "per_channel": True}, "cannot be quantised per channel"),
        ({"weight_type": "int4", "per_channel": False}, "int4"),
        ({"weight_type": "int8", "symmetric_weights": False}, "must be symmetric"),
        ({"activation_type": "float8"}, "not a valid activation type"),
        ({"method": "best"}, "not a valid method"),
        ({"percentile": 0.5, "method": "percentile"}, "percentile"),
    ],
)
def test_a_model_that_qnn_cannot_run_is_refused_before_any_work(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        models.quantize(models.MODELS / "sigmoid.onnx", tmp_path / "q.onnx", random=3, **settings)
    assert caught.value.fix


# --- results --------------------------------------------------------------------------------------------


def test_samples_for_the_comparison_are_not_used_for_calibration(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 20, tmp_path / "samples")
    result = models.quantize(source, tmp_path / "q.onnx", samples)
    assert (result.calibration_samples, result.compared_samples, result.held_out) == (16, 4, True)
    result = models.quantize(source, tmp_path / "q.onnx", samples, held_out=0, overwrite=True)
    assert (result.calibration_samples, result.held_out) == (20, False)
    assert any("calibration samples themselves" in warning for warning in result.warnings)
    with pytest.raises(OptionError, match="leave none for calibration"):
        models.quantize(source, tmp_path / "r.onnx", samples, held_out=20)


def on_cpu(path: Path, feeds: dict[str, Any]) -> Any:
    return cpu.run(cpu.open_session(path, "it"), feeds, "it")[0]


def snr_of(expected: Any, found: Any) -> float:
    return float(-10 * np.log10(np.sum(np.square(expected - found)) / np.sum(np.square(expected))))


def test_the_reported_difference_is_that_of_the_written_file(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    x = np.random.default_rng(5).standard_normal((1, 3, 16, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    result = models.quantize(source, tmp_path / "q.onnx", tmp_path / "x.npy", held_out=0, activation_type="uint8")
    expected, found = on_cpu(source, {"x": x}), on_cpu(tmp_path / "q.onnx", {"x": x})
    judged = result.outputs[0].whole.judged
    assert result.recalibration is None
    assert judged.max_abs == pytest.approx(float(np.abs(expected - found).max()), rel=1e-6)
    assert judged.snr_db == pytest.approx(snr_of(expected, found), abs=0.01)


def test_the_file_is_calibrated_with_all_samples_and_compared_with_the_folds_without_them(
    tmp_path: Path,
) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    x = np.random.default_rng(5).standard_normal((2, 3, 16, 16)).astype(np.float32)
    x[0] *= 2  # the held-out sample is louder: linspace(0, 1, 3)[1] rounds to the even number
    np.save(tmp_path / "x.npy", x)
    result = models.quantize(source, tmp_path / "q.onnx", tmp_path / "x.npy", held_out=1, activation_type="uint8")
    np.save(tmp_path / "rest.npy", x[1:])
    models.quantize(source, tmp_path / "r.onnx", tmp_path / "rest.npy", held_out=0, activation_type="uint8")
    held = {"x": x[:1]}
    expected, judged = on_cpu(source, held), result.outputs[0].whole.judged
    assert judged.snr_db == pytest.approx(snr_of(expected, on_cpu(tmp_path / "r.onnx", held)), abs=0.01)
    assert result.recalibration is not None
    assert (result.recalibration.kept, result.recalibration.samples) == (True, 2)
    written = snr_of(expected, on_cpu(tmp_path / "q.onnx", held))
    assert result.recalibration.snr_db["the CPU"] == pytest.approx(written, abs=0.01)
    assert written > judged.snr_db + 3, "what was cut off is not any more"
    (told,) = [change for change in result.changes if "all 2 samples" in change]
    assert f"{written:.1f} dB on the CPU" in told


def test_the_limits_of_a_clip_are_not_changed(tmp_path: Path) -> None:
    """The quantizer removes the Clip: with wider ranges, values above its limit would be returned."""
    made = models.model(
        [
            onnx.helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
            onnx.helper.make_node("Clip", ["c", "low", "high"], ["d"], name="clip"),
            onnx.helper.make_node("Conv", ["d", "w"], ["y"], name="last"),
        ],
        [models.value("x", [1, 4, 8, 8])],
        [models.value("y", [1, 4, 8, 8])],
        [
            models.constant("w", np.random.default_rng(1).uniform(-1, 1, (4, 4, 1, 1)).astype(np.float32)),
            models.constant("low", np.float32(0)),
            models.constant("high", np.float32(0.5)),
        ],
    )
    source = models.saved(made, tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 8, tmp_path / "samples")
    result = models.quantize(source, tmp_path / "q.onnx", samples, weight_type="int16")
    loud = {"x": 1.3 * np.load(next(iter(sorted(samples.glob("*.np*")))))["x"]}
    assert snr_of(on_cpu(source, loud), on_cpu(tmp_path / "q.onnx", loud)) > 60
    assert result.snr_db is not None
    assert result.snr_db > 60


def test_a_poor_result_causes_a_warning_with_suggestions(tmp_path: Path) -> None:
    samples = masked_samples(tmp_path / "samples")
    # Too small to count as a mask, and too large for 256 steps.
    source = models.saved(models.attention(-9e3), tmp_path / "m.onnx")
    result = models.quantize(source, tmp_path / "q.onnx", samples, activation_type="uint8")
    warning = next(warning for warning in result.warnings if "is useless against the float model" in warning)
    assert "--activation-type uint16" in warning
    assert "more samples" in warning


def test_a_poor_model_is_printed_with_the_command_that_improves_it(tmp_path: Path) -> None:
    samples = masked_samples(tmp_path / "my samples")
    source = models.saved(models.attention(-9e3), tmp_path / "m.onnx")
    target = tmp_path / "q.onnx"
    arguments = ["quantize", source, "-o", target, "--calibration", samples, "--no-check-qnn"]
    poor = qnnbridge(*arguments, "--activation-type", "uint8")
    (line,) = [line for line in poor.stdout.splitlines() if line.startswith("For a better model: ")]
    words = shlex.split(line.removeprefix("For a better model: "))
    assert words[:2] == ["qnnbridge", "quantize"]
    assert words[-3:] == ["--activation-type", "uint16", "--overwrite"]
    better = qnnbridge(*words[1:])
    assert better.returncode == 0, better.stderr
    document = json.loads(qnnbridge(*words[1:], "--json").stdout)
    assert document["verdict"] not in ("poor", "useless")
    assert document["next_command"] is None
    assert "For a better model" not in better.stdout


def test_weight_types_on_which_the_quantizer_fails_are_not_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = candidates.with_headroom
    failed = []

    def failing(judge: Any, trial: Any, start: Any, told: str = "") -> Any:
        if told.startswith("weights"):
            failed.append(told)
            raise ModelError("onnxruntime's quantizer failed.")
        return real(judge, trial, start, told)

    monkeypatch.setattr(candidates, "with_headroom", failing)
    result = quantized(models.conv_net(), tmp_path)
    assert failed
    assert not any(change.startswith("weights are uint8") for change in result.changes)
    assert result.outputs


def test_random_samples_are_used_only_on_request_and_with_a_warning(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match="No calibration samples"):
        models.quantize(source, tmp_path / "q.onnx")
    result = models.quantize(source, tmp_path / "q.onnx", random=4, held_out=2)
    assert (result.calibration_samples, result.compared_samples) == (4, 2)
    assert any("random values" in warning for warning in result.warnings)
    again = models.quantize(source, tmp_path / "r.onnx", random=4, held_out=2)
    assert (tmp_path / "q.onnx").read_bytes() == (tmp_path / "r.onnx").read_bytes()
    assert again.outputs == result.outputs
    with pytest.raises(OptionError, match="cannot be combined"):
        models.quantize(source, tmp_path / "s.onnx", tmp_path, random=4)


def test_nodes_in_branches_are_reported_as_staying_float(tmp_path: Path) -> None:
    source = models.saved(models.branching(), tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 4, tmp_path / "samples")
    result = models.quantize(source, tmp_path / "q.onnx", samples)
    assert any("2 nodes inside If" in warning for warning in result.warnings)
    assert "If" in op_types(tmp_path / "q.onnx")


def test_external_weights_are_quantised_and_stay_external(tmp_path: Path) -> None:
    made = models.model(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        [models.value("x", ["N", 64])],
        [models.value("y", ["N", 64])],
        [models.weights("w", 64, 64)],
    )
    source = models.saved(made, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "second-name").hardlink_to(tmp_path / "w.bin")  # as package caches store it
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((5, 1, 64)).astype(np.float32))
    result = models.quantize(source, tmp_path / "out" / "q.onnx", tmp_path / "x.npy", dims={"N": 1})
    assert result.snr_db is not None
    assert result.snr_db > 26
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in result.files)
    assert result.bytes_after < result.bytes_before
    (tmp_path / "w.bin").unlink()
    with pytest.raises(NoSuchFile, match=r"w\.bin"):
        models.quantize(source, tmp_path / "r.onnx", tmp_path / "x.npy", dims={"N": 1})


def test_a_failure_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxruntime.quantization import qdq_quantizer

    def fails(*arguments: object) -> None:
        raise KeyError("input1_scale")

    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 3, tmp_path / "samples")
    monkeypatch.setattr(qdq_quantizer.QDQQuantizer, "quantize_model", fails)
    with pytest.raises(ModelError, match="quantizer failed") as caught:
        models.quantize(source, tmp_path / "q.onnx", samples)
    assert "KeyError: 'input1_scale'" in (caught.value.cause or "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "samples"]


def test_existing_files_and_the_input_are_not_overwritten(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    (tmp_path / "q.onnx").write_bytes(b"mine")
    with pytest.raises(OptionError, match="exists already"):
        models.quantize(source, tmp_path / "q.onnx", random=3)
    with pytest.raises(OptionError, match="the input itself"):
        models.quantize(source, source, random=3, overwrite=True)
    assert (tmp_path / "q.onnx").read_bytes() == b"mine"


def test_the_report_and_the_document_contain_the_figures(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 12, tmp_path / "samples")
    arguments = [source, "-o", tmp_path / "q.onnx", "--calibration", samples]
    shown = command(*arguments)
    assert shown.returncode == 0, shown.output
    assert "held-out samples" in shown.output
    assert "per channel" in shown.output
    assert "calibrating 12/12" in shown.stderr
    told = json.loads(command(*arguments, "--overwrite", "--json", "--method", "entropy").stdout)
    assert told["settings"]["method"] == "entropy"
    assert told["calibration_samples"] == 10
    assert told["snr_db"] == min(output["worst_snr_db"] for output in told["outputs"])
    # Two samples are held out, and entropy does not support folds.
    assert (told["verdict"], told["folds"], told["reached"]) == ("not shown", None, True)
    assert told["outputs"][0]["verdict"] == "good"
    assert told["qnn"] is None


# --- unusual models -------------------------------------------------------------------------------------


def sequence_input() -> Any:
    sequence = onnx.helper.make_tensor_sequence_value_info("s", models.FLOAT, None)
    return models.one_node("SequenceLength", [sequence], [models.value("n", [], models.INT64)])


def no_inputs() -> Any:
    node = onnx.helper.make_node("Relu", ["w"], ["y"])
    return models.model([node], [], [models.value("y", [4])], [models.weights("w", 4)])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            models.one_node("Relu", [models.value("x", [0, 3])], [models.value("y", [0, 3])]),
            "dimension of size 0",
        ),
        (
            models.one_node(
                "Identity",
                [models.value("s", [1], onnx.TensorProto.STRING)],
                [models.value("t", [1], onnx.TensorProto.STRING)],
            ),
            "is a string tensor",
        ),
        (sequence_input(), "is a sequence"),
        (no_inputs(), "no input"),
        (
            models.one_node(
                "Add",
                [models.value("a", [2], models.INT64), models.value("b", [2], models.INT64)],
                [models.value("y", [2], models.INT64)],
            ),
            "has no operator that can be quantised",
        ),
        (
            models.one_node(
                "Relu",
                [models.value("x", [2], onnx.TensorProto.BFLOAT16)],
                [models.value("y", [2], onnx.TensorProto.BFLOAT16)],
            ),
            "calibration files cannot contain",
        ),
    ],
    ids=["zero size", "text", "sequence", "no inputs", "integers only", "bfloat16"],
)
def test_models_that_cannot_be_quantised_are_refused_with_an_explanation(
    made: Any, words: str, tmp_path: Path
) -> None:
    source = models.saved(made, tmp_path / "m.onnx")
    with pytest.raises(OptionError, match=words) as caught:
        models.quantize(source, tmp_path / "q.onnx", random=3)
    assert caught.value.fix
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_functions_of_the_model_are_inlined(tmp_path: Path) -> None:
    node, opset = onnx.helper.make_node, onnx.helper.make_opsetid("", 17)
    twice = onnx.helper.make_function("my", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [opset])
    made = models.model(
        [node("Twice", ["x"], ["z"], domain="my"), node("MatMul", ["z", "w"], ["y"])],
        [models.value("x", [1, 4])],
        [models.value("y", [1, 4])],
        [models.weights("w", 4, 4)],
        domains={"my": 1},
    )
    made.functions.append(twice)
    result = quantized(made, tmp_path)
    assert result.snr_db is not None
    assert result.snr_db > 26
    assert "Twice" not in op_types(tmp_path / "q.onnx")


def test_a_mask_of_minus_infinity_is_reduced_so_that_scores_keep_their_steps(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    made = models.model(
        [
            node("MatMul", ["x", "w"], ["scores"], name="scores"),
            node("Cast", ["m"], ["seen"], to=onnx.TensorProto.BOOL, name="cast"),
            node("Where", ["seen", "scores", "never"], ["masked"], name="where"),
            node("Softmax", ["masked"], ["y"], axis=-1, name="softmax"),
        ],
        [models.value("x", [1, 8]), models.value("m", [1, 8])],
        [models.value("y", [1, 8])],
        [models.weights("w", 8, 8), models.constant("never", np.float32("-inf"))],
    )
    source = models.saved(made, tmp_path / "m.onnx")
    samples = tmp_path / "samples"
    samples.mkdir()
    for number in range(6):
        mask = np.eye(1, 8, number, dtype=np.float32) + np.eye(1, 8, 7, dtype=np.float32)
        np.savez(samples / f"{number}.npz", x=np.random.default_rng(number).random((1, 8), np.float32), m=mask)
    result = models.quantize(source, tmp_path / "q.onnx", samples)
    assert any("masks" in change for change in result.changes)
    assert result.snr_db is not None
    assert result.snr_db > 16


def test_a_model_that_returns_only_nan_is_reported_before_it_is_quantised(tmp_path: Path) -> None:
    source = models.saved(models.attention(float("-inf")), tmp_path / "m.onnx")  # 0 times infinity
    with pytest.raises(ModelError, match=r'output "y" .* NaN or infinite'):
        models.quantize(source, tmp_path / "q.onnx", masked_samples(tmp_path / "samples"))


def test_a_model_that_the_cpu_cannot_run_is_reported(tmp_path: Path) -> None:
    made = models.one_node("NoSuchOperator", [models.value("x", [2])], [models.value("y", [2])])
    result = command(models.saved(made, tmp_path / "m.onnx"), "-o", tmp_path / "q.onnx", "--random", "3")
    assert result.returncode == 2
    assert "NoSuchOperator" in result.output
    assert "Traceback" not in result.output
