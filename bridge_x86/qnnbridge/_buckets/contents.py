"""Made-up inputs for trials of a model on the CPU: valid, and different enough that something moves.

Zeros prove nothing: the rows 0 and 1 of a table of embeddings are padding and unknown words, and behind a mask of
zeros every output is constant. Ids are drawn over as much of their table as the model takes (`highest_valid` finds
it by runs), masks are ones, zeros and mixtures of both, since some masks keep what others hide. Pure functions
around a `Runs`, which alone touches a host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._feed_rules import Array

Feeds = Mapping[str, Any]
# The outputs for these inputs, in order; ``None`` if the model refuses them.
Runs = Callable[[Feeds], "Sequence[Any] | None"]

# What a place of an input is changed by: large, so that no activation hides it.
CHANGE: Final = 8.0
# Of every fourth draw: deep stacks of layers show their last steps only then.
LARGE_CHANGE: Final = 64.0
# The largest integer that is tried. More rows of a table show nothing more.
LARGEST: Final = 2**15 - 1
# In a mask that is added to scores, it hides what ones keep in a mask that multiplies.
HIDDEN: Final = -1e4
# A multiple of the kinds of masks and of the sizes of a change.
DRAWS: Final = 8
# Of numbers alone.
PLAIN_DRAWS: Final = 4
# The share of ones in a mask, by the number of the draw; all of them hide or keep something.
_ONES: Final = (1.0, 0.75, 0.0, 0.5)

MASK: Final = re.compile(r"mask|attention(?!s)|valid", re.IGNORECASE)


def is_mask(name: str, value: Array) -> bool:
    """Whether an input says which steps count."""
    return value.dtype.kind == "b" or (value.dtype.kind in "iuf" and MASK.search(name) is not None)


def highest_valid(feeds: Feeds, names: Iterable[str], run: Runs) -> dict[str, int]:
    """The largest integer, of the form 2**n - 1, that the model takes in each of these inputs.

    An id beyond a table is refused by the CPU. A value that changes the shape of an output is a size or a number of
    repetitions, and larger ones would fill the memory.

    Args:
        feeds: inputs that the model takes.
        names: inputs of integers.
    """
    found: dict[str, int] = {}
    shapes = _shapes(run(feeds))
    for name in names:
        high, value = 0, 1
        most = min(LARGEST, int(np.iinfo(feeds[name].dtype).max))
        while shapes is not None and value <= most:
            if _shapes(run({**feeds, name: np.full_like(feeds[name], value)})) != shapes:
                break
            high, value = value, 2 * value + 1
        found[name] = high
    return found


def _shapes(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else [getattr(value, "shape", None) for value in values]


def draws(feeds: Feeds, names: Iterable[str]) -> range:
    """Numbers of the draws that show all kinds of values of these inputs."""
    plain = all(feeds[name].dtype.kind == "f" and not is_mask(name, feeds[name]) for name in names)
    return range(PLAIN_DRAWS if plain else DRAWS)


def draw(feeds: Feeds, highest: Mapping[str, int], number: int) -> dict[str, Array]:
    """Values for all inputs.

    Args:
        feeds: values of the right types and shapes; what is not drawn stays as it is there.
        highest: integers that are ids or codes, and the largest of each; others stay.
        number: of the draw. Kinds of masks, and wide or small integers, take turns.
    """
    rng = np.random.default_rng([number, 7])
    return {name: _drawn(name, value, highest.get(name), number, rng) for name, value in feeds.items()}


def _drawn(name: str, value: Array, highest: int | None, number: int, rng: np.random.Generator) -> Array:
    bits = np.asarray(rng.random(value.shape) < _ONES[number % len(_ONES)])
    if is_mask(name, value):
        if value.dtype.kind == "f" and number % 8 == 5:
            return np.asarray(np.where(bits, 0.0, HIDDEN), value.dtype)
        return np.asarray(bits, value.dtype)
    if value.dtype.kind == "f":
        return np.asarray(rng.standard_normal(value.shape), value.dtype)
    if value.dtype.kind in "iu" and highest is not None:
        # Small ones are masks under another name as often as ids.
        if number % 3 == 2:
            return np.asarray(bits & (highest > 0), value.dtype)
        return np.asarray(rng.integers(0, highest + 1, value.shape), value.dtype)
    return value


def changed(name: str, value: Array, highest: int, number: int) -> Array:
    """Other values, each of them another one than before, and as valid."""
    rng = np.random.default_rng([number, 11])
    if value.dtype.kind == "b":
        return np.asarray(~value)
    if value.dtype.kind == "f" and not is_mask(name, value):
        by = LARGE_CHANGE if number % 4 == 3 else CHANGE
        return np.asarray(value + rng.standard_normal(value.shape) * by, value.dtype)
    if value.dtype.kind not in "iuf":
        return value
    # A mask of a third kind of value would show what no mask does.
    high = 1 if is_mask(name, value) or number % 3 == 2 else highest
    other = rng.integers(0, min(high, highest) + 1, value.shape) if value.dtype.kind in "iu" else value
    flipped = np.where(value == 0, min(1, high, highest), 0)
    return np.asarray(np.where(other == value, flipped, other), value.dtype)
