"""A session splits the gates of a model whose results differ, and reverts this if it does not help."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qnnbridge
from qnnbridge_host.cache.files import VERSION_FOLDER
from qnnbridge_host.cache.memo import NegativeEntries, Verdicts

pytest.importorskip("onnxruntime_qnn")
pytestmark = [pytest.mark.simulator, pytest.mark.process]

X = np.random.default_rng(5).standard_normal((8, 16)).astype(np.float32)
WAIT_S = 60.0


def close_gates(gates: int = 4) -> onnx.ModelProto:
    """Return a model that computes x times (gate - 0.5) repeatedly: a merged Sigmoid has a slope that is 4 % wrong
    near 0.
    """
    random = np.random.default_rng(0)
    constants, nodes, last = {"half": np.float32(0.5), "large": np.float32(20)}, [], "x"
    for n in range(gates):
        constants[f"w{n}"] = (random.standard_normal((16, 16)) * 0.04).astype(np.float32)
        end = "y" if n == gates - 1 else f"y{n}"
        nodes += [
            helper.make_node("MatMul", ["x", f"w{n}"], [f"a{n}"]),
            helper.make_node("Sigmoid", [f"a{n}"], [f"g{n}"]),
            helper.make_node("Mul", [last, "large"], [f"l{n}"]),
            helper.make_node("Mul", [f"l{n}", f"g{n}"], [f"p{n}"]),
            helper.make_node("Mul", [f"l{n}", "half"], [f"h{n}"]),
            helper.make_node("Sub", [f"p{n}", f"h{n}"], [end]),
        ]
        last = end
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 16]) for name in "xy"]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "gates", sides[:1], sides[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture(autouse=True)
def numbers_are_compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    monkeypatch.delenv("QNNBRIDGE_VERIFY")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", qnnbridge.NumbersWarning)
        yield


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "gates.onnx"
    onnx.save(close_gates(), str(path))
    return path


def verdict(model: Path, **options: Any) -> tuple[tuple[str, ...], qnnbridge.NumbersReport, str | None]:
    """Return what a session has rewritten, the verdict after a call, and its key."""
    with qnnbridge.InferenceSession(model, **options) as session:
        session.run(None, {"x": X})
        until = time.monotonic() + WAIT_S
        while session.verified.state == "pending":
            assert time.monotonic() < until
            time.sleep(0.01)
        return session.fixed, session.verified, session.cache.key


def parted(changes: tuple[str, ...]) -> bool:
    return any(change.startswith("gates") for change in changes)


@pytest.mark.parametrize("cache", [True, None])
def test_the_session_after_a_poor_verdict_splits_the_gates_and_reports_it(
    model: Path, caplog: pytest.LogCaptureFixture, cache: bool | None
) -> None:
    changes, found, _ = verdict(model, cache=cache)
    assert (parted(changes), found.state) == (False, "differs")
    with caplog.at_level(logging.INFO, "qnnbridge"):
        changes, cured, _ = verdict(model, cache=cache)
    assert (parted(changes), cured.state) == (True, "agrees")
    assert (cured.snr_db or 0) > (found.snr_db or 0) + 10
    told = [record.message for record in caplog.records if "were separated" in record.message]
    assert len(told) == 1
    assert f"{found.snr_db:.1f} dB" in told[0]
    assert "cycles" in told[0]
    # In another process, decided by the verdict of the copy.
    program = (
        "import sys, qnnbridge\n"
        "with qnnbridge.InferenceSession(sys.argv[1], cache=eval(sys.argv[2])) as session:\n"
        "    print([c for c in session.fixed if c.startswith('gates')], session.verified.state)\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, str(model), str(cache)], capture_output=True, text=True, check=True
    )
    assert other.stdout.startswith("['gates: ")
    # The application's own setting is kept.
    changes, plain, _ = verdict(model, cache=cache, fix=False)
    assert (changes, plain.state) == ((), "differs")


def test_a_split_of_gates_that_does_not_help_is_tried_once(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    changes, found, key = verdict(model, cache=True)
    with qnnbridge.InferenceSession(model, cache=True) as session:
        assert parted(session.fixed)
        of_copy = session.cache.key
    assert key is not None
    assert of_copy is not None
    root = Path(os.environ["QNNBRIDGE_CACHE_DIR"]) / VERSION_FOLDER
    assert not parted(changes)
    # Another comparison of the copy has found the same quality.
    Verdicts(root).write(of_copy, found)
    with caplog.at_level(logging.INFO, "qnnbridge"):
        for _ in range(2):
            with qnnbridge.InferenceSession(model, cache=True) as session:
                assert (session.fixed, session.cache.key) == ((), key)
                assert session.verified.state == "differs"
    assert not [record for record in caplog.records if "were separated" in record.message]
    (note,) = [one for one in NegativeEntries(root).all() if one.kind == "gates"]
    assert "also differ with separated gates" in note.reason
