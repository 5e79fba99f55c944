"""The table of chips, the choice of a chip for the simulator, and names of processors."""

from __future__ import annotations

import pytest

from qnnbridge_host.engine import qnn_options
from qnnbridge_host.model import chips


@pytest.mark.parametrize("arch", [None, "0", "68", "69", "73", "75", "79", "81", "99", "abc"])
@pytest.mark.parametrize("model", [None, "0", "60", "88", "SC8480XP", "sm8350", "4711"])
def test_both_sides_choose_the_same_chip_for_the_simulator(model: str | None, arch: str | None) -> None:
    (expected,) = qnn_options.parse_chips(qnn_options.chip_for_simulator(model, arch))
    assert chips.simulated_chip(model, arch) == expected


def test_an_unknown_chip_is_not_resolved() -> None:
    assert chips.simulated_chip("SC9999", None) is None
    assert chips.chip_named("SC9999") is None
    assert chips.chip_label(4711) == "SoC 4711"


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        ("Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU", "SC8380XP"),
        ("Snapdragon(R) X Plus - X1P42100 - Qualcomm(R) Oryon(TM) CPU", "SC8380XP"),
        ("Snapdragon(R) X - X126100 - Qualcomm(R) Oryon(TM) CPU", "SC8380XP"),
        ("Snapdragon(R) X2 Elite Extreme - X2E96100 - Qualcomm(R) Oryon(TM) CPU", "SC8480XP"),
        ("Snapdragon (TM) 8cx Gen 3 @ 3.0 GHz", "SC8280X"),
        ("Microsoft SQ3 @ 3.0 GHz", "SC8280X"),
        ("13th Gen Intel(R) Core(TM) i7-1360P", None),
        ("AMD Ryzen 9 7950X 16-Core Processor", None),
        ("Snapdragon 7c @ 2.40 GHz", None),
        ("", None),
    ],
)
def test_the_chip_of_a_windows_pc_is_recognised(processor: str, name: str | None) -> None:
    chip = chips.chip_of_processor(processor)
    assert (chip.name if chip else None) == name


def test_a_digit_of_another_script_is_not_part_of_a_chip_number() -> None:
    assert chips.simulated_chip("\u00b2", None) is None
