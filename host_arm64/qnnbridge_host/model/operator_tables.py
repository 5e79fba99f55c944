# ruff: noqa: SIM905 - one string of words is easier to read than a hundred quoted ones
"""Tables of operators, types and sizes that QNN supports, measured with onnxruntime-qnn 2.7 and its HTP simulator,
one operator at a time.

The tables describe float and integer tensors that are not quantised; `qnnbridge_models.analyze.predict` contains
the tables of quantised operators. docs/dev/verification.md reports how often the rules are right. The functions at
the end are pure and thread-safe.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Mapping
from typing import Any, Final

from qnnbridge_host.model.graph_index import GraphNode, GraphTensor, rules_about
from qnnbridge_host.model.qnn_operators import REGISTERED, REPLACED

# Operators that the provider accepts although the NPU lacks them, each with an alternative.
REFUSED_BY_HTP: Final[Mapping[str, str]] = {
    "ReduceProd": "use Log, ReduceSum and Exp if all values are positive",
    "IsInf": "compare the absolute value with the largest finite number instead",
    "Asin": "",
}

# Operators that crash the process if one of these inputs (frame_step and frame_length) is not a constant: SIGSEGV
# when the session is created with onnxruntime-qnn 2.7.
CRASHES: Final[Mapping[str, tuple[int, ...]]] = {"STFT": (1, 3)}

# Operators that chips before V73 lack for float: QNN fails with error 1002 when it finalizes the graph.
NEEDS_V73: Final = frozenset(
    """
    ArrayFeatureExtractor Atan CumSum Elu GRU Gather GatherElements Gelu GridSample GroupNormalization HardSigmoid
    If InstanceNormalization LRN LSTM LpNormalization RMSNormalization RoiAlign RotaryEmbedding Round
    ScatterElements ScatterND Selu SimplifiedLayerNormalization ThresholdedRelu Where com.microsoft.Gelu
    com.microsoft.QuickGelu
    """.split()
)

FIRST_FLOAT_ARCH: Final = 73
# QNN refused every operator that was tried with 6 or 7 dimensions (error 3110).
MOST_DIMENSIONS: Final = 5
# Newest ONNX Runtime that was tested, and the newest opset and IR version that it loads.
NEWEST_ORT: Final = "1.32"
NEWEST_OPSET: Final = 28
NEWEST_IR_VERSION: Final = 14

_FLOATS = ("float", "float16")
_INTS = (*_FLOATS, "int32", "int64")
_MOVED = (*_INTS, "uint32", "bool")

# Supported types of an operator's data. Operators that are not listed support float and float16.
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

# Operators that support fewer dimensions than `MOST_DIMENSIONS`.
MOST_DIMENSIONS_OF: Final[Mapping[str, int]] = dict.fromkeys(
    """
    And ArgMax ArgMin Atan BatchNormalization Ceil Cos CumSum Elu Floor GatherND GlobalMaxPool HardSigmoid HardSwish
    InstanceNormalization LRN LayerNormalization Log LogSoftmax LpNormalization LpPool Max MaxPool Min Mod Neg Or
    RMSNormalization ReduceL2 ReduceLogSumExp Resize Round ScatterElements Selu Sin Softplus Sqrt Tanh TopK
    Xor
    """.split(),
    4,
)

# Operators that QNN accepts with more dimensions than this number, although the whole session then fails.
FAILS_BEYOND: Final[Mapping[str, int]] = {
    "Sign": 4,
    "Tan": 4,
    "Reciprocal": 5,
    "IsNaN": 5,
    "Upsample": 4,
    "GridSample": 4,
    "GroupNormalization": 4,
}

# ONNX Runtime converts these operators to the NHWC layout for QNN before QNN refuses the type; the CPU cannot run
# the converted operators. So the session fails even if it allows the CPU, with NHWC in the error message.
FAILS_UNLESS_FLOAT: Final = frozenset({"DepthToSpace", "SpaceToDepth", "Resize", "Upsample", "MaxPool"})

LEAST_DIMENSIONS: Final[Mapping[str, int]] = {"GlobalAveragePool": 3, "Pad": 1, "Tile": 1}

# Index of the input that determines the type, if it is not the first input. Input 0 of Where is the condition.
DATA_INPUT: Final[Mapping[str, int]] = {"Where": 1}

# Supported target types of a Cast by source type.
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
# A Cast from these types to int64 stays on the CPU if its result is an output of the model.
NOT_INT64_AT_THE_END: Final = frozenset({"float", "float16", "uint8", "bool"})

# Inputs that must be constants. `qnnbridge fix` makes them constants if they follow from fixed shapes.
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
    """An attribute with restricted values. allowed: the supported values, for a list the supported values of each
    element."""

    operators: tuple[str, ...]
    name: str
    default: Any
    allowed: tuple[Any, ...]
    reason: str
    fix: str = ""


ATTRIBUTES: Final = (
    AttributeRule(
        ("ArgMax", "ArgMin"), "select_last_index", 0, (0,), "QNN finds the first of equal values, not the last"
    ),
    AttributeRule(("AveragePool", "MaxPool", "LpPool"), "dilations", 1, (1,), "QNN has no dilated pooling"),
    AttributeRule(("LpPool",), "p", 2, (1, 2), "QNN supports only p = 1 and p = 2"),
    AttributeRule(("LpNormalization",), "p", 2, (2,), "QNN supports only p of 2"),
    AttributeRule(("ConvTranspose",), "dilations", 1, (1,), "QNN has no dilated transposed convolutions"),
    AttributeRule(("RoiAlign",), "mode", "avg", ("avg",), "QNN supports only the mode avg"),
    AttributeRule(
        ("GridSample",), "mode", "linear", ("linear", "bilinear", "nearest"), "QNN does not support the mode cubic"
    ),
    AttributeRule(("Mod",), "fmod", 0, (0,), "QNN supports only fmod of 0"),
    AttributeRule(
        ("Gemm",), "alpha", 1.0, (1.0,), "alpha must be 1", "qnnbridge fix (gemm-scale) multiplies A or B by alpha"
    ),
    AttributeRule(
        ("Gemm",),
        "beta",
        1.0,
        (0.0, 1.0),
        "beta must be 1 or 0",
        "qnnbridge fix (gemm-scale) multiplies the bias by beta",
    ),
    AttributeRule(
        ("ScatterND",), "reduction", "none", ("none", "add", "mul"), "QNN supports only the reductions add and mul"
    ),
    AttributeRule(("ScatterElements",), "reduction", "none", ("none", "mul"), "this reduction is not supported"),
    AttributeRule(("Resize",), "antialias", 0, (0,), "QNN does not support antialias"),
    AttributeRule(
        ("Resize",),
        "coordinate_transformation_mode",
        "half_pixel",
        ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"),
        "QNN does not support this coordinate_transformation_mode",
        "export with half_pixel, asymmetric or align_corners",
    ),
    AttributeRule(("CumSum",), "exclusive", 0, (0,), "QNN supports only exclusive of 0"),
    AttributeRule(("CumSum",), "reverse", 0, (0,), "QNN supports only reverse of 0"),
    AttributeRule(("GRU", "LSTM"), "layout", 0, (0,), "QNN supports only layout 0"),
    AttributeRule(
        ("GRU", "LSTM"),
        "activations",
        (),
        (),
        "its activations must not be set explicitly, even to the defaults",
        "qnnbridge fix (default-activations) removes the defaults",
    ),
)


PAIRS: Final = (
    *("QuantizeLinear", "DequantizeLinear"),
    *("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear"),
)
# Operators that QNN accepts for every type, although it fails with some types.
WIDE: Final = ("Bernoulli", "Mod", "RandomNormalLike", "RandomUniformLike")
# Operators whose types are checked by separate rules.
_OWN_TYPES: Final = frozenset({*PAIRS, *WIDE, "QLinearConv", "QLinearMatMul", "Shape", "Cast", "CastLike"})

# Cached by operator: a model has thousands of nodes, but few operators.
_attribute_rules = functools.cache(functools.partial(rules_about, ATTRIBUTES))


def most_dimensions(op: str, element: str) -> int:
    """Return the largest number of dimensions that QNN supports for an operator with data of this type."""
    if op == "Transpose" and element in ("int32", "int64", "uint32"):
        return MOST_DIMENSIONS - 1
    return MOST_DIMENSIONS_OF.get(op, MOST_DIMENSIONS)


def is_missing(op: str) -> bool:
    """Return whether QNN lacks an operator."""
    return op not in REGISTERED and op not in REFUSED_BY_HTP and op not in REPLACED


def refused_type(node: GraphNode) -> tuple[GraphTensor, tuple[str, ...]] | None:
    """Return the tensor whose type an operator does not support, and the supported types."""
    if node.op in _OWN_TYPES:
        return None
    data = node.input(DATA_INPUT.get(node.op, 0))
    if data is None or not data.type:
        return None
    allowed = TYPES.get(node.op, _FLOATS)
    return None if _as_qnn_has_it(data.type) in allowed else (data, allowed)


def _as_qnn_has_it(element: str) -> str:
    """Return the type in which QNN computes: 32 bits for doubles. Separate rules cover inputs and outputs that are
    doubles."""
    return "float" if element == "double" else element


def refused_at_the_end(node: GraphNode, outputs: Container[str]) -> bool:
    """Return whether QNN refuses a Cast to int64 from this source type if the result is an output of the model."""
    source, made = node.input(0), node.made[0] if node.made else None
    if source is None or made is None or made.type != "int64" or made.name not in outputs:
        return False
    return source.type in NOT_INT64_AT_THE_END


def refused_cast(node: GraphNode) -> tuple[str, str] | None:
    """Return source and target type of a Cast that QNN does not support."""
    source, made = node.input(0), node.made[0] if node.made else None
    if source is None or made is None or not source.type or not made.type:
        return None
    allowed = CASTS.get(_as_qnn_has_it(source.type), ())
    return None if _as_qnn_has_it(made.type) in allowed else (source.type, made.type)


def refused_attribute(node: GraphNode) -> tuple[AttributeRule, Any] | None:
    """Return the rule that an attribute violates, and the attribute's value."""
    for one in _attribute_rules(node.op):
        value = node.get(one.name, one.default)
        if any(part not in one.allowed for part in (value if isinstance(value, (list, tuple)) else [value])):
            # Ignore the beta of a Gemm without C, because beta multiplies C.
            if one.name == "beta" and node.input(2) is None:
                continue
            # onnx returns the strings of a list as bytes.
            texts = (
                [part.decode("utf-8", "replace") if isinstance(part, bytes) else part for part in value]
                if isinstance(value, (list, tuple))
                else value
            )
            return one, texts
    return None
