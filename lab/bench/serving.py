"""Compare the requests per second of ``qnnbridge serve`` and mlserver.

The rows of the table are the combinations of two models, JSON and binary requests, and 1 and 16 clients. The
servers take turns.

mlserver with one worker process is split like ours: one process for HTTP, one for the model. Both run ONNX Runtime
on the CPU with its default threads. mlserver supports binary tensors over gRPC only, so its "binary" rows use gRPC.
mlserver is installed in a separate interpreter (``pip install mlserver onnxruntime``), which also runs the clients.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from onnx import TensorProto, helper, save

START_TIMEOUT_S: Final = 120.0
LOAD: Final = Path(__file__).with_name("serving_load.py")
RUNTIME: Final = Path(__file__).with_name("mlserver_runtime.py")
CLIENTS: Final = (1, 16)
OURS: Final = "qnnbridge"
# Contenders with mlserver, and the number of worker processes of each.
WORKER: Final = "mlserver, worker"
MLSERVERS: Final = {WORKER: 1, "mlserver, no worker": 0}


class Row(NamedTuple):
    model: str
    form: str
    clients: int

    def __str__(self) -> str:
        return f"{self.model}, {self.form}, {self.clients} {'client' if self.clients == 1 else 'clients'}"


class Contender(NamedTuple):
    """A running server. `binary` is the interface for binary requests: "binary" (HTTP) or "grpc"."""

    name: str
    urls: dict[str, str]
    binary: str


def rows() -> list[Row]:
    return [Row(model, form, clients) for model in MODELS for form in ("JSON", "binary") for clients in CLIENTS]


def race(
    folder: Path, mlserver: str | None, *, rounds: int, seconds: float
) -> dict[Row, dict[str, list[dict[str, float]]]]:
    """Measure each contender in each round of each row: requests per second, and milliseconds per request."""
    tensors = {}
    for name, make in MODELS.items():
        make(folder / f"{name}.onnx")
        tensors[name] = folder / f"{name}.npy"
        # Round to seven digits, as clients do, for requests of realistic size: 16 pictures are 553 KB of JSON.
        np.save(tensors[name], np.round(np.random.default_rng(7).random(SHAPES[name]), 7))
    found: dict[Row, dict[str, list[dict[str, float]]]] = {}
    with contextlib.ExitStack() as stack:
        contenders = [stack.enter_context(_ours(folder))]
        if mlserver is not None:
            contenders += [
                stack.enter_context(_mlserver(folder, mlserver, name, workers))
                for name, workers in MLSERVERS.items()
            ]
        for row in rows():
            answers: dict[str, Any] = {}
            for _ in range(rounds):
                for one in contenders:
                    form = "JSON" if row.form == "JSON" else one.binary
                    url = one.urls["grpc" if form == "grpc" else "http"]
                    plan = {
                        "url": url,
                        "model": row.model,
                        "form": form,
                        "clients": row.clients,
                        "seconds": seconds,
                        "tensor": str(tensors[row.model]),
                    }
                    command = [mlserver or sys.executable, str(LOAD), json.dumps(plan)]
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
                    figures = json.loads(done.stdout.splitlines()[-1])
                    answers[one.name] = figures.pop("answer")
                    found.setdefault(row, {}).setdefault(one.name, []).append(figures)
            first = answers[OURS]
            for name, answer in answers.items():
                assert np.allclose(answer, first, atol=1e-4), (row, name, answer[:4], first[:4])
    return found


def ratios(of_row: dict[str, list[dict[str, float]]], peer: str) -> list[float]:
    """Return our rate divided by the peer's for each round, sorted."""
    return sorted(ours["rate"] / theirs["rate"] for ours, theirs in zip(of_row[OURS], of_row[peer], strict=True))


def table(found: dict[Row, dict[str, list[dict[str, float]]]]) -> list[list[str]]:
    lines = []
    for row, by_name in found.items():
        line = [str(row)]
        for name in (OURS, *MLSERVERS):
            figures = by_name.get(name)
            line.append(
                "-"
                if figures is None
                else f"{statistics.median(one['rate'] for one in figures):.0f} "
                f"({statistics.median(one['ms'] for one in figures):.1f} ms)"
            )
        for name in MLSERVERS:
            if name not in by_name:
                line.append("-")
                continue
            found_ratios = ratios(by_name, name)
            line.append(f"{statistics.median(found_ratios):.2f} ({found_ratios[0]:.2f} to {found_ratios[-1]:.2f})")
        lines.append(line)
    return lines


