"""A tiny Whisper with random weights: its folder in the four layouts, and its computation in plain numpy.

Windows have two seconds. The weights have the names that transformers uses, so that `make_reference.py` can load
them.
"""

from __future__ import annotations

import json
import math
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from tests.genai.tiny_decoders import FLOAT, INT32, INT64, Graph, tensor

WIDTH, HEADS, HEAD, INNER, LAYERS, BINS = 32, 2, 16, 64, 2, 80
WINDOW_S, RATE = 2, 16000
FRAMES, SOURCE, TARGET = 200, 100, 48
LANGUAGES = ("en", "de", "fr")
SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
PAIRS = ("th", "he", "in", "er", "an", "re", "on", "at")
TEXT = 256 + len(PAIRS)
IDS = {name: TEXT + number for number, name in enumerate(SPECIAL)}
END, START, FIRST_TIME = TEXT, TEXT + 1, TEXT + len(SPECIAL)
TIMES = SOURCE + 1
VOCABULARY = FIRST_TIME + TIMES
SUPPRESSED = (
    3,
    17,
    IDS["<|startoftranscript|>"],
    IDS["<|startoflm|>"],
    IDS["<|startofprev|>"],
    IDS["<|nospeech|>"],
)
SUPPRESSED_FIRST = (32, END)
GENERATION = {
    "begin_suppress_tokens": list(SUPPRESSED_FIRST),
    "suppress_tokens": list(SUPPRESSED),
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": END,
    "decoder_start_token_id": START,
    "is_multilingual": True,
    "lang_to_id": {f"<|{code}|>": IDS[f"<|{code}|>"] for code in LANGUAGES},
    "task_to_id": {task: IDS[f"<|{task}|>"] for task in ("translate", "transcribe")},
    "no_timestamps_token_id": IDS["<|notimestamps|>"],
    "max_initial_timestamp_index": 50,
    "max_length": TARGET,
}
CONFIG = {
    "model_type": "whisper",
    "vocab_size": VOCABULARY,
    "num_mel_bins": BINS,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "max_source_positions": SOURCE,
    "max_target_positions": TARGET,
    "pad_token_id": END,
    "bos_token_id": END,
    "eos_token_id": END,
    "decoder_start_token_id": START,
}
LAYOUTS = ("separate", "merged", "genai", "fixed")
Weights = Mapping[str, Any]


def weights(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 0.25) -> Any:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    found = {
        "encoder.conv1.weight": normal(WIDTH, BINS, 3, scale=0.1),
        "encoder.conv1.bias": normal(WIDTH),
        "encoder.conv2.weight": normal(WIDTH, WIDTH, 3, scale=0.2),
        "encoder.conv2.bias": normal(WIDTH),
        "encoder.embed_positions.weight": normal(SOURCE, WIDTH, scale=0.5),
        "decoder.embed_tokens.weight": normal(VOCABULARY, WIDTH, scale=0.6),
        "decoder.embed_positions.weight": normal(TARGET, WIDTH, scale=0.6),
    }
    for side in ("encoder", "decoder"):
        for layer in range(LAYERS):
            name = f"{side}.layers.{layer}"
            for attention in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    found[f"{name}.{attention}.{part}.weight"] = normal(WIDTH, WIDTH, scale=0.3)
                    if part != "k_proj":
                        found[f"{name}.{attention}.{part}.bias"] = normal(WIDTH, scale=0.1)
            for part, rows, columns in (("fc1", INNER, WIDTH), ("fc2", WIDTH, INNER)):
                found[f"{name}.{part}.weight"] = normal(rows, columns)
                found[f"{name}.{part}.bias"] = normal(rows, scale=0.1)
            norms = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
            for norm in norms if side == "decoder" else (norms[0], norms[2]):
                found[f"{name}.{norm}.weight"] = 1 + normal(WIDTH, scale=0.1)
                found[f"{name}.{norm}.bias"] = normal(WIDTH, scale=0.1)
        found[f"{side}.layer_norm.weight"] = 1 + normal(WIDTH, scale=0.1)
        found[f"{side}.layer_norm.bias"] = normal(WIDTH, scale=0.1)
    return found


