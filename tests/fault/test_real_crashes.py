"""Native crashes of the real QNN libraries (onnxruntime-qnn 2.7.0), each caused by a model that looks harmless.

The changed byte positions in context binaries were found by trial: they apply to the files in `tests/models/compiled`
and to that release only. The promises apply to any crash: the error contains the phase, the model and an explained
cause, and the next call to another model succeeds without any action of the application.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import needs
from tests.fakes.fair_clock import FairClock
from tests.fakes.hosts import fake_host, script

import qnnbridge
from qnnbridge import errors
from qnnbridge._supervision.blame import Quarantine

pytest.importorskip("onnxruntime_qnn")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.simulator

MODELS = Path(__file__).parents[1] / "models"
COMPILED = MODELS / "compiled"
QNN = "QNNExecutionProvider"
SOC = [(QNN, {"soc_model": "60"})]
INPUT = {"x": np.load(MODELS / "x.npz")["x"]}
GRACE_S = 1.0
FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64


@pytest.fixture(scope="module")
def healthy() -> Iterator[tuple[qnnbridge.InferenceSession, Any]]:
    """A session that existed before all crashes, and its result from that time."""
    with qnnbridge.Host() as host:
        session = qnnbridge.InferenceSession(MODELS / "q.onnx", providers=SOC, host=host)
        yield session, session.run(None, INPUT)[0]


@pytest.fixture
def host(healthy: tuple[qnnbridge.InferenceSession, Any]) -> Iterator[qnnbridge.Host]:
    """The healthy session's host. After the test the session must return the same result without any action."""
    session, expected = healthy
    yield session.host
    # Over the connection: a channel would stay open for some seconds after the test.
    assert session.run(None, INPUT, qnnbridge.RunOptions())[0].tobytes() == expected.tobytes()


def save(
    path: Path, node: Any, inputs: list[Any], outputs: list[Any], initializers: list[Any] | None = None
) -> Path:
    nodes = node if isinstance(node, list) else [node]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        initializers or [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, path)
    return path


def constant(name: str, value: Any) -> Any:
    return numpy_helper.from_array(np.array(value, np.int64), name)


def no_rows(folder: Path) -> Path:
    return save(
        folder / "no_rows.onnx",
        helper.make_node("Relu", ["x"], ["y"]),
        [("x", FLOAT, [0, 8])],
        [("y", FLOAT, [0, 8])],
    )


