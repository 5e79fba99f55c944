"""Destinations of results: files are renamed into place, devices and pipes are written directly, links are
followed."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from qnnbridge_os.outputs import OutputFile, check_folder, place_of_several
from qnnbridge_protocol.errors import OptionError

posix = pytest.mark.skipif(sys.platform == "win32", reason="devices, pipes and rights of Linux")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_existing_file_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    OutputFile(path, overwrite=False).write(b"one")
    with pytest.raises(OptionError, match="exists already") as refused:
        OutputFile(path, overwrite=False)
    assert "--overwrite" in refused.value.fix
    OutputFile(path, overwrite=True).write(b"two")
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["a.html"]


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_failed_write_keeps_the_existing_file(old: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    if old is not None:
        path.write_bytes(old)
    place = OutputFile(path, overwrite=True)
    with pytest.raises(OSError, match="full"), place.opened() as file:
        file.write(b"half")
        raise OSError("the disk is full")
    assert names(tmp_path) == ([] if old is None else ["a.json"])
    assert old is None or path.read_bytes() == old


def test_a_file_that_appears_after_the_first_check_is_not_replaced(tmp_path: Path) -> None:
    place = OutputFile(tmp_path / "a", overwrite=False)
    (tmp_path / "a").write_bytes(b"precious")
    with pytest.raises(OptionError):
        place.write(b"new")
    assert (tmp_path / "a").read_bytes() == b"precious"


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_input_is_never_replaced(overwrite: bool, tmp_path: Path) -> None:
    source, link = tmp_path / "m.onnx", tmp_path / "link.onnx"
    source.write_bytes(b"model")
    os.link(source, link)
    for path in (source, link):
        with pytest.raises(OptionError, match="the input itself"):
            OutputFile(path, overwrite=overwrite, inputs=[source])


@posix
def test_the_target_of_a_link_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "a", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    OutputFile(link, overwrite=True).write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@posix
def test_a_folder_behind_a_dangling_link_is_refused_before_the_work(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "missing")
    for folder in (link, link / "inside"):
        with pytest.raises(OptionError, match="cannot be written") as caught:
            check_folder(folder, folder)
        assert str(caught.value.cause) == f"{link} is a link to {tmp_path / 'missing'}, which does not exist."
    assert os.listdir(tmp_path) == ["link"]


@posix
@pytest.mark.parametrize("overwrite", [False, True])
def test_output_to_a_pipe_is_written_into_the_pipe(overwrite: bool, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    OutputFile(pipe, overwrite=overwrite).write(b"page")
    reader.join()
    assert read == [b"page"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@posix
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_device_stays_a_device(overwrite: bool, tmp_path: Path) -> None:
    device = tmp_path / "null"  # a device created by the test: a fault here must not replace the system's
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.open("wb").close()
    except OSError as error:
        pytest.skip(f"no device can be made or opened here: {error}")
    OutputFile(device, overwrite=overwrite).write(b"page")
    made = tmp_path / "made"
    made.write_bytes(b"page")
    OutputFile(device, overwrite=overwrite).take(made)
    assert stat.S_ISCHR(device.stat().st_mode)
    with pytest.raises(OptionError, match="cannot be the destination"):
        place_of_several(str(device))


@posix
def test_output_to_a_descriptor_is_written_into_the_descriptor(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        OutputFile(f"/dev/fd/{file.fileno()}", overwrite=False).write(b"page")
        assert not file.closed
    assert (tmp_path / "a").read_bytes() == b"page"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is a folder"):
        OutputFile(tmp_path, overwrite=True)
