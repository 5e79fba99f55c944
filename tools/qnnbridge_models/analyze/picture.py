"""The picture of an analysis: one HTML file with all that it needs in it, for any browser, without a network.

Dagre, in the form that Netron uses, lays the graph out in the browser. The page draws it on a canvas, so that
thousands of nodes move smoothly. All texts of the model reach the page as JSON and are shown as text, never as
markup.
"""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

from qnnbridge_host.graph.files import write_whole
from qnnbridge_host.model.graph_index import GraphTensor
from qnnbridge_models.analyze.analysis import Analysis, nodes_text, shares_of, verdict_text, work_text
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import output

WORDS = {
    "qnn": "on the NPU",
    "cpu": "on the CPU",
    "fails": "makes the session fail",
    "crash": "ends the process",
    "folded": "computed or merged before",
}
_PLACE, _LIBRARY = "@@DATA@@", "@@DAGRE@@"
_ASSETS = importlib.resources.files(__package__).joinpath("assets")


def refuse(path: Path, model: Path, *, overwrite: bool) -> None:
    """Raises `OptionError` if the picture cannot go there; to be called before any work is done."""
    # Before the work: an analysis may take minutes, and its picture would be lost.
    if path.is_dir():
        raise OptionError(f"{path} is a folder.", fix=f"Give the name of a file: {path / 'model.html'}")
    if path.exists() and (model.exists() and path.samefile(model)):
        raise OptionError(f"{path} is the model itself.", fix="Give another name for the picture.")
    if path.exists() and not overwrite:
        raise OptionError(f"{path} exists already.", fix="Give another name, or --overwrite to replace it.")


def write(analysis: Analysis, path: Path) -> None:
    """Writes the page whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page(analysis))


def page(analysis: Analysis) -> str:
    template = _ASSETS.joinpath("picture.html").read_text(encoding="utf-8")
    before, _, behind = template.partition(_PLACE)
    behind = behind.replace(_LIBRARY, _ASSETS.joinpath("dagre.min.js").read_text(encoding="utf-8"))
    # Nothing in it may end the script element that it is in.
    text = json.dumps(data(analysis), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return before + text.replace("<", "\\u003c") + behind


def data(analysis: Analysis) -> dict[str, Any]:
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
