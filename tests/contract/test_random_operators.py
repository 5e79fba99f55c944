"""Random operators: QNN draws their numbers once. A session that allows the CPU draws new numbers in each call;
other sessions warn."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qnnbridge
from qnnbridge.errors import EPFail
from tests.fakes import commands

pytestmark = [pytest.mark.simulator, pytest.mark.process]
X = np.full((2, 8), 0.5, np.float32)
LIKE = {
    "RandomNormalLike": {"mean": 2.0, "scale": 3.0},
    "RandomUniformLike": {"low": 1.0, "high": 2.0},
    "Bernoulli": {},
}


def model_with(op: str, attributes: dict[str, Any], path: Path, *, alone: bool = False) -> Path:
    nodes = [helper.make_node(op, ["x"], ["n"], name="noise", **attributes)]
    if alone:
        nodes[0].output[0] = "y"
    else:
        nodes.append(helper.make_node("Add", ["n", "x"], ["y"]))
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


def distinct(session: qnnbridge.InferenceSession) -> int:
    return len({session.run(None, {"x": X})[0].tobytes() for _ in range(4)})


@pytest.mark.parametrize(("op", "attributes"), LIKE.items(), ids=list(LIKE))
@pytest.mark.parametrize("cache", [False, True])
def test_each_call_gets_new_random_numbers_if_the_cpu_is_allowed(
    op: str, attributes: dict[str, Any], cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    path = model_with(op, attributes, tmp_path / "m.onnx")
    for _ in range(2 if cache else 1):
        with qnnbridge.InferenceSession(path, fallback="cpu", cache=cache) as session:
            assert distinct(session) == 4
            assert [line for line in session.fixed if line.startswith("random-on-cpu")]
            values = np.concatenate([session.run(None, {"x": X})[0] - X for _ in range(50)])
    expected = {"RandomNormalLike": (2, 3), "RandomUniformLike": (1.5, 12**-0.5), "Bernoulli": (0.5, 0.5)}[op]
    np.testing.assert_allclose((values.mean(), values.std()), expected, atol=0.5)


def test_a_session_that_refuses_the_cpu_warns_of_repeated_random_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = model_with("RandomNormalLike", {}, tmp_path / "m.onnx")
    with caplog.at_level(logging.WARNING), qnnbridge.InferenceSession(path, cache=False) as session:
        assert distinct(session) == 1
        assert session.fixed == ()
    (told,) = [record.message for record in caplog.records if "known to compute" in record.message]
    assert "every call gets the same random numbers" in told
    assert 'fallback="cpu"' in told


def test_the_error_of_a_failed_run_names_the_random_operator_and_a_working_alternative(tmp_path: Path) -> None:
    path = model_with("RandomNormalLike", {}, tmp_path / "m.onnx", alone=True)
    with (
        qnnbridge.InferenceSession(path, cache=False) as session,
        pytest.raises(EPFail) as failed,
    ):
        session.run(None, {"x": X})
    assert "RandomNormalLike" in str(failed.value.cause)
    assert "Gather" not in str(failed.value)
    assert 'fallback="cpu"' in str(failed.value.fix)
    with qnnbridge.InferenceSession(path, fallback="cpu", cache=False) as session:
        assert distinct(session) == 4


@pytest.mark.parametrize("alone", [False, True], ids=["runs", "fails on QNN"])
def test_verify_and_compile_report_how_cpu_and_qnn_compute_random_operators(alone: bool, tmp_path: Path) -> None:
    path = model_with("RandomNormalLike", {}, tmp_path / "m.onnx", alone=alone)
    verified = commands.qnnbridge("verify", path, "--no-bisect")
    assert verified.returncode == 1
    text = re.sub(r"\s+", " ", verified.stdout)
    if alone:
        assert "QNN cannot run the model" in text
    else:
        assert "but not on QNN: QNN draws the random numbers only once" in text
        compiled = commands.qnnbridge("compile", path, "-o", tmp_path / "c.onnx")
        text = re.sub(r"\s+", " ", compiled.stdout + compiled.stderr)
        assert compiled.returncode == 0, text
        assert "The original returns a different result in each run" in text
        assert "every call gets the same random numbers" in text


def test_analyze_and_fix_know_the_random_operators(tmp_path: Path) -> None:
    path = model_with("Bernoulli", {}, tmp_path / "m.onnx")
    assert "--only random-on-cpu" in re.sub(r"\s+", " ", commands.qnnbridge("analyze", path, "--offline").stdout)
    assert commands.qnnbridge("fix", path, "-o", tmp_path / "o.onnx").returncode == 0
    nodes = [node.op_type for node in onnx.load(str(tmp_path / "o.onnx")).graph.node]
    assert nodes == ["RandomUniform", "Less", "Cast", "Add"]
