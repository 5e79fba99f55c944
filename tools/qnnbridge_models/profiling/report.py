"""The result of `qnnbridge profile` as a record (durations in seconds), as text with bars, and as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_tools import output, reporting

if TYPE_CHECKING:
    from qnnbridge_models.profiling.recording import Recording


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """One figure, measured in each run.

    The first run includes one-time work, so it is kept separate from the later runs.
    """

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Series:
        return cls(tuple(values))

    @property
    def first(self) -> float:
        return self.values[0]

    @property
    def later(self) -> tuple[float, ...]:
        """Values of the runs after the first; the first value if there is only one run."""
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
    """One phase of loading, and its sub-phases."""

    name: str
    time_s: float
    parts: tuple[LoadPhase, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class RunComponent:
    """One component of a run's duration. All components add up to the duration of the call in the application."""

    key: str
    name: str
    time_s: Series


@dataclasses.dataclass(frozen=True, slots=True)
class QnnFigure:
    """A figure that QNN reports for each execution of a partition, with its unit."""

    name: str
    unit: str
    values: Series


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """A part of the model that QNN runs without interruption.

    Args:
        label: for example "part 1".
        name: name of the partition's node in ONNX Runtime's profile.
        operators: names of the partition's operators, in the order of the graph.
        node_s: duration as measured by ONNX Runtime.
        execute_s: duration of QNN's call; None if QNN's file does not contain it.
        accelerator_s: working time of the accelerator; None if QNN's file does not contain it.
        bytes_in, bytes_out: total size of inputs and of outputs.
        facts: other figures of QNN.
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
        cycles: cycles in each run.
        share: fraction of the cycles of all operators on QNN.
        time_s: accelerator's time multiplied by this fraction.
        is_transfer: true for the transfer of a partition's inputs or outputs, which is not an operator of the
            model.
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
    """A node that ran outside QNN.

    Args:
        nested: true if the node runs within another node, whose time includes it.
    """

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
        load: phases of creating the session, in order.
        components: components of the duration of a run.
        notes: remarks for the user on how to interpret the figures.
    """

    recorded: Recording
    load: tuple[LoadPhase, ...]
    components: tuple[RunComponent, ...]
    partitions: tuple[Partition, ...]
    operators: tuple[OperatorTime, ...]
    cpu_nodes: tuple[CpuNode, ...]
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        return len(self.recorded.calls_s)

    @property
    def call_s(self) -> Series:
        """Duration of each call in the application."""
        return Series(self.recorded.calls_s)


# Version of the JSON document; increase it with each incompatible change.
SCHEMA: Final = 1

BAR_WIDTH: Final = 24
SHOWN_OPERATOR_NAMES: Final = 2
MAX_NAME: Final = 30


def document(result: ProfileResult) -> dict[str, Any]:
    recorded = result.recorded
    return {
        "schema": SCHEMA,
        "model": recorded.model,
        "compiled": recorded.compiled,
        "level": recorded.level,
        "runs": result.runs,
        "inputs": [{"name": name, "type": kind, "source": source} for name, kind, source in recorded.inputs],
        "placement": recorded.placement.to_wire(),
        "simulator": recorded.placement.simulator,
        "load": {
            "host_ready_seconds": recorded.ready_s,
            "create_seconds": recorded.create_s,
            "phases": [_phase_document(phase) for phase in result.load],
        },
        "run_seconds": _series_document(result.call_s),
        "components": [
            {"key": one.key, "name": one.name, "seconds": _series_document(one.time_s)} for one in result.components
        ],
        "partitions": [_partition_document(one) for one in result.partitions],
        "operators": [
            {
                "name": one.name,
                "type": one.type or None,
                "partition": one.partition,
                "is_transfer": one.is_transfer,
                "cycles": _series_document(one.cycles),
                "share": one.share,
                "seconds": one.time_s,
            }
            for one in result.operators
        ],
        "cpu_nodes": [
            {
                "name": one.name,
                "operator": one.op,
                "provider": one.provider,
                "calls_per_run": one.calls_per_run,
                "nested": one.nested,
                "seconds": _series_document(one.time_s),
            }
            for one in result.cpu_nodes
        ],
        "transfers": {"bytes_to_host": recorded.bytes_to_host, "bytes_from_host": recorded.bytes_from_host},
        "notes": list(result.notes),
        "host": reporting.host_document(recorded.host),
        "application": reporting.application_document(),
    }


def _phase_document(phase: LoadPhase) -> dict[str, Any]:
    return {"name": phase.name, "seconds": phase.time_s, "parts": [_phase_document(part) for part in phase.parts]}


