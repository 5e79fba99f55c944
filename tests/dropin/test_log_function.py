"""The host calls `set_default_logger_callback`'s function and a session's function for context binaries."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn")

import onnx
import onnxruntime as real

import qnnbridge.ort as ort
from qnnbridge._host import default_host
from qnnbridge.errors import CallBackFailed
from tests.dropin.test_ort_calls_back import MineError, model, qnn_options
from tests.fakes import models as build

pytestmark = [pytest.mark.process, pytest.mark.simulator]

X = np.linspace(0, 1, 8, dtype=np.float32).reshape(1, 8)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return model(tmp_path_factory.mktemp("models") / "chain.onnx")


needs_log = pytest.mark.skipif(
    not hasattr(real, "set_default_logger_callback"), reason="needs onnxruntime 1.32 or newer"
)


@pytest.fixture
def no_function_afterwards() -> Iterator[None]:
    yield
    ort.set_default_logger_callback(None)
    ort.set_default_logger_severity(2)


def session_of(path: str) -> Any:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def noisy(path: Path, outputs: int = 3) -> str:
    """Write a model with wrong output shapes, so that each run logs a warning for each output."""
    names = [f"y{i}" for i in range(outputs)]
    nodes = [onnx.helper.make_node("Reshape", ["x", "shape"], [name]) for name in names]
    inputs = [build.tensor("x", [8]), build.tensor("shape", [2], onnx.TensorProto.INT64)]
    wrong = [build.tensor(name, [8, 1]) for name in names]
    return str(build.saved(build.model(nodes, inputs, wrong), path))


NOISE = {"x": np.zeros(8, np.float32), "shape": np.array([2, 4], np.int64)}


def lines_of(module: Any, chain: str, noisy_model: str) -> list[tuple[Any, ...]]:
    lines: list[tuple[Any, ...]] = []
    module.set_default_logger_callback(lambda *line: lines.append(line), 0)
    try:
        options = module.SessionOptions()
        options.log_severity_level = 0
        module.InferenceSession(chain, options, providers=["CPUExecutionProvider"]).run(None, {"x": X})
        session = module.InferenceSession(noisy_model, providers=["CPUExecutionProvider"])
        session.run(None, NOISE)
        marks = [len(lines)]
        for _ in range(4):
            session.run(None, NOISE)
            marks.append(len(lines))
        assert np.diff(marks).tolist() == [3] * 4, "repeated calls, too"
        return [(severity, category, logid, message) for severity, category, logid, _, message in lines]
    finally:
        module.set_default_logger_callback(None)
        module.set_default_logger_severity(2)


@needs_log
def test_log_lines_of_a_call_equal_those_of_onnxruntime_and_arrive_before_it_returns(
    chain: str, tmp_path: Path
) -> None:
    path = noisy(tmp_path / "noisy.onnx")
    ours, theirs = lines_of(ort, chain, path), lines_of(real, chain, path)
    # Lines about session settings, about memory that the process already has, and lines that ONNX Runtime logs only
    # once per process may differ.
    about_memory = ("Flush-to-zero", "BFCArena", "allocation", "Allocated memory", "Session Options", "bin_num")
    assert [line for line in ours if not any(word in line[3] for word in about_memory)] == [
        line for line in theirs if not any(word in line[3] for word in about_memory)
    ]
    assert len(ours) > 50


@needs_log
@pytest.mark.usefixtures("no_function_afterwards")
def test_a_log_function_that_raises_or_calls_the_host_does_not_disturb_a_call(
    chain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_value))
    sessions: list[Any] = [session_of(chain)]
    expected = sessions[0].run(None, {"x": X})[0]

    def again(*_: Any) -> None:
        sessions[0].run(None, {"x": X})

    noise = ort.InferenceSession(noisy(tmp_path / "noisy.onnx"), providers=["CPUExecutionProvider"])
    ort.set_default_logger_callback(again, 0)
    assert len(noise.run(None, NOISE)) == 3
    assert told
    assert {type(error) for error in told} == {CallBackFailed}
    assert {error.details["reason"] for error in told if isinstance(error, CallBackFailed)} == {"reentered"}

    def fails(*_: Any) -> None:
        raise MineError("no log")

    del told[:]
    ort.set_default_logger_callback(fails, 0)
    assert len(noise.run(None, NOISE)) == 3
    ort.set_default_logger_callback(None)
    assert np.array_equal(sessions[0].run(None, {"x": X})[0], expected)
    assert {type(error) for error in told} == {MineError}


@needs_log
@pytest.mark.usefixtures("no_function_afterwards")
def test_a_log_function_that_hangs_is_abandoned_and_the_call_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNBRIDGE_CALLBACK_TIMEOUT", "0.5")
    go = threading.Event()
    session = session_of(noisy(tmp_path / "noisy.onnx"))
    ort.set_default_logger_callback(lambda *_: go.wait(60), 0)
    try:
        assert len(session.run(None, NOISE)) == 3
    finally:
        go.set()


@needs_log
@pytest.mark.usefixtures("no_function_afterwards")
def test_the_log_function_is_set_in_the_next_host_too(tmp_path: Path) -> None:
    lines: list[tuple[Any, ...]] = []
    session = session_of(noisy(tmp_path / "noisy.onnx"))
    ort.set_default_logger_callback(lambda *line: lines.append(line), 0)
    process = default_host().supervisor.running
    assert process is not None
    process.kill("the test ends it")
    session.run(None, NOISE)
    assert len([line for line in lines if "Expected shape" in line[4]]) == 3


def test_a_default_severity_keeps_the_other_options_of_a_session(chain: str) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    ort.set_default_logger_severity(3)
    try:
        told = ort.InferenceSession(chain, options, providers=["CPUExecutionProvider"]).get_session_options()
    finally:
        ort.set_default_logger_severity(2)
    assert told.log_severity_level == 3
    assert told.get_session_config_entry("session.disable_prepacking") == "1"
    assert options.log_severity_level == -1


# --- context binaries ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(chain: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    """Return a compiled model without its context binary, and the context binary."""
    binaries: dict[str, bytes] = {}
    compiler = ort.ModelCompiler(qnn_options(), chain)
    compiler.set_ep_context_data_write_func(lambda name, data: binaries.__setitem__(name, data.read()))
    path = tmp_path_factory.mktemp("compiled") / "m.onnx"
    compiler.compile_to_file(str(path))
    return str(path), binaries


def folders() -> list[Path]:
    import tempfile

    return list(Path(tempfile.gettempdir()).glob("qnnbridge-context-*"))


def test_a_session_takes_its_context_binary_from_the_function(
    chain: str, kept: tuple[str, dict[str, bytes]]
) -> None:
    path, binaries = kept
    asked: list[Any] = []

    def read(name: str, buffer: Any) -> None:
        data = binaries[name]
        assert (buffer.is_allocated, buffer.max_size) == (False, 1 << 30)
        buffer.allocate(len(data))
        with pytest.raises(RuntimeError, match="already been allocated"):
            buffer.allocate(1)
        half = len(data) // 2
        buffer.write(data[:half])
        buffer.write(memoryview(data)[half:], half)
        with pytest.raises(IndexError, match="does not fit"):
            buffer.write(b"x", len(data))
        assert (buffer.is_allocated, buffer.size) == (True, len(data))
        asked.extend([name, buffer])

    options = qnn_options()
    options.set_ep_context_data_read_func(read, 1 << 30)
    expected = real.InferenceSession(chain).run(None, {"x": X})[0]
    for model_or_bytes in (path, Path(path).read_bytes()):
        session = ort.InferenceSession(model_or_bytes, options)
        assert np.allclose(session.run(None, {"x": X})[0], expected, atol=1e-2)
        assert session.placement.qnn_nodes
    with pytest.raises(RuntimeError, match="valid only during the read callback"):
        asked[1].size  # noqa: B018
    assert [name for name in asked if isinstance(name, str)] == list(binaries) * 2
    process = default_host().supervisor.running
    assert process is not None
    process.kill("the test ends it")
    assert np.allclose(session.run(None, {"x": X})[0], expected, atol=1e-2), "made again, with the function"
    session.close()
    options.clear_ep_context_data_read_func()
    with pytest.raises(Exception, match=r"\.bin|context binary"):
        ort.InferenceSession(path, options)
    default_host().close()


def test_a_function_for_context_binaries_may_return_nothing(kept: tuple[str, dict[str, bytes]]) -> None:
    error = MineError("not in the database")

    def fails(_name: str, _buffer: Any) -> None:
        raise error

    options = qnn_options()
    options.set_ep_context_data_read_func(fails, 100)
    with pytest.raises(MineError) as caught:
        ort.InferenceSession(kept[0], options)
    assert caught.value is error
    options.set_ep_context_data_read_func(lambda *_: None, 100)
    with pytest.raises(Exception, match="must allocate its output buffer"):
        ort.InferenceSession(kept[0], options)
    options.set_ep_context_data_read_func(lambda _name, buffer: buffer.allocate(101), 100)
    with pytest.raises(RuntimeError, match="exceeds the configured maximum size"):
        ort.InferenceSession(kept[0], options)


@pytest.mark.parametrize("arguments", [(None, 4), (3, 4), (print, 0), (print, -1), (print, "4"), (print, 2**64)])
def test_invalid_functions_are_refused_as_by_onnxruntime(arguments: tuple[Any, Any]) -> None:
    if not hasattr(real.SessionOptions, "set_ep_context_data_read_func"):
        pytest.skip("needs onnxruntime 1.32 or newer")
    texts = []
    for module in (ort, real):
        with pytest.raises((TypeError, RuntimeError)) as caught:
            module.SessionOptions().set_ep_context_data_read_func(*arguments)
        builtin = next(c for c in type(caught.value).__mro__ if c.__module__ == "builtins")
        text = str(caught.value).split("Invoked with")[0].rpartition(" was false. ")[2].strip()
        texts.append((builtin, text))
    assert texts[0] == texts[1]


def test_no_folder_of_context_binaries_is_left() -> None:
    default_host().close()
    assert folders() == []
