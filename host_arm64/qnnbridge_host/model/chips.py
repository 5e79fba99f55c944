"""Qualcomm's chips as QNN knows them: model number, part name, Hexagon architecture, fast memory (VTCM).

Numbers, names and architectures are those that onnxruntime-qnn 2.7 knows (`soc_model`). The sizes of VTCM are
what Qualcomm's compiler 2.51 wrote into a context binary that was made for the chip. The names in shops are
Qualcomm's. Constant tables and pure functions; any thread.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from qnnbridge_protocol.records import NamedTuple


class Chip(NamedTuple):
    """name: Qualcomm's part name. arch: of the HTP, 73 for V73. product: its name in shops, as far as known."""

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

# The target of the simulator when a session names no chip.
DEFAULT_SIMULATED_CHIP: Final = 60

# One for each architecture that the simulator really runs (34 and 37 leave every node on the CPU there).
_SIMULATED_CHIP_OF_ARCH: Final = {68: 30, 69: 36, 73: 60, 75: 57, 79: 69, 81: 88}

_BY_NUMBER: Final = {chip.number: chip for chip in CHIPS}
_BY_NAME: Final = {chip.name: chip for chip in CHIPS}

# Words in the name that Windows gives the processor. The newest first: its name has the older one's in it.
_PROCESSORS: Final = (
    (r"\bX2[EP]?\b|\bX2E|\bX2P", 88),
    (r"\bX1[EP]|\bSnapdragon\b.*\bX (?:Elite|Plus)\b|\bSnapdragon(?:\(R\))? X\b", 60),
    (r"\b8cx Gen 3\b|\bSQ3\b", 37),
)


def chip_of(number: int) -> Chip | None:
    """The chip of a ``soc_model`` number; ``None`` for one that is not in the table (QNN knows more)."""
    return _BY_NUMBER.get(number)


def chip_named(text: str) -> Chip | None:
    """Return the chip of a number, a part name (SC8380XP), a name in shops ("X Elite") or a processor's name.

    Case does not count, nor does the word Snapdragon. ``None`` for a text that stands for no chip of the table or
    for several.
    """
    word = text.strip().upper()
    # `isdigit` is also true of superscripts, which `int` refuses.
    if word.isascii() and word.isdigit():
        return _BY_NUMBER.get(int(word))
    chips = chips_of_product(text)
    return _BY_NAME.get(word) or (chips[0] if len(chips) == 1 else chip_of_processor(text))


def chips_of_product(text: str) -> tuple[Chip, ...]:
    """Return the chips whose name in shops has these words; those with exactly this name if there are any."""
    words = text.strip().lower().replace("snapdragon", "").strip()
    exact = tuple(chip for chip in CHIPS if chip.product.lower() == f"snapdragon {words}")
    # "8 Gen 1" is not "8+ Gen 1".
    pattern = re.compile(rf"\b{re.escape(words)}\b(?!\+)")
    # A single letter is more likely a mistake than the name of a chip.
    return exact or tuple(chip for chip in CHIPS if len(words) > 1 and pattern.search(chip.product.lower()))


def known_chips_text() -> str:
    """Return the part names and numbers of all chips, for a message."""
    return ", ".join(f"{chip.name}={chip.number}" for chip in CHIPS)


def chip_label(number: int) -> str:
    """``SoC 60 (SC8380XP, V73)``; for an unknown one only the number."""
    chip = chip_of(number)
    return chip.label if chip else f"SoC {number}"


def simulated_chip(soc_model: str | None, htp_arch: str | None) -> int | None:
    """The chip that the simulator computes for, by a session's options; ``None`` for an unknown name."""
    if soc_model is not None and soc_model.strip() not in ("", "0"):
        # A list makes a binary for several chips, which the simulator does not load.
        first = soc_model.split(",")[0]
        chip = chip_named(first)
        return chip.number if chip else int(first) if first.isascii() and first.strip().isdigit() else None
    # Only where no chip is named: QNN, too, goes by soc_model if both are given.
    arch = int(htp_arch) if htp_arch and htp_arch.isascii() and htp_arch.isdigit() else 0
    return _SIMULATED_CHIP_OF_ARCH.get(arch, DEFAULT_SIMULATED_CHIP)


def chip_of_processor(name: str) -> Chip | None:
    """The chip of a Windows PC by its processor's name, "Snapdragon(R) X Elite - X1E80100 - ..."."""
    for words, number in _PROCESSORS:
        if re.search(words, name, re.IGNORECASE):
            return _BY_NUMBER[number]
    return None


def chip_of_this_computer() -> Chip | None:
    """Of a Windows PC with one of the known chips."""
    if sys.platform == "win32":
        from qnnbridge_os.windows_facts import processor_name

        return chip_of_processor(processor_name() or "")
    return None
