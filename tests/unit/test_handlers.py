"""The operations of the host, with the scripted engine, in this process."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.fake_engine import FakeEngine, FakeSession

from qnnbridge_host.cache.store import Store
from qnnbridge_host.engine.sessions import Sessions
from qnnbridge_host.request.in_flight import Request
from qnnbridge_host.serve.handlers import HostHandlers
from qnnbridge_host.start import introduction
from qnnbridge_protocol import errors
from qnnbridge_protocol.model_records import ModelDescription
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec
from qnnbridge_protocol.values import Decoder, Encoder

X = np.arange(4, dtype=np.float32)
# Timeout that only a defect reaches.
GRACE_S = 20.0


def nothing(_phase: str) -> None:
    pass


def refuse() -> None:
    raise errors.Fail("no memory just now")


class Client:
    """Client that calls the handlers as the server does. sessions: sessions that the engine created, oldest first."""

    def __init__(self) -> None:
        self.sessions: list[RecordingSession] = []
        self.refuse_dynamic: errors.BridgeError | None = None
        self.on_create: Callable[[], None] | None = None
        client = self

        class Engine(FakeEngine):
            def create_session(self, *arguments: Any) -> Any:
                if client.on_create is not None:
                    client.on_create()
                made = super().create_session(*arguments)
                client.sessions.append(RecordingSession(made, client))
                return client.sessions[-1]

        self.handlers = HostHandlers(lambda _on_phase: Engine(), introduction())
        self.handlers.start(nothing)
        self._ids = itertools.count(100)

    def request(self, op: str, buffers: tuple[Any, ...] = (), **header: Any) -> Request:
        return Request(next(self._ids), {"op": op, **header}, buffers)

    def ask(self, op: str, buffers: tuple[Any, ...] = (), **header: Any) -> Any:
        return self.handlers.handle(self.request(op, buffers, **header), nothing)

    def creation(self, model: dict[str, Any] | Path, spec: dict[str, Any] | None = None, **header: Any) -> Request:
        path = str(model) if isinstance(model, Path) else None
        buffers = () if path else (np.frombuffer(json.dumps(model).encode(), np.uint8),)
        made = SessionSpec(path, (ProviderSpec("QNNExecutionProvider"),), **(spec or {}))
        return self.request("session.create", buffers, spec=made.to_wire(), **header)

    def create(self, model: dict[str, Any] | Path, spec: dict[str, Any] | None = None, **header: Any) -> int:
        reply, _ = self.handlers.handle(self.creation(model, spec, **header), nothing)
        return int(reply["session"])

    def run(self, session: int) -> np.ndarray[Any, Any]:
        encoder = Encoder()
        inputs = [["x", encoder.add(X)]]
        buffers = tuple(np.frombuffer(bytes(memoryview(b).cast("B")), np.uint8) for b in encoder.buffers)
        reply, out = self.ask("session.run", buffers, session=session, inputs=inputs)
        decoder = Decoder([np.asarray(memoryview(b).cast("B")) for b in out])
        return decoder.value(reply["outputs"][0])

    def set_dynamic(self, session: int, **options: str) -> None:
        self.ask("session.set_ep_dynamic_options", session=session, options=options)

    @property
    def open_sessions(self) -> int:
        return int(self.ask("host.stats")[0]["sessions"])


class RecordingSession:
    """A session of the scripted engine that records the dynamic options."""

    def __init__(self, session: FakeSession, client: Client) -> None:
        self._session, self._client = session, client
        self.info, self.run, self.end_profiling = session.info, session.run, session.end_profiling
        self.dynamic: dict[str, str] = {}
        self.closed = False

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        if self._client.refuse_dynamic is not None:
            raise self._client.refuse_dynamic
        self.dynamic |= options

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


def reset_on_run(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"on_run": ["raise:ort.DeviceReset"], "once": str(tmp_path / "reset"), **more}


# --- creation --------------------------------------------------------------------------------------------


def test_a_session_has_the_id_of_the_request_that_created_it() -> None:
    """Therefore a client that did not wait for the answer can close the session."""
    client = Client()
    request = client.creation({})
    reply, _ = client.handlers.handle(request, nothing)
    assert reply["session"] == request.id
    client.ask("session.close", session=request.id)
    assert client.sessions[0].closed


def test_an_abandoned_creation_leaves_no_session() -> None:
    client = Client()
    request = client.creation({})
    client.on_create = lambda: setattr(request, "withdrawn", True)
    with pytest.raises(errors.Cancelled):
        client.handlers.handle(request, nothing)
    assert client.sessions[0].closed
    assert client.open_sessions == 0


def test_a_creation_that_is_cancelled_after_its_native_step_leaves_no_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The `session.close` may arrive before the session exists."""
    made = Sessions.create

    def withdrawn_at_last(sessions: Sessions, request: Request, *arguments: Any, **keywords: Any) -> Any:
        session = made(sessions, request, *arguments, **keywords)
        client.ask("session.close", session=request.id)
        request.withdrawn = True
        return session

    monkeypatch.setattr(Sessions, "create", withdrawn_at_last)
    client = Client()
    with pytest.raises(errors.Cancelled):
        client.create({})
    assert client.sessions[0].closed
    assert client.open_sessions == 0


