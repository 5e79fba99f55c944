"""64-bit floats that enter or leave a model, with which QNN fails; `qnnbridge_host.rewrite.doubles` cures them.

Found in the file, without onnx: each session asks. Pure functions; any thread.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from qnnbridge_host.model.graph_index import read_graph
from qnnbridge_host.model.protobuf import Garbage
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    from qnnbridge_host.model.source import ModelSource

REWRITE: Final = "double-edges"
DOUBLE: Final = "tensor(double)"
_WITH_BODIES: Final = frozenset(("If", "Loop", "Scan"))
# Their results are constants where shapes are fixed, which QNN needs in any case.
_OF_SHAPES: Final = frozenset(("Shape", "Size"))
# At the end of the names of the nodes that convert on the CPU.
CONVERSION: Final = "/conversion of a double"
_CONVERTS: Final = re.compile(re.escape(CONVERSION) + r"(_\d+)?$")


def is_conversion(node_name: str) -> bool:
    """Return whether a node is one of those with which the rewrite converts on the CPU."""
    return _CONVERTS.search(node_name) is not None


def varying(nodes: Iterable[tuple[str, Iterable[str], Iterable[str]]], inputs: Iterable[str]) -> set[str]:
    """Return the names of the tensors that do not follow from constants and shapes alone.

    Args:
        nodes: in their order, each with its operator, the names that it takes and those that it makes.
        inputs: of the model.
    """
    found = set(inputs)
    for op, reads, makes in nodes:
        if op in _OF_SHAPES:
            continue
        if op in _WITH_BODIES or op.startswith("Random") or not found.isdisjoint(reads):
            found.update(filter(None, makes))
    return found


class DoubleEdges(NamedTuple):
    """The 64-bit floats at the edges of a model.

    bare: names of those that QNN would get or make. converted: others are converted on the CPU.
    """

    bare: frozenset[str] = frozenset()
    converted: bool = False


def double_edges(source: ModelSource) -> DoubleEdges:
    """Return what a model file has of them."""
    scan = source.scan
    if scan is None or scan.format != "onnx":
        return DoubleEdges()
    inputs = {one.name for one in scan.inputs if one.type == DOUBLE}
    outputs = {one.name for one in scan.outputs if one.type == DOUBLE}
    if not inputs and not outputs:
        return DoubleEdges()
    given = source.given
    try:
        if isinstance(given, bytes):
            graph = read_graph(io.BytesIO(given), len(given))
        else:
            # Unbuffered: the reader has windows of its own.
            with open(given, "rb", buffering=0) as file:
                graph = read_graph(file, os.fstat(file.fileno()).st_size)
    except (OSError, Garbage):
        return DoubleEdges()
    nodes = [(one.op, one.inputs, one.outputs) for one in graph.entries]
    converting = [(one.inputs, one.outputs) for one in graph.entries if is_conversion(one.name)]
    converted = {name for pair in converting for names in pair for name in names}
    outputs &= varying(nodes, [one.name for one in scan.inputs])
    return DoubleEdges(frozenset((inputs | outputs) - converted), bool(converting))
