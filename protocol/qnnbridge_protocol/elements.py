"""The part of the ONNX type system that values need: element types, their memory layout, and ONNX Runtime's
notation of types.

Contains the table of element types (`LAYOUTS`), the byte count of a tensor (`measure`, `nbytes`) and the parser of
type strings such as ``tensor(float)`` (`from_ort_type`). Everything is a pure function or an immutable table, so it
is thread-safe.

Invariants:

- element types have the numbers of ``onnx.TensorProto.DataType``;
- byte counts are Python integers, so nothing overflows, and nothing over `MAX_TENSOR_BYTES` is accepted;
- importing this module loads only numpy. Arrays of ml_dtypes are recognised by the name of their dtype: such an
  array can only exist where ml_dtypes is already loaded.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.element_types import ElementType as ElementType
from qnnbridge_protocol.records import NamedTuple

# Maximum number of dimensions of a tensor, which is also numpy's limit (32 before numpy 2).
MAX_RANK = 64

# Maximum number of bytes, and of elements, of one tensor. It is below numpy's limit, so numpy accepts every shape
# that passes the check.
MAX_TENSOR_BYTES = 2**62

# Maximum nesting of values and types. Values of ONNX Runtime are nested at most 3 deep. A header that contains
# a descriptor of this depth stays below the maximum nesting of a header (16).
MAX_DEPTH = 8


class Layout(NamedTuple):
    """Layout of elements in memory.

    Attributes:
        bits: size of an element in a dense buffer. For strings the size of a pointer, only used to limit the count.
        storage: dtype of the array that holds the bytes, little-endian. One byte for all packed types.
        named: whether numpy itself has the type, so that a plain array is sufficient.
        ml_name: the type's name in ml_dtypes, if numpy does not have the type.
    """

    bits: int
    storage: np.dtype[Any]
    named: bool = True
    ml_name: str | None = None

    @property
    def packed(self) -> bool:
        """Whether one byte contains several elements."""
        return self.bits < 8


def _plain(code: str) -> Layout:
    dtype = np.dtype(code)
    return Layout(bits=8 * dtype.itemsize, storage=dtype)


def _raw(bits: int, ml_name: str) -> Layout:
    return Layout(bits=bits, storage=np.dtype("<u2" if bits == 16 else "u1"), named=False, ml_name=ml_name)


LAYOUTS: Mapping[ElementType, Layout] = {
    ElementType.FLOAT: _plain("<f4"),
    ElementType.UINT8: _plain("u1"),
    ElementType.INT8: _plain("i1"),
    ElementType.UINT16: _plain("<u2"),
    ElementType.INT16: _plain("<i2"),
    ElementType.INT32: _plain("<i4"),
    ElementType.INT64: _plain("<i8"),
    ElementType.STRING: Layout(bits=64, storage=np.dtype(object)),
    ElementType.BOOL: _plain("?"),
    ElementType.FLOAT16: _plain("<f2"),
    ElementType.DOUBLE: _plain("<f8"),
    ElementType.UINT32: _plain("<u4"),
    ElementType.UINT64: _plain("<u8"),
    ElementType.COMPLEX64: _plain("<c8"),
    ElementType.COMPLEX128: _plain("<c16"),
    ElementType.BFLOAT16: _raw(16, "bfloat16"),
    ElementType.FLOAT8E4M3FN: _raw(8, "float8_e4m3fn"),
    ElementType.FLOAT8E4M3FNUZ: _raw(8, "float8_e4m3fnuz"),
    ElementType.FLOAT8E5M2: _raw(8, "float8_e5m2"),
    ElementType.FLOAT8E5M2FNUZ: _raw(8, "float8_e5m2fnuz"),
    ElementType.UINT4: _raw(4, "uint4"),
    ElementType.INT4: _raw(4, "int4"),
    ElementType.FLOAT4E2M1: _raw(4, "float4_e2m1fn"),
    ElementType.FLOAT8E8M0: _raw(8, "float8_e8m0fnu"),
    ElementType.UINT2: _raw(2, "uint2"),
    ElementType.INT2: _raw(2, "int2"),
    ElementType.FLOAT6E2M3: _raw(6, "float6_e2m3fn"),
    ElementType.FLOAT6E3M2: _raw(6, "float6_e3m2fn"),
}

_BY_DTYPE: Mapping[np.dtype[Any], ElementType] = {
    dtype: element
    for element, layout in LAYOUTS.items()
    if layout.named and element is not ElementType.STRING
    for dtype in (layout.storage, layout.storage.newbyteorder())
}
_BY_ML_NAME: Mapping[str, ElementType] = {
    layout.ml_name: element for element, layout in LAYOUTS.items() if layout.ml_name is not None
}


def numpy_dtype(element: ElementType) -> np.dtype[Any]:
    """Return the dtype of the array that holds a tensor of this type: numpy's own dtype, or the dtype of the raw
    bytes (`Typed.data`)."""
    return LAYOUTS[element].storage


def element_of(dtype: np.dtype[Any]) -> ElementType | None:
    """Return the ONNX type of a dtype, or ``None``. Any byte order and the dtypes of ml_dtypes are accepted."""
    found = _BY_DTYPE.get(dtype)
    if found is not None:
        return found
    # "T" is the StringDType of numpy 2.
    if dtype.kind in "OUST":
        return ElementType.STRING
    # An extension module such as ml_dtypes has registered the dtype, whose name is the name of its scalar class.
    return _BY_ML_NAME.get(dtype.name) if dtype.isbuiltin == 2 else None


def measure(bits: int, shape: Sequence[int]) -> tuple[int, int]:
    """Return the number of elements and bytes of a dense tensor. Raise `ValueError` for a shape that no array can
    have.

    All dimensions are checked even if one dimension is 0: numpy refuses a shape whose nonzero dimensions overflow.
    """
    if len(shape) > MAX_RANK:
        raise ValueError(f"{len(shape)} dimensions, at most {MAX_RANK} are possible")
    count, empty = 1, False
    for dim in shape:
        if dim > 0:
            count *= dim
        elif dim == 0:
            empty = True
        else:
            raise ValueError(f"a dimension is negative: {dim}")
    size = (count * bits + 7) >> 3
    # A tensor with less than a byte per element has more elements than bytes, so the limit applies to both numbers.
    if count > MAX_TENSOR_BYTES or size > MAX_TENSOR_BYTES:
        raise ValueError("more than 2**62 bytes")
    return (0, 0) if empty else (count, size)


def nbytes(element: ElementType, shape: Sequence[int]) -> int:
    """Return the number of bytes in the dense buffer of a tensor with this type and shape. Raise an error for
    strings, whose size is not fixed."""
    if element is ElementType.STRING:
        raise errors.InvalidArgument("The byte count of a string tensor does not follow from its shape.")
    try:
        return measure(LAYOUTS[element].bits, [operator.index(dim) for dim in shape])[1]
    except (ValueError, TypeError) as error:
        raise errors.InvalidArgument(
            f"No {element.text} tensor can have the shape {tuple(shape)!r:.200}.", cause=str(error)
        ) from None


# --- types in ONNX Runtime's notation --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class ValueType:
    """A type that a model declares. ``str()`` returns ONNX Runtime's notation.

    Attributes:
        element: element type of a tensor or sparse tensor.
        key: key type of a map.
        item: type of the contents of a sequence, an optional or a map.
    """

    kind: Literal["tensor", "sparse", "sequence", "map", "optional"]
    element: ElementType | None = None
    key: ElementType | None = None
    item: ValueType | None = None

    def __str__(self) -> str:
        name = _KIND_TEXTS[self.kind]
        if self.element is not None:
            return f"{name}({self.element.text})"
        if self.key is not None:
            return f"{name}({self.key.text},{self.item})"
        return f"{name}({self.item})"


_KIND_TEXTS = {
    "tensor": "tensor",
    "sparse": "sparse_tensor",
    "sequence": "seq",
    "map": "map",
    "optional": "optional",
}
_ELEMENTS_BY_TEXT = {element.text: element for element in ElementType}


@functools.lru_cache(maxsize=1024)
def from_ort_type(text: str) -> ValueType:
    """Parse a type as in ``NodeArg.type``: ``tensor(float)``, ``seq(map(int64,tensor(float)))``, ``optional(...)``.

    Raises:
        errors.NotImplemented: this version does not support the type (for example an opaque type).
    """
    return _parse(text, text, MAX_DEPTH)


def _parse(text: str, whole: str, depth: int) -> ValueType:
    name, bracket, rest = text.strip().partition("(")
    if not bracket or not rest.endswith(")") or depth <= 0:
        raise _unknown_type(whole)
    inner = rest[:-1]
    if name == "tensor":
        return ValueType("tensor", element=_element(inner, whole))
    if name == "sparse_tensor":
        return ValueType("sparse", element=_element(inner, whole))
    if name == "seq":
        return ValueType("sequence", item=_parse(inner, whole, depth - 1))
    if name == "optional":
        return ValueType("optional", item=_parse(inner, whole, depth - 1))
    if name == "map":
        # The key is an element type, so the first comma ends the key, even if the item is a map.
        key, _, item = inner.partition(",")
        return ValueType("map", key=_element(key, whole), item=_parse(item, whole, depth - 1))
    raise _unknown_type(whole)


def _element(text: str, whole: str) -> ElementType:
    found = _ELEMENTS_BY_TEXT.get(text.strip())
    if found is None:
        raise _unknown_type(whole)
    return found


def _unknown_type(text: str) -> errors.NotImplemented:
    return errors.NotImplemented(
        f"Values of the type {text!r:.200} cannot be sent between the application and the host.",
        cause="qnnbridge supports dense and sparse tensors of ONNX element types, sequences, maps and optionals.",
        fix="Change the model so that this input or output has one of those types, or update qnnbridge.",
    )
