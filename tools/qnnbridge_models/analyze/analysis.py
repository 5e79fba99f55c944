"""The result of `analyze_model`: placement, reason and cost of each node, their shares of the model, and the
report.

Immutable data and pure functions. Costs are estimates from shapes.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.model.double_edges import REWRITE
from qnnbridge_host.model.graph_index import GraphTensor
from qnnbridge_host.model.known_wrong import CODE as KNOWN_WRONG
from qnnbridge_models.analyze.costs import Cost
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.specs import IN_FILE, Placement
from qnnbridge_tools import output
from qnnbridge_tools.output import percent

# Where a node runs. folded: ONNX Runtime computes or removes the node before it places nodes. fails: no session can
# be created because of the node. crash: QNN crashes the process.
NodePlace = Literal["qnn", "cpu", "folded", "fails", "crash"]

BAD: Final = ("cpu", "fails", "crash")


@dataclasses.dataclass(frozen=True, slots=True)
class NodeVerdict:
    """The placement of one node, and the reason.

    Args:
        place: see `NodePlace`.
        rule: name of the rule that decided the placement; empty if no rule refuses the node.
        reason: explanation.
        fix: remedy.
    """

    place: NodePlace
    rule: str = ""
    reason: str = ""
    fix: str = ""


ON_QNN: Final = NodeVerdict("qnn")


@dataclasses.dataclass(frozen=True, slots=True)
class GraphPlacement:
    """Placement of all nodes, from the rules or from QNN.

    Args:
        verdicts: one for each node, in order.
        parts: for each part on QNN, the indexes of its nodes.
    """

    verdicts: tuple[NodeVerdict, ...]
    parts: tuple[tuple[int, ...], ...]

    def indexes(self, *places: NodePlace) -> list[int]:
        return [index for index, verdict in enumerate(self.verdicts) if verdict.place in places]


@dataclasses.dataclass(frozen=True, slots=True)
class QnnAnswer:
    """Placement or error that QNN reported.

    Args:
        placed: placement of the nodes; None if unknown.
        error: why no session was created.
        disagreements: indexes of nodes whose placement by the rules differs.
        versions: versions of the packages on the host.
        simulator: true if the result comes from the simulator.
        session: placement reported by the created session, which counts nodes after optimisation.
    """

    placed: GraphPlacement | None
    error: BridgeError | None = None
    disagreements: tuple[int, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    simulator: bool = False
    session: Placement | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """One recommendation.

    Args:
        what: the recommended action.
        why: reason for it.
        nodes: indexes of the affected nodes.
        macs: number of multiplications that would move to the NPU.
        parts: by how much the number of parts on QNN would decrease.
        severity: see `remedies._ORDER`.
        code: stable identifier of the kind of advice, such as "known-wrong"; empty for most advice.
    """

    what: str
    why: str
    nodes: tuple[int, ...] = ()
    macs: int = 0
    parts: int = 0
    severity: str = "cpu"
    code: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Analysis:
    """The result of `analyze_model`.

    Args:
        path: path of the model.
        chip: label of the chip.
        view: index of the graph.
        costs: cost of each node.
        predicted: placement by the rules.
        advice: recommendations, the most valuable first.
        empty: names of tensors without elements.
        truth: result from QNN; None without a host.
        no_truth: why there is no result from QNN.
        seconds_offline, seconds_truth: time that the rules and QNN took.
        enough_with_sizes: true if dimensions are free and the rules place all nodes on the NPU once sizes are
            fixed.
        sizes_free: true if inputs have dimensions without a size.
    """

    path: Path
    chip: str
    view: ModelIndex
    costs: Sequence[Cost]
    predicted: GraphPlacement
    advice: tuple[Advice, ...]
    empty: tuple[str, ...] = ()
    truth: QnnAnswer | None = None
    no_truth: str = ""
    seconds_offline: float = 0.0
    seconds_truth: float = 0.0
    enough_with_sizes: bool = False
    sizes_free: bool = False

    @property
    def best(self) -> GraphPlacement:
        """QNN's placement if known, else the prediction by the rules."""
        return self.truth.placed if self.truth is not None and self.truth.placed is not None else self.predicted

    @property
    def from_qnn(self) -> bool:
        return self.best is not self.predicted


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """Nodes in the file (see `qnnbridge_host.model.node_count`), their computations and the size of their weights,
    in total and on the NPU.

    Args:
        nodes: number of nodes that are not folded; a node with subgraphs counts with the nodes inside.
        folded: nodes that are computed or removed before any node is placed.
        work_known: False if most computations have no fixed shape, so that their amount is unknown.
        sizes_free: inputs have free dimensions, which may be why the amount is unknown.
    """

    nodes: int
    on_qnn: int
    on_cpu: int
    folded: int
    macs: int
    macs_on_qnn: int
    bytes: int
    bytes_on_qnn: int
    parts: int
    fails: bool
    work_known: bool
    sizes_free: bool = False

    @property
    def mac_share(self) -> float:
        return self.macs_on_qnn / self.macs if self.macs else 0.0

    @property
    def useful_share(self) -> tuple[float, str]:
        """(fraction of the model on the NPU, what it is a fraction of: "work", "weights" or "nodes")."""
        if self.work_known and self.macs:
            return self.mac_share, "work"
        if self.bytes:
            return self.bytes_on_qnn / self.bytes, "weights"
        return self.on_qnn / self.nodes if self.nodes else 0.0, "nodes"


