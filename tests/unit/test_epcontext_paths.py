"""Allowed paths of a compiled model's files: the rules of Windows and of POSIX both apply on every machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qnnbridge_host.model.paths import leaves_folder, path_problem

GOOD = [
    "m_qnn.bin",
    "sub/m_qnn.bin",
    "sub\\m_qnn.bin",
    "größe/重み.bin",
    "a.b.c.bin",
    ".hidden",
    "x" * 200,
    "console.bin",
]
BAD = {
    "": "empty",
    "   ": "empty",
    "/etc/passwd": "absolute",
    "C:\\x.bin": "absolute",
    "C:/x.bin": "absolute",
    "\\x.bin": "absolute",
    "C:x.bin": "drive",
    "x.bin:stream": "colon",
    "\\\\server\\share\\x.bin": "network",
    "//server/share/x.bin": "network",
    "\\\\?\\C:\\x.bin": "network",
    "\\\\.\\pipe\\x": "network",
    "../x.bin": "leads out",
    "..\\x.bin": "leads out",
    "sub/../x.bin": "leads out",
    "sub\\..\\..\\x.bin": "leads out",
    "..": "leads out",
    "a..b_qnn.bin": "two dots",
    "sub../x.bin": "two dots",
    "x\0.bin": "NUL",
    "NUL": "device",
    "con.bin": "device",
    "sub/COM1.bin": "device",
    "sub\\lpt9": "device",
    "AUX .bin": "device",
}


@pytest.mark.parametrize("path", GOOD)
def test_a_path_inside_of_the_folder_is_accepted(path: str) -> None:
    assert path_problem(path) is None


@pytest.mark.parametrize("path", BAD)
def test_any_other_path_is_refused_with_an_explanation(path: str) -> None:
    assert BAD[path] in (path_problem(path) or "nothing")


def test_a_link_to_a_file_outside_of_the_folder_is_detected(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "real.bin").write_bytes(b"x")
    (folder / "inner" / "real.bin").write_bytes(b"x")
    os.symlink(tmp_path / "real.bin", folder / "out.bin")
    os.symlink(folder / "inner" / "real.bin", folder / "in.bin")
    assert leaves_folder(str(folder), "out.bin") == os.path.realpath(tmp_path / "real.bin")
    assert leaves_folder(str(folder), "in.bin") is None
    assert leaves_folder(str(folder), "inner/real.bin") is None


def test_a_folder_that_is_itself_a_link_cannot_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    assert leaves_folder(str(tmp_path / "link"), "m.bin") is None
