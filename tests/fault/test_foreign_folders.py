"""If the cache's folder contains foreign files or is a link, only the cache's own files are changed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests import needs
from tests.fakes.commands import qnnbridge as command
from tests.unit.cache_entries import key_number, put

import qnnbridge
from qnnbridge_host.cache.memo import HashMemo, NegativeEntries, OptimizerChoice, OptimizerChoices, Verdicts
from qnnbridge_host.cache.store import Store
from qnnbridge_protocol.model_records import NumbersReport
from qnnbridge_protocol.settings import cache_dir, state_dir

KEY, OTHER = key_number(1), key_number(2)
COMMANDS = (["list"], ["verify"], ["prune", "--max-size", "0", "--unused-days", "0"], ["clear"], ["clear", "--all"])
PARTS = ("memo", "v1/tmp", "v1/bad", "v1/uses", "v1/entries", "v1/verdicts", "v1/notes", "v1/locks", "v1/fixed")
# Names like those of the cache itself, so that only the folder shows that the files are foreign.
OURS = (f"{KEY}.json", f"{KEY}.lock", f"{KEY}/manifest.json", f"{KEY}/hits.json", "0123456789abcdef/model_ctx.onnx")
MODELS = Path(__file__).parents[1] / "models"
F, INPUT = MODELS / "f.onnx", {"x": np.load(MODELS / "x.npz")["x"]}


def fill(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"not the cache's: {name}", "utf-8")


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and bytes of every file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(folder))] = (path.stat().st_mode, path.read_bytes())
    return found


def run_all_commands() -> None:
    for arguments in COMMANDS:
        done = command("cache", *arguments)
        assert "Traceback" not in done.output, done.output


def filled_store() -> Store:
    store = Store(cache_dir())
    put(store, KEY)
    put(store, OTHER, b"other" * 1000)
    store.count_hit(KEY)
    NegativeEntries(store.root).write(KEY, "slow", "it took long", "m.onnx")
    Verdicts(store.root).write(KEY, NumbersReport("agrees", when=1e9))
    return store


def test_no_record_is_written_into_a_folder_that_is_not_a_cache(tmp_path: Path) -> None:
    fill(tmp_path, ("tmp/work.bin", "entries/book/chapter.txt"))
    before = contents(tmp_path)
    NegativeEntries(tmp_path).write(KEY, "slow", "it took long", "m.onnx")
    Verdicts(tmp_path).write(KEY, NumbersReport("agrees", when=1e9))
    OptimizerChoices(tmp_path).write(KEY, OptimizerChoice(("ConstantFolding",), why="it changes the model"))
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["entries", "tmp"]


def test_a_folder_with_the_same_names_that_is_not_a_cache_is_not_changed() -> None:
    folder = cache_dir()
    strangers = (
        "memo/shopping list.txt",
        "memo/a.json",
        "v1/tmp/draft.txt",
        "v1/bad/song.mp3",
        "v1/entries/photo.png",
    )
    fill(folder, (*strangers, *(f"{part}/{name}" for part in PARTS for name in OURS)))
    before = contents(folder)
    run_all_commands()
    assert contents(folder) == before


def test_files_of_others_in_a_cache_are_kept() -> None:
    store = filled_store()
    fill(cache_dir(), tuple(f"{part}/stranger.txt" for part in PARTS))
    before = {name: state for name, state in contents(cache_dir()).items() if "stranger" in name}
    run_all_commands()
    assert {name: state for name, state in contents(cache_dir()).items() if "stranger" in name} == before
    assert store.all_keys() == []


@needs.posix
@pytest.mark.parametrize("part", [*PARTS, "v1"])
def test_a_link_in_place_of_the_cache_folder_is_not_followed(part: str, tmp_path: Path) -> None:
    filled_store()
    target, place = tmp_path / "elsewhere", cache_dir() / part
    fill(target, OURS)
    if place.exists():
        os.rename(place, tmp_path / "moved")
    place.symlink_to(target)
    before = contents(target)
    run_all_commands()
    store = Store(cache_dir())
    for act in (store.prepare, store.sweep, store.draft, lambda: store.use(KEY), lambda: store.remove(KEY)):
        try:
            done = act()
        except OSError:
            continue
        if hasattr(done, "close"):
            done.close()
        if hasattr(done, "release"):
            done.release(remove=True)
    store.count_hit(KEY)
    HashMemo(cache_dir()).sha256(F)
    Verdicts(store.root).begin(KEY)
    NegativeEntries(store.root).write(KEY, "slow", "it took long", "m.onnx")
    assert contents(target) == before


@needs.posix
def test_a_link_in_place_of_an_entry_is_moved_and_not_followed(tmp_path: Path) -> None:
    store = filled_store()
    target, place = tmp_path / "elsewhere", store.entry_folder(KEY)
    fill(target, OURS)
    os.rename(place, tmp_path / "moved")
    place.symlink_to(target)
    before = contents(target)
    store.quarantine_entry(KEY, "damaged", "a link has its name")
    assert not os.path.lexists(place)
    run_all_commands()
    assert contents(target) == before


@pytest.mark.simulator
@needs.posix
@pytest.mark.parametrize("part", ["v1", "v1/entries", "v1/locks", "memo"])
def test_a_session_with_a_link_in_its_cache_computes_and_writes_nothing_through_it(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: qnnbridge.Host
) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    target, place = tmp_path / "elsewhere", cache_dir() / part
    fill(target, OURS)
    place.parent.mkdir(parents=True)
    place.symlink_to(target)
    before = contents(target)
    with qnnbridge.InferenceSession(
        F, providers=[("QNNExecutionProvider", {"soc_model": "60"})], host=host
    ) as session:
        assert session.run(None, INPUT)
    assert contents(target) == before


@needs.posix
def test_old_reports_of_verify_are_removed_by_their_names_and_never_through_a_link(tmp_path: Path) -> None:
    from qnnbridge_models.journals import AnswerJournal

    folder, target = state_dir() / "verify", tmp_path / "elsewhere"
    fill(target, OURS)
    fill(folder, (f"{KEY}/answer.npz", "photos/a.png", "notes.txt"))
    (folder / OTHER).symlink_to(target)
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9), follow_symlinks=False)
    before = contents(target)
    AnswerJournal({"model": "m"})
    assert sorted(path.name for path in folder.iterdir()) == sorted(["photos", "notes.txt", OTHER])
    assert contents(target) == before

    os.rename(folder, tmp_path / "moved")
    folder.symlink_to(target)
    os.utime(target / KEY, (1e9, 1e9))
    journal = AnswerJournal({"model": "m"})
    journal.keep({"x": INPUT["x"]}, [INPUT["x"]])
    assert journal.answer({"x": INPUT["x"]}) is None
    journal.over()
    assert contents(target) == before