def shares_of(analysis: Analysis, placed: GraphPlacement) -> Shares:
    qnn, cpu = placed.indexes("qnn"), placed.indexes("cpu")
    broken, folded = placed.indexes("fails", "crash"), placed.indexes("folded")
    costs = analysis.costs
    live = [*qnn, *cpu, *broken]
    nodes, macs = sum(costs[index].nodes for index in live), sum(costs[index].macs for index in live)
    guessed = sum(costs[index].guessed for index in live)
    beforehand = sum(costs[index].beforehand for index in live)
    return Shares(
        nodes,
        sum(costs[index].nodes for index in qnn),
        sum(costs[index].nodes for index in cpu),
        sum(costs[index].nodes + costs[index].beforehand for index in folded) + beforehand,
        macs,
        sum(costs[index].macs for index in qnn),
        sum(costs[index].weights for index in live),
        sum(costs[index].weights for index in qnn),
        len(placed.parts),
        bool(broken),
        2 * sum(costs[index].sized for index in live) > nodes and 2 * guessed <= macs,
        analysis.sizes_free,
    )


def verdict_text(analysis: Analysis, placed: GraphPlacement) -> str:
    """Return the result in one line, which is the same in the terminal, the page and the JSON document."""
    error = analysis.truth.error if analysis.truth is not None and placed is analysis.best else None
    shares = shares_of(analysis, placed)
    if error is not None:
        return f"no session can be created: {error.message}"
    if shares.fails:
        crash = any(verdict.place == "crash" for verdict in placed.verdicts)
        if not crash and all(one.rule == REWRITE for one in placed.verdicts if one.place == "fails"):
            return "QNN would fail with 64-bit floats"
        return "QNN would end the process" if crash else "no session could be created"
    if not shares.nodes:
        return "no node is left for the NPU: all nodes are computed in advance"
    pieces = "" if shares.parts <= 1 else f", cut into {shares.parts} pieces"
    # A node may appear in several findings, but is counted once.
    found = [one for one in analysis.advice if one.code == KNOWN_WRONG]
    wrong = len({index for one in found if one.severity != "fails" for index in one.nodes})
    if wrong:
        pieces += f", where {'a node computes' if wrong == 1 else f'{wrong} nodes compute'} wrong numbers"
    # A session with such a node can be created, but each run fails.
    failing = len({index for one in found if one.severity == "fails" for index in one.nodes})
    if failing:
        pieces += f", where QNN fails to run {'a node' if failing == 1 else f'{failing} nodes'}"
    if shares.on_qnn == shares.nodes:
        return "the whole model runs on the NPU" + pieces
    if analysis.enough_with_sizes:
        return "the rules predict that the whole model runs on the NPU once its sizes are fixed"
    if not shares.on_qnn:
        return "nothing runs on the NPU"
    share, measure = shares.useful_share
    if share < _NEARLY_NOTHING:
        return f"nearly nothing runs on the NPU, {_share_text(share)} of the {measure}{pieces}"
    return f"{_share_text(share)} of the {measure} {_VERBS[measure]} on the NPU{pieces}"


