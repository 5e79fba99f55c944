"""How much of a model goes where: nodes, multiplications, bytes. Pure functions on an `Analysis`."""

from __future__ import annotations

import dataclasses

from qnnbridge_tools.models.analyze.result import Analysis, Placed


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
    work_known: bool
    """False if most of the work has no fixed shape, so that nobody knows how much it is."""

    @property
    def node_share(self) -> float:
        return self.on_qnn / self.nodes if self.nodes else 0.0

    @property
    def mac_share(self) -> float:
        return self.macs_on_qnn / self.macs if self.macs else 0.0


def shares_of(analysis: Analysis, placed: Placed) -> Shares:
    qnn, cpu = placed.indexes("qnn"), placed.indexes("cpu")
    broken, folded = placed.indexes("fails", "crash"), placed.indexes("folded")
    costs = analysis.costs
    live = [*qnn, *cpu, *broken]
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
        2 * sum(_has_size(analysis, index) for index in live) > len(live),
    )


def _has_size(analysis: Analysis, index: int) -> bool:
    return all(tensor.fixed is not None for tensor in analysis.view.nodes[index].made)


def times(number: int) -> str:
    """12.3 million."""
    for limit, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if number >= limit:
            return f"{number / limit:.3g} {word}"
    return str(number)


def size_text(number: int) -> str:
    for limit, unit in ((2**30, "GB"), (2**20, "MB"), (2**10, "KB")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return f"{number} bytes"
