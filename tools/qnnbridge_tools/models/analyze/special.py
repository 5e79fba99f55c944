"""What QNN takes of single operators and no table can hold. Pure functions: a node in, an objection or None out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from qnnbridge_tools.models.analyze import tables
from qnnbridge_tools.models.analyze.graph_view import GraphView, Node

Objection = str | tuple[str, str] | None
Check = Callable[[Node, GraphView], Objection]

_FLOATS = ("float", "float16")

_PAIRS: Final = (
    *("QuantizeLinear", "DequantizeLinear"),
    *("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear"),
)
_OWN_TYPES: Final = frozenset({*_PAIRS, "QLinearConv", "QLinearMatMul", "Shape"})

_INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("ReduceL1", "ReduceSumSquare", "ReduceLogSum", "Softsign", "Celu", "Sinh", "Cosh"),
        "qnnbridge fix (missing-operators)",
    ),
    "Erf": "qnnbridge fix (erf), or export Gelu as one operator",
    "Trilu": "qnnbridge fix (trilu)",
    "com.microsoft.SkipLayerNormalization": "qnnbridge fix (skip-norm)",
    "Loop": "export the model with the loop unrolled, or run the loop in the application",
    "Scan": "export the model with the loop unrolled, or run the loop in the application",
    "ConvInteger": "quantise the float model with qnnbridge quantize instead",
    "MatMulInteger": "quantise the float model with qnnbridge quantize instead",
    "DynamicQuantizeLinear": "quantise the float model with qnnbridge quantize instead",
    "RNN": "use LSTM or GRU",
    "ConstantOfShape": "qnnbridge fix (shape-computations) with fixed sizes",
    "Size": "qnnbridge fix (shape-computations) with fixed sizes",
    "BitShift": "multiply or divide by powers of two",
    "MeanVarianceNormalization": "use InstanceNormalization or LayerNormalization",
}


def instead_of(node: Node) -> str:
    """What to do about an operator that QNN does not have."""
    known = _INSTEAD.get(node.op)
    return known or f"replace {node.op}, or let the application compute it before or after the model"


def type_objection(node: Node) -> Objection:
    """Types that QNN does not have at all, and those that this operator is not made for."""
    if node.op in ("Cast", "CastLike"):
        return _cast(node)
    if node.op in _OWN_TYPES or node.op in FAILURES:
        return None
    number = tables.DATA_INPUT.get(node.op, 0)
    data = node.input(number)
    if data is None or not data.type:
        return None
    allowed = tables.TYPES.get(node.op, _FLOATS)
    if data.type in allowed:
        return None
    words = " and ".join([", ".join(allowed[:-1]), allowed[-1]] if len(allowed) > 1 else allowed)
    return f"{data.name} is {data.type}; {node.op} takes {words}", _type_fix(data.type)


def _type_fix(element: str) -> str:
    if element in ("double", "bfloat16"):
        return "convert the model to float"
    if element in ("int8", "uint8", "int16", "uint16"):
        return "give it Quantize and Dequantize around it (qnnbridge quantize), or compute in int32"
    if element == "uint64":
        return "compute in int32"
    return "compute this part outside of the model"


def _cast(node: Node) -> Objection:
    source, made = node.input(0), node.made[0] if node.made else None
    if source is None or made is None or not source.type or not made.type:
        return None
    if made.type in tables.CASTS.get(source.type, ()):
        return None
    fix = "give an int32 instead" if made.type == "int64" else ""
    return f"QNN does not convert {source.type} to {made.type}", fix


def _layer_normalization(node: Node, view: GraphView) -> Objection:
    data = node.input(0)
    axis = node.get("axis", -1)
    if data is None or data.rank is None or axis in (-1, data.rank - 1):
        return None
    return f"axis is {axis}: it normalises along the last axis only", "reshape so that one axis is left"


def _reduce(node: Node, view: GraphView) -> Objection:
    axes = node.get("axes", None)
    given = node.input(1)
    if given is not None and given.elements == 0:
        axes = []
    none_given = (axes is None and given is None) or axes == []
    if none_given and node.get("noop_with_empty_axes", 0):
        return "no axes are given, and it is asked to do nothing then", "take it out"
    return None


def _resize(node: Node, view: GraphView) -> Objection:
    scales, data = node.input(2), node.input(0)
    if node.get("mode", "nearest") != "cubic" or scales is None or data is None:
        return None
    if not scales.constant and scales.elements:
        return "with the mode cubic the scales must be a constant"
    value = view.value(scales)
    if value is not None and any(
        scale * size != int(scale * size) for scale, size in zip(value, data.fixed or (), strict=False)
    ):
        return "with the mode cubic the scales must give whole sizes"
    return None


def _einsum(node: Node, view: GraphView) -> Objection:
    if str(node.get("equation", "")).replace(" ", "") in ("i,i", "i,i->"):
        return "this equation is not there", "use MatMul or ReduceSum"
    return None


def _attention(node: Node, view: GraphView) -> Objection:
    mask = node.input(3)
    if mask is not None and mask.type == "bool":
        return "a mask of truth values is not taken", "give a mask of floats that is added: 0 and -1e4"
    if node.input(6) is not None:
        return "nonpad_kv_seqlen is not taken", "give a mask instead"
    if node.get("softmax_precision", None) is not None:
        return "softmax_precision is not taken"
    return None


def _pad(node: Node, view: GraphView) -> Objection:
    if node.input(3) is not None:
        return "axes are not taken", "give paddings for all axes"
    return None


def _max_pool(node: Node, view: GraphView) -> Objection:
    data = node.input(0)
    if data is not None and data.rank == 5:
        return "there is no pooling over three dimensions"
    return None


def _lp_pool(node: Node, view: GraphView) -> Objection:
    data = node.input(0)
    if data is not None and data.rank == 5:
        return "there is no pooling over three dimensions of floats"
    return None


def _if(node: Node, view: GraphView) -> Objection:
    for op in node.inner_ops:
        if op not in tables.REGISTERED and op not in tables.REPLACED and op != "Constant":
            return f"one of its branches has {op}, which QNN does not have"
    return None


def _rotary(node: Node, view: GraphView) -> Objection:
    cache = node.input(1)
    if cache is not None and cache.constant:
        return (
            "its tables are constants, and QNN cannot build it then",
            "give the tables as inputs, or write it out",
        )
    return None


def _standalone(node: Node, view: GraphView) -> Objection:
    """Of a Quantize or Dequantize; those around an operator are judged with it."""
    scale = node.input(1)
    if scale is not None and (scale.elements or 1) > 1:
        return "with a scale per channel it does not stand alone"
    small = node.made[0] if node.op.endswith("QuantizeLinear") and "De" not in node.op else node.input(0)
    if small is not None and small.type.startswith("float8"):
        return f"{small.type} is not there"
    if all(
        other.op.rpartition(".")[2] in ("QuantizeLinear", "DequantizeLinear", "Constant") for other in view.nodes
    ):
        return "a graph of nothing but these stays on the CPU"
    return None


def _pow(node: Node, view: GraphView) -> Objection:
    exponent = node.input(1)
    if exponent is not None and exponent.type and exponent.type not in _FLOATS:
        return f"the exponent is {exponent.type}", "qnnbridge fix (integer-exponent)"
    return None


CHECKS: Final[Mapping[str, Check]] = {
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _layer_normalization,
    **dict.fromkeys(
        ("ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"),
        _reduce,
    ),
    "Resize": _resize,
    "Einsum": _einsum,
    "Attention": _attention,
    "Pad": _pad,
    "MaxPool": _max_pool,
    "LpPool": _lp_pool,
    "If": _if,
    "Pow": _pow,
    "RotaryEmbedding": _rotary,
    **dict.fromkeys(_PAIRS, _standalone),
}
"""Why a node stays on the CPU."""


def _wide_type(node: Node, view: GraphView) -> Objection:
    for tensor in (*node.given, *node.made):
        if tensor.type in ("double", "uint64"):
            return f"{tensor.name} is {tensor.type}; QNN takes {node.op} and fails when it builds the graph"
    return None


FAILURES: Final[Mapping[str, Check]] = dict.fromkeys(
    ("Bernoulli", "Mod", "RandomNormalLike", "RandomUniformLike"), _wide_type
)
"""Why no session can be made at all: QNN accepts the node first and refuses it when it is too late."""