_NEARLY_NOTHING: Final = 0.01
_VERBS: Final = {"work": "runs", "weights": "are used", "nodes": "run"}


def _share_text(share: float) -> str:
    # Do not round to "0.0 %", which would mean none, or "100.0 %", which would mean all.
    if 0 < share < _LEAST_SHOWN:
        return "less than 0.1 %"
    return "more than 99.9 %" if 1 - _LEAST_SHOWN < share < 1 else percent(share)


_LEAST_SHOWN: Final = 0.0005


def nodes_text(shares: Shares) -> str:
    broken = shares.nodes - shares.on_qnn - shares.on_cpu
    text = f"{shares.nodes + shares.folded} {IN_FILE}: {shares.on_qnn} on the NPU, {shares.on_cpu} on the CPU"
    text += f", {broken} on which QNN fails" if broken else ""
    return text + (f", {shares.folded} computed in advance" if shares.folded else "")


def work_text(shares: Shares) -> str:
    if not shares.work_known:
        return "unknown until the sizes are fixed" if shares.sizes_free else "unknown: some shapes are unknown"
    return f"{_share_text(shares.mac_share)} of {times(shares.macs)} multiplications"


def times(number: int) -> str:
    """Return a number as text, for example `12.3 million`."""
    for limit, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if number >= limit:
            return f"{number / limit:.3g} {word}"
    return str(number)


# --- the report: as text, as a JSON document, and as an HTML page --------------------------------------

SCHEMA_VERSION = 1

_SHOWN_ADVICE = 8
_SHOWN_DISAGREEMENTS = 5
# Width at which advice texts are wrapped; a terminal would break longer lines inside words.
_WIDTH = 110


def document(analysis: Analysis, html: Path | None = None) -> dict[str, Any]:
    """Return the JSON document. Its `best` is QNN's placement if known, else the placement by the rules."""
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
            "nodes_after_optimisation": None
            if truth.session is None or not truth.session.known
            else {"qnn": truth.session.qnn_nodes, "cpu": truth.session.cpu_nodes},
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
        "nodes": cost.nodes,
        "macs": cost.macs,
        "weight_bytes": cost.weights,
    }


def print_analysis(analysis: Analysis, html: Path | None) -> None:
    output.print_pairs(analysis.path.name, _pairs(analysis, analysis.best))
    print()
    _print_advice(analysis)
    print()
    output.print_pairs("Sources", _sources(analysis, html))


def _pairs(analysis: Analysis, placed: GraphPlacement) -> list[tuple[str, str]]:
    shares = shares_of(analysis, placed)
    pairs = [("chip", analysis.chip), ("verdict", verdict_text(analysis, placed))]
    error = analysis.truth.error if analysis.truth is not None else None
    # If a known fault explains QNN's failure, report the fault: QNN's error message explains less.
    known = [one.why for one in analysis.advice if one.code == KNOWN_WRONG and one.severity == "fails"]
    causes = [*known, error.cause or ""] if error is not None else []
    pairs += [("because", cause) for cause in causes[:1] if cause]
    pairs.append(("nodes", nodes_text(shares)))
    session = analysis.truth.session if analysis.truth is not None else None
    if session is not None and session.known:
        pairs.append(("", session.nodes_text()))
    pairs.append(("work", work_text(shares)))
    if shares.bytes:
        on_npu = f"{output.size_text(shares.bytes_on_qnn)} of {output.size_text(shares.bytes)}"
        pairs.append(("weights", f"{on_npu} belong to nodes on the NPU"))
    return pairs


