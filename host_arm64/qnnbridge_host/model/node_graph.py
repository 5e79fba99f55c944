"""Fills the index of a graph from a model file, without onnx.

For checks that must be quick and need no package: a session's creation looks for known-wrong operators with it.
Only the main graph is read; weights are skipped unread. Pure functions; any thread.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

from qnnbridge_host.model import onnx_schema as schema
from qnnbridge_host.model.graph_index import GraphIndex, GraphNode, GraphTensor, Shape
from qnnbridge_host.model.onnx_schema import close_type, type_of_value
from qnnbridge_host.model.protobuf import MAX_KEPT_VALUES, Message, MessageKind, signed, varint, walk
from qnnbridge_protocol.element_types import ElementType
from qnnbridge_protocol.records import NamedTuple

# Kept: dims, data_type, float_data, int32_data, int64_data, name, raw_data, data_location.
_INITIALIZER = MessageKind("initializer", frozenset((1, 2, 4, 5, 7, 8, 9, 14)), frozenset((1, 4, 5, 7)))
# Kept: name, f, i, s, floats, ints, strings.
_ATTRIBUTE = MessageKind("node attribute", frozenset((1, 2, 3, 4, 7, 8, 9)), frozenset((7, 8, 9)))
_GRAPH_VALUE_INFO: Final = 13
_SCHEMA: Final = {
    **schema.SCHEMA,
    schema.MODEL: {7: schema.GRAPH},
    schema.GRAPH: {
        schema.GRAPH_NODE: schema.NODE,
        schema.GRAPH_INITIALIZER: _INITIALIZER,
        schema.GRAPH_INPUT: schema.VALUE,
        schema.GRAPH_OUTPUT: schema.VALUE,
        _GRAPH_VALUE_INFO: schema.VALUE,
    },
    schema.NODE: {schema.NODE_ATTRIBUTE: _ATTRIBUTE},
    _ATTRIBUTE: {5: _INITIALIZER},
    _INITIALIZER: {},
}
# Constants of more elements are no axes, sizes, pads or scales.
_MOST_VALUES: Final = 64
# Codes of `struct` by TensorProto.DataType.
_RAW: Final = {1: "f", 2: "B", 3: "b", 6: "i", 7: "q", 9: "?", 10: "e", 11: "d"}
_OWN_DOMAINS: Final = ("", "ai.onnx")


class NodeEntry(NamedTuple):
    """A node as the file has it. op: with its domain if that is not ONNX's own."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


class FileGraph(GraphIndex):
    """The main graph of a model file. known: what is known of its tensors; `static_shapes` adds to it."""

    def __init__(self, entries: Sequence[NodeEntry], known: dict[str, GraphTensor]) -> None:
        self.entries = entries
        self.known = known

    def ops(self) -> Iterator[str]:
        return (entry.op for entry in self.entries)

    def _reads(self) -> Iterator[tuple[str, ...]]:
        return (entry.inputs for entry in self.entries)

    def _makes(self) -> Iterator[tuple[str, ...]]:
        return (entry.outputs for entry in self.entries)

    def _record(self, place: int) -> GraphNode:
        entry = self.entries[place]
        inputs, outputs = self.tensors(entry.inputs), self.tensors(entry.outputs)
        return GraphNode(place, entry.name, entry.op, inputs, outputs, entry.attributes)

    def about(self, name: str) -> GraphTensor:
        return self.known.get(name) or GraphTensor(name)


def read_graph(file: BinaryIO, size: int, sizes: Mapping[str, int] | None = None) -> FileGraph:
    """Reads the main graph of a model file.

    Args:
        file: open for reading bytes, seekable.
        size: of the file in bytes.
        sizes: of free dimensions by name, as a session fixes them.

    Raises:
        Garbage: it is no model.
        OSError: as reading does.
    """
    reader = _Reader(sizes or {})
    walk(file, size, schema.MODEL, _SCHEMA, reader)
    return reader.graph()


