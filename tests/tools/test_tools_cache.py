"""`qnnbridge cache`, on entries that the cache's own store created."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests import needs
from tests.fakes.commands import qnnbridge
from tests.unit.cache_entries import BLOB, key_number, put, tree

from qnnbridge_host.cache.memo import HashMemo, NegativeEntries
from qnnbridge_host.cache.store import Store
from qnnbridge_os.files import MARK_FILE
from qnnbridge_protocol.settings import cache_dir

FIRST, SECOND = key_number(1), key_number(2)
DAY_S = 24 * 3600


@pytest.fixture
def store() -> Store:
    return Store(cache_dir())


def cache(*arguments: str) -> tuple[int, str]:
    result = qnnbridge("cache", *arguments)
    return result.returncode, result.output


def as_json(*arguments: str, code: int = 0) -> Any:
    got, text = cache(*arguments, "--json")
    assert got == code, text
    return json.loads(text)


def row(text: str, key: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(key[:12])]
    return line


def spoil(store: Store, key: str) -> None:
    path = store.entry_folder(key) / BLOB
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


# --- list, show ---


@pytest.mark.parametrize("command", [[], ["list"], ["verify"], ["prune"], ["clear", "--all"]])
def test_a_missing_cache_is_not_an_error_and_is_not_created(command: list[str]) -> None:
    code, text = cache(*command)
    assert (code, cache_dir().exists()) == (0, False)
    assert "No compiled model" in text or "no compiled model" in text or "0 bytes freed" in text


@needs.posix
@pytest.mark.parametrize("command", [[], ["list"], ["show", "0"], ["verify"], ["prune"], ["clear", "--all"]])
def test_a_cache_folder_behind_a_link_is_refused_by_every_command(command: list[str], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.json").write_text("{}")
    cache_dir().mkdir(parents=True)
    (cache_dir() / "v1").symlink_to(elsewhere)
    code, text = cache(*command)
    assert (code, "it is a link" in text) == (2, True), text
    assert [path.name for path in elsewhere.iterdir()] == ["a.json"]


def test_the_list_has_size_hits_and_ages_with_the_most_recently_used_first(store: Store) -> None:
    old = put(store, FIRST, label="old.onnx", created=time.time() - 3 * DAY_S)
    put(store, SECOND, b"other" * 1000, label="new.onnx", created=time.time() - 3700)
    store.count_hit(SECOND)
    store.count_hit(SECOND)
    # The size includes the manifest, which grows with every new field of a record.
    size = sum(file.stat().st_size for file in old.folder.iterdir())
    assert size > 4000
    code, text = cache()
    assert code == 0
    assert text.index("new.onnx") < text.index("old.onnx")
    for words in ("old.onnx", f"{size / 1024:.1f} KiB", " 0 ", "3 days ago", "1.5 s", "good"):
        assert words in row(text, FIRST)
    for words in ("new.onnx", " 2 ", "just now", "1 hour ago"):
        assert words in row(text, SECOND)
    assert f"2 compiled models in {store.folder}, " in text
    assert "of at most 10.0 GiB" in text


def test_a_context_binary_that_two_entries_share_counts_once(store: Store) -> None:
    blob = b"shared" * 10_000
    put(store, FIRST, blob)
    alone = as_json("list")["total_bytes"]
    put(store, SECOND, blob)
    both = as_json("list")
    assert both["total_bytes"] - alone < len(blob) / 2
    assert all(entry["size_bytes"] > len(blob) for entry in both["entries"])


def test_entries_in_use_are_reported(store: Store) -> None:
    put(store, FIRST)
    held = store.use(FIRST)
    assert "in use" in row(cache()[1], FIRST)
    assert as_json("show", FIRST)["entries"][0]["in_use"] is True
    held.release(remove=True)
    assert as_json("show", FIRST)["entries"][0]["in_use"] is False


def test_a_model_that_is_loaded_unmapped_is_not_listed_as_skipped(store: Store) -> None:
    store.prepare()
    notes = NegativeEntries(store.root)
    notes.write("unmapped-" + FIRST[:20], "unmapped", "loaded without mapping", "large.onnx")
    _, text = cache()
    assert "Skipped:" not in text
    assert "Not mapped" in text
    assert "loaded without mapping" in text
    _, text = cache("show", "large.onnx")
    assert "large.onnx" in text
    assert "skipped" not in text
    notes.write(SECOND, "refused", "QNN refuses it", "other.onnx")
    _, text = cache()
    assert text.index("QNN refuses it") < text.index("Not mapped") < text.index("loaded without mapping")
    assert cache("clear", "large.onnx")[0] == 0
    assert "Not mapped" not in cache()[1]


def test_invalidated_entries_and_skipped_models_are_listed_with_their_reasons(store: Store) -> None:
    put(store, FIRST, label="bad.onnx")
    store.quarantine_entry(FIRST, "crashed", "the host died of SIGSEGV")
    NegativeEntries(store.root).write(SECOND, "nothing-on-qnn", "no node of it runs on QNN", "iris.onnx")
    code, text = cache("list")
    assert code == 0
    for words in ("bad.onnx", "crashed", "the host died of SIGSEGV"):
        assert words in row(text, FIRST)
    for words in ("iris.onnx", "no node of it runs on QNN"):
        assert words in row(text, SECOND)
    told = as_json("list")
    assert [(bad["key"], bad["fault"]) for bad in told["set_aside"]] == [(FIRST, "crashed")]
    assert [(note["key"], note["kind"]) for note in told["left_alone"]] == [(SECOND, "nothing-on-qnn")]


def test_an_entry_with_an_unreadable_manifest_is_listed_as_bad(store: Store) -> None:
    put(store, FIRST)
    (store.entry_folder(FIRST) / "manifest.json").write_text("{")
    assert "bad: manifest.json is not readable" in row(cache()[1], FIRST)
    assert "manifest.json is not readable" in cache("show", FIRST)[1]
    assert as_json("list")["entries"][0]["problem"] == "manifest.json is not readable"


def test_the_json_list_has_every_figure(store: Store) -> None:
    made = put(store, FIRST, created=1_700_000_000.0)
    store.count_hit(FIRST)
    told = as_json("list")
    assert (told["folder"], told["enabled"]) == (str(store.folder), False)  # tests run with a disabled cache
    (entry,) = told["entries"]
    assert entry["key"] == FIRST
    assert (entry["model"], entry["source_path"], entry["source_bytes"]) == ("m.onnx", "/models/m.onnx", 1234)
    assert (entry["hits"], entry["compile_seconds"], entry["salvaged"]) == (1, 1.5, False)
    assert entry["created"] == "2023-11-14T22:13:20+00:00"
    assert entry["last_used"] > entry["created"]
    assert entry["versions"] == {"onnxruntime": "1.31.1", "qnn_sdk": "2.51.0"}
    assert entry["size_bytes"] > made.manifest.size_bytes


@pytest.mark.parametrize("word", [FIRST, FIRST[:6], "m.onnx"])
def test_an_entry_is_selected_by_its_key_a_prefix_of_it_or_its_model(store: Store, word: str) -> None:
    entry = put(store, FIRST)
    code, text = cache("show", word)
    assert code == 0
    hashed = entry.manifest.files[0].sha256[:16]
    for words in (FIRST, str(entry.folder), "/models/m.onnx", "onnxruntime 1.31.1", BLOB, hashed, "1.5 s"):
        assert words in text
    assert as_json("show", word)["entries"][0]["files"][0]["sha256"].startswith(hashed)


@pytest.mark.parametrize("command", [["show", "zzz"], ["clear", "zzz"], ["verify", "zzz"], ["show", ""]])
def test_an_unknown_selector_is_bad_input(store: Store, command: list[str]) -> None:
    put(store, FIRST)
    code, text = cache(*command)
    assert code == 2
    assert "Nothing in the cache has the key or the model name" in text
    assert store.all_keys() == [FIRST]


def test_names_with_control_characters_are_shown_escaped(store: Store) -> None:
    put(store, FIRST, label="a\x1b[2Jb.onnx")
    for command in (["list"], ["show", FIRST], ["verify"], ["clear", FIRST]):
        text = cache(*command)[1]
        assert "\x1b" not in text
        assert "a\\x1b[2Jb.onnx" in text


# --- verify ---


def test_every_byte_is_verified_and_valid_entries_are_listed_too(store: Store) -> None:
    put(store, FIRST, label="good.onnx")
    put(store, SECOND, b"other" * 1000, label="bad.onnx")
    assert cache("verify")[0] == 0
    spoil(store, SECOND)
    code, text = cache("verify")
    assert code == 1
    assert "good" in row(text, FIRST)
    assert "has changed since it was compiled" in row(text, SECOND)
    assert "1 of 2 are bad" in text
    told = as_json("verify", code=1)
    assert {one["key"]: one["state"] for one in told["checked"]} == {FIRST: "good", SECOND: "bad"}
    assert cache("verify", "good.onnx")[0] == 0
    assert store.all_keys() == sorted([FIRST, SECOND])  # reading changes nothing


def test_a_locked_entry_is_reported_as_busy(store: Store) -> None:
    put(store, FIRST)
    held = store.try_lock(FIRST)
    assert held is not None
    assert as_json("verify")["checked"][0]["state"] == "busy"
    held.release()


# --- prune, clear ---


def three(store: Store) -> list[str]:
    """Create entries of 60,000 bytes each; the first is the least recently used."""
    keys = [key_number(number) for number in range(3)]
    for age, key in enumerate(reversed(keys), start=1):
        put(store, key, key.encode() * 1875, label=f"{age}.onnx", created=time.time() - age * 10 * DAY_S)
    return keys


def test_pruning_to_a_size_removes_the_least_recently_used_entries(store: Store) -> None:
    oldest, middle, newest = three(store)
    told = as_json("prune", "--max-size", "130K")
    assert [one["key"] for one in told["removed"]] == [oldest]
    assert told["freed_bytes"] > 60_000
    assert store.all_keys() == sorted([middle, newest])


def test_pruning_by_age_removes_entries_that_were_not_used_for_that_long(store: Store) -> None:
    oldest, middle, newest = three(store)
    store.count_hit(oldest)
    code, text = cache("prune", "--unused-days", "15")
    assert code == 0
    assert "Removed 2.onnx" in text
    assert store.all_keys() == sorted([oldest, newest])
    assert middle not in store.all_keys()


def test_pruning_removes_leftovers_and_invalidated_entries_and_keeps_used_ones(
    store: Store, tmp_path: Path
) -> None:
    put(store, FIRST)
    put(store, SECOND, b"other" * 1000)
    store.quarantine_entry(FIRST, "damaged", "x")
    left = store.root / "tmp" / "0123456789abcdef"
    left.mkdir()
    (left / "model_ctx.onnx").write_bytes(b"half")
    model = tmp_path / "model.onnx"
    model.write_bytes(b"m")
    memo = HashMemo(store.folder)
    memo.folder.mkdir(parents=True, exist_ok=True)
    (memo.folder / f"{FIRST}.json").write_text("x")
    held = store.use(SECOND)
    told = as_json("prune", "--max-size", "0", "--unused-days", "0")
    held.release(remove=True)
    assert (told["set_aside"], told["leftovers"], told["removed"]) == (1, 1, [])
    assert [one["key"] for one in told["kept_in_use"]] == [SECOND]
    assert store.all_keys() == [SECOND]
    assert list((store.root / "tmp").iterdir()) == list(memo.folder.glob("*.json")) == []
    assert store.invalid_entries() == []


def test_an_invalid_size_is_bad_input(store: Store) -> None:
    put(store, FIRST)
    code, text = cache("prune", "--max-size", "much")
    assert (code, '"much" is not a size' in text) == (2, True)
    assert store.all_keys() == [FIRST]


def test_clearing_a_model_removes_all_its_entries_and_records(store: Store) -> None:
    put(store, FIRST, label="a.onnx")
    store.quarantine_entry(FIRST, "unloadable", "x")
    NegativeEntries(store.root).write(FIRST, "crashes", "twice", "a.onnx")
    put(store, SECOND, b"other" * 1000, label="b.onnx")
    told = as_json("clear", "a.onnx")
    assert (told["set_aside"], told["left_alone"]) == (1, 1)
    left = as_json("list")
    assert [entry["key"] for entry in left["entries"]] == [SECOND]
    assert (left["set_aside"], left["left_alone"]) == ([], [])


def test_clearing_all_leaves_only_locks(store: Store) -> None:
    put(store, FIRST)
    store.count_hit(FIRST)
    NegativeEntries(store.root).write(SECOND, "slow", "it took 0.7 s to make", "b.onnx")
    code, text = cache("clear", "--all")
    assert code == 0
    assert "Removed m.onnx" in text
    assert all(name.endswith((".lock", MARK_FILE)) for name in tree(store.folder))


def test_an_entry_in_use_is_kept_and_reported(store: Store) -> None:
    put(store, FIRST)
    held = store.use(FIRST)
    code, text = cache("clear", "--all")
    held.release(remove=True)
    assert code == 1
    assert f"Kept m.onnx ({FIRST[:12]}): a process uses it." in text
    assert store.find(FIRST) is not None
    assert cache("clear", FIRST)[0] == 0


@pytest.mark.parametrize("arguments", [[], ["abc", "--all"]])
def test_clearing_needs_either_a_key_or_all(store: Store, arguments: list[str]) -> None:
    put(store, FIRST)
    code, text = cache("clear", *arguments)
    assert (code, "Give keys or model names" in text) == (2, True)
    assert store.all_keys() == [FIRST]


def test_an_entry_that_disappears_during_a_command_is_not_an_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, FIRST)
    keys = Store.all_keys

    def gone(self: Store) -> list[str]:
        found = keys(self)
        shutil.rmtree(store.entry_folder(FIRST), ignore_errors=True)
        return found

    monkeypatch.setattr(Store, "all_keys", gone)
    assert cache("list")[0] == 0
