"""Hashes are cached only for files that have not changed."""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from pathlib import Path

import pytest
from tests import needs

from qnnbridge_host.cache import memo
from qnnbridge_host.cache.memo import HashMemo
from qnnbridge_host.model.source import RESTED_NS, FileStamp, ModelSource, take_stamp


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(b"contents")
    return path


@pytest.fixture
def rested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock one hour ahead, so that every file counts as unchanged for long enough."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List of the files that were really read."""
    read: list[str] = []
    real = memo.hash_file

    def counting(path: str) -> str:
        read.append(path)
        return real(path)

    monkeypatch.setattr(memo, "hash_file", counting)
    return read


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def look(tmp_path: Path, file: Path) -> str:
    """Use a new memo each time, as a new process does."""
    found = HashMemo(tmp_path / "cache").look(file)
    assert found is not None
    return found.sha256


@pytest.mark.usefixtures("rested")
def test_an_unchanged_file_is_read_once(tmp_path: Path, file: Path, hashed: list[str]) -> None:
    assert [look(tmp_path, file) for _ in range(3)] == [sha256(b"contents")] * 3
    assert len(hashed) == 1


def test_a_recently_written_file_is_read_again_each_time(tmp_path: Path, file: Path, hashed: list[str]) -> None:
    assert look(tmp_path, file) == look(tmp_path, file)
    assert len(hashed) == 2


def test_a_change_within_one_tick_of_the_clock_is_detected(tmp_path: Path, file: Path) -> None:
    """Use the same size and the same times, which a coarse clock shows for two consecutive writes."""
    before = file.stat()
    assert look(tmp_path, file) == sha256(b"contents")
    file.write_bytes(b"CONTENTS")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert look(tmp_path, file) == sha256(b"CONTENTS")


@pytest.mark.usefixtures("rested")
def test_a_change_with_the_old_date_restored_is_detected(tmp_path: Path, file: Path) -> None:
    before = file.stat()
    look(tmp_path, file)
    file.write_bytes(b"CONTENTS")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert look(tmp_path, file) == sha256(b"CONTENTS")


@needs.posix
@pytest.mark.usefixtures("rested")
def test_a_change_through_a_mapping_is_detected(tmp_path: Path, file: Path) -> None:
    """`numpy.memmap` writes in this way. Only the first write to a page after a flush updates the file's date."""
    with open(file, "rb+") as opened, mmap.mmap(opened.fileno(), 0) as mapping:
        mapping[:1] = b"C"
        os.fsync(opened.fileno())
        before = os.stat(file).st_mtime_ns
        time.sleep(0.02)
        mapping[:1] = b"c"
        if os.stat(file).st_mtime_ns == before:
            pytest.skip("a file system without a disk (tmpfs) dates no later write through a mapping")
        look(tmp_path, file)
        time.sleep(0.02)
        mapping[:] = b"CONTENTS"
        assert look(tmp_path, file) == sha256(b"CONTENTS")


@pytest.mark.usefixtures("rested")
def test_another_file_under_the_same_name_is_detected(tmp_path: Path, file: Path) -> None:
    look(tmp_path, file)
    other = tmp_path / "other"
    other.write_bytes(b"CONTENTS")
    os.replace(other, file)
    assert look(tmp_path, file) == sha256(b"CONTENTS")


def test_a_stamp_is_trusted_only_if_the_file_has_not_changed_recently() -> None:
    def stamp(modified: int, changed: int) -> FileStamp:
        return FileStamp(1, modified, changed, 1, 1, taken_ns=10**12)

    old, new = 10**12 - RESTED_NS - 1, 10**12 - RESTED_NS
    assert stamp(old, old).settled
    assert not stamp(new, old).settled
    assert not stamp(old, new).settled
    assert not stamp(10**15, old).settled  # a date in the future
    assert not stamp(new, new).proves(stamp(new, new))
    assert stamp(old, old).proves(stamp(old, old))


@pytest.mark.usefixtures("rested")
def test_a_file_that_is_written_during_hashing_is_not_remembered(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = memo.hash_file

    def disturbed(path: str) -> str:
        digest = real(path)
        file.write_bytes(b"longer contents")
        return digest

    monkeypatch.setattr(memo, "hash_file", disturbed)
    look(tmp_path, file)
    monkeypatch.setattr(memo, "hash_file", real)
    assert look(tmp_path, file) == sha256(b"longer contents")


@pytest.mark.usefixtures("rested")
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"content": {}, "sha256": ""}', b"\0" * 100])
def test_a_damaged_record_is_not_used(tmp_path: Path, file: Path, damage: bytes, hashed: list[str]) -> None:
    look(tmp_path, file)
    (record,) = (tmp_path / "cache" / "memo").glob("*.json")
    record.write_bytes(damage)
    assert look(tmp_path, file) == sha256(b"contents")
    assert len(hashed) == 2


@pytest.mark.usefixtures("rested")
def test_a_record_with_a_changed_digit_is_not_used(tmp_path: Path, file: Path) -> None:
    look(tmp_path, file)
    (record,) = (tmp_path / "cache" / "memo").glob("*.json")
    text = record.read_text()
    digest = sha256(b"contents")
    flipped = ("0" if digest[0] != "0" else "1") + digest[1:]
    record.write_text(text.replace(digest, flipped))
    assert look(tmp_path, file) == digest


def test_a_missing_path_and_a_folder_have_no_hash(tmp_path: Path) -> None:
    found = HashMemo(tmp_path / "cache")
    assert found.look(tmp_path / "nothing") is None
    assert found.look(tmp_path) is None
    assert take_stamp(tmp_path / "nothing" / "below") is None


@pytest.mark.usefixtures("rested")
def test_a_folder_that_cannot_be_created_costs_only_time(tmp_path: Path, file: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    assert look(tmp_path, file) == sha256(b"contents")


@pytest.mark.usefixtures("rested")
def test_records_of_deleted_files_are_removed(tmp_path: Path, file: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(b"k")
    look(tmp_path, file)
    look(tmp_path, kept)
    file.unlink()
    assert HashMemo(tmp_path / "cache").forget_gone() == 1
    assert len(list((tmp_path / "cache" / "memo").glob("*.json"))) == 1


@pytest.mark.usefixtures("rested")
def test_the_fingerprint_of_an_unchanged_model_is_computed_without_reading(
    tmp_path: Path, file: Path, hashed: list[str]
) -> None:
    first = ModelSource.open(file, memo=HashMemo(tmp_path / "cache"))
    second = ModelSource.open(file, memo=HashMemo(tmp_path / "cache"))
    assert first.fingerprint == second.fingerprint == ModelSource.open(file).fingerprint == sha256(b"contents")
    assert len(hashed) == 1
