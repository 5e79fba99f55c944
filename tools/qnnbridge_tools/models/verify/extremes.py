"""Extreme inputs, as data: which there are, which inputs take them, and what stands in them. Pure functions.

`limit` marks those on which no computation in half floats can agree with the CPU: a difference there is told, and
does not make a model bad.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_EVERY = 7
"""Every seventh value is NaN or infinite: data with some holes in it."""
_WIDE_BYTES = 4
BIG_INTEGER = 2**33 + 5
LARGE = 1e4
HUGE = 1e5
TINY = 1e-5

SIZE_MAKERS = frozenset(
    {
        "ConstantOfShape",
        "EyeLike",
        "Expand",
        "HammingWindow",
        "HannWindow",
        "BlackmanWindow",
        "Loop",
        "OneHot",
        "Pad",
        "RandomNormal",
        "RandomUniform",
        "Range",
        "Resize",
        "Scan",
        "Tile",
        "Upsample",
    }
)
"""Operators that make a tensor as large as a number says: with 2**33 there they ask for gigabytes, or never end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Extreme:
    """takes: whether an array can hold it. put: the array with it, made from an ordinary one."""

    name: str
    limit: bool
    takes: Callable[[Array], bool]
    put: Callable[[Array], Array]
    as_sizes: bool = False
    """Must not be tried on a model that may take the numbers for sizes."""


def _is_float(value: Array) -> bool:
    return value.dtype.kind == "f"


def _holds(number: float) -> Callable[[Array], bool]:
    return lambda value: value.dtype.kind == "f" and float(np.finfo(value.dtype).max) > number


def _scattered(numbers: tuple[float, ...]) -> Callable[[Array], Array]:
    def put(value: Array) -> Array:
        changed = np.array(value)
        flat = changed.reshape(-1)
        for start, number in enumerate(numbers):
            flat[min(start * (_EVERY // 2), flat.size - 1) :: _EVERY] = number
        return changed

    return put


def _spread(most: float) -> Callable[[Array], Array]:
    """0..1 becomes -most..most."""
    return lambda value: np.asarray((value.astype(np.float64) * 2 - 1) * most).astype(value.dtype)


def _full_of(number: int) -> Callable[[Array], Array]:
    return lambda value: np.asarray(np.full_like(value, number))


EXTREMES = (
    Extreme("NaN", True, _is_float, _scattered((float("nan"),))),
    Extreme("infinity", True, _is_float, _scattered((float("inf"), float("-inf")))),
    Extreme("large: up to 1e4", True, _holds(LARGE), _spread(LARGE)),
    Extreme("beyond half floats: up to 1e5", True, _holds(HUGE), _spread(HUGE)),
    Extreme("tiny: up to 1e-5", True, _is_float, _spread(TINY)),
    Extreme(
        "negative numbers (-1)",
        False,
        lambda value: value.dtype.kind == "i" and value.dtype.itemsize >= _WIDE_BYTES,
        _full_of(-1),
    ),
    Extreme(
        "integers beyond 32 bits",
        False,
        lambda value: value.dtype.kind in "iu" and value.dtype.itemsize > _WIDE_BYTES,
        _full_of(BIG_INTEGER),
        as_sizes=True,
    ),
)


def applied(extreme: Extreme, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
    """The feeds with the extreme in every input that takes it; None if none does."""
    taking = [name for name, value in feeds.items() if isinstance(value, np.ndarray) and extreme.takes(value)]
    if not any(feeds[name].size for name in taking):
        return None
    return {name: extreme.put(value) if name in taking else value for name, value in feeds.items()}


def why_not(extreme: Extreme, operators: Mapping[str, int]) -> str:
    """Why it must not be tried on a model with these operators; empty if it may."""
    makers = sorted(SIZE_MAKERS & set(operators))
    if not extreme.as_sizes or not makers:
        return ""
    return f"the model may take the numbers for sizes ({', '.join(makers[:3])}), and would ask for gigabytes"
