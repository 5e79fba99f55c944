"""Run the attacks of `lab.attack.serving` on a real server with a small, a large and a language model."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path

import psutil
from lab.attack import http, serving
from lab.attack.report import Report
from onnx import TensorProto, helper
from tests.genai.tiny_decoders import write_model
from tests.serve import serve_models as models
from tests.serve.serving import PRIVATE
from tests.serve.serving import serving as started

# Numbers in an unread response: 20 MB of FP32 as binary data.
LARGE = 5_000_000


def write_large(path: Path) -> Path:
    """Write a model that returns its input, one number, LARGE times."""
    return models.write(
        path,
        [helper.make_node("Expand", ["x", "sizes"], ["y"])],
        [models.tensor("x", TensorProto.FLOAT, [1])],
        [models.tensor("y", TensorProto.FLOAT, [LARGE])],
        [helper.make_tensor("sizes", TensorProto.INT64, [1], [LARGE])],
    )


def attacked(seconds: float, seed: int) -> Report:
    """Run all attacks at once for `seconds` and return the report."""
    with tempfile.TemporaryDirectory(prefix="attacked-") as name:
        folder = Path(name)
        small = models.write_identity(folder / "small.onnx", TensorProto.FLOAT, ["n", "m"])
        write_model(folder / "tiny", "dynamic")
        arguments = (
            *("--model", f"small={small}", "--model", f"large={write_large(folder / 'large.onnx')}"),
            *("--llm", f"tiny={folder / 'tiny'}"),
        )
        with started(*PRIVATE, *arguments, QNNBRIDGE_STATE_DIR=str(folder / "state")) as server:
            said: list[str] = []
            reader = threading.Thread(target=lambda: said.append(server.errors()))
            reader.start()
            asked = {
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}],
                "parameters": {"binary_data_output": True},
            }
            target = serving.Target(server.address, "small", ("large", json.dumps(asked).encode()), "tiny")
            report = serving.attack(target, psutil.Process(server.process.pid), seconds, seed)
            report.expect(server.host().is_running(), "the host is gone")
            server.end()
            reader.join()
    for finding in http.log_findings(said[0]):
        report.finding(finding)
    return report
