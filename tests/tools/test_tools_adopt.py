"""A compiled model without a manifest is reported once, and `qnnbridge compile --adopt` writes a manifest."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from lab.attack import compiled
from tests.fakes.commands import qnnbridge as command_line

import qnnbridge
from qnnbridge import errors
from qnnbridge_host.model.manifest import read_manifest
from qnnbridge_host.model.source import ModelSource

DAMAGES = 120


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("F.onnx", "F_qnn.bin"):
        shutil.copy(compiled.COMPILED / name, tmp_path)
    return tmp_path / "F.onnx"


def run(*arguments: str | Path) -> tuple[int, str]:
    done = command_line("compile", "--adopt", *arguments)
    return done.returncode, done.output


def test_the_manifest_records_both_files_unchanged(model: Path) -> None:
    code, said = run(model)
    assert code == 0, said
    assert "records the present state of F.onnx, F_qnn.bin" in said
    manifest = read_manifest(model)
    assert manifest is not None
    assert [record.name for record in manifest.files] == ["F.onnx", "F_qnn.bin"]
    assert manifest.extra["adopted"] is True


def test_a_manifest_is_not_replaced_without_permission(model: Path) -> None:
    run(model)
    code, said = run(model)
    assert code == 2
    assert "already has a manifest" in said
    code, said = run(model, "--overwrite", "--json")
    assert code == 0
    assert json.loads(said)["adopted"][0]["model"] == "F.onnx"


def test_an_incomplete_or_uncompiled_model_gets_no_manifest(model: Path) -> None:
    model.with_name("F_qnn.bin").write_bytes(b"")
    code, said = run(model)
    assert code == 1
    assert "F_qnn.bin" in said
    assert not model.with_name("F.qnnbridge.json").exists()
    code, said = run(compiled.COMPILED.parent / "mul_1.onnx")
    assert code == 2
    assert "is not a compiled model" in said


def test_a_file_that_changes_while_its_session_is_created_is_detected(model: Path) -> None:
    source = ModelSource.open(model)
    source.check_unchanged()
    os.utime(model.with_name("F_qnn.bin"), ns=(1, 1))
    with pytest.raises(
        errors.ModelChanged, match=r"The file F_qnn\.bin of the model F\.onnx changed while it was loaded"
    ):
        source.check_unchanged()


@pytest.mark.simulator
@pytest.mark.process
def test_a_session_reports_once_that_nothing_can_be_compared(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("onnxruntime_qnn")
    with caplog.at_level(logging.WARNING), qnnbridge.Host() as host:
        for _ in range(2):
            session = qnnbridge.InferenceSession(model, host=host, **compiled.OPTIONS)
        (first,) = session.get_inputs()
        expected = session.run(None, {first.name: np.ones(first.shape, np.float32)})[0]
        said = [record.message for record in caplog.records if "without a manifest" in record.message]
        assert len(said) == 1
        assert f"qnnbridge compile --adopt {model}" in said[0]
        run(model)
        caplog.clear()
        session = qnnbridge.InferenceSession(model, host=host, **compiled.OPTIONS)
        assert np.array_equal(session.run(None, {first.name: np.ones(first.shape, np.float32)})[0], expected)
        assert "manifest" not in caplog.text


@pytest.mark.simulator
@pytest.mark.process
def test_damage_with_kept_dates_never_reaches_qnn() -> None:
    """The complete attack is ``python -m lab.attack compiled``."""
    pytest.importorskip("onnxruntime_qnn")
    report = compiled.attack(DAMAGES, seed=1)
    assert report.good, str(report)


def test_a_damaged_model_keeps_its_manifest_and_so_does_a_valid_one_in_the_same_call(
    model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("F.onnx", "F_qnn.bin"):
        shutil.copy(compiled.COMPILED / name, other)
    run(model, other / "F.onnx")
    before = [read_manifest(model), read_manifest(other / "F.onnx")]
    (other / "F_qnn.bin").write_bytes(b"")
    code, said = run(model, other / "F.onnx", "--overwrite")
    assert code == 1, said
    assert [read_manifest(model), read_manifest(other / "F.onnx")] == before
