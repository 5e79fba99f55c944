"""What `repr(session)` shows: facts that this side has, before, during and after the session's life."""

from __future__ import annotations

import numpy as np
import pytest

import qnnbridge
from tests.contract.small_models import CPU, MODELS

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

MODEL = MODELS / "mul_1.onnx"
X = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_a_session_on_qnn_shows_nodes_cache_and_numbers(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(MODEL, host=host, cache=False, verify="warn") as session:
        begin = "<InferenceSession mul_1.onnx: 1 node on QNN, 0 on the CPU, after optimisation, simulator, cache off, numbers: "
        assert repr(session) == f"{begin}pending>"
        session.run(None, {session.get_inputs()[0].name: X})
        assert session.verify({session.get_inputs()[0].name: X})
        assert repr(session).startswith(f"{begin}agrees on ")
    assert repr(session).startswith("<InferenceSession mul_1.onnx: closed, 1 node on QNN")


def test_a_session_on_the_cpu_says_that_nothing_is_on_qnn(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(MODEL, providers=CPU, host=host) as session:
        assert (
            repr(session)
            == "<InferenceSession mul_1.onnx: 0 nodes on QNN, 1 on the CPU, after optimisation, cache off>"
        )


def test_it_asks_no_host(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(MODEL, providers=CPU, host=host) as session:
        before = repr(session)
        host.restart()
        generation = host.stats.generation
        assert repr(session) == before
        assert host.stats.generation == generation


def test_a_session_that_could_not_be_made_has_one_too() -> None:
    assert repr(object.__new__(qnnbridge.InferenceSession)) == "<InferenceSession: not open>"
