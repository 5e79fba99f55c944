"""``ModelCompiler.set_ep_context_binary_information``: the path of the context binary of a model that is compiled
to bytes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxruntime_qnn")

import qnnbridge.ort as ours  # noqa: E402
from qnnbridge.errors import CompileFailed, OptionError  # noqa: E402
from qnnbridge_host.model.scan import scan_model  # noqa: E402
from tests import needs  # noqa: E402
from tests.dropin.wrong_uses import MUL, X  # noqa: E402

pytestmark = pytest.mark.simulator

TIMEOUT_S = 100
CONTEXT_PATH = "ep.context_file_path"


def options(context_path: str | None = None) -> Any:
    made = ours.SessionOptions()
    made.add_provider("QNNExecutionProvider", {"soc_model": "60"})
    if context_path is not None:
        made.add_session_config_entry(CONTEXT_PATH, context_path)
    return made


def compiler(**keywords: Any) -> Any:
    return ours.ModelCompiler(options(), MUL, **keywords)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def to_bytes(made: Any) -> bytes:
    return bytes(made.compile_to_bytes())


def to_stream(made: Any) -> bytes:
    pieces: list[bytes] = []
    made.compile_to_stream(pieces.append)
    return b"".join(pieces)


@pytest.mark.parametrize(("place", "compiled"), [("bins/", to_bytes), ("bins/net.onnx", to_stream)])
def test_a_model_given_as_bytes_runs_with_the_context_binary_in_the_configured_folder(
    place: str, compiled: Callable[[Any], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = compiler()
    made.set_ep_context_binary_information("bins/", "net.onnx")
    model = compiled(made)
    assert files_in(tmp_path) == ["bins/net_qnn.bin"]
    assert [node.cache_path for node in scan_model(model).ep_contexts] == ["net_qnn.bin"]
    session = ours.InferenceSession(model, options(place))
    assert session.get_providers()[0] == "QNNExecutionProvider"
    expected = ours.InferenceSession(MUL, providers=["CPUExecutionProvider"]).run(None, {"X": X})[0]
    assert np.allclose(session.run(None, {"X": X})[0], expected, rtol=1e-2)


@pytest.mark.parametrize("name", needs.some(["a.b.onnx", "net.onnx", "übung.onnx"]))
def test_the_context_binary_has_the_same_name_as_in_onnxruntime(name: str, tmp_path: Path) -> None:
    if not hasattr(ort.ModelCompiler, "set_ep_context_binary_information"):
        pytest.skip(f"onnxruntime {ort.__version__} has no such method yet")
    folders = {kind: tmp_path / kind for kind in ("theirs", "ours")}
    for folder in folders.values():
        folder.mkdir()
    made = compiler()
    made.set_ep_context_binary_information(f"{folders['ours']}/", name)
    models = {
        "theirs": compiled_by_onnxruntime(f"{folders['theirs']}/", name, tmp_path / "theirs.onnx"),
        "ours": to_bytes(made),
    }
    for kind, model in models.items():
        assert [node.cache_path for node in scan_model(model).ep_contexts] == files_in(folders[kind])
    assert files_in(tmp_path / "ours") == files_in(tmp_path / "theirs")


def test_a_name_without_an_extension_is_the_stem_even_if_its_folder_contains_dots(tmp_path: Path) -> None:
    """onnxruntime-qnn 2.7.0 truncates such a path at the folder's dot, and writes outside of the folder."""
    folder = tmp_path / "v1.2"
    folder.mkdir()
    made = compiler()
    made.set_ep_context_binary_information(f"{folder}/", "net")
    assert [node.cache_path for node in scan_model(to_bytes(made)).ep_contexts] == ["net_qnn.bin"]
    assert files_in(tmp_path) == ["v1.2/net_qnn.bin"]


