"""Shared by the readers of profile files: size limits and error texts; and the trace of QNN's provider.

`qnn_op_trace.json` names the nodes of the model that each operator of QNN was made from, graph by graph. The
provider writes it while it compiles (from 2.4 on), so there is none for a compiled model. Unreadable parts are left
out and raise no error. Pure functions; any thread.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Final

from qnnbridge_protocol.errors import BridgeError

# More is not read: it is thousands of runs, and a tenth of them gives the same medians.
MAX_PROFILE_BYTES: Final = 256 << 20

OP_TRACE_FILE: Final = "qnn_op_trace.json"
MAX_TRACE_BYTES: Final = 64 << 20


def check(path: Path, whose: str) -> None:
    """Raises if there is no file to read, or too much of it. ``whose`` is the writer: "QNN"."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise BridgeError(
            f"{whose} wrote no profile.",
            cause=f"The file that it was to write, {path.name}, is not there.",
            fix="Look whether the disk is full. If it is not, try --level basic.",
        ) from None
    check_size(size, whose)


def check_size(size: int, whose: str) -> None:
    if size > MAX_PROFILE_BYTES:
        raise BridgeError(
            f"The profile of {whose} is too large: {size >> 20} MiB, of which {MAX_PROFILE_BYTES >> 20} are read.",
            cause="It has an entry for each operator and run.",
            fix="Profile fewer runs: --runs 10. --level basic leaves out the operators.",
        )


def unusable(path: Path, whose: str, why: str) -> BridgeError:
    return BridgeError(
        f"The profile of {whose} cannot be read: {why}.",
        cause=f"{path.name} was not written to its end, or this version of {whose} writes it in another way.",
        fix="Run the command again. If the disk is full, make room first.",
        details={"file": path.name},
    )


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledOperator:
    name: str
    type: str


@dataclasses.dataclass(frozen=True, slots=True)
class OpTrace:
    """The operators of QNN, graph by graph.

    Args:
        graphs: QNN's operators of each graph, both in the order in which they were compiled.
    """

    graphs: dict[str, tuple[CompiledOperator, ...]] = dataclasses.field(default_factory=dict)

    def types(self) -> dict[str, str]:
        """QNN's type of each operator."""
        return {operator.name: operator.type for graph in self.graphs.values() for operator in graph}


def read_op_trace(path: Path) -> OpTrace:
    try:
        if path.stat().st_size > MAX_TRACE_BYTES:
            return OpTrace()
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        return OpTrace({str(graph["graph_name"]): _operators(graph) for graph in document["subgraph_traces"]})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # No trace is no fault: the times are shown without the names of the model's nodes.
        return OpTrace()


def _operators(graph: dict[str, Any]) -> tuple[CompiledOperator, ...]:
    return tuple(
        CompiledOperator(str(mapping["dst_name"]), str(mapping.get("dst_qnn_op_type", "")))
        for mapping in graph["op_mappings"]
    )
