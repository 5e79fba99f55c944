"""Values made up for the inputs of a model, by declared type and shape.

The same seed gives the same values on every machine. Values are legal nearly everywhere: floats in 0..1, wide
integers 0 or 1 (they are mostly indices, masks or lengths), 8-bit and smaller integers over their whole range (they
are mostly quantised data).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_protocol import elements, tensors
from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.errors import OptionError

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
