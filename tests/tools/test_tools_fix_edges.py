"""Models at the limits of the rewrites of exporters' patterns, scales and gates.

Each model is rewritten without the check on the CPU, which would revert a wrong rewrite, and compared by the test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import exported_models
import model_work_models as models
import onnx
import onnxruntime
from onnx import TensorProto, helper

import qnnbridge
from qnnbridge_models.analyze import analyze_model
from qnnbridge_models.fix import fix_model

node, value, constant = models.helper.make_node, models.value, models.constant
RNG = np.random.default_rng(0)


def chain(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    constants: Sequence[Any],
    *,
    opset: int = 17,
    element: int = TensorProto.FLOAT,
    functions: Sequence[Any] = (),
) -> Any:
    """Return a model with the output y, whose shape onnx infers."""
    graph = helper.make_graph(
        list(nodes), "g", list(inputs), [helper.make_tensor_value_info("y", element, None)], list(constants)
    )
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid("local", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def local(op: str, names: Sequence[str]) -> Any:
    """Return a local function with the name of an operator, which negates the operator's result."""
    return helper.make_function(
        "local",
        op,
        list(names),
        ["r"],
        [node(op, list(names), ["g"]), node("Neg", ["g"], ["r"])],
        [helper.make_opsetid("", 17)],
    )


def table(*, domain: str = "", opset: int = 17, element: int = TensorProto.FLOAT, **attributes: Any) -> Any:
    constants = [constant("table", np.arange(20, dtype=np.int8).reshape(5, 4)), constant("s", np.float32(0.1))]
    nodes = [
        node("Gather", ["table", "i"], ["rows"], domain=domain),
        node("DequantizeLinear", ["rows", "s"], ["y"], **attributes),
    ]
    functions = [local("Gather", ["t", "i"])] if domain else []
    inputs = [value("i", [3], models.INT64)]
    return chain(nodes, inputs, constants, opset=opset, element=element, functions=functions)


def scatter_of_a_function() -> Any:
    constants = [constant("d", np.ones((5, 2), np.float32)), constant("sizes", np.array([3, 2]))]
    nodes = [
        node("Expand", ["i", "sizes"], ["all"], domain="local"),
        node("Neg", ["all"], ["counted"]),
        node("Expand", ["counted", "sizes"], ["again"], domain="local"),
        node("ScatterElements", ["d", "again", "x"], ["y"], reduction="add"),
    ]
    inputs = [value("i", [3, 1], models.INT64), value("x", [3, 2])]
    return chain(nodes, inputs, constants, opset=18, functions=[local("Expand", ["t", "i"])])


def scale(op: str, shape: Sequence[int], given: Any, **attributes: Any) -> Any:
    """Return a negative scale; DequantizeLinear follows an int8 Cast, so that the sign is moved out of the node."""
    constants = [constant("s", given)]
    element = attributes.get("output_dtype", TensorProto.FLOAT)
    opset = 23 if attributes else 19
    if op == "QuantizeLinear":
        constants.append(constant("z", np.zeros(np.shape(given), np.int8)))
        nodes = [node(op, ["x", "s", "z"], ["y"])]
        made = helper.np_dtype_to_tensor_dtype(np.asarray(given).dtype)
        return chain(nodes, [value("x", list(shape), made)], constants, opset=opset, element=TensorProto.INT8)
    nodes = [node("Cast", ["x"], ["q"], to=TensorProto.INT8), node(op, ["q", "s"], ["y"], **attributes)]
    return chain(nodes, [value("x", list(shape))], constants, opset=opset, element=element)


def split(sizes: Any, keepdims: int) -> Any:
    constants = [constant("n", np.int64(1)), constant("sizes", np.asarray(sizes, np.int64))]
    nodes = [
        node("SplitToSequence", ["x", "sizes"], ["parts"], axis=0, keepdims=keepdims),
        node("SequenceAt", ["parts", "n"], ["y"]),
    ]
    return chain(nodes, [value("x", [4, 3])], constants)


def no_rows() -> Any:
    constants = [constant("d", np.ones((3, 2), np.float32)), constant("i", np.zeros((0, 2), np.int64))]
    nodes = [node("ScatterElements", ["d", "i", "x"], ["y"], reduction="add")]
    return chain(nodes, [value("x", [0, 2])], constants, opset=18)


