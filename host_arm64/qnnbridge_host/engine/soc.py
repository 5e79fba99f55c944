"""Which Qualcomm chip a session computes for: names, numbers, HTP architectures, and the choice of a default.

Without an NPU the provider runs on Qualcomm's HTP simulator. There a session that names no chip is compiled for
the oldest architecture in 32-bit float, where most real models fail (QNN code 1002) or take minutes, and the
precision of one session leaks into the next. So on the simulator the chip is always said explicitly.
Pure functions on constant tables; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from qnnbridge_protocol.errors import OptionError


class Soc(NamedTuple):
    """A chip: Qualcomm's part name, the number that QNN knows it by, its HTP architecture."""

    name: str
    number: int
    arch: int


# The chips that onnxruntime-qnn 2.7 knows by name. A number that is not here is passed through: QNN knows more.
KNOWN: tuple[Soc, ...] = (
    Soc("SM8350", 30, 68),
    Soc("SM8325", 34, 68),
    Soc("SM8450", 36, 69),
    Soc("SC8280X", 37, 68),
    Soc("SM8475", 42, 69),
    Soc("SM8550", 43, 73),
    Soc("SM8650", 57, 75),
    Soc("SC8380XP", 60, 73),
    Soc("SM8635", 68, 73),
    Soc("SM8750", 69, 79),
    Soc("SM7675", 70, 73),
    Soc("SM8850", 87, 81),
    Soc("SC8480XP", 88, 81),
)

# Snapdragon X Elite (SC8380XP), the chip of most Windows on Arm PCs with an NPU.
DEFAULT_SIMULATED_SOC = 60

# One chip per architecture that the simulator really runs (34 and 37 leave every node on the CPU there).
_SIMULATED_SOC_OF_ARCH: Mapping[int, int] = {68: 30, 69: 36, 73: 60, 75: 57, 79: 69, 81: 88}

_BY_NAME = {soc.name: soc for soc in KNOWN}
_BY_NUMBER = {soc.number: soc for soc in KNOWN}


def parse(text: str) -> tuple[int, ...]:
    """The chips that a ``soc_model`` value names, as numbers. 0 means that no chip is named.

    Names are turned into numbers because releases before 2.7 ignore a name without an error.
    """
    numbers = []
    for part in text.split(","):
        word = part.strip()
        if word.isascii() and word.isdigit():
            numbers.append(int(word))
        elif word.upper() in _BY_NAME:
            numbers.append(_BY_NAME[word.upper()].number)
        else:
            raise OptionError(
                f"soc_model={text!r}: {word!r} is neither a number nor the name of a chip.",
                cause="QNN would ignore it and compile for its default chip.",
                fix=_suggest(word),
            )
    return tuple(numbers)


def arch_of(number: int) -> int | None:
    """The HTP architecture of a chip (73 for V73), or ``None`` for a number that is not in the table."""
    soc = _BY_NUMBER.get(number)
    return soc.arch if soc else None


def label(text: str) -> str:
    """A ``soc_model`` value for people: ``60 (SC8380XP)``."""
    words = []
    for number in parse(text):
        soc = _BY_NUMBER.get(number)
        words.append(f"{number} ({soc.name})" if soc else str(number))
    return ", ".join(words)


def for_simulator(soc_model: str | None, htp_arch: str | None) -> str:
    """The explicit ``soc_model`` for the simulator: as the application said, else a chip of its architecture."""
    if soc_model is not None and parse(soc_model) != (0,):
        return soc_model
    arch = int(htp_arch) if htp_arch and htp_arch.isdigit() else 0
    return str(_SIMULATED_SOC_OF_ARCH.get(arch, DEFAULT_SIMULATED_SOC))


def _suggest(word: str) -> str:
    import difflib  # needed for mistakes only

    close = difflib.get_close_matches(word.upper(), _BY_NAME, n=1, cutoff=0.6)
    known = ", ".join(f"{soc.name}={soc.number}" for soc in KNOWN)
    hint = f"Did you mean {close[0]} ({_BY_NAME[close[0]].number})? " if close else ""
    return f"{hint}Give the number of the chip or one of the known names: {known}."
