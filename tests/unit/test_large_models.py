"""Work on models of many nodes, constants or inputs takes linear time: at these sizes, searching the whole graph
for each node would take minutes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lab.attack import large_models
from onnx import helper, numpy_helper
from tests.needs import length

from qnnbridge_host.graph import bounds, shapes
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.rewrite import constants
from qnnbridge_host.rewrite import removals as removals
from qnnbridge_host.rewrite.fixer import fix_model
from qnnbridge_host.rewrite.removals import strip_inserted_casts
from qnnbridge_models.analyze.predict import predict_model
from qnnbridge_protocol.errors import OptionError

# Limit of processor time on a slow, busy machine; linear algorithms take 0.2 to 1 s.
SOON_S = 8.0


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (large_models.dead_chain, 20_000),
        (large_models.many_shapes, 1_500),
        (large_models.many_branches, 1_000),
        (large_models.many_ranges, 1_500),
        (large_models.foreign_pairs, 6_000),
        (large_models.lone_pairs, 10_000),
        (large_models.many_casts, 10_000),
        (large_models.refused_constants, 1_000),
        (large_models.many_inputs, 6_000),
        (large_models.unused_weights, 20_000),
    ],
)
def test_rules_and_folding_take_linear_time_in_the_size_of_the_model(make: Any, count: int) -> None:
    model = make(count // length(2, 1))
    begun = time.process_time()
    predict_model(model, arch=73)
    strip_inserted_casts(model)
    shapes.options_text(shapes.free_dimensions(model.graph))
    assert time.process_time() - begun < SOON_S


def test_initializers_used_only_by_dead_nodes_are_dropped_and_the_rest_keeps_its_order(tmp_path: Path) -> None:
    model = large_models.dead_chain(5)
    model.graph.initializer.extend(numpy_helper.from_array(np.ones(n), f"w{n}") for n in range(4))
    model.graph.node[-1].input[1] = "w2"
    kept = Editor(model, tmp_path)
    assert kept.drop_dead() == 8
    assert [node.output[0] for node in model.graph.node] == ["y"]
    assert [tensor.name for tensor in model.graph.initializer] == ["w2"]
    assert numpy_helper.to_array(model.graph.initializer[0]).tolist() == [1, 1]


def test_nodes_that_only_a_dead_subgraph_uses_are_dead_too(tmp_path: Path) -> None:
    model = large_models.many_branches(1)
    first = helper.make_node("Abs", ["x"], ["inside"])
    for attribute in model.graph.node[0].attribute:
        attribute.g.node[0].input[0] = "inside"
    model.graph.node.insert(0, first)
    assert Editor(model, tmp_path).drop_dead() == 0
    model.graph.node[-1].input[0] = "x"
    assert Editor(model, tmp_path).drop_dead() == 2


def test_constants_are_folded_although_onnxruntime_refuses_others(tmp_path: Path) -> None:
    model = large_models.refused_constants(40)
    good = helper.make_node("Add", ["one", "one"], ["two"])
    model.graph.node.insert(17, good)
    model.graph.node[-1].input[0] = "two"
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 4), np.float32), "one"))
    assert constants.fold(Editor(model, tmp_path)) >= 1
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert found["two"].tolist() == [[2, 2, 2, 2]]
    assert "r3" not in found


def test_constants_that_are_large_only_in_total_are_computed_up_to_a_limit(tmp_path: Path) -> None:
    model = large_models.large_constants(80)
    constants.fold(Editor(model, tmp_path))
    made = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    assert 0 < made <= constants.TOTAL_LIMIT + constants.OUTPUT_LIMIT


def test_numeric_nodes_before_a_string_node_are_folded_and_the_string_is_not(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["one", "one"], ["two"]), helper.make_node("Cast", ["two"], ["t"], to=8)]
    nodes += [helper.make_node("Identity", ["t"], ["y"]), helper.make_node("Mul", ["two", "x"], ["z"])]
    texts = [helper.make_tensor_value_info(*one) for one in (("x", 1, [1]), ("y", 8, [1]), ("z", 1, [1]))]
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    model = helper.make_model(helper.make_graph(nodes, "g", texts[:1], texts[1:], [one]))
    assert constants.fold(Editor(model, tmp_path)) == 1
    assert [node.op_type for node in model.graph.node] == ["Cast", "Identity", "Mul"]
    assert [(one.name, one.dims[0]) for one in model.graph.initializer] == [("two", 1)]


def test_only_computed_values_that_others_need_become_constants(tmp_path: Path) -> None:
    model = large_models.many_ranges(5)
    model.graph.node[-1].input[1] = "f3"
    model.graph.output.add().CopyFrom(helper.make_tensor_value_info("s", 1, []))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Editor, "drop_dead", lambda editor: 0)
        patch.setattr(constants, "_ROUNDS", 1)
        constants.fold(Editor(model, tmp_path))
    given = {"zero", "one", *(f"l{n}" for n in range(5))}
    assert {tensor.name for tensor in model.graph.initializer} - given == {"f3", "s"}


def test_branches_whose_nodes_have_the_same_names_can_all_be_inlined(tmp_path: Path) -> None:
    model = large_models.many_branches(3)
    assert removals.inline_known_branches(Editor(model, tmp_path)) == ["3 If nodes replaced"]
    names = [node.name for node in model.graph.node]
    assert [node.op_type for node in model.graph.node] == ["Relu"] * 4
    assert len(set(names)) == len(names)
    onnx.save(large_models.many_branches(3), str(tmp_path / "m.onnx"))
    steps = fix_model(tmp_path / "m.onnx", tmp_path / "fixed.onnx").steps
    assert [(step.rewrite, step.kept) for step in steps] == [("untaken-branches", True)]


def test_an_if_without_the_branch_that_it_takes_is_not_changed(tmp_path: Path) -> None:
    model = large_models.many_branches(1)
    del model.graph.node[0].attribute[:]
    assert removals.inline_known_branches(Editor(model, tmp_path)) == []


def test_hours_of_work_are_refused_with_the_estimate_and_the_option() -> None:
    bounds.refuse_large(bounds.LARGE_NODES, "m.onnx", "qnnbridge quantize", "hours")
    with pytest.raises(
        OptionError, match=r"m\.onnx has 100,000 nodes, and qnnbridge quantize takes hours"
    ) as caught:
        bounds.refuse_large(100_000, "m.onnx", "qnnbridge quantize", "hours")
    assert "--large" in str(caught.value.fix)
