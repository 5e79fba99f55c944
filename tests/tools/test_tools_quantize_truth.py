"""`qnnbridge quantize` reports the accuracy of each output, and keeps sensitive parts in 16 bits or float."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from tests import needs
from tests.fakes.commands import qnnbridge

pytest.importorskip("onnxruntime")

import model_work_models as models

from qnnbridge_models.accuracy import ColumnGroup, labelled, measure
from qnnbridge_models.quantize import QnnHostOptions, QuantizeResult, precision
from qnnbridge_models.quantize.search import smallest
from qnnbridge_protocol.errors import OptionError


def measured(expected: Any, found: Any, groups: Any = None) -> Any:
    """Return the measures of one output with one sample."""
    return measure(["y"], [[np.asarray(expected)]], [[np.asarray(found)]], groups)[0]


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model with boxes and scores in one output, and its samples."""
    folder = tmp_path_factory.mktemp("detector")
    rng = np.random.default_rng(3)
    for number in range(30):
        blocks = np.kron(rng.random((1, 3, 8, 8)), np.ones((8, 8)))
        np.savez(folder / f"{number}.npz", x=(0.8 * blocks + 0.2 * rng.random((1, 3, 64, 64))).astype(np.float32))
    return models.saved(models.boxes_and_scores(), folder / "m.onnx"), folder


def speech(count: int) -> npt.NDArray[np.float32]:
    """Return vowels with pauses between them, at 16 kHz."""
    rng = np.random.default_rng(0)
    t = np.arange(int(0.6 * 16000)) / 16000
    sound = 0.003 * rng.standard_normal(count)
    for start in range(1600, count - len(t), 16000):
        pitch = 110 + 120 * rng.random()
        voice = sum(np.sin(2 * np.pi * pitch * h * t * (1 + 0.02 * np.sin(25 * t))) / h for h in range(1, 25))
        sound[start : start + len(t)] += 0.15 * (0.05 + rng.random()) * voice * np.hanning(len(t))
    return sound.astype(np.float32)


