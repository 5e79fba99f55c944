"""The models that the lab tests run: one real trained network, and tiny models that each show one behaviour."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qnnbridge_tools import demo

TEXT_LINES = demo.load_lines()


def text_direction(folder: Path, name: str = "text_direction.onnx") -> Path:
    """Return the text-direction classifier of the demo: 181 float nodes, all of which QNN supports."""
    with demo.model_file() as source:
        return Path(shutil.copy(source, folder / name))


def text_direction_inputs() -> list[dict[str, np.ndarray[Any, Any]]]:
    return [{demo.INPUT_NAME: demo.model_input(line.image)} for line in TEXT_LINES]


def says_upside_down(probabilities: np.ndarray[Any, Any]) -> bool:
    return demo.answer_of(probabilities).upside_down


def _save(folder: Path, name: str, graph: onnx.GraphProto, **opsets: int) -> Path:
    imports = [helper.make_opsetid({"ml": "ai.onnx.ml"}.get(d, ""), v) for d, v in (opsets or {"onnx": 21}).items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    onnx.checker.check_model(model)
    path = folder / name
    onnx.save(model, path)
    return path


def identity(folder: Path, element_type: int, shape: tuple[int | None, ...]) -> Path:
    """Return a model whose outputs equal its inputs."""
    value = [helper.make_tensor_value_info(name, element_type, shape) for name in ("x", "y")]
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "identity", [value[0]], [value[1]])
    return _save(folder, f"identity_{TensorProto.DataType.Name(element_type).lower()}.onnx", graph)


def labelled(folder: Path, labels: list[str]) -> Path:
    """Return a model with float scores as input, and a sequence of maps from label to score as output."""
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, len(labels)])
    entry = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    result = helper.make_value_info("result", helper.make_sequence_type_proto(entry))
    node = helper.make_node("ZipMap", ["scores"], ["result"], domain="ai.onnx.ml", classlabels_strings=labels)
    return _save(folder, "labelled.onnx", helper.make_graph([node], "labelled", [scores], [result]), onnx=21, ml=3)


def nothing_to_compute(folder: Path) -> Path:
    """Return a model with a tensor without elements. ONNX Runtime sums it without an error; QNN's library divides
    by its size.
    """
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [0, 4]) for name in ("x", "y")]
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return _save(folder, "nothing_to_compute.onnx", helper.make_graph([node], "nothing", values[:1], values[1:]))


def convolution(folder: Path) -> Path:
    """Return a convolution of floats, for tests on the CPU in the Windows lab: see README.md."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
    weights = np.random.default_rng(22).normal(size=(8, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 16, 16])],
        [numpy_helper.from_array(weights, "w")],
    )
    return _save(folder, "convolution.onnx", graph)


def convolution_inputs() -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(23).random((1, 3, 16, 16), np.float32)}


def quantized_convolution(folder: Path) -> Path:
    """Return a convolution in QDQ form, 8 bit throughout: quantization of float inputs would stay on the CPU."""
    rng = np.random.default_rng(20)
    constants: dict[str, np.ndarray[Any, Any]] = {
        "x_scale": np.float32(2 / 255),
        "x_zero": np.uint8(128),
        "w": rng.integers(-127, 128, (8, 3, 3, 3), dtype=np.int8),
        "w_scale": np.float32(0.004),
        "w_zero": np.int8(0),
        "y_scale": np.float32(4 / 255),
        "y_zero": np.uint8(128),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wd"]),
        helper.make_node("Conv", ["xd", "wd"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["c", "y_scale", "y_zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantized_convolution",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [1, 8, 16, 16])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return _save(folder, "quantized_convolution.onnx", graph)


def quantized_convolution_inputs() -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(21).integers(0, 256, (1, 3, 16, 16), dtype=np.uint8)}
