"""Add the missing length of weights stored outside of the model file.

ONNX requires only the file's location: `offset` defaults to 0, and `length` follows from type and shape. ONNX
Runtime computes the length; QNN treats a missing length as 0, and fails or computes with other values. So a model
for QNN gets the missing entries. Neither ONNX Runtime nor QNN reads the other optional entries (`checksum`,
`basepath`).

Only the messages that lead to a tensor are decoded. The functions have no side effects and are thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qnnbridge_host.model import protobuf as schema
from qnnbridge_host.model.protobuf import EXTERNAL, SCHEMA, TENSOR, Garbage, MessageKind, varint
from qnnbridge_protocol.element_types import ElementType

# Session config entry: the folder of the weight files of a model given as bytes.
EXTERNAL_DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"

# Encoded key of the entry "location" (field 1, 8 bytes), which every external tensor has.
_ANY_ENTRY: Final = b"\x0a\x08location"
# Field numbers of TensorProto.
_DIMS, _TYPE, _ENTRIES = 1, 2, 13
_VARINT, _BYTES, _WIDTHS = 0, 2, {1: 8, 5: 4}
# Maximum depth of subgraphs that are changed. ONNX Runtime refuses a model with deeper subgraphs.
_MAX_DEPTH: Final = 100


def file_with_lengths(path: str) -> bytes | None:
    """Apply `with_lengths` to a file. Return ``None`` if nothing changes or the file cannot be read."""
    import mmap  # import it here, because a session without QNN does not need it

    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # A file without an entry "location" embeds all weights. Do not copy this file, which may be large.
            return None if data.find(_ANY_ENTRY) < 0 else with_lengths(data[:])
    except (OSError, ValueError):  # the file cannot be read, or is empty
        return None


def with_lengths(model: bytes) -> bytes | None:
    """Return the model with all missing length entries; ``None`` if no length is missing.

    Also return ``None`` for a damaged model, which ONNX Runtime reports.
    """
    if _ANY_ENTRY not in model:
        return None
    try:
        changed = _completed(schema.MODEL, model, 0)
    except (Garbage, IndexError, ValueError):
        return None
    return None if changed == model else changed


def _fields(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield each field of a message: (number, wire type, start of the field, start of its value, end of its
    value)."""
    at = 0
    while at < len(data):
        start = at
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        begin = at
        if wire == _VARINT:
            _, at = varint(data, at)
        elif wire == _BYTES:
            length, begin = varint(data, at)
            at = begin + length
        elif wire in _WIDTHS:
            at += _WIDTHS[wire]
        else:
            raise Garbage
        if at > len(data):
            raise Garbage
        yield number, wire, start, begin, at


def _completed(kind: MessageKind, data: bytes, depth: int) -> bytes:
    children = SCHEMA[kind]
    parts: list[bytes] = []
    kept = 0  # `parts` contains everything before this position
    for number, wire, start, begin, end in _fields(data):
        child = children.get(number) if wire == _BYTES else None
        if child is None or not SCHEMA[child] or depth == _MAX_DEPTH or _ANY_ENTRY not in data[begin:end]:
            continue
        value = data[begin:end]
        changed = _completed(child, value, depth + 1)
        if changed != value:
            parts += [data[kept:start], _field(number, changed)]
            kept = end
    whole = b"".join((*parts, data[kept:])) if parts else data
    return whole + _missing_entry(whole) if kind is TENSOR else whole


def _missing_entry(tensor: bytes) -> bytes:
    """Return the encoded length entry to append to a tensor, or b"" if the tensor has one."""
    dims: list[int] = []
    element = location = 0
    names: set[str] = set()
    for number, wire, _, begin, end in _fields(tensor):
        if number == _DIMS and wire == _BYTES:
            while begin < end:
                size, begin = varint(tensor, begin)
                dims.append(size)
        elif wire == _VARINT and number in (_DIMS, _TYPE, schema.TENSOR_LOCATION):
            value, _ = varint(tensor, begin)
            if number == _DIMS:
                dims.append(value)
            elif number == _TYPE:
                element = value
            else:
                location = value
        elif number == _ENTRIES and wire == _BYTES:
            names.update(_keys(tensor[begin:end]))
    if location != EXTERNAL or "length" in names or "location" not in names:
        return b""
    # import it here because it imports numpy, which session creation avoids
    from qnnbridge_protocol.elements import LAYOUTS, measure

    layout = LAYOUTS.get(ElementType(element))
    if layout is None:
        return b""
    _, size = measure(layout.bits, dims)
    return _field(_ENTRIES, _field(schema.ENTRY_KEY, b"length") + _field(schema.ENTRY_VALUE, str(size).encode()))


def _keys(entry: bytes) -> Iterator[str]:
    for number, wire, _, begin, end in _fields(entry):
        if number == schema.ENTRY_KEY and wire == _BYTES:
            yield entry[begin:end].decode(errors="replace")


def _field(number: int, value: bytes) -> bytes:
    return _number(number << 3 | _BYTES) + _number(len(value)) + value


def _number(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