def sound(seed: int, seconds: float = WINDOW_S, rate: int = RATE) -> Any:
    """Return chirps and noise, float32."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * rate)) / rate
    waves = sum(
        np.sin(2 * np.pi * (f * t + g * np.sin(t * h)))
        for f, g, h in rng.uniform((80, 1, 1), (3000, 60, 9), (5, 3))
    )
    loud = 0.5 + 0.5 * np.sin(2 * np.pi * rng.uniform(0.3, 2) * t)
    return (0.08 * waves * loud + 0.01 * rng.standard_normal(t.size)).astype(np.float32)


def write_wav(path: Path, samples: Any, rate: int = RATE) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(samples * 32767).clip(-32768, 32767).astype("<i2").tobytes())
    return path


def write_tokenizer(path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*letters, *PAIRS])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [(pair[0], pair[1]) for pair in PAIRS]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(f"<|{0.02 * step:.2f}|>", special=False) for step in range(TIMES)])
    assert tokenizer.get_vocab_size() == VOCABULARY
    tokenizer.save(str(path))


# --- in numpy ----------------------------------------------------------------------------------------------


def _norm(x: Any, w: Weights, name: str) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def _gelu(x: Any) -> Any:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _linear(x: Any, w: Weights, name: str) -> Any:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def _attend(x: Any, source: Any, w: Weights, name: str, *, causal: bool) -> Any:
    def heads(y: Any) -> Any:
        return y.reshape(len(y), HEADS, HEAD).transpose(1, 0, 2)

    q, k, v = (
        heads(_linear(y, w, f"{name}.{part}"))
        for y, part in ((x, "q_proj"), (source, "k_proj"), (source, "v_proj"))
    )
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(HEAD)
    if causal:
        scores += np.triu(np.full(scores.shape[1:], -1e9), 1)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    found = (scores / scores.sum(-1, keepdims=True)) @ v
    return _linear(found.transpose(1, 0, 2).reshape(len(x), WIDTH), w, f"{name}.out_proj")


def _feed(x: Any, w: Weights, name: str) -> Any:
    return x + _linear(_gelu(_linear(_norm(x, w, f"{name}.final_layer_norm"), w, f"{name}.fc1")), w, f"{name}.fc2")


def encode(w: Weights, features: Any) -> Any:
    x = np.asarray(features[0], np.float64)
    for name, stride in (("conv1", 1), ("conv2", 2)):
        padded = np.pad(x, ((0, 0), (1, 1)))
        pieces = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=1)[:, ::stride]
        kernel, bias = w[f"encoder.{name}.weight"], w[f"encoder.{name}.bias"]
        x = _gelu(np.einsum("ctk,ock->ot", pieces, kernel) + bias[:, np.newaxis])
    x = x.T + w["encoder.embed_positions.weight"]
    for layer in range(LAYERS):
        name = f"encoder.layers.{layer}"
        y = _norm(x, w, f"{name}.self_attn_layer_norm")
        x = _feed(x + _attend(y, y, w, f"{name}.self_attn", causal=False), w, name)
    return _norm(x, w, "encoder.layer_norm")


def scores_after(w: Weights, encoded: Any, ids: Sequence[int]) -> Any:
    x = w["decoder.embed_tokens.weight"][list(ids)] + w["decoder.embed_positions.weight"][: len(ids)]
    for layer in range(LAYERS):
        name = f"decoder.layers.{layer}"
        y = _norm(x, w, f"{name}.self_attn_layer_norm")
        x = x + _attend(y, y, w, f"{name}.self_attn", causal=True)
        y = _norm(x, w, f"{name}.encoder_attn_layer_norm")
        x = _feed(x + _attend(y, encoded, w, f"{name}.encoder_attn", causal=False), w, name)
    return _norm(x, w, "decoder.layer_norm")[-1] @ w["decoder.embed_tokens.weight"].T


# --- as ONNX -----------------------------------------------------------------------------------------------


class Net:
    """Builder of Whisper's nodes. scope: where nodes of a branch are added; constants are those of the whole graph."""

    def __init__(self, w: Weights, graph: Graph) -> None:
        self.w, self.g = w, graph

    def const(self, name: str, *, transposed: bool = False) -> str:
        value = self.w[name]
        return self.g.const(f"{name}{'_t' * transposed}", value.T.copy() if transposed else value)

    def scalar(self, value: float) -> str:
        return self.g.const(f"f_{value}", np.float32(value))

    def linear(self, x: str, name: str) -> str:
        y = self.g.op("MatMul", x, self.const(f"{name}.weight", transposed=True))
        return self.g.op("Add", y, self.const(f"{name}.bias")) if f"{name}.bias" in self.w else y

    def norm(self, x: str, name: str) -> str:
        weight, bias = self.const(f"{name}.weight"), self.const(f"{name}.bias")
        return self.g.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=1e-5)

    def gelu(self, x: str) -> str:
        erf = self.g.op("Erf", self.g.op("Mul", x, self.scalar(1 / math.sqrt(2))))
        half = self.g.op("Mul", x, self.scalar(0.5))
        return self.g.op("Mul", half, self.g.op("Add", erf, self.scalar(1.0)))

    def heads(self, x: str) -> str:
        """Reshape (1, n, WIDTH) to (1, HEADS, n, HEAD)."""
        y = self.g.op("Reshape", x, self.g.ints(1, -1, HEADS, HEAD))
        return self.g.op("Transpose", y, perm=[0, 2, 1, 3])

    def attend(self, q: str, k: str, v: str, name: str, mask: str | None = None) -> str:
        """Transpose k so that HEAD precedes the positions."""
        scores = self.g.op("Mul", self.g.op("MatMul", q, k), self.scalar(1 / math.sqrt(HEAD)))
        if mask is not None:
            scores = self.g.op("Add", scores, mask)
        found = self.g.op("MatMul", self.g.op("Softmax", scores, axis=-1), v)
        found = self.g.op("Transpose", found, perm=[0, 2, 1, 3])
        return self.linear(self.g.op("Reshape", found, self.g.ints(1, -1, WIDTH)), f"{name}.out_proj")

    def feed(self, x: str, name: str) -> str:
        y = self.norm(x, f"{name}.final_layer_norm")
        return self.g.op("Add", x, self.linear(self.gelu(self.linear(y, f"{name}.fc1")), f"{name}.fc2"))

    def turned(self, x: str) -> str:
        return self.g.op("Transpose", x, perm=[0, 1, 3, 2])

    def cross(self, states: str, layer: int, part: str) -> str:
        return self.heads(self.linear(states, f"decoder.layers.{layer}.encoder_attn.{part}_proj"))

    def encoder(self, features: str, out: str) -> str:
        x = features
        for name, stride in (("encoder.conv1", 1), ("encoder.conv2", 2)):
            kernel = self.const(f"{name}.weight"), self.const(f"{name}.bias")
            x = self.gelu(self.g.op("Conv", x, *kernel, kernel_shape=[3], pads=[1, 1], strides=[stride]))
        x = self.g.op("Transpose", x, perm=[0, 2, 1])
        x = self.g.op("Add", x, self.const("encoder.embed_positions.weight"))
        for layer in range(LAYERS):
            name = f"encoder.layers.{layer}"
            y = self.norm(x, f"{name}.self_attn_layer_norm")
            q, k, v = (self.heads(self.linear(y, f"{name}.self_attn.{part}_proj")) for part in "qkv")
            x = self.g.op("Add", x, self.attend(q, self.turned(k), v, f"{name}.self_attn"))
            x = self.feed(x, name)
        return self.g.op("Identity", self.norm(x, "encoder.layer_norm"), out=out)


