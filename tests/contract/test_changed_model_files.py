"""A session is never recreated from changed files: model, external data, context binary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qnnbridge
from qnnbridge import errors

CPU = ["CPUExecutionProvider"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the path of a model that computes y = x * 2, with the 2 in ``w.bin``."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "scaled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.full(4, 2, np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    path = tmp_path / "model.onnx"
    onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_other_external_data_is_not_used_after_a_restart(model: Path) -> None:
    x = np.arange(4, dtype=np.float32)
    with qnnbridge.Host() as host:
        session = qnnbridge.InferenceSession(model, providers=CPU, host=host)
        assert np.array_equal(session.run(None, {"x": x})[0], x * 2)
        (model.parent / "w.bin").write_bytes(np.full(4, 5, np.float32).tobytes())
        host.restart()
        with pytest.raises(errors.ModelChanged, match=r"w\.bin"):
            session.run(None, {"x": x})


def test_files_whose_timestamp_alone_changed_count_as_unchanged(model: Path) -> None:
    x = np.arange(4, dtype=np.float32)
    with qnnbridge.Host() as host:
        session = qnnbridge.InferenceSession(model, providers=CPU, host=host)
        data = (model.parent / "w.bin").read_bytes()
        (model.parent / "w.bin").write_bytes(data)
        host.restart()
        assert np.array_equal(session.run(None, {"x": x})[0], x * 2)
        assert session.generation == 2


@pytest.mark.parametrize(("operator", "follows"), [("Mul", True), ("MatMul", False)])
@pytest.mark.parametrize("in_place", [True, False])
def test_cpu_sessions_follow_mapped_weights_that_are_overwritten_in_place(
    operator: str, follows: bool, in_place: bool, tmp_path: Path, host: qnnbridge.Host
) -> None:
    """Check the behaviour that docs/errors.md describes. ONNX Runtime packs the weights of MatMul at the creation."""
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"])],
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 16])],
        [numpy_helper.from_array(np.ones((16, 16), np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    weights, x = tmp_path / "w.bin", np.ones((16, 16), np.float32)

    def run(session: Any) -> float:
        return float(session.run(None, {"x": x})[0][0, 0])

    sessions = [
        onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=CPU),
        qnnbridge.InferenceSession(tmp_path / "m.onnx", providers=CPU, host=host),
    ]
    before = [run(session) for session in sessions]
    target = weights if in_place else tmp_path / "new"
    with target.open("r+b" if in_place else "wb") as file:
        file.write(np.full((16, 16), 3, np.float32).tobytes())
    target.replace(weights)
    factor = 3 if in_place and follows else 1
    assert [run(session) for session in sessions] == [value * factor for value in before]


def test_initializers_keep_the_values_of_the_time_when_the_session_was_created() -> None:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "scaled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.zeros(4, np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    value, x = np.full(4, 2, np.float32), np.ones(4, np.float32)
    options = qnnbridge.SessionOptions()
    options.add_initializer("w", qnnbridge.OrtValue.ortvalue_from_numpy(value))
    with qnnbridge.Host() as host:
        session = qnnbridge.InferenceSession(made.SerializeToString(), options, providers=CPU, host=host)
        value[:] = 5
        assert session.run(None, {"x": x})[0].tolist() == [2] * 4
        host.restart()
        assert session.run(None, {"x": x})[0].tolist() == [2] * 4
        assert session.generation == 2
