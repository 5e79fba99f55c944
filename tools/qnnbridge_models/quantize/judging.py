"""The judgement of a quantised model: where it is poor, why, and what to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qnnbridge_host.graph import graphs
from qnnbridge_models.accuracy import Accuracy, OutputAccuracy
from qnnbridge_models.command_options import ResolvedSettings, type_warnings
from qnnbridge_models.quantize.folds import ENOUGH, FoldsReport
from qnnbridge_models.quantize.qnn_check import QnnCheck
from qnnbridge_models.quantize.samples import SampleSets
from qnnbridge_models.quantize.search import FoundPrecision

# Below this, QNN's own rounding does not explain what it computes of the same quantised model.
_QNN_AGREES_DB = 20.0
_BAD = ("poor", "useless")


def warnings(
    settings: ResolvedSettings,
    found: FoundPrecision,
    outputs: Sequence[OutputAccuracy],
    model: Any,
    samples: SampleSets,
    qnn: QnnCheck | None,
    folds: FoldsReport | None = None,
) -> list[str]:
    """In the order of the report: types, outputs on the CPU, samples, nodes, QNN."""
    lines = type_warnings(settings)
    if found.precision.wide_weights:
        lines.append("int16 weights run on V73 and newer only (Snapdragon X and later).")
    tries = ", ".join(to_try(settings, found, len(samples.calibration)))
    for output in outputs:
        if output.verdict in _BAD:
            lines.append(f"{_words(output, 'the float model')} Try {tries}.")
        elif output.verdict == "not shown":
            lines.append(
                f'Output "{output.name}" is nearly the same for all samples, so they do not show how good it is. '
                "Give samples that differ."
            )
    if not samples.held_out:
        lines.append("Compared on the calibration samples themselves, so the true difference may be larger.")
    elif len(samples.compared) < ENOUGH:
        lines.append(_few(len(samples.compared), folds))
    inside = _nodes_inside(model)
    if inside:
        lines.append(f"{inside} nodes inside of If, Loop or Scan stay float: the quantizer does not go there.")
    return lines + (_qnn_warnings(qnn) if qnn is not None else [])


def _few(held_out: int, folds: FoldsReport | None) -> str:
    """How few samples are held out, and what that is worth."""
    few = f"Only {held_out} sample{'s are' if held_out != 1 else ' is'} held out, which says little of others"
    if folds is None:
        return f"{few}: nothing good is shown. Give {ENOUGH} or more with --held-out {ENOUGH}."
    text = f"{few}. Each sample judged by a model that it did not calibrate, {folds}."
    if folds.samples < ENOUGH:
        text += f" {folds.samples} in all are too few to show anything good: give {ENOUGH} or more."
    return text


def to_try(settings: ResolvedSettings, found: FoundPrecision, samples: int) -> list[str]:
    """Options that may help, the most promising first."""
    tries: list[str] = []
    if settings.activation_type in ("uint8", "int8", "int16"):
        tries.append("--activation-type uint16")
    if not found.layers:
        tries.append("--target-snr 30 (keeps the layers that cost most in 16 bits or float)")
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


def _words(output: OutputAccuracy, than: str) -> str:
    """`Output "y" is useless: its boxes (columns 0 to 3 of axis 1) are off by up to 150 where ...`"""
    part = worst_part(output)
    of = f"{part.name} " if output.groups else ""
    return f'Output "{output.name}" is {output.verdict} against {than}: {of}{error_text(part)}.'


def worst_part(output: OutputAccuracy) -> Accuracy:
    """The part that the verdict is about."""
    # Only the parts that made the verdict: a good part must not be named as the cause.
    bad = [part for part in output.parts if part.verdict == output.verdict]
    return min(bad, key=lambda part: part.snr_db if part.snr_db is not None else 0.0)


def error_text(part: Accuracy) -> str:
    """What is wrong with one part, as text."""
    judged = part.judged
    if part.flat:
        return "is the same everywhere, where the float model's values differ"
    if judged.snr_db is None or part.varies < 0:
        return judged.reason or f"{100 * judged.off:.3g} % of the values are other ones"
    text = (
        f"has {judged.snr_db:.1f} dB and is off by up to {judged.max_abs:.4g}, "
        f"{100 * judged.max_relative:.3g} % of the largest value"
    )
    return text + (f"; {judged.lost} values are NaN or infinite" if judged.lost else "")


def _qnn_warnings(qnn: QnnCheck) -> list[str]:
    if qnn.absent is not None:
        return [
            f"Not checked on QNN: {qnn.absent.rstrip('.')}. What QNN computes may differ from the CPU's numbers."
        ]
    if qnn.error is not None or qnn.placement is None:
        return []  # shown as the error that it is
    lines = []
    if not qnn.all_on_qnn:
        cause = (qnn.placement.cause or "the reason is unknown").rstrip(".")
        lines.append(f"{qnn.placement.cpu_nodes} nodes are left on the CPU: {cause}.")
    lines += [
        f"QNN computes something else than the CPU does from the same quantised model. {_words(output, 'the CPU')} "
        "Try --target-snr 30, which finds the nodes and leaves them float."
        for output in qnn.against_cpu
        if output.snr_db is not None and output.snr_db < _QNN_AGREES_DB
    ]
    lines += [
        f"On QNN: {_words(output, 'the float model')}" for output in qnn.against_float if output.verdict in _BAD
    ]
    return lines


def _nodes_inside(model: Any) -> int:
    # The main graph is one of these graphs.
    return sum(len(graph.node) for graph in graphs.subgraphs(model.graph)) - len(model.graph.node)
