"""Sources and options of sessions: paths and bytes, external data, overrides, initializers, optimization."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import external_data_helper

pytest.importorskip("onnxruntime_qnn")

import qnnbridge
from tests.contract.both_sides import assert_same_error, assert_same_run, is_logged, nodes, two_sessions
from tests.contract.small_models import CPU, MODELS, QNN, Shape, add_and_multiply, model, node, tensor

pytestmark = pytest.mark.simulator

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def scaled(shape: Shape = (2, 4)) -> onnx.ModelProto:
    """Return a model that computes y = x * w + w, with a weight that can be replaced or stored externally."""
    return model(
        [node("Mul", ["x", "w"], ["m"]), node("Add", ["m", "w"], ["y"])],
        [tensor("x", shape)],
        [tensor("y", shape)],
        {"w": np.array([1, 2, 3, 4], np.float32)},
    )


def with_external_data(folder: Path) -> Path:
    path = folder / "outside.onnx"
    made = scaled()
    external_data_helper.convert_model_to_external_data(made, location="weights.bin", size_threshold=0)
    onnx.save(made, path)
    assert (folder / "weights.bin").stat().st_size == 16
    return path


@pytest.mark.parametrize("as_bytes", [False, True])
def test_external_weights_without_their_length_run_on_qnn_as_well(
    as_bytes: bool, host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX requires only the name of the file. QNN treats a missing length as 0."""
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    made = model(
        [node("MatMul", ["x", "w"], ["y"])], [tensor("x", (1, 64))], [tensor("y", (1, 64))], {"w": weights}
    )
    outside = made.graph.initializer[0]
    (tmp_path / "w.bin").write_bytes(bytes(4096) + outside.raw_data)
    outside.ClearField("raw_data")
    outside.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "4096")):
        entry = outside.external_data.add()
        entry.key, entry.value = key, value
    path = tmp_path / "outside.onnx"
    path.write_bytes(made.SerializeToString())
    monkeypatch.chdir(tmp_path)
    x = np.ones((1, 64), np.float32)
    for cache in (False, True, True):
        given = path.read_bytes() if as_bytes else path
        with qnnbridge.InferenceSession(given, host=host, providers=[QNN], cache=cache) as session:
            assert session.placement.qnn_nodes == 1
            np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weights, atol=0.05)
    assert path.read_bytes() == made.SerializeToString()


# --- sources of the model --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["plain.onnx", "with space.onnx", "Grüße 語 🙂.onnx", "quo'te\"s & %41#.onnx", "no_suffix"],
)
def test_a_model_is_found_under_any_file_name(name: str, host: qnnbridge.Host, tmp_path: Path) -> None:
    folder = tmp_path / "Ordner mit Ümläuten"
    folder.mkdir()
    path = folder / name
    shutil.copy(MODELS / "mul_1.onnx", path)
    x = np.ones((3, 2), np.float32)
    for providers in ([QNN], [CPU]):
        with qnnbridge.InferenceSession(path, providers=providers, host=host) as session:
            assert session.run(None, {"X": x})[0].shape == (3, 2)


