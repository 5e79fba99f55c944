"""Reads `qnn_op_trace.json`: which nodes of the model each operator of QNN was made from, graph by graph.

QNN's provider writes it while it compiles (from 2.4 on), so there is none for a compiled model. It is an
addition: what cannot be read is left out, not an error. Pure functions; any thread.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Final

FILE_NAME: Final = "qnn_op_trace.json"
MAX_TRACE_BYTES: Final = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    name: str
    type: str


@dataclasses.dataclass(frozen=True, slots=True)
class OpTrace:
    """graphs: QNN's operators of each graph, both in the order in which they were compiled."""

    graphs: dict[str, tuple[Operator, ...]] = dataclasses.field(default_factory=dict)

    def types(self) -> dict[str, str]:
        """QNN's type of each operator."""
        return {operator.name: operator.type for graph in self.graphs.values() for operator in graph}


def read(path: Path) -> OpTrace:
    try:
        if path.stat().st_size > MAX_TRACE_BYTES:
            return OpTrace()
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        return OpTrace({str(graph["graph_name"]): _operators(graph) for graph in document["subgraph_traces"]})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return OpTrace()


def _operators(graph: dict[str, Any]) -> tuple[Operator, ...]:
    return tuple(
        Operator(str(mapping["dst_name"]), str(mapping.get("dst_qnn_op_type", "")))
        for mapping in graph["op_mappings"]
    )
