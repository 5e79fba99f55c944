"""The levels of ONNX Runtime's graph optimisation, and what of their results QNN cannot run.

Measured on the simulator (8 models): results of `basic` run on QNN as completely as the originals. `extended` fuses
Conv and Gemm with their activations into operators of com.microsoft that QNN does not know, and takes quantised
pairs apart: up to 7 nodes move to the CPU. `layout` and `all` rearrange weights into blocks for this machine's CPU:
no session on QNN can be made from their results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from qnnbridge_protocol.errors import OptionError

LEVELS: Final = ("basic", "extended", "layout", "all")
DEFAULT: Final = "basic"

_ORT_NAMES: Final[Mapping[str, str]] = {
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_QNN_TAKES: Final = frozenset(
    f"com.microsoft.{op}"
    for op in (
        "DequantizeLinear",
        "FusedMatMul",
        "Gelu",
        "GroupQueryAttention",
        "MatMulNBits",
        "QuantizeLinear",
        "QuickGelu",
        "RotaryEmbedding",
        "SimplifiedLayerNormalization",
    )
)
_QUANTIZE: Final = ("QuantizeLinear", "com.microsoft.QuantizeLinear")
_ONNX_ML: Final = "ai.onnx."


def ort_level(name: str) -> Any:
    """onnxruntime's enumeration member."""
    import onnxruntime as ort

    if name not in LEVELS:
        raise OptionError(f'There is no level "{name}".', fix=f"One of {', '.join(LEVELS)}.")
    level = getattr(ort.GraphOptimizationLevel, _ORT_NAMES[name], None)
    if level is None:
        raise OptionError(
            f'onnxruntime {ort.__version__} has no level "{name}".', fix="Use --level all, which includes it."
        )
    return level


def foreign_ops(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Operators outside of ONNX that the optimisation brought in and QNN does not take."""
    return {
        op: count
        for op, count in after.items()
        if "." in op and not op.startswith(_ONNX_ML) and op not in _QNN_TAKES and op not in before
    }


def warnings(level: str, before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """What a person who wants to run the result on QNN should know."""
    told: list[str] = []
    foreign = foreign_ops(before, after)
    if foreign:
        counts = ", ".join(f"{count} {op}" for op, count in foreign.items())
        told.append(
            f"The result holds operators that are ONNX Runtime's own, which QNN cannot run: {counts}. "
            f"Use --level {DEFAULT} for QNN."
        )
    if any("nchwc" in op for op in foreign):
        told.append(
            "Its weights are arranged for the CPU of this machine; on another one it may be slow or not load."
        )
    lost = sum(before.get(op, 0) for op in _QUANTIZE) - sum(after.get(op, 0) for op in _QUANTIZE)
    if lost > 0 and level != DEFAULT:
        told.append(
            f"{lost} QuantizeLinear {'node was' if lost == 1 else 'nodes were'} merged into other operators; "
            f"QNN needs them. Use --level {DEFAULT} for QNN."
        )
    return told
