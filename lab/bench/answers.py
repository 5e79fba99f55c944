"""Measure the time to the first text of an answer and per token after it, compared with onnxruntime_genai in
process.

`python -m lab.bench.answers`: four ways to get an answer take turns with the same model and prompt and with greedy
search. "library" is `genai.generate` with a private host; "daemon" is the same with the user's daemon, which is
started if none runs; "serve" is a stream of /v1/completions. All models compute in one thread, as on an NPU. All
prompts are token ids. The time to the first text includes creating the generator and processing the prompt, and for
"serve" also the connection, but no client library.
"""

from __future__ import annotations

import argparse
import functools
import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai
from tests.genai.overhead import one_thread
from tests.genai.tiny_decoders import Sizes, write_model
from tests.serve.serving import serving

import qnnbridge
from qnnbridge import genai

TOKENS = 65
PROMPTS = {"short": 16, "long": 400}
# Additional multiplications by a square matrix for each token: none, or enough for 2 and 3.5 ms per token on one
# idle core.
BALLAST = (0, 24, 40)

# (seconds to the first text, seconds per token after it). The second time begins at the first text and not at the
# first token, because some tokens have no text.
Times = tuple[float, float]


def _times(pieces: Iterable[str], began: float) -> Times:
    first = 0.0
    for piece in pieces:
        if piece:
            first = first or time.perf_counter()
    return first - began, (time.perf_counter() - first) / (TOKENS - 1)


def in_process(model: Any, tokenizer: Any, prompt: list[int]) -> Times:
    began = time.perf_counter()

    def pieces() -> Iterator[str]:
        params = onnxruntime_genai.GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=len(prompt) + TOKENS)
        generator, stream = onnxruntime_genai.Generator(model, params), tokenizer.create_stream()
        generator.append_tokens(np.array(prompt, np.int32))
        while not generator.is_done():
            generator.generate_next_token()
            yield stream.decode(int(generator.get_next_tokens()[0]))

    return _times(pieces(), began)


def library(model: genai.Model, tokenizer: genai.Tokenizer, prompt: list[int]) -> Times:
    began = time.perf_counter()
    with genai.generate(model, prompt, tokenizer=tokenizer, max_tokens=TOKENS, temperature=0) as answer:
        return _times(answer, began)


def over_http(address: str, prompt: list[int]) -> Times:
    host, port = address.split(":")
    fields = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    body = json.dumps(fields)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    # Send a prepared request through a socket, so that the times do not include a client library.
    request = (head + body).encode()
    began = time.perf_counter()
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request)
        lines = (line for line in connection.makefile("rb") if line.startswith(b"data: {"))
        return _times((json.loads(line[6:])["choices"][0]["text"] for line in lines), began)


def in_parallel(way: Callable[[], Times], streams: int) -> Times:
    """Return the mean times of `streams` simultaneous answers."""
    found: list[Times] = []
    threads = [threading.Thread(target=lambda: found.append(way())) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.fmean(first for first, _ in found), statistics.fmean(each for _, each in found)


def measure(
    folder: Path, daemon: qnnbridge.Host, rounds: int, streams_of: Sequence[int]
) -> Iterator[tuple[str, str, int, list[Times]]]:
    """Yield (kind of call, prompt, number of streams, times of all rounds) for each combination."""
    here = onnxruntime_genai.Model(str(folder))
    tokenizer_here = onnxruntime_genai.Tokenizer(here)
    options = ("--llm", f"tiny={folder}", "--keep-generators", "0", "--http", "127.0.0.1:0")
    with qnnbridge.Host() as host, serving(*options) as server:
        models = {"library": genai.Model(folder, host=host), "daemon": genai.Model(folder, host=daemon)}
        tokenizers = {name: genai.Tokenizer(model) for name, model in models.items()}
        for name, length in PROMPTS.items():
            prompt = [4 + (17 * n * n + 5 * n) % 280 for n in range(length)]
            ways: Mapping[str, Callable[[], Times]] = {
                "in process": functools.partial(in_process, here, tokenizer_here, prompt),
                "library": functools.partial(library, models["library"], tokenizers["library"], prompt),
                "daemon": functools.partial(library, models["daemon"], tokenizers["daemon"], prompt),
                "serve": functools.partial(over_http, server.address, prompt),
            }
            for streams in streams_of:
                times: dict[str, list[Times]] = {way: [] for way in ways}
                for number in range(rounds + 1):
                    for way, run in ways.items():
                        found = in_parallel(run, streams) if streams > 1 else run()
                        if number:  # the first round warms up
                            times[way].append(found)
                for way, found_times in times.items():
                    yield way, name, streams, found_times


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.answers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--ballast", type=int, nargs="+", default=BALLAST, help="multiplications for each token")
    arguments = parser.parse_args()
    print("ballast  prompt  streams  way          first text ms   (x)     token ms  (x)")
    with tempfile.TemporaryDirectory() as root, qnnbridge.connect() as daemon:
        for ballast in arguments.ballast:
            folder = write_model(Path(root) / str(ballast), "dynamic", sizes=Sizes(context=512, ballast=ballast))
            one_thread(folder)
            base = (1.0, 1.0)
            for way, prompt, streams, times in measure(folder, daemon, arguments.rounds, arguments.streams):
                first, each = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
                base = (first, each) if way == "in process" else base
                ratios = f"{first:14.2f}  {first / base[0]:5.2f}  {each:8.3f}  {each / base[1]:5.2f}"
                print(f"{ballast:7} {prompt:7} {streams:7}  {way:11} {ratios}", flush=True)


if __name__ == "__main__":
    main()
