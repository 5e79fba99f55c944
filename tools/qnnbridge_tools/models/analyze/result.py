"""What `analyze_model` tells. Immutable data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.models.analyze.costs import Cost
from qnnbridge_tools.models.analyze.graph_view import GraphView
from qnnbridge_tools.models.analyze.verdicts import Place, Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """One source's answer: rules, or QNN itself.

    verdicts: for each node in order. parts: indexes of the nodes of each part on QNN.
    """

    verdicts: tuple[Verdict, ...]
    parts: tuple[tuple[int, ...], ...]

    def indexes(self, *places: Place) -> list[int]:
        return [index for index, verdict in enumerate(self.verdicts) if verdict.place in places]


@dataclasses.dataclass(frozen=True, slots=True)
class Truth:
    """What QNN did. error: why there is no session. placed: None if not even a part of it is known.

    disagreements: nodes that the rules had elsewhere. versions: of the packages on the host.
    """

    placed: Placed | None
    error: BridgeError | None = None
    disagreements: tuple[int, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    simulator: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do. nodes: what it is about. macs: that would move to the NPU. parts: fewer cuts."""

    what: str
    why: str
    nodes: tuple[int, ...] = ()
    macs: int = 0
    parts: int = 0
    severity: str = "cpu"


@dataclasses.dataclass(frozen=True, slots=True)
class Analysis:
    """truth: None without a host; `no_truth` says why. best: the truth where it is known, else the prediction."""

    path: Path
    chip: str
    view: GraphView
    costs: Sequence[Cost]
    predicted: Placed
    advice: tuple[Advice, ...]
    empty: tuple[str, ...] = ()
    truth: Truth | None = None
    no_truth: str = ""
    seconds_offline: float = 0.0
    seconds_truth: float = 0.0

    @property
    def best(self) -> Placed:
        return self.truth.placed if self.truth is not None and self.truth.placed is not None else self.predicted

    @property
    def from_qnn(self) -> bool:
        return self.best is not self.predicted
