"""Made-up samples for a model: the same seed gives the same values, and free dimensions get sizes that work.

A size is found by trying: the model itself says (by running) whether 1, 64 or 224 is one that it takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_host.numerics.declared_inputs import DeclaredInput, full_shape, random_value
from qnnbridge_protocol import elements
from qnnbridge_protocol.errors import BridgeError, OptionError, OrtError

# For free dimensions behind the first. The first is the batch, of 1 unless no other dimension is free.
TRIED_SIZES = (64, 1, 16, 224, 128, 2, 32, 48, 640)
# Factor and offset for each sample's values in 0..1: a picture, something with signs, silence.
_SPREADS = ((1.0, 0.0), (4.0, -2.0), (0.0, 0.0))

Feeds = dict[str, Any]


class NotMade(Exception):
    """No sample can be made up; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """Made-up samples that a model takes.

    Args:
        feeds: one map of inputs for each sample.
        sizes: what free dimensions were given, by `--dim` name.
    """

    feeds: tuple[Feeds, ...]
    sizes: Mapping[str, int]


def make_samples(declared: Sequence[DeclaredInput], *, seed: int, accepts: Callable[[Feeds], object]) -> Samples:
    """Three samples that the model takes. `accepts` runs one and raises `OrtError` if it does not.

    Raises `NotMade` with the reason, a text that fits behind "could not be compared: ".
    """
    refuse_unmakeable(declared)
    reason = ""
    for sizes in _candidates(declared):
        try:
            feeds = [_sample(declared, sizes, np.random.default_rng([seed, n]), s) for n, s in enumerate(_SPREADS)]
            accepts(feeds[0])
        except OrtError as error:
            reason = reason or (error.cause or error.message)
        except BridgeError as error:
            raise NotMade(error.message) from None
        else:
            return Samples(tuple(feeds), sizes)
    raise NotMade(f"the CPU provider does not run it on made-up inputs ({reason[:300]})")


def random_samples(declared: Sequence[DeclaredInput], count: int, seed: int) -> Iterator[Feeds]:
    """`count` samples with values in 0..1 for inputs of fixed sizes."""
    for number in range(count):
        yield _sample(declared, {}, np.random.default_rng([seed, number]), _SPREADS[0])


def refuse_unmakeable(declared: Sequence[DeclaredInput]) -> None:
    """Raises `NotMade` for an input for which no array can be made up."""
    for node in declared:
        try:
            kind = elements.from_ort_type(node.type)
        except BridgeError:
            raise NotMade(f'values of type {node.type} (input "{node.name}") cannot be made up') from None
        if kind.kind != "tensor":
            raise NotMade(f'input "{node.name}" is a {kind.kind}, for which no values are made up')
        if kind.element is None or not elements.LAYOUTS[kind.element].named:
            raise NotMade(f'input "{node.name}" is of a type that numpy does not have ({node.type})')
        if node.shape is None:
            raise NotMade(f'input "{node.name}" has no declared shape')


def _candidates(declared: Sequence[DeclaredInput]) -> Iterator[dict[str, int]]:
    first: set[str] = set()
    other: dict[str, None] = {}
    for node in declared:
        for axis, dimension in enumerate(node.shape or ()):
            if isinstance(dimension, int) and dimension >= 0:
                continue
            option = dimension if isinstance(dimension, str) else f"{node.name}:{axis}"
            if axis == 0:
                first.add(option)
            else:
                other[option] = None
    if not other:
        yield dict.fromkeys(sorted(first), 1)
    for size in TRIED_SIZES if other or first else ():
        yield {**dict.fromkeys(sorted(first), 1 if other else size), **dict.fromkeys(other, size)}


def _sample(
    declared: Sequence[DeclaredInput],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    spread: tuple[float, float],
) -> Feeds:
    dimensions = Dimensions(by_name=dict(sizes))
    for option, size in sizes.items():
        name, colon, axis = option.rpartition(":")
        if colon and axis.isdecimal():
            dimensions.by_axis[name, int(axis)] = size
    feeds: Feeds = {}
    for node in declared:
        value = random_value(node.name, node.type, full_shape(node.name, node.shape, dimensions), rng)
        if not isinstance(value, np.ndarray):
            raise OptionError(f"values of type {node.type} cannot be given to ONNX Runtime from Python")
        if value.dtype.kind == "f":
            value = np.asarray(value * value.dtype.type(spread[0]) + value.dtype.type(spread[1]), value.dtype)
        feeds[node.name] = value
    return feeds
