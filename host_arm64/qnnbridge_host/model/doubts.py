"""Find operators that QNN refuses according to the operator tables, without `onnx` and without QNN.

The tables do not suffice to refuse a model: ONNX Runtime folds some nodes and QNN merges others, and the file does
not show which. But if a table lists an operator as refused, QNN's placement is checked first, because a compilation
may take minutes (`qnnbridge_host.create.beforehand`). The functions have no side effects.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Collection, Mapping
from typing import BinaryIO, Final

from qnnbridge_host.model.graph_index import DOES_NOT_FOLLOW, FileGraph, GraphIndex, GraphNode, read_graph
from qnnbridge_host.model.merged import gelu_of
from qnnbridge_host.model.operator_tables import (
    CONSTANT_INPUTS,
    MOST_DIMENSIONS,
    PAIRS,
    REFUSED_BY_HTP,
    is_missing,
    refused_at_the_end,
    refused_attribute,
    refused_cast,
    refused_type,
)
from qnnbridge_host.model.protobuf import Garbage
from qnnbridge_host.model.static_shapes import complete

# Operators that the tables do not judge: QNN does not compute them separately, or rules for the surrounding nodes
# judge them.
_NOT_JUDGED: Final = frozenset({*PAIRS, "Constant", "Dropout", "Identity", "If"})
# QNN supports some equations only, and no table lists them.
_BY_EQUATION: Final = frozenset({"Einsum"})


def refused_operators(source: str | os.PathLike[str] | bytes, sizes: Mapping[str, int]) -> frozenset[str]:
    """Return the operators, without domains, that QNN lacks, or refuses because of a type or an attribute.

    Args:
        source: the model's path, or its bytes. The result is empty for a file that is not a model, which is
            reported elsewhere.
        sizes: sizes of free dimensions by name, as the session sets them.
    """
    try:
        if isinstance(source, bytes):
            return _refused_in(io.BytesIO(source), len(source), sizes)
        with open(source, "rb", buffering=0) as file:
            return _refused_in(file, os.fstat(file.fileno()).st_size, sizes)
    except (Garbage, OSError):
        return frozenset()


def _refused_in(file: BinaryIO, size: int, sizes: Mapping[str, int]) -> frozenset[str]:
    graph = read_graph(file, size, sizes)
    complete(graph)
    found = set()
    nodes, known = _computed_by_session(graph)
    for node in nodes:
        # Malformed nodes are reported elsewhere.
        with contextlib.suppress(*DOES_NOT_FOLLOW):
            if _is_refused(node, graph, known):
                found.add(node.op.rpartition(".")[2])
    return frozenset(found)


def _computed_by_session(graph: FileGraph) -> tuple[list[GraphNode], set[str]]:
    """Return the nodes that a run computes, and the names of all constants. ONNX Runtime computes the other nodes
    once, when it creates the session."""
    known = {name for name, tensor in graph.known.items() if tensor.constant or tensor.values is not None}
    left = []
    for entry, node in zip(graph.entries, graph.nodes, strict=True):
        outputs = [name for name in entry.outputs if name]
        if all(name in known for name in outputs) or all(name in known for name in entry.inputs if name):
            known.update(outputs)
        elif node.op not in _NOT_JUDGED:
            left.append(node)
    return left, known


def _is_refused(node: GraphNode, graph: GraphIndex, known: Collection[str]) -> bool:
    if is_missing(node.op):
        # QNN may merge an Erf into a Gelu, which it recognises as a pattern of operators.
        return node.op != "Erf" or not gelu_of(graph, node)
    if node.op in REFUSED_BY_HTP or node.op in _BY_EQUATION:
        return True
    if any((tensor.rank or 0) > MOST_DIMENSIONS for tensor in (*node.given, *node.made)):
        return True
    for number in CONSTANT_INPUTS.get(node.op, ()):
        needed = node.input(number)
        if needed is not None and needed.name not in known and needed.elements != 0:
            return True
    is_cast = node.op in ("Cast", "CastLike")
    if is_cast and refused_at_the_end(node, graph.outputs):
        return True
    wrong = refused_cast(node) if is_cast else refused_type(node)
    return wrong is not None or refused_attribute(node) is not None
