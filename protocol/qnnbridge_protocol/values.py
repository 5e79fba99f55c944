"""Values on the wire: inputs and outputs of a model, as a descriptor (msgpack) and buffers (raw bytes).

Other modules import this module; `tensors` contains the values that a plain numpy array cannot represent.

In Python a *value* is one of these, on both sides:

- a dense tensor: a numpy array if its dtype determines the ONNX type (strings: dtype object, with ``str``
  elements), else `Typed`;
- a sequence: a ``list`` of values; a map: a ``dict``; an empty optional: ``None``; a nonempty optional: its
  content;
- a sparse tensor: `Sparse`.

Descriptor
----------

Every descriptor is an array of msgpack whose first member is a tag of one letter::

    value    = tensor | none | sequence | map | dict | rows | varied | sparse
    tensor   = ["t", element, shape, buffer]              all element types but string
             | ["t", 8, shape, offsets, text]             string
    none     = ["n"]                                      an empty optional
    sequence = ["q", value...]
    map      = ["m", keys, scalars]                       one map of scalars
    dict     = ["d", keys, value...]                      one map of other values, in the order of the keys
    rows     = ["r", keys, table]                         sequence of maps that share one list of keys
    varied   = ["v", lengths, keys, scalars]              sequence of maps, one after the other
    sparse   = ["x", "coo" | "block", dense_shape, values, indices]
             | ["x", "csr", dense_shape, values, columns, row_starts]

    element  = integer            number of onnx.TensorProto.DataType, 1 to 28
    shape    = [integer...]       0 to 64 dimensions, none negative; [] is a scalar
    buffer, offsets, text = integer     number of a buffer of this message, from 0; each is used exactly once
    keys     = tensor             one dimension, int64 or string, all different
    scalars  = tensor             one dimension, int64, float, double or string
    table    = tensor             [rows, number of keys], of a scalar type; at least one key
    lengths  = tensor             one dimension, int64: how many of the keys and scalars belong to each map

Values are nested at most 8 deep (a tensor counts as one level). Other members are not allowed in a descriptor.

Buffers
-------

Little-endian, C order, dense. The size follows from element type and shape and must be exact:
ceil(elements * bits / 8). A tensor of zero elements has a buffer of zero bytes, but its nonzero dimensions must
still satisfy the limit of 2**62 elements and bytes.

- bool: one byte, 0 or 1.
- bfloat16, float8: raw bits, two bytes or one.
- Below one byte (int4, uint4, float4e2m1, int2, uint2, float6): a stream of bits, the first element in the lowest
  bits of the first byte; for four bits this is "low nibble first", and it is ONNX's own packing. Bits of the last
  byte that belong to no element are zero.
- complex: real part, imaginary part.
- string: two buffers. ``offsets`` has one ``uint32`` more than there are strings: 0, then the end of each string
  in ``text``. Offsets never decrease; the last offset is the size of ``text``. Each string is valid UTF-8 by
  itself.
- sparse: ``indices`` is int64 of shape [n] (positions in the flattened tensor) or [n, rank]; ``columns`` is [n] and
  ``row_starts`` [rows + 1] (or [0] for n = 0). ``block`` has values [n, height, width] and int32 indices [2, n],
  which count blocks. All indices lie inside ``dense_shape``.

Decoded maps contain Python scalars, like ONNX Runtime's: ``int``, ``float`` (also for float32) and ``str``. All
bits of a tensor arrive unchanged, NaN payloads included. A violation of a rule raises `ProtocolDesync`.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import (
    LAYOUTS,
    MAX_DEPTH,
    ElementType,
    Layout,
    ValueType,
    element_of,
    from_ort_type,
    measure,
    nbytes,
    numpy_dtype,
)
from qnnbridge_protocol.tensors import (
    KEY_ELEMENTS,
    SCALAR_ELEMENTS,
    Sparse,
    Typed,
    decode_strings,
    encode_strings,
    flat_keys,
    flat_values,
    keys_array,
    ml_dtype,
    one_key_list,
    scalars_array,
    unused_bits,
)

# Values that can be sent. The members of lists and dicts are again values (or scalars, in a dict).
Value = np.ndarray[Any, np.dtype[Any]] | Typed | Sparse | list[Any] | dict[Any, Any] | None

Array = np.ndarray[Any, np.dtype[Any]]
Descriptor = list[Any]

_UINT8 = np.dtype(np.uint8)
_NATIVE_IS_LITTLE = sys.byteorder == "little"
_PYTHON_SCALARS = (bool, int, float, complex, str)


class Encoder:
    """Convert the values of one message to descriptors and buffers. Used by one thread. Invariants:

    - every entry of `buffers` is a ``uint8`` array of one dimension, C order, little-endian;
    - a contiguous native array is not copied: its buffer *is* the caller's memory until the message has been sent;
    - nothing is converted silently. A declared type only applies to values without a type (lists, Python scalars,
      empty maps). An array of another dtype is sent unchanged; the later check of all inputs reports it.
    """

    __slots__ = ("buffers",)

    def __init__(self) -> None:
        self.buffers: list[Array] = []

    def add(self, value: Any, type: ValueType | None = None) -> Descriptor:  # noqa: A002 - the contract's name
        """Return the descriptor of `value`, and append its bytes to `buffers`.

        `type` is the type that the model declares, if known.

        Raises:
            errors.InvalidArgument: the value cannot be sent. The encoder is unusable afterwards, because `buffers`
                may contain a part of the value.
        """
        # Handle the usual case first. Subclasses take the general path, which converts them to plain arrays.
        if value.__class__ is np.ndarray:
            return self._dense(value)
        return self._value(value, type, 1)

    def _value(self, value: Any, declared: ValueType | None, depth: int) -> Descriptor:
        if depth > MAX_DEPTH:
            raise errors.InvalidArgument(f"The value is nested more than {MAX_DEPTH} deep.")
        if declared is not None and declared.kind == "optional":
            declared = declared.item
        if value is None:
            return ["n"]
        if isinstance(value, np.ndarray):
            return self._dense(np.asarray(value))
        # numpy's scalars have a dtype, so they are tensors without dimensions. Python's scalars have no dtype.
        if isinstance(value, np.generic):
            return self._dense(np.asarray(value))
        if isinstance(value, Typed):
            return self._typed(value)
        if isinstance(value, Sparse):
            return self._sparse(value)
        if isinstance(value, dict):
            return self._map(value, declared if declared is not None and declared.kind == "map" else None, depth)
        if declared is not None and declared.kind == "tensor" and declared.element is not None:
            if isinstance(value, (list, tuple, *_PYTHON_SCALARS)):
                return self._value(_converted(value, declared.element), None, depth)
        elif isinstance(value, (list, tuple)):
            return self._sequence(value, declared, depth)
        raise _unknown(value, declared)

    # --- tensors

    def _dense(self, array: Array) -> Descriptor:
        element = element_of(array.dtype)
        if element is None:
            raise errors.InvalidArgument(
                f"A numpy array of dtype {array.dtype} has no ONNX type.",
                fix="Convert it with astype() to the type that the model declares.",
            )
        if element is ElementType.STRING:
            offsets, blob = encode_strings(array)
            return ["t", 8, list(array.shape), self._put(offsets), self._put(blob)]
        # An array of ml_dtypes: convert it to its raw bytes, which are sent.
        if not LAYOUTS[element].named:
            return self._typed(Typed.of(array))
        raw = _bytes(array)
        if element is ElementType.BOOL and raw.size and raw.max() > 1:
            # numpy treats any nonzero byte as true, but on the wire only 1 is allowed
            raw = (raw != 0).view(_UINT8)
        return ["t", int(element), list(array.shape), self._put(raw)]

    def _typed(self, tensor: Typed) -> Descriptor:
        raw, layout = _bytes(tensor.data), LAYOUTS[tensor.element_type]
        if layout.packed and raw.size:
            unused = unused_bits(raw.size, layout.bits, tensor.size)
            # Bits that belong to no element are zero on the wire, so that equal tensors have equal bytes.
            if raw[-1] & unused:
                raw = raw.copy()
                raw[-1] &= ~unused & 0xFF
        return ["t", int(tensor.element_type), list(tensor.shape), self._put(raw)]

    def _sparse(self, tensor: Sparse) -> Descriptor:
        values = self._dense(tensor.values)
        return ["x", tensor.format, list(tensor.dense_shape), values, *map(self._dense, tensor.indices)]

    # --- containers

    def _sequence(self, items: list[Any] | tuple[Any, ...], declared: ValueType | None, depth: int) -> Descriptor:
        item_type = declared
        if declared is not None and declared.kind == "sequence":
            item_type = declared.item
        # Classical machine learning models return one map per row. Stored by columns, the maps are two tensors
        # instead of thousands.
        if items and all(isinstance(item, dict) for item in items):
            rows = self._rows(list(items), item_type)
            if rows is not None:
                return rows
        out: Descriptor = ["q"]
        for item in items:
            out.append(self._value(item, item_type, depth + 1))
        return out

    def _rows(self, rows: list[dict[Any, Any]], declared: ValueType | None) -> Descriptor | None:
        """Return the descriptor of a list of maps of scalars, stored by columns; ``None`` if the maps contain
        other values."""
        key, element = _map_elements(declared)
        scalars = scalars_array(flat_values(rows), element)
        if scalars is None:
            return None
        # If all rows have the same keys, as in results of classifiers, send the keys only once.
        if one_key_list(rows):
            keys = self._dense(keys_array(rows[0], key))
            return ["r", keys, self._dense(scalars.reshape(len(rows), -1))]
        keys = self._dense(keys_array(flat_keys(rows), key))
        lengths = self._dense(np.fromiter(map(len, rows), np.int64, len(rows)))
        return ["v", lengths, keys, self._dense(scalars)]

    def _map(self, value: dict[Any, Any], declared: ValueType | None, depth: int) -> Descriptor:
        key, element = _map_elements(declared)
        scalars = scalars_array(value.values(), element)
        keys = self._dense(keys_array(value, key))
        if scalars is not None:
            return ["m", keys, self._dense(scalars)]
        item_type = declared.item if declared is not None else None
        return ["d", keys, *(self._value(item, item_type, depth + 1) for item in value.values())]

    def _put(self, raw: Array) -> int:
        self.buffers.append(raw)
        return len(self.buffers) - 1


def _bytes(array: Array) -> Array:
    """Return the elements in C order and little-endian as bytes, without a copy if possible."""
    if array.dtype.isnative is not _NATIVE_IS_LITTLE and array.dtype.itemsize > 1:
        array = array.astype(array.dtype.newbyteorder("<"), order="C")
    elif not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    # A one-dimensional view of the same memory. `array.view` does not accept arrays without dimensions.
    raw: Array = np.ndarray((array.nbytes,), _UINT8, array)
    return raw


def _map_elements(declared: ValueType | None) -> tuple[ElementType | None, ElementType | None]:
    if declared is None or declared.kind != "map" or declared.item is None:
        return None, None
    return declared.key, declared.item.element


def _converted(value: Any, element: ElementType) -> Array:
    """Convert a list to a tensor like ONNX Runtime: with numpy's conversion to the declared type."""
    layout = LAYOUTS[element]
    dtype = layout.storage if layout.named else ml_dtype(element)
    if dtype is None:
        raise errors.InvalidArgument(
            f"A Python list cannot become a tensor of {element.text} here.",
            cause="numpy does not have this type, and the package ml_dtypes, which has it, is not installed.",
            fix="Install ml_dtypes, or pass qnnbridge's Typed with the raw bytes.",
        )
    try:
        return np.asarray(value, dtype=dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise errors.InvalidArgument(
            f"The {value.__class__.__name__} cannot become a tensor of {element.text}.",
            cause=str(error),
            fix="Pass a numpy array of the declared type.",
        ) from None


def _unknown(value: Any, declared: ValueType | None) -> errors.InvalidArgument:
    name = value.__class__.__name__
    if isinstance(value, _PYTHON_SCALARS):
        return errors.InvalidArgument(
            f"A plain Python {name} has no ONNX type.",
            cause="No tensor type is declared for it." if declared is None else f"The model declares {declared}.",
            fix="Pass a numpy scalar or array, for example numpy.float32(1.0).",
        )
    return errors.InvalidArgument(
        f"A value of class {name} cannot be sent.",
        cause="Values are numpy arrays, lists (sequences), dicts (maps), None (empty optional), Typed, Sparse.",
        fix="Convert it, for example with numpy.asarray(value).",
    )


_LAYOUTS_BY_NUMBER: dict[int, tuple[ElementType, Layout]] = {int(e): (e, layout) for e, layout in LAYOUTS.items()}


class Decoder:
    """Convert the descriptors and buffers of one message to values. Each buffer belongs to at most one value. Used
    by one thread.

    A descriptor comes from another process and is not trusted: tags, types, shapes, buffer numbers and sizes,
    offsets, indices and depth are checked before anything is allocated, and any violation raises `ProtocolDesync`.
    Allocations are bounded by a small multiple of the size of the buffers and the descriptor: numeric tensors are
    views, and only strings and map entries get separate memory.

    Numeric arrays are views of `buffers`, or copies if the address is not aligned for the type or `copy` is set.
    Views are writable if the buffers are.
    """

    __slots__ = ("_buffers", "_copy", "_taken")

    def __init__(self, buffers: Sequence[Array], *, copy: bool = False) -> None:
        self._buffers = buffers
        self._copy = copy
        # If two values could use the same buffer, a peer could describe gigabytes with one buffer.
        self._taken: set[int] = set()

    def value(self, descriptor: Any) -> Any:
        """Return the value of a descriptor. Raise `errors.ProtocolDesync` if the descriptor or a buffer violates
        the protocol."""
        try:
            return self._value(descriptor, 1)
        # numpy and the value classes raise these errors, too. During decoding, the cause is invalid data of the
        # peer.
        except (ValueError, OverflowError, errors.InvalidArgument) as error:
            cause = error.cause if isinstance(error, errors.InvalidArgument) else str(error)
            raise _desync(descriptor, cause or str(error)) from None

    def finish(self) -> None:
        """After the last value, check that each buffer belongs to a value. Raise `errors.ProtocolDesync`."""
        if len(self._taken) != len(self._buffers):
            raise errors.ProtocolDesync(
                "The message contains buffers that no value refers to.",
                details={"buffers": len(self._buffers), "used": len(self._taken)},
            )

    def _value(self, node: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"the value is nested more than {MAX_DEPTH} deep")
        # Compare exact classes: msgpack creates no others, and a bool must not be accepted as an int.
        if node.__class__ is not list or not node or node[0].__class__ is not str:
            raise ValueError("a descriptor must be a list that starts with a tag")
        tag = node[0]
        if tag == "t":
            return self._tensor(node)
        if tag == "n" and len(node) == 1:
            return None
        if tag == "q":
            return [self._value(item, depth + 1) for item in node[1:]]
        if tag == "m" and len(node) == 3:
            return _mapping(self._listed(node[1], KEY_ELEMENTS, 1), self._listed(node[2], SCALAR_ELEMENTS, 1))
        if tag == "d" and len(node) > 1:
            keys = self._listed(node[1], KEY_ELEMENTS, 1)
            return _mapping(keys, [self._value(item, depth + 1) for item in node[2:]])
        if tag == "r" and len(node) == 3:
            return self._rows(node[1], node[2])
        if tag == "v" and len(node) == 4:
            return self._varied_rows(node[1], node[2], node[3])
        if tag == "x" and len(node) > 3:
            return self._sparse(node)
        raise ValueError(f"no descriptor has the tag {tag!r:.20} and {len(node)} members")

    # --- tensors

    def _tensor(self, node: Any) -> Array | Typed:
        if node.__class__ is not list or len(node) < 4 or node[0] != "t" or node[1].__class__ is not int:
            raise ValueError("the descriptor does not describe a tensor")
        found = _LAYOUTS_BY_NUMBER.get(node[1])
        if found is None:
            raise ValueError(f"no element type has the number {node[1]}")
        element, layout = found
        shape = _shape(node[2])
        # Compute the size with Python's integers, which do not overflow. Nothing is allocated before the size has
        # been compared.
        count, size = measure(layout.bits, shape)
        if element is ElementType.STRING:
            if len(node) != 5:
                raise ValueError("a string tensor must have two buffers")
            texts = decode_strings(self._take(node[3]), self._take(node[4]), count)
            array = np.empty(count, object)
            array[:] = texts
            return array.reshape(shape)
        if len(node) != 4:
            raise ValueError("a tensor must have one buffer")
        buffer = self._take(node[3])
        if buffer.nbytes != size:
            raise ValueError(f"{element.text} of shape {list(shape)} needs {size} bytes, not {buffer.nbytes}")
        if layout.packed:
            data = self._array((size,), layout.storage, buffer)
            if size and data[-1] & unused_bits(size, layout.bits, count):
                raise ValueError("bits that belong to no element are not zero")
        else:
            data = self._array(shape, layout.storage, buffer)
        if not layout.named:
            return Typed(data, element, shape)
        if element is ElementType.BOOL and size and data.view(np.uint8).max() > 1:
            raise ValueError("a bool is neither 0 nor 1")
        return data

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any], buffer: Array) -> Array:
        array: Array = np.ndarray(shape, dtype, buffer)
        # The body is aligned to 64 bytes on the wire, but small buffers share a block and may be unaligned.
        return array.copy() if self._copy or not array.flags.aligned else array

    def _take(self, index: Any) -> Array:
        if index.__class__ is not int or not 0 <= index < len(self._buffers):
            raise ValueError(f"there is no buffer {_brief(index)}")
        if index in self._taken:
            raise ValueError(f"buffer {index} is used twice")
        self._taken.add(index)
        return self._buffers[index]

    def _sparse(self, node: list[Any]) -> Sparse:
        parts = [self._tensor(part) for part in node[3:]]
        if node[1].__class__ is not str or any(part.__class__ is not np.ndarray for part in parts):
            raise ValueError("the descriptor does not describe a sparse tensor")
        return Sparse(parts[0], _shape(node[2]), node[1], tuple(parts[1:]))  # type: ignore[arg-type]

    # --- maps

    def _rows(self, key_node: Any, value_node: Any) -> list[dict[Any, Any]]:
        keys = self._listed(key_node, KEY_ELEMENTS, 1)
        if not keys:
            # Rows without keys take no bytes, so a small message could describe any number of them.
            raise ValueError("the rows have no keys")
        rows = self._listed(value_node, SCALAR_ELEMENTS, 2)
        if rows and len(rows[0]) != len(keys):
            raise ValueError(f"rows of {len(rows[0])} values do not fit {len(keys)} keys")
        _mapping(keys, keys)
        return [dict(zip(keys, row, strict=True)) for row in rows]

    def _varied_rows(self, length_node: Any, key_node: Any, value_node: Any) -> list[dict[Any, Any]]:
        lengths = self._listed(length_node, frozenset({ElementType.INT64}), 1)
        keys = self._listed(key_node, KEY_ELEMENTS, 1)
        values = self._listed(value_node, SCALAR_ELEMENTS, 1)
        if any(length < 0 for length in lengths) or not sum(lengths) == len(keys) == len(values):
            raise ValueError("row lengths, keys and values do not fit together")
        rows, start = [], 0
        for length in lengths:
            end = start + length
            rows.append(_mapping(keys[start:end], values[start:end]))
            start = end
        return rows

    def _listed(self, node: Any, allowed: frozenset[ElementType], rank: int) -> list[Any]:
        """Return a tensor as nested lists of Python scalars. Raise `ValueError` for other types or another rank."""
        if node.__class__ is not list or len(node) < 3 or node[1].__class__ is not int or node[1] not in allowed:
            raise ValueError("keys and values of maps cannot have this type")
        if node[2].__class__ is not list or len(node[2]) != rank:
            raise ValueError(f"the tensor does not have the rank {rank}")
        # Maps contain Python scalars, as in onnxruntime.
        listed: list[Any] = self._tensor(node).tolist()  # type: ignore[union-attr]  # none of these is Typed
        return listed


