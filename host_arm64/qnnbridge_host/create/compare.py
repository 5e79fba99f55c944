"""How far the outputs of a compiled model are from those of the original on the CPU, as records of a validation.

The verdict is that of `qnnbridge_host.numerics.judge`, as for sessions and for `qnnbridge verify`: an output that
differs is wrong; one that these inputs do not show, or that is only just good, is unusual and reported. Pure
functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from qnnbridge_host.numerics.judge import (
    LIMITS,
    NumberFormat,
    as_array,
    judge_over_inputs,
    largest,
)
from qnnbridge_protocol.model_records import NOT_SHOWN, Difference, DifferenceLevel, JudgedNumbers

_QUANTIZED_OPS: Final = frozenset(("QuantizeLinear", "DequantizeLinear"))


def precision_of_operators(operators: Iterable[str]) -> NumberFormat:
    """The NPU's number format for a model with these operators: 16-bit floats, or the steps of its Q/DQ nodes.

    Operators that are not ONNX's own have their domain.
    """
    plain = {name.rpartition(".")[2] for name in operators}
    return "quantized" if plain & _QUANTIZED_OPS else "fp16"


def tolerance_text(number_format: NumberFormat) -> str:
    """The limits as text."""
    return f"{number_format}: {LIMITS[number_format]}"


def compare(
    output: str, got: Mapping[str, Any], expected: Mapping[str, Any], number_format: NumberFormat
) -> Difference | None:
    """The difference of one output. ``None`` if it holds no numbers.

    Args:
        output: its name.
        got: its values by the name of the inputs.
        expected: the same of the original.
        number_format: in which it was computed.
    """
    names = list(expected)
    arrays = [as_array(value) for value in (*got.values(), *expected.values())]
    if any(array is None or array.dtype.kind not in "biuf" for array in arrays):
        return None
    state, reason, judged = judge_over_inputs([(expected[name], got[name]) for name in names], number_format)
    decisive = min(range(len(names)), key=lambda number: _rank(judged[number], state))
    worst = judged[decisive]
    level: DifferenceLevel = "wrong" if state == "differs" else "ok"
    remark: str | None = reason or None
    if state == "unknown":
        level, remark = "unusual", f"{NOT_SHOWN}: {reason}"
    elif state == "agrees" and worst.snr_db is not None and worst.snr_db < LIMITS[number_format].good_db:
        level, remark = "unusual", f"its SNR is {worst.snr_db:.1f} dB; {worst.off:.1%} of its values are off"
    scale = max((largest(value) for value in expected.values()), default=0.0)
    most = max((one.max_abs for one in judged), default=0.0)
    relative = most / scale if scale else (math.inf if most else 0.0)
    if worst.lost or (worst.snr_db is None and state == "differs"):
        most = relative = math.inf
    return Difference(output, level, most, relative, _cosine(got, expected, names), names[decisive], remark)


def _rank(one: JudgedNumbers, state: str) -> tuple[bool, float]:
    """Those of the state that decides first, then the lowest SNR."""
    return one.state != state, -math.inf if one.lost or one.snr_db is None else one.snr_db


def _cosine(got: Mapping[str, Any], expected: Mapping[str, Any], names: Iterable[str]) -> float | None:
    """Of all values that are finite on both sides; ``None`` if one of them is all zeros."""
    import numpy as np

    pairs = [(np.asarray(got[name], np.float64), np.asarray(expected[name], np.float64)) for name in names]
    if any(x.shape != y.shape for x, y in pairs):
        return None
    x, y = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    finite = np.isfinite(x) & np.isfinite(y)
    length = float(np.linalg.norm(x[finite])) * float(np.linalg.norm(y[finite]))
    return float(np.vdot(x[finite], y[finite])) / length if length and math.isfinite(length) else None