# In a separate process: QNN can be registered once per process, and tests of the engine do that in this one.
THEIRS = """
import sys
import onnxruntime as ort
import onnxruntime_qnn

model, place, name, target = sys.argv[1:]
provider = onnxruntime_qnn.get_ep_name()
ort.register_execution_provider_library(provider, onnxruntime_qnn.get_library_path())
devices = [device for device in ort.get_ep_devices() if device.ep_name == provider][:1]
chosen = ort.SessionOptions()
chosen.add_provider_for_devices(devices, {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": "60"})
made = ort.ModelCompiler(chosen, model)
made.set_ep_context_binary_information(place, name)
with open(target, "wb") as file:
    file.write(made.compile_to_bytes())
"""


def compiled_by_onnxruntime(place: str, name: str, target: Path) -> bytes:
    subprocess.run([sys.executable, "-c", THEIRS, MUL, place, name, str(target)], check=True, timeout=TIMEOUT_S)
    return target.read_bytes()


def test_the_context_binary_is_written_next_to_the_model_whatever_folder_is_set(tmp_path: Path) -> None:
    made = compiler()
    made.set_ep_context_binary_information(f"{tmp_path / 'elsewhere'}/", "other.onnx")
    made.compile_to_file(str(tmp_path / "net.onnx"))
    assert {"net.onnx", "net_qnn.bin"} <= set(files_in(tmp_path))
    assert not (tmp_path / "elsewhere").exists()


def test_an_embedded_context_binary_needs_no_folder(tmp_path: Path) -> None:
    made = compiler(embed_compiled_data_into_model=True)
    made.set_ep_context_binary_information(f"{tmp_path}/", "net.onnx")
    model = made.compile_to_bytes()
    assert files_in(tmp_path) == []
    assert ours.InferenceSession(model, options()).run(None, {"X": X})


def test_compiling_again_replaces_the_context_binary_and_the_last_setting_is_used(tmp_path: Path) -> None:
    made = compiler()
    made.set_ep_context_binary_information(f"{tmp_path / 'first'}/", "net.onnx")
    made.set_ep_context_binary_information(f"{tmp_path}/", "net.onnx")
    (tmp_path / "net_qnn.bin").write_bytes(b"an older one")
    model = made.compile_to_bytes()
    assert files_in(tmp_path) == ["net_qnn.bin"]
    assert ours.InferenceSession(model, options(f"{tmp_path}/")).run(None, {"X": X})


def test_without_a_folder_for_the_context_binary_the_error_names_the_alternatives(tmp_path: Path) -> None:
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.InvalidArgument) as caught:
        compiler().compile_to_bytes()
    error: Any = caught.value
    assert "set_ep_context_binary_information" in error.fix
    assert "embed_compiled_data_into_model" in error.fix


@pytest.mark.parametrize("name", ["a..b.onnx", "folder/", "x" * 300])
def test_a_name_under_which_qnn_would_not_find_the_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be named after") as caught:
        compiler().set_ep_context_binary_information(f"{tmp_path}/", name)
    assert caught.value.cause
    assert caught.value.fix


def test_a_name_that_is_not_a_string_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="model_name must be a str"):
        compiler().set_ep_context_binary_information(f"{tmp_path}/", 17)


def test_a_failed_compilation_leaves_no_file_and_the_error_names_the_given_folder(tmp_path: Path) -> None:
    blocked = tmp_path / "net_qnn.bin"
    blocked.mkdir()
    made = compiler()
    made.set_ep_context_binary_information(f"{tmp_path}/", "net.onnx")
    with pytest.raises(CompileFailed, match="cannot be written") as caught:
        made.compile_to_bytes()
    assert str(tmp_path) in str(caught.value)
    assert ".qnnbridge-compile" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [blocked]


def test_a_missing_model_creates_no_folder(tmp_path: Path) -> None:
    shutil.copy(MUL, tmp_path / "model.onnx")
    made = ours.ModelCompiler(options(), str(tmp_path / "model.onnx"))
    made.set_ep_context_binary_information(f"{tmp_path / 'bins'}/", "net.onnx")
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.InvalidArgument, match="does not exist"):
        made.compile_to_bytes()
    assert list(tmp_path.iterdir()) == []
