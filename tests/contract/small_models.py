"""Models for the contract, made with onnx.helper."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fakes.models import FLOAT, MODELS, Shape, model, node, tensor

__all__ = ["MODELS", "Shape", "model", "node", "tensor"]

QNN = "QNNExecutionProvider"
CPU = "CPUExecutionProvider"

MEASURABLE_S = 0.1


def identity(element: int = FLOAT, shape: Shape = (None,), opset: int = 21) -> bytes:
    """Return a model with one input x and one output y."""
    made = model(
        [node("Identity", ["x"], ["y"])], [tensor("x", shape, element)], [tensor("y", shape, element)], {}, opset
    )
    return bytes(made.SerializeToString())


def add_and_multiply() -> onnx.ModelProto:
    """Return a model with the outputs s = a + b, p = a * b and d = a - b, and a named dimension."""
    nodes = [node("Add", ["a", "b"], ["s"]), node("Mul", ["a", "b"], ["p"]), node("Sub", ["a", "b"], ["d"])]
    return model(
        nodes,
        [tensor(name, ["batch", 3]) for name in "ab"],
        [tensor(name, ["batch", 3]) for name in "spd"],
    )


def doubling() -> bytes:
    """Return a model of fixed size that computes y = x + x."""
    made = model([node("Add", ["x", "x"], ["y"])], [tensor("x", [1, 4])], [tensor("y", [1, 4])])
    return bytes(made.SerializeToString())


def counting_loop() -> bytes:
    """Return a Loop that adds 1 to x n times: an adjustable duration, and stoppable between iterations."""
    body = helper.make_graph(
        [
            node("Identity", ["go_on"], ["go_on_out"]),
            node("Add", ["sum", "one"], ["sum_out"]),
        ],
        "body",
        [tensor("turn", [], TensorProto.INT64), tensor("go_on", [], TensorProto.BOOL), tensor("sum", [1])],
        [tensor("go_on_out", [], TensorProto.BOOL), tensor("sum_out", [1])],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    made = model(
        [node("Loop", ["n", "true", "x"], ["y"], body=body)],
        [tensor("n", [], TensorProto.INT64), tensor("x", [1])],
        [tensor("y", [1])],
        {"true": np.array(True)},
    )
    return bytes(made.SerializeToString())


def turns_that_take(session: Any, seconds: float) -> int:
    """Return the number of iterations of a `counting_loop` that takes this time here; at most what float32 counts
    exactly.
    """
    turns = 1000
    while True:
        begin = time.perf_counter()
        session.run(None, {"n": np.array(turns, np.int64), "x": np.zeros(1, np.float32)})
        took_s = time.perf_counter() - begin
        if took_s > MEASURABLE_S:
            return min(2**24 - 1000, round(turns * seconds / took_s))
        turns *= 4
