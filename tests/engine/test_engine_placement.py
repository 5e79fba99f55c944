"""The message for a refused placement if ONNX Runtime reports less than its newest release."""

from __future__ import annotations

from qnnbridge_host.engine.placement import dynamic_dimensions, refusal
from qnnbridge_protocol.errors import EPFail
from qnnbridge_protocol.specs import NodeInfo, Placement

STATIC = (NodeInfo("x", "tensor(float)", (1, 3)),)
DYNAMIC = (NodeInfo("x", "tensor(float)", ("N", 3)),)


def test_before_1_24_the_dimensions_are_still_named() -> None:
    error = refusal("m.onnx", Placement(known=False), DYNAMIC)
    assert error.message.startswith("Some nodes of m.onnx")
    assert "'x': N" in (error.cause or "")
    assert "qnn_nodes" not in error.details


def test_if_the_second_attempt_fails_too_its_error_is_the_cause() -> None:
    second = EPFail("Failed to finalize", cause="the chip cannot do it")
    error = refusal("m.onnx", None, (), second)
    assert error.cause == "the chip cannot do it"
    assert error.details["with_fallback"] == "Failed to finalize"


def test_without_any_information_no_cause_is_invented() -> None:
    error = refusal("m.onnx", Placement(known=False), STATIC)
    assert error.cause is None
    assert "fallback='cpu'" in (error.fix or "")


def test_more_than_ten_nodes_are_counted_and_not_listed() -> None:
    nodes = tuple((f"n{i}", "Det") for i in range(12))
    error = refusal("m.onnx", Placement(qnn_nodes=1, cpu_nodes=12, cpu_list=nodes), STATIC)
    assert "12 of 13 nodes" in error.message
    assert "n9" in (error.cause or "")
    assert "n10" not in (error.cause or "")
    assert "and 2 more" in (error.cause or "")


def test_a_value_without_a_shape_has_no_dynamic_dimension() -> None:
    inputs = (NodeInfo("s", "seq(tensor(float))", ()), NodeInfo("o", "tensor(float)", None))
    assert dynamic_dimensions(inputs) == {}


def test_a_branch_is_named_and_not_the_nodes_inside_of_it() -> None:
    nodes = (("inner", "Exp"), ("other", "Erf"), ("cut", "If"))
    cause = refusal("m.onnx", Placement(qnn_nodes=2, cpu_nodes=3, cpu_list=nodes), STATIC).cause or ""
    assert "If (cut). 2 more nodes stay on the CPU, including all nodes inside the branches of this node." in cause
    assert "inner" not in cause


def test_the_refusal_of_dynamic_quantisation_contains_advice() -> None:
    nodes = (("l", "DynamicQuantizeLSTM"),)
    error = refusal("m.onnx", Placement(cpu_nodes=1, cpu_list=nodes), STATIC)
    assert "Use the float model" in (error.fix or "")
