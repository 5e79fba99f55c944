"""Functions of the application that ONNX Runtime calls in the host while it compiles a model."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import models as build

pytest.importorskip("onnxruntime")

import onnx
import onnxruntime as real
from onnx import helper, numpy_helper

import qnnbridge.ort as ort
from qnnbridge.errors import CallBackFailed, Fail

pytestmark = pytest.mark.process

# Older releases lack some names and have other error texts.
newest = pytest.mark.skipif(
    tuple(map(int, real.__version__.split(".")[:2])) < (1, 32), reason="the texts are those of onnxruntime 1.32"
)

COUNT = 4


def model(path: Path, count: int = COUNT, size: int = 8) -> str:
    """Write a chain of additions, each of an initializer."""
    weights = [numpy_helper.from_array(np.full(size, 0.5 * i, np.float32), f"w{i}") for i in range(count)]
    names = ["x", *[f"y{i}" for i in range(count - 1)], "y"]
    nodes = [helper.make_node("Add", [names[i], f"w{i}"], [names[i + 1]]) for i in range(count)]
    ends = [build.tensor(name, [1, size]) for name in ("x", "y")]
    return str(build.saved(build.model(nodes, ends[:1], ends[1:], weights), path))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return model(tmp_path_factory.mktemp("models") / "chain.onnx")


def locate(module: Any, chain: str, folder: Path) -> tuple[list[Any], bytes, bytes]:
    """Compile with a function that writes every second initializer to a file."""
    folder.mkdir()
    seen: list[Any] = []
    with open(folder / "weights.bin", "wb") as file:

        def location(name: str, value: Any, external: Any) -> Any:
            seen.append((name, value.numpy().tolist(), value.tensor_size_in_bytes(), external))
            if len(seen) % 2:
                return None
            offset = file.tell()
            file.write(value.numpy().tobytes())
            return module.OrtExternalInitializerInfo("weights.bin", offset, value.tensor_size_in_bytes())

        compiler = module.ModelCompiler(module.SessionOptions(), chain, get_initializer_location_func=location)
        compiler.compile_to_file(str(folder / "out.onnx"))
    return seen, (folder / "out.onnx").read_bytes(), (folder / "weights.bin").read_bytes()


def test_the_function_decides_where_initializers_are_stored_as_in_onnxruntime(chain: str, tmp_path: Path) -> None:
    ours, theirs = locate(ort, chain, tmp_path / "ours"), locate(real, chain, tmp_path / "theirs")
    assert ours == theirs
    assert [row[0] for row in ours[0]] == [f"w{i}" for i in range(COUNT)]
    x = np.ones((1, 8), np.float32)
    made = real.InferenceSession(str(tmp_path / "ours" / "out.onnx")).run(None, {"x": x})
    assert np.array_equal(made[0], real.InferenceSession(chain).run(None, {"x": x})[0])


def test_initializers_of_a_model_with_external_data_are_passed_with_their_location(
    chain: str, tmp_path: Path
) -> None:
    loaded = onnx.load(chain)
    path = str(tmp_path / "external.onnx")
    onnx.save(loaded, path, save_as_external_data=True, location="external.bin", size_threshold=0)
    places: dict[str, list[Any]] = {}
    for module in (ort, real):
        rows = places[module.__name__] = []

        def location(name: str, _value: Any, external: Any, rows: list[Any] = rows) -> Any:
            place = (external.filepath, external.file_offset, external.byte_size) if external else None
            rows.append((name, place))
            return external

        output = str(tmp_path / f"{module.__name__}.onnx")
        compiler = module.ModelCompiler(module.SessionOptions(), path, get_initializer_location_func=location)
        compiler.compile_to_file(output)
    assert places[ort.__name__] == places[real.__name__]


class MineError(Exception):
    """An error of the application."""


def compile_with(chain: str, location: Callable[..., Any]) -> Any:
    compiler = ort.ModelCompiler(ort.SessionOptions(), chain, get_initializer_location_func=location)
    return compiler.compile_to_bytes()


def test_the_exception_of_a_function_reaches_the_caller_as_the_same_object(chain: str) -> None:
    error = MineError("no room")
    calls: list[str] = []

    def location(name: str, *_: Any) -> None:
        calls.append(name)
        raise error

    with pytest.raises(MineError) as caught:
        compile_with(chain, location)
    assert caught.value is error
    assert calls == ["w0"]


def test_a_function_can_end_the_program(chain: str) -> None:
    def location(*_: Any) -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit, match="7"):
        compile_with(chain, location)


def test_a_function_that_returns_an_invalid_value_gets_the_message_of_onnxruntime(chain: str) -> None:
    texts = []
    for module in (ort, real):
        compiler = module.ModelCompiler(
            module.SessionOptions(), chain, get_initializer_location_func=lambda *_: "nonsense"
        )
        with pytest.raises(Exception, match="Unable to cast Python instance of type <class 'str'>") as caught:
            compiler.compile_to_bytes()
        texts.append((type(caught.value).__name__, str(caught.value)))
    assert texts[0] == texts[1]


def test_a_function_that_hangs_has_a_deadline(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CALLBACK_TIMEOUT", "0.5")
    go = threading.Event()
    begin = time.monotonic()
    try:
        with pytest.raises(CallBackFailed, match=r"did not return within 0\.5 s") as caught:
            compile_with(chain, lambda *_: go.wait(60))
    finally:
        go.set()
    assert time.monotonic() - begin < 50
    assert caught.value.details["reason"] == "late"


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_an_invalid_deadline_is_refused(chain: str, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("QNNBRIDGE_CALLBACK_TIMEOUT", text)
    with pytest.raises(ValueError, match="QNNBRIDGE_CALLBACK_TIMEOUT"):
        compile_with(chain, lambda *_: None)


def test_functions_see_the_context_of_the_caller_and_may_use_other_hosts(chain: str) -> None:
    """The compiler runs in a separate host."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("set")
    x = np.ones((1, 8), np.float32)
    session = ort.InferenceSession(chain, providers=["CPUExecutionProvider"])
    seen: list[Any] = []
    compile_with(chain, lambda *_: seen.append((variable.get(), float(session.run(None, {"x": x})[0][0, 0]))))
    assert seen == [("set", 4.0)] * COUNT


