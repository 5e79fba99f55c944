"""Generate inputs for trial runs of a model on the CPU that are valid and vary enough to change the outputs.

Inputs of zeros are unsuitable for trials, because rows 0 and 1 of an embedding table usually stand for padding and
unknown words, and a mask of zeros makes every output constant. Ids are drawn from the whole range that the model
accepts; `highest_valid` runs the model to find this range. Masks consist of ones, of zeros or of both, because a
value that one mask hides is visible with another mask. All functions are pure, except that they call a `Runs`
function, which communicates with a host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._values.feed_rules import Array

Feeds = Mapping[str, Any]
# Function that runs the model. Returns the outputs for these inputs, in order, or ``None`` if the model refuses the
# inputs.
Runs = Callable[[Feeds], "Sequence[Any] | None"]

# Standard deviation of a random change of an input. It is large, so that no activation function hides the change.
CHANGE: Final = 8.0
# Standard deviation of the change in every fourth draw: in deep models the effect of a smaller change disappears
# before it reaches the last steps.
LARGE_CHANGE: Final = 64.0
# Largest integer to try as an input. Larger ids select rows of an embedding table that behave like earlier rows.
LARGEST: Final = 2**15 - 1
# Value that hides a step in an additive mask (a mask that the model adds to its attention scores).
HIDDEN: Final = -1e4
# Number of draws: a multiple of the number of mask types and of the number of change sizes, so that all are used.
DRAWS: Final = 8
# Number of draws if no input is a mask or contains integers.
PLAIN_DRAWS: Final = 4
# Fraction of ones in a mask, by the number of the draw.
_ONES: Final = (1.0, 0.75, 0.0, 0.5)

MASK: Final = re.compile(r"mask|attention(?!s)|valid", re.IGNORECASE)


def is_mask(name: str, value: Array) -> bool:
    """Return whether an input is a mask, which marks the steps that the model must use."""
    return value.dtype.kind == "b" or (value.dtype.kind in "iuf" and MASK.search(name) is not None)


def highest_valid(feeds: Feeds, names: Iterable[str], run: Runs) -> dict[str, int]:
    """Return the largest integer of the form 2**n - 1 that the model accepts in each of these inputs.

    ONNX Runtime's CPU provider refuses an id that is not in the embedding table. If a value changes the shape of an
    output, the input is a size or a number of repetitions; larger values are not tried, because they could use up
    the memory.

    Args:
        feeds: inputs that the model accepts.
        names: the integer inputs to try.
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
    """Return the draw numbers (argument of `draw`) that together cover all types of values of these inputs."""
    plain = all(feeds[name].dtype.kind == "f" and not is_mask(name, feeds[name]) for name in names)
    return range(PLAIN_DRAWS if plain else DRAWS)


def draw(feeds: Feeds, highest: Mapping[str, int], number: int) -> dict[str, Array]:
    """Generate values for all inputs.

    Args:
        feeds: values of the right types and shapes. An input that is not drawn keeps its value.
        highest: the largest valid integer of each input that contains ids or codes. Other integer inputs keep their
            values.
        number: number of the draw. It selects the type of masks, and whether integers cover their range or are only
            0 and 1.
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
        # An input of small integers may be a mask whose name does not contain "mask", so every third draw
        # contains only 0 and 1.
        if number % 3 == 2:
            return np.asarray(bits & (highest > 0), value.dtype)
        return np.asarray(rng.integers(0, highest + 1, value.shape), value.dtype)
    return value


def changed(name: str, value: Array, highest: int, number: int) -> Array:
    """Return other valid values for an input, all of them different from the values in `value`."""
    rng = np.random.default_rng([number, 11])
    if value.dtype.kind == "b":
        return np.asarray(~value)
    if value.dtype.kind == "f" and not is_mask(name, value):
        by = LARGE_CHANGE if number % 4 == 3 else CHANGE
        return np.asarray(value + rng.standard_normal(value.shape) * by, value.dtype)
    if value.dtype.kind not in "iuf":
        return value
    # In a mask, use only 0 and 1: other values would show effects that do not occur with real masks.
    high = 1 if is_mask(name, value) or number % 3 == 2 else highest
    other = rng.integers(0, min(high, highest) + 1, value.shape) if value.dtype.kind in "iu" else value
    flipped = np.where(value == 0, min(1, high, highest), 0)
    return np.asarray(np.where(other == value, flipped, other), value.dtype)


def generated_values(
    name: str, zero: Array, rng: np.random.Generator, factor: float, offset: float, ids: tuple[int, int]
) -> Array:
    """Generate values for an input: ones for a mask, integers in the range `ids`, or random floats.

    Ids are usually padded with 0, so an id 0 at the end of a sample would hide the effect of padding. Therefore the
    range `ids` of some samples begins at 1.
    """
    if is_mask(name, zero):
        return np.ones(zero.shape, zero.dtype)
    if zero.dtype.kind in "iu":
        return np.asarray(rng.integers(min(ids), ids[1] + 1, zero.shape), zero.dtype)
    if zero.dtype.kind != "f":
        return zero
    values = rng.standard_normal(zero.shape)
    return np.asarray((values if not offset else np.abs(values)) * factor + offset, zero.dtype)


def shows_nothing(values: Sequence[Any]) -> bool:
    """Return whether an output is the same for all samples, or contains values that are not finite."""
    arrays = [np.asarray(value) for value in values]
    if not all(np.isfinite(array).all() for array in arrays):
        return True
    return all(array.shape == arrays[0].shape and np.array_equal(array, arrays[0]) for array in arrays)
