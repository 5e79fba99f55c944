"""Models of the serving tests: one per element type, and one with a configurable duration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import TensorProto, helper
from tests.fakes import models as build

MODELS = Path(__file__).parents[1] / "models"

ELEMENTS = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}


def write(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: Any = ()) -> Path:
    return build.saved(build.model(nodes, inputs, outputs, constants), path)


def tensor(name: str, element: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def write_identity(path: Path, element: int, shape: Any = ("n", "m")) -> Path:
    """Write a model whose output y equals its input x."""
    return write(
        path,
        [helper.make_node("Identity", ["x"], ["y"])],
        [tensor("x", element, shape)],
        [tensor("y", element, shape)],
    )


def write_counter(path: Path) -> Path:
    """Write a model that multiplies `times` by three, by counting in steps of some microseconds each."""
    scalar: list[int] = []
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["sum", "step"], ["next"])],
        "body",
        [
            tensor("i", TensorProto.INT64, scalar),
            tensor("go", TensorProto.BOOL, scalar),
            tensor("sum", TensorProto.INT64, scalar),
        ],
        [tensor("on", TensorProto.BOOL, scalar), tensor("next", TensorProto.INT64, scalar)],
        [helper.make_tensor("step", TensorProto.INT64, scalar, [3])],
    )
    return write(
        path,
        [helper.make_node("Loop", ["times", "yes", "zero"], ["y"], body=body)],
        [tensor("times", TensorProto.INT64, scalar)],
        [tensor("y", TensorProto.INT64, scalar)],
        [
            helper.make_tensor("yes", TensorProto.BOOL, scalar, [True]),
            helper.make_tensor("zero", TensorProto.INT64, scalar, [0]),
        ],
    )
