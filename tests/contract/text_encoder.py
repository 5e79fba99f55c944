"""A BERT encoder as exporters write it, with named free dimensions and given or random weights.

Inputs ``input_ids``, ``attention_mask``, ``token_type_ids`` of int64 [batch, seq]; outputs ``last_hidden_state``
[batch, seq, hidden] and ``sentence_embedding`` [batch, hidden], the mean over the tokens in the mask. Weights have
the names of Hugging Face's BERT, so that real ones can be used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Added to the scores of masked tokens; 16-bit floats can represent this number.
MASKED = -10000.0


@dataclasses.dataclass(frozen=True)
class Size:
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    intermediate: int = 128
    vocabulary: int = 200
    positions: int = 128


def random_weights(size: Size, seed: int = 9) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    hidden, wide = size.hidden, size.intermediate

    def normal(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def norm(name: str) -> dict[str, Any]:
        scale, bias = 1 + 0.1 * rng.standard_normal(hidden), 0.1 * rng.standard_normal(hidden)
        return {f"{name}.weight": scale.astype(np.float32), f"{name}.bias": bias.astype(np.float32)}

    weights = {
        "embeddings.word_embeddings.weight": normal(size.vocabulary, hidden),
        "embeddings.position_embeddings.weight": normal(size.positions, hidden),
        "embeddings.token_type_embeddings.weight": normal(2, hidden),
        **norm("embeddings.LayerNorm"),
    }
    for layer in range(size.layers):
        prefix = f"encoder.layer.{layer}."
        shapes = {
            **{f"attention.self.{name}": (hidden, hidden) for name in ("query", "key", "value")},
            "attention.output.dense": (hidden, hidden),
            "intermediate.dense": (wide, hidden),
            "output.dense": (hidden, wide),
        }
        for name, shape in shapes.items():
            weights[f"{prefix}{name}.weight"] = normal(*shape)
            weights[f"{prefix}{name}.bias"] = 0.02 * normal(shape[0])
        weights |= norm(f"{prefix}attention.output.LayerNorm") | norm(f"{prefix}output.LayerNorm")
    return weights


def text_encoder(size: Size | None = None, weights: Mapping[str, Any] | None = None) -> onnx.ModelProto:
    size = size or Size()
    return _Builder(size, dict(weights or random_weights(size))).build()


class _Builder:
    def __init__(self, size: Size, weights: dict[str, Any]) -> None:
        self.size = size
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Any] = {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], output, **attributes))
        return output

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def weight(self, name: str) -> str:
        self.constants[name] = self.weights[name]
        return name

    def dense(self, x: str, name: str) -> str:
        self.constants[f"{name}.transposed"] = np.ascontiguousarray(self.weights[f"{name}.weight"].T)
        return self.op("Add", self.op("MatMul", x, f"{name}.transposed"), self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        weights = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", x, *weights, axis=-1, epsilon=1e-12)

    def heads(self, x: str, *, keys: bool = False) -> str:
        shape = self.constant([0, 0, self.size.heads, self.size.hidden // self.size.heads], np.int64)
        return self.op("Transpose", self.op("Reshape", x, shape), perm=[0, 2, 3, 1] if keys else [0, 2, 1, 3])

    def gelu(self, x: str) -> str:
        error = self.op("Erf", self.op("Div", x, self.constant(np.sqrt(2))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", error, self.constant(1))), self.constant(0.5))

    def embeddings(self) -> str:
        table = "embeddings.{}_embeddings.weight"
        words = self.op("Gather", self.weight(table.format("word")), "input_ids", axis=0)
        kinds = self.op("Gather", self.weight(table.format("token_type")), "token_type_ids", axis=0)
        length = self.op("Gather", self.op("Shape", "input_ids"), self.constant([1], np.int64), axis=0)
        zero = self.constant([0], np.int64)
        places = self.op("Slice", self.weight(table.format("position")), zero, length, zero)
        return self.norm(self.op("Add", self.op("Add", words, kinds), places), "embeddings.LayerNorm")

    def layer(self, x: str, number: int, mask: str) -> str:
        prefix = f"encoder.layer.{number}."
        query, key, value = (self.dense(x, f"{prefix}attention.self.{n}") for n in ("query", "key", "value"))
        scores = self.op("MatMul", self.heads(query), self.heads(key, keys=True))
        scores = self.op("Div", scores, self.constant(np.sqrt(self.size.hidden // self.size.heads)))
        shares = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        seen = self.op("Transpose", self.op("MatMul", shares, self.heads(value)), perm=[0, 2, 1, 3])
        seen = self.op("Reshape", seen, self.constant([0, 0, self.size.hidden], np.int64))
        x = self.norm(
            self.op("Add", self.dense(seen, f"{prefix}attention.output.dense"), x),
            f"{prefix}attention.output.LayerNorm",
        )
        wide = self.gelu(self.dense(x, f"{prefix}intermediate.dense"))
        return self.norm(self.op("Add", self.dense(wide, f"{prefix}output.dense"), x), f"{prefix}output.LayerNorm")

    def pooled(self, x: str, mask: str) -> str:
        """Add nodes for the mean over the tokens in the mask."""
        shares = self.op("Unsqueeze", mask, self.constant([2], np.int64))
        axis = self.constant([1], np.int64)
        total = self.op("ReduceSum", self.op("Mul", x, shares), axis, keepdims=0)
        return self.op("Div", total, self.op("ReduceSum", shares, axis, keepdims=0))

    def build(self) -> onnx.ModelProto:
        x = self.embeddings()
        mask = self.op("Cast", "attention_mask", to=TensorProto.FLOAT)
        hidden = self.op("Mul", self.op("Sub", self.constant(1), mask), self.constant(MASKED))
        hidden = self.op("Unsqueeze", hidden, self.constant([1, 2], np.int64))
        for number in range(self.size.layers):
            x = self.layer(x, number, hidden)
        self.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"]))
        self.nodes.append(helper.make_node("Identity", [self.pooled(x, mask)], ["sentence_embedding"]))
        names = ("input_ids", "attention_mask", "token_type_ids")
        graph = helper.make_graph(
            self.nodes,
            "text_encoder",
            [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "seq"]) for name in names],
            [
                helper.make_tensor_value_info(
                    "last_hidden_state", TensorProto.FLOAT, ["batch", "seq", self.size.hidden]
                ),
                helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", self.size.hidden]),
            ],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def text(rng: np.random.Generator, length: int, batch: int = 1, vocabulary: int = 200) -> dict[str, Any]:
    """Return feeds of random tokens. 0 is the padding token."""
    shape = (batch, length)
    return {
        "input_ids": rng.integers(1, vocabulary, shape),
        "attention_mask": np.ones(shape, np.int64),
        "token_type_ids": np.zeros(shape, np.int64),
    }
