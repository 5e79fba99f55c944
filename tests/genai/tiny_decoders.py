"""Write tiny decoders with random weights in the three layouts that onnxruntime-genai supports.

``dynamic``: one model with dynamic shapes. ``window``: a pipeline with GroupQueryAttention and the whole KV cache (as
Olive and Foundry export). ``sliding``: a pipeline with its own attention and a uint8 KV cache that genai slides (as AI
Hub exports). All have the same weights. The tokenizer has tokens for bytes and a few pairs of letters.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, HEADS, KV_HEADS, HEAD, WIDTH, INNER = 2, 2, 1, 16, 32, 48
HALF = HEAD // 2
SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>")
PAD, END = 0, 1
_PAIRS = "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi"
PAIRS = tuple(_PAIRS.split())
VOCABULARY = len(SPECIAL) + 256 + len(PAIRS)
# Rows and columns of the matrix of `Sizes.ballast`.
BALLAST = 1000
# Scale and zero point of the uint8 KV cache.
KV_SCALE, KV_ZERO = 0.05, 128
QNN = [{"QNN": {"backend_path": "libQnnHtp.so", "soc_model": "60"}}]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a tiny decoder.

    Args:
        ballast: number of square matrices by which each token is multiplied, so that it takes longer.
        special: value added to the logits of special tokens, or of each of them; by default none is ever generated
            by chance.
    """

    context: int = 96
    window: int = 32
    ballast: int = 0
    special: float | tuple[float, ...] = -50.0


