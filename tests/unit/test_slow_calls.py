"""A call that computes on the simulator for long is reported once, while it runs."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import onnx
import pytest
from tests.fakes.models import model, node, tensor

from qnnbridge._session.slow_calls import log_slow_call
from qnnbridge_host.model.work import seconds_on_simulator
from qnnbridge_host.request import slow_calls
from qnnbridge_host.request.slow_calls import SlowCallReport
from qnnbridge_protocol.frames import Frame, Kind


def product(rows: int | str, quantised: bool = False) -> bytes:
    """Return a product of 1000 * 1000 numbers for each row."""
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    values: dict[str, Any] = {"w": np.zeros((1000, 1000), np.float32)}
    if quantised:
        values = {"q": np.zeros((1000, 1000), np.int8), "s": np.float32(1)}
        values["s"] = np.asarray(values["s"])
        nodes.insert(0, node("DequantizeLinear", ["q", "s"], ["w"]))
    made: onnx.ModelProto = model(nodes, [tensor("x", [rows, 1000])], [tensor("y", [rows, 1000])], values)
    return made.SerializeToString()


def test_a_slow_call_is_reported_once_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_calls, "SLOW_S", 0.01)
    told: list[dict[str, Any]] = []
    arrived = threading.Event()

    def emit(event: dict[str, Any]) -> None:
        told.append(event)
        arrived.set()

    report = SlowCallReport("m.onnx", product(4000), {})
    with report.watching(emit):
        assert arrived.wait(10), "nothing was reported during the call"
    (event,) = told
    assert (event["event"], event["label"]) == ("slow_call", "m.onnx")
    assert event["processor_s"] == pytest.approx(4 * 3.5, rel=0.01)
    arrived.clear()
    with report.watching(emit):
        assert not arrived.wait(0.2)
    assert len(told) == 1


def test_a_small_model_gets_more_time_and_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_calls, "SLOW_S", 0.2)
    monkeypatch.setattr(slow_calls, "LATE_S", 0.3)
    told: list[dict[str, Any]] = []
    arrived = threading.Event()

    def emit(event: dict[str, Any]) -> None:
        told.append(event)
        arrived.set()

    with SlowCallReport("m.onnx", product(1), {}).watching(emit):
        assert arrived.wait(10)
    assert told == [{"event": "slow_call", "seconds": 0.3, "label": "m.onnx"}]


def test_a_fast_call_is_not_reported_and_leaves_no_thread() -> None:
    told: list[dict[str, Any]] = []
    with SlowCallReport("m.onnx", product(4000), {}).watching(told.append):
        assert any(one.name == "qnnbridge slow call" for one in threading.enumerate())
    assert not told
    assert not any(one.name == "qnnbridge slow call" for one in threading.enumerate())


def test_the_estimate_depends_on_the_sizes_and_is_omitted_if_they_are_unknown() -> None:
    assert seconds_on_simulator(product(2000), {}) == pytest.approx(7, rel=0.01)
    assert seconds_on_simulator(product("n"), {"n": 1000}) == pytest.approx(3.5, rel=0.01)
    assert seconds_on_simulator(product("n"), {}) is None
    assert seconds_on_simulator(product(2000, quantised=True), {}) is None
    assert seconds_on_simulator(b"no model", {}) is None
    assert seconds_on_simulator("/nowhere/m.onnx", {}) is None


@pytest.mark.parametrize(
    ("needed", "text"),
    [(None, "longer than 2 s."), (70.0, "roughly 70 s of"), (600.0, "roughly 10 min of"), ("bad", "than 2 s.")],
)
def test_the_application_logs_the_slow_call(needed: object, text: str, caplog: pytest.LogCaptureFixture) -> None:
    header: dict[str, Any] = {"event": "slow_call", "label": "m.onnx", "seconds": 2.0}
    if needed is not None:
        header["processor_s"] = needed
    with caplog.at_level(logging.WARNING):
        log_slow_call(Frame(Kind.EVENT, 7, header))
        log_slow_call(Frame(Kind.EVENT, 7, {"event": "progress", "stage": "compiling"}))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("m.onnx: this call computes on QNN's simulator")
    assert text in line
