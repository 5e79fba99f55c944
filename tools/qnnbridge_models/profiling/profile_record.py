"""The result of `qnnbridge profile`: plain data, durations in seconds. Any thread."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING

from qnnbridge_protocol.specs import Placement

if TYPE_CHECKING:
    from qnnbridge import HostInfo


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """A figure of every run. The first run pays for what is done once, so it is kept apart from the others."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Series:
        return cls(tuple(values))

    @property
    def first(self) -> float:
        return self.values[0]

    @property
    def later(self) -> tuple[float, ...]:
        """Of the runs after the first; of that one, if there are no others."""
        return self.values[1:] or self.values

    @property
    def median(self) -> float:
        return statistics.median(self.later)

    @property
    def least(self) -> float:
        return min(self.later)

    @property
    def most(self) -> float:
        return max(self.later)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadPhase:
    """One stretch of loading, and what it consists of."""

    name: str
    time_s: float
    parts: tuple[LoadPhase, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class LoadTimes:
    """The time until the session was there.

    Args:
        create_s: the wait of the application.
        phases: its stretches, one after the other.
    """

    host_ready_s: float
    create_s: float
    phases: tuple[LoadPhase, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RunComponent:
    """One part of a run; all of them together are the call as the application sees it."""

    key: str
    name: str
    time_s: Series


@dataclasses.dataclass(frozen=True, slots=True)
class QnnFigure:
    """Another figure that QNN reports of each execution of a partition."""

    name: str
    unit: str
    values: Series


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """A part of the model that runs on QNN in one piece.

    node_s is what ONNX Runtime measures around it, execute_s QNN's own call, accelerator_s what the accelerator
    worked; the latter two are None if QNN's file does not say. Bytes are those of inputs and outputs.
    """

    label: str
    name: str
    operators: tuple[str, ...]
    node_s: Series
    execute_s: Series | None
    accelerator_s: Series | None
    bytes_in: int
    bytes_out: int
    facts: tuple[QnnFigure, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorTime:
    """The time of one operator of the model on QNN.

    Args:
        share: of the cycles of all operators on QNN.
        time_s: its part of the accelerator's time, by cycles.
        is_transfer: no operator of the model, but the inputs or outputs of a partition on their way.
    """

    name: str
    type: str
    partition: str
    cycles: Series
    share: float
    time_s: float | None
    is_transfer: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class CpuNode:
    """A node that ran outside of QNN. nested: within another node, whose time contains this one's."""

    name: str
    op: str
    provider: str
    time_s: Series
    calls_per_run: float
    nested: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileResult:
    """The result of `qnnbridge profile`.

    Args:
        inputs: name, type and source of each.
        notes: facts that a reader needs to read the figures rightly.
    """

    model: str
    level: str
    compiled: bool
    runs: int
    inputs: tuple[tuple[str, str, str], ...]
    bytes_to_host: int
    bytes_from_host: int
    placement: Placement
    host: HostInfo
    load: LoadTimes
    call_s: Series
    components: tuple[RunComponent, ...]
    partitions: tuple[Partition, ...]
    operators: tuple[OperatorTime, ...]
    cpu_nodes: tuple[CpuNode, ...]
    notes: tuple[str, ...]