class Graph:
    """Builder that collects nodes and constants."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def const(self, name: str, value: Any) -> str:
        self.constants.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name

    def ints(self, *values: int) -> str:
        return self.const("i_" + "_".join(map(str, values)), np.array(values, np.int64))

    def op(self, kind: str, *inputs: str, out: str | Sequence[str] | None = None, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        outputs = [out or name] if out is None or isinstance(out, str) else list(out)
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=name, **attributes))
        return outputs[0]

    def save(self, path: Path, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        graph = helper.make_graph(self.nodes, "tiny", inputs, outputs, list(self.constants.values()))
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))


def tensor(name: str, kind: int, *shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


FLOAT, INT32, INT64, UINT8 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8


class Decoder:
    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.sizes = sizes
        rng = np.random.default_rng(seed)

        def weights(rows: int, columns: int, gain: float = 1.0) -> Any:
            return (rng.standard_normal((rows, columns)) * gain / np.sqrt(rows)).astype(np.float32)

        self.embedding = rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
        # Never <|end|> or <|pad|> by chance, so that answers have the maximum length.
        self.head = weights(WIDTH, VOCABULARY, 4.0)
        self.layers = [
            {
                "q": weights(WIDTH, HEADS * HEAD),
                "k": weights(WIDTH, KV_HEADS * HEAD),
                "v": weights(WIDTH, KV_HEADS * HEAD),
                "o": weights(HEADS * HEAD, WIDTH),
                "up": weights(WIDTH, INNER),
                "down": weights(INNER, WIDTH),
            }
            for _ in range(LAYERS)
        ]
        angles = np.arange(sizes.context)[:, None] / 10000 ** (np.arange(HALF) / HALF)
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    # --- parts ---

    def norm(self, g: Graph, x: str) -> str:
        square = g.op("ReduceMean", g.op("Mul", x, x), axes=[-1], keepdims=1)
        return g.op("Div", x, g.op("Sqrt", g.op("Add", square, g.const("epsilon", np.array([1e-5], np.float32)))))

    def project(self, g: Graph, x: str, layer: int, name: str) -> str:
        return g.op("MatMul", x, g.const(f"{name}{layer}", self.layers[layer][name]))

    def feed_forward(self, g: Graph, x: str, layer: int) -> str:
        up = self.project(g, self.norm(g, x), layer, "up")
        return g.op("Add", x, self.project(g, g.op("Mul", up, g.op("Sigmoid", up)), layer, "down"))

    def logits(self, g: Graph, x: str) -> None:
        biased = g.op("MatMul", self.norm(g, x), g.const("head", self.head))
        never = np.zeros(self.head.shape[1], np.float32)
        never[VOCABULARY:] = -50.0
        never[: len(SPECIAL)] = self.sizes.special
        if self.sizes.ballast:
            biased = g.op("Add", biased, self.ballast(g, x))
        g.op("Add", biased, g.const("never", never), out="logits")

    def ballast(self, g: Graph, x: str) -> str:
        """Add work without an effect on the result."""
        mean = g.op("ReduceMean", x, axes=[-1], keepdims=1)
        made = g.op("MatMul", mean, g.const("wide", np.ones((1, BALLAST), np.float32)))
        square = g.const("square", np.full((BALLAST, BALLAST), 1 / BALLAST, np.float32))
        for _ in range(self.sizes.ballast):
            made = g.op("MatMul", made, square)
        return g.op(
            "Mul",
            g.op("ReduceMean", made, axes=[-1], keepdims=1),
            g.const("nothing", np.array([1e-20], np.float32)),
        )

    def grouped(self, g: Graph, x: str, sequence: str, total: str, past: str, present: str) -> str:
        """Add all layers with GroupQueryAttention. past, present: patterns of names."""
        for layer in range(LAYERS):
            normed = self.norm(g, x)
            q, k, v = (self.project(g, normed, layer, name) for name in "qkv")
            attended = g.op(
                "GroupQueryAttention",
                *(q, k, v, past.format("key", layer), past.format("value", layer), sequence, total),
                *(g.const("cos", self.cos), g.const("sin", self.sin)),
                out=[f"attended{layer}", present.format("key", layer), present.format("value", layer)],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=KV_HEADS,
                do_rotary=1,
            )
            x = self.feed_forward(g, g.op("Add", x, self.project(g, attended, layer, "o")), layer)
        return x

    def caches(self, pattern: str, *shape: Any) -> list[Any]:
        return [
            tensor(pattern.format(which, layer), FLOAT, *shape)
            for layer in range(LAYERS)
            for which in ("key", "value")
        ]

    # --- dynamic ---

    def write_dynamic(self, folder: Path) -> dict[str, Any]:
        g = Graph()
        x = g.op("Gather", g.const("embedding", self.embedding), "input_ids")
        length = g.op("ReduceSum", "attention_mask", g.ints(1), keepdims=1)
        sequence = g.op("Cast", g.op("Sub", length, g.ints(1)), to=INT32)
        total = g.op("Gather", g.op("Shape", "attention_mask"), g.const("one", np.array(1, np.int64)))
        total = g.op("Cast", total, to=INT32)
        x = self.grouped(g, x, sequence, total, "past.{1}.{0}", "present.{1}.{0}")
        self.logits(g, x)
        g.save(
            folder / "model.onnx",
            [
                tensor("input_ids", INT64, "b", "s"),
                tensor("attention_mask", INT64, "b", "t"),
                *self.caches("past.{1}.{0}", "b", KV_HEADS, "p", HEAD),
            ],
            [
                tensor("logits", FLOAT, "b", "s", VOCABULARY),
                *self.caches("present.{1}.{0}", "b", KV_HEADS, "t", HEAD),
            ],
        )
        return {
            "filename": "model.onnx",
            "session_options": {"provider_options": []},
            "inputs": {
                "input_ids": "input_ids",
                "attention_mask": "attention_mask",
                "past_key_names": "past.%d.key",
                "past_value_names": "past.%d.value",
            },
            "outputs": {
                "logits": "logits",
                "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
        }

    # --- pipelines ---

    def write_ends(self, folder: Path) -> None:
        g = Graph()
        g.op("Gather", g.const("embedding", self.embedding), "input_ids", out="hidden")
        g.save(
            folder / "embeddings.onnx",
            [tensor("input_ids", INT32, 1, "s")],
            [tensor("hidden", FLOAT, 1, "s", WIDTH)],
        )
        g = Graph()
        self.logits(g, "last_hidden")
        g.save(
            folder / "lm_head.onnx",
            [tensor("last_hidden", FLOAT, 1, "s", WIDTH)],
            [tensor("logits", FLOAT, 1, "s", VOCABULARY)],
        )

    def write_grouped_stage(self, path: Path, size: int) -> None:
        g = Graph()
        x = self.grouped(g, "hidden", "past_seq_len", "total_seq_len", "past_{0}_{1}", "present_{0}_{1}")
        g.op("Identity", x, out="last_hidden")
        shape = (1, KV_HEADS, self.sizes.context, HEAD)
        g.save(
            path,
            [
                tensor("hidden", FLOAT, 1, size, WIDTH),
                tensor("past_seq_len", INT32, 1, 1),
                tensor("total_seq_len", INT32, 1),
                *self.caches("past_{0}_{1}", *shape),
            ],
            [tensor("last_hidden", FLOAT, 1, size, WIDTH), *self.caches("present_{0}_{1}", *shape)],
        )

    def write_sliding_stage(self, path: Path, size: int) -> None:
        g, past = Graph(), self.sizes.context - size
        causal = np.concatenate([np.zeros((size, past)), np.triu(np.full((size, size), -1e4), 1)], 1)
        hidden = g.op("Sub", g.op("Cast", "attention_mask", to=FLOAT), g.const("one_f", np.float32(1)))
        hidden = g.op(
            "Reshape", g.op("Mul", hidden, g.const("much", np.float32(1e4))), g.ints(1, 1, self.sizes.context)
        )
        mask = g.op("Add", hidden, g.const("causal", causal[None].astype(np.float32)))
        cos, sin = (
            g.op("Reshape", g.op("Gather", g.const(name, table), "position_ids"), g.ints(1, 1, size, HALF))
            for name, table in (("cos", self.cos), ("sin", self.sin))
        )

        def heads(x: str, count: int) -> str:
            return g.op("Transpose", g.op("Reshape", x, g.ints(1, size, count, HEAD)), perm=[0, 2, 1, 3])

        def turned(x: str) -> str:
            a = g.op("Slice", x, g.ints(0), g.ints(HALF), g.ints(3))
            b = g.op("Slice", x, g.ints(HALF), g.ints(HEAD), g.ints(3))
            first = g.op("Sub", g.op("Mul", a, cos), g.op("Mul", b, sin))
            return g.op("Concat", first, g.op("Add", g.op("Mul", b, cos), g.op("Mul", a, sin)), axis=3)

        quantization = (g.const("scale", np.float32(KV_SCALE)), g.const("zero", np.uint8(KV_ZERO)))
        x = "hidden"
        for layer in range(LAYERS):
            normed = self.norm(g, x)
            q = turned(heads(self.project(g, normed, layer, "q"), HEADS))
            k = turned(heads(self.project(g, normed, layer, "k"), KV_HEADS))
            v = heads(self.project(g, normed, layer, "v"), KV_HEADS)
            keys = g.op("Reshape", g.op("Transpose", k, perm=[0, 1, 3, 2]), g.ints(KV_HEADS, 1, HEAD, size))
            values = g.op("Reshape", v, g.ints(KV_HEADS, 1, size, HEAD))
            keys = g.op("QuantizeLinear", keys, *quantization, out=f"present_key_{layer}")
            values = g.op("QuantizeLinear", values, *quantization, out=f"present_value_{layer}")
            both_keys, both_values = (
                g.op(
                    "Concat",
                    *(g.op("DequantizeLinear", one, *quantization) for one in (f"past_{name}_{layer}", new)),
                    axis=axis,
                )
                for name, new, axis in (("key", keys, 3), ("value", values, 2))
            )
            # One key head for all heads: [KV_HEADS, HEADS / KV_HEADS, size, ...].
            q = g.op("Reshape", q, g.ints(KV_HEADS, HEADS // KV_HEADS, size, HEAD))
            many = HEADS // KV_HEADS
            scores = g.op("MatMul", q, g.op("Concat", *[both_keys] * many, axis=1))
            scores = g.op("Add", g.op("Mul", scores, g.const("root", np.float32(HEAD**-0.5))), mask)
            mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), g.op("Concat", *[both_values] * many, axis=1))
            mixed = g.op("Transpose", g.op("Reshape", mixed, g.ints(1, HEADS, size, HEAD)), perm=[0, 2, 1, 3])
            mixed = g.op("Reshape", mixed, g.ints(1, size, HEADS * HEAD))
            x = self.feed_forward(g, g.op("Add", x, self.project(g, mixed, layer, "o")), layer)
        g.op("Identity", x, out="last_hidden")

        def caches(pattern: str, length: int) -> list[Any]:
            return [
                tensor(pattern.format(name, layer), UINT8, KV_HEADS, 1, *shape)
                for layer in range(LAYERS)
                for name, shape in (("key", (HEAD, length)), ("value", (length, HEAD)))
            ]

        g.save(
            path,
            [
                tensor("hidden", FLOAT, 1, size, WIDTH),
                tensor("attention_mask", INT32, 1, self.sizes.context),
                tensor("position_ids", INT32, 1, size),
                *caches("past_{}_{}", past),
            ],
            [tensor("last_hidden", FLOAT, 1, size, WIDTH), *caches("present_{}_{}", size)],
        )

    def write_pipeline(self, folder: Path, layout: str, providers: list[Any]) -> dict[str, Any]:
        self.write_ends(folder)
        write = self.write_grouped_stage if layout == "window" else self.write_sliding_stage
        write(folder / "context.onnx", self.sizes.window)
        write(folder / "iterator.onnx", 1)
        names = [(which, layer) for layer in range(LAYERS) for which in ("key", "value")]
        extra = ["past_seq_len", "total_seq_len"] if layout == "window" else ["attention_mask", "position_ids"]
        middle = {
            "session_options": {"log_severity_level": 3, "provider_options": providers},
            "inputs": ["hidden", *extra, *(f"past_{which}_{layer}" for which, layer in names)],
            "outputs": ["last_hidden", *(f"present_{which}_{layer}" for which, layer in names)],
        }
        inputs = {"input_ids": "input_ids", "past_key_names": "past_key_%d", "past_value_names": "past_value_%d"}
        if layout == "window":
            inputs |= {"past_sequence_length": "past_seq_len", "total_sequence_length": "total_seq_len"}
        else:
            inputs |= {"attention_mask": "attention_mask", "position_ids": "position_ids"}
        return {
            "session_options": {"provider_options": []},
            "inputs": inputs,
            "outputs": {
                "logits": "logits",
                "present_key_names": "present_key_%d",
                "present_value_names": "present_value_%d",
            },
            "sliding_window": {
                "window_size": self.sizes.window,
                "pad_value": KV_ZERO if layout == "sliding" else 0,
                "alignment": "right" if layout == "sliding" else "left",
                "slide_key_value_cache": layout == "sliding",
            },
            "pipeline": [
                {"embeddings": {"filename": "embeddings.onnx", "inputs": ["input_ids"], "outputs": ["hidden"]}},
                {"context": {"filename": "context.onnx", **middle, "run_on_token_gen": False}},
                {"iterator": {"filename": "iterator.onnx", **middle, "run_on_prompt": False}},
                {
                    "lm_head": {
                        "filename": "lm_head.onnx",
                        "inputs": ["last_hidden"],
                        "outputs": ["logits"],
                        "is_lm_head": True,
                    }
                },
            ],
        }


def write_model(
    folder: Path, layout: str, *, qnn: bool = False, sizes: Sizes | None = None, seed: int = 3, share: bool = True
) -> Path:
    """Write a model's folder.

    Args:
        folder: target folder; created if missing.
        layout: "dynamic", "window" or "sliding".
        qnn: the two middle stages request QNN.
        sizes: sizes of context and window.
        seed: seed of the weights.
        share: value of ``past_present_share_buffer``; always false for a sliding model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = sizes or Sizes()
    decoder = Decoder(sizes, seed)
    if layout == "dynamic":
        section, kind = decoder.write_dynamic(folder), "llama"
    else:
        section, kind = decoder.write_pipeline(folder, layout, QNN if qnn else []), "decoder-pipeline"
    section |= {
        "head_size": HEAD,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
    }
    config = {
        "model": {
            "type": kind,
            "bos_token_id": END,
            "eos_token_id": END,
            "pad_token_id": PAD,
            "vocab_size": VOCABULARY,
            "context_length": sizes.context,
            "decoder": section,
        },
        "search": {
            "max_length": sizes.context,
            "do_sample": False,
            "past_present_share_buffer": share and layout != "sliding",
        },
    }
    (folder / "genai_config.json").write_text(json.dumps(config, indent=1), "utf-8")
    write_tokenizer(folder)
    return folder


def write_tokenizer(
    folder: Path, further: Mapping[str, int] = MappingProxyType({}), template: str = TEMPLATE
) -> None:
    """Write a byte-level BPE tokenizer in the files of Hugging Face. further: special tokens beyond the vocabulary."""
    letters = _byte_letters()
    vocabulary = {text: number for number, text in enumerate((*SPECIAL, *letters.values(), *PAIRS))}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": text, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for text, number in (*((text, number) for number, text in enumerate(SPECIAL)), *further.items())
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [f"{pair[0]} {pair[1]}" for pair in PAIRS]},
    }
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "bos_token": SPECIAL[END],
        "eos_token": SPECIAL[END],
        "pad_token": SPECIAL[PAD],
        "unk_token": SPECIAL[END],
        "model_max_length": 4096,
        "chat_template": template,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def _byte_letters() -> dict[int, str]:
    """Return the printable character that byte-level BPE uses for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + n) for n, byte in enumerate(others)}}
