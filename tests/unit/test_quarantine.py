"""Models that crash hosts are quarantined on disk, for the same versions, for a day; other models are not
affected."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from fake_clock import FakeClock

from qnnbridge._supervision.blame import RECHECK_S, TTL_S, WINDOW_S, NativeCall, Points, Quarantine
from qnnbridge_protocol.errors import ModelQuarantined

VERSIONS = "onnxruntime 1.31.1, qnn_sdk 2.51.0"
POISON = NativeCall("f" * 64, "options-1", "running", "poison.onnx")
OTHER = NativeCall("e" * 64, "options-1", "running", "other.onnx")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "quarantine.json"


@pytest.fixture
def quarantine(path: Path, clock: FakeClock) -> Quarantine:
    return Quarantine(path, VERSIONS, clock)


def kill(quarantine: Quarantine, call: NativeCall = POISON, times: int = 1, points: float = 1.0) -> None:
    for n in range(times):
        quarantine.add(Points(call, points), exit_text="-11 (SIGSEGV)", report=f"/reports/{n}.txt")


def refused(quarantine: Quarantine, call: NativeCall = POISON) -> bool:
    try:
        quarantine.check(call.fingerprint, call.options_hash)
    except ModelQuarantined:
        return True
    return False


def test_the_second_crash_quarantines_a_model(quarantine: Quarantine) -> None:
    assert quarantine.add(Points(POISON, 1.0)) is None
    assert not refused(quarantine)
    account = quarantine.add(Points(POISON, 1.0))
    assert account is not None
    assert refused(quarantine)
    assert not refused(quarantine, OTHER)


def test_the_same_model_with_other_options_is_counted_separately(quarantine: Quarantine) -> None:
    kill(quarantine, times=2)
    assert not refused(quarantine, NativeCall(POISON.fingerprint, "options-2", "running"))


def test_crashes_in_two_phases_are_not_added_up(quarantine: Quarantine) -> None:
    kill(quarantine)
    kill(quarantine, NativeCall(POISON.fingerprint, POISON.options_hash, "creating"))
    assert not refused(quarantine)


def test_shares_of_a_point_are_added_up(quarantine: Quarantine) -> None:
    kill(quarantine, times=5, points=1 / 3)
    assert not refused(quarantine)
    kill(quarantine, points=1 / 3)
    assert refused(quarantine)


def test_clearing_a_suspect_removes_its_share(quarantine: Quarantine) -> None:
    kill(quarantine, points=0.5)
    kill(quarantine)
    quarantine.add(Points(POISON, -0.5))
    kill(quarantine, points=0.5)
    assert not refused(quarantine)
    quarantine.add(Points(OTHER, -0.5))  # there is nothing to remove
    kill(quarantine, points=0.5)
    assert refused(quarantine)


def test_clearing_a_suspect_can_end_a_quarantine(quarantine: Quarantine) -> None:
    kill(quarantine, times=3, points=0.5)
    kill(quarantine, points=0.5)
    assert refused(quarantine)
    quarantine.add(Points(POISON, -0.5))
    assert not refused(quarantine)


def test_crashes_more_than_ten_minutes_apart_are_not_added_up(quarantine: Quarantine, clock: FakeClock) -> None:
    for _ in range(5):
        kill(quarantine)
        clock.sleep(WINDOW_S + 1)
    assert not refused(quarantine)


def test_the_error_names_the_model_its_crashes_the_report_and_the_fix(quarantine: Quarantine) -> None:
    kill(quarantine, times=2)
    with pytest.raises(ModelQuarantined) as caught:
        quarantine.check(POISON.fingerprint, POISON.options_hash)
    error = caught.value
    assert error.message == "poison.onnx is in quarantine: it crashed the host 2 times while running."
    assert "-11 (SIGSEGV)" in str(error.cause)
    assert error.evidence == ("crash report: /reports/1.txt",)
    assert f"qnnbridge quarantine clear {error.details['id']}" in str(error.fix)
    assert len(error.details["deaths"]) == 2
    assert error.details["report"] == "/reports/1.txt"
    assert error.retry == "pointless"
    json.dumps(error.details)


def test_another_process_reads_the_quarantine_within_a_second(path: Path, clock: FakeClock) -> None:
    mine, theirs = Quarantine(path, VERSIONS, clock), Quarantine(path, VERSIONS, clock)
    assert not refused(theirs)
    kill(mine, times=2)
    clock.sleep(RECHECK_S)
    assert refused(theirs)
    assert theirs.clear() == 1
    clock.sleep(RECHECK_S)
    assert not refused(mine)


def test_crashes_in_two_processes_are_added_up(path: Path, clock: FakeClock) -> None:
    mine, theirs = Quarantine(path, VERSIONS, clock), Quarantine(path, VERSIONS, clock)
    kill(mine)
    kill(theirs)
    assert refused(theirs)


@pytest.mark.parametrize(
    "change",
    [
        {"deaths": []},
        {"since": float("nan")},
        {"since": float("inf")},
        {"since": 10**400},
        {"since": 1e300},
        {"deaths": [{"when": float("nan"), "points": 1.0}]},
    ],
    ids=str,
)
def test_an_invalid_record_blames_no_model(
    path: Path, quarantine: Quarantine, clock: FakeClock, change: dict[str, object]
) -> None:
    kill(quarantine, times=2)
    document = json.loads(path.read_text())
    (account,) = document["accounts"]
    deaths = [{**account["deaths"][0], **death} for death in change.get("deaths", account["deaths"])]  # type: ignore[attr-defined]
    path.write_text(json.dumps({**document, "accounts": [{**account, **change, "deaths": deaths}]}))
    again = Quarantine(path, VERSIONS, clock)
    assert not refused(again)
    assert again.accounts() == []


def test_an_endlessly_nested_file_blames_no_model(path: Path, clock: FakeClock) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"schema": 1, "accounts": ' + "[" * 100_000)
    assert not refused(Quarantine(path, VERSIONS, clock))


def test_the_quarantine_survives_the_process(path: Path, quarantine: Quarantine, clock: FakeClock) -> None:
    kill(quarantine, times=2)
    assert refused(Quarantine(path, VERSIONS, clock))


def test_a_model_is_tried_again_with_other_versions(path: Path, quarantine: Quarantine, clock: FakeClock) -> None:
    kill(quarantine, times=2)
    updated = Quarantine(path, "onnxruntime 1.32.0, qnn_sdk 2.52.0", clock)
    assert not refused(updated)
    assert [account.versions for account in updated.accounts()] == [VERSIONS]
    kill(updated)
    assert not refused(updated)


def test_nothing_is_refused_before_the_versions_are_known(
    path: Path, quarantine: Quarantine, clock: FakeClock
) -> None:
    kill(quarantine, times=2)
    fresh = Quarantine(path, clock=clock)
    assert not refused(fresh)
    fresh.versions = VERSIONS
    assert refused(fresh)


def test_a_quarantine_ends_after_a_day(quarantine: Quarantine, clock: FakeClock) -> None:
    kill(quarantine, times=2)
    clock.sleep(TTL_S - 1)
    assert refused(quarantine)
    clock.sleep(1)
    assert not refused(quarantine)
    assert quarantine.accounts() == []
    kill(quarantine)
    assert not refused(quarantine), "after the day one kill is one kill again"


@pytest.mark.parametrize("years", [-1, 1])
def test_a_wall_clock_that_jumps_by_a_year_quarantines_no_model_for_a_year(
    quarantine: Quarantine, clock: FakeClock, years: int
) -> None:
    kill(quarantine, times=2)
    clock.wall_offset += years * 365 * 86400
    assert not refused(quarantine)
    kill(quarantine)
    assert not refused(quarantine)
    kill(quarantine)
    assert refused(quarantine)


def test_records_are_listed_and_cleared_by_a_prefix_of_their_id(quarantine: Quarantine, clock: FakeClock) -> None:
    kill(quarantine, times=2)
    clock.sleep(10)
    kill(quarantine, OTHER, times=2)
    kill(quarantine, NativeCall("d" * 64, "", "running", "once.onnx"))
    listed = quarantine.accounts()
    assert [account.model for account in listed] == ["other.onnx", "poison.onnx"]
    assert (quarantine.until(listed[0]) - quarantine.until(listed[1])).total_seconds() == 10
    assert quarantine.clear("no such id") == 0
    assert quarantine.clear(listed[1].id[:6]) == 1
    assert not refused(quarantine)
    assert refused(quarantine, OTHER)
    assert quarantine.clear() == 2
    assert not refused(quarantine, OTHER)


def test_clearing_a_model_clears_its_records_of_all_phases(quarantine: Quarantine) -> None:
    kill(quarantine, times=2)
    kill(quarantine, NativeCall(POISON.fingerprint, POISON.options_hash, "creating"), times=2)
    assert quarantine.clear(quarantine.accounts()[0].id) == 2
    assert not refused(quarantine)


def test_the_file_follows_the_environment_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", str(tmp_path))
    quarantine = Quarantine(versions=VERSIONS)
    kill(quarantine, times=2)
    assert quarantine.path == tmp_path / "quarantine.json"
    assert quarantine.path.is_file()


def test_a_folder_that_cannot_be_written_is_replaced_by_memory(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    quarantine = Quarantine(tmp_path / "file" / "quarantine.json", VERSIONS, clock)
    kill(quarantine, times=2)
    clock.sleep(RECHECK_S)
    assert refused(quarantine)
    assert quarantine.clear() == 1
    assert not refused(quarantine)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"schema": 99, "accounts": []}', '{"schema": 1, "accounts": [{"id": "x"}]}',
     '{"schema": 1, "accounts": {"a": 1}}', '{"schema": 1, "accounts": null}', "\x00\xff"],
)  # fmt: skip
def test_a_damaged_file_blames_no_model_and_is_replaced(path: Path, clock: FakeClock, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content, encoding="latin-1")
    quarantine = Quarantine(path, VERSIONS, clock)
    assert not refused(quarantine)
    kill(quarantine, times=2)
    assert refused(Quarantine(path, VERSIONS, clock))


def test_a_check_is_quick(quarantine: Quarantine) -> None:
    for n in range(20):
        kill(quarantine, NativeCall(f"{n:064x}", "", "running", f"{n}.onnx"), times=2)
    assert refused(quarantine, NativeCall(f"{7:064x}", "", "running"))
    count = 1000

    def seconds() -> float:
        begin = time.perf_counter()
        for _ in range(count):
            quarantine.check(POISON.fingerprint, POISON.options_hash)
        return (time.perf_counter() - begin) / count

    assert min(seconds() for _ in range(3)) < 0.001


def test_the_file_does_not_grow_forever(path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qnnbridge._supervision.blame.MAX_ACCOUNTS", 10)
    quarantine = Quarantine(path, VERSIONS, clock)
    for n in range(30):
        clock.sleep(1)
        kill(quarantine, NativeCall(f"{n:064x}", "", "running", f"{n}.onnx"))
    assert len(json.loads(path.read_text(encoding="utf-8"))["accounts"]) == 10


def test_threads_may_check_and_record_at_the_same_time(path: Path) -> None:
    quarantine = Quarantine(path, VERSIONS)
    failures: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for _ in range(10):
                kill(quarantine, NativeCall(f"{n:064x}", "", "running", f"{n}.onnx"))
                refused(quarantine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [account.points for account in quarantine.accounts()] == [10.0] * 4
