"""The doctor on real machines: this machine, this machine with broken or replaced packages, and the labs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from environments import cut_off, doctor, environment, own_copy, python_of
from labs import CHECKOUT, WindowsLab, demand

from qnnbridge_tools.doctor.machine import RealMachine, read_library
from qnnbridge_tools.doctor.subjects.library_files import survey_set

DOCTOR = CHECKOUT / "tools" / "qnnbridge_tools" / "doctor" / "__main__.py"


def codes(report: dict[str, Any]) -> list[str]:
    return [one["code"] for one in report["findings"]]


def line(report: dict[str, Any], check: str) -> str:
    return str(next(one["text"] for one in report["healthy"] if one["check"] == check))


def release(name: str) -> Path:
    return demand(f"pythons/releases/{name}", "setup_pythons.sh")


# --- this machine ---


@pytest.mark.simulator
def test_this_machine_is_healthy() -> None:
    pytest.importorskip("onnxruntime_qnn")
    report = doctor()
    assert codes(report) == []
    assert report["exit_code"] == 0
    assert report["verdict"] == "QNN works here, in its simulator: this computer has no NPU."
    assert "2 nodes on QNN, 0 on the CPU" in line(report, "live probe")


@pytest.mark.simulator
def test_a_truncated_backend_is_found_and_its_effect_is_confirmed(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    site = environment(tmp_path / "env", {})
    cut_off(own_copy(site, "onnxruntime_qnn") / "libQnnHtp.so", 4 << 20)
    report = doctor("--host-python", python_of(site))
    assert codes(report) == ["files.truncated"]
    found = report["findings"][0]
    assert "libQnnHtp.so: 4194304 bytes" in found["seen"][0]
    assert "install --force-reinstall --no-deps onnxruntime-qnn==" in found["fix"]
    assert any("live probe failed, too" in note for note in found["notes"])
    assert report["verdict"].startswith("The process that loads QNN would die, because libQnnHtp.so is cut off")
    assert report["exit_code"] == 2


@pytest.mark.simulator
def test_a_package_without_its_backend_is_found(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    site = environment(tmp_path / "env", {})
    (own_copy(site, "onnxruntime_qnn") / "libQnnHtp.so").unlink()
    report = doctor("--host-python", python_of(site))
    assert codes(report) == ["files.missing"]
    assert "libQnnHtp.so is missing" in report["verdict"]


# --- other releases ---


@pytest.mark.simulator
def test_a_provider_that_is_too_old_for_onnxruntime_is_found(tmp_path: Path) -> None:
    """pip allows this combination."""
    site = environment(tmp_path / "env", {"onnxruntime_qnn": release("onnxruntime-qnn-2.3.0")})
    report = doctor("--host-python", python_of(site))
    assert codes(report) == ["packages.qnn-too-old"]
    found = report["findings"][0]
    assert "onnxruntime-qnn 2.3.0 is too old for onnxruntime" in found["title"]
    assert found["commands"][-1].partition(" -m pip ")[2].startswith('install "onnxruntime>=')
    assert any("live probe failed, too" in note for note in found["notes"])


@pytest.mark.simulator
def test_an_onnxruntime_that_is_too_old_for_the_provider_is_found(tmp_path: Path) -> None:
    site = environment(tmp_path / "env", {"onnxruntime": release("onnxruntime-1.23.2")})
    report = doctor("--host-python", python_of(site))
    assert codes(report) == ["packages.onnxruntime-too-old"]
    found = report["findings"][0]
    assert '-m pip install -U "onnxruntime>=1.24.2"' in found["fix"]
    assert any("live probe failed, too" in note for note in found["notes"])
    assert report["verdict"].startswith("Sessions would silently run on the CPU, because onnxruntime 1.23.2")


@pytest.mark.simulator
def test_libraries_of_two_releases_in_one_package_are_found(tmp_path: Path) -> None:
    old = release("onnxruntime-qnn-2.3.0")
    site = environment(tmp_path / "env", {})
    library = own_copy(site, "onnxruntime_qnn") / "libQnnHtp.so"
    library.unlink()
    library.symlink_to(old / "onnxruntime_qnn" / "libQnnHtp.so")
    report = doctor("--host-python", python_of(site))
    assert codes(report) == ["files.mixed-builds"]
    assert any("libQnnHtp.so: 2.47.0." in seen for seen in report["findings"][0]["seen"])


# --- other machines ---


def test_an_interpreter_that_crashes_when_it_imports_onnxruntime_is_explained(arm64_python_broken: str) -> None:
    report = doctor("--host-python", arm64_python_broken)
    assert codes(report)[0] == "probe.import"
    found = report["findings"][0]
    assert "SIGSEGV" in found["seen"][0]
    assert "/proc/cpuinfo" in found["notes"][0]
    assert "mount /proc" in found["fix"]
    assert report["exit_code"] == 2


def test_a_windows_machine_is_healthy_and_its_snapshot_can_be_read_on_another_machine(
    windows_python: WindowsLab, tmp_path: Path
) -> None:
    path = tmp_path / "snapshot.json"
    report = windows_python.run(DOCTOR, "--json", "--snapshot", path)
    told = json.loads(report.stdout)
    assert codes(told) == [], told
    assert "Windows on x64" in line(told, "computer")
    assert "2 nodes on QNN, 0 on the CPU" in line(told, "live probe")
    here = doctor("--from-snapshot", path)
    assert (here["verdict"], codes(here)) == (told["verdict"], [])


def test_on_windows_a_program_of_another_machine_type_is_refused_as_a_host(windows_python: WindowsLab) -> None:
    from pip._vendor import distlib

    launcher = Path(distlib.__file__).with_name("t64-arm.exe")
    report = windows_python.run(DOCTOR, "--json", "--quick", "--host-python", launcher)
    told = json.loads(report.stdout)
    assert codes(told) == ["host.wrong-machine"]
    assert "it is an ARM64 program and this computer is x64" in told["findings"][0]["seen"][0]
    assert report.returncode == 2


@pytest.mark.parametrize(
    ("folder", "name", "machine"),
    [
        ("amd64", "QnnHtp.dll", "x64"),
        ("amd64", "onnxruntime_providers_qnn.dll", "x64"),
        ("arm64ec", "QnnHtp.dll", "ARM64X"),
        ("arm64ec", "QnnHtpV73Stub.dll", "ARM64X"),
        ("arm64ec", "onnxruntime_providers_qnn.dll", "ARM64EC"),
    ],
)
def test_the_machine_type_and_build_of_windows_libraries_are_read_from_the_files(
    folder: str, name: str, machine: str
) -> None:
    library = read_library(
        str(demand(f"windows/packages/onnxruntime_qnn/libs/{folder}/{name}", "setup_windows.sh")), version=True
    )
    assert library is not None
    assert library.machine == machine
    if name.startswith("Qnn"):
        assert library.version is not None
        assert library.version.startswith("2.")
        assert len(library.version.split(".")[3].split("_")[0]) == 12  # the time stamp of the build


def test_the_machine_type_and_build_of_linux_libraries_are_read_from_the_files() -> None:
    folder = demand("arm64/packages/onnxruntime_qnn", "setup_arm64.sh")
    backend = read_library(str(folder / "libQnnHtp.so"), version=True)
    assert backend is not None
    assert backend.machine == "aarch64"
    assert (backend.version or "").startswith("2.")
    skel = read_library(str(folder / "libQnnHtpV73Skel.so"), version=False)
    assert skel is not None
    assert skel.machine == "hexagon"


def test_real_skel_libraries_match_their_catalogues_and_a_changed_one_does_not(tmp_path: Path) -> None:
    folder = demand("windows/packages/onnxruntime_qnn/libs/arm64ec", "setup_windows.sh")
    for name in (
        "libQnnHtpV68Skel.so",
        "libQnnHtpV73Skel.so",
        "libQnnHtpV81Skel.so",
        "libqnnhtpv73.cat",
        "libqnnhtpv81.cat",
    ):
        (tmp_path / name).symlink_to(folder / name)

    def signed() -> dict[int | None, bool | None]:
        found = survey_set(RealMachine(), str(tmp_path), complete=True)
        assert found is not None
        return {file.arch: file.in_catalog for file in found.of("skel")}

    assert signed() == {68: None, 73: True, 81: True}
    skel = tmp_path / "libQnnHtpV73Skel.so"
    content = bytearray(skel.read_bytes())
    content[len(content) // 2] ^= 1
    skel.unlink()
    skel.write_bytes(content)
    assert signed() == {68: None, 73: False, 81: True}
