"""Random models along one dimension, in which an output looks at neighbours, at everything, or at a position.

Each draw has an input of ids or of numbers, maybe a mask of some type, and layers. Sessions choose windows for
them; the correct result is what onnxruntime computes for the whole input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 8
MASKS = {
    "int32": (TensorProto.INT32, np.int32),
    "int64": (TensorProto.INT64, np.int64),
    "bool": (TensorProto.BOOL, np.bool_),
    "float16": (TensorProto.FLOAT16, np.float16),
    "float": (TensorProto.FLOAT, np.float32),
}
IDS = {"int32": TensorProto.INT32, "int64": TensorProto.INT64}


class Drawing:
    """One model, built layer by layer. `x` is the name of the tensor [1, WIDTH, n] that the next layer uses."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        # Functions that return valid values of an input for a length, by the name of the input.
        self.values: dict[str, Callable[[np.random.Generator, int], Any]] = {}
        self.x = ""
        self.mask = ""

    def add(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant((scale * self.rng.standard_normal(shape)).astype(np.float32))

    # --- inputs ---

    def numbers(self, name: str = "x") -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH, "n"]))
        self.values[name] = lambda rng, n: rng.standard_normal((1, WIDTH, n)).astype(np.float32)
        return name

    def ids(self, kind: str, rows: int, name: str = "tokens") -> str:
        """Return a table whose first two rows hardly differ, as those of padding and unknown words."""
        self.inputs.append(helper.make_tensor_value_info(name, IDS[kind], [1, "n"]))
        dtype = np.dtype(kind)
        self.values[name] = lambda rng, n: rng.integers(min(2, rows - 1), rows, (1, n)).astype(dtype)
        table = self.rng.standard_normal((rows, WIDTH)).astype(np.float32)
        table[: min(2, rows - 1)] = 0
        picked = self.add("Gather", [self.constant(table), name])
        return self.add("Transpose", [picked], perm=[0, 2, 1])

    def with_mask(self, kind: str, name: str) -> str:
        element, dtype = MASKS[kind]
        self.inputs.append(helper.make_tensor_value_info(name, element, [1, 1, "n"]))
        self.values[name] = lambda rng, n: (np.arange(n) < rng.integers(max(1, n - 2), n + 1)).astype(dtype)[
            None, None
        ]
        self.mask = self.add("Cast", [name], to=TensorProto.FLOAT)
        return self.mask

    # --- layers ---

    def activate(self, x: str) -> str:
        return self.add(str(self.rng.choice(["Relu", "LeakyRelu", "Tanh", "Sigmoid"])), [x])

    def conv(self, *, causal: bool = False) -> None:
        kernel, dilation = int(self.rng.choice([1, 3, 5])), int(self.rng.choice([1, 1, 2]))
        reach = (kernel - 1) * dilation
        weights = self.normal(WIDTH, WIDTH, kernel, scale=1.3 / np.sqrt(WIDTH * kernel))
        pads = [reach, 0] if causal else [reach // 2, reach - reach // 2]
        x = self.add("Conv", [self.x, weights, self.normal(WIDTH, scale=0.3)], pads=pads, dilations=[dilation])
        self.x = self.activate(x)

    def stride(self) -> None:
        """Add a downsampling by two and an upsampling: windows must start at even positions."""
        down = self.add("MaxPool", [self.x], kernel_shape=[2], strides=[2], ceil_mode=1)
        up = self.add("Resize", [down, "", self.constant(np.asarray([1, 1, 2], np.float32))], mode="nearest")
        size = self.add("Shape", [self.x])
        ends = self.add("Slice", [size, self.constant([2]), self.constant([3])])
        self.x = self.add("Slice", [up, self.constant([0]), ends, self.constant([2])])

    def upsample(self) -> None:
        weights = self.normal(WIDTH, WIDTH, 4, scale=0.3)
        self.x = self.add("ConvTranspose", [self.x, weights], strides=[2], pads=[1, 1])
        self.mask = ""  # the length has changed

    def attention(self) -> None:
        rows = self.add("Transpose", [self.x], perm=[0, 2, 1])
        q, k, v = (self.add("MatMul", [rows, self.normal(WIDTH, WIDTH, scale=0.5)]) for _ in "qkv")
        scores = self.add("MatMul", [q, self.add("Transpose", [k], perm=[0, 2, 1])])
        if self.mask:
            # 0 for positions in the mask, a large negative number or minus infinity for others
            hidden = float(self.rng.choice([-1e4, -np.inf]))
            there = self.add("Cast", [self.mask], to=TensorProto.BOOL)
            added = self.add("Where", [there, self.constant(np.float32(0)), self.constant(np.float32(hidden))])
            scores = self.add("Add", [scores, added])
        out = self.add("MatMul", [self.add("Softmax", [scores], axis=-1), v])
        self.x = self.add("Add", [self.x, self.add("Transpose", [out], perm=[0, 2, 1])])

    def recurrence(self, *, both: bool) -> None:
        ways = 2 if both else 1
        steps = self.add("Transpose", [self.x], perm=[2, 0, 1])
        w, r = (self.normal(ways, 4 * WIDTH, WIDTH, scale=0.4) for _ in "wr")
        name = f"t{len(self.nodes)}"
        direction = "bidirectional" if both else "forward"
        self.nodes.append(helper.make_node("LSTM", [steps, w, r], [name], hidden_size=WIDTH, direction=direction))
        summed = self.add("ReduceSum", [name, self.constant([1])], keepdims=0)
        self.x = self.add("Transpose", [summed], perm=[1, 2, 0])

    def mean(self) -> None:
        self.x = self.add("Sub", [self.x, self.add("ReduceMean", [self.x], axes=[2])])

    def masked(self) -> None:
        if self.mask:
            self.x = self.add("Mul", [self.x, self.mask])

    def model(self) -> bytes:
        self.nodes.append(helper.make_node("Identity", [self.x], ["y"]))
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH, None])
        graph = helper.make_graph(self.nodes, "g", self.inputs, [y], self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.checker.check_model(made)
        data: bytes = made.SerializeToString()
        return data

    def feeds(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return {name: make(rng, size) for name, make in self.values.items()}


LAYERS: dict[str, Callable[[Drawing], None]] = {
    "conv": Drawing.conv,
    "causal conv": lambda one: one.conv(causal=True),
    "stride": Drawing.stride,
    "upsample": Drawing.upsample,
    "attention": Drawing.attention,
    "recurrence": lambda one: one.recurrence(both=False),
    "recurrence of both ways": lambda one: one.recurrence(both=True),
    "mean": Drawing.mean,
    "masked": Drawing.masked,
}


def drawn(seed: int) -> tuple[Drawing, str]:
    """Return a random model and its description."""
    rng = np.random.default_rng([seed, 3])
    made, words = Drawing(rng), []
    kind = str(rng.choice(["numbers", "int32", "int64", "two"]))
    rows = int(rng.choice([2, 5, 49, 1000]))
    words.append(kind if kind == "numbers" else f"{kind} ids of {rows}")
    if kind == "numbers":
        made.x = made.numbers()
    elif kind == "two":
        made.x = made.add("Add", [made.numbers(), made.ids("int64", rows)])
    else:
        made.x = made.ids(kind, rows)
    if rng.random() < 0.6:
        mask, name = str(rng.choice(list(MASKS))), str(rng.choice(["mask", "keep"]))
        words.append(f"{mask} {name}")
        made.with_mask(mask, name)
    # Mostly local layers, since only those can have windows.
    weights = np.array([6, 3, 1, 1, 0.7, 0.3, 0.5, 0.3, 2])
    for layer in rng.choice(list(LAYERS), int(rng.integers(1, 6)), p=weights / weights.sum()):
        words.append(str(layer))
        LAYERS[str(layer)](made)
    if made.mask:
        made.masked()
        words.append("masked")
    return made, ", ".join(words)
