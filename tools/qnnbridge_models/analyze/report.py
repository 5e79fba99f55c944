"""The answer of `qnnbridge analyze`: for a person, as a JSON document, and as a picture."""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import textwrap
from pathlib import Path
from typing import Any

from qnnbridge_host.graph.files import write_whole
from qnnbridge_host.model.graph_index import GraphTensor
from qnnbridge_models.analyze.analysis import (
    Analysis,
    GraphPlacement,
    nodes_text,
    shares_of,
    times,
    verdict_text,
    work_text,
)
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import output

SCHEMA_VERSION = 1

_SHOWN_ADVICE = 8
_SHOWN_DISAGREEMENTS = 5
# Of advice, which is prose: a terminal of any width wraps it otherwise in the middle of words.
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
            "summary": None if truth.placed is None else dataclasses.asdict(shares_of(analysis, truth.placed)),
            "error": truth.error.to_wire() if truth.error else None,
            "versions": dict(truth.versions),
            "simulator": truth.simulator,
            "rules_wrong": [analysis.view.nodes[index].label for index in truth.disagreements],
        },
        "not_asked": analysis.no_truth or None,
        "picture": str(html) if html else None,
        "seconds": {"rules": analysis.seconds_offline, "qnn": analysis.seconds_truth},
    }


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


# --- the picture: one HTML file with all that it needs in it, for any browser, without a network ------------

WORDS = {
    "qnn": "on the NPU",
    "cpu": "on the CPU",
    "fails": "makes the session fail",
    "crash": "ends the process",
    "folded": "computed or merged before",
}
# Where the template takes the data, and the library that lays the graph out.
_PLACE, _LIBRARY = "@@DATA@@", "@@DAGRE@@"
_ASSETS = importlib.resources.files(__package__).joinpath("assets")


def refuse_picture(path: Path, model: Path, *, overwrite: bool) -> None:
    """Raises `OptionError` if the picture cannot go there; to be called before any work is done."""
    # Before the work: an analysis may take minutes, and its picture would be lost.
    if path.is_dir():
        raise OptionError(f"{path} is a folder.", fix=f"Give the name of a file: {path / 'model.html'}")
    if path.exists() and (model.exists() and path.samefile(model)):
        raise OptionError(f"{path} is the model itself.", fix="Give another name for the picture.")
    if path.exists() and not overwrite:
        raise OptionError(f"{path} exists already.", fix="Give another name, or --overwrite to replace it.")


def write_picture(analysis: Analysis, path: Path) -> None:
    """Writes the page whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _page(analysis))


def _page(analysis: Analysis) -> str:
    template = _ASSETS.joinpath("picture.html").read_text(encoding="utf-8")
    before, _, behind = template.partition(_PLACE)
    # Before the data is there: a name in the model may be the mark itself.
    behind = behind.replace(_LIBRARY, _ASSETS.joinpath("dagre.min.js").read_text(encoding="utf-8"))
    # Nothing in it may end the script element that it is in.
    text = json.dumps(picture_data(analysis), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return before + text.replace("<", "\\u003c") + behind


def picture_data(analysis: Analysis) -> dict[str, Any]:
    """The data of the page. Keys of nodes have one letter, to keep the file small."""
    view, best = analysis.view, analysis.best
    part_of = {index: number for number, part in enumerate(best.parts) for index in part}
    wrong = set(analysis.truth.disagreements) if analysis.truth is not None else set()
    nodes = []
    for node in view.nodes:
        verdict, rule = best.verdicts[node.index], analysis.predicted.verdicts[node.index]
        makers = (view.origin(tensor.name) for tensor in node.given)
        nodes.append(
            {
                "n": node.label,
                "o": node.op,
                "p": verdict.place,
                "r": verdict.reason,
                "f": rule.fix if verdict.place != "qnn" else "",
                "g": part_of.get(node.index, -1),
                "i": [_tensor(tensor) for tensor in node.given],
                "u": [_tensor(tensor) for tensor in node.made],
                "e": sorted({maker.index for maker in makers if maker is not None}),
                "m": analysis.costs[node.index].macs,
                "w": analysis.costs[node.index].weights,
                "wrong": WORDS[rule.place] if node.index in wrong else "",
            }
        )
    shares = shares_of(analysis, best)
    error = analysis.truth.error if analysis.truth is not None else None
    return {
        "model": analysis.path.name,
        "chip": analysis.chip,
        "source": "QNN itself" if analysis.from_qnn else "the offline rules",
        "error": f"{error.message} {error.cause or ''}".strip() if error else "",
        "summary": {
            "nodes": shares.nodes,
            "qnn": shares.on_qnn,
            "cpu": shares.on_cpu,
            "folded": shares.folded,
            "parts": shares.parts,
        },
        "verdict": verdict_text(analysis, best),
        "nodesText": nodes_text(shares),
        "workText": work_text(shares),
        "advice": [
            {"what": one.what, "why": one.why, "severity": one.severity, "nodes": list(one.nodes)}
            for one in analysis.advice
        ],
        "words": WORDS,
        "nodes": nodes,
    }


def _tensor(tensor: GraphTensor) -> list[str]:
    shape = "?" if tensor.shape is None else output.shape_text(tensor.shape)
    return [tensor.name, tensor.type or "?", shape, "constant" if tensor.constant else ""]
