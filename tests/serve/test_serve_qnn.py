"""Models that run on QNN, requested over HTTP."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn")

import serve_models as models
from serving import refused, serving
from tests import needs

import qnnbridge
from qnnbridge_protocol.values import equal_bits

triton = needs.package("tritonclient.http")

pytestmark = pytest.mark.simulator

QNN = ("--host", "private", "--provider-option", "soc_model=60", "--http", "127.0.0.1:0")


def test_a_model_runs_on_qnn_with_the_results_of_a_session(direct_host: qnnbridge.Host) -> None:
    model = models.MODELS / "q.onnx"
    with np.load(models.MODELS / "x.npz") as archive:
        (name,) = archive.files
        x = archive[name]
    options = {"soc_model": "60"}
    with qnnbridge.InferenceSession(
        str(model), providers=[("QNNExecutionProvider", options)], host=direct_host
    ) as session:
        assert session.placement.cpu_nodes == 0
        expected = session.run(None, {name: x})
        outputs = [output.name for output in session.get_outputs()]
    with (
        serving(*QNN, "--model", f"q={model}", QNNBRIDGE_VERIFY="warn") as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        assert any(line.startswith("q: ") and "nodes on QNN" in line for line in server.said)
        given = triton.InferInput(name, list(x.shape), "FP32").set_data_from_numpy(x)
        for _ in range(3):
            result = client.infer("q", [given])
            assert equal_bits([result.as_numpy(output) for output in outputs], expected)
        give_up = time.monotonic() + 60
        while True:
            (found,) = server.ask("GET", "/status").document["models"]
            (part,) = found["parts"]
            if part["numbers"]["state"] == "agrees":
                break
            assert part["numbers"]["state"] in ("pending", "unknown"), part
            assert time.monotonic() < give_up
            time.sleep(0.1)
        assert part["placement"]["qnn_nodes"] > 0
        assert (part["placement"]["cpu_nodes"], part["placement"]["simulator"]) == (0, True)
        assert part["placement"]["npu_bytes"] > 0
        assert part["numbers"]["summary"].startswith("agrees on ")
        assert (found["calls"], found["errors"]) == (3, 0)


def test_a_model_that_would_run_on_the_cpu_is_not_served(tmp_path: Path) -> None:
    model = models.write_counter(tmp_path / "counter.onnx")
    ended = refused(*QNN, "--model", f"counter={model}")
    assert ended.returncode == 1
    assert "Model counter: " in ended.stderr
    assert "--fallback cpu" in ended.stderr
