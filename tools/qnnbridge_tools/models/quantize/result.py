"""What `quantize_model` tells. Immutable data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from qnnbridge_tools.models.quantize.qnn_check import QnnCheck
from qnnbridge_tools.models.quantize.settings import Settings
from qnnbridge_tools.models.shared.comparing import OutputDifference


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizeResult:
    """One quantised model.

    outputs: differences against the float model on the CPU, over `compared_samples`. held_out: those samples were
    not used for calibration; else they are the calibration samples themselves. unquantized: nodes that stayed float
    because they are inside of If, Loop or Scan. qnn: only if it was asked for.
    """

    source: Path
    target: Path
    files: tuple[Path, ...]
    settings: Settings
    calibration_samples: int
    compared_samples: int
    held_out: bool
    outputs: tuple[OutputDifference, ...]
    nodes_before: Mapping[str, int]
    nodes_after: Mapping[str, int]
    bytes_before: int
    bytes_after: int
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    qnn: QnnCheck | None = None
    seconds: float = 0.0

    @property
    def cosine(self) -> float | None:
        """Of the worst output in its worst sample."""
        return min((output.cosine for output in self.outputs if output.cosine is not None), default=None)
