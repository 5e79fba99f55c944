"""Documents that qnnbridge reads outside of the cache: any value in any position is handled like a damaged
document, without an error.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import needs
from tests.daemon.daemons import new_discovery
from tests.fakes.commands import qnnbridge
from tests.unit.test_odd_records import EXTREMES, places, replaced, write_with_hash

from qnnbridge._daemon.discovery import (
    Discovery,
    look_at_discovery,
    make_runtime_folder,
    write_discovery,
)
from qnnbridge._diagnosis import CrashReports
from qnnbridge._supervision.blame import SCHEMA as QUARANTINE_SCHEMA
from qnnbridge._supervision.blame import DeathEntry, Quarantine, QuarantineAccount
from qnnbridge_host.cache.files import read_json
from qnnbridge_host.cache.measured import MeasuredPlace, MeasuredRow, MeasuredRows, keep_measured, read_measured
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.settings import state_dir
from qnnbridge_tools.doctor.examine import KIND, SCHEMA, read_snapshot

STEP = needs.length(7, 1)
ID = "20261121-101500-1be24c07"
FINGERPRINT, OPTIONS = "f" * 64, "o" * 32
REPORT = {
    "id": ID,
    "when": "2026-11-21T10:15:00.000+00:00",
    "exit": {"number": -11, "name": "SIGSEGV"},
    "phase": "running",
    "models": ["m.onnx"],
    "diagnoses": [{"cause": "it crashed", "fix": "none", "evidence": ["a line"]}],
}


def account() -> QuarantineAccount:
    death = DeathEntry(time.time(), 2.0, "SIGSEGV", None)
    made = QuarantineAccount("12345678", FINGERPRINT, OPTIONS, "running", "m.onnx", "1")
    return dataclasses.replace(made, deaths=(death,), since=time.time())


def for_each(content: Any, write: Callable[[Any], None], read: Callable[[], None]) -> None:
    """Write the document with another value in every position, and read it each time."""
    for at, place in enumerate([(), *places(content)]):
        for value in EXTREMES[at % STEP :: STEP]:
            write(replaced(content, place, value))
            read()


def as_text(path: Path) -> Callable[[Any], None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return lambda content: (path.write_text(json.dumps(content), "utf-8"), None)[1]


def test_an_unexpected_quarantine_file_is_tolerated() -> None:
    path = Quarantine().path
    content = {"schema": QUARANTINE_SCHEMA, "accounts": [dataclasses.asdict(account())]}
    as_text(path)(content)
    assert len(Quarantine(versions="1").accounts()) == 1

    def read() -> None:
        quarantine = Quarantine(versions="1")
        quarantine.fingerprints(OPTIONS)
        quarantine.check_source(lambda _source: False, OPTIONS)
        [quarantine.until(account).isoformat() for account in quarantine.accounts()]

    for_each(content, as_text(path), read)
    for arguments in (["quarantine"], ["quarantine", "clear", "--all"]):
        done = qnnbridge(*arguments)
        assert "Traceback" not in done.output


def test_unexpected_crash_reports_are_tolerated() -> None:
    path = state_dir() / "crashes" / f"{ID}.json"
    as_text(path)(REPORT)
    assert [one.id for one in CrashReports().summaries()] == [ID]

    def read() -> None:
        reports = CrashReports()
        reports.summaries()
        try:
            reports.read(ID)
            reports.read_text(ID)
        except OptionError:
            pass

    for_each(REPORT, as_text(path), read)
    for arguments in (["crashes", "list"], ["crashes", "show", ID]):
        assert "Traceback" not in qnnbridge(*arguments).output


def test_unexpected_measured_rows_are_tolerated() -> None:
    place = MeasuredPlace.of(60, True, {"onnxruntime": "1.32.0", "onnxruntime-qnn": "2.7.0"})
    rows = {"pad-edge": MeasuredRow("wrong", "d" * 32)}
    path = state_dir() / "known-wrong.json"
    keep_measured(MeasuredRows(place, rows, when=1.7e9), path)
    content = read_json(path)
    assert content is not None

    def write(value: Any) -> None:
        write_with_hash(path, value)
        # The date of the file is part of the cache key of the parsed document.
        time.sleep(0)

    for_each(content, write, lambda: (read_measured(path), None)[1])
    keep_measured(MeasuredRows(place, rows, when=1.7e9), path)
    assert len(read_measured(path)) == 1


@needs.posix
def test_an_unexpected_discovery_file_of_the_daemon_is_tolerated() -> None:
    folder = make_runtime_folder()
    discovery = new_discovery(folder)
    write_discovery(folder, discovery)
    path = next(one for one in folder.iterdir() if one.suffix == ".json")
    content = json.loads(path.read_text("utf-8"))

    def read() -> None:
        found = look_at_discovery(folder)
        assert found is None or isinstance(found, Discovery)

    for_each(content, as_text(path), read)


def test_an_unexpected_snapshot_of_doctor_is_refused_or_read(tmp_path: Path) -> None:
    made = tmp_path / "made.json"
    assert qnnbridge("doctor", "--quick", "--snapshot", made).returncode in (0, 1, 2)
    document = json.loads(made.read_text("utf-8"))
    assert (document["kind"], document["schema"]) == (KIND, SCHEMA)
    path = tmp_path / "odd.json"

    def read() -> None:
        try:
            read_snapshot(path)
        except OptionError:
            pass

    everywhere = list(places(document))
    for at, place in enumerate(everywhere[:: needs.length(9, 2)]):
        for value in EXTREMES[at % 5 :: 5]:
            as_text(path)(replaced(document, place, value))
            read()


@pytest.mark.parametrize("value", [b"\xff\xfe", b"[1", b"host = 1\n[host]\n", b"\x00" * 100, b"python = 1e999\n"])
def test_an_unexpected_configuration_file_is_refused_or_read(
    value: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(value)
    monkeypatch.setenv("QNNBRIDGE_CONFIG", str(path))
    done = qnnbridge("run", Path(__file__).parents[1] / "models" / "sigmoid.onnx", "--random", "--provider", "cpu")
    assert "Traceback" not in done.output
