"""The cycles of QNN's operators, gathered by the operators of the model that they were made from.

QNN makes several operators from one of the model (a convolution gets reshapes around it), and one from several
(quantisation melts into the operator between). What was made from the same nodes counts as one. Pure functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Final

from qnnbridge_models.profiling.files import OpTrace
from qnnbridge_models.profiling.profile_record import OperatorTime, Series
from qnnbridge_models.profiling.qnn_csv import QnnCall, QnnRow

_ACCELERATOR: Final = "Accelerator (execute) time"
_US_PER_S: Final = 1e6
_CYCLES: Final = "CYCLES"
_TRANSFERS: Final = {"Input": "inputs on their way in", "Output": "outputs on their way out"}
# Partition, whether it is a transfer, and what the operators were made from.
_Key = tuple[str, bool, str]
SOURCE_SEPARATOR: Final = ";"
# ONNX Runtime appends this to the name of a node that it remade in another layout.
_COPY_OF: Final = re.compile(r"_token_\d+$")


def plain_name(name: str) -> str:
    return _COPY_OF.sub("", name)


def names_in(call: QnnCall) -> list[str]:
    """The operators of an executed graph in its order, without its inputs and outputs."""
    return [row.name for row in call.parts if row.is_operator and not row.is_transfer]


@dataclasses.dataclass(slots=True)
class _Group:
    """Operators of one origin in one partition. cycles: of each run. rows: of each of QNN's operators, in all."""

    partition: str
    sources: tuple[str, ...]
    cycles: list[float]
    is_transfer: bool
    rows: dict[str, float] = dataclasses.field(default_factory=dict)

    def name(self, types: Mapping[str, str]) -> str:
        """The node of the model; of several the one that gave QNN's operator its name."""
        if not self.sources:
            return next(iter(self.rows))
        return next((source for source in self.sources if source in types), self.sources[0])

    def type(self, types: Mapping[str, str]) -> str:
        """That of the operator with the node's name, or else of the one that takes longest."""
        # Several operators of QNN may come from one node: the one that takes longest shows what the time is for.
        slowest = sorted(self.rows, key=lambda row: -self.rows[row])
        return next((types[name] for name in (self.name(types), *slowest) if name in types), "")


def times(runs_of: Mapping[str, Sequence[Sequence[QnnCall]]], trace: OpTrace) -> tuple[OperatorTime, ...]:
    """Most cycles first; empty if QNN was not asked for operators. ``runs_of``: calls of each run, by partition."""
    groups: dict[_Key, _Group] = {}
    for partition, runs in runs_of.items():
        for number, run in enumerate(runs):
            for call in run:
                for row in call.parts:
                    if row.is_operator and row.unit == _CYCLES:
                        _add(groups, partition, row, number, len(runs))
    types = trace.types()
    every = {key: Series.of(group.cycles) for key, group in groups.items()}
    total = sum(cycles.median for cycles in every.values())
    found = [
        _time(
            group, every[key], total, types, _accelerator_s(runs_of[group.partition]), _all(groups, group.partition)
        )
        for key, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda time: -time.cycles.median))


def _add(groups: dict[_Key, _Group], partition: str, row: QnnRow, number: int, runs: int) -> None:
    sources = tuple(source for source in row.sources.split(SOURCE_SEPARATOR) if source)
    key = (partition, row.is_transfer, row.sources or row.name)
    group = groups.setdefault(key, _Group(partition, sources, [0.0] * runs, row.is_transfer))
    group.rows[row.name] = group.rows.get(row.name, 0.0) + row.value
    group.cycles[number] += row.value


def _time(
    group: _Group,
    cycles: Series,
    total: float,
    types: Mapping[str, str],
    accelerator_s: Series | None,
    all_cycles: Sequence[float],
) -> OperatorTime:
    time_s = None
    if accelerator_s is not None:
        pairs = zip(cycles.values, all_cycles, accelerator_s.values, strict=True)
        time_s = Series.of(own / of_all * time if of_all else 0.0 for own, of_all, time in pairs).median
    name = group.name(types)
    return OperatorTime(
        name=_TRANSFERS.get(name, name) if group.is_transfer else plain_name(name),
        type="" if group.is_transfer else group.type(types),
        partition=group.partition,
        cycles=cycles,
        share=cycles.median / total if total else 0.0,
        time_s=time_s,
        is_transfer=group.is_transfer,
    )


def _accelerator_s(runs: Sequence[Sequence[QnnCall]]) -> Series | None:
    times = [[call.fact(_ACCELERATOR) for call in run] for run in runs]
    if any(time is None for run in times for time in run):
        return None
    return Series.of(sum(time or 0.0 for time in run) / _US_PER_S for run in times)


def _all(groups: Mapping[_Key, _Group], partition: str) -> list[float]:
    rows = [group.cycles for group in groups.values() if group.partition == partition]
    return [sum(column) for column in zip(*rows, strict=True)]
