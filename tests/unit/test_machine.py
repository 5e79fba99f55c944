"""The machine types of a file, an interpreter, this process and this computer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests import needs

from qnnbridge import _launch
from qnnbridge_os.processes import native_machine
from qnnbridge_os.programs import executable_machine, read_executable

HEADERS = Path(__file__).with_name("data") / "executables"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("arm64.dll", "ARM64"),
        ("arm64.pyd", "ARM64"),
        ("arm64x.dll", "ARM64"),
        ("arm64ec.dll", "ARM64EC"),
        ("x64.dll", "x64"),
        ("x64_python.exe", "x64"),
        ("x86.pyd", "x86"),
        ("aarch64.so", "aarch64"),
        ("x86_64.so", "x86_64"),
        ("hexagon.so", "hexagon"),
        ("trim.py", None),
        ("README.md", None),
    ],
)
def test_the_machine_type_is_read_from_the_header(name: str, expected: str | None) -> None:
    assert executable_machine(HEADERS / name) == expected


def test_a_file_for_two_machines_is_distinguished_from_one_for_arm64_alone() -> None:
    both, alone = (read_executable(HEADERS / name) for name in ("arm64x.dll", "arm64.dll"))
    assert both is not None
    assert alone is not None
    assert (both.machine, both.hybrid) == ("ARM64", True)
    assert (alone.machine, alone.hybrid) == ("ARM64", False)


@pytest.mark.parametrize("name", ["arm64ec.dll", "x86.pyd", "x86_64.so"])
def test_a_truncated_file_is_not_an_error(name: str, tmp_path: Path) -> None:
    whole = (HEADERS / name).read_bytes()
    file = tmp_path / name
    file.write_bytes(whole)
    answers = set()
    for length in range(len(whole), -1, -7):
        os.truncate(file, length)
        answers.add(executable_machine(file))
    assert None in answers
    assert answers <= {executable_machine(HEADERS / name), None}


def test_invalid_headers_are_not_an_error(tmp_path: Path) -> None:
    file = tmp_path / "nonsense.dll"
    whole = (HEADERS / "arm64ec.dll").read_bytes()
    for position in range(0x3C, 0x200):
        file.write_bytes(whole[:position] + b"\xff\xff" + whole[position + 2 :])
        read_executable(file)
    file.write_bytes(b"MZ" + b"\xff" * 200)
    assert read_executable(file) is None


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        executable_machine(tmp_path / "nothing")


@needs.linux
def test_this_process_has_the_machine_type_of_its_interpreter() -> None:
    assert _launch.process_machine() == executable_machine(sys.executable)
    assert native_machine() == os.uname().machine


@pytest.mark.parametrize(("platform", "expected"), [("win-amd64", "x64"), ("win-arm64", "ARM64"), ("win32", "x86")])
def test_a_windows_process_has_the_machine_type_that_its_python_was_built_for(
    platform: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_platform", lambda: platform)
    assert _launch.process_machine() == expected


@pytest.mark.parametrize("setting", ["home = {folder}\n", "home = /gone\nexecutable = {folder}/python.exe\n"])
def test_in_a_virtual_environment_the_machine_type_is_that_of_the_base_interpreter(
    tmp_path: Path, setting: str
) -> None:
    base = tmp_path / "base"
    scripts = tmp_path / "venv" / "Scripts"
    base.mkdir()
    scripts.mkdir(parents=True)
    (base / "python.exe").write_bytes((HEADERS / "arm64.dll").read_bytes())
    (scripts / "python.exe").write_bytes((HEADERS / "x64_python.exe").read_bytes())
    (tmp_path / "venv" / "pyvenv.cfg").write_text(setting.format(folder=base))
    assert _launch.interpreter_machine(str(scripts / "python.exe")) == "ARM64"
    assert _launch.interpreter_machine(str(base / "python.exe")) == "ARM64"
    assert executable_machine(scripts / "python.exe") == "x64"


def test_a_virtual_environment_without_its_base_has_the_machine_type_of_its_own_program(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /gone\n")
    (tmp_path / "python.exe").write_bytes((HEADERS / "x64_python.exe").read_bytes())
    assert _launch.interpreter_machine(str(tmp_path / "python.exe")) == "x64"