def qnn_options() -> Any:
    pytest.importorskip("onnxruntime_qnn")
    options = ort.SessionOptions()
    options.add_provider("QNNExecutionProvider", {})
    return options


@pytest.mark.simulator
@pytest.mark.parametrize(
    "keywords", [{}, {"get_initializer_location_func": lambda *_: None}], ids=["plain", "both"]
)
def test_an_exception_in_the_middle_of_a_stream_is_raised(chain: str, keywords: dict[str, Any]) -> None:
    error = MineError("full")

    def write(_data: bytes) -> None:
        raise error

    compiler = ort.ModelCompiler(qnn_options(), chain, embed_compiled_data_into_model=True, **keywords)
    with pytest.raises(Fail, match="MineError: full") as caught:
        compiler.compile_to_stream(write)
    assert caught.value.__cause__ is error
    parts: list[bytes] = []
    compiler.compile_to_stream(parts.append)
    onnx.load_from_string(b"".join(parts))


@pytest.mark.simulator
def test_context_binaries_are_passed_to_the_function_and_not_written_to_a_file(chain: str, tmp_path: Path) -> None:
    kept: dict[str, Any] = {}

    def write(name: str, data: Any) -> None:
        parts = [data.read(at, min(1000, data.size - at)) for at in range(0, data.size, 1000)]
        kept[name] = b"".join(parts)
        assert data.read() == kept[name]
        for outside in ((data.size + 1,), (1, data.size)):
            with pytest.raises(IndexError, match="exceeds the payload size"):
                data.read(*outside)
        kept["data"] = data

    compiler = ort.ModelCompiler(qnn_options(), chain)
    compiler.set_ep_context_data_write_func(write)
    compiler.compile_to_file(str(tmp_path / "out.onnx"))
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]
    with pytest.raises(RuntimeError, match="valid only during the write callback"):
        kept.pop("data").read()
    (node,) = [node for node in onnx.load(tmp_path / "out.onnx").graph.node if node.op_type == "EPContext"]
    (name,) = kept
    assert name == next(a.s.decode() for a in node.attribute if a.name == "ep_cache_context")
    # With the bytes at the path that the model refers to, it is an ordinary compiled model.
    (tmp_path / name).write_bytes(kept[name])
    x = np.linspace(0, 1, 8, dtype=np.float32).reshape(1, 8)
    session = ort.InferenceSession(str(tmp_path / "out.onnx"), qnn_options())
    expected = real.InferenceSession(chain).run(None, {"x": x})[0]
    assert np.allclose(session.run(None, {"x": x})[0], expected, atol=1e-2)
    compiler.clear_ep_context_data_write_func()
    compiler.compile_to_file(str(tmp_path / "second.onnx"))
    assert (tmp_path / "second_qnn.bin").exists()


