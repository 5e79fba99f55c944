"""Files that are written completely or not at all, and the folders that are created for them."""

from __future__ import annotations

import ntpath
import os
from pathlib import Path

import pytest

from qnnbridge_os import files


def test_a_missing_drive_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drive of Windows is its own parent folder."""
    tried: list[str] = []

    def mkdir(place: str, mode: int) -> None:
        tried.append(place)
        raise FileNotFoundError(place)

    monkeypatch.setattr(os, "path", ntpath)
    monkeypatch.setattr(ntpath, "exists", lambda place: False)
    monkeypatch.setattr(ntpath, "abspath", lambda place: place)
    monkeypatch.setattr(os, "mkdir", mkdir)
    for folder in ("Z:\\cache\\models", "\\\\server\\share\\models"):
        with pytest.raises(FileNotFoundError):
            files.make_folders(folder)
    assert tried == ["Z:\\", "\\\\server\\share\\"]


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    longest = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    files.write_whole(longest, b"data", durable=True)
    assert longest.read_bytes() == b"data"
    assert os.listdir(tmp_path) == [longest.name]


def test_temporary_files_of_a_killed_process_have_a_recognisable_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(source: str, target: object) -> None:
        left.append(os.path.basename(source))
        raise OSError

    left: list[str] = []
    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(OSError):
        files.write_whole(tmp_path / "manifest.json", b"data")
    assert left[0].startswith(files.TEMPORARY)
    assert os.listdir(tmp_path) == []
