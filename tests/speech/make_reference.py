"""Write reference.json: the results of transformers' greedy search for the tiny Whisper, and its features.

Run by hand where torch and transformers are installed: python -m tests.speech.make_reference
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTimeStampLogitsProcessor,
)

from tests.speech import tiny_whisper as tiny

CASES = [
    *({"seed": seed, "language": code, "task": "transcribe"} for seed in (1, 2) for code in ("en", "de")),
    {"seed": 3, "language": "fr", "task": "translate"},
    {"seed": 4, "language": None, "task": "transcribe"},
]


def main() -> None:
    model = WhisperForConditionalGeneration(WhisperConfig(**{**tiny.CONFIG, "attn_implementation": "eager"}))
    state = {f"model.{name}": torch.tensor(value) for name, value in tiny.weights().items()}
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    model.eval()
    extractor = WhisperFeatureExtractor(feature_size=tiny.BINS, chunk_length=tiny.WINDOW_S)
    found = []
    for case in CASES:
        features = extractor(tiny.sound(case["seed"]), sampling_rate=tiny.RATE, return_tensors="pt").input_features
        config = GenerationConfig(**tiny.GENERATION)
        model.generation_config = config
        language = case["language"]
        if language is None:
            token = int(model.detect_language(features)[0])
            language = next(code for code in tiny.LANGUAGES if tiny.IDS[f"<|{code}|>"] == token)
        for timestamps in (False, True):
            prompt = [tiny.START, tiny.IDS[f"<|{language}|>"], tiny.IDS[f"<|{case['task']}|>"]]
            rules = [
                SuppressTokensLogitsProcessor(tiny.SUPPRESSED),
                SuppressTokensAtBeginLogitsProcessor(tiny.SUPPRESSED_FIRST, len(prompt) + (not timestamps)),
            ]
            if timestamps:
                rules.append(WhisperTimeStampLogitsProcessor(config, len(prompt)))
            else:
                prompt.append(tiny.IDS["<|notimestamps|>"])
            # The greedy search is written out: Whisper's own `generate` continues after a predicted time, in one
            # window.
            with torch.no_grad():
                ids = GenerationMixin.generate(
                    model,
                    features,
                    generation_config=GenerationConfig(
                        max_length=tiny.TARGET, eos_token_id=tiny.END, pad_token_id=tiny.END, do_sample=False
                    ),
                    decoder_input_ids=torch.tensor([prompt]),
                    logits_processor=LogitsProcessorList(rules),
                )
            tokens = [int(token) for token in ids[0]][len(prompt) :]
            tokens = tokens[: tokens.index(tiny.END)] if tiny.END in tokens else tokens
            print(case, timestamps, tokens)
            found.append({**case, "found": language, "timestamps": timestamps, "tokens": tokens})
    features = []
    for bins in (80, 128):
        sizes = {"feature_size": bins, "chunk_length": tiny.WINDOW_S}
        numbers = WhisperFeatureExtractor(**sizes)(tiny.sound(7, 1.3), sampling_rate=tiny.RATE).input_features[0]
        picked = np.asarray(numbers).reshape(-1)[:: 97 if bins == 80 else 149]
        features.append(
            {"bins": bins, "step": 97 if bins == 80 else 149, "values": [round(float(x), 6) for x in picked]}
        )
    document = {"transformers": transformers.__version__, "cases": found, "features": features}
    Path(__file__).with_name("reference.json").write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
