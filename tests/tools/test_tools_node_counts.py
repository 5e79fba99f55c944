"""The number of nodes, and the share of a model's work on the NPU, including branches and loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fix_models
import model_work_models as models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("onnxruntime")

from qnnbridge_host.graph import graphs
from qnnbridge_host.model.node_count import written_out
from qnnbridge_host.model.scan import scan_model
from qnnbridge_models.analyze import Analysis, analyze_model
from qnnbridge_models.analyze.analysis import Shares, nodes_text, shares_of, verdict_text, work_text

node, value, weights = helper.make_node, models.value, models.weights


def offline(made: Any, folder: Path, **kwargs: Any) -> Analysis:
    return analyze_model(models.saved(made, folder / "m.onnx"), offline=True, **kwargs)


def shares(analysis: Analysis) -> Shares:
    return shares_of(analysis, analysis.best)


def branch(name: str, columns: int) -> Any:
    """Return a branch with a product, its weights, and an operator that QNN lacks."""
    return helper.make_graph(
        [
            node("Constant", [], [f"{name}_w"], value=weights("", 64, columns)),
            node("MatMul", ["r", f"{name}_w"], [f"{name}_m"]),
            node("Hardmax", [f"{name}_m"], [f"{name}_h"]),
            node("ReduceMax", [f"{name}_h"], [f"{name}_y"], axes=[1], keepdims=1),
        ],
        name,
        [],
        [value(f"{name}_y", [8, 1])],
    )


def network_in_an_if() -> Any:
    return models.model(
        [
            node("Relu", ["x"], ["r"]),
            node("If", ["c"], ["y"], then_branch=branch("a", 32), else_branch=branch("b", 16)),
        ],
        [value("x", [8, 64]), value("c", [], TensorProto.BOOL)],
        [value("y", [8, 1])],
    )


def test_the_work_of_a_network_inside_of_an_if_is_counted(tmp_path: Path) -> None:
    made = network_in_an_if()
    found = offline(made, tmp_path)
    counted = shares(found)
    # Relu; If, and three nodes in each branch. Constants of the branches are folded.
    assert (counted.nodes, counted.on_qnn, counted.on_cpu, counted.folded) == (8, 1, 7, 2)
    assert nodes_text(counted) == "10 in the file: 1 on the NPU, 7 on the CPU, 2 computed in advance"
    # The larger branch: 8x64x32 for the product, 8x32 for Hardmax, 8 for ReduceMax; and 8x64 for Relu.
    assert (counted.macs_on_qnn, counted.macs) == (512, 512 + 16384 + 256 + 8)
    assert (counted.bytes_on_qnn, counted.bytes) == (0, 4 * 64 * (32 + 16))
    assert verdict_text(found, found.best) == "3.0 % of the work runs on the NPU"
    assert work_text(counted).startswith("3.0 % of 17.2 thousand")


def test_of_an_if_with_a_known_condition_only_the_executed_branch_is_counted(tmp_path: Path) -> None:
    made = network_in_an_if()
    del made.graph.input[1:]
    made.graph.initializer.append(models.constant("c", np.asarray(False)))
    counted = shares(offline(made, tmp_path))
    assert counted.macs == 512 + 8 * 64 * 16 + 8 * 16 + 8
    # Relu, If and three nodes of its branch run; two Constant nodes and the other branch do not.
    assert (counted.nodes, counted.folded) == (5, 5)


@pytest.mark.parametrize(("trips", "times"), [(5, 5), (None, 1)])
def test_the_body_of_a_loop_is_counted_for_each_known_iteration(
    trips: int | None, times: int, tmp_path: Path
) -> None:
    body = helper.make_graph(
        [node("MatMul", ["v", "w"], ["u"]), node("Identity", ["go_in"], ["go_out"])],
        "body",
        [value("i", [], TensorProto.INT64), value("go_in", [], TensorProto.BOOL), value("v", [8, 64])],
        [value("go_out", [], TensorProto.BOOL), value("u", [8, 64])],
    )
    constants = [weights("w", 64, 64), models.constant("go", np.asarray(True))]
    inputs = [value("x", [8, 64])]
    if trips is None:
        inputs.append(value("trips", [], TensorProto.INT64))
    else:
        constants.append(models.constant("trips", np.asarray(trips, np.int64)))
    made = models.model(
        [node("Loop", ["trips", "go", "x"], ["y"], body=body)], inputs, [value("y", [8, 64])], constants
    )
    counted = shares(offline(made, tmp_path))
    # Identity returns one value.
    assert counted.macs == times * (8 * 64 * 64 + 1)
    # The body uses the weights of the main graph.
    assert counted.bytes >= 4 * 64 * 64
    assert counted.nodes == 3


def test_weights_decide_the_share_if_shapes_are_unknown(tmp_path: Path) -> None:
    made = network_in_an_if()
    made.graph.input[0].CopyFrom(value("x", ["N", 64]))
    made.graph.node[1].attribute[0].g.output[0].CopyFrom(value("a_y", ["N", 1]))
    made.graph.node[1].attribute[1].g.output[0].CopyFrom(value("b_y", ["N", 1]))
    made.graph.output[0].CopyFrom(value("y", ["N", 1]))
    found = offline(made, tmp_path)
    assert verdict_text(found, found.best) == "nothing runs on the NPU"
    assert work_text(shares(found)) == "unknown until the sizes are fixed"
    # A size moves only the Relu, and the advice about sizes says that.
    about = next(advice for advice in found.advice if "--dim" in advice.what)
    assert "the rules predict that 1 of 8 nodes run on the NPU" in about.why


@pytest.mark.parametrize("first", ["Hardmax", "Relu"])
def test_sizes_are_advised_only_if_they_move_nodes_to_the_npu(first: str, tmp_path: Path) -> None:
    scaler = node("Scaler", ["r"], ["y"], domain="ai.onnx.ml", offset=[0.0, 1.0], scale=[1.0, 2.0])
    made = models.model([node(first, ["x"], ["r"]), scaler], [value("x", ["N", 2])], [value("y", ["N", 2])])
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    advised = [advice.what for advice in offline(made, tmp_path).advice]
    assert any("Scaler" in what for what in advised)
    assert any("--dim" in what for what in advised) == (first == "Relu"), advised


def test_no_size_is_advised_for_a_data_dependent_shape(tmp_path: Path) -> None:
    made = models.model(
        [node("NonZero", ["x"], ["n"]), node("Cast", ["n"], ["f"], to=1), node("Neg", ["f"], ["y"])],
        [value("x", ["N", 8])],
        [value("y", [2, None])],
    )
    for advice in offline(made, tmp_path).advice:
        assert "--dim" not in advice.what
        assert "--shape" not in advice.what


def functions() -> Any:
    """Outer calls Inner twice, and the model calls Outer twice."""
    own = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = helper.make_function("own", "Inner", ["a"], ["b"], [node("Relu", ["a"], ["b"])], own)
    calls = [node("Inner", ["a"], ["t"], domain="own"), node("Inner", ["t"], ["u"], domain="own")]
    outer = helper.make_function("own", "Outer", ["a"], ["b"], [*calls, node("Neg", ["u"], ["b"])], own)
    nodes = [node("Outer", ["x"], ["t"], domain="own"), node("Outer", ["t"], ["y"], domain="own")]
    graph = helper.make_graph(nodes, "g", [value("x", [1, 8])], [value("y", [1, 8])])
    return helper.make_model(graph, opset_imports=own, functions=[inner, outer], ir_version=8)


MODELS = {
    "functions": functions,
    "an If": network_in_an_if,
    "an If on a size": fix_models.branch_by_rank,
    **{
        name: (lambda name=name: onnx.load(models.MODELS / f"{name}.onnx")) for name in ("q", "rnet", "logreg_iris")
    },
    "speech": lambda: onnx.load(models.MODELS / "silero_vad_openvino_16k.onnx"),
}


@pytest.mark.parametrize("name", MODELS)
def test_inspect_fix_and_analyze_count_the_same_nodes_in_the_file(name: str, tmp_path: Path) -> None:
    made = MODELS[name]()
    scanned = scan_model(made.SerializeToString())
    counted = shares(offline(made, tmp_path))
    assert scanned.node_count == counted.nodes + counted.folded
    assert dict(scanned.ops) == graphs.count_ops(made)


def test_calls_of_functions_are_counted_as_their_bodies() -> None:
    assert graphs.count_ops(functions()) == {"Relu": 4, "Neg": 2}
    a, b, add = ("own", "A"), ("own", "B"), ("", "Add")
    assert written_out({a: 3}, {a: {b: 2, add: 1}, b: {add: 5}}) == {"Add": 33}
    # No runtime supports functions that call themselves.
    assert written_out({a: 1}, {a: {b: 1}, b: {a: 1, add: 1}}) == {"own.A": 1, "Add": 1}
    deep: Any = {("own", str(n)): {("own", str(n + 1)): 2} for n in range(3000)}
    deep["own", "3000"] = {add: 1}
    assert written_out({("own", "0"): 1}, deep) == {"Add": 2**53}