def whole_numbers(op: str) -> Any:
    """Return products and sums of integers, which QNN refuses or computes as floats."""
    if op == "Einsum":
        nodes = [node("Einsum", ["x", "w"], ["y"], equation="ab,bc->ac")]
        constants = [constant("w", np.arange(6).reshape(2, 3))]
    else:
        nodes = [node("ScatterElements", ["w", "i", "x"], ["y"], reduction="add")]
        constants = [constant("w", np.ones((5, 2), np.int64)), constant("i", np.array([[1, 1], [3, 3], [1, 1]]))]
    inputs = [value("x", [3, 2], models.INT64)]
    return chain(nodes, inputs, constants, opset=18, element=models.INT64)


def mish(domain: str = "", *, beside: bool = False) -> Any:
    """Return a model. beside: add a GroupNormalization of unknown type, which onnx cannot expand."""
    nodes, inputs, constants = [node("Mish", ["x"], ["m"], domain=domain)], [value("x", [1, 4, 5])], []
    if beside:
        constants = [constant(name, np.ones(2, np.float32)) for name in ("s", "b")]
        nodes += [
            node("FusedMatMul", ["x", "w"], ["f"], domain="com.microsoft"),
            node("GroupNormalization", ["f", "s", "b"], ["n"], num_groups=2),
            node("Add", ["m", "n"], ["y"]),
        ]
        constants.append(constant("w", np.eye(5, dtype=np.float32)))
    else:
        nodes.append(node("Neg", ["m"], ["y"]))
    made = chain(nodes, inputs, constants, opset=18)
    if beside:
        made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def stepped(start: int, end: int, axis: int, step: int) -> Any:
    """A Slice of integers of five dimensions."""
    limits = {"b": start, "e": end, "a": axis, "t": step}
    constants = [constant(name, np.array([number])) for name, number in limits.items()]
    nodes = [node("Slice", ["x", *limits], ["y"])]
    return chain(nodes, [value("x", [5, 4, 2, 3, 2], TensorProto.INT32)], constants, element=TensorProto.INT32)


def of_opset_11(op: str) -> Any:
    """Integers before opset 12, in which Max does not take them."""
    if op == "Gather":
        nodes = [node("Gather", ["x", "i"], ["y"], axis=1)]
        return chain(nodes, [value("x", [2, 3, 4]), value("i", [5], TensorProto.INT32)], [], opset=11)
    nodes = [node("Cast", ["x"], ["whole"], to=TensorProto.INT32), node("Cast", ["whole"], ["y"], to=1)]
    return chain(nodes, [value("x", [2, 3, 4])], [], opset=11)


REWRITTEN: dict[str, tuple[str, Callable[[], Any]]] = {
    "a type of its own behind a table": (
        "integer-table",
        lambda: table(opset=23, element=TensorProto.FLOAT16, output_dtype=TensorProto.FLOAT16),
    ),
    "one scale in a vector, for a scalar": (
        "negative-scale",
        lambda: scale("DequantizeLinear", (), np.array([-0.5], np.float32)),
    ),
    "a scalar that is quantised by a vector": (
        "negative-scale",
        lambda: scale("QuantizeLinear", (), np.array([-0.5], np.float32)),
    ),
    "a scale of another type than the result": (
        "negative-scale",
        lambda: scale("DequantizeLinear", (3, 4), np.float32(-0.5), output_dtype=TensorProto.FLOAT16),
    ),
    "steps from the front": ("slice-step", lambda: stepped(1, 99, 0, 2)),
    "steps to the front and past it": ("slice-step", lambda: stepped(-1, -99, 0, -2)),
    "steps that end before the front": ("slice-step", lambda: stepped(3, 0, -5, -1)),
    "steps along the second dimension": ("slice-step", lambda: stepped(-3, 4, 1, 2)),
    "indices of an input before opset 12": ("gather-input", lambda: of_opset_11("Gather")),
    "whole numbers between floats before opset 12": ("cast-back", lambda: of_opset_11("Cast")),
    "Mish beside what cannot be written out": ("definitions", lambda: mish(beside=True)),
}
LEFT_ALONE: dict[str, tuple[str, Callable[[], Any]]] = {
    "a function called Gather": ("integer-table", lambda: table(domain="local")),
    "a function called Expand": ("scatter-rows", scatter_of_a_function),
    "a part of an even split": ("sequence-parts", lambda: split(1, 0)),
    "no rows": ("scatter-rows", no_rows),
    "a sum of integers": ("einsum", lambda: whole_numbers("Einsum")),
    "integers that are added up": ("scatter-rows", lambda: whole_numbers("ScatterElements")),
    "a product over nothing": ("einsum", lambda: exported_models.einsum("ab,bc->ac", (2, 0), (0, 3))),
}


