"""Run many models on QNN in a worker process, which is restarted whenever a model crashes it."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.analyze_accuracy.cases import Models

TIMEOUT_S = 120.0
MODELS_PER_WORKER = 300
_NODE = re.compile(r"n(\d+)(?:_token_\d+)?$")
# Errors of ONNX Runtime itself: the model cannot be loaded with any provider.
_NOT_OF_QNN = (
    *("INVALID_GRAPH", "NOT_IMPLEMENTED", "Load model from", "Exception during initialization", "Type Error"),
    *("providers/cpu", "Non-zero status", "ShapeInferenceError"),
)


@dataclasses.dataclass(frozen=True)
class Truth:
    """QNN's result for a model.

    Args:
        status: ok, error, crash, timeout, unloadable.
        places: "qnn" or "cpu" for the index of each node; nodes that were folded or merged are missing.
    """

    status: str
    places: Mapping[int, str]
    error: str = ""


def ask(models: Models, soc: str) -> dict[str, Truth]:
    left = list(models.items())
    truths: dict[str, Truth] = {}
    while left:
        batch = left[:MODELS_PER_WORKER]
        found = _batch(batch, soc)
        truths.update(found)
        left = left[len(found) :]
    return truths


def _batch(models: list[tuple[str, Path]], soc: str) -> dict[str, Truth]:
    """Run models in one worker. If a model crashes the worker, return only the results up to this model; the
    caller runs the rest in a new worker."""
    command = [sys.executable, "-m", "lab.analyze_accuracy.worker", soc]
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    truths: dict[str, Truth] = {}
    try:
        for name, path in models:
            late = threading.Event()
            watch = threading.Timer(TIMEOUT_S, _end, (worker, late))
            watch.start()
            try:
                worker.stdin.write(json.dumps({"name": name, "path": str(path)}) + "\n")
                worker.stdin.flush()
                line = worker.stdout.readline()
            except BrokenPipeError:
                line = ""
            finally:
                watch.cancel()
            if not line:
                code = worker.wait()
                truths[name] = Truth("timeout" if late.is_set() else "crash", {}, f"exit code {code}")
                break
            truths[name] = _truth(json.loads(line))
    finally:
        worker.kill()
        worker.communicate()
    return truths


def _end(worker: subprocess.Popen[str], late: threading.Event) -> None:
    late.set()
    worker.kill()


def _truth(answer: dict[str, Any]) -> Truth:
    if answer["status"] == "error":
        text = answer["error"]
        return Truth("unloadable" if any(word in text for word in _NOT_OF_QNN) else "error", {}, text)
    places: dict[int, str] = {}
    for on_qnn, names in answer["parts"]:
        for name in names:
            if match := _NODE.match(name):
                places[int(match[1])] = "qnn" if on_qnn else "cpu"
    return Truth("ok", places)