@pytest.mark.parametrize(
    "form",
    [os.fspath, Path, Path.read_bytes, lambda path: bytearray(path.read_bytes())],
    ids=["str", "PathLike", "bytes", "bytearray"],
)
def test_a_model_is_given_as_path_or_as_bytes(form: Callable[[Path], Any], host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(form(MODELS / "mul_1.onnx"), host=host) as session:
        assert session.run(None, {"X": np.ones((3, 2), np.float32)})[0].shape == (3, 2)


def test_a_relative_path_is_resolved_in_the_working_folder_of_the_application(
    host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(MODELS / "mul_1.onnx", tmp_path / "here.onnx")
    monkeypatch.chdir(tmp_path)
    with qnnbridge.InferenceSession("here.onnx", host=host) as session:
        assert session.placement.qnn_nodes == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows deletes no folder that is in use")
def test_an_absolute_path_needs_no_working_folder(
    host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with qnnbridge.InferenceSession(MODELS / "mul_1.onnx", host=host) as session:
        assert session.placement.qnn_nodes == 1


@pytest.mark.parametrize("providers", [[QNN], [CPU]])
def test_weights_in_a_file_in_the_folder_of_the_model_are_found(
    providers: list[str], host: qnnbridge.Host, tmp_path: Path
) -> None:
    path = with_external_data(tmp_path)
    with qnnbridge.InferenceSession(path, providers=providers, host=host) as session:
        result = session.run(None, {"x": X})[0]
    np.testing.assert_allclose(result, X * [1, 2, 3, 4] + [1, 2, 3, 4], rtol=1e-3)  # the NPU computes in float16


def test_the_error_for_missing_weights_names_their_file(host: qnnbridge.Host, tmp_path: Path) -> None:
    path = with_external_data(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(qnnbridge.BridgeError, match=r"weights\.bin"):
        qnnbridge.InferenceSession(path, providers=[CPU], host=host)


# --- dimensions ------------------------------------------------------------------------------------------


def test_free_dimensions_are_fixed_by_name_and_by_denotation(host: qnnbridge.Host) -> None:
    made = add_and_multiply()
    for value in made.graph.input:
        value.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"

    def by_name(_: Any, options: Any) -> None:
        options.add_free_dimension_override_by_name("batch", 4)

    def by_denotation(_: Any, options: Any) -> None:
        options.add_free_dimension_override_by_denotation("DATA_BATCH", 4)

    for prepare in (by_name, by_denotation):
        with two_sessions(host, made.SerializeToString(), prepare) as (direct, bridged):
            assert nodes(bridged.get_inputs()) == nodes(direct.get_inputs())
            assert [list(arg.shape) for arg in bridged.get_inputs()] == [[4, 3], [4, 3]]
            assert_same_run(direct, bridged, {name: np.ones((4, 3), np.float32) for name in "ab"})
            assert_same_run(direct, bridged, {name: np.ones((5, 3), np.float32) for name in "ab"})


def test_a_dynamic_model_runs_on_qnn_once_its_dimensions_are_fixed(host: qnnbridge.Host) -> None:
    options = qnnbridge.SessionOptions()
    for name, size in (("N", 1), ("M1", 60), ("M2", 60)):
        options.add_free_dimension_override_by_name(name, size)
    with qnnbridge.InferenceSession(MODELS / "pnet.onnx", options, host=host) as session:
        assert (session.placement.qnn_nodes > 0, session.placement.cpu_nodes) == (True, 0)
        assert session.get_inputs()[0].shape == [1, 60, 60, 3]
        assert session.run(None, {"input_1": np.ones((1, 60, 60, 3), np.float32)})[0].shape[0] == 1


# --- initializers ----------------------------------------------------------------------------------------


def test_an_initializer_is_replaced(host: qnnbridge.Host) -> None:
    kept: list[Any] = []  # onnxruntime borrows the value, and crashes if it was freed

    def prepare(module: Any, options: Any) -> None:
        kept.append(module.OrtValue.ortvalue_from_numpy(np.full(4, 10, np.float32)))
        options.add_initializer("w", kept[-1])

    with two_sessions(host, scaled().SerializeToString(), prepare) as (direct, bridged):
        assert assert_same_run(direct, bridged, {"x": X})[0].tolist() == (X * 10 + 10).tolist()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("w", np.ones(5, np.float32)),
        ("w", np.ones(4, np.float64)),
        ("w", np.ones(4, np.int32)),
        ("v", np.ones(4, "f4")),
    ],
    ids=["another size", "another float", "another type", "another name"],
)
def test_a_wrong_initializer_has_the_same_effect_as_in_onnxruntime(
    name: str, value: np.ndarray[Any, Any], host: qnnbridge.Host
) -> None:
    import onnxruntime

    def make_and_run(module: Any, **keywords: Any) -> Any:
        options = module.SessionOptions()
        options.log_severity_level = 4
        kept = module.OrtValue.ortvalue_from_numpy(value)
        options.add_initializer(name, kept)
        session = module.InferenceSession(scaled().SerializeToString(), options, providers=[CPU], **keywords)
        return session.run(None, {"x": X})[0].tolist()

    try:
        expected = make_and_run(onnxruntime)
    except Exception as error:
        assert_same_error(error, lambda: make_and_run(qnnbridge, host=host))
    else:
        assert make_and_run(qnnbridge, host=host) == expected


def test_external_initializers_are_given_as_values(host: qnnbridge.Host, tmp_path: Path) -> None:
    data = with_external_data(tmp_path).read_bytes()
    kept: list[Any] = []

    def prepare(module: Any, options: Any) -> None:
        kept.append(module.OrtValue.ortvalue_from_numpy(np.array([4, 3, 2, 1], np.float32)))
        options.add_external_initializers(["w"], kept[-1:])

    with two_sessions(host, data, prepare) as (direct, bridged):
        assert assert_same_run(direct, bridged, {"x": X})[0][0].tolist() == [4, 6, 6, 4]


# --- optimization ----------------------------------------------------------------------------------------


def optimizable() -> bytes:
    """Return a model with two Identity nodes and a constant sum, all of which an optimizer removes."""
    nodes = [
        node("Identity", ["x"], ["x1"]),
        node("Identity", ["x1"], ["x2"]),
        node("Add", ["c", "c"], ["c2"]),
        node("Add", ["x2", "c2"], ["y"]),
    ]
    constants = {"c": np.ones(4, np.float32)}
    return bytes(model(nodes, [tensor("x", [2, 4])], [tensor("y", [2, 4])], constants).SerializeToString())


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
def test_the_optimization_level_is_respected(level: str, host: qnnbridge.Host, tmp_path: Path) -> None:
    def prepare(module: Any, options: Any) -> None:
        options.graph_optimization_level = getattr(module.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(tmp_path / f"{module.__name__}.onnx")

    with two_sessions(host, optimizable(), prepare) as (direct, bridged):
        assert_same_run(direct, bridged, {"x": X})
    theirs, ours = (
        [n.op_type for n in onnx.load(tmp_path / f"{name}.onnx").graph.node]
        for name in ("onnxruntime", "qnnbridge")
    )
    assert ours == theirs
    assert len(ours) == (4 if level == "ORT_DISABLE_ALL" else 1)


def test_single_optimizers_are_disabled(host: qnnbridge.Host, tmp_path: Path) -> None:
    def prepare(module: Any, options: Any) -> None:
        options.optimized_model_filepath = str(tmp_path / f"{module.__name__}.onnx")

    with two_sessions(host, optimizable(), prepare, disabled_optimizers=["ConstantFolding"]):
        counts = [len(onnx.load(tmp_path / f"{name}.onnx").graph.node) for name in ("onnxruntime", "qnnbridge")]
    assert counts == [2, 2]


# --- logging ---------------------------------------------------------------------------------------------


def test_log_settings_reach_the_host_and_its_log_reaches_the_application(
    host: qnnbridge.Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="qnnbridge.host")
    options = qnnbridge.SessionOptions()
    options.log_severity_level = 0
    options.logid = "the one with a name"
    qnnbridge.InferenceSession(MODELS / "mul_1.onnx", options, providers=[CPU], host=host).close()
    assert is_logged(caplog, "the one with a name")
