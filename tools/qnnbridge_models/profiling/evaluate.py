"""Evaluate a recording: assign QNN's calls to nodes, and divide the time of loading and of each run into
components.

QNN's file does not contain graph names. ONNX Runtime runs the nodes of a session one after the other, so the n-th
execution in QNN's file belongs to the n-th run of a QNN node in ONNX Runtime's profile. If the counts differ, no
call is assigned. All functions are pure and thread-safe.
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

# QNN's name for the accelerator's working time.
ACCELERATOR: Final = "Accelerator (execute) time"
US_PER_S: Final = 1e6

# Minimum number of runs: with fewer, the median would include one-time work of the first run.
MIN_RUNS: Final = 3
# If the slowest run takes this many times as long as the fastest, the times of single runs are unreliable.
WIDE_SPREAD: Final = 1.5


def load_of(recorded: Recording, labels: Mapping[str, str]) -> tuple[LoadPhase, ...]:
    """Return the phases of loading.

    Args:
        recorded: the recording.
        labels: label of each partition, by name of its node.
    """
    session = recorded.session
    parse_s, initialize_s = session.parse_us / US_PER_S, session.initialize_us / US_PER_S
    qnn = _compile_phases(recorded, labels)
    qnn += [
        LoadPhase("QNN loads the context binary", call.time_us / US_PER_S, _timed(call.facts))
        for call in recorded.calls
        if call.kind is CallKind.LOAD
    ]
    # Subtract QNN's calls, because ONNX Runtime's initialization includes their time.
    rest_s = initialize_s - sum(phase.time_s for phase in qnn)
    return (
        LoadPhase("read the model file", parse_s),
        LoadPhase("ONNX Runtime: optimize, partition, place nodes, initialize QNN", max(0.0, rest_s)),
        *qnn,
        # Two processes measure with separate clocks, so the difference may be slightly below 0.
        LoadPhase("bridge and host: check, send, answer", max(0.0, recorded.create_s - parse_s - initialize_s)),
    )


def _compile_phases(recorded: Recording, labels: Mapping[str, str]) -> list[LoadPhase]:
    calls = [call for call in recorded.calls if call.kind is CallKind.COMPILE]
    # A single graph belongs to the single part, so no trace is needed.
    if len(calls) == 1 and len(labels) == 1:
        names = list(labels.values())
    # Otherwise use the graph names in the trace, which are in the order of compilation.
    elif len(calls) == len(recorded.trace):
        names = [labels.get(graph, "a part that was not executed") for graph in recorded.trace]
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
        yield "Nothing ran on QNN: all times are CPU times. See the placement above for the reason."
    elif placement.simulator:
        yield (
            "QNN ran in its simulator on the CPU. These times do not apply to an NPU, neither in total nor for "
            "single operators. The following also applies to an NPU: the list of operators, the nodes on the CPU, "
            "the number of parts, the transferred bytes, the time to compile, and the overhead of the bridge."
        )
    if result.partitions and not attributed:
        executed = sum(call.kind.name == "EXECUTE" for call in result.recorded.calls)
        yield (
            f"QNN reports {executed} executions, but ONNX Runtime reports a different number. QNN's figures "
            "therefore cannot be assigned to the parts and are omitted."
        )
    if result.partitions and attributed and not result.operators:
        if result.recorded.level == "basic":
            yield "The level basic records no operator times. --level detailed records them, but makes QNN slower."
        else:
            yield "QNN reported no operator times."
    elif result.operators:
        yield (
            "QNN counts cycles of operators instead of times: an operator's time is its share of the accelerator's "
            "time. An operator without cycles was merged into a neighbour, whose time includes both operators: for "
            "example, the time of a convolution may appear at the Relu after it. Counting cycles makes QNN slower: "
            "the times of --level basic are more accurate."
        )
    if result.runs < MIN_RUNS:
        yield "Few runs: the first run includes one-time work. Give --runs 10 for medians."
    elif result.call_s.least > 0 and result.call_s.most / result.call_s.least > WIDE_SPREAD:
        yield (
            f"The slowest run took {result.call_s.most / result.call_s.least:.1f} times as long as the fastest "
            "(without the first run): use the medians, not single figures."
        )
    if result.recorded.placement.cause and result.cpu_nodes and result.partitions:
        yield f"Part of the model ran on the CPU. {result.recorded.placement.cause}"


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionRun:
    """One execution of one partition. call: QNN's measurement; None if no QNN call could be assigned."""

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
    """Return the executions of partitions in each run, and whether QNN's calls could be assigned to these."""
    nodes = [[node for node in run.nodes if is_qnn(node)] for run in runs]
    # A missing or additional call would shift all later calls, so assign no call if the counts differ.
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
        # Add up the times of a run: a partition inside a Loop may be executed several times.
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
    """Return QNN's figures, added up within a run. The accelerator's time is omitted, because it has its own
    column.
    """
    rows = [[row for one in run if one.call for row in one.call.facts] for run in runs]
    units = {row.name: row.unit for run in rows for row in run if row.name != ACCELERATOR}
    return tuple(
        QnnFigure(name, unit, Series.of(sum(row.value for row in run if row.name == name) for run in rows))
        for name, unit in units.items()
    )