def write_folder(folder: Path, layout: str, w: Weights | None = None, *, tokenizer: bool = True) -> Path:
    folder.mkdir(parents=True)
    w = weights() if w is None else w
    if tokenizer:
        write_tokenizer(folder / "tokenizer.json")
        (folder / "generation_config.json").write_text(json.dumps(GENERATION))
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "preprocessor_config.json").write_text(
            json.dumps({"feature_size": BINS, "sampling_rate": RATE, "hop_length": 160, "chunk_length": WINDOW_S})
        )
    {"separate": _separate, "merged": _merged, "genai": _genai, "fixed": _fixed}[layout](folder, w)
    return folder


def _encoder(path: Path, w: Weights, shape: Sequence[Any], features: str, states: str, cross: str | None) -> None:
    """Add cross attention. cross: names of the outputs with the cross values; with a `t` keys are transposed, heads
    come first.
    """
    net = Net(w, Graph())
    hidden = net.encoder(features, states)
    outputs = [] if cross == "k_cache_cross" else [tensor(states, FLOAT, 1, SOURCE, WIDTH)]
    for layer in range(LAYERS if cross else 0):
        k, v = net.cross(hidden, layer, "k"), net.cross(hidden, layer, "v")
        if cross == "k_cache_cross":
            k, v = net.g.op("Transpose", k, perm=[1, 0, 3, 2]), net.g.op("Transpose", v, perm=[1, 0, 2, 3])
            names = f"k_cache_cross_{layer}", f"v_cache_cross_{layer}"
            shapes = (HEADS, 1, HEAD, SOURCE), (HEADS, 1, SOURCE, HEAD)
        else:
            names = f"present_key_cross_{layer}", f"present_value_cross_{layer}"
            shapes = (1, HEADS, SOURCE, HEAD), (1, HEADS, SOURCE, HEAD)
        for value, name, size in zip((k, v), names, shapes, strict=True):
            net.g.op("Identity", value, out=name)
            outputs.append(tensor(name, FLOAT, *size))
    net.g.save(path, [tensor(features, FLOAT, *shape)], outputs)


