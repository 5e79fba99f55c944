"""Models and samples that the tests of `optimize` and `quantize` create, each small and with one trap."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.fakes import models as build
from tests.fakes.models import MODELS

from qnnbridge_models.quantize import QuantizeOptions, QuantizeResult, QuantizeSettings, quantize_model

FLOAT, FLOAT16, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
COMPILED = MODELS / "compiled" / "good.onnx"
# The real float models in tests/models, and the sizes that they work with.
FIXED_SIZES: dict[str, dict[str, int]] = {
    "ch_ppocr_mobile_v2.0_cls_infer": {"x:0": 1, "x:2": 48, "x:3": 192},
    "model_v8": {"N": 1},
    "mul_1": {},
    "onet": {"N": 1},
    "pnet": {"N": 1, "M1": 32, "M2": 24},
    "rnet": {"N": 1},
    "sigmoid": {},
    "silero_vad_openvino_16k": {},
}

model = functools.partial(build.model, ir_version=8)
value, saved = build.tensor, build.saved


def constant(name: str, array: Any) -> Any:
    return numpy_helper.from_array(np.asarray(array), name)


def weights(name: str, *shape: int, dtype: Any = np.float32, seed: int = 7) -> Any:
    return constant(name, (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(dtype))


def conv_net(dtype: Any = np.float32, **kwargs: Any) -> Any:
    """Return Conv, Relu, pooling and a bias: x [1, 3, 16, 16] -> y [1, 8, 1, 1]."""
    element = FLOAT16 if dtype == np.float16 else FLOAT
    return model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
            helper.make_node("Relu", ["c"], ["r"], name="relu"),
            helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
            helper.make_node("Add", ["p", "b"], ["y"], name="add"),
        ],
        [value("x", [1, 3, 16, 16], element)],
        [value("y", [1, 8, 1, 1], element)],
        [weights("w", 8, 3, 3, 3, dtype=dtype), constant("b", np.ones((1, 8, 1, 1), dtype))],
        **kwargs,
    )


def conv_net_of_constant_nodes() -> Any:
    """Return a model whose weights are the outputs of Constant nodes, as some exporters write them."""
    made = conv_net()
    tensors = list(made.graph.initializer)
    del made.graph.initializer[:]
    for number, tensor in enumerate(tensors):
        made.graph.node.insert(number, helper.make_node("Constant", [], [tensor.name], value=tensor))
    return made


def weights_as_inputs(ir_version: int = 3, opset: int = 7) -> Any:
    """Make every initializer an input, too, as before IR version 4."""
    made = conv_net(opset=opset, ir_version=ir_version)
    made.graph.input.extend([value("w", [8, 3, 3, 3]), value("b", [1, 8, 1, 1])])
    return made


def attention(mask: float) -> Any:
    """Return a small transformer: projections, masked softmax, LayerNormalization, Gelu.

    The inputs are x [1, 8, 16] and a mask m [1, 8] of 0 and 1, which becomes (1 - m) * mask and is added to the
    scores.
    """
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "wq"], ["q"], name="query"),
        node("MatMul", ["x", "wk"], ["k"], name="key"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1], name="turn"),
        node("MatMul", ["q", "kt"], ["scores"], name="scores"),
        node("Sub", ["one", "m"], ["off"], name="invert"),
        node("Mul", ["off", "never"], ["bias"], name="never_times"),
        node("Unsqueeze", ["bias", "axis"], ["wide"], name="widen"),
        node("Add", ["scores", "wide"], ["masked"], name="mask"),
        node("Softmax", ["masked"], ["share"], axis=-1, name="softmax"),
        node("MatMul", ["share", "x"], ["mixed"], name="mix"),
        node("Add", ["mixed", "x"], ["sum"], name="residual"),
        node("LayerNormalization", ["sum", "scale", "shift"], ["normal"], axis=-1, name="norm"),
        node("MatMul", ["normal", "wo"], ["y"], name="out"),
    ]
    return model(
        nodes,
        [value("x", [1, 8, 16]), value("m", [1, 8])],
        [value("y", [1, 8, 16])],
        [
            weights("wq", 16, 16, seed=1),
            weights("wk", 16, 16, seed=2),
            weights("wo", 16, 16, seed=3),
            constant("one", np.float32(1)),
            constant("never", np.float32(mask)),
            constant("axis", np.array([1], np.int64)),
            constant("scale", np.linspace(0.5, 1.5, 16, dtype=np.float32)),
            constant("shift", np.linspace(-0.1, 0.1, 16, dtype=np.float32)),
        ],
    )


def branching() -> Any:
    """Return Relu(x) in an If whose condition is an input."""
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "then", [], [value("t", [1, 4])])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], [value("e", [1, 4])])
    return model(
        [
            helper.make_node("If", ["c"], ["chosen"], then_branch=then, else_branch=other, name="if"),
            helper.make_node("MatMul", ["chosen", "w"], ["y"], name="matmul"),
        ],
        [value("x", [1, 4]), value("c", [], TensorProto.BOOL)],
        [value("y", [1, 4])],
        [weights("w", 4, 4)],
    )


def boxes_and_scores() -> Any:
    """Return a detector's head as YOLO exports it: x [1, 3, 64, 64] -> [1, 80, 12], boxes of 0 to 320 and 8 scores."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], strides=[2, 2], pads=[1] * 4, name="stem"),
        node("Relu", ["c0"], ["r0"], name="stem_relu"),
        node("Conv", ["r0", "w1"], ["c1"], strides=[4, 4], pads=[1] * 4, name="body1"),
        node("Relu", ["c1"], ["r1"], name="relu1"),
        node("Conv", ["r1", "w2"], ["c2"], strides=[2, 2], pads=[1] * 4, name="body2"),
        node("Relu", ["c2"], ["r2"], name="relu2"),
    ]
    for level in (1, 2):
        for kind in ("box", "cls"):
            bias = ["rare"] if kind == "cls" else []
            conv, flat = f"{kind}{level}", f"{kind}{level}_flat"
            nodes.append(node("Conv", [f"r{level}", f"w_{conv}", *bias], [conv], name=conv))
            nodes.append(node("Reshape", [conv, f"{kind}_shape"], [flat], name=flat))
    nodes += [
        node("Concat", ["box1_flat", "box2_flat"], ["box"], axis=2, name="box_cat"),
        node("Concat", ["cls1_flat", "cls2_flat"], ["cls"], axis=2, name="cls_cat"),
        node("Sigmoid", ["box"], ["box_share"], name="box_sig"),
        node("Mul", ["box_share", "pixels"], ["boxes"], name="box_px"),
        node("Sigmoid", ["cls"], ["scores"], name="cls_sig"),
        node("Concat", ["boxes", "scores"], ["joined"], axis=1, name="join"),
        node("Transpose", ["joined"], ["output0"], perm=[0, 2, 1], name="turn"),
    ]
    shapes = {"w0": (16, 3, 3, 3), "w1": (32, 16, 3, 3), "w2": (32, 32, 3, 3)}
    shapes |= {f"w_box{level}": (4, 32, 1, 1) for level in (1, 2)}
    shapes |= {f"w_cls{level}": (8, 32, 1, 1) for level in (1, 2)}
    rng = np.random.default_rng(11)
    tensors = [
        constant(name, (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32))
        for name, shape in shapes.items()
    ]
    tensors += [
        constant("rare", np.full(8, -2, np.float32)),
        constant("pixels", np.float32(320)),
        constant("box_shape", np.array([1, 4, -1], np.int64)),
        constant("cls_shape", np.array([1, 8, -1], np.int64)),
    ]
    return model(nodes, [value("x", [1, 3, 64, 64])], [value("output0", [1, 80, 12])], tensors)


