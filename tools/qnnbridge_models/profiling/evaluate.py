"""Evaluates a recording: which call of QNN belongs to which node, and what loading and a run consist of.

QNN's file names no graphs. ONNX Runtime runs the nodes of a session one after the other, so the n-th execution in
QNN's file is the n-th run of a QNN node in ONNX Runtime's profile. Where the counts differ nothing is attributed.
Pure functions; any thread.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from qnnbridge_models.profiling.recording import CallKind, NodeRun, OpTrace, OrtRun, QnnCall, QnnRow, Recording
from qnnbridge_models.profiling.report import (
    CpuNode,
    LoadPhase,
    OperatorTime,
    Partition,
    ProfileResult,
    QnnFigure,
    RunComponent,
    Series,
)
from qnnbridge_protocol.specs import QNN

# QNN's own name of the figure.
ACCELERATOR: Final = "Accelerator (execute) time"
US_PER_S: Final = 1e6

# With fewer, the median is that of the first runs, which pay for what is done once.
MIN_RUNS: Final = 3
# The slowest over the quickest run: from here on single figures say little.
WIDE_SPREAD: Final = 1.5


def load_of(recorded: Recording, labels: Mapping[str, str]) -> tuple[LoadPhase, ...]:
    """``labels``: of the partitions, by the name of their node."""
    session = recorded.session
    parse_s, initialize_s = session.parse_us / US_PER_S, session.initialize_us / US_PER_S
    qnn = _compile_phases(recorded, labels)
    qnn += [
        LoadPhase("QNN loads the context binary", call.time_us / US_PER_S, _timed(call.facts))
        for call in recorded.calls
        if call.kind is CallKind.LOAD
    ]
    # ONNX Runtime's initialization contains the calls of QNN.
    rest_s = initialize_s - sum(phase.time_s for phase in qnn)
    return (
        LoadPhase("read the model file", parse_s),
        LoadPhase("ONNX Runtime: optimize, divide, place, set QNN up", max(0.0, rest_s)),
        *qnn,
        # Two processes measure with their own clocks, so a difference may come out slightly below 0.
        LoadPhase("bridge and host: check, send, answer", max(0.0, recorded.create_s - parse_s - initialize_s)),
    )


def _compile_phases(recorded: Recording, labels: Mapping[str, str]) -> list[LoadPhase]:
    calls = [call for call in recorded.calls if call.kind is CallKind.COMPILE]
    # One graph needs no trace to be named.
    if len(calls) == 1 and len(labels) == 1:
        names = list(labels.values())
    # QNN's file names no graph; the trace names them in the order in which they were compiled.
    elif len(calls) == len(recorded.trace):
        names = [labels.get(graph, "a part that did not run") for graph in recorded.trace]
    else:
        names = [f"graph {number}" for number in range(1, len(calls) + 1)]
    return [
        LoadPhase(f"QNN compiles {name}", call.time_us / US_PER_S, _timed((*call.facts, *call.parts)))
        for call, name in zip(calls, names, strict=True)
    ]


def _timed(rows: Sequence[QnnRow]) -> tuple[LoadPhase, ...]:
    return tuple(LoadPhase(row.name, row.value / US_PER_S) for row in rows if row.unit == "US")


def _notes(result: ProfileResult, attributed: bool) -> Iterator[str]:
    placement = result.recorded.placement
    if not result.partitions:
        yield "Nothing ran on QNN: all times are those of the CPU. See the placement above for the reason."
    elif placement.simulator:
        yield (
            "This is QNN's simulator on the CPU. Its times say nothing about an NPU, neither in total nor which "
            "operator is the slow one. What carries over: which operators there are, what runs on the CPU, the "
            "number of parts, the bytes that are handed over, the time to compile, and what the bridge adds."
        )
    if result.partitions and not attributed:
        executed = sum(call.kind.name == "EXECUTE" for call in result.recorded.calls)
        yield (
            f"QNN reports {executed} executions, ONNX Runtime of another number: QNN's figures cannot be "
            "attributed to the parts and are left out."
        )
    if result.partitions and attributed and not result.operators:
        if result.recorded.level == "basic":
            yield "The level basic has no times of operators; --level detailed has, but slows QNN down."
        else:
            yield "QNN reports no times of operators."
    elif result.operators:
        yield (
            "QNN counts the cycles of operators and reports no times: times of operators are their share of the "
            "accelerator's time. An operator without cycles was merged into a neighbour, which has its time: that "
            "of a convolution may stand at the Relu behind it. Counting costs time, too: the times of --level "
            "basic are the truer ones."
        )
    if result.runs < MIN_RUNS:
        yield "Few runs: the first one pays for what is done once. Give --runs 10 for medians."
    elif result.call_s.least > 0 and result.call_s.most / result.call_s.least > WIDE_SPREAD:
        yield (
            f"The slowest run took {result.call_s.most / result.call_s.least:.1f} times as long as the quickest "
            "(the first one aside): look at medians, not at single figures."
        )
    if result.recorded.placement.cause and result.cpu_nodes and result.partitions:
        yield f"Part of the model ran on the CPU. {result.recorded.placement.cause}"


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionRun:
    """One execution of one partition: ONNX Runtime's view and QNN's, if it could be attributed."""

    node: NodeRun
    call: QnnCall | None


def evaluate(recorded: Recording) -> ProfileResult:
    runs = recorded.session.runs
    executed = [call for call in recorded.calls if call.kind is CallKind.EXECUTE]
    by_run, attributed = _matched(runs, executed)
    names = list(dict.fromkeys(one.node.name for run in by_run for one in run))
    labels = {name: f"part {number}" for number, name in enumerate(names, 1)}
    of_partition = {name: [[one for one in run if one.node.name == name] for run in by_run] for name in names}
    times = operator_times(
        {labels[name]: [[one.call for one in run if one.call] for run in of_partition[name]] for name in names},
        recorded.trace,
    )
    partitions = tuple(
        _partition_of(
            labels[name], name, of_partition[name], _operator_names(recorded.trace, name, of_partition[name])
        )
        for name in names
    )
    result = ProfileResult(
        recorded,
        load_of(recorded, labels),
        _components(recorded.calls_s, runs, by_run),
        partitions,
        times,
        _cpu_nodes(runs),
    )
    return dataclasses.replace(result, notes=tuple(_notes(result, attributed)))


def is_qnn(node: NodeRun) -> bool:
    return node.provider == QNN


def _matched(runs: Sequence[OrtRun], executed: Sequence[QnnCall]) -> tuple[list[list[PartitionRun]], bool]:
    """The executions of partitions in each run, and whether QNN's calls could be attributed to them."""
    nodes = [[node for node in run.nodes if is_qnn(node)] for run in runs]
    # One execution more or less would shift all that follow: then no figure is attributed.
    attributed = sum(map(len, nodes)) == len(executed)
    calls = iter(executed)
    return [
        [PartitionRun(node, next(calls) if attributed else None) for node in in_run] for in_run in nodes
    ], attributed


