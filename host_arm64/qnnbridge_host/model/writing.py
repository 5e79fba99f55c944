"""Write the messages of an ONNX file without the package onnx: protobuf fields and tensors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from qnnbridge_host.model.protobuf import BYTES, FIXED32, VARINT

# Field numbers of TensorProto.
_DIMENSIONS, _TYPE, _TEXTS, _NAME, _RAW = 1, 2, 6, 8, 9
_NUMBER_BITS: Final = (1 << 64) - 1


def encoded_varint(number: int) -> bytes:
    """Encode a number as a protobuf varint; a negative number takes ten bytes."""
    number &= _NUMBER_BITS
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def header_of(field: int, length: int) -> bytes:
    """Return the tag and the length prefix of a field with `length` bytes."""
    return encoded_varint(field << 3 | BYTES) + encoded_varint(length)


def bytes_field(field: int, value: bytes | str) -> bytes:
    """Return a field that contains bytes, a string or an encoded message."""
    data = value.encode() if isinstance(value, str) else value
    return header_of(field, len(data)) + data


def number_field(field: int, value: int) -> bytes:
    """Return a field that contains an integer."""
    return encoded_varint(field << 3 | VARINT) + encoded_varint(value)


def float_field(field: int, value: float) -> bytes:
    """Return a field that contains a 32-bit float."""
    return encoded_varint(field << 3 | FIXED32) + struct.pack("<f", value)


def tensor_message(name: str, element: int, shape: Sequence[int], raw: bytes) -> bytes:
    """Return a TensorProto. raw: the elements in C order, little-endian."""
    sizes = b"".join(number_field(_DIMENSIONS, size) for size in shape)
    return sizes + number_field(_TYPE, element) + bytes_field(_NAME, name) + bytes_field(_RAW, raw)


def text_tensor_message(name: str, element: int, shape: Sequence[int], texts: Sequence[bytes]) -> bytes:
    """Return a TensorProto of strings."""
    sizes = b"".join(number_field(_DIMENSIONS, size) for size in shape)
    elements = b"".join(bytes_field(_TEXTS, text) for text in texts)
    return sizes + number_field(_TYPE, element) + elements + bytes_field(_NAME, name)


# Field and type number in an AttributeProto by Python type: first for a single value, then for a list.
_KINDS: Final = {int: (3, 2, 8, 7), float: (2, 1, 7, 6), str: (4, 3, 9, 8)}


def attribute_message(name: str, value: object) -> bytes:
    """Return an AttributeProto that contains a number, a string, or a list of either."""
    listed = isinstance(value, (list, tuple))
    values = value if isinstance(value, (list, tuple)) else [value]
    numbers = [one for one in values if isinstance(one, (int, float))]
    kind = float if any(isinstance(one, float) for one in numbers) else int if numbers else str
    field, single, repeated, several = _KINDS[kind]
    number = repeated if listed else field
    made = [bytes_field(1, name)]
    if kind is float:
        made += [float_field(number, float(one)) for one in numbers]
    elif kind is int:
        made += [number_field(number, int(one)) for one in numbers]
    else:
        made += [bytes_field(number, str(one)) for one in values]
    return b"".join([*made, number_field(20, several if listed else single)])