class _Reader:
    """The visitor; used for one walk."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.looked = 0
        self._sizes = sizes
        self._nodes: list[NodeEntry] = []
        self._types: dict[str, tuple[str, Shape | None]] = {}
        self._constants: dict[str, GraphTensor] = {}
        self._overridable: set[str] = set()
        self._ir_version = 0

    def wants(self, kind: MessageKind, parent: Message, window: bytes, at: int, length: int) -> bool:
        return True

    def close(self, message: Message) -> None:
        kind = message.kind
        if kind is schema.NODE:
            self._close_node(message)
        elif kind is _ATTRIBUTE:
            if message.parent is not None:
                message.parent.notes[message.text(schema.ATTRIBUTE_NAME) or ""] = _value_of(message)
        elif kind is _INITIALIZER:
            tensor = _constant_of(message)
            if message.parent is not None and message.parent.kind is _ATTRIBUTE:
                message.parent.notes["tensor"] = tensor
            else:
                self._constants[tensor.name] = tensor
        elif kind is schema.VALUE:
            name, (element, shape) = message.text(schema.VALUE_NAME) or "", type_of_value(message)
            self._types[name] = (element.removeprefix("tensor(").removesuffix(")"), self._fixed(shape))
            if message.field == schema.GRAPH_INPUT:
                self._overridable.add(name)
        elif kind is schema.MODEL:
            self._ir_version = message.number(schema.MODEL_IR_VERSION) or 0
        else:
            close_type(message)

    def _fixed(self, shape: Iterable[int | str | None] | None) -> Shape | None:
        if shape is None:
            return None
        return tuple(self._sizes.get(one) if isinstance(one, str) else one for one in shape)

    def _close_node(self, node: Message) -> None:
        op, domain = node.text(schema.NODE_TYPE) or "", node.text(schema.NODE_DOMAIN) or ""
        outputs = node.texts(schema.NODE_OUTPUT)
        attributes = {name: value for name, value in node.notes.items() if value is not None}
        if op == "Constant" and domain in _OWN_DOMAINS and outputs:
            self._constants[outputs[0]] = dataclasses.replace(_of_constant_node(attributes), name=outputs[0])
        full = op if domain in _OWN_DOMAINS else f"{domain}.{op}"
        name, inputs = node.text(schema.NODE_NAME) or "", node.texts(schema.NODE_INPUT)
        self._nodes.append(NodeEntry(full, name, inputs, outputs, attributes))

    def graph(self) -> FileGraph:
        known = {name: GraphTensor(name, *one) for name, one in self._types.items()}
        # Before IR version 4 each initializer had to be an input as well, so being one means nothing.
        fixed = self._ir_version < 4
        known |= {name: one for name, one in self._constants.items() if fixed or name not in self._overridable}
        return FileGraph(self._nodes, known)


def _value_of(attribute: Message) -> Any:
    """int, float, text, tensor, or a list of them; None for what is not read (graphs, lists that are too long)."""
    if "tensor" in attribute.notes:
        return attribute.notes["tensor"]
    values, lists = attribute.values, attribute.lists
    if any(len(one) > MAX_KEPT_VALUES for one in lists.values()):
        return None
    if 8 in lists:
        return _whole_numbers(lists[8])
    if 7 in lists:
        return [number for one in lists[7] if isinstance(one, bytes) for number in _floats(one)]
    if 9 in lists:
        return [one.decode("utf-8", "replace") for one in lists[9] if isinstance(one, bytes)]
    if 2 in values:
        single = values[2]
        return _floats(single)[0] if isinstance(single, bytes) and len(single) == 4 else None
    if 3 in values:
        return attribute.number(3)
    return attribute.text(4)


def _whole_numbers(values: Iterable[Any]) -> list[int]:
    """Of a repeated field, packed or not."""
    found: list[int] = []
    for value in values:
        if isinstance(value, int):
            found.append(signed(value))
        elif isinstance(value, bytes):
            at = 0
            while at < len(value):
                number, at = varint(value, at)
                found.append(signed(number))
    return found


def _floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data[: len(data) // 4 * 4]))


def _constant_of(tensor: Message) -> GraphTensor:
    element = tensor.number(2) or 0
    dims = tuple(_whole_numbers(tensor.lists.get(1, ())))
    try:
        kind = ElementType(element).text
    except ValueError:
        kind = ""
    return GraphTensor(tensor.text(8) or "", kind, dims, True, _values_of(tensor, element, dims))


def _values_of(tensor: Message, element: int, dims: tuple[int, ...]) -> tuple[Any, ...] | None:
    # Also the number of dimensions is limited: a hostile tensor has thousands.
    count = math.prod(dims) if len(dims) <= _MOST_VALUES else -1
    if not 0 <= count <= _MOST_VALUES or tensor.number(schema.TENSOR_LOCATION) == schema.EXTERNAL:
        return None
    raw = tensor.values.get(9)
    found: tuple[Any, ...] = ()
    if isinstance(raw, bytes) and element in _RAW:
        code = f"<{count}{_RAW[element]}"
        if struct.calcsize(code) == len(raw):
            found = struct.unpack(code, raw)
    elif 4 in tensor.lists:
        found = tuple(number for one in tensor.lists[4] if isinstance(one, bytes) for number in _floats(one))
    # int32_data has half floats (10) as their bits, not as numbers.
    elif 7 in tensor.lists or (5 in tensor.lists and element != 10):
        found = tuple(_whole_numbers(tensor.lists.get(7) or tensor.lists[5]))
    return found if len(found) == count else None


def _of_constant_node(attributes: Mapping[str, Any]) -> GraphTensor:
    value = attributes.get("value")
    if isinstance(value, GraphTensor):
        return value
    for name, kind in (
        ("value_int", "int64"),
        ("value_float", "float"),
        ("value_ints", "int64"),
        ("value_floats", "float"),
    ):
        if name in attributes:
            given = attributes[name]
            listed = isinstance(given, list)
            values = tuple(given) if listed else (given,)
            return GraphTensor("", kind, (len(values),) if listed else (), True, values)
    return GraphTensor("", constant=True)
