"""The answer of `qnnbridge analyze` as a JSON document."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from qnnbridge_tools.models.analyze.result import Analysis, Placed
from qnnbridge_tools.models.analyze.summary import shares_of

SCHEMA_VERSION = 1


def document(analysis: Analysis, html: Path | None = None) -> dict[str, Any]:
    """`best` is QNN's own answer where there is one, else that of the rules."""
    truth = analysis.truth
    return {
        "schema_version": SCHEMA_VERSION,
        "model": str(analysis.path),
        "chip": analysis.chip,
        "source": "qnn" if analysis.from_qnn else "rules",
        "summary": dataclasses.asdict(shares_of(analysis, analysis.best)),
        "advice": [
            {
                "what": one.what,
                "why": one.why,
                "severity": one.severity,
                "nodes": [analysis.view.nodes[index].label for index in one.nodes],
                "macs": one.macs,
                "cuts_less": one.parts,
            }
            for one in analysis.advice
        ],
        "empty_tensors": list(analysis.empty),
        "parts": [[analysis.view.nodes[index].label for index in part] for part in analysis.best.parts],
        "nodes": [_node(analysis, index) for index in range(len(analysis.view.nodes))],
        "predicted": dataclasses.asdict(shares_of(analysis, analysis.predicted)),
        "truth": None
        if truth is None
        else {
            "summary": _shares(analysis, truth.placed),
            "error": truth.error.to_wire() if truth.error else None,
            "versions": dict(truth.versions),
            "simulator": truth.simulator,
            "rules_wrong": [analysis.view.nodes[index].label for index in truth.disagreements],
        },
        "not_asked": analysis.no_truth or None,
        "picture": str(html) if html else None,
        "seconds": {"rules": analysis.seconds_offline, "qnn": analysis.seconds_truth},
    }


def _shares(analysis: Analysis, placed: Placed | None) -> dict[str, Any] | None:
    return None if placed is None else dataclasses.asdict(shares_of(analysis, placed))


def _node(analysis: Analysis, index: int) -> dict[str, Any]:
    node, rule, cost = analysis.view.nodes[index], analysis.predicted.verdicts[index], analysis.costs[index]
    truth = analysis.truth.placed.verdicts[index] if analysis.truth and analysis.truth.placed else None
    return {
        "name": node.label,
        "op": node.op,
        "place": (truth or rule).place,
        "reason": (truth or rule).reason or None,
        "predicted": {
            "place": rule.place,
            "rule": rule.rule or None,
            "reason": rule.reason or None,
            "fix": rule.fix or None,
        },
        "macs": cost.macs,
        "weight_bytes": cost.weights,
    }
