"""The result of `quantize_model`: as data, as text for a person, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_host.numerics.comparing import OutputComparison
from qnnbridge_tools import output, session_report
from qnnbridge_tools.models.quantize.qnn_check import QnnCheck
from qnnbridge_tools.models.quantize.settings import QuantizeSettings
from qnnbridge_tools.output import written_pairs


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizeResult:
    """One quantised model.

    Args:
        outputs: differences against the float model on the CPU, over `compared_samples`.
        held_out: those samples were not used for calibration; else they are the calibration samples themselves.
        qnn: only if it was asked for.
    """

    source: Path
    target: Path
    files: tuple[Path, ...]
    settings: QuantizeSettings
    calibration_samples: int
    compared_samples: int
    held_out: bool
    outputs: tuple[OutputComparison, ...]
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


def print_result(result: QuantizeResult) -> None:
    of = "held-out samples" if result.held_out else "calibration samples"
    print(f"Quantised against float, on the CPU, {result.compared_samples} {of}")
    _print_outputs(result.outputs)
    print()
    if result.qnn is not None:
        _print_qnn(result.qnn)
    settings = result.settings
    pairs = written_pairs(result.source, result.files)
    pairs += [
        ("size", f"{result.bytes_before:,} -> {result.bytes_after:,} bytes"),
        ("nodes", f"{sum(result.nodes_before.values())} -> {sum(result.nodes_after.values())}"),
        ("activations", settings.activation_type + (", symmetric" if settings.symmetric_activations else "")),
        ("weights", settings.weight_type + (", per channel" if settings.per_channel else ", per tensor")),
        ("calibration", f"{result.calibration_samples} samples, {settings.method}"),
        ("time", output.seconds(result.seconds)),
    ]
    pairs += [("note", change) for change in result.changes]
    pairs += [("warning", warning) for warning in result.warnings]
    output.print_pairs("Quantised", pairs)


def document(result: QuantizeResult) -> dict[str, Any]:
    return {
        "model": str(result.source),
        "files": [str(path) for path in result.files],
        "settings": result.settings.document(),
        "calibration_samples": result.calibration_samples,
        "compared_samples": result.compared_samples,
        "held_out": result.held_out,
        "outputs": [one.document() for one in result.outputs],
        "cosine": result.cosine,
        "nodes_before": dict(result.nodes_before),
        "nodes_after": dict(result.nodes_after),
        "bytes_before": result.bytes_before,
        "bytes_after": result.bytes_after,
        "qnn": result.qnn.document() if result.qnn else None,
        "notes": list(result.changes),
        "warnings": list(result.warnings),
        "seconds": result.seconds,
    }


def _print_outputs(outputs: Sequence[OutputComparison]) -> None:
    output.print_table(
        ["output", "cosine", "largest difference", "of the values"],
        [
            [
                one.name,
                "-" if one.cosine is None else f"{one.cosine:.6f}",
                one.mismatch or f"{one.max_abs:.4g}",
                f"{one.different} differ" if one.different else output.percent(one.max_relative),
            ]
            for one in outputs
        ],
    )


def _print_qnn(qnn: QnnCheck) -> None:
    if qnn.error is not None:
        print("On QNN: not run, see the error.")
    elif qnn.placement is not None:
        output.print_pairs("On QNN", session_report.placement_pairs(qnn.placement))
        print("QNN against float")
        _print_outputs(qnn.against_float)
        print("QNN against the quantised model on the CPU")
        _print_outputs(qnn.against_cpu)
    print()