@pytest.fixture(scope="module")
def speech_samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return samples of a speech detector: pieces of sound, and the state after the previous pieces."""
    import onnxruntime

    folder = tmp_path_factory.mktemp("speech")
    session = onnxruntime.InferenceSession(models.MODELS / "silero_vad_openvino_16k.onnx")
    sound, state = speech(5 * 16000), np.zeros((2, 1, 128), np.float32)
    for number, start in enumerate(range(64, len(sound) - 512, 512)):
        feeds = {"input": sound[None, start - 64 : start + 512], "state": state}
        if number % 3 == 0:
            np.savez(folder / f"{number}.npz", **feeds)
        state = session.run(None, feeds)[1]
    return folder


@pytest.mark.parametrize(
    ("expected", "found", "verdict"),
    [
        (
            lambda n: np.array(["a"] * 3000, object),
            lambda n: np.array(["a"] * 1500 + ["b"] + ["a"] * 1499, object),
            "useless",
        ),
        (lambda n: np.array(["a", "bc"]), lambda n: np.array(["a", "bc"], object), "exact"),
        (lambda n: [{"cat": n / 9, "dog": 1 - n / 9}], lambda n: [{"cat": n / 9 + 1e-5, "dog": 1 - n / 9}], "good"),
        (lambda n: [np.float32([1, 2, n])], lambda n: [np.float32([n, 2, 1])], "useless"),
        (lambda n: [np.zeros(2), np.zeros(3)], lambda n: [np.zeros(2), np.ones(3)], "useless"),
    ],
    ids=["one text of many", "texts of a file", "probabilities by name", "a sequence", "a sequence of many forms"],
)
def test_outputs_that_are_not_numeric_tensors_are_compared_as_a_whole(
    expected: Callable[[int], Any], found: Callable[[int], Any], verdict: str
) -> None:
    numbers = range(8)
    one = measure(["y"], [[expected(n)] for n in numbers], [[found(n)] for n in numbers])[0]
    assert one.verdict == verdict, one


# --- measures -------------------------------------------------------------------------------------------


def test_an_output_of_a_single_number_is_not_perfect_because_of_its_cosine() -> None:
    """A speech detector that was wrong by 66.7 % had a cosine of 1."""
    one = measure(
        ["p"], [[np.float32([[0.9]])], [np.float32([[0.6]])]], [[np.float32([[0.3]])], [np.float32([[0.2]])]]
    )[0]
    assert one.snr_db == pytest.approx(3.5, abs=0.05)
    assert one.whole.judged.max_relative == pytest.approx(0.667, abs=1e-3)
    assert one.verdict == "useless"


def test_wrong_boxes_are_detected_in_their_own_channel() -> None:
    expected = np.random.default_rng(0).uniform(0, 320, (1, 4, 100)).astype(np.float32)
    found = expected.copy()
    found[0, 2] = np.abs(expected[0, 2] - 150)
    one = measured(expected, found)
    assert one.worst_channel is not None
    assert one.worst_channel.name == "channel 2"
    assert one.worst_channel.verdict == "useless"
    assert one.whole.judged.max_abs > 100


def test_wrong_scores_are_useless_even_with_right_boxes() -> None:
    rng = np.random.default_rng(0)
    expected = np.concatenate([rng.uniform(0, 320, (1, 4, 50)), rng.random((1, 8, 50))], axis=1).astype(np.float32)
    found = expected.copy()
    found[:, 4:] = 0
    one = measured(expected, found)  # no graph shows which outputs are scores
    assert [group.name for group in one.groups] == ["columns 0 to 3 of axis 1", "columns 4 to 11 of axis 1"]
    assert [group.verdict for group in one.groups] == ["exact", "useless"]
    assert one.groups[1].flat
    assert one.whole.verdict == "good", "as a whole nothing is to be seen"
    assert one.verdict == "useless"


def test_small_probabilities_are_not_a_separate_group() -> None:
    """No false alarm: classes that never occur have scores near 0, and their errors do not matter."""
    expected = np.zeros((4, 50, 40), np.float32)
    expected[..., :3] = np.random.default_rng(0).random((4, 50, 3))
    expected[..., 3:] = 1e-5
    one = measured(expected, expected + np.float32(2e-3))
    assert not one.groups
    assert one.verdict in ("good", "fair")


@pytest.mark.parametrize(
    ("expected", "found", "verdict"),
    [
        (np.float32([1, 2, 3, 4]), np.float32([1, 2, 3, 4]), "exact"),
        (np.float32([1, 2, 3, 4]), np.float32([1.001, 2, 3, 4]), "good"),
        (np.float32([1, 2, 3, 4]), np.float32([1.1, 2, 3, 4.2]), "fair"),
        (np.float32([1, 2, 3, 4]), np.float32([1.4, 2, 3, 4.8]), "poor"),
        (np.float32([1, 2, 3, 4]), np.float32([2, 1, 1, 2]), "useless"),
        (np.float32([1, 2, 3, 4]), np.float32([1, 2, np.nan, 4]), "poor"),
        (np.float32([1, 2, 3, 4]), np.float32([np.nan, np.nan, np.nan, 4]), "useless"),
        (np.float32([5, 5, 5, 5]), np.float32([5, 5.05, 5, 5]), "not shown"),
        (np.int64([1, 2, 3, 4]), np.int64([1, 2, 3, 4]), "exact"),
        (np.int64([1, 2, 3, 4]), np.int64([9, 9, 9, 4]), "useless"),
        (np.float32([1, 2]), np.float32([1, 2, 3]), "useless"),
        (np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), "not shown"),
        (np.array(["a"], object), np.array(["a"], object), "exact"),
    ],
)
def test_outputs_get_the_expected_verdicts(expected: Any, found: Any, verdict: str) -> None:
    one = measured(expected, found)
    assert one.verdict == verdict
    json.dumps(one.document(), default=str)


def test_a_group_of_columns_is_named_by_its_axis_and_range() -> None:
    mask = np.zeros((1, 12, 80), bool)
    mask[:, 4:] = True
    assert labelled("scores", mask) == "scores (columns 4 to 11 of axis 1)"
    mask[0, 2, 5] = True
    assert labelled("scores", mask) == "scores"
    group = ColumnGroup("scores", "scores", mask)
    one = measured(np.ones((1, 12, 80), np.float32), np.ones((1, 12, 80), np.float32), {"y": [group]})
    assert one.groups[0].judged.values == mask.sum()


# --- outputs that join branches -----------------------------------------------------------------------------


def test_branches_of_different_magnitude_are_quantised_separately(
    detector: tuple[Path, Path], tmp_path: Path
) -> None:
    source, samples = detector
    apart = models.quantize(source, tmp_path / "a.onnx", samples, activation_type="uint8")
    joined = models.quantize(source, tmp_path / "j.onnx", samples, activation_type="uint8", split_outputs=False)
    assert apart.precision.float_nodes == {"join", "turn"}
    assert any("quantised separately" in change for change in apart.changes)
    (output,) = joined.outputs
    assert [group.name for group in output.groups] == [
        "boxes (columns 0 to 3 of axis 2)",
        "scores (columns 4 to 11 of axis 2)",
    ]
    assert (joined.verdict, joined.good_enough) == ("useless", False)
    assert any(
        "scores (columns 4 to 11 of axis 2)" in warning and "useless" in warning for warning in joined.warnings
    )
    assert apart.snr_db is not None
    assert apart.snr_db > 35
    assert apart.good_enough
    graph = onnx.load(str(tmp_path / "a.onnx")).graph
    assert [value.name for value in graph.output] == ["output0"], "the interface stays"


def test_columns_of_different_magnitude_without_a_join_are_computed_in_float(tmp_path: Path) -> None:
    """One MatMul returns pixels and scores: 8 bits for all of its weights lose the weights of the scores."""
    node = onnx.helper.make_node
    weights = np.random.default_rng(1).standard_normal((16, 12)).astype(np.float32) / 4
    weights[:, :4] *= 300
    made = models.model(
        [
            node("MatMul", ["x", "v"], ["t"], name="body"),
            node("MatMul", ["t", "w"], ["m"], name="head"),
            node("Relu", ["m"], ["y"], name="relu"),
        ],
        [models.value("x", [1, 40, 16])],
        [models.value("y", [1, 40, 12])],
        [models.weights("v", 16, 16), models.constant("w", weights)],
    )
    source = models.saved(made, tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 6, tmp_path / "samples")
    mixed = models.quantize(source, tmp_path / "q.onnx", samples)
    plain = models.quantize(source, tmp_path / "p.onnx", samples, split_outputs=False)
    assert mixed.precision.float_nodes == {"head", "relu"}
    assert not plain.precision.float_nodes
    assert plain.verdict == "useless"
    assert mixed.snr_db is not None
    assert mixed.snr_db > 25


def test_a_useless_result_exits_with_1(detector: tuple[Path, Path], tmp_path: Path) -> None:
    source, samples = detector
    given = [
        "quantize",
        str(source),
        "-o",
        str(tmp_path / "q.onnx"),
        "--calibration",
        str(samples),
        "--no-check-qnn",
    ]
    told = qnnbridge(*given, "--activation-type", "uint8", "--no-split-outputs")
    assert told.returncode == 1
    assert "useless on the CPU" in told.stdout
    assert (tmp_path / "q.onnx").exists(), "to be looked into"


def test_branches_of_similar_magnitude_stay_quantised(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 4, tmp_path / "samples")
    assert not models.quantize(source, tmp_path / "q.onnx", samples).precision.float_nodes


# --- precision of single nodes ------------------------------------------------------------------------------


def test_excluded_nodes_stay_float(detector: tuple[Path, Path], tmp_path: Path) -> None:
    source, samples = detector
    result = models.quantize(source, tmp_path / "q.onnx", samples, exclude=("stem", "cls?", "Sigmoid"))
    assert result.precision.float_nodes == {"stem", "cls1", "cls2", "box_sig", "cls_sig", "join", "turn"}
    weights = {tensor.name: tensor.data_type for tensor in onnx.load(str(tmp_path / "q.onnx")).graph.initializer}
    assert weights["w0"] == onnx.TensorProto.FLOAT
    assert weights["w1_quantized"] == onnx.TensorProto.INT8


def test_wide_nodes_have_16_bits(detector: tuple[Path, Path], tmp_path: Path) -> None:
    source, samples = detector
    models.quantize(source, tmp_path / "w.onnx", samples, wide=("stem",))
    weights = {tensor.name: tensor.data_type for tensor in onnx.load(str(tmp_path / "w.onnx")).graph.initializer}
    assert weights["w0_quantized"] == onnx.TensorProto.INT16
    assert weights["w1_quantized"] == onnx.TensorProto.INT8
    models.quantize(source, tmp_path / "a.onnx", samples, wide=("box_px",), activation_type="uint8")
    zeros = {
        tensor.data_type for tensor in onnx.load(str(tmp_path / "a.onnx")).graph.initializer if not tensor.dims
    }
    assert {onnx.TensorProto.UINT8, onnx.TensorProto.UINT16} <= zeros


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"exclude": ("stm",)}, "matches no node of the model"),
        ({"wide": ("Softmax",)}, "matches no node of the model"),
        ({"wide": ("stem",), "weight_type": "int16"}, "--wide has no effect"),
        ({"target_snr": -3.0}, "not a valid target"),
    ],
)
def test_unknown_node_names_are_refused(
    given: dict[str, Any], words: str, detector: tuple[Path, Path], tmp_path: Path
) -> None:
    source, samples = detector
    with pytest.raises(OptionError, match=words) as caught:
        models.quantize(source, tmp_path / "q.onnx", samples, **given)
    assert caught.value.fix
    assert not (tmp_path / "q.onnx").exists()
    if given.get("exclude"):
        assert "stem" in (caught.value.cause or "")


# --- the search ---------------------------------------------------------------------------------------------


def test_the_layers_with_the_largest_loss_are_found() -> None:
    """Return 100 layers, three of which cause nearly all the noise, which adds up."""
    layers = [precision.Layer(f"n{n}", "Conv", frozenset((f"t{n}",))) for n in range(100)]
    noise = {f"t{n}": 1e-6 for n in range(100)} | {"t7": 3e-3, "t50": 1e-2, "t51": 2e-3}
    runs = 0

    def snr_of(tensors: frozenset[str]) -> float:
        nonlocal runs
        runs += 1
        return float(-10 * np.log10(sum(noise[name] for name in tensors)))

    found = precision.noisiest(layers, snr_of, 5e-4, 100)
    assert [one.layer.node for one in found] == ["n50", "n7", "n51"]
    assert found[0].snr_db == pytest.approx(20.0)
    assert runs < 60
    assert len(precision.noisiest(layers, snr_of, 0.0, 10)) <= 100, "the budget ends it"


def test_the_smallest_part_that_must_stay_float_is_found() -> None:
    nodes = [f"n{n}" for n in range(64)]
    kept = smallest(nodes, lambda part: {"n5", "n40"} <= set(part), 100, 1e12)
    assert kept == ["n5", "n40"]
    assert smallest(nodes, lambda part: False, 100, 1e12) is None
    few = smallest(nodes, lambda part: {"n5", "n40"} <= set(part), 4, 1e12)
    assert few is not None
    assert {"n5", "n40"} <= set(few)


def test_a_model_with_all_tensors_quantised_equals_the_quantised_model(
    detector: tuple[Path, Path], tmp_path: Path
) -> None:
    """The figures of single layers rely on this: with nothing quantised, the model is the float model, and with
    everything quantised, it is the whole quantised model.
    """
    source, samples = detector
    with_report = models.quantize(source, tmp_path / "q.onnx", samples, activation_type="uint8", layer_report=True)
    assert with_report.layers
    assert with_report.layers[0].snr_db == min(one.snr_db for one in with_report.layers)
    total = -10 * np.log10(sum(one.noise for one in with_report.layers))
    assert with_report.snr_db == pytest.approx(total, abs=3.0), "noises nearly add up"


def test_a_target_is_reached_with_the_fewest_changes(speech_samples: Path, tmp_path: Path) -> None:
    """Return a speech detector whose spectrogram has squares of tiny and of large numbers, for which 8 bits are too
    few.
    """
    source = models.MODELS / "silero_vad_openvino_16k.onnx"
    plain = models.quantize(source, tmp_path / "p.onnx", speech_samples, activation_type="uint8")
    assert plain.snr_db is not None
    assert plain.verdict == "useless"
    mixed = models.quantize(source, tmp_path / "m.onnx", speech_samples, activation_type="uint8", target_snr=25.0)
    assert mixed.snr_db is not None
    assert mixed.snr_db >= 25
    assert mixed.reached
    assert any("stft" in one.layer.node for one in mixed.layers[:3])
    graph = onnx.load(str(tmp_path / "m.onnx")).graph
    quantised = sum(node.op_type == "QuantizeLinear" for node in graph.node)
    assert quantised >= 10, "only what has to is left in float"


def test_an_unreachable_target_is_reported(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 4, tmp_path / "samples")
    result = models.quantize(source, tmp_path / "q.onnx", samples, target_snr=20.0, search_timeout_s=0.0)
    assert result.reached
    short = models.quantize(source, tmp_path / "r.onnx", samples, target_snr=79.0, search_timeout_s=0.0)
    assert not short.reached
    assert not short.good_enough
    assert any("79 dB were requested" in warning for warning in short.warnings)


# --- QNN ------------------------------------------------------------------------------------------------------


def on_qnn(result: QuantizeResult) -> float:
    assert result.qnn is not None
    assert result.qnn.error is None, result.qnn.error
    return min(output.snr_db for output in result.qnn.against_float if output.snr_db is not None)


@needs.long_form
@pytest.mark.simulator
@pytest.mark.process
def test_the_target_is_reached_on_qnn(detector: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    source, samples = detector
    result = models.quantize(
        source, tmp_path / "q.onnx", samples, target_snr=44.0, qnn=QnnHostOptions(timeout_s=100)
    )
    assert result.qnn is not None
    assert result.qnn.chip == "60", "a chip stands in on the simulator"
    assert result.reached
    assert on_qnn(result) >= 44
    assert "body1" not in result.precision.wide_weights, "QNN cannot finalize it: stride 4 with int16 weights"


@pytest.mark.process
def test_a_machine_without_qnn_is_reported_and_not_an_error(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    nowhere = QnnHostOptions(python="/no/such/python", required=False)
    result = models.quantize(source, tmp_path / "q.onnx", random=4, qnn=nowhere)
    assert result.qnn is not None
    assert result.qnn.absent
    assert any("Not checked on QNN" in warning for warning in result.warnings)
    assert result.good_enough
