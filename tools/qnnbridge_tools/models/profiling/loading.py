"""What opening the session consisted of: the application's wait, ONNX Runtime's phases, QNN's calls within them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qnnbridge_tools.models.profiling.qnn_csv import Call, Kind
from qnnbridge_tools.models.profiling.recording import Recording
from qnnbridge_tools.models.profiling.result import Load, Phase

_US_PER_S: Final = 1e6


def load_of(recorded: Recording, labels: Mapping[str, str]) -> Load:
    """``labels``: of the partitions, by the name of their node."""
    session = recorded.session
    parse_s, initialize_s = session.parse_us / _US_PER_S, session.initialize_us / _US_PER_S
    qnn = [*_compiled(recorded, labels), *_loaded(recorded.calls)]
    rest_s = initialize_s - sum(phase.time_s for phase in qnn)
    phases = (
        Phase("read the model file", parse_s),
        Phase("ONNX Runtime: optimize, divide, place, set QNN up", max(0.0, rest_s)),
        *qnn,
        Phase("bridge and host: check, send, answer", max(0.0, recorded.create_s - parse_s - initialize_s)),
    )
    return Load(recorded.ready_s, recorded.create_s, phases)


def _compiled(recorded: Recording, labels: Mapping[str, str]) -> list[Phase]:
    calls = [call for call in recorded.calls if call.kind is Kind.COMPILE]
    if len(calls) == 1 and len(labels) == 1:
        names = list(labels.values())
    elif len(calls) == len(recorded.trace.graphs):
        names = [labels.get(graph, "a part that did not run") for graph in recorded.trace.graphs]
    else:
        names = [f"graph {number}" for number in range(1, len(calls) + 1)]
    return [
        Phase(
            f"QNN compiles {name}",
            call.time_us / _US_PER_S,
            tuple(
                Phase(part.name, part.value / _US_PER_S) for part in (*call.facts, *call.parts) if part.unit == "US"
            ),
        )
        for call, name in zip(calls, names, strict=True)
    ]


def _loaded(calls: tuple[Call, ...]) -> list[Phase]:
    return [
        Phase(
            "QNN loads the context binary",
            call.time_us / _US_PER_S,
            tuple(Phase(fact.name, fact.value / _US_PER_S) for fact in call.facts if fact.unit == "US"),
        )
        for call in calls
        if call.kind is Kind.LOAD
    ]
