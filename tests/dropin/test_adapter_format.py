"""`AdapterFormat` against onnxruntime's own: the same files, values and errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnxruntime as real
from onnx import TensorProto, helper

import qnnbridge.ort as ort

pytestmark = pytest.mark.process

# Older releases lack some names and have other error texts.
newest = pytest.mark.skipif(
    tuple(map(int, real.__version__.split(".")[:2])) < (1, 32), reason="the texts are those of onnxruntime 1.32"
)

VALUES = {
    "float": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.ones((2, 1), np.float16),
    "number": np.arange(-3, 3, dtype=np.int64),
}


def written(module: Any, path: Path, values: dict[str, Any] = VALUES) -> bytes:
    adapter = module.AdapterFormat()
    adapter.set_adapter_version(7)
    adapter.set_model_version(9)
    adapter.set_parameters({name: module.OrtValue.ortvalue_from_numpy(value) for name, value in values.items()})
    adapter.export_adapter(os.fspath(path))
    return path.read_bytes()


def read(module: Any, path: Path) -> tuple[Any, ...]:
    adapter = module.AdapterFormat.read_adapter(os.fspath(path))
    found = {name: value.numpy().tolist() for name, value in adapter.get_parameters().items()}
    return (
        adapter.get_format_version(),
        adapter.get_adapter_version(),
        adapter.get_model_version(),
        dict(sorted(found.items())),
    )


def test_adapter_files_equal_those_of_onnxruntime(tmp_path: Path) -> None:
    # The order of parameters in a file is that of a hash table; a single parameter has only one order.
    one = {"float": VALUES["float"]}
    assert written(ort, tmp_path / "ours", one) == written(real, tmp_path / "theirs", one)
    written(ort, tmp_path / "ours")
    written(real, tmp_path / "theirs")
    files = ("ours", "theirs")
    assert len({str(read(module, tmp_path / name)) for module in (ort, real) for name in files}) == 1


def test_a_relative_path_is_resolved_in_the_folder_of_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(real, tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    again = ort.AdapterFormat.read_adapter("a")
    again.export_adapter("b")
    assert read(real, tmp_path / "b") == read(real, tmp_path / "a")


def outcome(attempt: Callable[[Any], Any], module: Any) -> tuple[str, str]:
    try:
        attempt(module)
    except Exception as error:
        builtin = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
        return builtin.__name__, str(error).split("Invoked with")[0]
    return "", ""


WRONG: dict[str, Callable[[Any], Any]] = {
    "no file": lambda m: m.AdapterFormat.read_adapter("not there"),
    "no adapter": lambda m: m.AdapterFormat.read_adapter(__file__),
    "a path": lambda m: m.AdapterFormat.read_adapter(Path("a")),
    "no folder": lambda m: m.AdapterFormat().export_adapter("/not/there/a"),
    "a path to write": lambda m: m.AdapterFormat().export_adapter(Path("a")),
    "a version": lambda m: m.AdapterFormat().set_adapter_version("1"),
    "a large version": lambda m: m.AdapterFormat().set_model_version(2**40),
    "an array": lambda m: m.AdapterFormat().set_parameters({"p": np.zeros(3)}),
    "no adapter format": lambda m: m.AdapterFormat(3).get_format_version(),
}


@newest
@pytest.mark.parametrize("name", WRONG)
def test_wrong_uses_of_adapters_end_as_in_onnxruntime(name: str) -> None:
    assert outcome(WRONG[name], ort) == outcome(WRONG[name], real)


def test_an_empty_adapter_can_be_written_and_read() -> None:
    for module in (real, ort):
        adapter = module.AdapterFormat()
        assert (adapter.get_format_version(), adapter.get_parameters()) == (1, {})
        adapter.set_parameters({})
        assert adapter.get_parameters() == {}


@newest
def test_strings_are_refused_when_the_adapter_is_written(tmp_path: Path) -> None:
    """Get the values from a run, since there is no other way to create them."""
    data = helper.make_model(
        helper.make_graph(
            [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
            [helper.make_tensor_value_info("y", TensorProto.STRING, [1])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    ).SerializeToString()
    for module in (real, ort):
        session = module.InferenceSession(data, providers=["CPUExecutionProvider"])
        (text,) = session.run_with_ort_values(
            ["y"], {"x": module.OrtValue.ortvalue_from_numpy(np.ones(1, np.float32))}
        )
        adapter = module.AdapterFormat()
        adapter.set_parameters({"s": text})
        with pytest.raises(RuntimeError, match="parameter 's' has element type STRING"):
            adapter.export_adapter(str(tmp_path / "a"))
        assert not (tmp_path / "a").exists()
