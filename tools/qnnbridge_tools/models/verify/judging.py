"""Whether QNN's answer is the CPU's up to rounding. Pure functions.

The NPU computes floats in 16 bits and quantised models in steps: how far that may move a result is the table that
compiling judges with. Differences are measured against the largest value that the output has on ordinary inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge_tools.models.shared.comparing import OutputDifference, compare
from qnnbridge_tools.models.verify.result import JudgedOutput

if TYPE_CHECKING:
    from qnnbridge._compiling.compare import Tolerance

_FEW = 8
"""An integer more or less than this many decides by itself; of more, some may fall to the other side."""
_OF_INTEGERS = 0.1
_NARROW_BYTES = 2


def judge(
    names: Sequence[str],
    expected: Sequence[Any],
    found: Sequence[Any],
    scales: Mapping[str, float],
    tolerance: Tolerance,
) -> tuple[JudgedOutput, ...]:
    """One set of inputs. scales: the largest value of each output on ordinary inputs, as far as known."""
    differences = compare(names, [expected], [found])
    return tuple(
        _judged(one, wanted, scales.get(one.name, 0.0), tolerance)
        for one, wanted in zip(differences, expected, strict=True)
    )


def largest(value: Any) -> float:
    """The largest finite magnitude in an array; 0 for what is none."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu" or not value.size:
        return 0.0
    magnitudes = np.abs(value.astype(np.float64))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def _judged(one: OutputDifference, expected: Any, scale: float, tolerance: Tolerance) -> JudgedOutput:
    remark = (
        one.mismatch or _float_remark(one, max(scale, largest(expected)), tolerance)
        if one.kind == "float"
        else one.mismatch or _other_remark(one, expected, tolerance)
    )
    return JudgedOutput(one, bool(remark), remark)


def _float_remark(one: OutputDifference, scale: float, tolerance: Tolerance) -> str:
    if one.different:
        return f"{one.different} values are NaN or infinite on one side only"
    if one.max_abs <= tolerance.absolute:
        return ""
    if one.max_abs > tolerance.usual.of_range * scale:
        return f"off by up to {one.max_abs:.3g}, where the CPU's values reach {scale:.3g}"
    if one.cosine is not None and one.cosine < tolerance.usual.cosine:
        return f"it points elsewhere: cosine {one.cosine:.4f}"
    return ""


def _other_remark(one: OutputDifference, expected: Any, tolerance: Tolerance) -> str:
    if not one.different:
        return ""
    dtype = getattr(expected, "dtype", None)
    if dtype is not None and dtype.kind in "iu" and dtype.itemsize <= _NARROW_BYTES:
        span = float(np.iinfo(dtype).max) - float(np.iinfo(dtype).min)
        return f"off by up to {one.max_abs:.3g} steps" if one.max_abs > tolerance.usual.of_range * span else ""
    if one.elements >= _FEW and one.different <= _OF_INTEGERS * one.elements:
        return ""
    return f"{one.different} of {one.elements} values are other ones"