HEADERS: Final = ("row", OURS, *MLSERVERS, "x worker", "x no worker")


# --- models -----------------------------------------------------------------------------------------------------


def _small(path: Path) -> None:
    """Write a model that doubles 16 numbers."""
    _save(path, [helper.make_node("Add", ["x", "x"], ["y"])], {}, (1, 16), (1, 16))


def _pictures(path: Path) -> None:
    """Write a model that maps pictures of 32 x 32 to 10 numbers each."""
    dice = np.random.default_rng(8)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    weights = {"w": dice.normal(0, 0.2, (16, 3, 3, 3)), "m": dice.normal(0, 0.2, (16, 10))}
    _save(path, nodes, weights, ("n", 3, 32, 32), ("n", 10))


def _save(path: Path, nodes: list[Any], weights: dict[str, Any], taken: Any, given: Any) -> None:
    constants = [
        helper.make_tensor(name, TensorProto.FLOAT, value.shape, value.reshape(-1).tolist())
        for name, value in weights.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, taken)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, given)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    save(model, str(path))


MODELS: Final = {"small": _small, "pictures": _pictures}
SHAPES: Final = {"small": (1, 16), "pictures": (16, 3, 32, 32)}


# --- servers ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _ours(folder: Path) -> Iterator[Contender]:
    command = [sys.executable, "-m", "qnnbridge_tools", "serve", "--host", "private", "--provider", "cpu"]
    command += ["--http", "127.0.0.1:0"]
    for name in MODELS:
        command += ["--model", f"{name}={folder / name}.onnx"]
    with _process(command, folder / "qnnbridge.log") as log:
        line = _wait_for(log, "Ready.")
        url = line.split("Listening on http://")[1].split(",")[0]
        yield Contender(OURS, {"http": url}, "binary")


@contextlib.contextmanager
def _mlserver(folder: Path, python: str, name: str, workers: int) -> Iterator[Contender]:
    place = folder / f"mlserver{workers}"
    ports = _free_ports(3)
    settings = {
        "host": "127.0.0.1",
        "http_port": ports[0],
        "grpc_port": ports[1],
        "metrics_port": ports[2],
        "parallel_workers": workers,
        "debug": False,
    }
    place.mkdir()
    (place / "settings.json").write_text(json.dumps(settings))
    (place / RUNTIME.name).write_bytes(RUNTIME.read_bytes())
    for model in MODELS:
        part = place / model
        part.mkdir()
        parameters = {"uri": str(folder / f"{model}.onnx")}
        described = {"name": model, "implementation": f"{RUNTIME.stem}.OnnxModel", "parameters": parameters}
        (part / "model-settings.json").write_text(json.dumps(described))
    environment = {"PYTHONPATH": str(place)}
    with _process([python, "-m", "mlserver.cli.main", "start", str(place)], place / "log", environment) as log:
        url = f"127.0.0.1:{ports[0]}"
        _wait_until_answering(log, url)
        yield Contender(name, {"http": url, "grpc": f"127.0.0.1:{ports[1]}"}, "grpc")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


@contextlib.contextmanager
def _process(command: list[str], log: Path, more: dict[str, str] | None = None) -> Iterator[Path]:
    with (
        log.open("wb") as target,
        subprocess.Popen(
            command, stdout=target, stderr=subprocess.STDOUT, env={**os.environ, **(more or {})}, cwd=log.parent
        ) as process,
    ):
        try:
            yield log
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(log: Path, words: str) -> str:
    end = time.monotonic() + START_TIMEOUT_S
    while words not in (text := log.read_text()):
        assert time.monotonic() < end, text
        time.sleep(0.05)
    return text


def _wait_until_answering(log: Path, url: str) -> None:
    import http.client

    end = time.monotonic() + START_TIMEOUT_S
    while True:
        connection = http.client.HTTPConnection(url, timeout=5)
        try:
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)