def _print_advice(analysis: Analysis) -> None:
    if not analysis.advice:
        print("No recommendations.")
        return
    print("Recommendations, most valuable first")
    for number, advice in enumerate(analysis.advice[:_SHOWN_ADVICE], 1):
        gain = []
        if advice.macs:
            moves = "multiplication moves" if advice.macs == 1 else "multiplications move"
            gain.append(f"{times(advice.macs)} {moves} to the NPU")
        if advice.parts:
            gain.append(f"cut into {advice.parts} fewer {'piece' if advice.parts == 1 else 'pieces'}")
        for text, indent in ((advice.what, f"  {number}. "), (advice.why, "     "), ("; ".join(gain), "     ")):
            if text:
                lines = textwrap.wrap(output.visible(text), _WIDTH - len(indent), break_on_hyphens=False)
                print("\n".join((indent if n == 0 else "     ") + line for n, line in enumerate(lines)))
    if len(analysis.advice) > _SHOWN_ADVICE:
        print(f"  and {len(analysis.advice) - _SHOWN_ADVICE} more; --json lists all")


def _sources(analysis: Analysis, html: Path | None) -> list[tuple[str, str]]:
    truth = analysis.truth
    pairs = [("rules", f"offline, in {output.seconds(analysis.seconds_offline)}")]
    if truth is None:
        pairs.append(("QNN", f"not used: {analysis.no_truth}"))
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
    counted = [
        cost.nodes if verdict.place != "folded" and verdict.rule != "merged" else 0
        for cost, verdict in zip(analysis.costs, truth.placed.verdicts, strict=True)
    ]
    judged, wrong = sum(counted), truth.disagreements
    same = f"all {judged}" if not wrong else f"{judged - sum(counted[index] for index in wrong)} of {judged}"
    pairs = [("both", f"QNN's placement is shown above; the rules alone (--offline) agree on {same} nodes")]
    for index in wrong[:_SHOWN_DISAGREEMENTS]:
        node = analysis.view.nodes[index]
        rule, true = analysis.predicted.verdicts[index], truth.placed.verdicts[index]
        pairs.append(("", f"{node.label} ({node.op}): rules {rule.place}, QNN {true.place} {true.reason}".rstrip()))
    return pairs


# --- the picture: a single HTML file that needs no network --------------------------------------------------

WORDS = {
    "qnn": "on the NPU",
    "cpu": "on the CPU",
    "fails": "makes the session fail",
    "crash": "ends the process",
    "folded": "computed or merged before",
}
# Placeholders in the template for the data and for the graph layout library.
_PLACE, _LIBRARY = "@@DATA@@", "@@DAGRE@@"
_ASSETS = importlib.resources.files(__package__).joinpath("assets")


def picture_page(analysis: Analysis) -> str:
    """Return the picture as an HTML page."""
    template = _ASSETS.joinpath("picture.html").read_text(encoding="utf-8")
    before, _, behind = template.partition(_PLACE)
    # Insert the library before the data: a tensor name in the data may contain the library's placeholder.
    behind = behind.replace(_LIBRARY, _ASSETS.joinpath("dagre.min.js").read_text(encoding="utf-8"))
    # Escape `<`, so that the data cannot close its script element.
    text = json.dumps(picture_data(analysis), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return before + text.replace("<", "\\u003c") + behind


def picture_data(analysis: Analysis) -> dict[str, Any]:
    """Return the data of the page. Properties of nodes have one-letter keys, to keep the file small."""
    view, best = analysis.view, analysis.best
    part_of = {index: number for number, part in enumerate(best.parts) for index in part}
    wrong = set(analysis.truth.disagreements) if analysis.truth is not None else set()
    known: dict[int, list[tuple[str, str]]] = {}
    for one in analysis.advice:
        for index in one.nodes if one.code == KNOWN_WRONG else ():
            known.setdefault(index, []).append((one.why, one.what))
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
                "k": known.get(node.index, []),
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
