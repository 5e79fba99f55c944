"""Tensors of element types that numpy has no name for: bfloat16, float8 and everything below one byte.

Owns `Typed` (raw bytes beside their ONNX type and shape) and the packing of small elements. Immutable data and
pure functions; any thread may use them. Values are never converted: what comes in as bits goes out as bits.
ml_dtypes is looked for only when `Typed.numpy` is called.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, ElementType, element_of, nbytes

Array = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Typed:
    """A dense tensor as raw bytes.

    data: ``uint16`` for bfloat16 and ``uint8`` for float8, in the tensor's shape; ``uint8`` of one dimension for
        types below a byte, packed from the lowest bit up (the first of two int4 is the low nibble).
    element_type: a type that numpy cannot name; all others are plain arrays.
    shape: of the tensor, in elements.

    Two of them are compared with `equal_bits`; ``==`` is identity.
    """

    data: Array
    element_type: ElementType
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        try:
            element = ElementType(self.element_type)
            shape = tuple(operator.index(dim) for dim in self.shape)
        except (ValueError, TypeError) as error:
            raise errors.InvalidArgument(
                "A Typed tensor needs an ONNX element type and a shape.", cause=str(error)
            ) from None
        layout = LAYOUTS[element]
        if layout.named:
            raise errors.InvalidArgument(
                f"Typed is for types that numpy cannot name; {element.text} is not one of them.",
                fix=f"Pass a plain numpy array of dtype {layout.storage}.",
            )
        data, size = np.asarray(self.data), nbytes(element, shape)
        if data.dtype.kind != "u" or data.dtype.itemsize != layout.storage.itemsize or data.nbytes != size:
            raise errors.InvalidArgument(
                f"The data of a {element.text} tensor of shape {shape} must be {size} bytes of {layout.storage}.",
                cause=f"Got {data.nbytes} bytes of {data.dtype}.",
            )
        object.__setattr__(self, "data", data.reshape(-1 if layout.packed else shape))
        object.__setattr__(self, "element_type", element)
        object.__setattr__(self, "shape", shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return 0 if 0 in self.shape else _product(self.shape)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @classmethod
    def of(cls, array: Array) -> Typed:
        """The raw form of an ml_dtypes array."""
        element = element_of(array.dtype)
        layout = None if element is None else LAYOUTS[element]
        if element is None or layout is None or layout.named:
            raise errors.InvalidArgument(f"{array.dtype} is not a type of ml_dtypes that ONNX knows.")
        raw = np.asarray(array, order="C").view(layout.storage)
        return cls(pack(raw, layout.bits) if layout.packed else raw, element, array.shape)

    def numpy(self) -> Array:
        """An ml_dtypes array with one element per item, or `data` itself where ml_dtypes (or the type in it) is
        not installed."""
        layout = LAYOUTS[self.element_type]
        dtype = ml_dtype(self.element_type)
        if dtype is None:
            return self.data
        if layout.packed:
            return unpack(self.data, layout.bits, self.size).view(dtype).reshape(self.shape)
        native = self.data.astype(self.data.dtype.newbyteorder("="), copy=False)
        return np.ascontiguousarray(native).view(dtype).reshape(self.shape)


def ml_dtype(element: ElementType) -> np.dtype[Any] | None:
    """The ml_dtypes dtype of an element type, or ``None`` without ml_dtypes, or with one that is too old."""
    name = LAYOUTS[element].ml_name
    if name is None:
        return None
    try:
        import ml_dtypes
    except ImportError:
        return None
    scalar = getattr(ml_dtypes, name, None)
    return None if scalar is None else np.dtype(scalar)


def pack(codes: Array, bits: int) -> Array:
    """Pack one code per byte into a stream of `bits` each, lowest bit first; unused bits of the end are zero."""
    spread = np.unpackbits(codes.reshape(-1, 1), axis=1, bitorder="little")
    return np.packbits(spread[:, :bits].reshape(-1), bitorder="little")


def unpack(data: Array, bits: int, count: int) -> Array:
    """The inverse of `pack`: `count` codes, one per byte, upper bits zero."""
    spread = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
    return np.packbits(spread, axis=1, bitorder="little").reshape(-1)


def unused_bits(size: int, bits: int, count: int) -> int:
    """Mask of the bits in the last of `size` bytes that belong to no element."""
    used = count * bits - 8 * (size - 1) if size else 8
    return 0xFF & ~((1 << used) - 1)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for dim in shape:
        product *= dim
    return product
