"""Catches configuration keys that are misspelt, among those that ONNX Runtime knows.

ONNX Runtime stores any key it is given and says nothing about one that it does not know. Its releases add keys, so
an unknown key is passed through, unless it is within two keystrokes of a known one. Constant data; any thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from qnnbridge_protocol.config_keys import RUN_KEYS, SESSION_KEYS
from qnnbridge_protocol.errors import OptionError

# Set to 1 in the host's environment, names of options are no longer checked (values still are).
ALLOW_UNKNOWN_ENV = "QNNBRIDGE_ALLOW_UNKNOWN_OPTIONS"

DISABLE_CPU_FALLBACK = "session.disable_cpu_ep_fallback"
RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
DISABLE_COMPILE = "session.disable_model_compile"
CONTEXT_ENABLE = "ep.context_enable"

_TYPO_DISTANCE = 2


def names_are_checked() -> bool:
    """Whether unknown names are refused."""
    return os.environ.get(ALLOW_UNKNOWN_ENV) != "1"


def refuse_misspelt(key: str, known: Iterable[str], what: str) -> None:
    """Raise `OptionError` if ``key`` is not known and nearly is."""
    known = list(known)
    if key in known or not names_are_checked():
        return
    for candidate in known:
        if abs(len(candidate) - len(key)) <= _TYPO_DISTANCE and _distance(key, candidate) <= _TYPO_DISTANCE:
            raise OptionError(
                f"{what} {key!r} is not known to ONNX Runtime.",
                cause="ONNX Runtime would store it without reading it.",
                fix=f"Did you mean {candidate!r}? To pass the name through unchecked, set {ALLOW_UNKNOWN_ENV}=1 "
                "in the environment of the host.",
                details={"option": key, "suggestion": candidate},
            )


def _distance(a: str, b: str) -> int:
    """How many insertions, deletions, replacements or swaps of neighbours lead from one word to the other."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(rows[i - 1][j] + 1, row[j - 1] + 1, rows[i - 1][j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, rows[i - 2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]


__all__ = [
    "ALLOW_UNKNOWN_ENV",
    "CONTEXT_ENABLE",
    "DISABLE_COMPILE",
    "DISABLE_CPU_FALLBACK",
    "RECORD_ASSIGNMENT",
    "RUN_KEYS",
    "SESSION_KEYS",
    "names_are_checked",
    "refuse_misspelt",
]
