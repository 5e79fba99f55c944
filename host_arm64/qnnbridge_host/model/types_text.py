"""The type of an input or output as ONNX Runtime writes it: `tensor(float)`, its shape, `seq(tensor(int64))`.

Each message of the type, when it has been read, tells the one around it. Pure functions.
"""

from __future__ import annotations

from typing import Final

from qnnbridge_host.model import onnx_schema as schema
from qnnbridge_host.model.protobuf import Message
from qnnbridge_protocol.element_types import ElementType

Shape = tuple[int | str | None, ...]

UNKNOWN: Final = "unknown"
_TYPE, _SHAPE, _DIMENSIONS = "type", "shape", "dimensions"


def close_type(message: Message) -> None:
    """A message inside of a type has been read to its end."""
    parent = message.parent
    if parent is None:
        return
    kind = message.kind
    if kind is schema.DIMENSION:
        size = message.number(schema.DIMENSION_VALUE)
        dimension: int | str | None = message.text(schema.DIMENSION_NAME) or None
        if size is not None:
            dimension = size if size >= 0 else None  # -1 is how some exporters say free
        parent.notes[_DIMENSIONS] = (*_dimensions(parent), dimension)
    elif kind is schema.SHAPE:
        parent.notes[_SHAPE] = _dimensions(message)
    elif kind is schema.TYPE:
        parent.notes |= message.notes
    else:
        parent.notes[_TYPE] = _text(message)
        if kind in (schema.TENSOR_TYPE, schema.SPARSE_TYPE):
            parent.notes[_SHAPE] = message.notes.get(_SHAPE)


def type_of_value(value: Message) -> tuple[str, Shape | None]:
    """Type and shape of an input or output; no shape where it has none or does not say."""
    shape = value.notes.get(_SHAPE)
    return str(value.notes.get(_TYPE, UNKNOWN)), shape if isinstance(shape, tuple) else None


def _dimensions(message: Message) -> Shape:
    found = message.notes.get(_DIMENSIONS, ())
    return found if isinstance(found, tuple) else ()


def _text(message: Message) -> str:
    inner = str(message.notes.get(_TYPE, UNKNOWN))
    if message.kind is schema.TENSOR_TYPE:
        return f"tensor({_element(message, schema.TENSOR_TYPE_ELEMENT)})"
    if message.kind is schema.SPARSE_TYPE:
        return f"sparse_tensor({_element(message, schema.TENSOR_TYPE_ELEMENT)})"
    if message.kind is schema.SEQUENCE_TYPE:
        return f"seq({inner})"
    if message.kind is schema.OPTIONAL_TYPE:
        return f"optional({inner})"
    return f"map({_element(message, schema.MAP_TYPE_KEY)},{inner})"


def _element(message: Message, field: int) -> str:
    number = message.number(field)
    try:
        return ElementType(number or 0).text
    except ValueError:
        return f"type {number}" if number else UNKNOWN
