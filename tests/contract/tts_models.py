"""A small text-to-speech pipeline, as PyTorch exports one: text encoder, denoiser, vocoder, all lengths dynamic.

Written by hand with `onnx.helper`, with weights from a seed. It contains what such exports contain: LayerNorm made
of ReduceMean, Sub, Pow, Sqrt and Div; masks; a denoiser with a time input that is run in a loop; a vocoder of
dilated convolutions after edge padding, snake activations (`x + sin(x)^2`) and transposed convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 32
TOKENS = 40
# Number of frames per token, and of samples per frame.
FRAMES = 2
HOP = 8
STEPS = 5
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Graph:
    """Nodes and weights of one model, in the order in which they are added."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"/{op}_{len(self.nodes)}", **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"w_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def random(self, *shape: int, scale: float = 1.0) -> str:
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        return self.constant(self.rng.standard_normal(shape) * scale / np.sqrt(fan))

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, pad: int = 0) -> str:
        return self.add(
            "Conv",
            x,
            self.random(outputs, inputs, kernel),
            self.random(outputs, scale=0.1),
            kernel_shape=[kernel],
            dilations=[dilation],
            pads=[pad, pad],
        )

    def layer_norm(self, x: str) -> str:
        """Add a LayerNorm over the last axis, as `torch.onnx` of opset 16 writes it."""
        mean = self.add("ReduceMean", x, axes=[-1])
        off = self.add("Sub", x, mean)
        squared = self.add("Pow", off, self.constant(2.0))
        variance = self.add("ReduceMean", squared, axes=[-1])
        deviation = self.add("Sqrt", self.add("Add", variance, self.constant(1e-5)))
        normed = self.add("Div", off, deviation)
        scaled = self.add("Mul", normed, self.constant(1 + 0.1 * self.rng.standard_normal(CHANNELS)))
        return self.add("Add", scaled, self.random(CHANNELS, scale=0.1))

    def channel_norm(self, x: str) -> str:
        turned = self.add("Transpose", x, perm=[0, 2, 1])
        return self.add("Transpose", self.layer_norm(turned), perm=[0, 2, 1])

    def model(self, inputs: Mapping[str, Any], output: str, shape: list[Any], name: str) -> onnx.ModelProto:
        self.nodes[-1].output[0] = output
        declared = [helper.make_tensor_value_info(one, kind, dims) for one, (kind, dims) in inputs.items()]
        graph = helper.make_graph(
            self.nodes, name, declared, [helper.make_tensor_value_info(output, FLOAT, shape)], self.weights
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(made)
        return made


def text_encoder() -> onnx.ModelProto:
    """Return the text encoder: ids [1, text] and mask [1, 1, text] to states [1, channels, text]."""
    graph = Graph(1)
    x = graph.add("Gather", graph.random(TOKENS, CHANNELS), "ids")
    x = graph.add("Transpose", x, perm=[0, 2, 1])
    for _ in range(3):
        y = graph.conv(graph.add("Mul", x, "mask"), CHANNELS, CHANNELS, 5, pad=2)
        x = graph.channel_norm(graph.add("Add", x, graph.add("Relu", y)))
    graph.add("Mul", x, "mask")
    inputs = {"ids": (INT64, [1, "text"]), "mask": (FLOAT, [1, 1, "text"])}
    return graph.model(inputs, "states", [1, CHANNELS, "text"], "encoder")


def denoiser() -> onnx.ModelProto:
    """Return the denoiser: noisy and states [1, channels, frames], mask [1, 1, frames], time [1] to noise [1,
    channels, frames].
    """
    graph = Graph(2)
    angles = graph.add(
        "Mul", graph.add("Unsqueeze", "time", graph.constant([1], np.int64)), graph.random(1, 16, scale=3.0)
    )
    embedded = graph.add("Concat", graph.add("Sin", angles), graph.add("Cos", angles), axis=1)
    step = graph.add("Gemm", embedded, graph.random(CHANNELS, 32), graph.random(CHANNELS, scale=0.1), transB=1)
    step = graph.add("Unsqueeze", step, graph.constant([2], np.int64))
    x = graph.add("Add", "noisy", graph.conv("states", CHANNELS, CHANNELS, 1))
    for dilation in (1, 2, 4):
        h = graph.add("Mul", graph.add("Add", x, step), "mask")
        gates = graph.conv(h, CHANNELS, 2 * CHANNELS, 3, dilation=dilation, pad=dilation)
        split = graph.constant([CHANNELS, CHANNELS], np.int64)
        graph.nodes.append(
            helper.make_node(
                "Split", [gates, split], [f"a_{dilation}", f"b_{dilation}"], axis=1, name=f"/Split_{dilation}"
            )
        )
        gated = graph.add("Mul", graph.add("Tanh", f"a_{dilation}"), graph.add("Sigmoid", f"b_{dilation}"))
        x = graph.channel_norm(graph.add("Add", x, graph.conv(gated, CHANNELS, CHANNELS, 1)))
    graph.add("Mul", graph.conv(x, CHANNELS, CHANNELS, 1), "mask")
    dims = [1, CHANNELS, "frames"]
    inputs = {
        "noisy": (FLOAT, dims),
        "states": (FLOAT, dims),
        "mask": (FLOAT, [1, 1, "frames"]),
        "time": (FLOAT, [1]),
    }
    return graph.model(inputs, "noise", dims, "denoiser")


def vocoder() -> onnx.ModelProto:
    """Return the vocoder: mel [1, channels, frames] to wave [1, 1, 8 * frames]. It has no mask, so padding is
    audible.
    """
    graph = Graph(3)

    def padded_conv(x: str, inputs: int, outputs: int, kernel: int, dilation: int) -> str:
        reach = (kernel - 1) * dilation // 2
        pads = graph.constant([0, 0, reach, 0, 0, reach], np.int64)
        return graph.conv(graph.add("Pad", x, pads, mode="edge"), inputs, outputs, kernel, dilation=dilation)

    def snake(x: str) -> str:
        return graph.add("Add", x, graph.add("Pow", graph.add("Sin", x), graph.constant(2.0)))

    x, channels = padded_conv("mel", CHANNELS, CHANNELS, 7, 1), CHANNELS
    for rate in (4, 2):
        x = graph.add(
            "ConvTranspose",
            graph.add("LeakyRelu", x, alpha=0.1),
            graph.random(channels, channels // 2, 2 * rate, scale=2.5),
            kernel_shape=[2 * rate],
            strides=[rate],
            pads=[rate // 2, rate // 2],
        )
        channels //= 2
        for dilation in (1, 3):
            y = padded_conv(snake(x), channels, channels, 3, dilation)
            x = graph.add("Add", x, padded_conv(snake(y), channels, channels, 5, 1))
    graph.add("Tanh", padded_conv(graph.add("LeakyRelu", x, alpha=0.1), channels, 1, 7, 1))
    return graph.model({"mel": (FLOAT, [1, CHANNELS, "frames"])}, "wave", [1, 1, "samples"], "vocoder")


def speak(encoder: Any, noise_of: Any, decoder: Any, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Run the pipeline as an application does: three sessions of ONNX Runtime or of qnnbridge, any number of
    tokens.
    """
    count = ids.shape[1]
    (states,) = encoder.run(None, {"ids": ids, "mask": np.ones((1, 1, count), np.float32)})
    states = np.repeat(states, FRAMES, axis=2)
    mask = np.ones((1, 1, count * FRAMES), np.float32)
    mel = np.random.default_rng(count).standard_normal(states.shape).astype(np.float32)
    for step in range(STEPS):
        time = np.asarray([1 - step / STEPS], np.float32)
        (noise,) = noise_of.run(None, {"noisy": mel, "states": states, "mask": mask, "time": time})
        mel = mel - noise / STEPS
    (wave,) = decoder.run(None, {"mel": mel})
    return np.asarray(wave)
