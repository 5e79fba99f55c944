"""Crash reports on disk are complete, undamaged, bounded and without secrets, and never cause an error."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from tests import needs

from qnnbridge._diagnosis import MAX_REPORTS, CrashReports, without_home, write_whole
from qnnbridge._diagnosis.crash import CrashRecord, OpenCall
from qnnbridge._diagnosis.exit_codes import ExitStatus
from qnnbridge_host.create import publish
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.settings import state_dir

NOON = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC


def a_death(**more: object) -> CrashRecord:
    call = OpenCall(7, "session.run", "/models/pnet.onnx", "f" * 64, "0" * 64, "running")
    fields: dict[str, object] = {
        "exit": ExitStatus(-11, "posix"),
        "generation": 2,
        "uptime_s": 61.0,
        "in_flight": (call,),
        "stderr_head": "first line\n",
        "stderr_tail": "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  "
        'File "/x/y.py", line 3 in run\n',
        "versions": {"onnxruntime": "1.31.1"},
        "interpreter": "/opt/python",
        **more,
    }
    return CrashRecord(**fields)  # type: ignore[arg-type]


@pytest.fixture
def reports(tmp_path: Path) -> CrashReports:
    return CrashReports(tmp_path / "crashes", wall_clock=lambda: NOON)


def test_a_report_is_written_as_text_and_as_json(reports: CrashReports) -> None:
    path = reports.write(a_death())
    assert path is not None
    text = path.read_text(encoding="utf-8")
    for part in (
        "-11 (SIGSEGV)",
        "running",
        "/models/pnet.onnx",
        "onnxruntime 1.31.1",
        "first line",
        "y.py",
        "fix:",
    ):
        assert part in text
    data = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert data["exit"]["name"] == "SIGSEGV"
    assert data["when"] == "2027-01-15T08:00:00.000+00:00"
    assert data["suspects"][0]["request_id"] == 7
    assert data["diagnoses"][0]["cause"]
    assert data["qnnbridge"]


def test_waiting_requests_are_counted_in_the_report(reports: CrashReports) -> None:
    path = reports.write(a_death(in_flight=(OpenCall(7, "session.create", "model_v8.onnx"),)))
    assert path is not None
    text = path.read_text(encoding="utf-8")
    assert "phase       idle, requests waiting: 1\n" in text
    assert "7 session.create model_v8.onnx queued" in text


@pytest.mark.parametrize(
    ("code", "phase", "ready", "crashed"),
    [
        (0, "starting", False, False),
        (2, "starting", False, False),
        (1, "starting", False, True),
        (-11, "starting", False, True),
        (-9, "starting", False, True),
        (127, "starting", False, True),
        (0, "importing", False, True),
        (0, "idle", True, True),
        (2, "idle", True, True),
    ],
)
def test_a_failed_start_of_a_program_that_is_not_a_host_is_not_listed_as_a_crash(
    reports: CrashReports, code: int, phase: str, ready: bool, crashed: bool
) -> None:
    died = a_death(exit=ExitStatus(code, "posix"), host_phase=phase, ready=ready, in_flight=(), stderr_tail="")
    path = reports.write(died)
    assert path is not None
    assert [len(reports.summaries()), len(reports.ended.summaries())] == [crashed, not crashed]
    kind = "crash report" if crashed else "report of an ended host"
    assert path.read_text(encoding="utf-8").startswith(f"qnnbridge {kind} ")


def test_the_folder_follows_the_environment_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", str(tmp_path / "state"))
    path = CrashReports().write(a_death())
    assert path is not None
    assert path.parent == tmp_path / "state" / "crashes"
    monkeypatch.delenv("QNNBRIDGE_STATE_DIR")
    assert state_dir().name == "qnnbridge"


@needs.posix
def test_the_folder_is_private_even_if_a_compilation_creates_it_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", str(tmp_path / "state"))
    with publish._alone(str(tmp_path)):
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_reports_are_listed_newest_first_and_selected_by_a_prefix_of_their_id(tmp_path: Path) -> None:
    times = iter([NOON, NOON + 60, NOON + 120])
    reports = CrashReports(tmp_path, wall_clock=lambda: next(times))
    for code in (-11, -6, -8):
        reports.write(a_death(exit=ExitStatus(code, "posix")))
    listed = reports.summaries()
    assert [summary.exit for summary in listed] == ["-8 SIGFPE", "-6 SIGABRT", "-11 SIGSEGV"]
    assert [summary.id[:15] for summary in listed] == ["20270115-080200", "20270115-080100", "20270115-080000"]
    assert (listed[0].phase, listed[0].models) == ("running", ("/models/pnet.onnx",))
    assert listed[0].path.is_file()
    assert reports.read("20270115-0801")["exit"]["name"] == "SIGABRT"
    assert reports.read("last")["exit"]["name"] == "SIGFPE"
    assert "SIGSEGV" in reports.read_text(listed[2].id)


@pytest.mark.parametrize("wanted", ["nonsense", "2027", "", "../../etc/passwd"])
def test_an_unknown_or_ambiguous_report_id_is_refused(tmp_path: Path, wanted: str) -> None:
    times = iter([NOON, NOON + 60])
    reports = CrashReports(tmp_path, wall_clock=lambda: next(times))
    reports.write(a_death())
    reports.write(a_death())
    with pytest.raises(OptionError, match="crash report"):
        reports.read(wanted)


def test_missing_reports_are_an_error_only_if_one_is_requested(tmp_path: Path) -> None:
    reports = CrashReports(tmp_path / "never made")
    assert reports.summaries() == []
    with pytest.raises(OptionError, match="No crash report"):
        reports.read("last")


def test_only_the_newest_fifty_are_kept(tmp_path: Path) -> None:
    times = iter(NOON + n for n in range(MAX_REPORTS + 5))
    reports = CrashReports(tmp_path, wall_clock=lambda: next(times))
    for _ in range(MAX_REPORTS + 5):
        assert reports.write(a_death()) is not None
    assert len(list(tmp_path.iterdir())) == 2 * MAX_REPORTS
    assert reports.summaries()[-1].id.startswith("20270115-080005")


def test_a_damaged_report_is_not_listed(reports: CrashReports) -> None:
    good = reports.write(a_death())
    assert good is not None
    for number, content in enumerate(["", "{", "[]", "{}", '{"id": 3, "exit": 7}']):
        (good.parent / f"20270115-08000{number}-aaaaaaaa.json").write_text(content, encoding="utf-8")
    (good.parent / "notes.json").write_text("mine", encoding="utf-8")
    assert [summary.id for summary in reports.summaries()] == [good.stem]
    with pytest.raises(OptionError, match="cannot be read"):
        reports.read("20270115-080001-aaaaaaaa")


def test_nothing_is_written_or_raised_if_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    assert CrashReports(tmp_path / "file" / "crashes").write(a_death()) is None


def test_an_invalid_clock_prevents_the_report_without_an_exception(tmp_path: Path) -> None:
    assert CrashReports(tmp_path, wall_clock=lambda: 1e30).write(a_death()) is None
    assert CrashReports(tmp_path, wall_clock=lambda: float("nan")).write(a_death()) is None


def test_a_full_disk_leaves_no_partial_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert CrashReports(tmp_path).write(a_death()) is None
    assert list(tmp_path.iterdir()) == []


def test_secrets_of_the_environment_and_the_home_folder_are_removed(
    reports: CrashReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(Path.home())
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("ADSP_LIBRARY_PATH", os.path.join(home, "qnn"))
    path = reports.write(
        a_death(stderr_tail=f'loading "{home}/models/a.onnx"\n', interpreter=f"{home}/env/bin/python")
    )
    assert path is not None
    for file in (path, path.with_suffix(".json")):
        text = file.read_text(encoding="utf-8")
        assert "hunter2" not in text
        assert "SECRET_TOKEN" not in text
        assert f"{home}/models" not in text
        assert "~/models/a.onnx" in text
        assert "ADSP_LIBRARY_PATH" in text


@pytest.mark.parametrize(
    ("text", "home", "expected"),
    [
        ("/home/ann/x and /home/ann", "/home/ann", "~/x and ~"),
        ("/home/anna/x", "/home/ann", "/home/anna/x"),
        ("C:\\Users\\Ann\\x, c:/users/ann/y", "C:\\Users\\Ann", "~\\x, ~/y"),
        ("everything", "/", "everything"),
        ("nothing", "", "nothing"),
    ],
)
def test_the_home_folder_is_written_as_a_tilde(text: str, home: str, expected: str) -> None:
    assert without_home({"a": [text, 3, None]}, home) == {"a": [expected, 3, None]}


def test_text_that_is_not_unicode_does_not_prevent_a_report(reports: CrashReports) -> None:
    call = OpenCall(1, "session.run", os.fsdecode(b"/models/\xff.onnx"), "f", "0", "running")
    path = reports.write(a_death(in_flight=(call,), stderr_tail="\ufffd\U0001f600\x00\n"))
    assert path is not None
    assert len(reports.summaries()) == 1


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "deep" / "state.json"
    write_whole(target, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        write_whole(target, "new")
    assert target.read_text(encoding="utf-8") == "old"
    assert [path.name for path in target.parent.iterdir()] == ["state.json"]
