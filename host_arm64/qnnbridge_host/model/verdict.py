"""The answer to "can this compiled model run here?", in words. Immutable data."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

from qnnbridge_protocol.errors import ContextUnusable

Level = Literal["ok", "recompile recommended", "cannot run here"]

OK: Final = "ok"
RECOMPILE: Final = "recompile recommended"
CANNOT_RUN: Final = "cannot run here"

RECOMPILE_FIX: Final = "Recompile from the original model"


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """level, and why: `reason` goes on where the level ends, without a full stop; empty for ok.

    cause, fix, evidence as in errors. notes: whatever else is worth knowing, one sentence each; also of an ok.
    """

    level: Level
    reason: str = ""
    cause: str | None = None
    fix: str | None = None
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def can_run(self) -> bool:
        return self.level != CANNOT_RUN

    @property
    def message(self) -> str:
        """``cannot run here: its context binary m_qnn.bin is missing``."""
        return f"{self.level}: {self.reason}" if self.reason else self.level

    def error(self, label: str, path: str | None = None) -> ContextUnusable:
        """For a model called `label` that cannot run."""
        return ContextUnusable(
            f"{label} {self.message}.",
            cause=self.cause,
            fix=self.fix,
            evidence=self.evidence,
            details={"path": path, "verdict": self.level, "reason": self.reason, "notes": list(self.notes)},
        )


def cannot_run(reason: str, cause: str | None = None, fix: str | None = None, *evidence: str) -> Verdict:
    return Verdict(CANNOT_RUN, reason, cause, fix, evidence)
