"""Names of machines that users write."""

from __future__ import annotations

import pytest

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.versions.fitness import HostMachine, platform_of, read_chip, read_platform, read_python


@pytest.mark.parametrize(
    ("text", "hexagon"),
    [
        ("V73", 73),
        ("v81", 81),
        ("68", 68),
        ("Hexagon V79", 79),
        ("X Elite", 73),
        ("x plus", 73),
        ("X2 Elite", 81),
        ("8cx Gen 3", 68),
        ("Snapdragon 8 Elite", 79),
        ("8 Elite Gen 5", 81),
        ("SC8380XP", 73),
        ("Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU", 73),
    ],
)
def test_a_chip_is_recognised_by_its_names(text: str, hexagon: int) -> None:
    assert read_chip(text) == hexagon


@pytest.mark.parametrize("text", ["", "V12", "V70", "V99", "Core i7", "Snapdragon", "Gen 3 Elite", "777"])
def test_an_unknown_chip_is_refused_with_examples(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_chip(text)
    assert "V73" in str(raised.value.fix)


def test_a_name_that_two_kinds_of_chips_share_is_refused() -> None:
    with pytest.raises(OptionError, match="stands for several chips"):
        read_chip("Gen 3")


@pytest.mark.parametrize(
    ("text", "platform"),
    [
        ("win_arm64", "win_arm64"),
        ("win-arm64", "win_arm64"),
        ("arm64", "win_arm64"),
        ("win-amd64", "win_amd64"),
        ("win32", "win32"),
        ("linux-x86_64", "linux_x86_64"),
        ("manylinux_2_34_aarch64", "linux_aarch64"),
        ("manylinux2014_x86_64", "linux_x86_64"),
    ],
)
def test_a_platform_is_recognised_by_its_tags(text: str, platform: str) -> None:
    assert read_platform(text) == platform


def test_an_unknown_platform_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match="macosx") as raised:
        read_platform("macosx_11_0_arm64")
    assert "win_arm64" in str(raised.value.fix)
    with pytest.raises(OptionError, match="does not exist for machines of type 'riscv64'"):
        platform_of("riscv64")


@pytest.mark.parametrize("text", ["3.13", "3.13.2", "313", "cp313", "3.13.0rc1"])
def test_a_python_version_is_recognised_in_any_notation(text: str) -> None:
    assert read_python(text) == (3, 13)


@pytest.mark.parametrize("text", ["", "2.7", "three", "3", "3.13-arm64x"])
def test_an_invalid_python_version_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="is not a version of Python"):
        read_python(text)


def test_only_an_x64_python_on_an_arm_computer_is_emulated() -> None:
    assert HostMachine("win_amd64", "ARM64").is_emulated
    assert not HostMachine("win_amd64", "x64").is_emulated
    assert not HostMachine("win_arm64", "ARM64").is_emulated


def test_this_computer_is_recognised() -> None:
    machine = HostMachine.current()
    assert machine.python is not None
    assert machine.platform.startswith(("linux", "win"))
    assert machine.glibc is None or machine.glibc >= (2, 17)