def _partition_document(one: Partition) -> dict[str, Any]:
    return {
        "label": one.label,
        "name": one.name,
        "operators": list(one.operators),
        "seconds": _series_document(one.node_s),
        "execute_seconds": _optional_document(one.execute_s),
        "accelerator_seconds": _optional_document(one.accelerator_s),
        "bytes_in": one.bytes_in,
        "bytes_out": one.bytes_out,
        "figures": [{"name": fact.name, "unit": fact.unit, **_series_document(fact.values)} for fact in one.facts],
    }


def _series_document(series: Series) -> dict[str, Any]:
    """Return the values of a series. Median, minimum and maximum exclude the first run."""
    return {
        "first": series.first,
        "median": series.median,
        "least": series.least,
        "most": series.most,
        "values": list(series.values),
    }


def _optional_document(series: Series | None) -> dict[str, Any] | None:
    return None if series is None else _series_document(series)


def print_result(result: ProfileResult, top: int) -> None:
    _print_head(result)
    _print_load(result)
    _print_run(result)
    _print_partitions(result, top)
    _print_operators(result, top)
    _print_cpu_nodes(result, top)
    _print_transfers(result, top)
    _print_facts(result)
    if result.notes:
        print("\nWhat the figures mean")
        for note in result.notes:
            print(f"  - {output.visible(note)}")


def bar(share: float) -> str:
    """Return a text bar whose length shows the fraction; a fraction above 0.002 has at least one character."""
    cells = round(min(share, 1.0) * BAR_WIDTH)
    # Some old Windows code pages lack the block character.
    return ("█" if output.can_print("█") else "#") * (cells or int(share > 0.002))


def runs_text(result: ProfileResult) -> str:
    return f"{result.runs} run{'' if result.runs == 1 else 's'}"


def spread_text(series: Series) -> str:
    """Return the median, the first run, and the range of the other runs as text."""
    text = output.seconds(series.median)
    if len(series.values) > 1:
        text += f", first {output.seconds(series.first)}"
    if len(series.values) > 2:
        text += f", the others {output.seconds(series.least)} to {output.seconds(series.most)}"
    return text


def operators_text(partition: Partition) -> str:
    """Return the names of the first and the last operator, to identify the part of the model."""
    names = partition.operators
    if not names:
        return "?"
    if len(names) <= SHOWN_OPERATOR_NAMES:
        return ", ".join(map(_end_of, names))
    return f"{_end_of(names[0])} to {_end_of(names[-1])}, {len(names)} in total"


def _end_of(name: str) -> str:
    """Return the end of a long name, because many names begin alike."""
    return name if len(name) <= MAX_NAME else "..." + name[3 - MAX_NAME :]


def bytes_text(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.3g} GiB"


def worth_showing(phase: LoadPhase, create_s: float) -> list[LoadPhase]:
    """Return the sub-phases that take at least 1 % of the session's creation, longest first."""
    shown = [part for part in phase.parts if part.time_s >= create_s / 100]
    return sorted(shown, key=lambda part: -part.time_s)


def optional_text(series: Series | None) -> str:
    return "-" if series is None else output.seconds(series.median)


def shown_facts(partitions: Sequence[Partition]) -> list[tuple[str, list[QnnFigure | None]]]:
    """Return the name of each of QNN's figures, with its value in each partition (None if QNN reported none)."""
    names = dict.fromkeys(fact.name for partition in partitions for fact in partition.facts)
    return [
        (name, [next((fact for fact in one.facts if fact.name == name), None) for one in partitions])
        for name in names
    ]


def fact_text(fact: QnnFigure | None) -> str:
    if fact is None:
        return "-"
    if fact.unit == "US":
        return output.seconds(fact.values.median / 1e6)
    if fact.unit == "COUNT":
        return f"{fact.values.median:.0f}"
    return f"{fact.values.median:,.0f} {fact.unit.lower()}"


def _print_head(result: ProfileResult) -> None:
    recorded = result.recorded
    compiled = ", a compiled model" if recorded.compiled else ""
    # `feeds.complete` sets the source "random, seed N" for generated inputs.
    made_up = ", ".join(name for name, _, source in recorded.inputs if source.startswith("random"))
    output.print_pairs(
        f"Profile of {output.visible(recorded.model)}{compiled}: level {recorded.level}, {runs_text(result)}",
        [*reporting.placement_pairs(recorded.placement), *([("made-up inputs", made_up)] if made_up else [])],
    )


def _print_load(result: ProfileResult) -> None:
    recorded = result.recorded
    print(
        f"\nLoading: {output.seconds(recorded.create_s)} to create the session"
        f" (after {output.seconds(recorded.ready_s)} for the host to start)"
    )
    rows = [["", "time", "share", ""]]
    for phase in result.load:
        rows.append([phase.name, output.seconds(phase.time_s), *_share(phase.time_s, recorded.create_s)])
        parts = worth_showing(phase, recorded.create_s)
        rows += [["  " + part.name, output.seconds(part.time_s), "", ""] for part in parts]
    # Phase names may come from the model, so they must be escaped.
    print(output.plain_table([[output.visible(cell) for cell in row] for row in rows], indent="  "))


