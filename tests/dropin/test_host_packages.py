"""The version of the host's packages, from the metadata files alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qnnbridge.ort._environment import host_package_version


def installed(folder: Path, name: str, version: str) -> str:
    notes = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    notes.mkdir(parents=True)
    (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return str(folder)


def test_of_two_installations_the_version_is_that_of_the_imported_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNBRIDGE_HOST_PYTHON", sys.executable)
    first = installed(tmp_path / "first", "onnxruntime", "1.31.1")
    second = installed(tmp_path / "second", "onnxruntime", "1.32.0")
    for path, version in (((first, second), "1.31.1"), ((second, first), "1.32.0")):
        monkeypatch.setattr(sys, "path", [*path])
        assert host_package_version("onnxruntime") == version


def test_the_package_of_the_first_generation_counts_as_onnxruntime_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNBRIDGE_HOST_PYTHON", sys.executable)
    for folder, version, told in (("one", "1.24.4", "1.24.4"), ("two", "2.7.0", None)):
        monkeypatch.setattr(sys, "path", [installed(tmp_path / folder, "onnxruntime-qnn", version)])
        assert host_package_version("onnxruntime") == told
