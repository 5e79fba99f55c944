"""A session is never made again from other files than it was made from: model, external data, context binary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qnnbridge
from qnnbridge import errors

CPU = ["CPUExecutionProvider"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = x * 2, with the 2 in ``w.bin``."""
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


def test_files_that_were_only_touched_are_the_same(model: Path) -> None:
    x = np.arange(4, dtype=np.float32)
    with qnnbridge.Host() as host:
        session = qnnbridge.InferenceSession(model, providers=CPU, host=host)
        data = (model.parent / "w.bin").read_bytes()
        (model.parent / "w.bin").write_bytes(data)
        host.restart()
        assert np.array_equal(session.run(None, {"x": x})[0], x * 2)
        assert session.generation == 2