def test_a_creation_that_waits_to_invalidate_an_entry_can_be_cancelled(tmp_path: Path) -> None:
    """Another process holds the entry's lock while it compiles, however long that takes."""
    client, store, caught = Client(), Store(tmp_path), []
    store.prepare()
    held = store.try_lock("k" * 32)
    assert held is not None
    fault = {"key": "k" * 32, "id": "1", "fault": "crashed", "reason": "it died"}
    request = client.creation({}, cache={"folder": str(tmp_path)}, invalid_entries=[fault])

    def create() -> None:
        try:
            client.handlers.handle(request, nothing)
        except errors.BridgeError as error:
            caught.append(error.code)

    thread = threading.Thread(target=create, daemon=True)
    thread.start()
    while request.stopper is None:
        time.sleep(0.001)
    time.sleep(0.2)
    request.stopper.stop()
    thread.join(5)
    held.release()
    assert caught == ["call.Cancelled"]


SPEC = SessionSpec(None, (ProviderSpec("QNNExecutionProvider"),)).to_wire()


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("session.create", {"spec": {**SPEC, "options": []}}),
        ("session.create", {"spec": {**SPEC, "config_entries": None}}),
        ("session.create", {"spec": {**SPEC, "model_path": 5}}),
        ("session.create", {"spec": SPEC, "fingerprint": "f", "files": 5}),
        ("session.create", {"spec": SPEC, "fingerprint": "f", "files": [["a"]]}),
        ("session.create", {"spec": SPEC, "seed": float("inf")}),
        ("session.create", {"spec": SPEC, "budget_s": [1]}),
        ("session.create", {"spec": SPEC, "cache": {"folder": 5}}),
        ("session.create", {"spec": SPEC, "invalid_entries": [{"key": 5}]}),
        ("model.identify", {"path": 5}),
        ("model.choose", {"spec": SPEC}),
        ("model.choose", {"spec": {**SPEC, "model_path": 5}}),
        ("model.choose", {}),
        ("model.compile", {"jobs": []}),
        ("model.compile", {"jobs": [{"spec": SPEC}, {"spec": SPEC}]}),
        ("model.compile", {"jobs": [{"spec": SPEC}], "budget_s": "soon"}),
        ("worker.create", {"spec": SPEC, "budget_s": {"a": 1}}),
        ("worker.compile", {"spec": {"session": SPEC, "output": ""}}),
    ],
)
def test_the_error_for_a_field_of_a_wrong_type_names_the_field(op: str, fields: dict[str, Any]) -> None:
    named = r"without a proper description|SessionSpec\.|CacheSettings\.|EntryFault has|CompileSpec"
    with pytest.raises(errors.ProtocolDesync, match=named):
        Client().ask(op, (np.frombuffer(b"{}", np.uint8),) if fields.get("jobs") != [] else (), **fields)