_OPTIMUM = ("batch_size", "feature_size", "encoder_sequence_length")


def _growing(path: Path, w: Weights, kind: str) -> None:
    """Write a decoder. kind: first, past, merged or genai."""
    net = Net(w, Graph())
    g = net.g
    ids, ids_type = "input_ids", INT32 if kind == "genai" else INT64
    inputs = [tensor(ids, ids_type, "batch_size", 1 if kind == "past" else "decoder_sequence_length")]
    outputs = [tensor("logits", FLOAT, "batch_size", "decoder_sequence_length", VOCABULARY)]
    if kind in ("first", "merged"):
        inputs.append(tensor("encoder_hidden_states", FLOAT, "batch_size", SOURCE, WIDTH))
    if kind == "merged":
        inputs.append(tensor("use_cache_branch", 9, 1))

    def name_of(way: str, layer: int, side: str, part: str) -> str:
        if kind == "genai":
            return f"{way}_{part}_{'self' if side == 'decoder' else 'cross'}_{layer}"
        return f"{'past_key_values' if way == 'past' else 'present'}.{layer}.{side}.{part}"

    def cache(name: str, length: Any) -> str:
        inputs.append(tensor(name, FLOAT, "batch_size", HEADS, length, HEAD))
        return name

    pasts = {}
    if kind != "first":
        for layer in range(LAYERS):
            for part in ("key", "value"):
                pasts[layer, part] = cache(name_of("past", layer, "decoder", part), "past_length")
                pasts[layer, "cross" + part] = cache(name_of("past", layer, "encoder", part), "encoder_length")
    count = g.op("Gather", g.op("Shape", ids), g.const("one_index", np.int64(1)))
    before = g.const("none", np.int64(0))
    if pasts:
        before = g.op("Gather", g.op("Shape", pasts[0, "key"]), g.const("two_index", np.int64(2)))
    total = g.op("Add", before, count)
    one = g.const("one", np.int64(1))
    places = g.op("Range", before, total, one)
    every = g.op("Range", g.const("none", np.int64(0)), total, one)
    later = g.op("Greater", g.op("Unsqueeze", every, g.ints(0)), g.op("Unsqueeze", places, g.ints(1)))
    mask = g.op("Where", later, net.scalar(-1e9), net.scalar(0.0))
    x = g.op(
        "Add",
        g.op("Gather", net.const("decoder.embed_tokens.weight"), ids),
        g.op("Gather", net.const("decoder.embed_positions.weight"), places),
    )
    for layer in range(LAYERS):
        name = f"decoder.layers.{layer}"
        y = net.norm(x, f"{name}.self_attn_layer_norm")
        q, *made = (net.heads(net.linear(y, f"{name}.self_attn.{part}_proj")) for part in "qkv")
        whole = []
        for part, value in zip(("key", "value"), made, strict=True):
            out = name_of("present", layer, "decoder", part)
            value = g.op("Concat", pasts[layer, part], value, axis=2) if pasts else value
            whole.append(g.op("Identity", value, out=out))
            outputs.append(tensor(out, FLOAT, "batch_size", HEADS, "total_length", HEAD))
        x = g.op("Add", x, net.attend(q, net.turned(whole[0]), whole[1], f"{name}.self_attn", mask))
        y = net.norm(x, f"{name}.encoder_attn_layer_norm")
        q = net.heads(net.linear(y, f"{name}.encoder_attn.q_proj"))
        crossing = [_cross(net, kind, layer, part, pasts) for part in ("key", "value")]
        if kind in ("first", "merged"):
            for part, value in zip(("key", "value"), crossing, strict=True):
                out = name_of("present", layer, "encoder", part)
                g.op("Identity", value, out=out)
                outputs.append(tensor(out, FLOAT, "batch_size", HEADS, "encoder_length", HEAD))
        x = g.op("Add", x, net.attend(q, net.turned(crossing[0]), crossing[1], f"{name}.encoder_attn"))
        x = net.feed(x, name)
    x = net.norm(x, "decoder.layer_norm")
    g.op("MatMul", x, net.const("decoder.embed_tokens.weight", transposed=True), out="logits")
    g.save(path, inputs, outputs)