def _partition_of(
    label: str, name: str, runs: Sequence[Sequence[PartitionRun]], names: tuple[str, ...]
) -> Partition:
    every = [one for run in runs for one in run]
    has_calls = all(one.call is not None for one in every)
    accelerator = has_calls and all(one.call.fact(ACCELERATOR) is not None for one in every if one.call)
    return Partition(
        label=label,
        name=name,
        operators=names,
        # Within a run a partition may be executed several times, in the body of a Loop: the times are added.
        node_s=_seconds(runs, lambda one: one.node.time_us),
        execute_s=_seconds(runs, lambda one: one.call.time_us if one.call else 0) if has_calls else None,
        accelerator_s=_seconds(runs, accelerator_us) if accelerator else None,
        bytes_in=every[0].node.bytes_in,
        bytes_out=every[0].node.bytes_out,
        facts=_facts(runs),
    )


def accelerator_us(one: PartitionRun) -> float:
    return (one.call.fact(ACCELERATOR) if one.call else None) or 0.0


def _facts(runs: Sequence[Sequence[PartitionRun]]) -> tuple[QnnFigure, ...]:
    """Every figure that QNN gave in each run but the one that has a column of its own; summed within a run."""
    rows = [[row for one in run if one.call for row in one.call.facts] for run in runs]
    units = {row.name: row.unit for run in rows for row in run if row.name != ACCELERATOR}
    return tuple(
        QnnFigure(name, unit, Series.of(sum(row.value for row in run if row.name == name) for run in rows))
        for name, unit in units.items()
    )


def _operator_names(trace: OpTrace, name: str, runs: Sequence[Sequence[PartitionRun]]) -> tuple[str, ...]:
    """In the order of the graph: as compiled, or else as QNN's file lists them."""
    names = list(trace.get(name, ()))
    call = next((one.call for run in runs for one in run if one.call), None)
    if not names and call:
        # Without the inputs and outputs of the graph.
        names = [row.name for row in call.parts if row.is_operator and not row.is_transfer]
    return tuple(dict.fromkeys(map(plain_name, names)))


