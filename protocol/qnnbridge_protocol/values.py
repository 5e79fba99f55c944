"""Values on the wire: what a model takes and gives, as a descriptor (msgpack) and buffers (raw bytes).

This is the module to import; it owns the grammar, the parts are in `codec` and `tensors`.

In Python a *value* is one of these, on both sides:

- a dense tensor: a numpy array where the dtype says the ONNX type (strings: dtype object, holding ``str``), else
  `Typed`;
- a sequence: a ``list`` of values; a map: a ``dict``; an empty optional: ``None`` (a full one is its content);
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

Values are nested at most 8 deep (a tensor counts as one level). Nothing follows the members that are listed.

Buffers
-------

Little-endian, C order, dense. The size follows from element type and shape and must be exact:
ceil(elements * bits / 8). A tensor of zero elements has a buffer of zero bytes, and dimensions other than the zero
one still count against the limit of 2**62 elements and bytes.

- bool: one byte, 0 or 1.
- bfloat16, float8: raw bits, two bytes or one.
- Below one byte (int4, uint4, float4e2m1, int2, uint2, float6): a stream of bits, the first element in the lowest
  bits of the first byte; for four bits this is "low nibble first", and it is ONNX's own packing. Bits of the last
  byte that belong to no element are zero.
- complex: real part, imaginary part.
- string: two buffers. ``offsets`` holds one ``uint32`` more than there are strings: 0, then the end of each string
  in ``text``, never falling; the last is the size of ``text``. Each string is valid UTF-8 by itself.
- sparse: ``indices`` is int64 of shape [n] (positions in the flattened tensor) or [n, rank]; ``columns`` is [n] and
  ``row_starts`` [rows + 1] (or [0] for n = 0). ``block`` has values [n, height, width] and int32 indices [2, n],
  which count blocks. All indices lie inside ``dense_shape``.

Maps come out with Python scalars, as ONNX Runtime's own do: ``int``, ``float`` (also for float32) and ``str``.
All bits of a tensor arrive unchanged, NaN payloads included. Anything that breaks a rule is a `ProtocolDesync`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from qnnbridge_protocol.codec import Decoder, Encoder, decode, decode_all
from qnnbridge_protocol.elements import ElementType, ValueType, element_of, from_ort_type, nbytes, numpy_dtype
from qnnbridge_protocol.tensors import Sparse, Typed

# What travels. The members of lists and dicts are values again (or scalars, in a dict).
Value = np.ndarray[Any, np.dtype[Any]] | Typed | Sparse | list[Any] | dict[Any, Any] | None


def equal_bits(left: Any, right: Any) -> bool:
    """Whether two values are the same to the last bit: structure, ONNX types, shapes, contents.

    NaNs are equal if their bits are, 0.0 and -0.0 differ. Byte order, memory layout and the order of a map's keys
    do not count; an ml_dtypes array equals its `Typed` form. Something that is no value raises
    `errors.InvalidArgument`.
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
    """Of every bit of the arrays; of all else (text, maps, sequences) by how it is written."""
    import numpy as np

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
