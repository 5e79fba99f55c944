"""Generate text with onnxruntime_genai, without the bridge, for `bench --llm`: each JSON line on stdin is answered.

The host's interpreter runs this file as a script, so it imports no other module of this project. A crash of the
native library ends only this process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Answer the requests on stdin until stdin ends."""
    genai: Any = None
    model: Any = None
    # Keep the output of native libraries out of the answers: QNN's simulator prints a banner on descriptor 1 with
    # its first session.
    answers = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115 - lives as long as the process
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            # Load the model at the first request, before `answer` measures its time.
            genai = genai or load_library()
            model = model or genai.Model(asked["folder"])
            result = answer(genai, model, asked)
        except Exception as error:  # noqa: BLE001 - reported by the other process
            # Remove line feeds, because the other process reads one line.
            result = {"error": " ".join(str(error).split())[:300] or type(error).__name__}
        print(json.dumps(result), file=answers, flush=True)


def load_library() -> Any:
    """Import the module and register QNN as the host does."""
    import onnxruntime_genai

    try:
        import onnxruntime_qnn

        onnxruntime_genai.register_execution_provider_library(
            "QNNExecutionProvider", onnxruntime_qnn.get_library_path()
        )
    except (ImportError, AttributeError):
        # Without the plugin, or with an onnxruntime-genai that cannot register it, the model's genai_config.json
        # selects the provider.
        pass
    return onnxruntime_genai


def answer(genai: Any, model: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Generate tokens; return them and the time of each."""
    begun = time.monotonic()
    params = genai.GeneratorParams(model)
    params.set_search_options(do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(asked["prompt"])
    tokens: list[int] = []
    came_s: list[float] = []
    while not generator.is_done() and len(tokens) < asked["tokens"]:
        generator.generate_next_token()
        came_s.append(time.monotonic() - begun)
        tokens.append(int(generator.get_next_tokens()[0]))
    return {"tokens": tokens, "came_s": came_s}


if __name__ == "__main__":
    main()
