"""A small encoder with random weights in the files of sentence-transformers, and its arithmetic in numpy.

Tokens attend to each other through the mask, so padding would change the results without the mask.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *["the", "a", "cat", "dog", "sat", "ran", "on", "in", "mat", "house", "query", ":", "passage"],
)
WIDTH = 8
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}

_random = np.random.default_rng(4)
EMBEDDING = _random.standard_normal((len(WORDS), WIDTH)).astype(np.float32)
TYPES = _random.standard_normal((2, WIDTH)).astype(np.float32)
MIXED = (_random.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)


def write_encoder(
    folder: Path,
    *,
    pooling: str | None = "pooling_mode_mean_tokens",
    normalize: bool = True,
    most_tokens: int = 24,
    kind: int = TensorProto.INT64,
    lower: bool = False,
    masked: bool = True,
    **files: Any,
) -> Path:
    """Write a folder.

    Args:
        pooling: ``None`` for a folder without the files of sentence-transformers.
        files: further files, as JSON.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_model(folder / "model.onnx", kind, masked=masked)
    _write_tokenizer(folder / "tokenizer.json")
    if pooling is not None:
        modules = [TRANSFORMER, POOLING, *([NORMALIZE] if normalize else [])]
        modes = dict.fromkeys(
            ("pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_max_tokens"), False
        )
        (folder / "1_Pooling").mkdir(exist_ok=True)
        said = {"word_embedding_dimension": WIDTH, **modes, pooling: True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
        (folder / "modules.json").write_text(json.dumps(modules))
    limits = {"max_seq_length": most_tokens, "do_lower_case": lower}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def _write_model(path: Path, kind: int, *, masked: bool) -> None:
    def constant(name: str, value: Any) -> Any:
        return numpy_helper.from_array(np.asarray(value), name)

    names = ("input_ids", "attention_mask", "token_type_ids")
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["words"]),
        helper.make_node("Gather", ["types", "token_type_ids"], ["kinds"]),
        helper.make_node("Add", ["words", "kinds"], ["x"]),
        helper.make_node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "xt"], ["scores"]),
        helper.make_node("Cast", ["attention_mask"], ["seen"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["seen", "one"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "much"], ["minus"]),
        helper.make_node("Unsqueeze", ["minus", "axis"], ["bias"]),
        helper.make_node("Add", ["scores", "bias"], ["biased"]),
        helper.make_node("Softmax", ["biased"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["context"]),
        helper.make_node("MatMul", ["context", "mixed"], ["mix"]),
        helper.make_node("Add", ["x", "mix"], ["last_hidden_state"]),
    ]
    if not masked:
        names = ("input_ids", "token_type_ids")
        nodes = [node for node in nodes if node.output[0] not in ("seen", "hidden", "minus", "bias", "biased")]
        next(node for node in nodes if node.op_type == "Softmax").input[0] = "scores"
    constants = [
        constant("embedding", EMBEDDING),
        constant("types", TYPES),
        constant("mixed", MIXED),
        constant("one", np.float32(1)),
        constant("much", np.float32(1e4)),
        constant("axis", np.array([1], np.int64)),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(name, kind, ["batch", "length"]) for name in names],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", WIDTH])],
        constants,
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


def _write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    # Truncation and padding in the file are ignored: sentence-transformers sets its own.
    made.enable_truncation(4)
    made.enable_padding(length=6)
    made.save(str(path))


def ids_of(text: str) -> list[int]:
    return [2, *(WORDS.index(word) if word in WORDS else 1 for word in text.split()), 3]


def embedding_of(ids: list[int], pooling: str = "mean", *, normalize: bool = True, dimensions: int = WIDTH) -> Any:
    """Return the embedding that sentence-transformers computes for a single text, in float64."""
    x = EMBEDDING[ids].astype(np.float64) + TYPES[0]
    scores = x @ x.T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    states = x + weights / weights.sum(1, keepdims=True) @ x @ MIXED
    pooled = (states.mean(0) if pooling == "mean" else states[0])[:dimensions]
    return pooled / np.linalg.norm(pooled) if normalize else pooled
