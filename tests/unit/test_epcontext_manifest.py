"""The manifest of a compiled model is written completely or not at all, and refused if it cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests import needs

from qnnbridge_host.model.manifest import (
    SCHEMA,
    CompiledManifest,
    FileRecord,
    manifest_path,
    read_manifest,
    write_manifest,
)
from qnnbridge_protocol.errors import ContextUnusable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m_ctx.onnx").write_bytes(b"the model")
    (tmp_path / "m_ctx_qnn.bin").write_bytes(b"the binary" * 1000)
    return tmp_path


def written(folder: Path, **more: Any) -> CompiledManifest:
    return write_manifest(folder, "m_ctx.onnx", ["m_ctx_qnn.bin"], **more)


def change(folder: Path, **fields: Any) -> None:
    path = folder / "m_ctx.qnnbridge.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_the_manifest_is_in_the_folder_of_the_model_under_its_name(folder: Path) -> None:
    written(folder)
    assert manifest_path(folder / "m_ctx.onnx") == str(folder / "m_ctx.qnnbridge.json")
    assert {path.name for path in folder.iterdir()} == {"m_ctx.onnx", "m_ctx_qnn.bin", "m_ctx.qnnbridge.json"}


def test_a_written_manifest_is_read_back(folder: Path) -> None:
    made = written(
        folder,
        source_name="größe.onnx",
        source_sha256="ab" * 32,
        versions={"onnxruntime": "1.31.1", "qnn_sdk": "2.51.0"},
        soc_models=[60, 88],
        htp_arch=73,
        options={"soc_model": "60,88"},
        extra={"validation": {"max_difference": 0.25}},
    )
    read = read_manifest(folder / "m_ctx.onnx")
    assert read == made == read_manifest(folder / "m_ctx.qnnbridge.json")
    assert read is not None
    assert [(record.name, record.size) for record in read.files] == [("m_ctx.onnx", 9), ("m_ctx_qnn.bin", 10_000)]
    assert read.record_of("m_ctx_qnn.bin") == FileRecord.of(folder, "m_ctx_qnn.bin")
    assert read.record_of("other") is None
    assert read.versions["qnnbridge"]
    assert read.created.endswith("+00:00")


def test_a_hash_in_upper_case_is_the_same_hash(folder: Path) -> None:
    made = written(folder)
    change(folder, files=[{"name": r.name, "size": r.size, "sha256": r.sha256.upper()} for r in made.files])
    assert read_manifest(folder / "m_ctx.onnx") == made


def test_a_model_without_manifest_has_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path / "m.onnx") is None
    assert read_manifest(tmp_path / "m.onnx" / "inside of a file") is None


def test_a_failure_leaves_the_old_manifest_and_no_temporary_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written(folder)
    (folder / "m_ctx_qnn.bin").write_bytes(b"another")

    def fails(*_: Any) -> None:
        raise OSError("no space left")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, step, fails)
            with pytest.raises(OSError, match="no space"):
                written(folder)
        assert read_manifest(folder / "m_ctx.onnx") == before
        assert len(list(folder.iterdir())) == 3


def test_the_manifest_reaches_the_disk_before_it_is_renamed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    for step in ("fsync", "replace"):
        real = getattr(os, step)
        monkeypatch.setattr(os, step, lambda *a, step=step, real=real: (steps.append(step), real(*a))[1])
    written(folder)
    assert steps[:2] == ["fsync", "replace"]


@needs.posix
def test_the_manifest_has_the_permissions_of_the_model(folder: Path) -> None:
    written(folder)
    assert (folder / "m_ctx.qnnbridge.json").stat().st_mode == (folder / "m_ctx.onnx").stat().st_mode


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"schema": 1}',
        b'{"schema": 1, "model": "m", "files": [{}]}',
        b'{"schema": 1, "model": "m", "files": 3}',
        b'{"schema": "1", "model": "m", "files": []}',
        b"[" * 100_000,
        b" " * 2_000_000,
    ],
)
def test_a_damaged_manifest_is_refused_and_not_ignored(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.qnnbridge.json").write_bytes(data)
    with pytest.raises(ContextUnusable, match=r"m\.qnnbridge\.json.*damaged|newer") as caught:
        read_manifest(tmp_path / "m.onnx")
    assert "delete the manifest" in (caught.value.fix or "")


def test_a_manifest_of_a_newer_qnnbridge_is_reported_as_such(folder: Path) -> None:
    written(folder)
    change(folder, schema=SCHEMA + 1)
    with pytest.raises(ContextUnusable, match="a newer qnnbridge wrote it") as caught:
        read_manifest(folder / "m_ctx.onnx")
    assert "Upgrade qnnbridge" in (caught.value.fix or "")


def test_fields_of_later_versions_are_ignored(folder: Path) -> None:
    made = written(folder)
    change(folder, color="blue")
    assert read_manifest(folder / "m_ctx.onnx") == made


@pytest.mark.parametrize("name", ["../m_qnn.bin", "/etc/passwd", "C:x.bin", "\\\\server\\x", "a..b.bin"])
def test_a_manifest_cannot_refer_to_files_in_other_folders(name: str, folder: Path) -> None:
    written(folder)
    change(folder, files=[{"name": name, "size": 1, "sha256": "0"}])
    with pytest.raises(ContextUnusable, match="damaged"):
        read_manifest(folder / "m_ctx.onnx")
