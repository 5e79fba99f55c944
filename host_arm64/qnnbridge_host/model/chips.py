"""Table of Qualcomm's chips: model number, part name, Hexagon architecture, fast memory (VTCM).

Numbers, part names and architectures come from onnxruntime-qnn 2.7 (`soc_model`). Qualcomm's compiler 2.51 recorded
the VTCM sizes in context binaries compiled for each chip. The product names are Qualcomm's. The module contains
only constants and functions without side effects, so it is thread-safe.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from qnnbridge_protocol.records import NamedTuple


class Chip(NamedTuple):
    """A chip. name: Qualcomm's part name. arch: its Hexagon architecture, 73 for V73. product: "" if unknown."""

    number: int
    name: str
    arch: int
    vtcm_mb: int
    product: str = ""

    @property
    def label(self) -> str:
        return f"SoC {self.number} ({self.name}, V{self.arch})"


CHIPS: Final = (
    Chip(30, "SM8350", 68, 4, "Snapdragon 888"),
    Chip(34, "SM8325", 68, 4),
    Chip(36, "SM8450", 69, 8, "Snapdragon 8 Gen 1"),
    Chip(37, "SC8280X", 68, 4, "Snapdragon 8cx Gen 3"),
    Chip(42, "SM8475", 69, 8, "Snapdragon 8+ Gen 1"),
    Chip(43, "SM8550", 73, 8, "Snapdragon 8 Gen 2"),
    Chip(57, "SM8650", 75, 8, "Snapdragon 8 Gen 3"),
    Chip(60, "SC8380XP", 73, 8, "Snapdragon X Elite and X Plus"),
    Chip(68, "SM8635", 73, 4, "Snapdragon 8s Gen 3"),
    Chip(69, "SM8750", 79, 8, "Snapdragon 8 Elite"),
    Chip(70, "SM7675", 73, 4, "Snapdragon 7+ Gen 3"),
    Chip(87, "SM8850", 81, 8, "Snapdragon 8 Elite Gen 5"),
    Chip(88, "SC8480XP", 81, 8, "Snapdragon X2 Elite"),
)

# The chip that the simulator simulates when a session sets no chip.
DEFAULT_SIMULATED_CHIP: Final = 60

# The chip to simulate for each architecture. Chips 34 and 37 are not used, because for them the simulator assigns
# all nodes to the CPU.
_SIMULATED_CHIP_OF_ARCH: Final = {68: 30, 69: 36, 73: 60, 75: 57, 79: 69, 81: 88}

_BY_NUMBER: Final = {chip.number: chip for chip in CHIPS}
_BY_NAME: Final = {chip.name: chip for chip in CHIPS}

# Patterns in the processor name that Windows reports, newest chip first: names of newer chips also match older
# patterns.
_PROCESSORS: Final = (
    (r"\bX2[EP]?\b|\bX2E|\bX2P", 88),
    (r"\bX1[EP]|\bSnapdragon\b.*\bX (?:Elite|Plus)\b|\bSnapdragon(?:\(R\))? X\b", 60),
    (r"\b8cx Gen 3\b|\bSQ3\b", 37),
)


def chip_of(number: int) -> Chip | None:
    """Return the chip of a ``soc_model`` number; ``None`` if the table lacks it (QNN supports more chips)."""
    return _BY_NUMBER.get(number)


def chip_named(text: str) -> Chip | None:
    """Return the chip with this number, part name (SC8380XP), product name ("X Elite") or processor name.

    Ignore case and the word Snapdragon. Return ``None`` if no chip of the table matches, or several do.
    """
    word = text.strip().upper()
    # Check for ASCII, because `isdigit` is also true for superscripts, which `int` refuses.
    if word.isascii() and word.isdigit():
        # `int` refuses thousands of digits.
        return _BY_NUMBER.get(int(word[:10]))
    chips = chips_of_product(text)
    return _BY_NAME.get(word) or (chips[0] if len(chips) == 1 else chip_of_processor(text))


def chips_of_product(text: str) -> tuple[Chip, ...]:
    """Return the chips whose product name equals `text`, or if there are none, contains it."""
    words = text.strip().lower().replace("snapdragon", "").strip()
    exact = tuple(chip for chip in CHIPS if chip.product.lower() == f"snapdragon {words}")
    # "8 Gen 1" must not match "8+ Gen 1".
    pattern = re.compile(rf"\b{re.escape(words)}\b(?!\+)")
    # A single letter is more likely a mistake than a product name.
    return exact or tuple(chip for chip in CHIPS if len(words) > 1 and pattern.search(chip.product.lower()))


def known_chips_text() -> str:
    """List all chips with part name and number, for a message."""
    return ", ".join(f"{chip.name}={chip.number}" for chip in CHIPS)


def chip_label(number: int) -> str:
    """Return ``SoC 60 (SC8380XP, V73)``, or only the number of an unknown chip."""
    chip = chip_of(number)
    return chip.label if chip else f"SoC {number}"


def simulated_chip(soc_model: str | None, htp_arch: str | None) -> int | None:
    """Return the chip number that the simulator simulates for these options; ``None`` for an unknown name."""
    if soc_model is not None and soc_model.strip() not in ("", "0"):
        # For a list of chips QNN compiles one binary for all of them, which the simulator does not load. So the
        # first chip is used.
        first = soc_model.split(",")[0]
        chip = chip_named(first)
        return chip.number if chip else int(first) if first.isascii() and first.strip().isdigit() else None
    # As in QNN, htp_arch is used only without soc_model.
    arch = int(htp_arch) if htp_arch and htp_arch.isascii() and htp_arch.isdigit() else 0
    return _SIMULATED_CHIP_OF_ARCH.get(arch, DEFAULT_SIMULATED_CHIP)


def chip_of_processor(name: str) -> Chip | None:
    """Return the chip for the processor name of a Windows PC, such as "Snapdragon(R) X Elite - X1E80100 - ..."."""
    for words, number in _PROCESSORS:
        if re.search(words, name, re.IGNORECASE):
            return _BY_NUMBER[number]
    return None


def chip_of_this_computer() -> Chip | None:
    """Return the chip of this computer; ``None`` except on Windows PCs whose chip is in the table."""
    if sys.platform == "win32":
        from qnnbridge_os.windows_facts import processor_name

        return chip_of_processor(processor_name() or "")
    return None
