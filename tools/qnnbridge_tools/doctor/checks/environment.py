"""Do environment variables stand in the way?"""

from __future__ import annotations

from collections.abc import Iterator

from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.facts import Facts
from qnnbridge_tools.doctor.findings import Finding
from qnnbridge_tools.doctor.survey.surroundings import KNOWN_VARIABLES


def find(facts: Facts) -> Iterator[Finding]:
    environment = facts.environment
    unset = 'setx {} ""' if facts.is_windows else "unset {}"
    if environment.get("PYTHONHOME"):
        yield finding(
            "env.pythonhome",
            "PYTHONHOME is set",
            f"PYTHONHOME={environment['PYTHONHOME']}",
            fix="Remove it: " + unset.format("PYTHONHOME"),
        )
    if environment.get("ORT_QNN_ENABLE_CPU_BACKEND", "") not in ("", "0"):
        yield finding(
            "env.cpu-backend",
            "ORT_QNN_ENABLE_CPU_BACKEND is set",
            f"ORT_QNN_ENABLE_CPU_BACKEND={environment['ORT_QNN_ENABLE_CPU_BACKEND']}",
            fix="Remove it: " + unset.format("ORT_QNN_ENABLE_CPU_BACKEND"),
        )
    if facts.unknown_variables:
        import difflib

        first = facts.unknown_variables[0]
        close = difflib.get_close_matches(first.upper(), KNOWN_VARIABLES, n=1)
        yield finding(
            "env.unknown-variable",
            f"{', '.join(facts.unknown_variables)} means nothing to qnnbridge",
            "known: " + ", ".join(KNOWN_VARIABLES),
            fix=f"Rename {first} to {close[0]}." if close else "Remove: " + unset.format(first),
        )
    if facts.unusable_values:
        name = facts.unusable_values[0].split("=")[0].split()[0]
        yield finding(
            "env.unusable-value",
            "a variable of qnnbridge has a value that cannot be used",
            *facts.unusable_values,
            fix="Give it another value, or remove it: " + unset.format(name),
        )


def healthy(facts: Facts) -> str | None:
    return None


CHECK = Check("environment", find, healthy)