def test_an_infinite_timeout_does_not_overflow_a_timer() -> None:
    assert Client().create({}, budget_s=float("inf"))


def test_dynamic_options_can_come_with_the_creation() -> None:
    client = Client()
    client.create({}, dynamic={"ep.dynamic.workload_type": "Efficient"})
    assert client.sessions[0].dynamic == {"ep.dynamic.workload_type": "Efficient"}


def test_a_session_whose_dynamic_options_are_refused_is_closed() -> None:
    client = Client()
    client.refuse_dynamic = errors.OptionError("no such option")
    with pytest.raises(errors.OptionError):
        client.create({}, dynamic={"a": "b"})
    assert client.sessions[0].closed
    assert client.open_sessions == 0


def test_an_engine_that_cannot_be_loaded_raises_a_new_error_for_each_caller() -> None:
    """A single error raised repeatedly would collect the traceback and the notes of all callers."""

    def fail(_on_phase: Any) -> Any:
        raise errors.ProviderUnavailable("no onnxruntime", cause="ImportError", details={"python": "3.10"})

    handlers = HostHandlers(fail, introduction())
    handlers.start(nothing)
    caught = []
    for number in range(2):
        with pytest.raises(errors.ProviderUnavailable) as raised:
            handlers.handle(Request(number + 1, {"op": "host.info"}, ()), nothing)
        caught.append(raised.value)
        raised.value.details["noted"] = number
    assert caught[0] is not caught[1]
    assert (caught[1].message, caught[1].details) == ("no onnxruntime", {"python": "3.10", "noted": 1})


def test_any_other_failure_of_the_engine_keeps_no_frames_of_earlier_callers() -> None:
    def fail(_on_phase: Any) -> Any:
        raise SystemExit("import failed")

    handlers = HostHandlers(fail, introduction())
    handlers.start(nothing)
    depths = []
    for number in range(3):
        with pytest.raises(SystemExit) as raised:
            handlers.handle(Request(number + 1, {"op": "host.info"}, ()), nothing)
        depths.append(len(raised.traceback))
    assert len(set(depths)) == 1


# --- resets of the NPU -----------------------------------------------------------------------------------


def test_a_session_that_could_not_be_recreated_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    client = Client()
    session = client.create(reset_on_run(tmp_path, scale=3))
    client.on_create = refuse
    for _ in range(2):
        with pytest.raises(errors.Fail, match="no memory just now"):
            client.run(session)
    client.on_create = None
    assert np.array_equal(client.run(session), X * 3)
    assert [made.closed for made in client.sessions] == [True, False]


def test_a_session_that_could_not_be_recreated_can_be_closed(tmp_path: Path) -> None:
    client = Client()
    session = client.create(reset_on_run(tmp_path))
    client.on_create = refuse
    with pytest.raises(errors.Fail):
        client.run(session)
    assert client.ask("session.end_profiling", session=session)[0]["file"] == ""
    client.ask("session.close", session=session)
    with pytest.raises(errors.Closed):
        client.run(session)
    assert client.open_sessions == 0


def test_a_session_that_is_closed_during_its_recreation_is_not_kept(tmp_path: Path) -> None:
    client = Client()
    session = client.create(reset_on_run(tmp_path))
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go.wait(GRACE_S)

    client.on_create = wait
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            client.run(session)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(GRACE_S)
    client.ask("session.close", session=session)
    go.set()
    thread.join(GRACE_S)
    assert isinstance(outcome[0], errors.Closed)
    assert [made.closed for made in client.sessions] == [True, True]


def test_dynamic_options_are_set_again_after_a_reset(tmp_path: Path) -> None:
    client = Client()
    session = client.create(reset_on_run(tmp_path, scale=3), dynamic={"a": "1"})
    client.set_dynamic(session, b="2")
    client.set_dynamic(session, a="3")
    assert np.array_equal(client.run(session), X * 3)
    first, second = client.sessions
    assert second.dynamic == first.dynamic == {"a": "3", "b": "2"}