def _operator_names(trace: OpTrace, name: str, runs: Sequence[Sequence[PartitionRun]]) -> tuple[str, ...]:
    """Return a partition's operator names in graph order: from the trace, else from QNN's file."""
    names = list(trace.get(name, ()))
    call = next((one.call for run in runs for one in run if one.call), None)
    if not names and call:
        # Omit the transfers of the graph's inputs and outputs.
        names = [row.name for row in call.parts if row.is_operator and not row.is_transfer]
    return tuple(dict.fromkeys(map(plain_name, names)))


def _components(
    calls_s: Sequence[float], runs: Sequence[OrtRun], by_run: Sequence[Sequence[PartitionRun]]
) -> tuple[RunComponent, ...]:
    """Split the duration of each call into components, from the bridge down to the accelerator.

    Negative times, caused by separate clocks, are replaced by 0.
    """
    outside = [[node for node in run.nodes if not node.nested] for run in runs]
    on_cpu = [sum(node.time_us for node in nodes if not is_qnn(node)) for nodes in outside]
    # Time of partitions inside CPU nodes, which counts for QNN and not for the CPU.
    within = [sum(node.time_us for node in run.nodes if is_qnn(node) and node.nested) for run in runs]
    nodes_us = [sum(node.time_us for node in nodes) for nodes in outside]
    around = [sum(one.node.time_us for one in run) for run in by_run]
    execute = [sum(one.call.time_us if one.call else one.node.time_us for one in run) for run in by_run]
    # If the accelerator's time is missing, use the time of the QNN call; no time then counts as transfer.
    working = [sum(accelerator_us(one) or (one.call or one.node).time_us for one in run) for run in by_run]
    table = (
        (
            "bridge",
            "bridge: transfer to the host and back",
            [c * US_PER_S - r.time_us for c, r in zip(calls_s, runs, strict=True)],
        ),
        (
            "onnxruntime",
            "ONNX Runtime between the nodes",
            [r.time_us - n for r, n in zip(runs, nodes_us, strict=True)],
        ),
        ("cpu", "nodes on the CPU", [c - w for c, w in zip(on_cpu, within, strict=True)]),
        ("provider", "QNN provider: passing tensors to and from QNN", _less(around, execute)),
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
    """Return the nodes on the CPU, slowest first. Nodes are identified by name and operator, because names may be
    missing.
    """
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


# Unit of the rows that count cycles of the accelerator.

_CYCLES: Final = "CYCLES"
_TRANSFERS: Final = {"Input": "inputs on their way in", "Output": "outputs on their way out"}
# Key: (partition, whether the operator is a transfer, nodes from which the operator was made).
_Key = tuple[str, bool, str]
SOURCE_SEPARATOR: Final = ";"
# Suffix that ONNX Runtime appends to the name of a node that it recreates in another layout.
_COPY_OF: Final = re.compile(r"_token_\d+$")


def plain_name(name: str) -> str:
    return _COPY_OF.sub("", name)


@dataclasses.dataclass(slots=True)
class _Group:
    """QNN operators made from the same nodes in one partition. QNN makes several operators from some nodes (it adds
    reshapes around a convolution), and one operator from several nodes (it merges quantisation into an operator).

    Args:
        cycles: cycles in each run.
        rows: cycles of each QNN operator in the group, summed over all runs.
    """

    partition: str
    sources: tuple[str, ...]
    cycles: list[float]
    is_transfer: bool
    rows: dict[str, float] = dataclasses.field(default_factory=dict)

    def name(self, types: Mapping[str, str]) -> str:
        """Return the name of the model's node; if there are several, the node after which QNN named the
        operator.
        """
        if not self.sources:
            return next(iter(self.rows))
        return next((source for source in self.sources if source in types), self.sources[0])

    def type(self, types: Mapping[str, str]) -> str:
        """Return the type of the operator called `name`; if the type is unknown, the slowest operator's type."""
        # If QNN made several operators from a node, use the slowest one, which takes most of the time.
        slowest = sorted(self.rows, key=lambda row: -self.rows[row])
        return next((types[name] for name in (self.name(types), *slowest) if name in types), "")


def operator_times(runs_of: Mapping[str, Sequence[Sequence[QnnCall]]], trace: OpTrace) -> tuple[OperatorTime, ...]:
    """Return the operators' times, most cycles first; empty if QNN did not record operators.

    Args:
        runs_of: calls of each run, by partition.
        trace: QNN's operators.
    """
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
    # A compiled model contains no node names, so use QNN's operator names.
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
        # Compute the time of each run before taking the median: the median cycles and the median time may belong to
        # different runs.
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
