"""The result of `fix_model`, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from qnnbridge_host.numerics.comparing import ModelCheck


@dataclasses.dataclass(frozen=True, slots=True)
class RewriteStep:
    """One rewrite that found something.

    Args:
        changes: as text.
        check: against the original, None with --no-check.
        kept: False if the model did not compute the same afterwards, so that the rewrite was taken back; `reason`
            says why.
    """

    rewrite: str
    changes: tuple[str, ...]
    check: ModelCheck | None = None
    kept: bool = True
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class FixResult:
    """The result of `fix_model`.

    Nodes are counted by operator.

    Args:
        files: the files that were written, the model first.
        shapes: of the inputs as they are now.
    """

    source: Path
    target: Path
    files: tuple[Path, ...]
    shapes: Mapping[str, tuple[int | str | None, ...] | None]
    steps: tuple[RewriteStep, ...]
    nodes_before: Mapping[str, int]
    nodes_after: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def kept(self) -> tuple[RewriteStep, ...]:
        return tuple(step for step in self.steps if step.kept)
