"""The messages and fields of an ONNX file, and the types of its inputs and outputs in ONNX Runtime's words.

``tensor(float)``, ``seq(tensor(int64))``: each message of a type, when it has been read, informs the one around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qnnbridge_host.model import onnx_schema as schema
from qnnbridge_host.model.protobuf import Message, MessageKind
from qnnbridge_protocol.element_types import ElementType

MODEL_IR_VERSION, MODEL_PRODUCER, MODEL_PRODUCER_VERSION, MODEL_DOMAIN, MODEL_VERSION = 1, 2, 3, 4, 5
MODEL_DOC = 6
MODEL = MessageKind("model", frozenset((1, 2, 3, 4, 5, MODEL_DOC)))
GRAPH_NODE, GRAPH_NAME, GRAPH_INPUT, GRAPH_OUTPUT = 1, 2, 11, 12
GRAPH_DOC = 10
GRAPH_INITIALIZER, GRAPH_SPARSE_INITIALIZER = 5, 15
GRAPH = MessageKind("graph", frozenset((GRAPH_NAME, GRAPH_DOC)))
FUNCTION_NAME, FUNCTION_DOMAIN = 1, 10
FUNCTION = MessageKind("function", frozenset((FUNCTION_NAME, FUNCTION_DOMAIN)))
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
NODE = MessageKind("node", frozenset((1, 2, 3, 4, 7)), frozenset((1, 2)))
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_TEXT, ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 1, 3, 4, 6, 11
ATTRIBUTE = MessageKind("attribute", frozenset((ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_TEXT)))
SPARSE_TENSOR = MessageKind("sparse tensor")
TENSOR_NAME, TENSOR_LOCATION = 8, 14
TENSOR = MessageKind("tensor", frozenset((TENSOR_NAME, TENSOR_LOCATION)))
ENTRY_KEY, ENTRY_VALUE = 1, 2
ENTRY = MessageKind("entry", frozenset((1, 2)))
OPSET_DOMAIN, OPSET_VERSION = 1, 2
OPSET = MessageKind("opset", frozenset((1, 2)))
VALUE_NAME = 1
VALUE = MessageKind("value", frozenset((VALUE_NAME,)))
TYPE = MessageKind("type")
TENSOR_TYPE_ELEMENT = 1
TENSOR_TYPE = MessageKind("tensor type", frozenset((1,)))
SPARSE_TYPE = MessageKind("sparse tensor type", frozenset((1,)))
SEQUENCE_TYPE = MessageKind("sequence type")
OPTIONAL_TYPE = MessageKind("optional type")
MAP_TYPE_KEY = 1
MAP_TYPE = MessageKind("map type", frozenset((1,)))
SHAPE = MessageKind("shape")
DIMENSION_VALUE, DIMENSION_NAME = 1, 2
DIMENSION = MessageKind("dimension", frozenset((1, 2)))

# ``TensorProto.DataLocation``.
EXTERNAL: Final = 1

# Fields (by number) that hold messages worth a look. The training graphs of a model are not run, so not here.
SCHEMA: Final[Mapping[MessageKind, Mapping[int, MessageKind]]] = {
    MODEL: {7: GRAPH, 8: OPSET, 14: ENTRY, 25: FUNCTION},
    GRAPH: {
        GRAPH_NODE: NODE,
        GRAPH_INITIALIZER: TENSOR,
        GRAPH_INPUT: VALUE,
        GRAPH_OUTPUT: VALUE,
        GRAPH_SPARSE_INITIALIZER: SPARSE_TENSOR,
    },
    FUNCTION: {7: NODE, 11: ATTRIBUTE},
    NODE: {NODE_ATTRIBUTE: ATTRIBUTE},
    ATTRIBUTE: {
        5: TENSOR,
        ATTRIBUTE_GRAPH: GRAPH,
        10: TENSOR,
        ATTRIBUTE_GRAPHS: GRAPH,
        22: SPARSE_TENSOR,
        23: SPARSE_TENSOR,
    },
    SPARSE_TENSOR: {1: TENSOR, 2: TENSOR},
    TENSOR: {13: ENTRY},
    ENTRY: {},
    OPSET: {},
    VALUE: {2: TYPE},
    TYPE: {1: TENSOR_TYPE, 4: SEQUENCE_TYPE, 5: MAP_TYPE, 8: SPARSE_TYPE, 9: OPTIONAL_TYPE},
    TENSOR_TYPE: {2: SHAPE},
    SPARSE_TYPE: {2: SHAPE},
    SEQUENCE_TYPE: {1: TYPE},
    OPTIONAL_TYPE: {1: TYPE},
    MAP_TYPE: {2: TYPE},
    SHAPE: {1: DIMENSION},
    DIMENSION: {},
}


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
        found = parent.notes.setdefault(_DIMENSIONS, [])
        if isinstance(found, list):
            found.append(dimension)
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
    found = message.notes.get(_DIMENSIONS)
    return tuple(found) if isinstance(found, list) else ()


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
