"""Temporary folders are removed by their process, or by the next process that creates such a folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tests import needs

from qnnbridge_host.cache.files import EARLIER_MARK, MARK, SETTLED_S, sweep, work_folder

HOLDS_ONE = """
import sys, time
from qnnbridge_host.cache.files import work_folder
with work_folder("test", sys.argv[1]) as folder:
    open(folder + "/weights", "w").close()
    print("there", flush=True)
    time.sleep(600)
"""


def age(folder: Path) -> None:
    then = time.time() - SETTLED_S - 1
    os.utime(folder, (then, then))


def test_a_folder_is_removed_at_the_end(tmp_path: Path) -> None:
    with work_folder("test", str(tmp_path)) as folder:
        Path(folder, "a").write_text("b")
        assert os.listdir(folder) == ["a"]
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.process
def test_the_folder_of_a_killed_process_is_removed_by_the_next_one_and_not_earlier(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDS_ONE, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    (left,) = tmp_path.iterdir()
    age(left)
    assert sweep(str(tmp_path), "qnnbridge-test-") == 0, "its process lives"
    process.kill()
    process.wait()
    process.stdout.close()
    with work_folder("other", str(tmp_path)):
        assert left.exists(), "of another kind"
    # Immediately: a folder with contents has been locked, so its age does not matter.
    os.utime(left)
    with work_folder("test", str(tmp_path)) as folder:
        assert not left.exists()
        assert os.path.isdir(folder)
    assert os.listdir(tmp_path) == []


def test_a_recent_folder_and_one_without_a_marker_are_kept(tmp_path: Path) -> None:
    young, foreign = tmp_path / "qnnbridge-test-young", tmp_path / "qnnbridge-test-foreign"
    for folder in (young, foreign):
        folder.mkdir()
    (young / MARK).touch()
    age(foreign)
    assert sweep(str(tmp_path), "qnnbridge-test-") == 0
    assert sorted(os.listdir(tmp_path)) == [foreign.name, young.name]


def test_a_file_system_without_locks_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older releases of filelock raise this exception."""

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with work_folder("test", str(tmp_path)) as folder:
        outer = Path(folder).parent
        (outer / MARK).touch()
        age(outer)
        assert sweep(str(tmp_path), "qnnbridge-test-") == 0
        assert os.path.isdir(folder)
    assert os.listdir(tmp_path) == []


@needs.posix
def test_no_link_is_followed(tmp_path: Path) -> None:
    """In a folder that all users share, another user may create links."""
    victim, shared = tmp_path / "victim", tmp_path / "shared"
    victim.mkdir()
    shared.mkdir()
    (victim / MARK).touch()
    age(victim)
    (shared / "qnnbridge-test-link").symlink_to(victim)
    inside = shared / "qnnbridge-test-mark"
    inside.mkdir()
    (inside / MARK).symlink_to(victim / MARK)
    age(inside)
    assert sweep(str(shared), "qnnbridge-test-") == 0
    assert victim.exists()
    assert inside.exists()


def test_unlocked_folders_of_an_earlier_version_are_removed(tmp_path: Path) -> None:
    names = (
        ".qnnbridge-compile-left",
        ".qnnbridge-compile-used",
        ".qnnbridge-compile-foreign",
        "qnnbridge-compile-own",
    )
    left, used, foreign, own = (tmp_path / name for name in names)
    for folder in (left, used, own):
        (folder / "out").mkdir(parents=True)
        (folder / EARLIER_MARK).touch()
    foreign.mkdir()
    for folder in (left, used, foreign, own):
        age(folder)
    with FileLock(used / EARLIER_MARK), work_folder("compile", str(tmp_path), hidden=True):
        assert not left.exists()
        assert used.exists(), "its process lives"
    assert foreign.exists(), "no lock says that nobody has it"
    assert sweep(str(tmp_path), "qnnbridge-compile-") == 0, "no folder of an earlier version"
