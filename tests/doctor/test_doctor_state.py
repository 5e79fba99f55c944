"""The doctor reads qnnbridge's own files: real crash reports, a real quarantine, a real cache."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import pytest
from machines import linux

from qnnbridge._diagnosis import CrashReports
from qnnbridge._diagnosis.crash import CrashRecord
from qnnbridge._diagnosis.exit_codes import ExitStatus
from qnnbridge._supervision.blame import NativeCall, Points, Quarantine
from qnnbridge_host.cache.store import Store
from qnnbridge_tools.doctor.examine import FIXES
from qnnbridge_tools.doctor.facts import SavedState
from qnnbridge_tools.doctor.findings import finding
from qnnbridge_tools.doctor.machine import RealMachine
from qnnbridge_tools.doctor.subjects.environment import survey_places, survey_state

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from cache_entries import key_number, put


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("QNNBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def state() -> SavedState:
    return survey_state(RealMachine())


def death(**more: object) -> CrashRecord:
    return CrashRecord(ExitStatus(-11, "posix"), "running", **more)  # type: ignore[arg-type]


def test_without_any_files_the_saved_state_is_empty(folders: Path) -> None:
    assert state() == SavedState()


def test_a_crash_report_is_read_as_a_crash_with_its_cause(folders: Path) -> None:
    assert CrashReports().write(death()) is not None
    found = state().crashes
    assert [one.exit for one in found] == ["SIGSEGV"]
    assert found[0].cause
    assert 0 <= found[0].age_s < 600


@pytest.mark.parametrize(
    ("because", "counts"),
    [
        ("the work was interrupted", False),
        ("a call ran past its deadline (on_deadline='kill')", False),
        ("it was closed", False),
        ("The position in the stream was lost because Ctrl+C interrupted the parsing of a message.", False),
        ("it did not send HELLO", True),
        ("it closed its output but did not end", True),
        ("The host stopped in the middle of a message: it did not take a byte for 30 s.", True),
    ],
)
def test_a_host_that_qnnbridge_ended_counts_only_if_it_hung(folders: Path, because: str, counts: bool) -> None:
    assert CrashReports().write(death(killed_because=because)) is not None
    assert bool(state().crashes) is counts


def test_a_deliberate_end_is_not_a_crash(folders: Path) -> None:
    assert CrashReports().write(death(killed_because="a call ran past its deadline", on_purpose=True)) is not None
    assert state().crashes == ()


def test_a_model_is_in_quarantine_after_two_points_and_not_before(folders: Path) -> None:
    quarantine = Quarantine(versions="v")
    point = Points(NativeCall("f" * 64, "o", "running", "net.onnx"), 1.0)
    quarantine.add(point)
    assert state().quarantined == ()
    quarantine.add(point)
    assert state().quarantined == ("net.onnx",)


def test_the_fix_releases_models_from_quarantine(folders: Path) -> None:
    point = Points(NativeCall("f" * 64, "o", "running", "net.onnx"), 2.0)
    Quarantine(versions="v").add(point)
    fix = next(one for one in FIXES if "state.quarantine" in one.codes)
    assert "net.onnx" in fix.apply(finding("state.quarantine", "a model in quarantine", fix=""))
    assert state().quarantined == ()


def test_a_valid_cache_is_counted_and_is_not_a_finding(folders: Path) -> None:
    store = Store(folders / "cache")
    put(store, key_number(1))
    put(store, key_number(2))
    found = state()
    assert found.cache_entries == 2
    assert found.cache_bytes > 4000
    assert found.cache_damaged == ()


def test_an_invalidated_entry_is_reported_with_its_reason(folders: Path) -> None:
    store = Store(folders / "cache")
    put(store, key_number(1), label="net.onnx")
    store.quarantine_entry(key_number(1), "damaged", "model.bin is cut off")
    assert state().cache_damaged == ("net.onnx: model.bin is cut off",)


@pytest.mark.process
@pytest.mark.parametrize("harm", ["cut", "gone", "no manifest", "manifest of nonsense"])
def test_an_incomplete_entry_is_found_and_the_fix_removes_it(folders: Path, harm: str) -> None:
    store = Store(folders / "cache")
    put(store, key_number(1))
    entry = put(store, key_number(2), b"another blob" * 100)  # equal files of two entries are one file on the disk
    blob, manifest = entry.folder / "model_ctx_qnn.bin", entry.folder / "manifest.json"
    if harm == "cut":
        blob.write_bytes(b"x")
    elif harm == "gone":
        blob.unlink()
    elif harm == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text("{")
    found = state()
    assert found.cache_bad_keys == (key_number(2),)
    assert len(found.cache_damaged) == 1
    fix = next(one for one in FIXES if "cache.damaged" in one.codes)
    assert "done" in fix.apply(finding("cache.damaged", "an entry cannot be used", fix=""))
    after = state()
    assert (after.cache_entries, after.cache_damaged) == (1, ())


def test_a_folder_is_searched_in_the_home_folder_and_in_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = linux()
    machine.environ |= {"QNNBRIDGE_CACHE_DIR": "~/cache", "QNNBRIDGE_STATE_DIR": "~/state"}
    folders = [place.path for place in survey_places(machine, None, None)]
    assert folders == ["/home/maria/cache", "/home/maria/state"]
    asked: list[object] = []
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **given: asked.append(given) or contextlib.nullcontext())
    assert RealMachine().is_writable("new/cache")
    assert asked == [{"dir": os.curdir}]  # not the temporary folder of the system
