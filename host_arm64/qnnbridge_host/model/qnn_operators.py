# ruff: noqa: SIM905 - one string of words is easier to read than a hundred quoted ones
"""Operators that QNN supports, measured with onnxruntime-qnn 2.7 and its HTP simulator, one at a time.

Names are ONNX's names, with the domain unless it is ONNX's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

REGISTERED: Final = frozenset(
    """
    Abs Add And ArgMax ArgMin ArrayFeatureExtractor Atan Attention AveragePool BatchNormalization Bernoulli Cast
    CastLike Ceil Clip Concat Conv ConvTranspose Cos CumSum DepthToSpace DequantizeLinear Div Einsum Elu Equal Exp
    Expand Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater
    GreaterOrEqual GridSample GroupNormalization HardSigmoid HardSwish Identity If InstanceNormalization IsNaN LRN
    LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul Max MaxPool
    Mean Min Mod Mul Neg NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul
    QuantizeLinear RMSNormalization RandomNormalLike RandomUniformLike Range Reciprocal ReduceL2 ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Resize RoiAlign RotaryEmbedding Round ScatterElements
    ScatterND Selu Shape Sigmoid Sign Sin Slice Softmax Softplus SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh
    ThresholdedRelu Tile TopK Transpose Unsqueeze Upsample Where Xor MaxRoiPool STFT
    com.microsoft.FusedMatMul com.microsoft.Gelu com.microsoft.GroupQueryAttention com.microsoft.MatMulNBits
    com.microsoft.QuickGelu com.microsoft.RotaryEmbedding com.microsoft.QuantizeLinear
    com.microsoft.DequantizeLinear com.microsoft.Inverse com.microsoft.GatherBlockQuantized
    SimplifiedLayerNormalization com.microsoft.SimplifiedLayerNormalization ai.onnx.ml.ArrayFeatureExtractor
    """.split()
)

# ONNX Runtime has no kernel for these operators and replaces them by their definition in ONNX, so QNN never gets
# them.
REPLACED: Final = frozenset({"Mish", "Swish", "SwiGLU", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})

# QNN supports an Erf only as part of a Gelu.
_IN_PATTERNS: Final = frozenset({"Erf"})
_STANDARD: Final = ("", "ai.onnx", "ai.onnx.ml")


def nothing_for_qnn(operators: Iterable[str]) -> bool:
    """Return whether QNN lacks all of these operators. If so, the caller need not check sizes and types."""
    computing = set(operators) - {"Constant"}
    return bool(computing) and len(lacking(computing)) == len(computing)


def lacking(operators: Iterable[str]) -> list[str]:
    """Return the standard operators that QNN lacks for all sizes and types, without duplicates.

    Operators of other domains do not count: ONNX Runtime replaces some of them by standard ones.
    """
    return [
        name
        for name in dict.fromkeys(operators)
        if name.rpartition(".")[0] in _STANDARD
        and name not in REGISTERED
        and name not in REPLACED
        and name not in _IN_PATTERNS
    ]
