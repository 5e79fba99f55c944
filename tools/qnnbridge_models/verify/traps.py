"""The silent traps of QNN that show in values: wrong numbers without an error. Rules as data, with measurements.

A trap is proven, not guessed: values are named only if the output agrees without them. Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.numerics.judge import NumberFormat, judge
from qnnbridge_models.verify.verification import TrapFound

Array = npt.NDArray[Any]

# Saturated half floats read as 65536, 98304 or 131008; rounding may bring them a little lower.
BEYOND_HALF = 60000.0
_OF_NUMBERS = 0.01
LOW_32_BITS = 2**32


@dataclasses.dataclass(frozen=True, slots=True)
class ValueTrap:
    """A trap that shows in the values of one output.

    Args:
        saw: which of the CPU's and QNN's values of one output show it; None for other types.
    """

    name: str
    words: str
    advice: str
    saw: Callable[[Array, Array], Array | None]


def of_values(
    tensor: str, expected: Any, found: Any, number_format: NumberFormat = "fp16"
) -> tuple[TrapFound, ...]:
    """The traps that one output, or a tensor inside of the model, shows: those that explain all of its error."""
    if not all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in (expected, found)):
        return ()
    # Another shape or type is no trap of values.
    if expected.shape != found.shape or expected.dtype != found.dtype or not expected.size:
        return ()
    seen = [(trap, hit) for trap in VALUE_TRAPS if (hit := trap.saw(expected, found)) is not None and hit.any()]
    # The values that no trap explains.
    rest = ~np.logical_or.reduce([hit for _, hit in seen]) if seen else np.zeros(0, bool)
    if not seen or (rest.any() and judge(expected[rest], found[rest], number_format).state == "differs"):
        return ()
    proof = "the other values agree" if rest.any() else "there are no others"
    return tuple(
        TrapFound(
            trap.name,
            trap.words,
            f"{tensor}: {_first(expected, found, hit)}",
            trap.advice,
            f"{int(np.count_nonzero(hit))} values show it, and {proof}",
        )
        for trap, hit in seen
    )


# --- values ------------------------------------------------------------------------------------------------


def _first(expected: Array, found: Array, where: Array) -> str:
    """The count of the values, and the first of them."""
    index = int(np.flatnonzero(where)[0])
    count = int(np.count_nonzero(where))
    return (
        f"{count} of {expected.size} values, the first at {index}: {_text(expected, index)} on the CPU, "
        f"{_text(found, index)} on QNN"
    )


def _text(array: Array, index: int) -> str:
    value = array.reshape(-1)[index]
    return f"{float(value):.6g}" if array.dtype.kind == "f" else str(value)


def _saw_32_bits(expected: Array, found: Array) -> Array | None:
    if expected.dtype.kind not in "iu" or expected.dtype.itemsize <= 4:
        return None
    # The difference of 64-bit integers may itself go beyond 64 bits.
    with np.errstate(over="ignore"):
        # Equal in the lower half: the upper one was cut off.
        low = (expected - found) % expected.dtype.type(LOW_32_BITS) == 0
    return np.asarray((expected != found) & low)


def _saw_nan_gone(expected: Array, found: Array) -> Array | None:
    return _floats(expected, found, lambda a, b: np.isnan(a) & np.isfinite(b))


def _saw_infinity_gone(expected: Array, found: Array) -> Array | None:
    return _floats(expected, found, lambda a, b: np.isinf(a) & np.isfinite(b))


def _saw_half_range(expected: Array, found: Array) -> Array | None:
    def saturated(a: Array, b: Array) -> Array:
        # Values of half floats are off by rounding as well; only more than that is the trap.
        off = np.abs(a - b) > _OF_NUMBERS * np.maximum(np.abs(a), 1.0)
        return np.asarray(np.isfinite(a) & off & ((np.abs(b) >= BEYOND_HALF) | ~np.isfinite(b)))

    return _floats(expected, found, saturated)


def _floats(expected: Array, found: Array, where: Callable[[Array, Array], Array]) -> Array | None:
    if expected.dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        return where(expected.astype(np.float64), found.astype(np.float64))


# What the rules about values and those about nodes both report.
HALF_RANGE = (
    "half-range",
    "QNN computes floats in 16 bits, which end at 65504: what is larger, also between two nodes, comes out as "
    "65536, 98304, 131008 or NaN without an error (measured: relu(1e5) = 65536, exp(20) = 131008).",
    "Scale the inputs or the weights, or leave the nodes around it to the CPU.",
)
INT64 = (
    "int64-in-32-bits",
    "QNN computes 64-bit integers in 32 bits: the upper half is cut off without an error "
    "(measured: 2**33 + 5, plus 1, gives 6).",
    "Keep integers within 32 bits, or do this part of the work outside of the model.",
)

VALUE_TRAPS = (
    ValueTrap(*INT64, _saw_32_bits),
    ValueTrap(
        "nan-vanishes",
        "NaN does not come through on QNN: a number comes out in its place (measured: 65536 or 0 for 8 of 8 NaN).",
        "Check the inputs for NaN before the run; a NaN at the output proves nothing here, nor does its absence.",
        _saw_nan_gone,
    ),
    ValueTrap(
        "infinity-vanishes",
        "Infinity becomes a number on QNN (measured: 65536).",
        "Use a large finite number instead, -1e4 for an attention mask.",
        _saw_infinity_gone,
    ),
    ValueTrap(*HALF_RANGE, _saw_half_range),
)
