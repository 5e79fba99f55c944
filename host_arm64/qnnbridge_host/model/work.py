"""Estimate the work of nodes and of a whole model from shapes. The functions have no side effects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from qnnbridge_host.model.graph_index import GraphNode, read_model
from qnnbridge_host.model.static_shapes import complete

# Estimate of the processor time of one call on the simulator (onnxruntime-qnn 2.7.0): seconds per billion
# multiply-adds, and seconds per node. It was fitted to five float models with 0.01 to 1.5 billion multiply-adds,
# and is right within a factor of 1.6 (docs/performance.md).
_S_FOR_1E9_PRODUCTS: Final = 3.5
_S_FOR_A_NODE: Final = 0.005
_QUANTISED: Final = frozenset({"DequantizeLinear", "com.microsoft.DequantizeLinear"})


def products_of(node: GraphNode) -> int | None:
    """Return the number of multiply-adds of a node; None for an operator without a formula or unknown shapes."""
    # Ignore the domain: com.microsoft.Attention costs the same as Attention.
    formula = _FORMULAS.get(node.op.rpartition(".")[2])
    return formula(node) if formula else None


def makes_products(node: GraphNode) -> bool:
    """Return whether a node's work consists of multiply-adds, whose number follows from the shapes."""
    return node.op.rpartition(".")[2] in _FORMULAS


def seconds_on_simulator(model: str | bytes, sizes: Mapping[str, int]) -> float | None:
    """Estimate the processor time in seconds of one call of a float model on the simulator.

    Returns ``None`` for a quantised model, whose rate is not known, and if shapes do not follow from the file.

    Args:
        model: the model's path, or its bytes.
        sizes: sizes of free dimensions by name, as the session sets them.
    """
    graph = read_model(model, sizes)
    if graph is None:
        return None
    if not graph.operators.isdisjoint(_QUANTISED):
        return None
    complete(graph)
    found = [products_of(node) for node in graph.nodes if makes_products(node)]
    if None in found:
        return None
    products = sum(one for one in found if one is not None)
    return products / 1e9 * _S_FOR_1E9_PRODUCTS + len(graph.nodes) * _S_FOR_A_NODE


def _convolution(node: GraphNode) -> int | None:
    weight, made = node.input(1), node.made[0]
    if weight is None or weight.fixed is None or made.elements is None:
        return None
    # Weights of Conv have the axes: output channels, input channels of a group, kernel. Each element of the result
    # takes one multiply-add for each weight of its output channel.
    return made.elements * math.prod(weight.fixed[1:])


def _transposed(node: GraphNode) -> int | None:
    data, weight = node.input(0), node.input(1)
    if data is None or weight is None or data.elements is None or weight.fixed is None:
        return None
    # The first axis of the weights is the input channel: all weights of a channel multiply each element in it.
    return data.elements * math.prod(weight.fixed[1:])


def _matmul(node: GraphNode) -> int | None:
    data, made = node.input(0), node.made[0]
    if data is None or not data.fixed or made.elements is None:
        return None
    return made.elements * data.fixed[-1]


def _gemm(node: GraphNode) -> int | None:
    data, made = node.input(0), node.made[0]
    if data is None or not data.fixed or len(data.fixed) != 2 or made.elements is None:
        return None
    return made.elements * data.fixed[0 if node.get("transA", 0) else 1]


def _recurrent(node: GraphNode) -> int | None:
    data, weight, again = node.input(0), node.input(1), node.input(2)
    if data is None or weight is None or again is None:
        return None
    if not data.fixed or weight.elements is None or again.elements is None or len(data.fixed) < 2:
        return None
    # Each step of each sequence takes one multiply-add per element of the input weights and of the recurrence
    # weights.
    return data.fixed[0] * data.fixed[1] * (weight.elements + again.elements)


def _attention(node: GraphNode) -> int | None:
    query, key = node.input(0), node.input(1)
    if query is None or key is None or query.elements is None or not key.fixed or len(key.fixed) < 2:
        return None
    # Two products: query with key gives the scores, and scores with values the result.
    return 2 * query.elements * key.fixed[-2]


_FORMULAS: Final[Mapping[str, Callable[[GraphNode], int | None]]] = {
    "Conv": _convolution,
    "ConvInteger": _convolution,
    "ConvTranspose": _transposed,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "FusedMatMul": _matmul,
    "Gemm": _gemm,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Attention": _attention,
}
