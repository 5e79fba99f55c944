"""Values that a plain numpy array cannot represent: `Typed` and `Sparse` tensors, string tensors, and maps.

Pure functions and immutable classes; thread-safe.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterable
from itertools import chain
from typing import Any, Literal

import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, ElementType, element_of, measure, nbytes
from qnnbridge_protocol.shown import with_article

Array = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Typed:
    """A dense tensor as raw bytes. `equal_bits` compares two such tensors; ``==`` compares the identity.

    Attributes:
        data: ``uint16`` for bfloat16 and ``uint8`` for float8, in the tensor's shape; ``uint8`` of one dimension
            for types below a byte, packed from the lowest bit up (the first of two int4 is the low nibble).
        element_type: element type, which numpy does not have. Tensors of all other types are plain arrays.
        shape: shape of the tensor, in elements.
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
                f"Typed is for types that numpy does not have; {element.text} is not one of them.",
                fix=f"Pass a plain numpy array of dtype {layout.storage}.",
            )
        data, size = np.asarray(self.data), nbytes(element, shape)
        if data.dtype.kind != "u" or data.dtype.itemsize != layout.storage.itemsize or data.nbytes != size:
            raise errors.InvalidArgument(
                f"The data of {with_article(element.text)} tensor of shape {shape} must be {size} bytes of "
                f"{layout.storage}.",
                cause=f"Got {data.nbytes} bytes of {data.dtype}.",
            )
        # The class is frozen; only this method sets attributes, once.
        object.__setattr__(self, "data", data.reshape(-1 if layout.packed else shape))
        object.__setattr__(self, "element_type", element)
        object.__setattr__(self, "shape", shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @classmethod
    def of(cls, array: Array) -> Typed:
        """Convert an ml_dtypes array to the raw representation."""
        element = element_of(array.dtype)
        layout = None if element is None else LAYOUTS[element]
        if element is None or layout is None or layout.named:
            raise errors.InvalidArgument(f"{array.dtype} of ml_dtypes is not an ONNX type.")
        raw = np.asarray(array, order="C").view(layout.storage)
        # ml_dtypes stores each int4 in a separate byte, ONNX stores two int4 in one byte.
        return cls(pack(raw, layout.bits) if layout.packed else raw, element, array.shape)

    def numpy(self) -> Array:
        """Return an ml_dtypes array with one element per item. If ml_dtypes is missing or lacks the type, return
        `data` itself."""
        layout = LAYOUTS[self.element_type]
        dtype = ml_dtype(self.element_type)
        if dtype is None:
            return self.data
        if layout.packed:
            return unpack(self.data, layout.bits, self.size).view(dtype).reshape(self.shape)
        # On little-endian machines `astype` copies nothing, because the wire is also little-endian.
        native = self.data.astype(self.data.dtype.newbyteorder("="), copy=False)
        # The last `reshape` is needed for scalars, because `ascontiguousarray` adds a dimension to them.
        return np.ascontiguousarray(native).view(dtype).reshape(self.shape)


def ml_dtype(element: ElementType) -> np.dtype[Any] | None:
    """Return the ml_dtypes dtype of an element type; ``None`` if ml_dtypes is missing or too old."""
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
    """Pack codes, one per byte, into a stream with `bits` bits per code, lowest bit first. Unused bits at the
    end are zero."""
    # Work on single bits, since an element of 6 bits may extend over two bytes.
    spread = np.unpackbits(codes.reshape(-1, 1), axis=1, bitorder="little")
    return np.packbits(spread[:, :bits].reshape(-1), bitorder="little")


def unpack(data: Array, bits: int, count: int) -> Array:
    """Unpack `count` codes into one byte each, with zeros in the upper bits. Inverse of `pack`."""
    spread = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
    return np.packbits(spread, axis=1, bitorder="little").reshape(-1)


def unused_bits(size: int, bits: int, count: int) -> int:
    """Return the mask of the bits that belong to no element, in the last byte of a buffer of `size` bytes."""
    used = count * bits - 8 * (size - 1) if size else 8
    return 0xFF & ~((1 << used) - 1)


Format = Literal["coo", "csr", "block"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """A sparse tensor. `equal_bits` compares two such tensors; ``==`` compares the identity.

    Attributes:
        values: the stored elements in one dimension (three or more for blocks).
        dense_shape: shape of the dense tensor.
        format: ``coo`` with one ``int64`` index array, of shape (n,) (positions in the flattened tensor) or (n,
            rank);
            ``csr`` with two, the columns (n,) and the row starts (rows + 1,), or (0,) if nothing is stored;
            ``block`` with one ``int32`` array of shape (2, n), where `values` is (n, height, width).
    """

    values: Array
    dense_shape: tuple[int, ...]
    format: Format
    indices: tuple[Array, ...]

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "dense_shape", tuple(operator.index(dim) for dim in self.dense_shape))
            object.__setattr__(self, "values", np.asarray(self.values))
            object.__setattr__(self, "indices", tuple(np.asarray(part) for part in self.indices))
            _check_sparse(self)
        except (ValueError, TypeError) as error:
            raise errors.InvalidArgument("This is not a valid sparse tensor.", cause=str(error)) from None


def _check_sparse(tensor: Sparse) -> None:
    shape, values, parts = tensor.dense_shape, tensor.values, tensor.indices
    # The element type is arbitrary: the dense tensor is never created, and only its elements are counted.
    count, _ = measure(8, shape)
    if tensor.format == "block":
        _check_blocks(shape, values, parts)
        return
    if values.ndim != 1:
        raise ValueError(f"the values have {values.ndim} dimensions, not one")
    for part in parts:
        if part.dtype.kind != "i" or part.dtype.itemsize != 8:
            raise ValueError(f"the indices have the type {part.dtype}, not int64")
    stored = len(values)
    if tensor.format == "coo" and len(parts) == 1:
        # Compare linear indices with the number of elements, and coordinates with the size of each axis.
        if parts[0].shape == (stored,):
            _in_range(parts[0], count)
        elif parts[0].shape == (stored, len(shape)):
            for axis, dim in enumerate(shape):
                _in_range(parts[0][:, axis], dim)
        else:
            raise ValueError(f"indices of shape {parts[0].shape} do not fit {stored} values of rank {len(shape)}")
    elif tensor.format == "csr" and len(parts) == 2:
        _check_csr(shape, stored, *parts)
    else:
        raise ValueError(f"the format {tensor.format!r:.40} does not have {len(parts)} index arrays")


def _check_blocks(shape: tuple[int, ...], values: Array, parts: tuple[Array, ...]) -> None:
    if values.ndim < 3:
        raise ValueError(f"blocks have {values.ndim} dimensions, not three or more")
    if len(parts) != 1 or parts[0].dtype.kind != "i" or parts[0].dtype.itemsize != 4:
        raise ValueError("blocks need one array of int32 indices")
    if parts[0].shape != (2, len(values)):
        raise ValueError(f"indices of shape {parts[0].shape} do not fit {len(values)} blocks")
    # Indices count blocks, and the last block of an axis may extend past the axis's end. `max` prevents a division
    # by zero for a block of size 0.
    for axis, block in enumerate(values.shape[1:3]):
        _in_range(parts[0][axis], -(-shape[axis] // max(1, block)) if axis < len(shape) else 0)


def _check_csr(shape: tuple[int, ...], stored: int, columns: Array, starts: Array) -> None:
    if len(shape) != 2:
        raise ValueError(f"the format CSR needs a matrix, not a tensor of rank {len(shape)}")
    if columns.shape != (stored,):
        raise ValueError(f"columns of shape {columns.shape} do not fit {stored} values")
    _in_range(columns, shape[1])
    # ONNX Runtime returns an empty matrix without row starts.
    if stored == 0 and starts.shape == (0,):
        return
    if starts.shape != (shape[0] + 1,) or starts[0] != 0 or starts[-1] != stored:
        raise ValueError(f"row starts must be {shape[0] + 1} numbers from 0 to {stored}")
    if bool((starts[1:] < starts[:-1]).any()):
        raise ValueError("row starts must not decrease")


def _in_range(index: Array, limit: int) -> None:
    if index.size and (int(index.min()) < 0 or int(index.max()) >= limit):
        raise ValueError(f"an index is outside 0..{limit - 1}")


# Maximum size of all strings of one tensor together, in UTF-8.
MAX_TEXT_BYTES = 2**32 - 1

_OFFSET = np.dtype("<u4")

# Average length of strings, in bytes, above which the time to create a view for each string is negligible.
_LONG_TEXT = 1024


def encode_strings(array: Array) -> tuple[Array, Array]:
    """Return the offsets and the text of an array of ``str`` (dtype object, U or T) or of UTF-8 bytes (dtype S)."""
    texts = _texts(array)
    try:
        # If this fast path fails, `_refused` finds the invalid element.
        joined = "".join(texts)
        # Encode all strings at once. If all are ASCII, the number of characters of a string is the number of its
        # bytes.
        blob = joined.encode()
        if len(blob) == len(joined):
            lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        else:
            lengths = np.fromiter((len(text.encode()) for text in texts), np.int64, len(texts))
    except (TypeError, UnicodeEncodeError):
        raise _refused(texts) from None
    # Check the size before the offsets are computed, because 32-bit integers would wrap around without an error.
    if len(blob) > MAX_TEXT_BYTES:
        raise errors.InvalidArgument(
            f"The strings of one tensor are {len(blob)} bytes; at most {MAX_TEXT_BYTES} can be sent.",
            fix="Send them in several calls.",
        )
    offsets = np.zeros(len(texts) + 1, _OFFSET)
    offsets[1:] = np.cumsum(lengths)
    return offsets.view(np.uint8), np.frombuffer(blob, np.uint8)


def _texts(array: Array) -> list[Any]:
    if array.dtype.kind == "S":
        try:
            return [item.decode() for item in array.reshape(-1).tolist()]
        except UnicodeDecodeError as error:
            raise errors.InvalidArgument(
                "An array of bytes is accepted as strings only if each item is valid UTF-8.",
                cause=str(error),
                fix="Decode the bytes with their actual encoding and pass an array of str.",
            ) from None
    try:
        # A U array pads strings with zeros, which `tolist` removes.
        texts: list[Any] = array.reshape(-1).tolist()
    # a U array may contain numbers outside Unicode, for which numpy raises different errors
    except (ValueError, SystemError) as error:
        raise errors.InvalidArgument(
            "The array contains characters that are not valid Unicode.", cause=str(error)
        ) from None
    return texts


def _refused(texts: list[Any]) -> errors.InvalidArgument:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            return errors.InvalidArgument(
                f"Element {index} of a string tensor is {type(text).__name__}, not str.",
                cause="An array of dtype object is a tensor of strings to ONNX, and all its elements must be str.",
                fix="Convert the elements with str(), or give the array a numeric dtype if numbers are meant.",
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return errors.InvalidArgument(
                f"Element {index} of a string tensor cannot be written as UTF-8.",
                cause=str(error),
                fix="Remove lone surrogates; text.encode(errors='surrogateescape') restores the bytes.",
            )
    return errors.InvalidArgument("A string tensor contains text that cannot be written as UTF-8.")


def decode_strings(offsets: Array, blob: Array, count: int) -> list[str]:
    """Return the strings. Raise `ValueError` (or its subclass `UnicodeDecodeError`) if the buffers are invalid."""
    if offsets.nbytes != (count + 1) * _OFFSET.itemsize:
        raise ValueError(f"{offsets.nbytes} bytes of offsets do not fit {count} strings")
    ends = np.ndarray((count + 1,), _OFFSET, offsets)
    # Check the offsets with numpy: Python's slices would accept invalid offsets and return shorter strings.
    if ends[0] != 0 or ends[-1] != blob.nbytes or bool((ends[1:] < ends[:-1]).any()):
        raise ValueError("string offsets do not increase from 0 to the size of the text")
    edges = ends.tolist()
    pairs = itertools.pairwise(edges)
    # Decode each long string from a view, because copying the whole buffer takes as long as creating the strings.
    # For short strings, creating views takes longer than the copy.
    if blob.nbytes > _LONG_TEXT * count:
        view = blob.data
        return [str(view[start:end], "utf-8") for start, end in pairs]
    raw = bytes(blob)
    # In ASCII every character is one byte, so the offsets also apply to the decoded str. Slicing the str is
    # fastest.
    if raw.isascii():
        text = raw.decode("ascii")
        return [text[start:end] for start, end in pairs]
    return [raw[start:end].decode() for start, end in pairs]


Rows = list[dict[Any, Any]]

SCALAR_ELEMENTS = frozenset({ElementType.INT64, ElementType.FLOAT, ElementType.DOUBLE, ElementType.STRING})
KEY_ELEMENTS = frozenset({ElementType.INT64, ElementType.STRING})


def keys_array(keys: Iterable[Any], declared: ElementType | None) -> Array:
    """Return keys as an ``int64`` or object array of one dimension. `declared` is only used if there are no
    keys."""
    listed = list(keys)
    # There are few types but many keys, so check each type once.
    kinds = {_kind(cls) for cls in set(map(type, listed))}
    if kinds == {"int"}:
        return _integers(listed)
    if kinds == {"str"} or (not kinds and declared is not ElementType.INT64):
        return np.array(listed, dtype=object)
    if not kinds:
        return np.empty(0, np.int64)
    raise errors.InvalidArgument(
        f"The keys of a map must be all int or all str, not {_class_names(listed)}.",
        fix="Use the key type that the model declares: int64 or string.",
    )


def scalars_array(values: Iterable[Any], declared: ElementType | None) -> Array | None:
    """Return scalar values as an array of one dimension; ``None`` if the values are tensors or maps.

    `declared` resolves what Python's types leave open: ``float`` becomes `DOUBLE` unless `FLOAT` is declared. An
    ``int`` is converted to a float if there are floats among the values or a float type is declared, as in ONNX
    Runtime.
    """
    listed = list(values)
    kinds = {_kind(cls) for cls in set(map(type, listed))}
    if "other" in kinds:
        # All values are tensors or maps. A mixture with scalars raises an error below.
        if len(kinds) == 1:
            return None
    elif kinds == {"str"} or (not kinds and declared is ElementType.STRING):
        return np.array(listed, dtype=object)
    elif kinds <= {"int", "float"}:
        floats = declared in (ElementType.FLOAT, ElementType.DOUBLE)
        if kinds == {"int"} and not floats:
            return _integers(listed)
        if floats or kinds == {"float"}:
            return _floats(listed, np.float32 if declared is ElementType.FLOAT else np.float64)
        if not kinds:
            return np.empty(0, np.int64 if declared is ElementType.INT64 else np.float64)
    raise errors.InvalidArgument(
        f"The values of a map must be all int, all float or all str, not {_class_names(listed)}.",
        cause="ONNX Runtime accepts only these scalars in a map, all of the same type.",
        fix="Convert the values, for example with float().",
    )


def one_key_list(rows: Rows) -> bool:
    """Return whether all maps have the same keys in the same order, and at least one key."""
    first = list(rows[0])
    return bool(first) and all(list(row) == first for row in rows)


def flat_keys(rows: Rows) -> Iterable[Any]:
    return chain.from_iterable(rows)


def flat_values(rows: Rows) -> Iterable[Any]:
    return chain.from_iterable(row.values() for row in rows)


def _kind(cls: type[Any]) -> str:
    if issubclass(cls, str):
        return "str"
    # Check for bool before int, because bool is a subclass of int.
    if issubclass(cls, (bool, np.bool_)):
        return "bool"
    # In numpy, timedelta64 is a subclass of the signed integers.
    if issubclass(cls, (int, np.integer)) and not issubclass(cls, np.timedelta64):
        return "int"
    if issubclass(cls, float) or (issubclass(cls, np.floating) and np.dtype(cls).itemsize < 8):
        # `np.float64` is a subclass of float. `np.longdouble` is excluded, because it may not fit into a float.
        return "float"
    return "other"


def _integers(values: list[Any]) -> Array:
    try:
        # numpy lets an np.uint64 overflow silently, but raises an error for an int that is too large
        if set(map(type, values)) != {int}:
            values = [int(value) for value in values]
        return np.array(values, dtype=np.int64)
    except OverflowError as error:
        raise errors.InvalidArgument("An integer of a map does not fit int64.", cause=str(error)) from None


def _floats(values: list[Any], dtype: type[np.floating[Any]]) -> Array:
    try:
        with np.errstate(over="ignore"):  # a number that is too large becomes infinite, as in ONNX Runtime
            return np.array(values, dtype=np.float64).astype(dtype, copy=False)
    except OverflowError as error:
        raise errors.InvalidArgument("An integer of a map does not fit a float.", cause=str(error)) from None


def _class_names(values: list[Any]) -> str:
    return ", ".join(sorted({type(value).__name__ for value in values}))