def _components(
    calls_s: Sequence[float], runs: Sequence[OrtRun], by_run: Sequence[Sequence[PartitionRun]]
) -> tuple[RunComponent, ...]:
    """The components of each call, from the application to the accelerator. Never below zero: the clocks differ."""
    outside = [[node for node in run.nodes if not node.nested] for run in runs]
    on_cpu = [sum(node.time_us for node in nodes if not is_qnn(node)) for nodes in outside]
    # A partition within the body of a CPU node: its time is that of QNN, not of the CPU.
    within = [sum(node.time_us for node in run.nodes if is_qnn(node) and node.nested) for run in runs]
    nodes_us = [sum(node.time_us for node in nodes) for nodes in outside]
    around = [sum(one.node.time_us for one in run) for run in by_run]
    execute = [sum(one.call.time_us if one.call else one.node.time_us for one in run) for run in by_run]
    # Without the accelerator's figure QNN's own time stands in, so that nothing is taken for a transfer.
    working = [sum(accelerator_us(one) or (one.call or one.node).time_us for one in run) for run in by_run]
    table = (
        (
            "bridge",
            "bridge: the way to the host and back",
            [c * US_PER_S - r.time_us for c, r in zip(calls_s, runs, strict=True)],
        ),
        (
            "onnxruntime",
            "ONNX Runtime between the nodes",
            [r.time_us - n for r, n in zip(runs, nodes_us, strict=True)],
        ),
        ("cpu", "nodes on the CPU", [c - w for c, w in zip(on_cpu, within, strict=True)]),
        ("provider", "QNN provider: handing tensors to QNN and back", _less(around, execute)),
        ("transfer", "QNN outside of the accelerator (transfers, RPC, driver)", _less(execute, working)),
        ("accelerator", "accelerator", working),
    )
    return tuple(
        RunComponent(key, name, Series.of(max(0.0, value) / US_PER_S for value in values))
        for key, name, values in table
        if any(value > 0 for value in values)
    )


def _less(whole: Sequence[float], part: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(whole, part, strict=True)]


def _cpu_nodes(runs: Sequence[OrtRun]) -> tuple[CpuNode, ...]:
    """Slowest first. A node is known by its name and operator: names may be missing."""
    found: dict[tuple[str, str], list[list[NodeRun]]] = {}
    for number, run in enumerate(runs):
        for node in run.nodes:
            if not is_qnn(node):
                found.setdefault((node.name, node.op), [[] for _ in runs])[number].append(node)
    nodes = [
        CpuNode(
            name=name,
            op=op,
            provider=next(node.provider for times in per_run for node in times),
            time_s=Series.of(sum(node.time_us for node in times) / US_PER_S for times in per_run),
            calls_per_run=sum(map(len, per_run)) / len(runs),
            nested=all(node.nested for times in per_run for node in times),
        )
        for (name, op), per_run in found.items()
    ]
    return tuple(sorted(nodes, key=lambda node: -node.time_s.median))


def _seconds(runs: Sequence[Sequence[PartitionRun]], time_us: Callable[[PartitionRun], float]) -> Series:
    return Series.of(sum(time_us(one) for one in run) / US_PER_S for run in runs)


# QNN makes several operators from one of the model (a convolution gets reshapes around it), and one from several
# (quantisation melts into the operator between). What was made from the same nodes counts as one.

_CYCLES: Final = "CYCLES"
_TRANSFERS: Final = {"Input": "inputs on their way in", "Output": "outputs on their way out"}
# Partition, whether it is a transfer, and what the operators were made from.
_Key = tuple[str, bool, str]
SOURCE_SEPARATOR: Final = ";"
# ONNX Runtime appends this to the name of a node that it remade in another layout.
_COPY_OF: Final = re.compile(r"_token_\d+$")


def plain_name(name: str) -> str:
    return _COPY_OF.sub("", name)


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


def operator_times(runs_of: Mapping[str, Sequence[Sequence[QnnCall]]], trace: OpTrace) -> tuple[OperatorTime, ...]:
    """Most cycles first; empty if QNN was not asked for operators. ``runs_of``: calls of each run, by partition."""
    groups: dict[_Key, _Group] = {}
    for partition, runs in runs_of.items():
        for number, run in enumerate(runs):
            for call in run:
                for row in call.parts:
                    if row.is_operator and row.unit == _CYCLES:
                        _add(groups, partition, row, number, len(runs))
    types = {operator: kind for graph in trace.values() for operator, kind in graph.items()}
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
    # A compiled model does not name its nodes: QNN's own operators stand for them.
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
        # Run by run, and the median of that: medians of cycles and of times may be those of different runs.
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
    times = [[call.fact(ACCELERATOR) for call in run] for run in runs]
    if any(time is None for run in times for time in run):
        return None
    return Series.of(sum(time or 0.0 for time in run) / US_PER_S for run in times)


def _all(groups: Mapping[_Key, _Group], partition: str) -> list[float]:
    rows = [group.cycles for group in groups.values() if group.partition == partition]
    return [sum(column) for column in zip(*rows, strict=True)]
