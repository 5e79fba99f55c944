"""Do environment variables stand in the way?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.commands import unset_variable
from qnnbridge_tools.doctor.facts import Facts
from qnnbridge_tools.doctor.findings import Finding, Remedy
from qnnbridge_tools.doctor.survey.surroundings import KNOWN_VARIABLES

PREFIX: Final = "QNNBRIDGE_"
_CLOSE: Final = 0.8
"""A letter or two wrong, missing or too many; CACHE_SIZE and CACHE_DIR, at 0.74, are two different things."""


def find(facts: Facts) -> Iterator[Finding]:
    environment = facts.environment
    if environment.get("PYTHONHOME"):
        yield finding(
            "env.pythonhome",
            "PYTHONHOME is set",
            f"PYTHONHOME={environment['PYTHONHOME']}",
            fix=removal(facts, "PYTHONHOME"),
        )
    if environment.get("ORT_QNN_ENABLE_CPU_BACKEND", "") not in ("", "0"):
        yield finding(
            "env.cpu-backend",
            "ORT_QNN_ENABLE_CPU_BACKEND is set",
            f"ORT_QNN_ENABLE_CPU_BACKEND={environment['ORT_QNN_ENABLE_CPU_BACKEND']}",
            fix=removal(facts, "ORT_QNN_ENABLE_CPU_BACKEND"),
        )
    if facts.unknown_variables:
        first = facts.unknown_variables[0]
        close = _close_name(first)
        yield finding(
            "env.unknown-variable",
            f"{', '.join(facts.unknown_variables)} means nothing to qnnbridge",
            "known: " + ", ".join(KNOWN_VARIABLES),
            fix=Remedy(f"Rename {first} to {close}.") if close else removal(facts, first),
        )
    if facts.unusable_values:
        name = facts.unusable_values[0].split("=")[0].split()[0]
        yield finding(
            "env.unusable-value",
            "a variable of qnnbridge has a value that cannot be used",
            *facts.unusable_values,
            fix=removal(facts, name, "Give it another value, or remove it"),
        )


def _close_name(name: str) -> str | None:
    """Judged by what follows the prefix that all of them share: that alone makes any two look alike."""
    import difflib

    known = {one.removeprefix(PREFIX): one for one in KNOWN_VARIABLES}
    close = difflib.get_close_matches(name.upper().removeprefix(PREFIX), known, n=1, cutoff=_CLOSE)
    return known[close[0]] if close else None


def removal(facts: Facts, name: str, words: str = "Remove it") -> Remedy:
    if facts.is_windows:
        words += (
            "; then open a new window. (Is it set for all users? Then as administrator, with 'Machine' for 'User'.)"
        )
    else:
        words += ", and take it out of your shell's profile."
    return Remedy(words, unset_variable(facts, name))


def healthy(facts: Facts) -> str | None:
    return None


CHECK = Check("environment", find, healthy)
