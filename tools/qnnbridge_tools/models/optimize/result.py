"""What `optimize_model` tells. Immutable data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from qnnbridge_tools.models.shared.checking import Check


@dataclasses.dataclass(frozen=True, slots=True)
class OptimizeResult:
    """One optimised, or passed through, model.

    files: what was written, the model first. passed_through: it is compiled and was copied unchanged. Nodes are
    counted by operator, with those of subgraphs and functions. changes: what was done besides optimising.
    check: None if none was asked for, or nothing was changed.
    """

    source: Path
    target: Path
    level: str
    files: tuple[Path, ...]
    passed_through: bool = False
    nodes_before: Mapping[str, int] = dataclasses.field(default_factory=dict)
    nodes_after: Mapping[str, int] = dataclasses.field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    check: Check | None = None
    seconds: float = 0.0
