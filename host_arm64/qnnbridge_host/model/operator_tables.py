# ruff: noqa: SIM905 - words in a text are read more easily than a hundred quoted ones
"""Operators, types and sizes that QNN takes, as data: measured with onnxruntime-qnn 2.7 and its HTP simulator, one
operator at a time.

Every table speaks of float and integer tensors as they are; quantised operators have their own
(`qnnbridge_models.analyze.predict`). How often the rules are right is in docs/dev/verification.md. The look-ups
at the end are pure functions; any thread.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Mapping
from typing import Any, Final

from qnnbridge_host.model.graph_index import GraphNode, GraphTensor, rules_about
from qnnbridge_host.model.qnn_operators import REGISTERED, REPLACED

# Operators that the provider knows and the NPU does not have, and what to do instead.
REFUSED_BY_HTP: Final[Mapping[str, str]] = {
    "ReduceProd": "use Log, ReduceSum and Exp if all values are positive",
    "IsInf": "compare the absolute value with the largest number instead",
    "Asin": "",
}

# Operators that end the process if one of these inputs is no constant.
# frame_step and frame_length.
# With onnxruntime-qnn 2.7 it is a SIGSEGV when the session is made.
CRASHES: Final[Mapping[str, tuple[int, ...]]] = {"STFT": (1, 3)}

# Operators that chips before V73 do not have for float: QNN fails with error 1002 when it finishes the graph.
NEEDS_V73: Final = frozenset(
    """
    ArrayFeatureExtractor Atan CumSum Elu GRU Gather GatherElements Gelu GridSample GroupNormalization HardSigmoid
    If InstanceNormalization LRN LSTM LpNormalization RMSNormalization RoiAlign RotaryEmbedding Round
    ScatterElements ScatterND Selu SimplifiedLayerNormalization ThresholdedRelu Where com.microsoft.Gelu
    com.microsoft.QuickGelu
    """.split()
)

FIRST_FLOAT_ARCH: Final = 73
# Of rank 6 and 7 QNN refuses every operator that was tried (error 3110).
MOST_DIMENSIONS: Final = 5
# The newest ONNX Runtime that was tried, and the newest models that it loads.
NEWEST_ORT: Final = "1.32"
NEWEST_OPSET: Final = 28
NEWEST_IR_VERSION: Final = 14

_FLOATS = ("float", "float16")
_INTS = (*_FLOATS, "int32", "int64")
_MOVED = (*_INTS, "uint32", "bool")

# Operator -> types of its data. Those that are not here take float and float16.
TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("Abs", "Add", "Clip", "CumSum", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Sub"),
        _INTS,
    ),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceSum", "TopK", "Where", "RandomUniformLike"), _INTS),
    **dict.fromkeys(("ArgMax", "Max", "Min", "Mul"), (*_INTS, "uint32")),
    **dict.fromkeys(("And", "Not", "Or", "Xor"), ("bool",)),
    **dict.fromkeys(("Concat", "Gather", "Identity", "ScatterND"), _MOVED),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze"), (*_MOVED, "uint8")),
    **dict.fromkeys(("GatherElements", "Split", "Tile"), (*_INTS, "bool")),
    "Expand": (*_INTS, "uint32", "bool"),
    "GatherND": (*_FLOATS, "int32"),
    "Mod": (*_INTS, "uint32", "uint8", "int8", "int16", "uint16"),
    "NonZero": ("bool",),
    "OneHot": ("int32", "int64"),
    "Range": ("float", "int32", "int64"),
    "RandomNormalLike": _INTS,
    "ScatterElements": (*_INTS, "uint8"),
    "Slice": (*_INTS, "uint8", "bool"),
    "Transpose": _MOVED,
    "Unsqueeze": (*_MOVED, "uint8"),
    "If": ("bool",),
    "EyeLike": _INTS,
}

# Where it is less than `MOST_DIMENSIONS`.
MOST_DIMENSIONS_OF: Final[Mapping[str, int]] = dict.fromkeys(
    """
    And ArgMax ArgMin Atan BatchNormalization Ceil Cos CumSum Elu Floor GatherND GlobalMaxPool HardSigmoid HardSwish
    InstanceNormalization LRN LayerNormalization Log LogSoftmax LpNormalization LpPool Max MaxPool Min Mod Neg Or
    RMSNormalization ReduceL2 ReduceLogSumExp Resize Round ScatterElements Selu Sin Softplus Sqrt Tanh TopK
    Xor
    """.split(),
    4,
)

# Operators that are taken with more dimensions than this, and then make the whole session fail.
FAILS_BEYOND: Final[Mapping[str, int]] = {
    "Sign": 4,
    "Tan": 4,
    "Reciprocal": 5,
    "IsNaN": 5,
    "Upsample": 4,
    "GridSample": 4,
    "GroupNormalization": 4,
}

# Operators that ONNX Runtime rearranges for QNN before QNN refuses the type; it cannot give them back then.
# The error names the NHWC format. It comes with a fallback to the CPU as well.
FAILS_UNLESS_FLOAT: Final = frozenset({"DepthToSpace", "SpaceToDepth", "Resize", "Upsample", "MaxPool"})

LEAST_DIMENSIONS: Final[Mapping[str, int]] = {"GlobalAveragePool": 3, "Pad": 1, "Tile": 1}

# Which input has the type that counts, if it is not the first.
# Input 0 of Where is the condition.
DATA_INPUT: Final[Mapping[str, int]] = {"Where": 1}

# From -> to.
CASTS: Final[Mapping[str, tuple[str, ...]]] = {
    "float": ("float", "float16", "int64", "int32", "uint8", "uint32", "bool"),
    "float16": ("float", "float16", "int64", "int32", "bool"),
    "int64": ("float", "float16", "int64", "int32", "uint8", "uint32", "bool"),
    "int32": ("float", "float16", "int64", "int32", "uint8", "uint32", "bool"),
    "uint8": ("float", "float16", "int64", "int32", "uint8", "uint32", "bool"),
    "uint32": ("float", "int64", "int32", "uint8", "uint32", "bool"),
    "bool": ("float", "float16", "int64", "int32", "uint8", "uint32", "bool"),
    "int16": ("int32",),
}
# A Cast of these to int64 stays on the CPU if its result is an output of the model.
NOT_INT64_AT_THE_END: Final = frozenset({"float", "float16", "uint8", "bool"})

# Operator -> inputs that must be constants. `qnnbridge fix` makes them so where they follow from fixed shapes.
CONSTANT_INPUTS: Final[Mapping[str, tuple[int, ...]]] = {
    "BatchNormalization": (1, 2, 3, 4),
    "Clip": (1, 2),
    "CumSum": (1,),
    **dict.fromkeys(("DequantizeLinear", "com.microsoft.DequantizeLinear"), (1, 2)),
    "Expand": (1,),
    # sequence_lens.
    "LSTM": (4,),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,),
    "Pad": (1,),
    "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    **dict.fromkeys(("QuantizeLinear", "com.microsoft.QuantizeLinear"), (1, 2)),
    "Range": (0, 1, 2),
    "ReduceL2": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceSum": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
}

LEAST_INPUTS: Final[Mapping[str, int]] = {"Max": 2, "Min": 2, "Sum": 2, "Mean": 2, "Einsum": 2}
MOST_OUTPUTS: Final[Mapping[str, int]] = {"LayerNormalization": 1, "MaxPool": 1, "BatchNormalization": 1}


@dataclasses.dataclass(frozen=True, slots=True)
class AttributeRule:
    """An attribute that may only have certain values. allowed: of a list, every element."""

    operators: tuple[str, ...]
    name: str
    default: Any
    allowed: tuple[Any, ...]
    reason: str
    fix: str = ""


ATTRIBUTES: Final = (
    AttributeRule(
        ("ArgMax", "ArgMin"), "select_last_index", 0, (0,), "of equal values QNN finds the first, not the last"
    ),
    AttributeRule(("AveragePool", "MaxPool", "LpPool"), "dilations", 1, (1,), "pooling is not dilated on QNN"),
    AttributeRule(("LpPool",), "p", 2, (1, 2), "only p of 1 and 2 are there"),
    AttributeRule(("LpNormalization",), "p", 2, (2,), "only p of 2 is there"),
    AttributeRule(("ConvTranspose",), "dilations", 1, (1,), "transposed convolutions are not dilated on QNN"),
    AttributeRule(("RoiAlign",), "mode", "avg", ("avg",), "only the mode avg is there"),
    AttributeRule(
        ("GridSample",), "mode", "linear", ("linear", "bilinear", "nearest"), "the mode cubic is not there"
    ),
    AttributeRule(("Mod",), "fmod", 0, (0,), "only fmod of 0 is there"),
    AttributeRule(
        ("Gemm",), "alpha", 1.0, (1.0,), "alpha must be 1", "qnnbridge fix (gemm-scale) moves it into the constants"
    ),
    AttributeRule(
        ("Gemm",),
        "beta",
        1.0,
        (0.0, 1.0),
        "beta must be 1 or 0",
        "qnnbridge fix (gemm-scale) moves it into the constants",
    ),
    AttributeRule(
        ("ScatterND",), "reduction", "none", ("none", "add", "mul"), "of reductions only add and mul are there"
    ),
    AttributeRule(("ScatterElements",), "reduction", "none", ("none", "mul"), "this reduction is not there"),
    AttributeRule(("Resize",), "antialias", 0, (0,), "it does not smooth (antialias)"),
    AttributeRule(
        ("Resize",),
        "coordinate_transformation_mode",
        "half_pixel",
        ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"),
        "this coordinate_transformation_mode is not there",
        "export with half_pixel, asymmetric or align_corners",
    ),
    AttributeRule(("CumSum",), "exclusive", 0, (0,), "only exclusive of 0 is there"),
    AttributeRule(("CumSum",), "reverse", 0, (0,), "only reverse of 0 is there"),
    AttributeRule(("GRU", "LSTM"), "layout", 0, (0,), "only layout 0 is there"),
    AttributeRule(
        ("GRU", "LSTM"),
        "activations",
        (),
        (),
        "its activations must not be stated, even if they are the defaults",
        "qnnbridge fix (default-activations) takes the defaults away",
    ),
)


PAIRS: Final = (
    *("QuantizeLinear", "DequantizeLinear"),
    *("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear"),
)
# They take every type, and then fail with some.
WIDE: Final = ("Bernoulli", "Mod", "RandomNormalLike", "RandomUniformLike")
# They have checks of their own.
_OWN_TYPES: Final = frozenset({*PAIRS, *WIDE, "QLinearConv", "QLinearMatMul", "Shape", "Cast", "CastLike"})

# By operator: a model has thousands of nodes, and few operators.
_attribute_rules = functools.cache(functools.partial(rules_about, ATTRIBUTES))


def most_dimensions(op: str, element: str) -> int:
    """Return how many dimensions QNN takes of an operator with data of this type."""
    if op == "Transpose" and element in ("int32", "int64", "uint32"):
        return MOST_DIMENSIONS - 1
    return MOST_DIMENSIONS_OF.get(op, MOST_DIMENSIONS)


def is_missing(op: str) -> bool:
    """Return whether QNN has no such operator."""
    return op not in REGISTERED and op not in REFUSED_BY_HTP and op not in REPLACED


def refused_type(node: GraphNode) -> tuple[GraphTensor, tuple[str, ...]] | None:
    """Return the tensor whose type the operator does not take, and the types that it takes."""
    if node.op in _OWN_TYPES:
        return None
    data = node.input(DATA_INPUT.get(node.op, 0))
    if data is None or not data.type:
        return None
    allowed = TYPES.get(node.op, _FLOATS)
    return None if _as_qnn_has_it(data.type) in allowed else (data, allowed)


def _as_qnn_has_it(element: str) -> str:
    """QNN computes doubles in 32 bits. Those at the edges of the model have a rule of their own."""
    return "float" if element == "double" else element


def refused_at_the_end(node: GraphNode, outputs: Container[str]) -> bool:
    """Return whether a Cast gives an output of the model in int64, and QNN takes it only inside of a graph."""
    source, made = node.input(0), node.made[0] if node.made else None
    if source is None or made is None or made.type != "int64" or made.name not in outputs:
        return False
    return source.type in NOT_INT64_AT_THE_END


def refused_cast(node: GraphNode) -> tuple[str, str] | None:
    """Return the two types between which QNN does not convert."""
    source, made = node.input(0), node.made[0] if node.made else None
    if source is None or made is None or not source.type or not made.type:
        return None
    allowed = CASTS.get(_as_qnn_has_it(source.type), ())
    return None if _as_qnn_has_it(made.type) in allowed else (source.type, made.type)


def refused_attribute(node: GraphNode) -> tuple[AttributeRule, Any] | None:
    """Return the rule that an attribute breaks, and the value of the attribute."""
    for one in _attribute_rules(node.op):
        value = node.get(one.name, one.default)
        if any(part not in one.allowed for part in (value if isinstance(value, (list, tuple)) else [value])):
            # beta multiplies C: without C it does nothing.
            if one.name == "beta" and node.input(2) is None:
                continue
            # Texts in a list are bytes.
            texts = (
                [part.decode("utf-8", "replace") if isinstance(part, bytes) else part for part in value]
                if isinstance(value, (list, tuple))
                else value
            )
            return one, texts
    return None
