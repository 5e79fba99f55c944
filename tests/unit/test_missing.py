"""Explanations of missing files: the folder, a similar name, links, and a current folder that was removed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qnnbridge_os.missing import why_missing
from qnnbridge_tools.output import loss_error


@pytest.mark.parametrize("given", ["pent.onnx", "pnet", "PENT.onnx", "pnet.onn"])
def test_a_misspelt_file_gets_the_similar_name_in_its_folder(given: str, tmp_path: Path) -> None:
    for name in ("pnet.onnx", "other.onnx", "w.bin"):
        (tmp_path / name).touch()
    why = why_missing(tmp_path / given)
    assert why["cause"] == f"The folder {tmp_path} does not contain it."
    assert why["fix"] == f'Did you mean "{tmp_path / "pnet.onnx"}"?'


def test_a_common_suffix_does_not_make_a_name_similar(tmp_path: Path) -> None:
    (tmp_path / "rnet.onnx").touch()
    assert why_missing(tmp_path / "nope.onnx", "Give a model.")["fix"] == "Give a model."


def test_a_relative_path_is_suggested_as_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "detector.onnx").touch()
    monkeypatch.chdir(tmp_path)
    given = os.path.join("models", "detecter.onnx")
    assert why_missing(given)["fix"] == f'Did you mean "{os.path.join("models", "detector.onnx")}"?'


def test_the_first_missing_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    why = why_missing(tmp_path / "modles" / "a" / "m.onnx")
    assert why["cause"] == f"The folder {tmp_path / 'modles'} does not exist."
    assert str(tmp_path / "models") in why["fix"]
    (tmp_path / "file").touch()
    assert why_missing(tmp_path / "file" / "m.onnx")["cause"] == f"The folder {tmp_path / 'file'} is not a folder."


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_a_link_to_a_missing_file_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").symlink_to("gone.onnx")
    assert why_missing(tmp_path / "m.onnx")["cause"] == "It is a link to gone.onnx, which does not exist."


def test_an_operating_system_error_about_a_file_is_explained(tmp_path: Path) -> None:
    found = loss_error(FileNotFoundError(errno.ENOENT, "No such file", str(tmp_path / "a.json")))
    assert found.cause == f"The folder {tmp_path} does not contain it."


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove a folder that a process uses")
@pytest.mark.parametrize("words", [["inspect", "m.onnx"], ["fix", "m.onnx", "-o", "o.onnx"], ["chat", "folder"]])
def test_a_command_in_a_removed_folder_reports_this(words: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, sys; os.rmdir(os.getcwd()); sys.argv = ['qnnbridge', *sys.argv[1:]]; "
        "from qnnbridge_tools.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=gone, capture_output=True, text=True, timeout=120
    )
    assert done.returncode in (1, 2)
    assert "The current folder was removed." in done.stderr
    assert "Fix: Change to a folder that exists." in done.stderr
