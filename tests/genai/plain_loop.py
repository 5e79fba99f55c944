"""Greedy generation with plain ONNX Runtime sessions, as a reference where onnxruntime-genai is wrong.

Every call starts without state and gets the whole history, so second turns and rewinds cannot go wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from qnnbridge_host.engine import load_engine
from qnnbridge_protocol.specs import CPU, QNN, ProviderSpec, SessionSpec
from tests.genai.tiny_decoders import HEAD, KV_HEADS, KV_ZERO, LAYERS, PAD

_NAMES = [(which, layer) for layer in range(LAYERS) for which in ("key", "value")]


class PlainLoop:
    """Greedy generation with plain sessions. Stages that request QNN run on QNN.

    Args:
        folder: folder that `tiny_decoders.write_model` wrote.
    """

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "genai_config.json").read_text("utf-8"))["model"]
        self.context = int(config["context_length"])
        decoder = config["decoder"]
        self.window = int(decoder.get("sliding_window", {}).get("window_size", 0))
        self.slides = bool(decoder.get("sliding_window", {}).get("slide_key_value_cache"))
        self._stages: dict[str, Any] = {}
        if not self.window:
            self._stages["model"] = ort.InferenceSession(
                str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
            )
            return
        for entry in decoder["pipeline"]:
            for name, body in entry.items():
                listed = body.get("session_options", {}).get("provider_options", [])
                self._stages[name] = _session(folder / body["filename"], listed[0]["QNN"] if listed else None)

    def generate(self, history: Sequence[int], count: int) -> list[int]:
        """Return the next `count` tokens, or as many as fit into the context."""
        count = min(count, self.context - len(history))
        if not self.window:
            return self._dynamic(list(history), count)
        return self._pipeline(list(history), count)

    def _dynamic(self, history: list[int], count: int) -> list[int]:
        made: list[int] = []
        empty = np.zeros((1, KV_HEADS, 0, HEAD), np.float32)
        for _ in range(count):
            tokens = np.array([history + made], np.int64)
            feeds = {f"past.{layer}.{which}": empty for which, layer in _NAMES}
            feeds |= {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
            made.append(int(self._stages["model"].run(["logits"], feeds)[0][0, -1].argmax()))
        return made

    def _pipeline(self, history: list[int], count: int) -> list[int]:
        state = _Sliding(self.context) if self.slides else _Whole(self.context)
        size = self.window
        pads = -len(history) % size
        padded = [PAD] * pads + history if self.slides else history + [PAD] * pads
        assert len(padded) < self.context, "the plain loop prefills with pads"
        hidden = None
        for at in range(0, len(padded), size):
            chunk = padded[at : at + size]
            valid = min(size, len(history) - at) if not self.slides else size - (pads if at == 0 else 0)
            hidden = self._stage("context", chunk, valid, state)
        assert hidden is not None
        last = size - 1 if self.slides else len(history) - (len(padded) - size) - 1
        made = [self._head(hidden[:, last : last + 1])]
        while len(made) < count:
            made.append(self._head(self._stage("iterator", made[-1:], 1, state)))
        return made[:count]

    def _stage(self, name: str, tokens: list[int], valid: int, state: Any) -> Any:
        hidden = self._stages["embeddings"].run(None, {"input_ids": np.array([tokens], np.int32)})[0]
        return state.run(self._stages[name], hidden, valid)

    def _head(self, hidden: Any) -> int:
        return int(self._stages["lm_head"].run(None, {"last_hidden": hidden})[0][0, -1].argmax())


class _Whole:
    """Generate with a graph that has the whole KV cache. Pads follow the tokens and are overwritten."""

    def __init__(self, context: int) -> None:
        shape = (1, KV_HEADS, context, HEAD)
        self._cache = {f"{which}_{layer}": np.zeros(shape, np.float32) for which, layer in _NAMES}
        self._count = 0

    def run(self, session: Any, hidden: Any, valid: int) -> Any:
        total = self._count + hidden.shape[1]
        feeds = {f"past_{name}": value for name, value in self._cache.items()}
        feeds |= {"past_seq_len": np.array([[total - 1]], np.int32), "total_seq_len": np.array([total], np.int32)}
        names = [f"present_{name}" for name in self._cache]
        hidden, *caches = session.run(["last_hidden", *names], {"hidden": hidden, **feeds})
        self._cache = dict(zip(self._cache, caches, strict=True))
        self._count += valid
        return hidden


class _Sliding:
    """Generate with a KV cache that slides. Pads precede the tokens and are masked."""

    def __init__(self, context: int) -> None:
        self._context = context
        self._cache: dict[str, Any] = {}
        self._count = 0

    def run(self, session: Any, hidden: Any, valid: int) -> Any:
        size = hidden.shape[1]
        past, pads = self._context - size, size - valid
        feeds: dict[str, Any] = {"hidden": hidden}
        for which, layer in _NAMES:
            axis = 3 if which == "key" else 2
            shape = [KV_HEADS, 1, HEAD, past] if which == "key" else [KV_HEADS, 1, past, HEAD]
            full = np.full(shape, KV_ZERO, np.uint8)
            have = self._cache.get(f"{which}_{layer}")
            if have is not None:
                kept = np.take(have, range(max(0, have.shape[axis] - past), have.shape[axis]), axis)
                where = [slice(None)] * 4
                where[axis] = slice(past - kept.shape[axis], past)
                full[tuple(where)] = kept
            feeds[f"past_{which}_{layer}"] = full
        mask = np.zeros((1, self._context), np.int32)
        mask[0, past - self._count : past] = 1
        mask[0, past + pads :] = 1
        positions = [0] * pads + list(range(self._count, self._count + valid))
        feeds |= {"attention_mask": mask, "position_ids": np.array([positions], np.int32)}
        names = [f"present_{which}_{layer}" for which, layer in _NAMES]
        hidden, *caches = session.run(["last_hidden", *names], feeds)
        for (which, layer), new in zip(_NAMES, caches, strict=True):
            axis, name = (3 if which == "key" else 2), f"{which}_{layer}"
            new = np.take(new, range(pads, size), axis)
            self._cache[name] = np.concatenate([self._cache[name], new], axis) if name in self._cache else new
        self._count += valid
        return hidden


def _session(path: Path, options: dict[str, str] | None) -> Any:
    if options is None:
        return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    spec = SessionSpec(str(path), (ProviderSpec(QNN, options), ProviderSpec(CPU)), fallback="cpu")
    made = load_engine().create_session(spec, None, {}, lambda phase: None)
    return _EngineSession(made)


class _EngineSession:
    def __init__(self, session: Any) -> None:
        self._session = session

    def run(self, names: Any, feeds: Any) -> list[Any]:
        return list(self._session.run(names, feeds))
