"""The cache's folder and size, and the sessions that use the cache."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from qnnbridge_host.cache.key import is_small, reason_against
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.model_records import CacheSettings
from qnnbridge_protocol.settings import MAX_BYTES, MIN_MODEL_BYTES, cache_settings
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec

onnx = pytest.importorskip("onnx")
MODELS = Path(__file__).parents[1] / "models"
QNN = "QNNExecutionProvider"
CPU = "CPUExecutionProvider"


def test_by_default_the_cache_is_on_and_in_the_cache_folder_of_the_user() -> None:
    settings = cache_settings({})
    assert settings.enabled
    assert Path(settings.folder).name in ("qnnbridge", "Cache")
    assert (settings.max_bytes, settings.min_model_bytes) == (MAX_BYTES, MIN_MODEL_BYTES)


@pytest.mark.parametrize("text", ["0", "off", "No", "FALSE"])
def test_the_cache_can_be_switched_off(text: str) -> None:
    assert not cache_settings({"QNNBRIDGE_CACHE": text}).enabled


def test_a_relative_folder_is_resolved_when_the_settings_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cache_settings({"QNNBRIDGE_CACHE_DIR": "c"}).folder == str(tmp_path / "c")
    assert cache_settings({"QNNBRIDGE_CACHE_DIR": "~/c"}).folder == os.path.expanduser("~/c")


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1000), ("5k", 5120), ("2 MiB", 2 * 1024**2), ("1GB", 1024**3), ("1t", 1024**4)],
)
def test_sizes_may_have_units(text: str, size: int) -> None:
    assert cache_settings({"QNNBRIDGE_CACHE_MAX_BYTES": text}).max_bytes == size


def test_an_invalid_size_is_reported_and_ignored() -> None:
    settings = cache_settings({"QNNBRIDGE_CACHE_MAX_BYTES": "much"})
    assert settings.max_bytes == MAX_BYTES
    assert "QNNBRIDGE_CACHE_MAX_BYTES='much'" in settings.problems[0]


# --- sessions that use the cache ---

SETTINGS = CacheSettings("/cache")
MODEL = MODELS / "f.onnx"
SPEC = SessionSpec(model_path=str(MODEL))


def against(spec: SessionSpec = SPEC, wanted: bool | None = None, model: Path = MODEL) -> str | None:
    return reason_against(ModelSource.open(model), spec, dataclasses.replace(SETTINGS, wanted=wanted))


def test_a_model_for_qnn_is_cached() -> None:
    assert against() is None
    assert against(dataclasses.replace(SPEC, providers=(ProviderSpec(QNN, {"backend_type": "htp"}),))) is None
    assert against(dataclasses.replace(SPEC, providers=(ProviderSpec(QNN), ProviderSpec(CPU)))) is None


def test_small_models_are_cached_only_if_the_application_requests_it() -> None:
    small = MODELS / "mul_1.onnx"
    assert "130 bytes" in (against(model=small) or "")
    assert against(wanted=True, model=small) is None
    assert is_small(ModelSource.open(small), SETTINGS)
    assert not is_small(ModelSource.open(small), dataclasses.replace(SETTINGS, wanted=True))


def test_external_data_counts_towards_the_size(tmp_path: Path) -> None:
    model = onnx.load(MODELS / "f.onnx")
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "m.onnx").stat().st_size < MIN_MODEL_BYTES
    assert against(model=tmp_path / "m.onnx") is None


def spec(provider: dict[str, str] | None = None, **changes: object) -> SessionSpec:
    return dataclasses.replace(SPEC, providers=(ProviderSpec(QNN, provider or {}),), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (spec({"backend_type": "gpu"}), "backend is gpu"),
        (spec({"backend_path": "/x/libQnnCpu.so"}), "backend is cpu"),
        (spec({"backend_path": "C:\\x\\QnnGpu.dll"}), "backend is gpu"),
        (spec({"dump_json_qnn_graph": "1"}), "dump_json_qnn_graph"),
        (spec({"enable_framework_op_trace": "1"}), "enable_framework_op_trace"),
        (spec({"profiling_level": "basic"}), "profiling"),
        (spec({"op_packages": "A:b:c"}), "op_packages"),
        (spec(custom_op_libraries=("/x/lib.so",)), "custom operators"),
        (spec(options={"optimized_model_filepath": "/x/m.onnx"}), "optimized_model_filepath"),
        (spec(config_entries={"ep.context_enable": "1"}), "ep.context_enable"),
        (spec(config_entries={"ep.qnnexecutionprovider.profiling_level": "detailed"}), "profiling"),
        (spec(config_entries={"session.disable_model_compile": "1"}), "session.disable_model_compile"),
        (dataclasses.replace(SPEC, providers=(ProviderSpec(CPU),)), "first provider"),
        (dataclasses.replace(SPEC, providers=(ProviderSpec(CPU), ProviderSpec(QNN))), "first provider"),
    ],
)
def test_sessions_with_compile_options_are_not_cached(session: SessionSpec, words: str) -> None:
    assert words in (against(session) or "")
    assert words in (against(session, wanted=True) or "")


@pytest.mark.parametrize(
    "session",
    [
        spec({"backend_path": "/x/libQnnHtp.so"}),
        spec({"backend_path": "QnnHtp.dll"}),
        spec({"dump_json_qnn_graph": "0", "profiling_level": "off"}),
        spec(config_entries={"ep.context_enable": "0"}),
    ],
)
def test_disabled_compile_options_do_not_prevent_caching(session: SessionSpec) -> None:
    assert against(session) is None


def test_a_compiled_model_is_not_cached(tmp_path: Path) -> None:
    compiled = MODELS / "compiled" / "F.onnx"
    assert against(model=compiled, wanted=True) == "the model is compiled already"


def test_a_file_that_is_not_a_model_is_left_to_the_host(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model" * 10_000)
    assert against(model=tmp_path / "m.onnx") == "the model is not an ONNX model"


def test_the_environment_overrides_the_application() -> None:
    off = dataclasses.replace(SETTINGS, enabled=False, wanted=True)
    assert "QNNBRIDGE_CACHE" in (reason_against(ModelSource.open(MODEL), SPEC, off) or "")
    assert against(wanted=False) == "cache=False"
