"""Models of one quantised product (Conv, ConvTranspose, MatMul or Gemm) with weights and a bias of given types."""

from __future__ import annotations

from typing import Any, Final, Literal

import model_work_models as models
import numpy as np
from onnx import TensorProto, helper, numpy_helper

Type = Literal["uint8", "int8", "uint16", "int16", "uint4", "int4"]
LIMITS: Final[dict[str, tuple[int, int]]] = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
    "uint4": (0, 15),
    "int4": (-8, 7),
}
# Shapes of the input, of the weights and of the result, and the axis of the result's channels in the weights.
_SHAPES: Final = {
    "Conv": ([1, 4, 8, 8], [6, 4, 3, 3], [1, 6, 6, 6], 0),
    "ConvTranspose": ([1, 4, 8, 8], [4, 6, 3, 3], [1, 6, 10, 10], 1),
    "MatMul": ([3, 8], [8, 6], [3, 6], 1),
    "Gemm": ([3, 8], [8, 6], [3, 6], 1),
}
_CHANNELS: Final = 6
# Values of the bias, which is as large as the other part of the results.
BIAS: Final = np.array([1, 1, -1, 0.8, -0.7, 0.6])
# The range of the input and of the results.
LARGEST: Final = 4.0


def product(
    op: str,
    activations: Type,
    weights: Type,
    *,
    channels: bool = False,
    beside_middle: int = 0,
    bias: float | list[float] | None = None,
) -> Any:
    """Return the model.

    Args:
        op: the operator.
        activations, weights: number types.
        channels: whether the weights have a scale for each channel.
        beside_middle: by how much the zero points of the weights differ from the middle of their type.
        bias: scale of the bias, or its scales, as multiples of the product of the other scales; ``None`` without a
            bias.
    """
    random = np.random.default_rng(0)
    shape, weights_shape, result_shape, axis = _SHAPES[op]
    low, high = LIMITS[activations]
    step = np.float32(2 * LARGEST / (high - low))
    least, most = LIMITS[weights]
    scale = np.float32(2 / (most - least)) * (
        random.uniform(0.5, 1, _CHANNELS).astype(np.float32) if channels else np.float32(0.8)
    )
    stored = random.integers(least, most + 1, weights_shape)
    constants = [
        models.constant("s", step),
        _of_type("z", activations, np.array((low + high + 1) // 2)),
        _of_type("w", weights, stored),
        models.constant("ws", scale),
        _of_type("wz", weights, np.full(np.shape(scale), (least + most + 1) // 2 + beside_middle)),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="back"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], name="weights", axis=axis),
    ]
    inputs = ["d", "wd"]
    if bias is not None:
        product = np.broadcast_to(step * scale, (_CHANNELS,))
        of_bias = (product[0] if np.ndim(bias) == 0 else product) * np.asarray(bias, np.float32)
        constants += [
            models.constant("b", np.round(BIAS / of_bias).astype(np.int32)),
            models.constant("bs", np.asarray(of_bias, np.float32)),
        ]
        nodes.append(helper.make_node("DequantizeLinear", ["b", "bs"], ["bd"], name="bias", axis=0))
        inputs.append("bd")
    nodes += [
        helper.make_node(op, inputs, ["p"], name="product"),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["pq"], name="quantise_result"),
        helper.make_node("DequantizeLinear", ["pq", "s", "z"], ["y"], name="result"),
    ]
    return models.model(nodes, [models.value("x", shape)], [models.value("y", result_shape)], constants, opset=21)


def _of_type(name: str, kind: Type, values: Any) -> Any:
    number = getattr(TensorProto, kind.upper())
    return numpy_helper.from_array(values.astype(helper.tensor_dtype_to_np_dtype(number)), name)
