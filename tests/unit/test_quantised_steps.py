"""Steps of quantised tensors, read from the model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qnnbridge_host.model.quantised_steps import quantised_steps


def model(domain: str = "", steps: Any = 0.03) -> onnx.ModelProto:
    scale = np.asarray(steps, np.float32)
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"], domain=domain),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"], domain=domain),
        node("Reshape", ["d", "shape"], ["y"]),
        node("Relu", ["d"], ["z"]),
    ]
    constants = {"scale": scale, "zero": np.zeros_like(scale, np.uint8), "shape": np.array([4], np.int64)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 2])],
        [helper.make_tensor_value_info(name, 1, None) for name in ("d", "y", "z")],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_the_quantisation_step_of_an_output_is_the_scale_of_its_dequantize_linear(
    domain: str, tmp_path: Path
) -> None:
    onnx.save(model(domain), tmp_path / "m.onnx")
    for source in (str(tmp_path / "m.onnx"), model(domain).SerializeToString()):
        steps = quantised_steps(source)
        assert steps == {"d": pytest.approx(0.03), "y": pytest.approx(0.03)}, "Relu changes values"


def test_scales_per_channel_and_invalid_models_have_no_step(tmp_path: Path) -> None:
    assert quantised_steps(model(steps=[0.1, 0.2]).SerializeToString()) == {}
    assert quantised_steps(b"no model") == {}
    assert quantised_steps(str(tmp_path / "gone.onnx")) == {}
