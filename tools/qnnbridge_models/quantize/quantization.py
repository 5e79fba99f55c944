"""The result of `quantize_model`: as data, as text for a person, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_host.numerics.judge import NO_ERROR_DB
from qnnbridge_models.accuracy import Accuracy, OutputAccuracy, Verdict, lowest_snr, worst
from qnnbridge_models.command_options import ResolvedSettings
from qnnbridge_models.progress import Phase
from qnnbridge_models.quantize.folds import FoldsReport, shown_by
from qnnbridge_models.quantize.ort_quantizer import Precision
from qnnbridge_models.quantize.partial import LayerError
from qnnbridge_models.quantize.qnn_check import QnnCheck
from qnnbridge_models.quantize.recalibrating import Recalibration
from qnnbridge_tools import output, reporting
from qnnbridge_tools.output import written_pairs

_MOST_NAMES, _MOST_LAYERS = 6, 15
# A channel is reported where it is that much worse than its output.
_WORSE_DB = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizeResult:
    """One quantised model.

    Args:
        precision: the nodes that are not quantised as the rest is.
        target_snr: that was asked for, in dB; `reached` says whether it is met, on QNN too if that was checked.
        layers: what the quantisation of single layers costs, the worst first; empty if it was not measured.
        outputs: accuracy against the float model, on the CPU, over `compared_samples`.
        folds: the chosen model in folds of all samples, where few are held out.
        held_out: those samples were not used for calibration; else they are the calibration samples themselves.
        qnn: the check there; None if none was wanted.
        phases: what took the time, the longest first.
        recalibration: with the samples that were held out; None if none was.
    """

    source: Path
    target: Path
    files: tuple[Path, ...]
    settings: ResolvedSettings
    precision: Precision
    target_snr: float | None
    reached: bool
    layers: tuple[LayerError, ...]
    calibration_samples: int
    compared_samples: int
    held_out: bool
    outputs: tuple[OutputAccuracy, ...]
    nodes_before: Mapping[str, int]
    nodes_after: Mapping[str, int]
    bytes_before: int
    bytes_after: int
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    qnn: QnnCheck | None = None
    recalibration: Recalibration | None = None
    folds: FoldsReport | None = None
    seconds: float = 0.0
    phases: tuple[Phase, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Of the worst output, on QNN if it ran there, else on the CPU; of the worst fold where few samples are
        held out; "not shown" by too few."""
        there = self.qnn.verdict if self.qnn is not None else None
        found = there or worst(output.verdict for output in self.outputs)
        if self.folds is not None:
            return shown_by(worst((found, self.folds.verdict)), self.folds.samples)
        return shown_by(found, self.compared_samples)

    @property
    def snr_db(self) -> float | None:
        """Of the worst output on the CPU."""
        return lowest_snr(self.outputs)

    @property
    def good_enough(self) -> bool:
        """Not useless anywhere, and up to the target if there is one."""
        return self.reached and self.verdict != "useless" and all(o.verdict != "useless" for o in self.outputs)


def print_result(result: QuantizeResult) -> None:
    of = "held-out samples" if result.held_out else "calibration samples"
    print(f"Quantised against float, on the CPU, {result.compared_samples} {of}")
    _print_outputs(result.outputs)
    print()
    if result.layers:
        _print_layers(result.layers)
    if result.qnn is not None:
        _print_qnn(result.qnn)
    settings = result.settings
    pairs = written_pairs(result.source, result.files)
    pairs += [
        ("verdict", _verdict_text(result)),
        ("size", f"{result.bytes_before:,} -> {result.bytes_after:,} bytes"),
        ("nodes", f"{sum(result.nodes_before.values())} -> {sum(result.nodes_after.values())}"),
        ("activations", settings.activation_type + (", symmetric" if settings.symmetric_activations else "")),
        ("weights", settings.weight_type + (", per channel" if settings.per_channel else ", per tensor")),
        *_precision_pairs(result.precision),
        ("calibration", f"{result.calibration_samples} samples, {settings.method}"),
        *([("judged by", str(result.folds))] if result.folds is not None else []),
        ("time", _time_text(result)),
    ]
    pairs += [("note", change) for change in result.changes]
    pairs += [("warning", warning) for warning in result.warnings]
    output.print_pairs("Quantised", pairs)


