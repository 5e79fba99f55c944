"""Quantised operators: a node with its Dequantize before and its Quantize behind is one unit, with its own types.

The matrix is measured (231 models). Everything that a table does not name takes what most operators take.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.model.graph_index import GraphNode, GraphTensor
from qnnbridge_models.analyze.analysis import ON_QNN, NodeVerdict

QUANTIZE: Final = frozenset({"QuantizeLinear", "com.microsoft.QuantizeLinear"})
DEQUANTIZE: Final = frozenset({"DequantizeLinear", "com.microsoft.DequantizeLinear"})
EDGES: Final = QUANTIZE | DEQUANTIZE

_V73 = 73
_SHORT: Final = {"uint8": "u8", "int8": "s8", "uint16": "u16", "int16": "s16", "int4": "s4", "uint4": "u4"}

# Activation -> second operands that are taken; those behind the bar need V73.
_CONV: Final = {"u8": "u8 s8 s4", "s8": "u8 s8 s4 u16 s16", "u16": "u8 s8 s4 | u16 s16", "s16": "s8 s4"}
_CONV_PER_CHANNEL: Final = {"u8": "s8 s4", "s8": "s8", "u16": "s8 s4 | s16", "s16": "s8 s4"}
_MATMUL: Final = {"u8": "u8 s8", "s8": "u8 s8 u16 s16", "u16": "u8 s8 | u16 s16", "s16": "s8"}
_MATMUL_PER_CHANNEL: Final = {"u8": "s8 s4", "s8": "s8", "u16": "s8 s4", "s16": "s8 s4"}
_MATMUL_DYNAMIC: Final = {"u8": "u8 s8", "s8": "u8 s8 u16 s16", "u16": "u8 s8 u16 | s16", "s16": "s8 | s16"}
_LAYER_NORM: Final = {"u8": "u8", "s8": "s8", "u16": "u8 | s16", "s16": ""}
_RMS_NORM: Final = {"u8": "u8", "s8": "", "u16": "u8 u16 s16", "s16": "u8 s16"}
_NOT_INT16: Final = frozenset({"HardSwish", "Exp", "Round", "Sin", "GlobalAveragePool"})


@dataclasses.dataclass(frozen=True, slots=True)
class QdqUnit:
    """An operator with the Quantize and Dequantize nodes around it.

    Types are short: u8, s16.

    Args:
        edges: indexes of those nodes.
        weight: of the second input.
    """

    edges: tuple[int, ...]
    activation: str
    weight: str
    per_channel: bool
    weight_is_constant: bool


QdqUnits = Mapping[int, QdqUnit]


def units_of(view: ModelIndex) -> dict[int, QdqUnit]:
    """By the index of the operator in the middle."""
    found: dict[int, QdqUnit] = {}
    for node in view.nodes:
        if node.op in EDGES or not node.made:
            continue
        before = [view.origin(tensor.name) for tensor in node.given]
        sources = [one for one in before if one is not None and one.op in DEQUANTIZE]
        users = [user for tensor in node.made for user in view.readers(tensor.name)]
        if not sources or not users or any(user.op not in QUANTIZE for user in users):
            continue
        # An output of the model is read as float, so the operator does not end in a Quantize alone.
        if any(tensor.name in view.outputs for tensor in node.made):
            continue
        found[node.index] = _unit(node, view, tuple(one.index for one in (*sources, *users)))
    return found


def verdict(node: GraphNode, unit: QdqUnit, arch: int) -> NodeVerdict:
    """Of a unit whose operator has passed all other rules."""
    table = _table(node, unit)
    if node.op in _NOT_INT16 and unit.activation == "s16":
        return NodeVerdict(
            "cpu",
            "quantised-types",
            f"{node.op} is not there for int16 activations",
            "quantise with uint16 activations",
        )
    if table is None or unit.activation not in table or not unit.weight:
        return ON_QNN
    always, _, newer = table[unit.activation].partition("|")
    if unit.weight in always.split():
        return ON_QNN
    pair = f"{node.op} with {unit.activation} activations and {unit.weight} weights"
    pair += " per channel" if unit.per_channel else ""
    if unit.weight in newer.split():
        if arch >= _V73:
            return ON_QNN
        return NodeVerdict(
            "cpu", "quantised-types", f"{pair} needs a V{_V73} or newer", "quantise with int8 weights"
        )
    return NodeVerdict(
        "cpu", "quantised-types", f"{pair} is not there", "qnnbridge quantize chooses types that are"
    )


def spread(view: ModelIndex, verdicts: list[NodeVerdict], units: QdqUnits) -> list[NodeVerdict]:
    """Quantize and Dequantize nodes run with their operators, and stay on the CPU with those that stay there."""
    result = list(verdicts)
    places: dict[int, list[NodeVerdict]] = {}
    for index, unit in units.items():
        for edge in unit.edges:
            places.setdefault(edge, []).append(verdicts[index])
    for edge, around in places.items():
        # An edge may belong to two operators: it goes to QNN with one of them.
        if any(one.place == "qnn" for one in around):
            result[edge] = ON_QNN
        elif all(one.place == "cpu" for one in around):
            # With its advice: replacing the operator is what moves them.
            result[edge] = around[0]
    return result


def _unit(node: GraphNode, view: ModelIndex, edges: tuple[int, ...]) -> QdqUnit:
    first, second = (_quantised(node.input(number), view) for number in (0, 1))
    weight = node.input(1)
    maker = view.origin(weight.name) if weight is not None else None
    scale = maker.input(1) if maker is not None and maker.op in DEQUANTIZE else None
    constant = bool(maker and maker.op in DEQUANTIZE and maker.given[0].constant)
    return QdqUnit(edges, first, second, bool(scale and (scale.elements or 1) > 1), constant)


def _quantised(tensor: GraphTensor | None, view: ModelIndex) -> str:
    maker = view.origin(tensor.name) if tensor is not None else None
    if maker is None or maker.op not in DEQUANTIZE:
        return ""
    return _SHORT.get(maker.given[0].type, maker.given[0].type)


def _table(node: GraphNode, unit: QdqUnit) -> Mapping[str, str] | None:
    if node.op in ("Conv", "ConvTranspose"):
        return _CONV_PER_CHANNEL if unit.per_channel else _CONV
    if node.op in ("MatMul", "Gemm"):
        if not unit.weight_is_constant:
            return _MATMUL_DYNAMIC
        return _MATMUL_PER_CHANNEL if unit.per_channel else _MATMUL
    return {"LayerNormalization": _LAYER_NORM, "RMSNormalization": _RMS_NORM}.get(node.op)
