"""The inputs of `verify`: given ones, made-up ones, and those that models meet when something before them fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge_tools.feeds import DeclaredInput
from qnnbridge_tools.random_values import random_value
from qnnbridge_tools.verify.result import Kind

Feeds = dict[str, Any]

BEYOND_HALF = 1e5
"""Larger than float16's largest number, 65504."""
TINY = 1e-6
"""Its square is below float16's smallest number."""
BEYOND_32_BITS = 2**33 + 5

_SPREADS = ((1.0, 0.0), (4.0, -2.0), (0.1, 0.0))
"""Factor and offset of random values in 0..1: a picture, something with signs, something quiet."""


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    name: str
    kind: Kind
    feeds: Feeds


def random_cases(
    declared: Sequence[DeclaredInput], count: int, seed: int, fixed: Mapping[str, Any]
) -> Iterator[Case]:
    """fixed: inputs that are given and stay so."""
    for number in range(count):
        yield Case(f"random {number + 1}", "random", _random(declared, seed + number, _SPREADS[number % 3], fixed))


def extreme_cases(declared: Sequence[DeclaredInput], seed: int, fixed: Mapping[str, Any]) -> Iterator[Case]:
    """Only those that these inputs can have. Inputs that are given stay as they are."""
    for name, kinds, change in _EXTREMES:
        feeds = _random(declared, seed, _SPREADS[1], fixed)
        changed = False
        for node in declared:
            value = feeds[node.name]
            if node.name in fixed or not isinstance(value, np.ndarray) or not value.size:
                continue
            if value.dtype.kind in kinds and (name != _WIDE or value.dtype.itemsize == 8):
                feeds[node.name] = change(value)
                changed = True
        if changed:
            yield Case(name, "extreme", feeds)


def _random(
    declared: Sequence[DeclaredInput], seed: int, spread: tuple[float, float], fixed: Mapping[str, Any]
) -> Feeds:
    rng = np.random.default_rng(seed)
    feeds: Feeds = {}
    for node in declared:
        shape = tuple(int(size) for size in node.shape or () if size is not None)
        value = random_value(node.name, node.type, shape, rng)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            value = np.asarray(value * value.dtype.type(spread[0]) + value.dtype.type(spread[1]), value.dtype)
        feeds[node.name] = fixed.get(node.name, value)
    return feeds


def _first(number: float) -> Callable[[Any], Any]:
    """The first element has this value."""

    def change(value: Any) -> Any:
        changed = value.copy()
        with np.errstate(over="ignore"):
            changed.reshape(-1)[0] = value.dtype.type(number)
        return changed

    return change


def _all(number: float) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        return np.full_like(value, number)

    return change


def _times(factor: float) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        with np.errstate(over="ignore"):
            return np.asarray(value * value.dtype.type(min(factor, float(np.finfo(value.dtype).max))), value.dtype)

    return change


_WIDE = "integers beyond 32 bits"

_EXTREMES: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("zeros", "f", _all(0.0)),
    ("large values", "f", _times(BEYOND_HALF)),
    ("tiny values", "f", _times(TINY)),
    ("NaN", "f", _first(float("nan"))),
    ("infinity", "f", _first(float("inf"))),
    ("minus infinity", "f", _first(float("-inf"))),
    ("negative integers", "i", _first(-1)),
    (_WIDE, "iu", _first(BEYOND_32_BITS)),
)
"""Name, kinds of numpy dtypes, and what becomes of an input of that kind."""
