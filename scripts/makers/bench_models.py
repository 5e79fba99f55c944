"""Create the models of `qnnbridge bench`: ``python -m scripts.makers.bench_models``. Needs onnx.

``add.onnx`` adds 1 to a vector of any length. The computation is negligible, so a benchmark measures the call
itself. ``convnet.onnx`` processes an image of 600 KB in 100 to 250 us.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qnnbridge_tools.bench.work import ASSETS

OPSET, IR_VERSION = 17, 8
WIDTH = 8


def add() -> Any:
    return _model(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"]),
        {"one": np.ones((), np.float32)},
    )


def convnet(width: int = WIDTH) -> Any:
    """Return a convolution network.

    Args:
        width: channels of the first layer. A larger width means more computation, with the same input and output.
    """
    dice = np.random.default_rng(6)
    nodes, constants, last = [], {}, "x"
    for index, (before, after) in enumerate(itertools.pairwise((3, width, 2 * width, 16))):
        constants[f"w{index}"] = dice.normal(0, 0.2, (after, before, 3, 3)).astype(np.float32)
        nodes.append(
            helper.make_node(
                "Conv", [last, f"w{index}"], [f"c{index}"], strides=[3, 3], pads=[1, 1, 1, 1], name=f"conv{index}"
            )
        )
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"], name=f"relu{index}"))
        last = f"r{index}"
    nodes.append(helper.make_node("Flatten", [last], ["y"], name="flatten"))
    return _model(
        nodes,
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1296]),
        constants,
    )


def _model(nodes: list[Any], x: Any, y: Any, constants: dict[str, Any]) -> Any:
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "graph", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


if __name__ == "__main__":
    for name, model in (("add", add()), ("convnet", convnet())):
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, str(ASSETS / f"{name}.onnx"))