def decode(descriptor: Any, buffers: Sequence[Array], *, copy: bool = False) -> Any:
    """Return the only value of a message. For several values in the same buffers, use one `Decoder`."""
    return Decoder(buffers, copy=copy).value(descriptor)


def decode_all(descriptors: Iterable[Any], buffers: Sequence[Array]) -> list[Any]:
    """Return all values of one message, in which each buffer belongs to one value."""
    decoder = Decoder(buffers)
    values = [decoder.value(descriptor) for descriptor in descriptors]
    decoder.finish()
    return values


def _shape(node: Any) -> tuple[int, ...]:
    if node.__class__ is not list:
        raise ValueError("a shape must be a list")
    for dim in node:
        if dim.__class__ is not int:
            raise ValueError("a dimension must be an integer")
    return tuple(node)


def _mapping(keys: list[Any], values: list[Any]) -> dict[Any, Any]:
    if len(values) != len(keys):
        raise ValueError(f"{len(values)} values do not fit {len(keys)} keys")
    mapping = dict(zip(keys, values, strict=True))
    if len(mapping) != len(keys):
        raise ValueError("a key occurs twice")
    return mapping


def _desync(descriptor: Any, cause: str) -> errors.ProtocolDesync:
    return errors.ProtocolDesync(
        "The other side sent a value that the protocol does not allow.",
        cause=cause,
        fix="Both sides must run the same release of qnnbridge; if they do, please report this.",
        evidence=[f"descriptor: {_head(descriptor)}"],
    )