def empty_slice(folder: Path) -> Path:
    """Inputs look normal, but the Slice returns no elements."""
    return save(
        folder / "empty_slice.onnx",
        [helper.make_node("Slice", ["x", "s", "e"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        [("x", FLOAT, [4, 8])],
        [("y", FLOAT, [0, 8])],
        [constant("s", [2]), constant("e", [2])],
    )


def stft(folder: Path) -> Path:
    return save(
        folder / "stft.onnx",
        helper.make_node("STFT", ["x", "step", "", "length"], ["y"]),
        [("x", FLOAT, [1, 128, 1]), ("step", INT64, []), ("length", INT64, [])],
        [("y", FLOAT, [1, 15, 9, 2])],
    )


def damaged(folder: Path, model: str = "good.onnx", binary: str = "a_qnn.bin", at: int = 0, value: int = 0) -> Path:
    shutil.copy(COMPILED / model, folder / model)
    data = bytearray((COMPILED / binary).read_bytes())
    data[at] = value
    # The name to which the model refers.
    (folder / ("F_qnn.bin" if model == "F.onnx" else "a_qnn.bin")).write_bytes(data)
    return folder / model


def swapped(folder: Path) -> Path:
    shutil.copy(COMPILED / "F.onnx", folder)
    shutil.copy(COMPILED / "pnet60_qnn.bin", folder / "F_qnn.bin")
    return folder / "F.onnx"


AT_CREATE: dict[str, tuple[Callable[[Path], Path], signal.Signals, str]] = {
    "a dimension of size 0": (no_rows, signal.SIGFPE, "dimension of size 0"),
    "nothing behind a Slice": (empty_slice, signal.SIGFPE, "dimension of size 0"),
    "STFT": (stft, signal.SIGSEGV, "STFT"),
    "the binary of another model": (swapped, signal.SIGABRT, "does not belong to this .onnx"),
    "a flipped byte": (
        lambda folder: damaged(folder, at=34993, value=0xFF),
        signal.SIGSEGV,
        "context binary is damaged",
    ),
    "a size that is out of range": (
        lambda folder: damaged(folder, "pnet60.onnx", "pnet60_qnn.bin", 41400, 0xFF),
        signal.SIGABRT,
        "std::out_of_range",
    ),
}


@pytest.mark.parametrize("case", needs.some(AT_CREATE))
def test_a_crash_in_create_names_phase_model_and_cause(
    case: str, host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # QNN would refuse the context binary of another model earlier.
    monkeypatch.setenv("QNNBRIDGE_CONTEXT_CHECK", "warn")
    make, number, cause = AT_CREATE[case]
    model = make(tmp_path)
    with pytest.raises(errors.HostCrashed) as caught:
        qnnbridge.InferenceSession(model, providers=SOC, host=host, fallback="cpu", retry=0)
    text = str(caught.value)
    assert f"creating a session of {model.name}" in text or f"compiling {model.name}" in text
    assert number.name in text
    assert cause in text
    assert caught.value.fix
    details = caught.value.details
    assert details["exit"]["number"] == -number
    assert [suspect["model"] for suspect in details["suspects"]] == [model.name]
    assert details["versions"]["onnxruntime_qnn"]
    assert Path(details["report"]).is_file()


def test_a_crash_of_a_rewritten_copy_names_the_given_model(host: qnnbridge.Host, tmp_path: Path):
    data = stft(tmp_path).read_bytes()
    with pytest.raises(errors.HostCrashed) as caught:
        qnnbridge.InferenceSession(data, providers=SOC, host=host, fallback="cpu", retry=0, fix=True)
    assert f"<{len(data)} bytes, sha256 " in caught.value.message
    assert "model.onnx" not in Path(caught.value.details["report"]).read_text(encoding="utf-8")


def test_the_error_for_a_graph_that_qnn_cannot_build_names_its_tensors_without_elements(
    host: qnnbridge.Host, tmp_path: Path
):
    inside = save(
        tmp_path / "inside.onnx",
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("Slice", ["r", "s", "s", "axis"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Concat", ["b", "r"], ["y"], axis=1),
        ],
        [("x", FLOAT, [1, 3, 4])],
        [("y", FLOAT, [1, 3, 4])],
        [constant("s", [0]), constant("axis", [1])],
    )
    for given in (inside, inside.read_bytes()):
        with pytest.raises(errors.EPFail) as caught:
            qnnbridge.InferenceSession(given, providers=SOC, host=host)
        assert "a (1x0x4), b (1x0x4)" in (caught.value.cause or "")
        assert "fix=True" in (caught.value.fix or "")
    with qnnbridge.InferenceSession(inside, providers=SOC, host=host, fix=True) as session:
        assert not session.placement.cpu_nodes
    given = save(
        tmp_path / "given.onnx",
        helper.make_node("Relu", ["x"], ["y"]),
        [("x", FLOAT, [1, 0, 4])],
        [("y", FLOAT, [1, 0, 4])],
    )
    with pytest.raises(errors.EPFail) as caught:
        qnnbridge.InferenceSession(given, providers=SOC, host=host)
    assert "Give x (1x0x4) at least one element" in (caught.value.fix or "")


def test_a_crash_in_run_names_phase_model_and_cause(host: qnnbridge.Host, tmp_path: Path):
    session = qnnbridge.InferenceSession(
        damaged(tmp_path, at=36906, value=0x04), providers=SOC, host=host, fallback="cpu"
    )
    with pytest.raises(errors.HostCrashed) as caught:
        session.run(None, INPUT, retry=0)
    text = str(caught.value)
    assert "while running good.onnx" in text
    assert "SIGSEGV" in text
    assert "damaged context binary of a compiled model" in text


def test_a_model_that_crashes_repeatedly_is_refused_from_then_on(host: qnnbridge.Host, tmp_path: Path):
    model = stft(tmp_path)
    with pytest.raises(errors.HostCrashed):
        qnnbridge.InferenceSession(model, providers=SOC, host=host)
    generation = host.stats.generation
    seconds: list[float] = []
    while not seconds or (min(seconds) >= 0.1 and len(seconds) < 5):  # not every refusal is quick on a busy machine
        clock = FairClock()
        with pytest.raises(errors.ModelQuarantined) as caught:
            qnnbridge.InferenceSession(model, providers=SOC, host=host)
        seconds.append(clock.seconds)
    assert min(seconds) < 0.1
    assert "stft.onnx is in quarantine" in str(caught.value)
    assert host.stats.generation == generation
    assert [account.model for account in Quarantine().accounts()] == ["stft.onnx"]


def test_a_run_that_never_returns_is_ended_by_its_deadline(host: qnnbridge.Host, tmp_path: Path):
    session = qnnbridge.InferenceSession(
        damaged(tmp_path, at=35278, value=0xFF), providers=SOC, host=host, fallback="cpu"
    )
    state = "not-started"
    while state == "not-started":  # until the thread runs, on a busy machine
        clock = FairClock()
        with pytest.raises(errors.DeadlineExceeded) as caught:
            session.run(None, INPUT, timeout=1.0)
        assert clock.seconds < 1.0 + GRACE_S
        state = caught.value.state
    assert state == "still-running"
    # The call stays in the NPU's lane forever, in front of all others.
    clock = FairClock()
    with pytest.raises(errors.DeadlineExceeded):
        session.run(None, INPUT, timeout=1.0, on_deadline="kill")
    assert clock.seconds < 1.0 + GRACE_S


def test_a_dynamic_option_that_would_abort_the_host_is_refused(host: qnnbridge.Host):
    session = qnnbridge.InferenceSession(MODELS / "q.onnx", providers=SOC, host=host)
    generation = host.stats.generation
    with pytest.raises(errors.OptionError, match="kvcache_rewind"):
        session.set_ep_dynamic_options({"kvcache_rewind": "abc"})
    assert host.stats.generation == generation


def test_a_run_option_that_would_abort_the_host_is_refused(host: qnnbridge.Host):
    session = qnnbridge.InferenceSession(MODELS / "q.onnx", providers=SOC, host=host)
    generation = host.stats.generation
    options = qnnbridge.RunOptions()
    with pytest.raises(errors.OptionError, match="rpc_control_latency"):
        options.add_run_config_entry("qnn.rpc_control_latency", "abc")
        session.run(None, INPUT, options)
    assert host.stats.generation == generation


def test_a_host_that_is_killed_during_its_imports_is_explained_and_the_next_one_works(tmp_path: Path):
    """The real library crashes there on a machine without /proc/cpuinfo, see `tests/labs`."""
    with fake_host("--import=segv") as host:
        with pytest.raises((errors.HostCrashed, errors.HostStartFailed)) as caught:
            qnnbridge.InferenceSession(script(), host=host, retry=0)
        assert "while importing ONNX Runtime" in str(caught.value)
        assert "SIGSEGV" in str(caught.value)
