"""The doctor, `versions` and `setup-host` on Windows ARM64: their results match the behaviour of that Windows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environments import doctor
from labs import CHECKOUT, HERE, WindowsArm64Lab, demand
from pip._vendor import distlib
from tests.doctor.machines import SimulatedMachine

from qnnbridge_tools.doctor.subjects.host import why_not_machine
from qnnbridge_tools.doctor.subjects.library_files import LOADABLE

pytestmark = pytest.mark.timeout(WindowsArm64Lab.SET_UP_TIMEOUT_S + 400.0)

DOCTOR = CHECKOUT / "tools" / "qnnbridge_tools" / "doctor" / "__main__.py"
TIMEOUT_S = 240.0
WRONG_FORMAT, CANNOT_EMULATE = 193, 731


@pytest.fixture(scope="module")
def facts(windows_arm64: WindowsArm64Lab) -> dict[str, Any]:
    libs = demand("windows/packages/onnxruntime_qnn/libs", "setup_windows.sh")
    launchers = Path(distlib.__file__).parent
    return windows_arm64.run(HERE / "windows_arm64_machines.py", libs, launchers).json()


@pytest.fixture
def windows_11(windows_arm64: WindowsArm64Lab) -> Iterator[WindowsArm64Lab]:
    """Run the lab as Windows 11. By default Wine is Windows 10, which cannot emulate x64: a correct finding."""
    windows_arm64.run(HERE / "windows_version.py", "win11").json()
    yield windows_arm64
    windows_arm64.run(HERE / "windows_version.py").json()


def test_the_machine_types_of_process_and_computer_are_reported(facts: dict[str, Any]) -> None:
    assert facts["this_process"] == ["ARM64", "ARM64", "ARM64", "win-arm64"]


def test_the_libraries_that_doctor_reports_as_loadable_are_those_that_windows_loads(facts: dict[str, Any]) -> None:
    """ARM64X libraries of the x64 package load, x64 and ARM64EC libraries do not."""
    assert {machine for machine, _ in facts["libraries"].values()} == {"x64", "ARM64EC", "ARM64X"}
    for name, (machine, said) in facts["libraries"].items():
        assert (said == WRONG_FORMAT) == (machine not in LOADABLE["win-arm64"]), (name, machine, said)
        assert (said == "ok") == (said != WRONG_FORMAT and "Stub" not in name), (name, machine, said)


def test_the_programs_that_doctor_accepts_as_hosts_are_those_that_windows_starts(facts: dict[str, Any]) -> None:
    assert {name: machine for name, (machine, _) in facts["programs"].items()} == {
        "t32.exe": "x86",
        "t64.exe": "x64",
        "t64-arm.exe": "ARM64",
    }
    windows = SimulatedMachine("Windows", "ARM64", {}, r"C:\Users\user", "user")
    for name, (machine, said) in facts["programs"].items():
        assert (why_not_machine(windows, machine) is None) == (said == "starts"), (name, machine, said)
        assert said in ("starts", CANNOT_EMULATE)


def test_pythons_in_both_registry_views_and_drivers_in_the_64_bit_view_are_found(
    facts: dict[str, Any],
) -> None:
    assert facts["registry_views"] == [
        ["QnnbridgeArm64/3.13", "QnnbridgeX86/3.13"],
        [r"C:\QnnbridgeArm64\python.exe", None],
    ]


def test_the_build_of_windows_is_right_in_a_program_without_a_manifest(facts: dict[str, Any]) -> None:
    told_to_python, build = facts["build_of_windows"]
    assert told_to_python == 9200  # Windows 8
    assert build > 19000


def test_the_complete_examination_finds_only_the_missing_driver(
    windows_11: WindowsArm64Lab, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshot.json"
    # The emulated probe takes a minute on a busy machine.
    done = windows_11.run(DOCTOR, "--json", "--timeout", 180, "--snapshot", snapshot, timeout_s=TIMEOUT_S)
    told = json.loads(done.stdout)
    assert [one["code"] for one in told["findings"]] == ["driver.missing"]
    assert done.returncode == told["exit_code"] == 2
    (found,) = told["findings"]
    assert "QnnHtpV73Stub.dll" in found["seen"][1]
    assert "libcdsprpc.dll, which belongs to the driver, is missing" in found["seen"][1]
    assert "Install the NPU driver" in found["fix"]
    assert found["notes"] == ["The live probe failed, too: QNN has no device to compute on."]
    lines = {one["check"]: one["text"] for one in told["healthy"]}
    assert lines["computer"] == "Windows on ARM64"
    assert "Python 3.11" in lines["host"]
    assert "win-arm64" in lines["host"]
    assert "hashes as in the package, stubs for V68, V73, V81" in lines["files"]
    here = doctor("--from-snapshot", snapshot)
    assert (here["verdict"], here["findings"]) == (told["verdict"], told["findings"])


def test_versions_names_the_newest_release_for_this_interpreter(windows_arm64: WindowsArm64Lab) -> None:
    told = json.loads(windows_arm64.run(HERE / "windows_module.py", "qnnbridge_tools", "versions", "--json").stdout)
    machine = told["machine"]
    assert (machine["platform"], machine["computer"], machine["python"]) == ("win_arm64", "ARM64", "3.11")
    assert told["best"] == told["releases"][0]["version"]
    assert all(one["platform"] == "win_arm64" for one in told["releases"])


def test_an_interpreter_without_venv_is_skipped_and_another_one_is_installed(
    windows_arm64: WindowsArm64Lab,
) -> None:
    ran = windows_arm64.run(HERE / "windows_module.py", "qnnbridge_tools", "setup", "--dry-run", "--json")
    assert ran.returncode == 0, ran.stdout
    told = json.loads(ran.stdout)
    assert "lacks venv or ensurepip" in told["passed_over"][0]
    assert told["downloads_python"] == "uv"
    assert "cpython-3.13-windows-aarch64-none" in [word for command in told["commands"] for word in command]
    assert told["interpreter"]["platform"] == "win-arm64"
