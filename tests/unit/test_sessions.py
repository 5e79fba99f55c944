"""The open sessions of a host: a creation that is cancelled while native code runs."""

from __future__ import annotations

from typing import Any

import pytest

from qnnbridge_host.engine.sessions import Sessions
from qnnbridge_host.request.client import StopSignal
from qnnbridge_host.request.in_flight import Request
from qnnbridge_protocol.errors import Cancelled, DeviceReset, ModelLoadCanceled
from qnnbridge_protocol.specs import Placement, SessionInfo, SessionSpec

INFO = SessionInfo((), (), placement=Placement(qnn_nodes=1, known=True))


class Session:
    info = INFO

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, *_: Any) -> list[Any]:
        if self.engine.made == 1:
            raise DeviceReset("The NPU was reset.", details={"npu_reset": True, "qnn_code": 1007})
        return [7]

    def close(self) -> None:
        pass


class Engine:
    """Engine whose loading, if `loads_long`, lasts until it is stopped."""

    loads_long = False
    made = 0
    spec: Any = None

    def create_session(self, spec: Any, model: Any, values: Any, on_phase: Any, stop: StopSignal | None) -> Session:
        if stop is not None and self.loads_long:
            stop.stop()
        if stop is not None and stop.stopped:
            raise ModelLoadCanceled("[ONNXRuntimeError] : 12 : MODEL_LOAD_CANCELED : Graph loading canceled")
        self.made += 1
        self.spec = spec
        return Session(self)


def create(engine: Engine, stop: StopSignal, **of_spec: Any) -> Any:
    sessions = Sessions(lambda _on_phase: engine)
    sessions.start(lambda _phase: None)
    request = Request(4, {"op": "session.create"}, ())
    return sessions.create(request, lambda _phase: None, SessionSpec("model.onnx", **of_spec), None, {}, stop=stop)


def test_a_load_that_was_stopped_is_reported_as_cancelled() -> None:
    """The application that cancelled the load gets that error; another application creates the session again."""
    engine = Engine()
    engine.loads_long = True
    with pytest.raises(Cancelled):
        create(engine, StopSignal())


def test_a_late_cancel_does_not_affect_a_later_reset_of_the_npu() -> None:
    stop = StopSignal()
    session = create(Engine(), stop)
    stop.stop()
    assert session.run(None, {}, None, None, lambda _phase: None) == [7]


def test_a_session_writes_its_compiled_model_once() -> None:
    """ONNX Runtime refuses to overwrite the compiled model, so a reset of the NPU would have ended the session."""
    engine = Engine()
    session = create(
        engine, StopSignal(), config_entries={"ep.context_enable": "1", "ep.context_file_path": "out.onnx"}
    )
    assert engine.spec.config_entries["ep.context_enable"] == "1"
    assert session.run(None, {}, None, None, lambda _phase: None) == [7]
    assert engine.spec.config_entries == {"ep.context_file_path": "out.onnx"}
