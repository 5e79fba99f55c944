"""A finding: one thing that is wrong, described, with its fix; and what a whole examination comes to.

What is always the same for a code (how bad, why it matters) is in `catalogue`; a check adds what it saw and the fix
for this very machine. Frozen data.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Any

from qnnbridge_tools.doctor.facts import Facts


class Severity(enum.IntEnum):
    """Also the exit code of the command."""

    HEALTHY = 0
    DEGRADED = 1
    BLOCKED = 2


class Effect(enum.Enum):
    """The effect of a blocking fault on an application that just tries."""

    UNUSABLE = "The NPU cannot be used"
    SILENT_CPU = "Sessions would silently run on the CPU"
    SIMULATOR = "Sessions would run in QNN's simulator instead of the NPU"
    DEATH = "The process that loads QNN would die"


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """The fix of a finding.

    Args:
        words: A sentence; empty where the commands say it.
        commands: Lines to copy in this order, each one command for the shells of that computer.
    """

    words: str = ""
    commands: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join((*([self.words] if self.words else []), *self.commands))


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Args:
        code: Stable name, `area.problem`.
        title: One clause, which the verdict can use.
        seen: Evidence.
    """

    code: str
    severity: Severity
    title: str
    seen: tuple[str, ...]
    why: str
    remedy: Remedy
    effect: Effect = Effect.UNUSABLE
    notes: tuple[str, ...] = ()

    @property
    def fix(self) -> str:
        """The words and, on lines of their own, the commands."""
        return self.remedy.text

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity.name.lower(),
            "title": self.title,
            "seen": list(self.seen),
            "why": self.why,
            "fix": self.fix,
            "commands": list(self.remedy.commands),
            **({"notes": list(self.notes)} if self.notes else {}),
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Healthy:
    """One line about something that was examined and is well."""

    check: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """findings: most blocking first."""

    findings: tuple[Finding, ...]
    healthy: tuple[Healthy, ...]
    verdict: str
    seconds: float = 0.0

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.HEALTHY)

    @property
    def exit_code(self) -> int:
        return int(self.severity)


@dataclasses.dataclass(frozen=True, slots=True)
class SubjectCheck:
    """A function that gives findings, or else one line that says what is well.

    Args:
        name: The beginning of the healthy line.
        find: The findings, none where all is well.
        healthy: The line, ``None`` where there is nothing to say on this computer.
    """

    name: str
    find: Callable[[Facts], Iterable[Finding]]
    healthy: Callable[[Facts], str | None] = lambda _facts: None
