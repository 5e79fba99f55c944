"""`qnnbridge verify --buckets`: a verdict for each size, and combinations that the model rules out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.fakes import models as build
from tests.fakes.commands import qnnbridge

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxruntime_qnn")


pytestmark = pytest.mark.simulator


def pair_model(folder: Path) -> Path:
    """Return Sigmoid(a + b), where both must have the same length though their names differ, and a border that QNN
    computes wrong.
    """
    nodes = [
        build.node("Add", ["a", "b"], ["s"]),
        build.node("Sigmoid", ["s"], ["y"]),
        build.node("Pad", ["s", "p"], ["z"], mode="edge"),
    ]
    inputs = [build.tensor(name, [1, 8, dim]) for name, dim in ("an", "bm")]
    outputs = [build.tensor(name, [1, 8, None]) for name in "yz"]
    made = build.model(nodes, inputs, outputs, {"p": np.asarray([0, 0, 3, 0, 0, 3], np.int64)})
    return build.saved(made, folder / "pair.onnx")


def test_each_size_has_its_verdict_and_others_are_omitted(tmp_path: Path) -> None:
    path = pair_model(tmp_path)
    command = ["verify", str(path), "--soc-model", "60", "--no-extreme", "--no-bisect", "--no-resume"]
    done = qnnbridge(*command, "--buckets", "n=16,20", "--buckets", "m=16,20", "--json")
    assert done.returncode == 1, done.output
    told = json.loads(done.stdout)
    assert [one["sizes"] for one in told["buckets"]] == [{"n": 16, "m": 16}, {"n": 20, "m": 20}]
    assert {one["verdict"] for one in told["buckets"]} == {"differs"}
    assert [one["sizes"] for one in told["ruled_out"]] == [{"n": 16, "m": 20}, {"n": 20, "m": 16}]
    assert told["agrees"] is False


def test_a_model_that_accepts_none_of_the_sizes_is_refused(tmp_path: Path) -> None:
    path = pair_model(tmp_path)
    done = qnnbridge("verify", path, "--no-resume", "--buckets", "n=16", "--buckets", "m=20")
    assert done.returncode != 0
    assert "Traceback" not in done.output
