"""Build the models of each set, write them to a folder, and name the nodes of the main graph `n<index>`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Models = Mapping[str, Path]
NEWEST_IR_VERSION = 13
# The newest opsets that ONNX Runtime 1.31 loads. Some node tests of onnx have newer opsets, which `loadable`
# lowers.
NEWEST = {"": 26, "ai.onnx": 26, "ai.onnx.ml": 5}
REAL = Path(__file__).parents[2] / "tests" / "models"
SIZES: dict[str, dict[str, int]] = {
    "ch_ppocr_mobile_v2.0_cls_infer": {"x:0": 1, "x:2": 48, "x:3": 192},
    "model_v8": {"N": 1},
    "mul_1": {},
    "onet": {"N": 1},
    "pnet": {"N": 1, "M1": 32, "M2": 24},
    "rnet": {"N": 1},
    "sigmoid": {},
    "silero_vad_openvino_16k": {},
    "q": {},
    "f": {},
}


def node_tests() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests overflow and divide by zero on purpose
        from onnx.backend.test.case.node import collect_testcases

        yield from collect_testcases(None)


def loadable(model: Any) -> Any:
    """Return a copy with named nodes, and with IR and opset versions that ONNX Runtime loads."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = min(copy.ir_version, NEWEST_IR_VERSION)
    for opset in copy.opset_import:
        opset.version = min(opset.version, NEWEST.get(opset.domain, opset.version))
    for index, node in enumerate(copy.graph.node):
        node.name = f"n{index}"
    return copy


def node_set(folder: Path) -> Models:
    return {case.name: _saved(loadable(case.model), folder, case.name) for case in node_tests()}


def constant_set(folder: Path) -> Models:
    models: dict[str, Path] = {}
    for case in node_tests():
        model = loadable(case.model)
        if len(model.graph.input) > 1 and case.data_sets and _make_constants(model, list(case.data_sets[0][0])):
            models[case.name] = _saved(model, folder, case.name)
    return models


def _make_constants(model: Any, values: list[Any]) -> bool:
    tensors = []
    for declared, value in list(zip(model.graph.input, values, strict=False))[1:]:
        if isinstance(value, TensorProto):
            tensor = TensorProto()
            tensor.CopyFrom(value)
            tensor.name = declared.name
        elif isinstance(value, (np.ndarray, np.generic)):
            tensor = numpy_helper.from_array(np.asarray(value), declared.name)
        else:
            return False  # an input that is a sequence or an optional cannot become an initializer
        tensors.append(tensor)
    first = onnx.ValueInfoProto()
    first.CopyFrom(model.graph.input[0])
    del model.graph.input[:]
    model.graph.input.append(first)
    model.graph.initializer.extend(tensors)
    return True


def real_set(folder: Path) -> Models:
    from qnnbridge_models.fix import fix_model
    from qnnbridge_models.quantize import QuantizeOptions, QuantizeSettings, quantize_model

    models: dict[str, Path] = {}
    for name, sizes in SIZES.items():
        source = REAL / f"{name}.onnx"
        models[f"{name}, as it is"] = _saved(loadable(onnx.load(str(source))), folder, f"{name}-as-is")
        fixed = folder / "work.onnx"
        fix_model(source, fixed, dims=sizes, check=False, overwrite=True)
        models[f"{name}, fixed"] = _saved(loadable(onnx.load(str(fixed))), folder, f"{name}-fixed")
        if name in ("mul_1", "sigmoid", "q", "f"):
            continue
        for kind in ("uint16", "uint8", "int16"):
            quantised = folder / "quantised.onnx"
            settings = QuantizeSettings(activation_type=kind)
            quantize_model(
                fixed, quantised, QuantizeOptions(random=2, held_out=1, settings=settings, overwrite=True)
            )
            models[f"{name}, {kind}"] = _saved(loadable(onnx.load(str(quantised))), folder, f"{name}-{kind}")
    return models


def trap_set(folder: Path) -> Models:
    return {name: _saved(make(), folder, name) for name, make in TRAPS.items()}


def _saved(model: Any, folder: Path, name: str) -> Path:
    path = folder / f"{name}.onnx"
    onnx.save_model(model, str(path))
    return path


# --- models that crash QNN, and similar models that do not ----------------------------------------------


def _model(nodes: list[Any], x: list[int], y: list[int] | None, *constants: tuple[str, Any]) -> Any:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "trap",
        [value("x", TensorProto.FLOAT, x)],
        [value("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants],
    )
    return loadable(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def _node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def _empty_slice() -> Any:
    nodes = [_node("Slice", "x zero zero axis", "s"), _node("Relu", "s", "r"), _node("Concat", "r x", "y", axis=1)]
    return _model(nodes, [2, 8], [2, 8], ("zero", np.array([0])), ("axis", np.array([1])))


def _empty_split() -> Any:
    nodes = [_node("Split", "x sizes", "a b", axis=1), _node("Relu", "b", "r"), _node("Concat", "r a", "y", axis=1)]
    return _model(nodes, [2, 8], [2, 8], ("sizes", np.array([0, 8])))


# The simulator shows which of these models crash QNN. The rules must predict each crash.
TRAPS: dict[str, Callable[[], Any]] = {
    "matmul_zero": lambda: _model([_node("MatMul", "x w")], [0, 4], [0, 2], ("w", np.ones((4, 2), np.float32))),
    "matmul_zero_k": lambda: _model([_node("MatMul", "x w")], [3, 0], [3, 2], ("w", np.ones((0, 2), np.float32))),
    "reducemean_zero": lambda: _model([_node("ReduceMean", "x", axes=[1])], [0, 4], None),
    "relu_zero": lambda: _model([_node("Relu", "x")], [0, 4], [0, 4]),
    "add_zero": lambda: _model([_node("Add", "x x")], [2, 0, 4], [2, 0, 4]),
    "transpose_zero": lambda: _model([_node("Transpose", "x")], [2, 0, 4], [4, 0, 2]),
    "softmax_zero": lambda: _model([_node("Softmax", "x")], [0, 4], [0, 4]),
    "concat_zero": lambda: _model(
        [_node("Concat", "x w", axis=0)], [0, 4], [2, 4], ("w", np.ones((2, 4), np.float32))
    ),
    "conv_zero_batch": lambda: _model(
        [_node("Conv", "x w")], [0, 3, 8, 8], [0, 2, 8, 8], ("w", np.ones((2, 3, 1, 1), np.float32))
    ),
    "empty_slice": _empty_slice,
    "empty_split": _empty_split,
}

SETS: dict[str, Callable[[Path], Models]] = {
    "traps": trap_set,
    "real": real_set,
    "node": node_set,
    "constants": constant_set,
}
