"""A session checks a compiled model first: a model that cannot run is never sent to the host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from qnnbridge_host.model.compatibility import HostTraits
from qnnbridge_host.model.compiled_checks import before_session
from qnnbridge_host.model.manifest import write_manifest
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.errors import CompiledModelRefused, ContextUnusable, InvalidProtobuf, OptionError
from qnnbridge_protocol.specs import ProviderSpec

pytest.importorskip("onnx")

from tests.unit import epcontext_models as models

MODELS = Path(__file__).parents[1] / "models"
QNN = (ProviderSpec("QNNExecutionProvider"),)
CPU = (ProviderSpec("CPUExecutionProvider"),)
HELLO = Hello(machine="x86_64", versions={"onnxruntime": "1.31.1", "onnxruntime_qnn": "2.7.0", "qnn_sdk": "2.51.0"})


def ask(model: Path | bytes, providers: Any = QNN, host: Any = HELLO, **entries: str) -> tuple[str, ...]:
    config = {key.replace("_", ".", 1): value for key, value in entries.items()}
    return before_session(ModelSource.open(model), providers, host, config)


def test_an_original_model_is_accepted_on_any_host() -> None:
    class Nothing:
        """Accessing the host for a model that is not compiled would start the host."""

    assert ask(MODELS / "q.onnx", host=Nothing()) == ()
    assert ask(MODELS / "q.onnx", CPU, host=Nothing()) == ()
    assert ask(b"no model at all", host=Nothing()) == ()


def test_a_complete_compiled_model_is_accepted(tmp_path: Path) -> None:
    path = models.real(tmp_path)
    assert ask(path) == ask(path, ()) == ask(path, (*QNN, *CPU)) == ()


def test_a_broken_compiled_model_is_refused(tmp_path: Path) -> None:
    path = models.real(tmp_path)
    (tmp_path / "a_qnn.bin").unlink()
    with pytest.raises(
        ContextUnusable, match=r"good\.onnx cannot run here: its context binary a_qnn\.bin is missing"
    ):
        ask(path)


def test_a_compiled_model_that_differs_from_its_manifest_is_refused(tmp_path: Path) -> None:
    path = models.real(tmp_path)
    write_manifest(tmp_path, "good.onnx", ["a_qnn.bin"])
    data = bytearray((tmp_path / "a_qnn.bin").read_bytes())
    data[34993] = 0xFF  # crashes QNN
    (tmp_path / "a_qnn.bin").write_bytes(data)
    with pytest.raises(ContextUnusable, match="differs from the manifest"):
        ask(path)


def test_files_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.real(tmp_path)
    write_manifest(tmp_path, "good.onnx", ["a_qnn.bin"])
    source = ModelSource.open(path)
    monkeypatch.setattr("qnnbridge_host.model.manifest.FileRecord.of", None)
    assert before_session(source, QNN, HELLO) == ()


def test_the_refusal_on_the_cpu_has_an_explanation_of_qnnbridge(tmp_path: Path) -> None:
    with pytest.raises(CompiledModelRefused) as caught:
        ask(models.real(tmp_path), CPU)
    text = str(caught.value)
    assert "good.onnx is a compiled model (EPContext) made by QNNExecutionProvider" in text
    assert "a session on the CPU needs the original model" in text
    assert "Request QNNExecutionProvider" in text
    assert "the original ONNX model" in text


def test_compiling_a_compiled_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompiledModelRefused, match=r"a session that compiles \(ep\.context_enable=1\)"):
        ask(models.real(tmp_path), ep_context_enable="1")
    assert ask(models.real(tmp_path), ep_context_enable="0") == ()


def test_the_chip_of_the_session_is_used_on_the_simulator(tmp_path: Path) -> None:
    path = models.real(tmp_path)
    models.retarget(tmp_path / "a_qnn.bin", "SC8480XP", 81)
    with pytest.raises(ContextUnusable, match=r"SoC 88 \(V81\); this host has QNN 2\.51 and simulates V73"):
        ask(path)
    for options in ({"soc_model": "88"}, {"soc_model": "SM8850"}, {"htp_arch": "81"}):
        assert ask(path, (ProviderSpec("QNNExecutionProvider", options),)) == ()


def test_a_recommended_recompilation_is_a_warning(tmp_path: Path) -> None:
    host = HostTraits("1.31.1", "2.7.0", "2.51.0", False, 88, 81)
    (warning,) = ask(models.real(tmp_path), host=host)
    assert warning.startswith("good.onnx: recompile recommended: compiled with QNN 2.51 for SoC 60 (V73)")


def test_a_host_without_qnn_is_left_to_report_that_itself(tmp_path: Path) -> None:
    assert ask(models.real(tmp_path), host=Hello(machine="x86_64", versions={"onnxruntime": "1.31.1"})) == ()


def test_a_context_binary_given_as_the_model_is_recognised(tmp_path: Path) -> None:
    models.real(tmp_path)
    with pytest.raises(InvalidProtobuf, match="it is a QNN context binary") as caught:
        ask(tmp_path / "a_qnn.bin")
    assert "Give the .onnx file that refers to the binary" in (caught.value.fix or "")


# --- models given as bytes -------------------------------------------------------------------------------


def test_models_given_as_bytes_refer_to_the_current_folder_or_the_context_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    data = models.real(tmp_path / "here").read_bytes()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ContextUnusable, match=r"<\d+ bytes> cannot run here: .* is missing"):
        ask(data)
    assert ask(data, ep_context_file_path=str(tmp_path / "here" / "any.onnx")) == ()
    monkeypatch.chdir(tmp_path / "here")
    assert ask(data) == ()


# --- disabled check --------------------------------------------------------------------------------------


def test_the_check_can_be_reduced_to_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.real(tmp_path)
    os.truncate(tmp_path / "a_qnn.bin", 500)
    monkeypatch.setenv("QNNBRIDGE_CONTEXT_CHECK", "warn")
    (warning,) = ask(path)
    assert "cannot run here" in warning
    with pytest.raises(CompiledModelRefused):
        ask(path, CPU)
    monkeypatch.setenv("QNNBRIDGE_CONTEXT_CHECK", "no")
    with pytest.raises(OptionError, match="QNNBRIDGE_CONTEXT_CHECK='no'"):
        ask(path)


# --- a path that must not be followed --------------------------------------------------------------------


def test_a_file_outside_of_the_folder_is_never_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    (tmp_path / "model").mkdir()
    path = models.edit(models.real(tmp_path / "model"), ep_cache_context=str(secret))
    source = ModelSource.open(path)
    assert source.files == ()
    with pytest.raises(ContextUnusable, match="absolute path"):
        before_session(source, QNN, HELLO)