def run(data: bytes, feeds: dict[str, Any]) -> list[Any]:
    found: list[Any] = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)
    return found


def feeds_of(model: Any) -> dict[str, Any]:
    feeds = {}
    for one in model.graph.input:
        sizes = [dim.dim_value for dim in one.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
        drawn = RNG.integers(0, 3, sizes) if dtype in (np.int32, np.int64) else RNG.normal(size=sizes) * 5
        feeds[one.name] = np.asarray(drawn, dtype)
    return feeds


@pytest.mark.parametrize("what", REWRITTEN)
def test_the_rewritten_model_computes_the_same(what: str, tmp_path: Path) -> None:
    name, make = REWRITTEN[what]
    model = make()
    target = tmp_path / "o.onnx"
    result = fix_model(models.saved(model, tmp_path / "m.onnx"), target, only=[name], check=False)
    assert [step.rewrite for step in result.steps] == [name]
    feeds = feeds_of(model)
    (expected,), (found,) = run(model.SerializeToString(), feeds), run(target.read_bytes(), feeds)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("what", LEFT_ALONE)
def test_a_similar_pattern_is_not_changed(what: str, tmp_path: Path) -> None:
    name, make = LEFT_ALONE[what]
    assert fix_model(models.saved(make(), tmp_path / "m.onnx"), tmp_path / "o.onnx", only=[name]).steps == ()


def test_a_mish_in_the_onnx_domain_is_expanded_or_not_counted(tmp_path: Path) -> None:
    result = fix_model(
        models.saved(mish("ai.onnx"), tmp_path / "m.onnx"), tmp_path / "o.onnx", only=["definitions"]
    )
    left = [one for one in onnx.load(str(tmp_path / "o.onnx")).graph.node if one.op_type == "Mish"]
    assert bool(result.steps) is not bool(left)


def test_analyze_accepts_a_scatter_without_rows(tmp_path: Path) -> None:
    path = models.saved(no_rows(), tmp_path / "m.onnx")
    assert analyze_model(path, offline=True).predicted.verdicts


def test_analyze_suggests_no_rewrite_for_nodes_inside_of_a_function(tmp_path: Path) -> None:
    """fix rewrites only the main graph."""
    function = helper.make_function(
        "local",
        "Attend",
        ["a", "b"],
        ["r"],
        [node("Einsum", ["a", "b"], ["r"], equation="bct,bcs->bts")],
        [helper.make_opsetid("", 17)],
    )
    model = chain(
        [node("Attend", ["x", "z"], ["y"], domain="local")],
        [value("x", [1, 8, 16]), value("z", [1, 8, 12])],
        [],
        functions=[function],
    )
    analysis = analyze_model(models.saved(model, tmp_path / "m.onnx"), offline=True)
    assert not any("--only einsum" in advice.what for advice in analysis.advice)


@pytest.mark.parametrize("free", [False, True], ids=["fixed", "free"])
def test_the_rules_know_that_explicit_activations_are_refused(free: bool, tmp_path: Path) -> None:
    model = exported_models.recurrent("GRU", ["Sigmoid", "Tanh"])
    if free:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    analysis = analyze_model(models.saved(model, tmp_path / "m.onnx"), offline=True)
    assert [verdict.place for verdict in analysis.predicted.verdicts] == ["cpu"]
    assert "the model needs no other change" not in str([advice.why for advice in analysis.advice])


@pytest.mark.simulator
@pytest.mark.parametrize("index", [2, -1, -12])
def test_an_index_that_counts_from_the_end_is_corrected_on_qnn_too(index: int, host: qnnbridge.Host) -> None:
    pytest.importorskip("onnxruntime_qnn")
    data = exported_models.scattered().SerializeToString()
    feeds = {"x": np.ones((30, 8), np.float32), "to": np.full(30, index)}
    with qnnbridge.InferenceSession(data, fix=True, host=host, provider_options=[{"soc_model": "60"}]) as session:
        assert session.placement.cpu_nodes == 0
        np.testing.assert_allclose(session.run(None, feeds)[0], run(data, feeds)[0], rtol=0.02)
