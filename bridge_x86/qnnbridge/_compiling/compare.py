"""How far the outputs of a compiled model are from those of the original on the CPU. Pure functions.

The NPU computes floats in 16 bits, and quantised models in steps; both are close to the CPU, never equal, and how
close depends on the model: a recurrent one doubles its errors where another averages them away. So a difference is
measured against the largest value of the output over all inputs that were tried; what is usual passes, what is not
is told, and only what cannot be rounding (or is NaN where the CPU has a number) is wrong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final, Literal

Precision = Literal["fp16", "quantized"]
Level = Literal["ok", "unusual", "wrong"]

_FEW: Final = 8
"""An integer that is the place of a maximum may be another one without anything being wrong; many may not."""
_OF_INTEGERS: Final = 0.1
_BYTE_RANGE: Final = 255.0
"""8 bits are a quantised output: its range is that of the type."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """of_range: the largest difference, as a fraction of the output's largest magnitude. cosine: at least."""

    of_range: float
    cosine: float


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """absolute: what is always allowed. usual, wrong: beyond these an output is unusual, or wrong."""

    precision: Precision
    absolute: float
    usual: Limits
    wrong: Limits

    def __str__(self) -> str:
        return (
            f"{self.precision}: at most {self.wrong.of_range:.0%} of the output's range and a cosine of at least "
            f"{self.wrong.cosine:g}; up to {self.usual.of_range:.0%} and from {self.usual.cosine:g} is usual"
        )


TOLERANCES: Final[Mapping[Precision, Tolerance]] = {
    "fp16": Tolerance("fp16", 2e-3, Limits(0.05, 0.99), Limits(0.25, 0.95)),
    "quantized": Tolerance("quantized", 5e-3, Limits(0.15, 0.97), Limits(0.4, 0.9)),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """Of one output over all inputs that were tried.

    max_abs: largest difference. max_rel: the same divided by the largest magnitude of the reference; for integers
    the fraction that differs. cosine: of both as vectors; ``None`` if one of them is all zeros. inputs: those with
    the largest difference. remark: what is unusual or wrong, in words.
    """

    output: str
    level: Level
    max_abs: float
    max_rel: float
    cosine: float | None
    inputs: str
    remark: str | None = None


def compare(
    output: str, got: Mapping[str, Any], expected: Mapping[str, Any], tolerance: Tolerance
) -> Difference | None:
    """The difference of one output. got, expected: by the name of the inputs. ``None`` if they are no numbers."""
    import numpy as np

    if not all(_is_numbers(value) for value in (*got.values(), *expected.values())):
        return None
    for name, wanted in expected.items():
        if got[name].shape != wanted.shape:
            return _wrong(output, name, f"its shape is {got[name].shape}, on the CPU it is {wanted.shape}")
        bad = int((~np.isfinite(got[name]) & np.isfinite(wanted)).sum())
        if bad:
            return _wrong(output, name, f"{bad} of {wanted.size} numbers are NaN or infinite")
    kind = next(iter(expected.values())).dtype
    if kind.kind == "b" or (kind.kind in "iu" and kind.itemsize > 1):
        return _integers(output, got, expected)
    # Where the reference has no number either, there is nothing to compare.
    worst, largest, scale = "", -1.0, _BYTE_RANGE if kind.kind in "iu" else 0.0
    pairs = []
    for name, wanted in expected.items():
        finite = np.isfinite(wanted)
        x, y = (value.astype(np.float64)[finite] for value in (got[name], wanted))
        pairs.append((x, y))
        here = float(np.abs(x - y).max(initial=0.0))
        scale = max(scale, float(np.abs(y).max(initial=0.0)))
        if here > largest:
            worst, largest = name, here
    x, y = (np.concatenate(side) for side in zip(*pairs, strict=True))
    relative = largest / scale if scale else (math.inf if largest else 0.0)
    cosine = _cosine(x, y)
    level, remark = _judge(largest, scale, cosine, tolerance)
    return Difference(output, level, largest, relative, cosine, worst, remark)


def _judge(largest: float, scale: float, cosine: float | None, tolerance: Tolerance) -> tuple[Level, str | None]:
    level: Level
    for level, limits in (("wrong", tolerance.wrong), ("unusual", tolerance.usual)):
        if largest <= tolerance.absolute:
            break
        if largest > limits.of_range * scale:
            return level, f"it is off by up to {largest:.3g}, with values of up to {scale:.3g} on the CPU"
        if cosine is not None and cosine < limits.cosine:
            return level, f"it points elsewhere: its cosine to that of the CPU is {cosine:.4f}"
    return "ok", None


def _integers(output: str, got: Mapping[str, Any], expected: Mapping[str, Any]) -> Difference:
    import numpy as np

    counts = {name: int((got[name] != wanted).sum()) for name, wanted in expected.items()}
    total = sum(wanted.size for wanted in expected.values())
    wrong = sum(counts.values())
    largest = max(
        float(np.abs(got[n].astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0))
        for n, wanted in expected.items()
    )
    level: Level = "ok"
    if wrong:
        level = "wrong" if total >= _FEW and wrong > _OF_INTEGERS * total else "unusual"
    remark = f"{wrong} of {total} numbers differ" if wrong else None
    worst = max(counts, key=lambda name: counts[name])
    return Difference(output, level, largest, wrong / total if total else 0.0, None, worst, remark)


def _wrong(output: str, inputs: str, remark: str) -> Difference:
    return Difference(output, "wrong", math.inf, math.inf, None, inputs, remark)


def _cosine(x: Any, y: Any) -> float | None:
    import numpy as np

    length = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
    return float(np.vdot(x, y)) / length if length and math.isfinite(length) else None


def _is_numbers(value: Any) -> bool:
    import numpy as np

    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub"
