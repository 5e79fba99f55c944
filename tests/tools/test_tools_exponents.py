"""Exponentials below -88, which QNN computes as 131008: the nodes that the rewrite changes, and their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from lab.sweep.cases import float_model
from lab.sweep.driver import Worker

import qnnbridge
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.numerics.cases import Case, SweepNode, SweepTensor, feeds_of
from qnnbridge_host.rewrite.catalogue import chosen

LOW = ("uniform", -300, 3)


def case(*nodes: SweepNode, opset: int = 18, values: tuple[object, ...] = LOW, **more: SweepTensor) -> Case:
    return Case({"x": SweepTensor((3, 5, 8), "float", values), **more}, nodes, opset)


def rewritten(model: onnx.ModelProto) -> list[str]:
    editor = Editor(model, Path())
    return [line for rewrite in chosen(["exponent-limits"], []) for line in rewrite.apply(editor)]


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [None, [1], [-1, 0]])
def test_a_log_of_a_sum_is_the_same_at_each_opset(opset: int, keep: int, axes: list[int] | None) -> None:
    given: dict[str, Any] = {"keepdims": keep}
    inputs, more = ("x",), {}
    if axes is not None and opset >= 18:
        inputs, more = ("x", "a"), {"a": SweepTensor((len(axes),), "int64", axes, True)}
    elif axes is not None:
        given["axes"] = axes
    one = case(SweepNode("ReduceLogSumExp", inputs, given), opset=opset, **more)
    model = float_model(one)
    expected, changed = _run(model, one), rewritten(model)
    assert changed == ["1 ReduceLogSumExp"]
    np.testing.assert_allclose(_run(model, one), expected, rtol=1e-6, atol=1e-5)
    assert rewritten(model) == []


def test_a_masked_log_softmax_is_not_rewritten_if_its_axis_has_another_meaning() -> None:
    mask = {"m": SweepTensor((3, 5, 8), "bool", ("ints", 0, 2)), "f": SweepTensor((), "float", (-300.0,), True)}
    # Up to opset 12 an axis in the middle includes all later axes; the last axis is the same in both versions.
    for opset, axis, changed in ((11, 1, []), (11, -1, ["1 LogSoftmax"]), (13, -1, ["1 LogSoftmax"])):
        nodes = SweepNode("Where", ("m", "x", "f")), SweepNode("LogSoftmax", ("y0",), {"axis": axis})
        one = case(*nodes, opset=opset, values=("normal", 3), **mask)
        model = float_model(one)
        expected = _run(model, one)
        assert rewritten(model) == changed
        np.testing.assert_allclose(_run(model, one), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("opset", [8, 18])
@pytest.mark.parametrize(
    ("op", "limits", "is_low"),
    [
        ("Clip", (-50.0, None), False),
        ("Clip", (-1000.0, None), True),
        ("Clip", (None, 4.1), True),  # as torchvision decodes boxes
        ("Max", (-50.0,), False),
        ("Max", (-1000.0,), True),
    ],
)
def test_a_preceding_clip_or_max_is_used_as_the_lower_bound(
    opset: int, op: str, limits: tuple[float | None, ...], is_low: bool
) -> None:
    given = {name: value for name, value in zip(("min", "max"), limits, strict=False) if value is not None}
    if op == "Clip" and opset < 11:
        first, more = SweepNode(op, ("x",), given), {}
    else:
        first = SweepNode(op, ("x", *(name if name in given else "" for name in ("min", "max")[: len(limits)])))
        more = {name: SweepTensor((), "float", (value,), True) for name, value in given.items()}
    model = float_model(case(first, SweepNode("Exp", ("y0",)), opset=opset, **more))
    assert rewritten(model) == ["1 Exp"] * is_low
    assert rewritten(model) == []


@pytest.mark.parametrize(("base", "exponent", "changed"), [(2.0, "float", 1), (0.5, "float", 1), (2.0, "int64", 0)])
def test_a_power_with_types_that_qnn_supports_is_limited(base: float, exponent: str, changed: int) -> None:
    nodes = (SweepNode("Pow", ("b", "x")),)
    tensors = {"b": SweepTensor((), "float", (base,), True), "x": SweepTensor((4, 6), exponent, ("ints", -9, 9))}
    assert rewritten(float_model(Case(tensors, nodes, 18))) == ["1 Pow"] * changed


def test_double_is_computed_on_the_cpu_and_not_changed() -> None:
    model = float_model(case(SweepNode("Exp", ("x",))))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    assert rewritten(model) == []


def test_an_operator_of_unknown_type_is_not_changed() -> None:
    model = float_model(case(SweepNode("Abs", ("x",)), SweepNode("Exp", ("y0",)), SweepNode("Relu", ("y1",))))
    model.graph.node[0].op_type, model.graph.node[0].domain = "Unheard", "com.example"
    del model.graph.value_info[:]
    assert rewritten(model) == []


def test_a_log_of_a_sum_of_only_negative_infinities_is_a_number() -> None:
    model = float_model(case(SweepNode("ReduceLogSumExp", ("x",), {"axes": [-1], "keepdims": 1}), opset=13))
    assert rewritten(model) == ["1 ReduceLogSumExp"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for value, expected in ((-np.inf, -1e38), (np.inf, 1e38)):
        (made,) = session.run(None, {"x": np.full((3, 5, 8), value, np.float32)})
        assert (np.sign(made) == np.sign(expected)).all()
        assert (np.abs(made) >= abs(expected)).all()


@pytest.mark.parametrize("maker", ["Relu", "Tanh", "Abs", "Sigmoid"])
def test_an_operator_whose_input_cannot_be_that_low_is_not_changed(maker: str) -> None:
    assert rewritten(float_model(case(SweepNode(maker, ("x",)), SweepNode("Exp", ("y0",))))) == []


@pytest.mark.simulator
@pytest.mark.process
@pytest.mark.parametrize(("op", "rewrite"), [("Erf", "erf"), ("Celu", "missing-operators")])
def test_the_formula_of_a_rewrite_is_right_for_large_arguments(op: str, rewrite: str, worker: Worker) -> None:
    result = worker.run(case(SweepNode(op, ("x",)), values=("uniform", -200, 200)), rewrite)
    assert result["status"] == "right", result


@pytest.mark.simulator
@pytest.mark.process
def test_a_hand_written_softmax_stays_right_when_a_later_call_masks(tmp_path: Path) -> None:
    """The first call, which is compared with the CPU, has no value that low: only the rewrite helps the second
    call.
    """
    axes = SweepTensor((1,), "int64", (-1,), True)
    nodes = (
        SweepNode("ReduceMax", ("x", "a"), {"keepdims": 1}),
        SweepNode("Sub", ("x", "y0")),
        SweepNode("Exp", ("y1",)),
        SweepNode("ReduceSum", ("y2", "a"), {"keepdims": 1}),
        SweepNode("Div", ("y2", "y3")),
    )
    one = case(*nodes, values=("normal", 2), a=axes)
    path, (plain,) = tmp_path / "m.onnx", feeds_of(one).values()
    onnx.save(float_model(one), str(path))
    masked = plain.copy()
    masked[..., 5:] -= 100
    with qnnbridge.InferenceSession(path, provider_options=[{"soc_model": "60"}], verify="raise") as session:
        for values in (plain, masked):
            (got,) = session.run(None, {"x": values})
            np.testing.assert_allclose(got, _softmax(values), atol=5e-3)
        assert [line for line in session.fixed if line.startswith("exponent-limits")]


def _softmax(values: Any) -> Any:
    raised = np.exp(values - values.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def _run(model: onnx.ModelProto, one: Case) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds_of(one))[0]
