"""Find the quantisation steps of a model's tensors. A step is the scale of the DequantizeLinear that computes the
tensor.

A value between two steps may be rounded up or down, so a difference of one step between two computations is not an
error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from qnnbridge_host.model.graph_index import (
    FileGraph,
    GraphIndex,
    GraphNode,
    GraphTensor,
    Unknown,
    read_model,
    sizes_of,
)

DEQUANTIZE: Final = frozenset(("DequantizeLinear", "com.microsoft.DequantizeLinear"))
# Operators that move values without changing them.
_MOVES: Final = frozenset(
    ("Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
)


def quantised_steps(source: str | bytes) -> Mapping[str, float]:
    """Return the quantisation step by tensor name, for tensors whose values all have the same step.

    Args:
        source: path of a model file, or its bytes. The result is empty for a file that is not a model.
    """
    graph = read_model(source)
    return {} if graph is None else _steps_in(graph)


def _steps_in(graph: FileGraph) -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in graph.entries:
        if not entry.inputs or not entry.outputs:
            continue
        if entry.op in DEQUANTIZE and len(entry.inputs) > 1:
            scale = graph.about(entry.inputs[1]).values
            # With per-channel scales the tensor has no single step.
            if scale is not None and len(scale) == 1:
                found[entry.outputs[0]] = abs(float(scale[0]))
        elif entry.op in _MOVES and entry.inputs[0] in found:
            found[entry.outputs[0]] = found[entry.inputs[0]]
    return found


def stored_type(graph: GraphIndex, node: GraphNode, number: int) -> str:
    """Return the integer type of a quantised input. Raise `Unknown` if the input is not quantised."""
    maker = _maker(graph, node, number)
    # The zero point of a DequantizeLinear has the type of the stored integers.
    stored = maker.input(2) or maker.input(0)
    if stored is None or not stored.type:
        raise Unknown
    return stored.type


def scales_of(graph: GraphIndex, node: GraphNode, number: int) -> tuple[float, ...]:
    """Return the scales of a quantised input. Raise `Unknown` if it is not quantised, or has too many scales."""
    values = _scale(graph, node, number).values
    if values is None:
        raise Unknown
    return tuple(map(float, values))


def scale_count(graph: GraphIndex, node: GraphNode, number: int) -> int:
    """Return the number of scales of a quantised input, even if `scales_of` does not return that many scales. Raise
    `Unknown` if the input is not quantised.
    """
    return math.prod(sizes_of(_scale(graph, node, number)))


def _scale(graph: GraphIndex, node: GraphNode, number: int) -> GraphTensor:
    maker = _maker(graph, node, number)
    scale = maker.input(1) if maker.op in DEQUANTIZE else None
    if scale is None:
        raise Unknown
    return scale


def _maker(graph: GraphIndex, node: GraphNode, number: int) -> GraphNode:
    tensor = node.input(number)
    maker = graph.origin(tensor.name) if tensor is not None else None
    if maker is None:
        raise Unknown
    return maker
