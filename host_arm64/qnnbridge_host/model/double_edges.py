"""Find 64-bit inputs and outputs of a model. QNN fails on them; `qnnbridge_host.rewrite.doubles` converts them.

The file is read without onnx, because every session needs the result. The functions have no side effects and are
thread-safe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from qnnbridge_host.model.graph_index import read_model
from qnnbridge_host.model.protobuf import UNKNOWN
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_protocol.specs import NodeInfo

REWRITE: Final = "double-edges"
DOUBLE: Final = "tensor(double)"
_INT64: Final = "tensor(int64)"
# QNN fails if an input or output of its graph is an int64 tensor with this many dimensions.
_WIDE: Final = 5
_WITH_BODIES: Final = frozenset(("If", "Loop", "Scan"))
# With fixed shapes, which QNN requires, the results of these operators do not depend on the values of their inputs.
_OF_SHAPES: Final = frozenset(("Shape", "Size"))
# Suffix in the name of a node that converts doubles on the CPU.
CONVERSION: Final = "/conversion of a double"
# Suffix in the name of a node that converts int64 with five dimensions (`qnnbridge_host.rewrite.integers`).
CONVERSION_OF_INTEGERS: Final = "/conversion of integers"
# ONNX Runtime merges consecutive Reshapes into one node, named after the first Reshape with the suffix
# _new_reshape.
_CONVERTS: Final = re.compile(f"({CONVERSION}|{CONVERSION_OF_INTEGERS})" + r"(_\d+)?(_new_reshape)*$")


def is_conversion(node_name: str) -> bool:
    """Return whether a node is a conversion on the CPU that rewrites insert at a model's inputs and outputs."""
    return _CONVERTS.search(node_name) is not None


def varying(nodes: Iterable[tuple[str, Iterable[str], Iterable[str]]], inputs: Iterable[str]) -> set[str]:
    """Return the names of tensors that depend on more than constants and shapes.

    Args:
        nodes: operator, inputs and outputs of each node by name, in topological order.
        inputs: the model's inputs, by name.
    """
    found = set(inputs)
    for op, reads, makes in nodes:
        if op in _OF_SHAPES:
            continue
        if op in _WITH_BODIES or op.startswith("Random") or not found.isdisjoint(reads):
            found.update(filter(None, makes))
    return found


class DoubleEdges(NamedTuple):
    """64-bit inputs and outputs of a model.

    bare: double inputs and outputs without a conversion on the CPU, so that QNN would have to compute in double.
        converted: whether an input or output (double, or int64 with five dimensions) has a conversion on the CPU.
    """

    bare: frozenset[str] = frozenset()
    converted: bool = False


def _may_be_wide(edge: NodeInfo) -> bool:
    # A model may declare an output without type and shape, so an unknown type or shape counts as wide.
    return edge.type in (_INT64, UNKNOWN) and (edge.shape is None or len(edge.shape) == _WIDE)


def double_edges(source: ModelSource) -> DoubleEdges:
    """Return the 64-bit inputs and outputs of a model file."""
    scan = source.scan
    if scan is None or scan.format != "onnx":
        return DoubleEdges()
    inputs = {one.name for one in scan.inputs if one.type == DOUBLE}
    outputs = {one.name for one in scan.outputs if one.type == DOUBLE}
    wide = any(map(_may_be_wide, (*scan.inputs, *scan.outputs)))
    if not inputs and not outputs and not wide:
        return DoubleEdges()
    graph = read_model(source.given)
    if graph is None:
        return DoubleEdges()
    nodes = [(one.op, one.inputs, one.outputs) for one in graph.entries]
    converting = [(one.inputs, one.outputs) for one in graph.entries if is_conversion(one.name)]
    converted = {name for pair in converting for names in pair for name in names}
    outputs &= varying(nodes, [one.name for one in scan.inputs])
    return DoubleEdges(frozenset((inputs | outputs) - converted), bool(converting))