def document(result: QuantizeResult) -> dict[str, Any]:
    return {
        "model": str(result.source),
        "files": [str(path) for path in result.files],
        "verdict": result.verdict,
        "snr_db": result.snr_db,
        "target_snr": result.target_snr,
        "reached": result.reached,
        "good_enough": result.good_enough,
        "settings": dataclasses.asdict(result.settings),
        "precision": {name: sorted(names) for name, names in dataclasses.asdict(result.precision).items()},
        "layers": [one.document() for one in result.layers],
        "calibration_samples": result.calibration_samples,
        "compared_samples": result.compared_samples,
        "held_out": result.held_out,
        "folds": result.folds.document() if result.folds else None,
        "outputs": [one.document() for one in result.outputs],
        "nodes_before": dict(result.nodes_before),
        "nodes_after": dict(result.nodes_after),
        "bytes_before": result.bytes_before,
        "bytes_after": result.bytes_after,
        "qnn": result.qnn.document() if result.qnn else None,
        "notes": list(result.changes),
        "warnings": list(result.warnings),
        "recalibration": result.recalibration.document() if result.recalibration else None,
        "seconds": result.seconds,
        "phases": [dataclasses.asdict(one) for one in result.phases],
    }


def _time_text(result: QuantizeResult) -> str:
    """`86.2 s: on QNN 41 s (5 times), quantizing 18.2 s (21 times)`: what takes a hundredth or more."""
    parts = [
        f"{one.name} {output.seconds(one.seconds)}" + (f" ({one.times} times)" if one.times > 1 else "")
        for one in result.phases
        if one.seconds >= result.seconds / 100
    ]
    return output.seconds(result.seconds) + (f": {', '.join(parts)}" if parts else "")


def _verdict_text(result: QuantizeResult) -> str:
    where = "on QNN" if result.qnn is not None and result.qnn.verdict is not None else "on the CPU"
    text = f"{result.verdict} {where}"
    if result.target_snr is not None:
        text += f", {result.target_snr:g} dB " + ("reached" if result.reached else "not reached")
    return text


def _precision_pairs(precision: Precision) -> list[tuple[str, str]]:
    pairs = []
    if precision.float_nodes:
        pairs.append(("left in float", _listed(precision.float_nodes)))
    if precision.wide_tensors:
        pairs.append(("activations of 16 bits", _listed(precision.wide_tensors)))
    if precision.wide_weights:
        pairs.append(("weights of 16 bits", _listed(precision.wide_weights)))
    return pairs


def _listed(names: frozenset[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - _MOST_NAMES} more" if len(shown) > _MOST_NAMES else ""
    return f"{len(shown)} nodes: {', '.join(shown[:_MOST_NAMES])}{more}"


def _print_layers(layers: Sequence[LayerError]) -> None:
    print("Quantised alone, the worst output would have")
    output.print_table(
        ["SNR", "layer", "operator"],
        [[decibel(one.snr_db), one.layer.node, one.layer.op] for one in layers[:_MOST_LAYERS]],
    )
    print()


def decibel(snr_db: float | None) -> str:
    """`33.5 dB`; exact results have no noise, and what is no number has no SNR."""
    if snr_db is None:
        return "-"
    return "exact" if snr_db >= NO_ERROR_DB else f"{max(snr_db, -99.9):.1f} dB"


def accuracy_rows(outputs: Sequence[OutputAccuracy]) -> list[list[str]]:
    """A row for each output, one for each group of its columns, and one for its worst channel if that is worse."""
    rows = []
    for one in outputs:
        rows.append(_row(one.name, one.whole, "" if one.groups else one.verdict))
        rows += [_row(f"  {group.name}", group, group.verdict) for group in one.groups]
        channel = one.worst_channel
        if channel is not None and (channel.snr_db or 0.0) < (one.whole.snr_db or 0.0) - _WORSE_DB:
            rows.append(_row(f"  {channel.name}", channel, ""))
    return rows


ACCURACY_HEADERS = ("output", "SNR", "largest error", "of the values", "decisions", "verdict")


def _row(name: str, one: Accuracy, verdict: str) -> list[str]:
    judged = one.judged
    return [
        name,
        decibel(judged.snr_db),
        judged.reason if judged.snr_db is None else f"{judged.max_abs:.4g}",
        f"{judged.lost} lost" if judged.lost else output.percent(judged.max_relative),
        "-" if judged.decisions is None else f"{100 * judged.decisions:.4g} % same",
        verdict,
    ]


def _print_outputs(outputs: Sequence[OutputAccuracy]) -> None:
    output.print_table(list(ACCURACY_HEADERS), accuracy_rows(outputs))


def _print_qnn(qnn: QnnCheck) -> None:
    if qnn.absent is not None:
        print(f"On QNN: not checked. {qnn.absent}")
    elif qnn.error is not None:
        print("On QNN: not run, see the error.")
    elif qnn.placement is not None:
        chip = f" (simulator, SoC {qnn.chip})" if qnn.chip is not None else ""
        output.print_pairs(f"On QNN{chip}", reporting.placement_pairs(qnn.placement))
        print("QNN against float")
        _print_outputs(qnn.against_float)
        print("QNN against the quantised model on the CPU")
        _print_outputs(qnn.against_cpu)
    print()