def one_node(op: str, inputs: list[Any], outputs: list[Any], **attributes: Any) -> Any:
    return model(
        [helper.make_node(op, [v.name for v in inputs], [v.name for v in outputs], **attributes)], inputs, outputs
    )


def samples_for(path: Path, sizes: dict[str, int], count: int, folder: Path) -> Path:
    """Write a folder of .npz files with values in -1..1 for the model's inputs; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(11)
    graph = onnx.load_model(str(path), load_external_data=False).graph
    defaults = {tensor.name for tensor in graph.initializer}
    for number in range(count):
        arrays: dict[str, Any] = {}
        for given in graph.input:
            if given.name in defaults:
                continue
            shape = [
                dim.dim_value
                if dim.dim_value > 0
                else sizes.get(f"{given.name}:{axis}", sizes.get(dim.dim_param, 1))
                for axis, dim in enumerate(given.type.tensor_type.shape.dim)
            ]
            dtype = helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
            arrays[given.name] = np.asarray(rng.random(shape) * 2 - 1).astype(dtype)
        np.savez(folder / f"sample{number}.npz", **arrays)
    return folder


def quantize(source: Path, target: Path, calibration: Path | tuple[Path, ...] = (), **given: Any) -> QuantizeResult:
    """Call `quantize_model` with options and settings as keyword arguments."""
    names = {field.name for field in dataclasses.fields(QuantizeSettings)}
    settings = QuantizeSettings(**{name: value for name, value in given.items() if name in names})
    others = {name: value for name, value in given.items() if name not in names}
    paths = (calibration,) if isinstance(calibration, Path) else calibration
    return quantize_model(source, target, QuantizeOptions(calibration=paths, settings=settings, **others))
