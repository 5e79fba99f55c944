"""Measure the time per token through the bridge and in process: ``python -m tests.genai.overhead``.

The ways use the same model in the same process and take turns. `GenerationStats.steps` is the number of tokens per
request. "ping" is a request in which the host does nothing: the lower limit for a request for one token. If a token
takes longer than `generation.HOLD_S`, each token is sent in a separate frame, as with the slower model; "one
request each" requests a token only after it has received the previous one. On a busy machine the best round is more
reliable than the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai

import qnnbridge
from qnnbridge import genai
from tests.genai.tiny_decoders import Sizes, write_model

PROMPT = np.arange(5, 21, dtype=np.int32)
# Additional matrices of the slow model, and the factor by which fewer tokens are generated with it.
BALLAST, SLOWER = 60, 6


def one_thread(folder: Path) -> None:
    """Let the model compute in one thread, as on an NPU: further threads of ONNX Runtime would spin on every
    processor.
    """
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = 1
    path.write_text(json.dumps(config))


def per_token(module: Any, model: Any, tokens: int, longest: int | None = None) -> float:
    """Return the milliseconds per token after the first. longest: maximum length of a step; by default unchanged."""
    generator = module.Generator(model, module.GeneratorParams(model))
    if longest is not None:
        generator._remote._longest = longest
    generator.append_tokens(PROMPT)
    generator.generate_next_token()
    begin = time.perf_counter()
    for _ in range(tokens):
        generator.generate_next_token()
        generator.get_next_tokens()
    return (time.perf_counter() - begin) / tokens * 1e3


def per_ping(host: qnnbridge.Host, count: int) -> float:
    """Return the milliseconds of a round trip."""
    begin = time.perf_counter()
    for _ in range(count):
        host.ping()
    return (time.perf_counter() - begin) / count * 1e3


def quick(folder: Path, host: qnnbridge.Host, tokens: int) -> dict[str, Callable[[], float]]:
    """Return the ways for a model of which several tokens share a frame."""
    here, there = onnxruntime_genai.Model(str(folder)), genai.Model(folder, host=host)
    return {
        "in process": lambda: per_token(onnxruntime_genai, here, tokens),
        "1 in a step": lambda: per_token(genai, there, tokens, 1),
        "8 in a step": lambda: per_token(genai, there, tokens, 8),
        "adaptive": lambda: per_token(genai, there, tokens),
        "ping": lambda: per_ping(host, tokens),
    }


def slow(folder: Path, host: qnnbridge.Host, tokens: int) -> dict[str, Callable[[], float]]:
    """Return the ways for a model whose tokens are sent in separate frames."""
    here, there = onnxruntime_genai.Model(str(folder)), genai.Model(folder, host=host)
    return {
        "in process": lambda: per_token(onnxruntime_genai, here, tokens),
        "1 in a frame": lambda: per_token(genai, there, tokens),
        "8 in a step": lambda: per_token(genai, there, tokens, 8),
        "one request each": lambda: per_token(genai, there, tokens, 1),
    }


def measure(ways: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds per token in each round, by way."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(way())
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    models = {"quick": (quick, 0, 1), "slow": (slow, BALLAST, SLOWER)}
    with tempfile.TemporaryDirectory() as root, qnnbridge.Host() as host:
        for name, (ways_of, ballast, slower) in models.items():
            folder = write_model(Path(root) / name, "dynamic", sizes=Sizes(context=512, ballast=ballast))
            one_thread(folder)
            for way, found in measure(ways_of(folder, host, arguments.tokens // slower), arguments.rounds).items():
                line = f"{name:6} {way:16} median {statistics.median(found):.3f} ms, best {min(found):.3f} ms"
                print(line, flush=True)


if __name__ == "__main__":
    main()
