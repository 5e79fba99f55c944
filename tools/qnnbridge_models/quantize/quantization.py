"""The result of `quantize_model` as a record, as text, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_host.graph import graphs
from qnnbridge_host.numerics.judge import NO_ERROR_DB
from qnnbridge_models.accuracy import Accuracy, OutputAccuracy, Verdict, lowest_snr, worst
from qnnbridge_models.command_options import ResolvedSettings, type_warnings
from qnnbridge_models.progress import Phase
from qnnbridge_models.quantize.candidates import ENOUGH, FoldsReport, shown_by
from qnnbridge_models.quantize.ort_quantizer import Precision
from qnnbridge_models.quantize.precision import LayerError
from qnnbridge_models.quantize.qnn_check import QnnCheck
from qnnbridge_models.quantize.samples import SampleSets
from qnnbridge_models.quantize.search import FoundPrecision
from qnnbridge_protocol.shown import Shown, listed, more
from qnnbridge_tools import output, reporting
from qnnbridge_tools.output import written_pairs

if TYPE_CHECKING:
    from qnnbridge_protocol.shown import Fact

_MOST_NAMES, _MOST_LAYERS = 6, 15
# A channel is reported if its SNR is at least this much lower than its output's.
_WORSE_DB = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Recalibration:
    """Comparison of the model calibrated with all samples and the model calibrated without the held-out samples.

    Args:
        kept: whether the model calibrated with all samples was written.
        samples: total number of samples.
        snr_db: SNR of the worst output of the model calibrated with all samples, over the held-out samples, by
            processor.
        reason: why the model was not kept.
    """

    kept: bool
    samples: int
    snr_db: dict[str, float]
    reason: str = ""

    @property
    def report_line(self) -> str:
        """Result of the comparison, for the report."""
        has = " and ".join(f"{snr:.1f} dB on {where}" for where, snr in self.snr_db.items())
        if not self.kept:
            return f"not calibrated with all {self.samples} samples: {self.reason}"
        seen = f"; on the compared samples, now calibration samples too, the file has {has}" if has else ""
        return f"after the comparison the file was calibrated with all {self.samples} samples{seen}"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class QuantizeResult(Shown):
    """Result of quantising one model.

    Args:
        precision: nodes that are not quantised like the rest.
        target_snr: requested SNR in dB.
        reached: true if the target is met, also on QNN if the model was checked there.
        layers: cost of quantising single layers, the worst first; empty if not requested.
        outputs: accuracy against the float model on the CPU, over `compared_samples`.
        held_out: true if the compared samples were not used for calibration.
        qnn: result of the check on QNN; None if no check was requested.
        recalibration: comparison of the model calibrated with all samples; None if no sample was held out.
        folds: accuracy of the chosen model in folds of all samples, if few samples are held out.
        phases: duration of each phase, the longest first.
        tries: command-line options that may improve the model, see `to_try`.
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
    tries: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Verdict of the worst output, on QNN if the model ran there, else on the CPU.

        If few samples are held out, the worst fold counts as well. The verdict is "not shown" if there are too few
        samples.
        """
        there = self.qnn.verdict if self.qnn is not None else None
        found = there or worst(output.verdict for output in self.outputs)
        if self.folds is not None:
            return shown_by(worst((found, self.folds.verdict)), self.folds.samples)
        return shown_by(found, self.compared_samples)

    @property
    def snr_db(self) -> float | None:
        """SNR of the worst output on the CPU."""
        return lowest_snr(self.outputs)

    @property
    def better(self) -> tuple[str, ...]:
        """First suggested option and its value, as arguments, if the model is poor or useless; else empty."""
        first = next((text for text in self.tries if text.startswith("--")), "")
        return tuple(first.partition(" (")[0].split()) if self.verdict in _BAD else ()

    def _shown_name(self) -> str:
        return self.target.name

    def _shown_facts(self) -> Iterator[Fact]:
        yield _verdict_text(self), "" if self.good_enough and self.verdict not in _BAD else "problem"
        if self.qnn is not None and self.qnn.placement is not None:
            yield from self.qnn.placement._shown_facts()
        yield f"{self.bytes_before:,} -> {self.bytes_after:,} bytes", ""
        yield from more(self.warnings)

    @property
    def good_enough(self) -> bool:
        """True if no output is useless and the requested SNR, if any, is reached."""
        return self.reached and self.verdict != "useless" and all(o.verdict != "useless" for o in self.outputs)


def print_result(result: QuantizeResult) -> None:
    of = "held-out samples" if result.held_out else "calibration samples"
    print(f"Quantised model compared with the float model on the CPU, {result.compared_samples} {of}")
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
        "folds": dataclasses.asdict(result.folds) if result.folds else None,
        "outputs": [one.document() for one in result.outputs],
        "nodes_before": dict(result.nodes_before),
        "nodes_after": dict(result.nodes_after),
        "bytes_before": result.bytes_before,
        "bytes_after": result.bytes_after,
        "qnn": result.qnn.document() if result.qnn else None,
        "notes": list(result.changes),
        "warnings": list(result.warnings),
        "recalibration": dataclasses.asdict(result.recalibration) if result.recalibration else None,
        "seconds": result.seconds,
        "phases": [dataclasses.asdict(one) for one in result.phases],
    }


def _time_text(result: QuantizeResult) -> str:
    """Return the total time and each phase of at least 1 %: `86.2 s: on QNN 41 s (5 times), quantizing 18.2 s (9
    times)`.
    """
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
    every = (
        ("left in float", precision.float_nodes),
        ("activations of 16 bits", precision.wide_tensors),
        ("weights of 16 bits", precision.wide_weights),
    )
    return [(label, _listed(names)) for label, names in every if names]


def _listed(names: frozenset[str]) -> str:
    return f"{len(names)} nodes: {listed(sorted(names), _MOST_NAMES)}"


def _print_layers(layers: Sequence[LayerError]) -> None:
    print("Quantised alone, the worst output would have")
    output.print_table(
        ["SNR", "layer", "operator"],
        [[decibel(one.snr_db), one.layer.node, one.layer.op] for one in layers[:_MOST_LAYERS]],
    )
    print()


def decibel(snr_db: float | None) -> str:
    """Return `33.5 dB`, `exact` for results without noise, or `-` without an SNR."""
    if snr_db is None:
        return "-"
    return "exact" if snr_db >= NO_ERROR_DB else f"{max(snr_db, -99.9):.1f} dB"


def _print_outputs(outputs: Sequence[OutputAccuracy]) -> None:
    """Print a row for each output, for each of its column groups, and for its worst channel if that is clearly
    worse.
    """
    rows = []
    for one in outputs:
        rows.append(_row(one.name, one.whole, "" if one.groups else one.verdict))
        rows += [_row(f"  {group.name}", group, group.verdict) for group in one.groups]
        channel = one.worst_channel
        if channel is not None and (channel.snr_db or 0.0) < (one.whole.snr_db or 0.0) - _WORSE_DB:
            rows.append(_row(f"  {channel.name}", channel, ""))
    output.print_table(["output", "SNR", "largest error", "of the values", "decisions", "verdict"], rows)


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


# --- warnings: where the model is poor, why, and what to try ---------------------------------------------------

# Below this SNR, rounding does not explain why QNN and the CPU differ for the same quantised model.
_QNN_AGREES_DB = 20.0
_BAD = ("poor", "useless")


def warnings_on(
    settings: ResolvedSettings,
    found: FoundPrecision,
    outputs: Sequence[OutputAccuracy],
    model: Any,
    samples: SampleSets,
    qnn: QnnCheck | None,
    folds: FoldsReport | None = None,
) -> list[str]:
    """Return warnings in the order of the report: types, outputs on the CPU, samples, nodes, QNN."""
    lines = type_warnings(settings)
    if found.precision.wide_weights:
        lines.append("int16 weights run only on V73 and newer chips (Snapdragon X and later).")
    tries = ", ".join(to_try(settings, found, len(samples.calibration)))
    for one in outputs:
        if one.verdict in _BAD:
            lines.append(f"{_loss_words(one, 'the float model')} Try {tries}.")
        elif one.verdict == "not shown":
            lines.append(
                f'The values of output "{one.name}" hardly differ between the samples, so the accuracy of this '
                "output cannot be measured. Give samples that differ more."
            )
    if not samples.held_out:
        lines.append("Compared on the calibration samples themselves: the error for other inputs may be larger.")
    elif len(samples.compared) < ENOUGH:
        lines.append(_few(len(samples.compared), folds))
    inside = _nodes_inside(model)
    if inside:
        lines.append(f"{inside} nodes inside If, Loop or Scan stay float, because the quantizer skips subgraphs.")
    return lines + (_qnn_warnings(qnn) if qnn is not None else [])


def _few(held_out: int, folds: FoldsReport | None) -> str:
    """Return the warning about too few held-out samples, with the accuracy in the folds if it was measured."""
    samples = "samples are" if held_out != 1 else "sample is"
    few = f"Only {held_out} {samples} held out, too few to judge the accuracy for other inputs"
    if folds is None:
        return f"{few}. The model is not proven to be good. Hold out {ENOUGH} or more samples: --held-out {ENOUGH}."
    text = f"{few}. Cross-validation, in which each sample runs on a model calibrated without this sample: {folds}."
    if folds.verdict in _BAD and folds.reason:
        text += f" In one of the folds the model is {folds.verdict}: {folds.reason}."
    if folds.samples < ENOUGH:
        text += (
            f" {folds.samples} samples in total are too few to prove that a model is good: give {ENOUGH} or more."
        )
    return text


def to_try(settings: ResolvedSettings, found: FoundPrecision, samples: int) -> list[str]:
    """Return command-line options that may improve the model, the most promising first."""
    tries: list[str] = []
    if settings.activation_type in ("uint8", "int8", "int16"):
        tries.append("--activation-type uint16")
    if not found.layers:
        tries.append("--target-snr 30 (uses 16 bits or float for the layers that lose most)")
    if settings.weight_type == "int4":
        tries.append("--weight-type int8")
    elif not settings.per_channel:
        tries.append("--weight-type int8 --per-channel")
    elif settings.weight_type == "int8" and settings.activation_type == "uint16":
        tries.append("--weight-type int16 (V73 and newer)")
    if settings.method == "minmax":
        tries.append("--method percentile (ignores extreme values, which widen the ranges)")
    tries.append("more samples" if samples < 100 else "samples that resemble the later inputs")
    return tries


def _loss_words(one: OutputAccuracy, than: str) -> str:
    """Return a sentence such as `Output "y" is useless against the float model: boxes (columns 0 to 3 of axis 1)
    has 3.2 dB`.
    """
    # Consider only the column groups with the output's verdict: groups with a better verdict are not the cause.
    bad = [part for part in one.parts if part.verdict == one.verdict]
    part = min(bad, key=lambda part: part.snr_db if part.snr_db is not None else 0.0)
    of = f"{part.name} " if one.groups else ""
    return f'Output "{one.name}" is {one.verdict} against {than}: {of}{_error_text(part)}.'


def _error_text(part: Accuracy) -> str:
    """Return the error of an output or column group as text."""
    judged = part.judged
    if part.flat:
        return "has the same value everywhere, but the float model's values differ"
    if judged.snr_db is None or part.varies < 0:
        return judged.reason or f"{100 * judged.off:.3g} % of the values differ"
    text = (
        f"has {judged.snr_db:.1f} dB and is off by up to {judged.max_abs:.4g}, "
        f"{100 * judged.max_relative:.3g} % of the largest value"
    )
    return text + (f"; {judged.lost} values are NaN or infinite" if judged.lost else "")


def _qnn_warnings(qnn: QnnCheck) -> list[str]:
    if qnn.absent is not None:
        return [f"Not checked on QNN: {qnn.absent.rstrip('.')}. QNN's results may differ from the CPU's."]
    if qnn.error is not None or qnn.placement is None:
        return []  # the report shows the error separately
    lines = []
    if not qnn.all_on_qnn:
        cause = (qnn.placement.cause or "the reason is unknown").rstrip(".")
        lines.append(f"{qnn.placement.cpu_nodes} nodes run on the CPU: {cause}.")
    lines += [
        f"QNN and the CPU compute different results from the same quantised model. {_loss_words(one, 'the CPU')} "
        "Try --target-snr 30, which finds the responsible nodes and leaves them float."
        for one in qnn.against_cpu
        if one.snr_db is not None and one.snr_db < _QNN_AGREES_DB
    ]
    lines += [f"On QNN: {_loss_words(one, 'the float model')}" for one in qnn.against_float if one.verdict in _BAD]
    return lines


def _nodes_inside(model: Any) -> int:
    # Subtract the nodes of the main graph, which `subgraphs` includes.
    return sum(len(graph.node) for graph in graphs.subgraphs(model.graph)) - len(model.graph.node)
