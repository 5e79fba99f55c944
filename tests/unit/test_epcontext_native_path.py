"""Where QNN opens context binaries through the system's code page, it never gets a path with other characters."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from qnnbridge.errors import ContextUnusable
from qnnbridge_host.model import paths as native_path
from qnnbridge_host.model.compiled_checks import path_for_qnn
from qnnbridge_host.model.source import ModelSource

MODELS = Path(__file__).parents[1] / "models"


@pytest.fixture(params=["ü", "模型"])
def compiled(tmp_path: Path, request: pytest.FixtureRequest) -> ModelSource:
    folder = tmp_path / request.param
    shutil.copytree(MODELS / "compiled", folder)
    return ModelSource.open(folder / "F.onnx")


@pytest.fixture
def code_page(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(native_path, "BY_CODE_PAGE", True)
    return monkeypatch


def test_on_other_systems_the_path_is_not_changed(compiled: ModelSource) -> None:
    assert path_for_qnn(compiled) == compiled.path


def test_the_short_name_of_the_folder_replaces_a_non_ascii_path(
    code_page: pytest.MonkeyPatch, compiled: ModelSource
) -> None:
    code_page.setattr(native_path, "short_path", lambda _path: "C:\\MODELS~1")
    assert path_for_qnn(compiled) in ("C:\\MODELS~1/F.onnx", "C:\\MODELS~1\\F.onnx")


def test_without_a_short_name_the_path_is_refused_with_the_fix(
    code_page: pytest.MonkeyPatch, compiled: ModelSource
) -> None:
    code_page.setattr(native_path, "short_path", lambda path: path)
    with pytest.raises(ContextUnusable, match=r"F\.onnx cannot be loaded from its folder") as refused:
        path_for_qnn(compiled)
    assert "no short names" in str(refused.value.cause)
    assert "plain English name" in str(refused.value.fix)


def test_a_model_without_a_context_binary_may_have_any_path(code_page: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code_page.setattr(native_path, "short_path", lambda path: path)
    folder = tmp_path / "ü"
    folder.mkdir()
    shutil.copy(MODELS / "mul_1.onnx", folder)
    source = ModelSource.open(folder / "mul_1.onnx")
    assert path_for_qnn(source) == source.path
