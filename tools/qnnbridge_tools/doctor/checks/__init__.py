"""The checks: each one a module with a question of its own, a function of the facts.

A check gives findings, or else one line that says what is well (``None``: nothing to say on this computer).
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable
from typing import Final

from qnnbridge_tools.doctor.facts import Facts
from qnnbridge_tools.doctor.findings import Finding


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """name: what its healthy line begins with."""

    name: str
    find: Callable[[Facts], Iterable[Finding]]
    healthy: Callable[[Facts], str | None]


NAMES: Final = (
    "computer",
    "host",
    "application",
    "packages",
    "files",
    "sdk",
    "driver",
    "paths",
    "environment",
    "memory",
    "daemon",
    "probe",
    "model",
)
"""The modules, in the order of their healthy lines."""


def all_checks() -> tuple[Check, ...]:
    return tuple(importlib.import_module(f"{__name__}.{name}").CHECK for name in NAMES)
