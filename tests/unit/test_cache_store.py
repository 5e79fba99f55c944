"""Entries of the cache are complete or absent, checked to the last byte, and invalidated if they are damaged."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.cache_entries import BLOB, INFO, key_number, put, tree

from qnnbridge_host.cache.entry import FILE_NAME, MODEL, EntryManifest
from qnnbridge_host.cache.files import Damaged, read_json
from qnnbridge_host.cache.memo import CRASHES_MAX_AGE_S, NOTHING_MAX_AGE_S, NegativeEntries
from qnnbridge_host.cache.store import MANY_USES, MAX_INVALID, Store
from qnnbridge_host.create.lookup import SessionCache
from qnnbridge_host.model.source import ModelSource
from qnnbridge_os.files import MARK_FILE

KEY = key_number(1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def edit_manifest(store: Store, **changes: object) -> None:
    """Change the manifest and update its hash, so that it is valid."""
    from qnnbridge_host.cache.files import write_json

    path = store.entry_folder(KEY) / FILE_NAME
    content = read_json(path)
    assert content is not None
    write_json(path, {**content, **changes})


def test_an_entry_is_found_as_it_was_created(store: Store) -> None:
    made = put(store, KEY)
    found = store.find(KEY)
    assert found == made
    assert found is not None
    assert found.manifest.info == INFO
    assert found.manifest.size_bytes == sum((found.folder / name).stat().st_size for name in (MODEL, BLOB))
    assert store.all_keys() == [KEY]
    assert store.find(key_number(2)) is None


def test_no_temporary_file_is_left_after_a_creation(store: Store) -> None:
    put(store, KEY)
    assert list((store.root / "tmp").iterdir()) == []


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped byte at the start": (lambda f: flip(f / BLOB, 0), "has changed since"),
    "a flipped byte at the end": (lambda f: flip(f / BLOB, -1), "has changed since"),
    "a flipped byte in the .onnx": (lambda f: flip(f / MODEL, 3), "has changed since"),
    "a zeroed page": (lambda f: (f / BLOB).write_bytes(bytes(4000)), "has changed since"),
    "another blob of the same size": (lambda f: (f / BLOB).write_bytes(b"blub" * 1000), "has changed since"),
    "a truncated blob": (lambda f: os.truncate(f / BLOB, 3999), "3999 bytes instead of 4000"),
    "an empty blob": (lambda f: os.truncate(f / BLOB, 0), "0 bytes instead of 4000"),
    "a longer blob": (lambda f: os.truncate(f / BLOB, 4001), "4001 bytes instead of 4000"),
    "no blob": (lambda f: (f / BLOB).unlink(), "is missing"),
    "a renamed blob": (lambda f: (f / BLOB).rename(f / "x_qnn.bin"), "does not list: x_qnn"),
    "a file too many": (lambda f: (f / "x.dll").write_bytes(b""), "does not list: x.dll"),
    "a folder in the place of the blob": (
        lambda f: ((f / BLOB).unlink(), (f / BLOB).mkdir()),
        "bytes instead of|other",
    ),
    "no manifest": (lambda f: (f / FILE_NAME).unlink(), "no manifest"),
    "an empty manifest": (lambda f: os.truncate(f / FILE_NAME, 0), "not readable"),
    "half a manifest": (lambda f: os.truncate(f / FILE_NAME, 300), "not readable"),
    "a manifest of another shape": (lambda f: (f / FILE_NAME).write_text("[1]"), "not readable"),
    "a flipped byte in the manifest": (lambda f: flip(f / FILE_NAME, 400), "manifest.json is not"),
    "a file in the place of the entry": (
        lambda f: (tree(f), os.rename(f, f"{f}.x"), f.touch()),
        "a link or a file",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_never_returned(store: Store, damage: str) -> None:
    entry = put(store, KEY)
    assert store.find(KEY) is not None
    spoil, reason = DAMAGES[damage]
    spoil(entry.folder)
    with pytest.raises(Damaged, match=reason):
        store.find(KEY)


def test_a_context_binary_that_is_a_link_to_another_folder_is_not_used(store: Store, tmp_path: Path) -> None:
    entry = put(store, KEY)
    outside = tmp_path / "outside"
    outside.write_bytes((entry.folder / BLOB).read_bytes())
    (entry.folder / BLOB).unlink()
    (entry.folder / BLOB).symlink_to(outside)
    with pytest.raises(Damaged):
        store.find(KEY)


def test_every_flipped_byte_of_the_manifest_is_detected(store: Store) -> None:
    entry = put(store, KEY)
    manifest = entry.folder / FILE_NAME
    good = manifest.read_bytes()
    for position in range(0, len(good), 7):
        data = bytearray(good)
        data[position] ^= 0x01
        manifest.write_bytes(data)
        try:
            found = store.find(KEY)
        except Damaged:
            continue
        # White space between the values has no meaning.
        assert found == entry, f"byte {position}: {good[position : position + 1]!r}"
    manifest.write_bytes(good)
    assert store.find(KEY) == entry


def test_the_entry_of_another_key_is_not_used(store: Store) -> None:
    entry = put(store, KEY)
    os.rename(entry.folder, store.entry_folder(key_number(2)))
    with pytest.raises(Damaged, match="another key"):
        store.find(key_number(2))


@pytest.mark.parametrize("name", ["../model_ctx_qnn.bin", "/etc/passwd", "..", "sub/x"])
def test_a_manifest_cannot_refer_to_files_outside(store: Store, name: str) -> None:
    put(store, KEY)
    content = read_json(store.entry_folder(KEY) / FILE_NAME)
    assert content is not None
    edit_manifest(store, files=[*content["files"], {"name": name, "size": 1, "sha256": "0" * 64}])
    with pytest.raises(Damaged, match="lists a path instead of a file name"):
        store.find(KEY)


def test_a_manifest_of_another_version_is_not_read(store: Store) -> None:
    put(store, KEY)
    edit_manifest(store, schema=999)
    with pytest.raises(Damaged, match="another version"):
        store.find(KEY)


def test_a_bad_entry_is_invalidated_with_the_reason(store: Store) -> None:
    put(store, KEY)
    store.quarantine_entry(KEY, "damaged", "a byte was flipped")
    assert store.find(KEY) is None
    (bad,) = store.invalid_entries()
    assert (bad.key, bad.fault, bad.reason, bad.label) == (KEY, "damaged", "a byte was flipped", "m.onnx")
    assert (bad.folder / BLOB).exists()
    put(store, KEY)
    assert store.find(KEY) is not None


def test_only_a_limited_number_of_invalid_entries_is_kept(store: Store) -> None:
    for number in range(MAX_INVALID + 3):
        put(store, KEY)
        store.quarantine_entry(KEY, "damaged", str(number))
    assert len(store.invalid_entries()) == MAX_INVALID
    # Entries of one second: with four random digits, two of them had the same name once in three hundred runs.
    assert all(len(bad.folder.name.split("-")[2]) >= 16 for bad in store.invalid_entries())


@pytest.mark.parametrize("write", ["sync_file", "EntryManifest.write", "os.rename", "sync_folder"])
def test_a_disk_that_fails_at_any_write_leaves_a_complete_entry_or_none(
    store: Store, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(f"qnnbridge_host.cache.store.{write}", full)
        with pytest.raises(OSError, match="No space left"):
            put(store, KEY)
    assert list((store.root / "tmp").iterdir()) == []
    assert (store.find(KEY) is not None) == (write == "sync_folder")  # the last step: the entry is in place
    assert put(store, KEY) == store.find(KEY)


def test_an_entry_that_is_created_again_replaces_the_old_one(store: Store) -> None:
    put(store, KEY)
    put(store, KEY, b"other")
    found = store.find(KEY)
    assert found is not None
    assert (found.folder / BLOB).read_bytes() == b"other"


def test_a_removed_entry_leaves_only_its_lock(store: Store) -> None:
    entry = put(store, KEY)
    store.count_hit(KEY)
    store.remove(KEY)
    assert not entry.folder.exists()
    left = {name for name in tree(store.folder) if not name.endswith(MARK_FILE)}
    assert all(name.startswith(("v1/locks/", "memo/")) for name in left)


def test_hits_are_counted(store: Store) -> None:
    put(store, KEY)
    assert store.hits(KEY).count == 0
    store.count_hit(KEY)
    store.count_hit(KEY)
    assert store.hits(KEY).count == 2
    assert store.hits(KEY).last > 0


def test_the_users_of_an_entry_are_recorded_until_they_release_it(store: Store) -> None:
    put(store, KEY)
    assert not store.in_use(KEY)
    first, second = store.use(KEY), store.use(KEY)
    assert store.in_use(KEY)
    first.release(remove=True)
    assert store.in_use(KEY)
    second.release(remove=True)
    assert not store.in_use(KEY)


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        text=True,
        capture_output=True,
        timeout=60,
    )


@pytest.mark.process
def test_leftovers_of_a_killed_process_are_removed(store: Store) -> None:
    put(store, KEY)
    code = """
        import os, signal, sys
        from pathlib import Path
        from qnnbridge_host.cache.store import Store
        store = Store(Path(sys.argv[1]))
        draft, use = store.draft(), store.use(sys.argv[2])
        (draft.folder / "model_ctx_qnn.bin").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run_python(code, store.folder, KEY).returncode != 0
    assert len(list((store.root / "tmp").iterdir())) == 2
    with store.draft() as mine:
        assert store.sweep() == 1
        assert mine.folder.exists()  # the process that created it still runs
    assert list((store.root / "tmp").iterdir()) == []
    assert list((store.root / "uses" / KEY).iterdir()) == []


