"""Made-up samples for a model: the same seed gives the same values, and free dimensions get sizes that work.

A size is found by trying: the model itself says (by running) whether 1, 64 or 224 is one that it takes. Values are
legal nearly everywhere: floats in 0..1, wide integers 0 or 1 (they are mostly indices, masks or lengths), 8-bit and
smaller integers over their whole range (they are mostly quantised data).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_protocol import elements, tensors
from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.errors import BridgeError, OptionError, OrtError

# Codes of positive numbers rise with the number, so a random code below that of 1.0 is a number in 0..1.
_CODES: Mapping[ElementType, tuple[int, int]] = {
    ElementType.FLOAT8E4M3FN: (0, 0x38),
    ElementType.FLOAT8E4M3FNUZ: (0, 0x40),
    ElementType.FLOAT8E5M2: (0, 0x3C),
    ElementType.FLOAT8E5M2FNUZ: (0, 0x40),
    ElementType.FLOAT8E8M0: (119, 127),  # has no zero and no sign: 2**-8 to 2**-1
    ElementType.FLOAT6E2M3: (0, 0x08),
    ElementType.FLOAT6E3M2: (0, 0x0C),
    ElementType.FLOAT4E2M1: (0, 0x02),
    ElementType.UINT4: (0, 16),
    ElementType.INT4: (0, 16),
    ElementType.UINT2: (0, 4),
    ElementType.INT2: (0, 4),
}
_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")


class DeclaredInput(Protocol):
    """An input as `InferenceSession.get_inputs` gives it."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> Sequence[int | str | None] | None: ...


def full_shape(name: str, declared: Sequence[int | str | None] | None, dimensions: Dimensions) -> tuple[int, ...]:
    """The declared shape with every free dimension filled from `--dim`; an error that says how to, otherwise."""
    if declared is None:
        raise OptionError(
            f'Input "{name}" has no declared shape, so none can be made up.',
            fix=f"Give a file: --input {name}=FILE.npy.",
        )
    sizes = [dimensions.size_of(name, axis, dim) for axis, dim in enumerate(declared)]
    if None in sizes:
        free = [
            f"{name}:{axis}" if dim is None or isinstance(dim, int) else str(dim)
            for axis, (dim, size) in enumerate(zip(declared, sizes, strict=True))
            if size is None
        ]
        free = list(dict.fromkeys(free))
        raise OptionError(
            f'Input "{name}" has free dimensions: {", ".join(free)}.',
            cause="A size must be known before values can be made up.",
            fix=" ".join(f'--dim "{dim}=SIZE"' for dim in free),
        )
    return tuple(size for size in sizes if size is not None)


def random_value(
    name: str, type_text: str, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray[Any, Any] | tensors.Typed:
    """A tensor of the declared type with values from `rng`."""
    declared = elements.from_ort_type(type_text)
    if declared.kind != "tensor" or declared.element is None:
        raise OptionError(
            f'Values of type {type_text} cannot be made up (input "{name}").',
            fix="Run this model from Python with qnnbridge.InferenceSession, which takes lists and maps.",
        )
    # For its check: a shape whose bytes cannot be counted is refused before numpy sees it.
    elements.nbytes(ElementType.UINT8 if declared.element is ElementType.STRING else declared.element, shape)
    try:
        return _tensor(declared.element, shape, rng)
    except (MemoryError, ValueError) as error:
        raise OptionError(f'Input "{name}" of shape {shape} does not fit in memory.', cause=str(error)) from None


def _tensor(
    element: ElementType, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray[Any, Any] | tensors.Typed:
    dtype = elements.numpy_dtype(element)
    if element is ElementType.STRING:
        return np.asarray(rng.choice(_WORDS, size=shape), dtype=object)
    if element is ElementType.BFLOAT16:
        # A bfloat16 is the upper half of a float's bits.
        upper_half = rng.random(shape, dtype=np.float32).view(np.uint32) >> 16
        return tensors.Typed(upper_half.astype(dtype), element, shape)
    if element in _CODES:
        low, high = _CODES[element]
        codes = rng.integers(low, high, size=shape, dtype=np.uint8)
        layout = elements.LAYOUTS[element]
        return tensors.Typed(tensors.pack(codes, layout.bits) if layout.packed else codes, element, shape)
    if dtype.kind == "c":
        return np.asarray(rng.random(shape) + 1j * rng.random(shape)).astype(dtype)
    if dtype.kind == "f":
        return np.asarray(rng.random(shape)).astype(dtype)
    if dtype.itemsize == 1 and dtype.kind in "iu":
        return rng.integers(0, 256, size=shape, dtype=np.uint8).view(dtype)
    return rng.integers(0, 2, size=shape, dtype=np.int64).astype(dtype)


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
            # A stream for each sample: its values do not depend on how many samples are made.
            feeds = [_sample(declared, sizes, np.random.default_rng([seed, n]), s) for n, s in enumerate(_SPREADS)]
            accepts(feeds[0])
        except OrtError as error:
            # Of the first sizes: later ones may fail because they are wrong sizes.
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
