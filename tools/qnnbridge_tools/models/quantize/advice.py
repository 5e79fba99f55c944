"""What is worth a warning about a quantised model, and what to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge_tools.models.quantize.settings import Settings
from qnnbridge_tools.models.shared import graphs
from qnnbridge_tools.models.shared.comparing import OutputDifference

if TYPE_CHECKING:
    from qnnbridge_tools.models.quantize.qnn_check import QnnCheck
    from qnnbridge_tools.models.quantize.sample_sets import SampleSets

POOR_COSINE = 0.99
"""Below this, results of classifiers and detectors begin to change."""
QNN_DIFFERS = 0.99


def warnings(
    settings: Settings, outputs: Sequence[OutputDifference], model: Any, samples: SampleSets, qnn: QnnCheck | None
) -> list[str]:
    told: list[str] = []
    for output in outputs:
        if output.cosine is not None and output.cosine < POOR_COSINE:
            told.append(
                f'Output "{output.name}" is far from the float model (cosine {output.cosine:.3f}). '
                f"Try {', '.join(to_try(settings, len(samples.calibration)))}."
            )
        elif output.mismatch or output.different:
            what = output.mismatch or f"{output.different} of {output.elements} elements are different"
            told.append(f'Output "{output.name}": {what}.')
    if not samples.held_out:
        told.append("Compared on the calibration samples themselves, so the true difference may be larger.")
    inside = _nodes_inside(model)
    if inside:
        told.append(f"{inside} nodes inside of If, Loop or Scan stay float: the quantizer does not go there.")
    if qnn is not None:
        told += _qnn_warnings(qnn)
    return told


def to_try(settings: Settings, samples: int) -> list[str]:
    """Options that may help, the most promising first."""
    tries: list[str] = []
    if settings.activation_type in ("uint8", "int8", "int16"):
        tries.append("--activation-type uint16")
    if settings.weight_type == "int4":
        tries.append("--weight-type int8")
    elif not settings.per_channel:
        tries.append("--weight-type int8 --per-channel")
    elif settings.weight_type == "int8" and settings.activation_type == "uint16":
        tries.append("--weight-type int16 (V73 and newer)")
    if settings.method == "minmax":
        tries.append("--method percentile (a few extreme values widen the ranges)")
    tries.append("more samples" if samples < 100 else "samples that are closer to what will come")
    return tries


def _qnn_warnings(qnn: QnnCheck) -> list[str]:
    if qnn.error is not None or qnn.placement is None:
        return []  # shown as the error that it is
    told = []
    if not qnn.all_on_qnn:
        cause = (qnn.placement.cause or "the reason is unknown").rstrip(".")
        told.append(f"{qnn.placement.cpu_nodes} nodes are left on the CPU: {cause}.")
    told += [
        f'Output "{output.name}": QNN computes something else than the CPU does from the same quantised model '
        f"(cosine {output.cosine:.3f})."
        for output in qnn.against_cpu
        if output.cosine is not None and output.cosine < QNN_DIFFERS
    ]
    return told


def _nodes_inside(model: Any) -> int:
    return sum(len(graph.node) for graph in graphs.subgraphs(model.graph)) - len(model.graph.node)
