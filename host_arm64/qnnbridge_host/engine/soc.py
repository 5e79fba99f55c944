"""Which Qualcomm chip a session computes for: names, numbers, HTP architectures, and the choice of a default.

Without an NPU the provider runs on Qualcomm's HTP simulator. There a session that names no chip is compiled for
the oldest architecture in 32-bit float, where most real models fail (QNN code 1002) or take minutes, and the
precision of one session leaks into the next. So on the simulator the chip is always said explicitly.
Pure functions on the table of chips; any thread.
"""

from __future__ import annotations

from qnnbridge_host.model.chips import CHIPS, chip_named, chip_of, simulated_chip
from qnnbridge_protocol.errors import OptionError


def parse(text: str) -> tuple[int, ...]:
    """The chips that a ``soc_model`` value names, as numbers. 0 means that no chip is named.

    Names are turned into numbers because releases before 2.7 ignore a name without an error.
    """
    numbers = []
    for part in text.split(","):
        word = part.strip()
        if word.isascii() and word.isdigit():
            numbers.append(int(word))
        elif (chip := chip_named(word)) is not None:
            numbers.append(chip.number)
        else:
            raise OptionError(
                f"soc_model={text!r}: {word!r} is neither a number nor the name of a chip.",
                cause="QNN would ignore it and compile for its default chip.",
                fix=_suggest(word),
            )
    return tuple(numbers)


def arch_of(number: int) -> int | None:
    """The HTP architecture of a chip (73 for V73), or ``None`` for a number that is not in the table."""
    chip = chip_of(number)
    return chip.arch if chip else None


def label(text: str) -> str:
    """A ``soc_model`` value for people: ``60 (SC8380XP)``."""
    words = []
    for number in parse(text):
        chip = chip_of(number)
        words.append(f"{number} ({chip.name})" if chip else str(number))
    return ", ".join(words)


def for_simulator(soc_model: str | None, htp_arch: str | None) -> str:
    """The explicit ``soc_model`` for the simulator: as the application said, else a chip of its architecture."""
    if soc_model is not None and parse(soc_model) != (0,):
        return soc_model
    return str(simulated_chip(None, htp_arch))


def _suggest(word: str) -> str:
    import difflib  # needed for mistakes only

    numbers = {chip.name: chip.number for chip in CHIPS}
    close = difflib.get_close_matches(word.upper(), numbers, n=1, cutoff=0.6)
    known = ", ".join(f"{name}={number}" for name, number in numbers.items())
    hint = f"Did you mean {close[0]} ({numbers[close[0]]})? " if close else ""
    return f"{hint}Give the number of the chip or one of the known names: {known}."
