"""List ONNX Runtime's graph optimizers, and search for optimizers that change a model's results or break it.

ONNX Runtime rewrites a graph before any provider computes it. QNN's nodes get the graph of level 1 ("basic"); nodes
on the CPU also get levels 2 and 3. `InferenceSession(disabled_optimizers=...)` disables single optimizers. ONNX
Runtime ignores unknown optimizers, so one table serves all releases. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from qnnbridge_protocol.records import NamedTuple

# The optimization level as a session option and as a config entry; its values are the constants `LEVEL_*` below.
OPTIMIZATION_LEVEL: Final = "graph_optimization_level"
LEVEL_ENTRY: Final = "session.graph_optimization_level"
# Config entry; "0" skips the test of the optimizers, for example for parts of a model if the whole model was
# tested.
PROVE_ENTRY: Final = "qnnbridge.prove_optimizers"
LEVEL_OFF: Final = 0
LEVEL_BASIC: Final = 1
LEVEL_EXTENDED: Final = 2
LEVEL_ALL: Final = 99

# Optimizers with the smallest benefit come first, because the search returns the first set that helps.
# FreeDimensionOverrideTransformer and EnsureUniqueDQForNodeUnit are not listed, because QNN's provider needs them.
# In a test of 7,862 small graphs (onnxruntime 1.32), level 1 changed the results of 126 graphs and made 33 fail.
# The cause was one of the first three optimizers, or TransposeOptimizer if DequantizeLinear reads int32.
BASIC_OPTIMIZERS: Final = (
    *("DoubleQDQPairsRemover", "DivMulFusion", "QDQPropagationTransformer", "NotWhereFusion"),
    *("GemmSumFusion", "GemmTransposeFusion", "LabelEncoderFusion"),
    *("MatMul_BatchNormalization_Fusion", "FuseReluClip", "PreShapeNodeElimination", "Pad_Fusion"),
    *("SliceConcatToSpaceToDepthFusion", "ExpandElimination", "UnsqueezeElimination"),
    *("NoopElimination", "EliminateDropout", "EliminateSlice", "CastChainElimination"),
    *("CastElimination", "ConvMulFusion", "ConvAddFusion", "ConvBNFusion", "WeightBiasQuantization"),
    *("RocmBlasAltImpl", "IdenticalChildrenConsolidation", "FuseInitializersTransformer"),
    *("GeluFusionL1", "LayerNormFusionL1", "ReshapeFusion", "MatMulAddFusion", "ConstantSharing"),
    *("CommonSubexpressionElimination", "EliminateIdentity", "TransposeOptimizer"),
    *("ConstantFoldingDQ", "ConstantFolding", "Level1_RuleBasedTransformer"),
)
# Optimizers of higher levels, for nodes on the CPU. In the same test they changed the results of 212 graphs
# (LayerNormalization, 8-bit inputs) and made 36 fail.
FURTHER_OPTIMIZERS: Final = (
    *("LayerNormFusionL2", "SimplifiedLayerNormFusion", "QDQSelectorActionTransformer"),
    *("QDQS8ToU8Transformer", "GeluFusionL2", "FastGeluFusion", "QuickGeluFusion", "BiasGeluFusion"),
    *("SkipLayerNormFusion", "BiasSkipLayerNormFusion", "EmbedLayerNormFusion", "AttentionFusion"),
    *("GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion", "SwiGluFusion"),
    *("BiasSoftmaxFusion", "BiasDropoutFusion", "GatherSliceToSplitFusion", "GatherToSliceFusion"),
    *("MatMulIntegerToFloatFusion", "DynamicQuantizeMatMulFusion", "MatMulNBitsFusion"),
    *("DQMatMulNBitsFusion", "MatMulNBitsMlpFusion", "MatMulNBitsQkvFusion"),
    *("MatMulNBitsQLoRAFusion", "MatMulScaleFusion", "MatmulTransposeFusion"),
    *("MatMulActivationFusion", "GemmActivationFusion", "ConvActivationFusion"),
    *("ConvAddActivationFusion", "ClipQuantRewrite", "ReluQuantRewrite"),
    *("QDQFinalCleanupTransformer", "Avx2WeightS8ToU8Transformer", "NchwcTransformer"),
    *("NhwcTransformer", "Level2_RuleBasedTransformer"),
)
# Operators that QNN supports, and whose CPU kernels in ONNX Runtime are inexact on x86 processors without VNNI: the
# kernels add two 8-bit products in 16 bits, where larger sums saturate. The kernels for unsigned weights are exact;
# the optimizer `_UNSIGNED_WEIGHTS` (level 2) converts signed constant weights to unsigned weights where this is
# necessary.
_SATURATING: Final = frozenset(("MatMulInteger", "QLinearConv", "QLinearMatMul"))
_UNSIGNED_WEIGHTS: Final = "Avx2WeightS8ToU8Transformer"
EXACT_ENTRIES: Final = {"session.x64quantprecision": "1"}
# Maximum number of optimizers at fault. If the search finds more, the results vary at random.
MOST_CULPRITS: Final = 6


def optimizers_of(level: int) -> tuple[str, ...]:
    """Return the optimizers that can be disabled at an optimization level of ONNX Runtime."""
    if level <= LEVEL_OFF:
        return ()
    return BASIC_OPTIMIZERS if level == LEVEL_BASIC else (*BASIC_OPTIMIZERS, *FURTHER_OPTIMIZERS)


class Optimization(NamedTuple):
    """Settings of a session for its graph optimizers: level, disabled optimizers, configuration entries."""

    level: int
    disabled: tuple[str, ...] = ()
    entries: Mapping[str, str] = {}


def exact(level: int, disabled: Sequence[str], operators: Iterable[str]) -> Optimization:
    """Return settings for a session on the CPU in which the products of quantised operators do not saturate.

    Args:
        level: the optimization level whose optimizers the session uses, if they are not disabled.
        disabled: the disabled optimizers.
        operators: the operators of the model.
    """
    if _SATURATING.isdisjoint(operators):
        return Optimization(level, tuple(disabled))
    others = (name for name in optimizers_of(LEVEL_ALL) if name not in optimizers_of(level))
    left_out = dict.fromkeys((*disabled, *others))
    left_out.pop(_UNSIGNED_WEIGHTS, None)
    return Optimization(max(level, LEVEL_EXTENDED), tuple(left_out), EXACT_ENTRIES)


def harmful(is_right: Callable[[Sequence[str]], bool], names: Sequence[str]) -> tuple[str, ...] | None:
    """Search for a small set of optimizers without which the model's results are right.

    The search bisects: finding one of 40 optimizers takes seven attempts.

    Args:
        is_right: function that returns whether the model is right without the given optimizers.
        names: the candidates; those with the smallest benefit come first.

    Returns:
        The optimizers at fault; empty if the model is right with all optimizers; ``None`` if it is also wrong
        without any optimizer, or if more than `MOST_CULPRITS` are at fault.
    """
    if is_right(()):
        return ()
    if not is_right(names):
        return None
    found: list[str] = []
    while True:
        # Bisect for the shortest prefix of `names` such that the model is right without this prefix and `found`.
        # The last optimizer of the prefix is at fault.
        low, high = 0, len(names)
        while high - low > 1:
            middle = (low + high) // 2
            if is_right((*found, *names[:middle])):
                high = middle
            else:
                low = middle
        found.append(names[high - 1])
        names = names[: high - 1]
        if not names or is_right(found):
            return tuple(found)
        if len(found) == MOST_CULPRITS:
            return None


def listed(names: Sequence[str]) -> str:
    """Return the optimizers as a noun phrase for a message."""
    return f"ONNX Runtime's optimizer{'s' if len(names) > 1 else ''} {', '.join(names)}"


def harm_of(names: Sequence[str], does: str, model: str) -> str:
    """Return a sentence without full stop on what optimizers do to a model. does: "changes" or "breaks"."""
    return f"{listed(names)} {does.removesuffix('s') if len(names) > 1 else does} {model}"