def test_refused_dynamic_options_are_not_set_again(tmp_path: Path) -> None:
    client = Client()
    session = client.create(reset_on_run(tmp_path))
    client.refuse_dynamic = errors.OptionError("no such option")
    with pytest.raises(errors.OptionError):
        client.set_dynamic(session, a="1")
    client.refuse_dynamic = None
    client.run(session)
    assert client.sessions[1].dynamic == {}


def model_beside(folder: Path, script: dict[str, Any], beside: str) -> None:
    """Return an ONNX model with external data, which the scripted engine reads as `script`."""
    onnx = pytest.importorskip("onnx")
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=1)
    tensor.external_data.add(key="location", value=beside)
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [tensor]))
    model.metadata_props.add(key="script", value=json.dumps(script))
    (folder / "m.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize("content", [b"no model at all", b"\0\0\0\0ORTM" + bytes(100)], ids=["text", "ort"])
def test_a_file_that_is_not_an_onnx_model_is_identified_and_not_described(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    reply, _ = Client().ask("model.identify", path=str(tmp_path / "m.onnx"), folder=str(tmp_path))
    described = ModelDescription.from_wire(reply)
    assert not described.readable
    assert described.model.label == "m.onnx"
    assert described.model.fingerprint == hashlib.sha256(content).hexdigest()
    assert described.inputs == ()


def test_a_model_is_identified_with_its_inputs_and_files_and_not_loaded(tmp_path: Path) -> None:
    def fail(_on_phase: Any) -> Any:
        raise errors.ProviderUnavailable("no onnxruntime")

    handlers = HostHandlers(fail, introduction())
    (tmp_path / "w.bin").write_bytes(b"1234")
    model_beside(tmp_path, {}, "w.bin")
    data = np.frombuffer((tmp_path / "m.onnx").read_bytes(), np.uint8)
    by_path = Request(1, {"op": "model.identify", "path": str(tmp_path / "m.onnx")}, ())
    by_bytes = Request(2, {"op": "model.identify", "folder": str(tmp_path)}, (data,))
    first, second = (ModelDescription.from_wire(handlers.handle(one, nothing)[0]) for one in (by_path, by_bytes))
    assert first.readable
    assert first.external == ("w.bin",)
    assert first.model.fingerprint == second.model.fingerprint
    assert [path for path, _, _ in first.model.files] == [str(tmp_path / name) for name in ("m.onnx", "w.bin")]


@pytest.mark.parametrize("changed", ["m.onnx", "w.bin"])
def test_a_model_with_any_changed_file_is_not_recreated(tmp_path: Path, changed: str) -> None:
    client = Client()
    (tmp_path / "w.bin").write_bytes(b"1234")
    model_beside(tmp_path, reset_on_run(tmp_path), "w.bin")
    session = client.create(tmp_path / "m.onnx")
    (tmp_path / changed).write_bytes(b"something else, and longer than it was before, by far " * 9)
    with pytest.raises(errors.ModelChanged, match=changed):
        client.run(session)
    assert len(client.sessions) == 1


@pytest.mark.parametrize(
    ("error", "is_reset"),
    [
        ("ort.DeviceReset", True),
        ("ort.EngineError", True),
        ("ort.EPFail=graph execute, Code: 1007", True),
        (f"ort.EPFail=graph execute, Code: {(3 << 40) | 1007}", True),
        ("ort.EPFail=NPU crashed. SSR detected.", True),
        ("ort.EPFail=NPU crashed. Error code: 1007", True),
        ("ort.EPFail=graph execute, Code: 1100", False),
        ("py.RuntimeError=Code: 1007", False),
        ("ort.Fail", False),
    ],
)
def test_errors_that_mean_a_reset_of_the_npu_recreate_the_session(
    error: str, is_reset: bool, tmp_path: Path
) -> None:
    client = Client()
    session = client.create({"on_run": [f"raise:{error}"], "once": str(tmp_path / "once"), "scale": 3})
    if is_reset:
        assert np.array_equal(client.run(session), X * 3)
    else:
        with pytest.raises(errors.BridgeError):
            client.run(session)
    assert len(client.sessions) == 1 + is_reset