def left_by_a_killed_user(store: Store, key: str) -> list[str]:
    code = """
        import os, signal, sys
        from pathlib import Path
        from qnnbridge_host.cache.store import Store
        use = Store(Path(sys.argv[1])).use(sys.argv[2])
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run_python(code, store.folder, key).returncode != 0
    return os.listdir(store.root / "uses" / key)


@pytest.mark.process
def test_the_next_user_removes_the_leftovers_of_a_killed_one(store: Store) -> None:
    put(store, KEY)
    (left,) = left_by_a_killed_user(store, KEY)
    use = store.use(KEY)
    (mine,) = os.listdir(store.root / "uses" / KEY)
    assert mine != left
    use.release(remove=True)


@pytest.mark.process
def test_records_of_use_for_a_missing_entry_are_removed(store: Store) -> None:
    put(store, KEY)
    with_use = store.use(KEY)
    store.count_hit(KEY)
    store.remove(KEY)
    store.sweep()
    assert store.in_use(KEY), "a living process has it loaded still"
    with_use.release(remove=True)
    assert left_by_a_killed_user(store, KEY)
    held = store.try_lock(KEY)
    assert held is not None
    store.sweep()
    assert (store.root / "uses" / KEY).exists(), "somebody may be about to use it"
    held.release()
    store.sweep()
    assert not (store.root / "uses" / KEY).exists()


def test_sessions_that_are_never_closed_do_not_fill_the_folder(store: Store) -> None:
    put(store, KEY)
    for _ in range(3 * MANY_USES):
        store.use(KEY)  # dropped immediately, as by a process that ends
    assert len(list((store.root / "uses" / KEY).iterdir())) <= MANY_USES + 2


def test_equal_context_binaries_of_two_entries_are_one_file(store: Store) -> None:
    first = put(store, KEY)
    second = put(store, key_number(2))
    assert os.path.samefile(first.folder / BLOB, second.folder / BLOB)
    assert not os.path.samefile(first.folder / MODEL, second.folder / MODEL)
    store.remove(KEY)
    assert store.find(key_number(2)) == second


def test_a_damaged_context_binary_is_not_shared(store: Store) -> None:
    first = put(store, KEY)
    flip(first.folder / BLOB, 5)
    put(store, key_number(2))
    assert store.find(key_number(2)) is not None
    with pytest.raises(Damaged):
        store.find(KEY)


def test_a_path_too_long_for_windows_is_refused_immediately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / ("d" * 100) / ("e" * 100))
    monkeypatch.setattr("qnnbridge_host.cache.store.os.name", "nt")
    with pytest.raises(OSError, match=r"the path .* is too long"):
        store.prepare()


def test_the_manifest_is_readable_json(store: Store) -> None:
    entry = put(store, KEY)
    content = json.loads((entry.folder / FILE_NAME).read_text())["content"]
    assert content["label"] == "m.onnx"
    assert [file["name"] for file in content["files"]] == [MODEL, BLOB]
    assert EntryManifest.read(entry.folder) == entry.manifest
    assert entry.manifest.versions == {"onnxruntime": "1.31.1", "qnn_sdk": "2.51.0"}


def test_notes_are_stored_by_key_and_expire(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = NegativeEntries(store.root)
    notes.write(KEY, "refused", "nodes on the CPU", "m.onnx")
    notes.write(key_number(2), "crashes", "twice", "n.onnx")
    notes.write(key_number(3), "nothing-on-qnn", "QNN takes no node", "o.onnx")
    assert {note.key for note in notes.all()} == {KEY, key_number(2), key_number(3)}
    import time

    now = time.time()
    monkeypatch.setattr("qnnbridge_host.cache.memo.time.time", lambda: now + NOTHING_MAX_AGE_S + 1)
    assert {note.key for note in notes.all()} == {KEY, key_number(2)}
    monkeypatch.setattr("qnnbridge_host.cache.memo.time.time", lambda: now + CRASHES_MAX_AGE_S + 1)
    assert [note.key for note in notes.all()] == [KEY]
    assert notes.remove(KEY)
    assert not notes.remove(KEY)
    assert notes.read(KEY) is None


def test_a_damaged_note_is_ignored(store: Store) -> None:
    notes = NegativeEntries(store.root)
    notes.write(KEY, "refused", "nodes on the CPU", "m.onnx")
    (store.root / "notes" / f"{KEY}.json").write_text("{")
    assert notes.read(KEY) is None


@pytest.mark.parametrize(
    ("host", "notices"), [("x", 0), (None, 0), ({"versions": "x"}, 0), ({"versions": {"ep_source": "wheel"}}, 1)]
)
def test_a_damaged_manifest_of_the_same_model_fails_no_session(host: object, notices: int, tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = put(store, key_number(1))
    dataclasses.replace(made.manifest, parts={"model": "f" * 64, "host": host}).write(made.folder)
    cache: Any = SimpleNamespace(_store=store, _source=ModelSource("/m.onnx", None, "f" * 64), notices=[])
    now = {"model": "f" * 64, "host": {"versions": {"ep_source": "windowsml", "ep_version": "2"}}}
    SessionCache._announce_update(cache, now)
    assert len(cache.notices) == notices
