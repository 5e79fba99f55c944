"""The measured wheels for Windows on ARM64 (`tests.labs.windows_arm64_wheels`) compared with what the tools report
about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qnnbridge_host.model.releases import Release, is_final, load_releases, version_key
from qnnbridge_tools.doctor.subjects import computer, library_files
from qnnbridge_tools.explanations import explain_text
from qnnbridge_tools.versions.fitness import NEWEST_ORT_TRIED, HostMachine, judge, known_faults

DATA = Path(__file__).resolve().parents[1] / "labs" / "windows_arm64_wheels.json"
WHEELS: list[dict[str, Any]] = json.loads(DATA.read_text("utf-8"))["wheels"]
RELEASES = {release.version: release for release in load_releases() if release.platform == "win_arm64"}
PYTHON = (3, 11)
RIGHT = {"providers": ["CPUExecutionProvider"], "largest": 3.0}
MISSES_DRIVER = f"WinError 126: misses {computer.FASTRPC}"

each_wheel = pytest.mark.parametrize(
    "row", WHEELS, ids=[f"{row['version']}+{row['onnxruntime'] or 'itself'}" for row in WHEELS]
)


def machine(row: dict[str, Any]) -> HostMachine:
    return HostMachine("win_arm64", "ARM64", PYTHON, ort=row["onnxruntime"])


def libraries(release: Release) -> set[str]:
    """Return the Windows libraries of QNN and its provider in the table of releases."""
    names = {name for found in release.library_sets for name in found.machines if name.endswith(".dll")}
    return {name for name in names if library_files.role_of(name) is not None}


def test_every_wheel_that_the_lab_can_import_was_measured() -> None:
    """After a new release in the table, run the program again."""
    wanted = {
        version
        for version, release in RELEASES.items()
        if version_key(version) >= version_key("1.20.0") and release.wheel_for(PYTHON) is not None
    }
    assert {row["version"] for row in WHEELS} == wanted
    assert max(row["onnxruntime"] or "0" for row in WHEELS) == NEWEST_ORT_TRIED


@each_wheel
def test_the_loaded_libraries_equal_those_of_the_table_and_stubs_require_the_driver(row: dict[str, Any]) -> None:
    loads = {name.removeprefix("load "): told for name, told in row["steps"].items() if name.startswith("load ")}
    assert loads.keys() == libraries(RELEASES[row["version"]])
    for name, told in loads.items():
        role = library_files.role_of(name)
        assert role is not None
        assert told == (MISSES_DRIVER if role[0] == "stub" else "ok"), name


@each_wheel
def test_a_release_works_with_the_onnxruntime_versions_that_versions_reports(row: dict[str, Any]) -> None:
    steps = row["steps"]
    assert steps["session CPU"] == RIGHT
    works = isinstance(steps["session QnnSaver"], dict) and "largest" in steps["session QnnSaver"]
    faults = [fault.code for fault in known_faults(RELEASES[row["version"]], machine(row))]
    assert works == ("ort-too-new" not in faults)
    (judged,) = (one for one in judge(machine(row)) if one.release.version == row["version"])
    if row["onnxruntime"] is not None:
        assert works == (judged.verdict != "refused")
    elif is_final(row["version"]):
        assert steps["import"] == [row["version"]]


@each_wheel
def test_every_fault_of_a_session_is_explained(row: dict[str, Any]) -> None:
    for name, told in row["steps"].items():
        if name.startswith(("session", "compile")) and "largest" not in told:
            text = told if isinstance(told, str) else f"{told['said']}\n{told['log']}"
            found = explain_text(text)
            assert found, (name, text)
            if "Htp" in name and "ort-too-new" not in [
                one.code for one in known_faults(RELEASES[row["version"]], machine(row))
            ]:
                assert any("NPU" in one.cause for one in found), (name, text, found)


def test_without_a_driver_nothing_compiles_for_the_npu() -> None:
    """Therefore the doctor is right to report a computer without the driver as blocked, also for ahead-of-time
    compilation.
    """
    assert not [row["version"] for row in WHEELS if isinstance(row["steps"]["compile QnnHtp"], list)]
