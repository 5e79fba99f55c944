"""What a node costs: multiplications, bytes of weights and results. Estimates from shapes; pure functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Final

from qnnbridge_tools.models.analyze.graph_view import GraphView, Node, Tensor

_BYTES: Final[Mapping[str, float]] = {
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int4", "uint4"), 0.5),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """macs: multiplications with addition; of other operators one for each element. weights, results: bytes."""

    macs: int = 0
    weights: int = 0
    results: int = 0


def cost_of(node: Node, view: GraphView, weights: int) -> Cost:
    """weights: bytes of the constants that count as this node's."""
    formula = _FORMULAS.get(node.op.rpartition(".")[2])
    macs = formula(node) if formula else None
    made = sum(tensor.elements or 0 for tensor in node.made)
    return Cost(made if macs is None else macs, weights, sum(_bytes(tensor) for tensor in node.made))


def costs_of(view: GraphView) -> list[Cost]:
    """Of all nodes. The bytes of a constant count once, for the first node that takes it."""
    taken: set[str] = set()
    costs = []
    for node in view.nodes:
        mine = {tensor.name for tensor in node.given if tensor.name in view.sizes} - taken
        taken |= mine
        costs.append(cost_of(node, view, sum(view.sizes[name] for name in mine)))
    return costs


def _bytes(tensor: Tensor) -> int:
    return int((tensor.elements or 0) * _BYTES.get(tensor.type, 1))


def _convolution(node: Node) -> int | None:
    weight, made = node.input(1), node.made[0]
    if weight is None or weight.fixed is None or made.elements is None:
        return None
    return made.elements * math.prod(weight.fixed[1:])


def _transposed(node: Node) -> int | None:
    data, weight = node.input(0), node.input(1)
    if data is None or weight is None or data.elements is None or weight.fixed is None:
        return None
    return data.elements * math.prod(weight.fixed[1:])


def _matmul(node: Node) -> int | None:
    data, made = node.input(0), node.made[0]
    if data is None or not data.fixed or made.elements is None:
        return None
    return made.elements * data.fixed[-1]


def _gemm(node: Node) -> int | None:
    data, made = node.input(0), node.made[0]
    if data is None or not data.fixed or len(data.fixed) != 2 or made.elements is None:
        return None
    return made.elements * data.fixed[0 if node.get("transA", 0) else 1]


def _recurrent(node: Node) -> int | None:
    data, weight, again = node.input(0), node.input(1), node.input(2)
    if data is None or weight is None or again is None:
        return None
    if not data.fixed or weight.elements is None or again.elements is None or len(data.fixed) < 2:
        return None
    return data.fixed[0] * data.fixed[1] * (weight.elements + again.elements)


def _attention(node: Node) -> int | None:
    query, key = node.input(0), node.input(1)
    if query is None or key is None or query.elements is None or not key.fixed or len(key.fixed) < 2:
        return None
    return 2 * query.elements * key.fixed[-2]


_FORMULAS: Final[Mapping[str, Callable[[Node], int | None]]] = {
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
