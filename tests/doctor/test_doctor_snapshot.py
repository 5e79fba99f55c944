"""A snapshot suffices to diagnose a computer remotely, and contains no data about its user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from broken_machines import BROKEN, Broken
from machines import SimulatedMachine, snapdragon

from qnnbridge_os.outputs import OutputFile
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.doctor import examine
from qnnbridge_tools.doctor.examine import SurveyOptions, diagnose, read_snapshot, snapshot_text, survey


def written(machine: SimulatedMachine, folder: Path, order: SurveyOptions | None = None) -> Path:
    path = folder / "snapshot.json"
    path.write_text(snapshot_text(survey(machine, order or SurveyOptions()), machine), encoding="utf-8")
    return path


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_snapshot_gives_the_same_findings_as_the_computer(broken: Broken, tmp_path: Path) -> None:
    built = broken.build()
    machine, order = built if isinstance(built, tuple) else (built, SurveyOptions())
    report = diagnose(read_snapshot(written(machine, tmp_path, order)))
    assert [one.code for one in report.findings] == [broken.code]


def test_a_snapshot_contains_neither_the_user_name_nor_secrets(tmp_path: Path) -> None:
    machine, _, _ = snapdragon(home=r"C:\Users\Annabell.Meyer")
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = r"C:\Users\Annabell.Meyer\python\python.exe"
    machine.environ["GITHUB_TOKEN"] = machine.environ["AZURE_CLIENT_SECRET"] = "s3cr3t-value"
    machine.environ["PATH"] += r";D:\work of annabell.meyer\qnn;\\srv\home\Annabell.Meyer\bin"
    machine.environ["PYTHONPATH"] = r"c:/users/annabell.meyer/lib"
    text = written(machine, tmp_path).read_text("utf-8")
    assert "annabell" not in text.lower()
    assert "meyer" not in text.lower()
    assert "s3cr3t" not in text
    assert "TOKEN" not in text
    assert r"C:\\Users\\user\\python\\python.exe" in text


def test_a_non_ascii_name_stays_a_non_ascii_name(tmp_path: Path) -> None:
    machine, _, _ = snapdragon(home=r"C:\Users\Jürgen")
    path = written(machine, tmp_path)
    assert "rgen" not in path.read_text("utf-8")
    assert [one.code for one in diagnose(read_snapshot(path)).findings] == ["path.cache-not-ascii"]


def test_a_short_user_name_does_not_garble_words(tmp_path: Path) -> None:
    machine, _, _ = snapdragon(home=r"C:\Users\qn")
    assert "QnnHtp.dll" in written(machine, tmp_path).read_text("utf-8")


def test_a_snapshot_of_a_newer_doctor_can_be_read(tmp_path: Path) -> None:
    path = written(snapdragon("2.3.0")[0], tmp_path)
    document = json.loads(path.read_text("utf-8"))
    document["facts"]["moon"] = {"phase": 3}
    document["facts"]["driver"]["color"] = "blue"
    del document["facts"]["places"]
    path.write_text(json.dumps(document), encoding="utf-8")
    assert [one.code for one in diagnose(read_snapshot(path)).findings] == ["packages.qnn-too-old"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"kind": "other"}',
        '{"kind": "qnnbridge doctor snapshot", "schema": 99}',
        '{"kind": "qnnbridge doctor snapshot", "schema": 1}',
        '{"kind": "qnnbridge doctor snapshot", "schema": 1, "facts": {"computer": 3}}',
        '{"kind": "qnnbridge doctor snapshot", "schema": 1, "facts": {"qnnbridge": 3}}',
        "[" * 100_000,
    ],
)
def test_a_file_that_is_not_a_snapshot_is_refused_with_an_explanation(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match=r"x\.json"):
        read_snapshot(path)


@pytest.mark.parametrize("part", ["host", "driver", "probe", "application", "computer", "interpreters", "state"])
@pytest.mark.parametrize("value", [None, 3, "x", [], [[]], {"a": 1}, True])
def test_a_damaged_snapshot_is_refused_or_read_and_never_crashes(part: str, value: object, tmp_path: Path) -> None:
    path = written(snapdragon()[0], tmp_path)
    document = json.loads(path.read_text("utf-8"))
    document["facts"][part] = value
    path.write_text(json.dumps(document), encoding="utf-8")
    try:
        facts = read_snapshot(path)
    except OptionError:
        return
    assert diagnose(facts).verdict


def test_a_disk_that_becomes_full_during_the_diagnosis_does_not_hide_the_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    place = OutputFile(tmp_path / "x.json", overwrite=False)
    monkeypatch.setattr(OutputFile, "write_text", full)
    assert not examine._write(place, "{}")
    assert "x.json: No space left on device" in capsys.readouterr().err