def _head(descriptor: Any) -> str:
    """Return the start of an arbitrary descriptor as text."""
    if descriptor.__class__ is not list:
        return _brief(descriptor)
    inner = ", ".join(map(_brief, descriptor[:8]))
    return f"[{inner}{', ...' if len(descriptor) > 8 else ''}]"


def _brief(item: Any) -> str:
    """Return a short text for untrusted data. For containers, long texts and huge numbers, show only the type."""
    if item.__class__ is int and item.bit_length() <= 64:
        return str(item)
    if item.__class__ is str:
        return repr(item[:40])
    return f"<{item.__class__.__name__}>"


def equal_bits(left: Any, right: Any) -> bool:
    """Return whether two values are equal in every bit: structure, ONNX types, shapes, contents.

    NaNs are equal if their bits are equal; 0.0 and -0.0 differ. Byte order, memory layout and the order of a map's
    keys are ignored; an ml_dtypes array equals the corresponding `Typed`.

    Raises:
        errors.InvalidArgument: an argument is not a value.
    """
    if isinstance(left, dict) and isinstance(right, dict):
        return (
            left.keys() == right.keys()
            and {type(key) for key in left} == {type(key) for key in right}
            and all(equal_bits(item, right[key]) for key, item in left.items())
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal_bits, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return type(left) is type(right) and struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, (int, str)) or isinstance(right, (int, str)):
        return type(left) is type(right) and bool(left == right)
    if isinstance(left, (list, dict)) or isinstance(right, (list, dict)):
        return False
    first, second = Encoder(), Encoder()
    return first.add(left) == second.add(right) and all(map(np.array_equal, first.buffers, second.buffers))


def check_sum(results: Sequence[Any]) -> int:
    """Return a checksum over every bit of arrays, and over the text representation of all other results (text,
    maps, sequences)."""
    number = 0
    for result in results:
        if isinstance(result, np.ndarray) and result.dtype != object:
            data = np.ascontiguousarray(result).tobytes()
        else:
            data = repr(result.tolist() if isinstance(result, np.ndarray) else result).encode()
        number = zlib.crc32(data, number)
    return number


__all__ = [
    "Decoder",
    "ElementType",
    "Encoder",
    "Sparse",
    "Typed",
    "Value",
    "ValueType",
    "decode",
    "decode_all",
    "element_of",
    "equal_bits",
    "from_ort_type",
    "nbytes",
    "numpy_dtype",
]
