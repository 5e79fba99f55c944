"""What `fix_model` tells. Immutable data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from qnnbridge_tools.models.shared.checking import Check


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One rewrite that found something.

    changes: what it did, in words. check: against the original, None with --no-check. kept: False if the model did
    not compute the same afterwards, so that the rewrite was taken back; `reason` says why.
    """

    rewrite: str
    changes: tuple[str, ...]
    check: Check | None = None
    kept: bool = True
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class FixResult:
    """files: what was written, the model first. shapes: of the inputs as they are now. Nodes by operator."""

    source: Path
    target: Path
    files: tuple[Path, ...]
    shapes: Mapping[str, tuple[int | str | None, ...] | None]
    steps: tuple[Step, ...]
    nodes_before: Mapping[str, int]
    nodes_after: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def kept(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.kept)