@pytest.mark.simulator
def test_a_function_for_context_binaries_that_raises_leaves_no_file(chain: str, tmp_path: Path) -> None:
    def write(_name: str, _data: Any) -> None:
        raise MineError("no database")

    compiler = ort.ModelCompiler(qnn_options(), chain)
    compiler.set_ep_context_data_write_func(write)
    with pytest.raises(MineError):
        compiler.compile_to_file(str(tmp_path / "out.onnx"))
    assert list(tmp_path.iterdir()) == []


def outcome(attempt: Callable[[], Any]) -> tuple[str, str]:
    try:
        attempt()
    except Exception as error:
        builtin = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
        return builtin.__name__, str(error).split("Invoked with")[0].rpartition(" was false. ")[2].strip()
    return "", ""


@newest
@pytest.mark.usefixtures("pools_of_onnxruntime")
def test_run_async_passes_the_same_to_its_callback_as_onnxruntime(
    chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_by(module: Any) -> list[Any]:
        told: list[Any] = []
        done = threading.Semaphore(0)

        def unraisable(args: Any) -> None:
            told.append((args.exc_value, str(args.object)))
            done.release()

        monkeypatch.setattr("sys.unraisablehook", unraisable)
        error = MineError("late")

        def callback(results: Any, user_data: Any, text: str) -> None:
            told.append(([result.tolist() for result in results], user_data, text))
            raise error

        session = module.InferenceSession(chain, providers=["CPUExecutionProvider"])
        for x in (np.ones((1, 8), np.float32), np.ones((2, 9), np.float32)):
            session.run_async(None, {"x": x}, callback, "mine")
            assert done.acquire(timeout=30)
        with pytest.raises(TypeError) as caught:
            session.run_async(None, {"x": np.ones((1, 8), np.float32)}, 3, "mine")
        assert told[1][0] is told[3][0] is error
        told[1], told[3] = told[1][1], told[3][1]
        return [*told, str(caught.value).split("Invoked with")[0]]

    assert told_by(ort) == told_by(real)


WRONG: dict[str, Callable[[Any, str], Any]] = {
    "no constructor of the data": lambda m, _: m.OrtEpContextData(),
    "no constructor of the buffer": lambda m, _: m.OrtEpContextDataBuffer(),
    "a place with a number as file": lambda m, _: m.OrtExternalInitializerInfo(3, 1, 2),
    "a place with a negative size": lambda m, _: m.OrtExternalInitializerInfo("a", 1, -2),
    "a place that is too far": lambda m, _: m.OrtExternalInitializerInfo("a", 2**63, 2),
    "a place before the file": lambda m, _: m.OrtExternalInitializerInfo("a", -1, 2),
    "both kinds of places": lambda m, chain: m.ModelCompiler(
        m.SessionOptions(), chain, external_initializers_file_path="w", get_initializer_location_func=print
    ),
    "a write function that is none": lambda m, chain: m.ModelCompiler(
        m.SessionOptions(), chain
    ).set_ep_context_data_write_func(None),
    "a write function that is a number": lambda m, chain: m.ModelCompiler(
        m.SessionOptions(), chain
    ).set_ep_context_data_write_func(3),
}


@newest
@pytest.mark.parametrize("name", WRONG)
def test_wrong_uses_of_functions_end_as_in_onnxruntime(name: str, chain: str) -> None:
    theirs = outcome(lambda: WRONG[name](real, chain))
    assert outcome(lambda: WRONG[name](ort, chain)) == theirs


def test_the_location_of_an_initializer_reads_as_in_onnxruntime() -> None:
    for module in (ort, real):
        place = module.OrtExternalInitializerInfo("a.bin", 64, 32)
        assert (place.filepath, place.file_offset, place.byte_size) == ("a.bin", 64, 32)
        assert place != module.OrtExternalInitializerInfo("a.bin", 64, 32)
        with pytest.raises(AttributeError, match="has no setter"):
            place.filepath = "b.bin"
