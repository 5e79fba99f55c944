"""The result of `analyze_model`: the place of each node and the reason, its cost, the shares of a whole model.

Immutable data and pure functions. Costs are estimates from shapes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.model.known_wrong import CODE as KNOWN_WRONG
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.output import percent

# folded: ONNX Runtime computes it, or takes it away, before anything is placed. fails: no session can be made.
# crash: QNN ends the process.
NodePlace = Literal["qnn", "cpu", "folded", "fails", "crash"]

BAD: Final = ("cpu", "fails", "crash")

# Of an element. Those that are not listed (int8, uint8, bool) have one.
_BYTES: Final[Mapping[str, float]] = {
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int4", "uint4"), 0.5),
}


@dataclasses.dataclass(frozen=True, slots=True)
class NodeVerdict:
    """The place of one node, and the reason.

    Args:
        rule: which one decided, "" if none had an objection.
        reason: as text.
        fix: the remedy, as text.
    """

    place: NodePlace
    rule: str = ""
    reason: str = ""
    fix: str = ""


ON_QNN: Final = NodeVerdict("qnn")


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one node.

    Args:
        macs: multiplications with addition; of other operators one for each element.
        weights, results: bytes.
    """

    macs: int = 0
    weights: int = 0
    results: int = 0


def costs_of(view: ModelIndex) -> list[Cost]:
    """Of all nodes. The bytes of a constant count once, for the first node that takes it."""
    costs, left = [], dict(view.sizes)
    for node in view.nodes:
        # Without the domain: com.microsoft.Attention costs what Attention costs.
        formula = _FORMULAS.get(node.op.rpartition(".")[2])
        macs = formula(node) if formula else None
        if macs is None:
            macs = sum([tensor.elements or 0 for tensor in node.made])
        weights = sum([left.pop(tensor.name, 0) for tensor in node.given])
        results = sum([int((tensor.elements or 0) * _BYTES.get(tensor.type, 1)) for tensor in node.made])
        costs.append(Cost(macs, weights, results))
    return costs


def _convolution(node: GraphNode) -> int | None:
    weight, made = node.input(1), node.made[0]
    if weight is None or weight.fixed is None or made.elements is None:
        return None
    # Weights of Conv: outputs, inputs of a group, kernel. Each result takes one product for each of the latter two.
    return made.elements * math.prod(weight.fixed[1:])


def _transposed(node: GraphNode) -> int | None:
    data, weight = node.input(0), node.input(1)
    if data is None or weight is None or data.elements is None or weight.fixed is None:
        return None
    # Weights of ConvTranspose begin with the inputs: each element that goes in is multiplied with all the rest.
    return data.elements * math.prod(weight.fixed[1:])


def _matmul(node: GraphNode) -> int | None:
    data, made = node.input(0), node.made[0]
    if data is None or not data.fixed or made.elements is None:
        return None
    return made.elements * data.fixed[-1]


def _gemm(node: GraphNode) -> int | None:
    data, made = node.input(0), node.made[0]
    if data is None or not data.fixed or len(data.fixed) != 2 or made.elements is None:
        return None
    return made.elements * data.fixed[0 if node.get("transA", 0) else 1]


def _recurrent(node: GraphNode) -> int | None:
    data, weight, again = node.input(0), node.input(1), node.input(2)
    if data is None or weight is None or again is None:
        return None
    if not data.fixed or weight.elements is None or again.elements is None or len(data.fixed) < 2:
        return None
    # Each step of each sequence uses all weights of both matrices once.
    return data.fixed[0] * data.fixed[1] * (weight.elements + again.elements)


def _attention(node: GraphNode) -> int | None:
    query, key = node.input(0), node.input(1)
    if query is None or key is None or query.elements is None or not key.fixed or len(key.fixed) < 2:
        return None
    # Two products: query with key gives the scores, and the scores are multiplied with the values.
    return 2 * query.elements * key.fixed[-2]


_FORMULAS: Final[Mapping[str, Callable[[GraphNode], int | None]]] = {
    "Conv": _convolution,
    "ConvInteger": _convolution,
    "ConvTranspose": _transposed,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "FusedMatMul": _matmul,
    "Gemm": _gemm,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Attention": _attention,
}


