"""Inputs to try a compiled model with, and how far its outputs are from those of the original on the CPU.

The NPU computes floats in 16 bits, and quantised models in steps; both are close to the CPU, never equal, and how
close depends on the model: a recurrent one doubles its errors where another averages them away. So a difference is
measured against the largest value of the output over all tried inputs; a usual one passes, an unusual one
is reported, and only one too large for rounding (or a NaN where the CPU has a number) is an error.

Inputs are generated, the same on every machine: all ones, and random values. Floats lie in 0..1, wide integers are
0 or 1 (they are mostly indices, masks or lengths), narrow integers cover their whole range (they are mostly
quantised data). Pure functions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from qnnbridge_protocol import elements
from qnnbridge_protocol.errors import NotImplemented as NotCarried
from qnnbridge_protocol.model_records import Difference, DifferenceLevel
from qnnbridge_protocol.specs import NodeInfo

Precision = Literal["fp16", "quantized"]

_QUANTIZED_OPS: Final = frozenset(("QuantizeLinear", "DequantizeLinear"))
_WIDE_BYTES: Final = 4
# A few integers that are the index of a maximum may differ without an error; many may not.
_FEW: Final = 8
_OF_INTEGERS: Final = 0.1
# 8 bits are a quantised output: its range is that of the type.
_BYTE_RANGE: Final = 255.0


@dataclasses.dataclass(frozen=True, slots=True)
class DifferenceLimits:
    """of_range: the largest difference, as a fraction of the output's largest magnitude. cosine: at least."""

    of_range: float
    cosine: float


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """absolute: always allowed. usual, wrong: limits beyond which an output is unusual, or wrong."""

    precision: Precision
    absolute: float
    usual: DifferenceLimits
    wrong: DifferenceLimits

    def __str__(self) -> str:
        return (
            f"{self.precision}: at most {self.wrong.of_range:.0%} of the output's range and a cosine of at least "
            f"{self.wrong.cosine:g}; up to {self.usual.of_range:.0%} and from {self.usual.cosine:g} is usual"
        )


TOLERANCES: Final[Mapping[Precision, Tolerance]] = {
    "fp16": Tolerance("fp16", 2e-3, DifferenceLimits(0.05, 0.99), DifferenceLimits(0.25, 0.95)),
    "quantized": Tolerance("quantized", 5e-3, DifferenceLimits(0.15, 0.97), DifferenceLimits(0.4, 0.9)),
}


# --- inputs ----------------------------------------------------------------------------------------------


class CannotMakeUp(Exception):
    """An input has no possible test value; the text says why."""


def made_up_ones(inputs: Sequence[NodeInfo]) -> dict[str, Any]:
    """A one everywhere. Raises `CannotMakeUp`."""
    import numpy as np

    return {node.name: np.ones(_shape(node), _dtype(node)) for node in inputs}


def made_up_random(inputs: Sequence[NodeInfo], seed: int) -> dict[str, Any]:
    """The same values for the same seed. Raises `CannotMakeUp`."""
    import numpy as np

    rng = np.random.default_rng(seed)
    return {node.name: _random(_dtype(node), _shape(node), rng) for node in inputs}


def _random(dtype: Any, shape: tuple[int, ...], rng: Any) -> Any:
    import numpy as np

    if dtype.kind == "f":
        return np.asarray(rng.random(shape)).astype(dtype)
    if dtype.kind == "b" or dtype.itemsize >= _WIDE_BYTES:
        return rng.integers(0, 2, size=shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, size=shape, endpoint=True).astype(dtype)


def _dtype(node: NodeInfo) -> Any:
    try:
        declared = elements.from_ort_type(node.type)
    except NotCarried:
        raise CannotMakeUp(f"values of type {node.type} cannot be made up (input {node.name!r})") from None
    element = declared.element if declared.kind == "tensor" else None
    dtype = elements.numpy_dtype(element) if element is not None and elements.LAYOUTS[element].named else None
    if dtype is None or dtype.kind not in "fiub":
        raise CannotMakeUp(f"values of type {node.type} cannot be made up (input {node.name!r})")
    return dtype


def _shape(node: NodeInfo) -> tuple[int, ...]:
    """Free dimensions, which only parts on the CPU can have, are 1."""
    return tuple(size if isinstance(size, int) and size >= 0 else 1 for size in node.shape or ())


# --- outputs ---------------------------------------------------------------------------------------------


def precision_of_operators(operators: Iterable[str]) -> Precision:
    """The NPU's number format for a model with these operators: 16-bit floats, or the steps of its Q/DQ nodes.

    Operators that are not ONNX's own have their domain.
    """
    plain = {name.rpartition(".")[2] for name in operators}
    return "quantized" if plain & _QUANTIZED_OPS else "fp16"


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
    # Elements without a number in the reference are not compared.
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


def _judge(
    largest: float, scale: float, cosine: float | None, tolerance: Tolerance
) -> tuple[DifferenceLevel, str | None]:
    level: DifferenceLevel
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
    level: DifferenceLevel = "ok"
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