def _print_run(result: ProfileResult) -> None:
    print(f"\nOne run: {spread_text(result.call_s)}")
    print("  (the times of a run add up to the call's duration; the medians may not add up to the call's median)")
    rows = [["", "median", "first", "share", ""]]
    # Divide by the sum, and not by the call's median, so that the fractions add up to 100 %.
    whole = sum(component.time_s.median for component in result.components)
    for component in result.components:
        median = component.time_s.median
        rows.append(
            [component.name, output.seconds(median), output.seconds(component.time_s.first), *_share(median, whole)]
        )
    print(output.plain_table(rows, indent="  "))


def _print_partitions(result: ProfileResult, top: int) -> None:
    if not result.partitions:
        return
    print(f"\nParts on QNN: {len(result.partitions)}")
    slowest = sorted(result.partitions, key=lambda one: -one.node_s.median)[:top]
    rows = [
        [
            one.label,
            operators_text(one),
            output.seconds(one.node_s.median),
            optional_text(one.execute_s),
            optional_text(one.accelerator_s),
            output.seconds(one.node_s.first),
        ]
        for one in slowest
    ]
    output.print_table(["part", "operators", "whole", "QNN execute", "accelerator", "first run"], rows)
    _print_more(len(result.partitions) - len(slowest), "part")


def _print_operators(result: ProfileResult, top: int) -> None:
    # Omit operators without a time: QNN merged them into neighbours, whose times include theirs.
    timed = [time for time in result.operators if time.cycles.median > 0]
    if not timed:
        return
    free = len(result.operators) - len(timed)
    print(f"\nOperators on QNN: {len(timed)} with a measured time" + (f", {free} without" if free else ""))
    rows = [
        [
            time.name,
            time.type or "-",
            time.partition,
            f"{time.cycles.median:,.0f}",
            "-" if time.time_s is None else output.seconds(time.time_s),
            *_share(time.share, 1.0),
        ]
        for time in timed[:top]
    ]
    output.print_table(["operator", "type", "part", "cycles", "time", "share", ""], rows)
    rest = timed[top:]
    if rest:
        share = output.percent(sum(time.share for time in rest))
        print(f"and {len(rest)} more with {share} together; --top N lists more, --json all")


def _print_cpu_nodes(result: ProfileResult, top: int) -> None:
    if not result.cpu_nodes:
        return
    print(f"\nNodes on the CPU: {len(result.cpu_nodes)}")
    rows = [
        [
            node.name or "(unnamed)",
            node.op + (" (within another)" if node.nested else ""),
            output.seconds(node.time_s.median),
            output.seconds(node.time_s.first),
            *_share(node.time_s.median, result.call_s.median),
        ]
        for node in result.cpu_nodes[:top]
    ]
    output.print_table(["node", "operator", "median", "first run", "share of the run", ""], rows)
    _print_more(len(result.cpu_nodes) - top, "node")


def _print_transfers(result: ProfileResult, top: int) -> None:
    recorded = result.recorded
    print("\nTransfers in each run")
    rows = [
        [
            "application and host",
            bytes_text(recorded.bytes_to_host),
            bytes_text(recorded.bytes_from_host),
            "-",
            "-",
        ]
    ]
    # `evaluate._TRANSFERS` contains the names of transfers, which begin with "in" or "out".
    for one in result.partitions[:top]:
        row = [f"host and QNN, {one.label}", bytes_text(one.bytes_in), bytes_text(one.bytes_out)]
        moved = {
            time.name: f"{time.cycles.median:,.0f}"
            for time in result.operators
            if time.is_transfer and time.partition == one.label
        }
        rows.append(
            [*row, *(next((v for k, v in moved.items() if k.startswith(way)), "-") for way in ("in", "out"))]
        )
    output.print_table(["between", "in", "out", "cycles in", "cycles out"], rows)
    _print_more(len(result.partitions) - top, "part")


def _print_facts(result: ProfileResult) -> None:
    shown = sorted(result.partitions, key=lambda one: -one.node_s.median)[:4]
    facts = shown_facts(shown)
    if not facts:
        return
    slowest = " (the slowest parts)" if len(result.partitions) > len(shown) else ""
    print(f"\nOther figures of QNN for a run{slowest}")
    output.print_table(
        ["figure", *(one.label for one in shown)], [[name, *map(fact_text, values)] for name, values in facts]
    )


def _share(part: float, whole: float) -> tuple[str, str]:
    share = part / whole if whole else 0.0
    return output.percent(share), bar(share)


def _print_more(count: int, noun: str) -> None:
    if count > 0:
        print(f"and {count} more {noun}{'' if count == 1 else 's'}; --top N lists more, --json all")