@dataclasses.dataclass(frozen=True, slots=True)
class GraphPlacement:
    """One source's answer: rules, or QNN itself.

    Args:
        verdicts: for each node in order.
        parts: indexes of the nodes of each part on QNN.
    """

    verdicts: tuple[NodeVerdict, ...]
    parts: tuple[tuple[int, ...], ...]

    def indexes(self, *places: NodePlace) -> list[int]:
        return [index for index, verdict in enumerate(self.verdicts) if verdict.place in places]


@dataclasses.dataclass(frozen=True, slots=True)
class QnnAnswer:
    """The answer of QNN itself.

    Args:
        error: why there is no session.
        placed: None if not even a part of it is known.
        disagreements: nodes that the rules had elsewhere.
        versions: of the packages on the host.
    """

    placed: GraphPlacement | None
    error: BridgeError | None = None
    disagreements: tuple[int, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    simulator: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do.

    Args:
        nodes: indexes of the nodes concerned.
        macs: that would move to the NPU.
        parts: fewer cuts.
        code: of a finding that programs look for: "known-wrong".
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
        truth: QNN's answer; None without a host, `no_truth` says why.
        enough_with_sizes: its dimensions are free, and by the rules all of it runs on the NPU once they have sizes.
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

    @property
    def best(self) -> GraphPlacement:
        """QNN's answer where it is known, else the prediction."""
        return self.truth.placed if self.truth is not None and self.truth.placed is not None else self.predicted

    @property
    def from_qnn(self) -> bool:
        return self.best is not self.predicted


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """Counts without what is folded. Bytes are those of weights."""

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
    # False if most of the work has no fixed shape, so that its amount is unknown.
    work_known: bool

    @property
    def node_share(self) -> float:
        return self.on_qnn / self.nodes if self.nodes else 0.0

    @property
    def mac_share(self) -> float:
        return self.macs_on_qnn / self.macs if self.macs else 0.0


def shares_of(analysis: Analysis, placed: GraphPlacement) -> Shares:
    qnn, cpu = placed.indexes("qnn"), placed.indexes("cpu")
    broken, folded = placed.indexes("fails", "crash"), placed.indexes("folded")
    costs, nodes = analysis.costs, analysis.view.nodes
    live = [*qnn, *cpu, *broken]
    sized = [index for index in live if all(tensor.fixed is not None for tensor in nodes[index].made)]
    return Shares(
        len(live),
        len(qnn),
        len(cpu),
        len(folded),
        sum(costs[index].macs for index in live),
        sum(costs[index].macs for index in qnn),
        sum(costs[index].weights for index in live),
        sum(costs[index].weights for index in qnn),
        len(placed.parts),
        bool(broken),
        2 * len(sized) > len(live),
    )


def verdict_text(analysis: Analysis, placed: GraphPlacement) -> str:
    """The answer in one line, the same in the terminal, in the page and in the document."""
    error = analysis.truth.error if analysis.truth is not None and placed is analysis.best else None
    shares = shares_of(analysis, placed)
    if error is not None:
        return f"no session can be made: {error.message}"
    if shares.fails:
        crash = any(verdict.place == "crash" for verdict in placed.verdicts)
        return "QNN would end the process" if crash else "no session could be made"
    if not shares.nodes:
        return "no node is left to place: all of it is computed beforehand"
    pieces = "" if shares.parts <= 1 else f", cut into {shares.parts} pieces"
    # A node may be in several findings, and counts once.
    wrong = len({index for one in analysis.advice if one.code == KNOWN_WRONG for index in one.nodes})
    if wrong:
        pieces += f", where {'a node computes' if wrong == 1 else f'{wrong} nodes compute'} wrong numbers"
    if shares.on_qnn == shares.nodes:
        return "all of it runs on the NPU" + pieces
    if analysis.enough_with_sizes:
        return "all of it runs on the NPU once its sizes are fixed, by the rules"
    if not shares.on_qnn:
        return "nothing runs on the NPU"
    return f"{percent(shares.node_share)} of the nodes run on the NPU" + pieces


def nodes_text(shares: Shares) -> str:
    return f"{shares.on_qnn} of {shares.nodes} on the NPU, {shares.on_cpu} on the CPU"


def work_text(shares: Shares) -> str:
    if not shares.work_known:
        return "not known before the sizes are fixed"
    return f"{percent(shares.mac_share)} of {times(shares.macs)} multiplications"


def times(number: int) -> str:
    """12.3 million."""
    for limit, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if number >= limit:
            return f"{number / limit:.3g} {word}"
    return str(number)
