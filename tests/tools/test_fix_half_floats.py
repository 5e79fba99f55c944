"""`qnnbridge fix` of models that a converter changed to float16, with free sizes and inserted casts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("onnxruntime")

import qnnbridge
from qnnbridge_host.graph import graphs
from qnnbridge_models.fix import fix_model

HALF = TensorProto.FLOAT16


def stale_sizes() -> onnx.ModelProto:
    """Return an Einsum behind a Concat whose parts have free sizes, as symbolic inference writes them.

    One part is computed from constants alone, so that it becomes an initializer.
    """
    nodes = [
        helper.make_node("Expand", ["class", "ones"], ["expanded"]),
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("Concat", ["expanded", "flat"], ["joined"], axis=1),
        helper.make_node("Einsum", ["joined", "table"], ["y"], equation="bid,bjd->bji"),
    ]
    constants = {
        "class": np.ones((1, 1, 4), np.float16),
        "ones": np.array([1, 1, 4], np.int64),
        "first": np.array([0], np.int64),
        "rest": np.array([-1, 4], np.int64),
        "table": np.random.default_rng(0).standard_normal((1, 3, 4)).astype(np.float16),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", HALF, [1, 2, 3, 4])],
        [helper.make_tensor_value_info("y", HALF, [1, 3, 7])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
        value_info=[
            helper.make_tensor_value_info("expanded", HALF, ["unk__0", "unk__1", 4]),
            helper.make_tensor_value_info("flat", HALF, ["unk__2", "unk__3", "unk__4"]),
            helper.make_tensor_value_info("joined", HALF, ["unk__0", "unk__5", 4]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_free_dimensions_in_the_file_do_not_hide_derived_sizes(tmp_path: Path) -> None:
    onnx.save(stale_sizes(), tmp_path / "m.onnx")
    result = fix_model(tmp_path / "m.onnx", tmp_path / "o.onnx")
    assert "einsum" in {step.rewrite for step in result.steps if step.kept}, result.steps
    types = graphs.types_of(onnx.load(tmp_path / "o.onnx"))
    assert types["joined"] == (HALF, (1, 7, 4))


def test_dimensions_that_depend_on_a_free_input_stay_free() -> None:
    model = stale_sizes()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "rows"
    types = graphs.types_of(model)
    assert types["joined"][1] is not None
    assert None in types["joined"][1]


@pytest.mark.simulator
@pytest.mark.parametrize("given", [TensorProto.FLOAT, TensorProto.DOUBLE, None])
def test_infinite_half_floats_are_detected_on_qnn_as_on_the_cpu(given: int | None) -> None:
    pytest.importorskip("onnxruntime_qnn")
    between = [helper.make_node("Cast", ["s"], ["f"], to=given)] if given else []
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["s"]),
        *between,
        helper.make_node("IsInf", ["f" if given else "s"], ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.INT32),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", HALF, [8])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()
    feeds = {"x": np.array([1, 255, 256, 300, -300, np.inf, 0, -1], np.float16)}
    with qnnbridge.InferenceSession(model, fix=True, cache=False, verify=False) as session:
        assert session.placement.cpu_nodes == 0
        (found,) = session.run(None, feeds)
    assert found.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
