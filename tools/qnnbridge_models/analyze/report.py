"""The answer of `qnnbridge analyze`, for a person and as a JSON document."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

from qnnbridge_models.analyze.analysis import (
    Analysis,
    GraphPlacement,
    nodes_text,
    shares_of,
    times,
    verdict_text,
    work_text,
)
from qnnbridge_tools import output

SCHEMA_VERSION = 1

_SHOWN_ADVICE = 8
_SHOWN_DISAGREEMENTS = 5
_WIDTH = 110


def document(analysis: Analysis, html: Path | None = None) -> dict[str, Any]:
    """`best` is QNN's own answer where there is one, else that of the rules."""
    truth = analysis.truth
    return {
        "schema_version": SCHEMA_VERSION,
        "model": str(analysis.path),
        "chip": analysis.chip,
        "source": "qnn" if analysis.from_qnn else "rules",
        "verdict": verdict_text(analysis, analysis.best),
        "summary": dataclasses.asdict(shares_of(analysis, analysis.best)),
        "advice": [
            {
                "what": one.what,
                "why": one.why,
                "severity": one.severity,
                "code": one.code,
                "nodes": [analysis.view.nodes[index].label for index in one.nodes],
                "macs": one.macs,
                "cuts_less": one.parts,
            }
            for one in analysis.advice
        ],
        "empty_tensors": list(analysis.empty),
        "parts": [[analysis.view.nodes[index].label for index in part] for part in analysis.best.parts],
        "nodes": [_node_document(analysis, index) for index in range(len(analysis.view.nodes))],
        "predicted": dataclasses.asdict(shares_of(analysis, analysis.predicted)),
        "truth": None
        if truth is None
        else {
            "summary": _shares_document(analysis, truth.placed),
            "error": truth.error.to_wire() if truth.error else None,
            "versions": dict(truth.versions),
            "simulator": truth.simulator,
            "rules_wrong": [analysis.view.nodes[index].label for index in truth.disagreements],
        },
        "not_asked": analysis.no_truth or None,
        "picture": str(html) if html else None,
        "seconds": {"rules": analysis.seconds_offline, "qnn": analysis.seconds_truth},
    }


def _shares_document(analysis: Analysis, placed: GraphPlacement | None) -> dict[str, Any] | None:
    return None if placed is None else dataclasses.asdict(shares_of(analysis, placed))


def _node_document(analysis: Analysis, index: int) -> dict[str, Any]:
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


def print_analysis(analysis: Analysis, html: Path | None) -> None:
    output.print_pairs(analysis.path.name, _pairs(analysis, analysis.best))
    print()
    _print_advice(analysis)
    print()
    output.print_pairs("Where this is from", _sources(analysis, html))


def _pairs(analysis: Analysis, placed: GraphPlacement) -> list[tuple[str, str]]:
    shares = shares_of(analysis, placed)
    pairs = [("chip", analysis.chip), ("verdict", verdict_text(analysis, placed))]
    error = analysis.truth.error if analysis.truth is not None else None
    pairs += [("because", error.cause)] if error is not None and error.cause else []
    pairs.append(("nodes", nodes_text(shares)))
    if shares.folded:
        pairs.append(("", f"{shares.folded} more are computed beforehand"))
    pairs.append(("work", work_text(shares)))
    if shares.bytes:
        on_npu = f"{output.size_text(shares.bytes_on_qnn)} of {output.size_text(shares.bytes)}"
        pairs.append(("weights", f"{on_npu} belong to nodes on the NPU"))
    return pairs


def _print_advice(analysis: Analysis) -> None:
    if not analysis.advice:
        print("Nothing to do.")
        return
    print("What to do, most valuable first")
    for number, advice in enumerate(analysis.advice[:_SHOWN_ADVICE], 1):
        gain = []
        if advice.macs:
            moves = "multiplication moves" if advice.macs == 1 else "multiplications move"
            gain.append(f"{times(advice.macs)} {moves} to the NPU")
        if advice.parts:
            gain.append(f"{advice.parts} {'cut' if advice.parts == 1 else 'cuts'} less")
        for text, indent in ((advice.what, f"  {number}. "), (advice.why, "     "), ("; ".join(gain), "     ")):
            if text:
                lines = textwrap.wrap(output.visible(text), _WIDTH - len(indent), break_on_hyphens=False)
                print("\n".join((indent if n == 0 else "     ") + line for n, line in enumerate(lines)))
    if len(analysis.advice) > _SHOWN_ADVICE:
        print(f"  and {len(analysis.advice) - _SHOWN_ADVICE} more; --json has all")


def _sources(analysis: Analysis, html: Path | None) -> list[tuple[str, str]]:
    truth = analysis.truth
    pairs = [("rules", f"offline, in {output.seconds(analysis.seconds_offline)}")]
    if truth is None:
        pairs.append(("QNN", f"not asked: {analysis.no_truth}"))
    else:
        where = "HTP simulator, not an NPU" if truth.simulator else "NPU"
        versions = ", ".join(f"{k} {v}" for k, v in truth.versions.items() if k in ("onnxruntime_qnn", "qnn_sdk"))
        pairs.append(("QNN", f"{where}; {versions}; in {output.seconds(analysis.seconds_truth)}"))
        pairs += _agreement(analysis)
    if html is not None:
        pairs.append(("picture", str(html)))
    return pairs


def _agreement(analysis: Analysis) -> list[tuple[str, str]]:
    truth = analysis.truth
    if truth is None or truth.placed is None:
        return []
    judged = len([v for v in truth.placed.verdicts if v.place != "folded" and v.rule != "merged"])
    wrong = truth.disagreements
    same = f"all {judged}" if not wrong else f"{judged - len(wrong)} of {judged}"
    pairs = [
        ("both", f"what is shown above is QNN's answer; the rules alone (--offline) say the same of {same} nodes")
    ]
    for index in wrong[:_SHOWN_DISAGREEMENTS]:
        node = analysis.view.nodes[index]
        rule, true = analysis.predicted.verdicts[index], truth.placed.verdicts[index]
        pairs.append(("", f"{node.label} ({node.op}): rules {rule.place}, QNN {true.place} {true.reason}".rstrip()))
    return pairs