def _cross(net: Net, kind: str, layer: int, part: str, pasts: Mapping[Any, str]) -> str:
    if kind in ("past", "genai"):
        return pasts[layer, "cross" + part]
    if kind == "first":
        return net.cross("encoder_hidden_states", layer, part[0])
    whole, branch = net.g, Graph()
    branch.constants = whole.constants
    net.g = branch
    made = net.cross("encoder_hidden_states", layer, part[0])
    branch.nodes = [_renamed(node, f"{layer}{part}_") for node in branch.nodes]
    net.g = whole
    shape = tensor(f"{layer}{part}_{made}", FLOAT, None, None, None, None)
    other = helper.make_graph(branch.nodes, "computes", [], [shape])
    same = helper.make_node("Identity", [pasts[layer, "cross" + part]], [f"{layer}{part}_kept"])
    kept = helper.make_graph([same], "keeps", [], [tensor(f"{layer}{part}_kept", FLOAT, None, None, None, None)])
    return whole.op("If", "use_cache_branch", then_branch=kept, else_branch=other)


def _renamed(node: Any, prefix: str) -> Any:
    """Prefix the names in a branch, which must differ from those of the outer graph."""
    own = {"MatMul", "Add", "Reshape", "Transpose"}
    rename = [f"{prefix}{name}" if name.split("_")[0] in own else name for name in node.input]
    del node.input[:]
    node.input.extend(rename)
    node.output[0] = node.name = f"{prefix}{node.output[0]}"
    return node


def _separate(folder: Path, w: Weights) -> None:
    _encoder(folder / "encoder_model.onnx", w, _OPTIMUM, "input_features", "last_hidden_state", None)
    _growing(folder / "decoder_model.onnx", w, "first")
    _growing(folder / "decoder_with_past_model.onnx", w, "past")


def _merged(folder: Path, w: Weights) -> None:
    (folder / "onnx").mkdir()
    _encoder(folder / "onnx" / "encoder_model.onnx", w, _OPTIMUM, "input_features", "last_hidden_state", None)
    _growing(folder / "onnx" / "decoder_model_merged.onnx", w, "merged")


