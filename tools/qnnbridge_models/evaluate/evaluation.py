"""The result of `evaluate_model`: as data, as a table for a person, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_models.quantize.quantization import decibel
from qnnbridge_models.shared.accuracy import OutputAccuracy, Verdict, lowest_snr, worst
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.specs import Placement
from qnnbridge_tools import output


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluatedRow:
    """One model on one provider.

    Args:
        provider: "cpu" or "qnn".
        placement: None if it does not run; `error` says why.
        metrics: what the user's metric gave.
        against_expected: of the outputs of which something is expected.
        against_cpu: against the first model on the CPU; empty for that one itself, and if it did not run.
        seconds: the median of a call, with the way to the host and back.
    """

    model: str
    provider: str
    placement: Placement | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    against_expected: tuple[OutputAccuracy, ...] = ()
    against_cpu: tuple[OutputAccuracy, ...] = ()
    seconds: float = 0.0
    error: BridgeError | None = None

    @property
    def verdict(self) -> Verdict | None:
        """Against what is expected, else against the first model on the CPU; None if there is neither."""
        outputs = self.against_expected or self.against_cpu
        return worst(one.verdict for one in outputs) if outputs else None

    def document(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "provider": self.provider,
            "placement": self.placement.to_wire() if self.placement else None,
            "metrics": dict(self.metrics),
            "verdict": self.verdict,
            "against_expected": [one.document() for one in self.against_expected],
            "against_cpu": [one.document() for one in self.against_cpu],
            "seconds": self.seconds,
            "error": self.error.to_wire() if self.error else None,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """A model and its quantised forms over samples. chip: stood for one on the simulator, if none was named."""

    source: Path
    samples: int
    rows: tuple[EvaluatedRow, ...]
    has_metric: bool
    chip: str | None
    seconds: float

    @property
    def good(self) -> bool:
        """Every row ran, and none is useless."""
        return all(row.error is None and row.verdict != "useless" for row in self.rows)


def document(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "model": str(evaluation.source),
        "samples": evaluation.samples,
        "rows": [row.document() for row in evaluation.rows],
        "soc_model": evaluation.chip,
        "good": evaluation.good,
        "seconds": evaluation.seconds,
    }


def print_result(evaluation: Evaluation) -> None:
    rows = evaluation.rows
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    expects = any(row.against_expected for row in rows)
    headers = ["model", "on", "nodes", *metrics, *(["SNR, expected"] if expects else []), "SNR, float on CPU"]
    headers += ["largest error", "decisions", "call", "verdict"]
    print(f"{evaluation.samples} samples")
    output.print_table(headers, [_row(row, metrics, expects) for row in rows])
    for row in rows:
        if row.error is not None:
            lines = [output.visible(line) for line in str(row.error).splitlines()]
            print("\n".join((f"\n{row.model} on {row.provider.upper()}: {lines[0]}", *lines[1:])))
    if evaluation.chip is not None:
        print(f"\nQNN is the simulator, for SoC {evaluation.chip}. Its times say nothing of an NPU.")


def _row(row: EvaluatedRow, metrics: Sequence[str], expects: bool) -> list[str]:
    if row.placement is None:
        return [row.model, row.provider.upper(), "does not run", *["-"] * (len(metrics) + expects + 4), "failed"]
    outputs = row.against_expected or row.against_cpu
    errors = [one.whole.judged.max_abs for one in outputs]
    decisions = [one.whole.judged.decisions for one in outputs if one.whole.judged.decisions is not None]
    return [
        row.model,
        row.provider.upper(),
        _nodes(row.placement),
        *(f"{row.metrics[name]:.4g}" if name in row.metrics else "-" for name in metrics),
        *([_worst_db(row.against_expected)] if expects else []),
        _worst_db(row.against_cpu),
        f"{max(errors):.4g}" if errors else "-",
        f"{100 * min(decisions):.4g} % same" if decisions else "-",
        output.seconds(row.seconds),
        row.verdict or "-",
    ]


def _worst_db(outputs: Sequence[OutputAccuracy]) -> str:
    return decibel(lowest_snr(outputs)) if outputs else "-"


def _nodes(placement: Placement) -> str:
    if not placement.known:
        return "-"
    return f"{placement.qnn_nodes} QNN, {placement.cpu_nodes} CPU"