def _genai(folder: Path, w: Weights) -> None:
    shape = ("batch_size", BINS, FRAMES)
    _encoder(folder / "encoder.onnx", w, shape, "audio_features", "encoder_hidden_states", "present_key_cross")
    _growing(folder / "decoder.onnx", w, "genai")
    encoder = {
        "filename": "encoder.onnx",
        "inputs": {"audio_features": "audio_features"},
        "outputs": {
            "encoder_hidden_states": "encoder_hidden_states",
            "cross_present_key_names": "present_key_cross_%d",
            "cross_present_value_names": "present_value_cross_%d",
        },
    }
    names = {f"past_{part}_names": f"past_{part}_self_%d" for part in ("key", "value")}
    names |= {f"cross_past_{part}_names": f"past_{part}_cross_%d" for part in ("key", "value")}
    made = {f"present_{part}_names": f"present_{part}_self_%d" for part in ("key", "value")}
    decoder = {
        "filename": "decoder.onnx",
        "inputs": {"input_ids": "input_ids", **names},
        "outputs": {"logits": "logits", **made},
    }
    document = {"model": {"type": "whisper", "encoder": encoder, "decoder": decoder}, "search": {}}
    (folder / "genai_config.json").write_text(json.dumps(document))


def _fixed(folder: Path, w: Weights) -> None:
    encoder, decoder = folder / "HfWhisperEncoder.onnx", folder / "HfWhisperDecoder.onnx"
    _encoder(encoder, w, (1, BINS, FRAMES), "input_features", "hidden", "k_cache_cross")
    net = Net(w, Graph())
    g = net.g
    # One position more than the model has, as in AI Hub's decoders: the mask's last position is the token itself.
    places = TARGET + 1
    inputs = [
        tensor("input_ids", INT32, 1, 1),
        tensor("attention_mask", FLOAT, 1, 1, 1, places),
        tensor("position_ids", INT32, 1),
    ]
    outputs = [tensor("logits", FLOAT, 1, VOCABULARY, 1, 1)]
    x = g.op(
        "Add",
        g.op("Gather", net.const("decoder.embed_tokens.weight"), "input_ids"),
        g.op("Gather", net.const("decoder.embed_positions.weight"), "position_ids"),
    )
    for layer in range(LAYERS):
        name = f"decoder.layers.{layer}"
        y = net.norm(x, f"{name}.self_attn_layer_norm")
        q, k, v = (net.heads(net.linear(y, f"{name}.self_attn.{part}_proj")) for part in "qkv")
        k, v = g.op("Transpose", k, perm=[1, 0, 3, 2]), g.op("Transpose", v, perm=[1, 0, 2, 3])
        whole = []
        for part, value, axis in (("k", k, 3), ("v", v, 2)):
            size = (HEADS, 1, HEAD, places - 1) if part == "k" else (HEADS, 1, places - 1, HEAD)
            inputs.append(tensor(f"{part}_cache_self_{layer}_in", FLOAT, *size))
            value = g.op("Concat", f"{part}_cache_self_{layer}_in", value, axis=axis)
            out = f"{part}_cache_self_{layer}_out"
            g.op("Slice", value, g.ints(1), g.ints(places), g.ints(axis), out=out)
            outputs.append(tensor(out, FLOAT, *size))
            whole.append(g.op("Transpose", value, perm=[1, 0, 2, 3]))
        x = g.op("Add", x, net.attend(q, whole[0], whole[1], f"{name}.self_attn", "attention_mask"))
        y = net.norm(x, f"{name}.encoder_attn_layer_norm")
        q = net.heads(net.linear(y, f"{name}.encoder_attn.q_proj"))
        inputs.append(tensor(f"k_cache_cross_{layer}", FLOAT, HEADS, 1, HEAD, SOURCE))
        inputs.append(tensor(f"v_cache_cross_{layer}", FLOAT, HEADS, 1, SOURCE, HEAD))
        keys, values = (g.op("Transpose", f"{part}_cache_cross_{layer}", perm=[1, 0, 2, 3]) for part in "kv")
        x = g.op("Add", x, net.attend(q, keys, values, f"{name}.encoder_attn"))
        x = net.feed(x, name)
    x = net.norm(x, "decoder.layer_norm")
    x = g.op("MatMul", x, net.const("decoder.embed_tokens.weight", transposed=True))
    g.op("Reshape", x, g.ints(1, VOCABULARY, 1, 1), out="logits")
    g.save(decoder, inputs, outputs)
