"""Index of a model's main graph: nodes with attributes, producer and readers of each tensor, and known tensor
facts.

`FileGraph` is the index of a file; `qnnbridge_host.graph.model_index` contains the index of a `ModelProto`. All
rules about operators use `GraphNode` and `GraphTensor`, the records of these indexes. Nodes inside of If, Loop and
Scan belong to the node that contains them.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import io
import math
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, Protocol, TypeVar, cast

from qnnbridge_host.model import protobuf as schema
from qnnbridge_host.model.protobuf import (
    MAX_KEPT_VALUES,
    Garbage,
    Message,
    MessageKind,
    close_type,
    signed,
    type_of_value,
    varint,
    walk,
)
from qnnbridge_protocol.element_types import text_of
from qnnbridge_protocol.records import NamedTuple

Shape = tuple[int | None, ...]
Sizes = tuple[int, ...]


class Unknown(Exception):
    """Raised if a shape or a value cannot be determined from the model without running it."""


# Exceptions of rules about nodes: a malformed node can make Python raise any of these.
DOES_NOT_FOLLOW: Final = (Unknown, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)


class OperatorRule(Protocol):
    """A check whether QNN computes a node wrong, refuses it or fails on it. Returns evidence or an empty result."""

    @property
    def operators(self) -> Collection[str] | None:
        """Operators that the rule applies to; None for all."""


AnyRule = TypeVar("AnyRule", bound=OperatorRule)


def rules_about(rules: Iterable[AnyRule], op: str) -> tuple[AnyRule, ...]:
    """Return the rules that apply to an operator, in their order."""
    return tuple(rule for rule in rules if rule.operators is None or op in rule.operators)


@dataclasses.dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of the graph.

    Args:
        type: element type such as `float`; "" if it is unknown.
        shape: None if the rank is unknown; in the shape, None for an axis without a fixed size.
        values: elements of a small constant in memory order; also small tensors computed from shapes.
    """

    name: str
    type: str = ""
    shape: Shape | None = None
    constant: bool = False
    values: tuple[Any, ...] | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def fixed(self) -> Sizes | None:
        """The shape if every axis has a size, else None."""
        if self.shape is None or None in self.shape:
            return None
        return cast("Sizes", self.shape)

    @property
    def elements(self) -> int | None:
        shape = self.fixed
        return None if shape is None else math.prod(shape)

    @property
    def is_empty(self) -> bool:
        return self.shape is not None and 0 in self.shape


def sizes_of(tensor: GraphTensor) -> Sizes:
    """Return the shape of a tensor. Raise `Unknown` if an axis has no fixed size."""
    sizes = tensor.fixed
    if sizes is None:
        raise Unknown
    return sizes


# Do not use slots, because `cached_property` stores values in `__dict__`, bypassing the `__setattr__` of a frozen
# class.
@dataclasses.dataclass(frozen=True, eq=False)
class GraphNode:
    """A node of the main graph.

    Args:
        op: the operator, such as `Conv`, with the domain unless it is ONNX's own.
        inputs: None for an omitted input.
        inner_ops: operators inside of the node, without duplicates.
    """

    index: int
    name: str
    op: str
    inputs: tuple[GraphTensor | None, ...]
    outputs: tuple[GraphTensor | None, ...]
    attributes: Mapping[str, Any]
    inner_ops: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name of the node in messages."""
        return self.name or (self.made[0].name if self.made else f"#{self.index}")

    # Cached: the rules read `given` and `made` dozens of times for each node.
    @functools.cached_property
    def given(self) -> tuple[GraphTensor, ...]:
        return tuple(tensor for tensor in self.inputs if tensor is not None)

    @functools.cached_property
    def made(self) -> tuple[GraphTensor, ...]:
        return tuple(tensor for tensor in self.outputs if tensor is not None)

    def input(self, number: int) -> GraphTensor | None:
        return self.inputs[number] if number < len(self.inputs) else None

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)


class GraphIndex(abc.ABC):
    """A graph, indexed by tensor name and node position. Node records are created on first access."""

    @abc.abstractmethod
    def ops(self) -> Iterable[str]:
        """Return the operator of each node in file order."""

    @abc.abstractmethod
    def _reads(self) -> Iterable[Iterable[str]]:
        """Return the inputs of each node."""

    @abc.abstractmethod
    def _makes(self) -> Iterable[Iterable[str]]:
        """Return the outputs of each node."""

    @abc.abstractmethod
    def _record(self, place: int) -> GraphNode: ...

    @abc.abstractmethod
    def about(self, name: str) -> GraphTensor:
        """Return the known properties of a tensor."""

    @property
    @abc.abstractmethod
    def outputs(self) -> Collection[str]:
        """Outputs of the model, in their order."""

    @functools.cached_property
    def operators(self) -> frozenset[str]:
        """Operators of all nodes, with their domains."""
        return frozenset(self.ops())

    @functools.cached_property
    def makers(self) -> dict[str, int]:
        """Position of the node that computes each tensor."""
        # If several nodes of a damaged model compute the same tensor, record the last of these nodes.
        return {name: place for place, names in enumerate(self._makes()) for name in names if name}

    @functools.cached_property
    def users(self) -> dict[str, list[int]]:
        """Positions of the nodes that read each tensor, without duplicates."""
        found: dict[str, list[int]] = {}
        for place, names in enumerate(self._reads()):
            for name in dict.fromkeys(names):
                found.setdefault(name, []).append(place)
        return found

    @functools.cached_property
    def _records(self) -> dict[int, GraphNode]:
        return {}

    def node(self, place: int) -> GraphNode:
        """Return the record of the node at a position."""
        found = self._records.get(place)
        if found is None:
            found = self._records[place] = self._record(place)
        return found

    @functools.cached_property
    def nodes(self) -> tuple[GraphNode, ...]:
        """All records in file order."""
        return tuple(self.node(place) for place, _ in enumerate(self.ops()))

    def origin(self, name: str) -> GraphNode | None:
        """Return the node that computes a tensor; None for inputs and initializers."""
        place = self.makers.get(name)
        return None if place is None else self.node(place)

    def readers(self, name: str) -> tuple[GraphNode, ...]:
        """Return the nodes that read a tensor, without duplicates."""
        return tuple(map(self.node, self.users.get(name, ())))

    @functools.cached_property
    def links(self) -> tuple[list[tuple[int, ...]], list[list[int]]]:
        """Neighbours of each node by position: the nodes that compute its inputs, and the nodes that read its
        results, without duplicates."""
        makers = self.makers
        before = [tuple(dict.fromkeys(makers[name] for name in names if name in makers)) for names in self._reads()]
        behind: list[list[int]] = [[] for _ in before]
        for place, found in enumerate(before):
            for maker in found:
                behind[maker].append(place)
        return before, behind

    def tensors(self, names: Sequence[str]) -> tuple[GraphTensor | None, ...]:
        """Return the tensors of a node's inputs or outputs; None for an omitted tensor, whose name is ""."""
        return tuple([self.about(name) if name else None for name in names])


# --- the index of a file, without onnx -------------------------------------------------------------------
# Session creation searches for known-wrong operators with this index, so it must be fast and work without the
# package `onnx`. The index includes the nodes of both branches of an If, because QNN receives the whole If, and of
# function bodies, because ONNX Runtime inlines them; the nodes are inserted before the If or the call. Bodies of
# loops are omitted, because they stay on the CPU. Weights are skipped without reading.

# Kept fields: dims, data_type, float_data, int32_data, int64_data, name, raw_data, data_location.
_INITIALIZER = MessageKind("initializer", frozenset((1, 2, 4, 5, 7, 8, 9, 14)), frozenset((1, 4, 5, 7)))
# Kept fields: name, f, i, s, floats, ints, strings, ref_attr_name.
_ATTRIBUTE = MessageKind("node attribute", frozenset((1, 2, 3, 4, 7, 8, 9, 21)), frozenset((7, 8, 9)))
# Kept fields: name, input, output, domain.
_FUNCTION = MessageKind("function", frozenset((1, 4, 5, 10)), frozenset((4, 5)))
_GRAPH_VALUE_INFO: Final = 13
_SCHEMA: Final = {
    **schema.SCHEMA,
    schema.MODEL: {7: schema.GRAPH, 25: _FUNCTION},
    _FUNCTION: {7: schema.NODE, 11: _ATTRIBUTE},
    schema.GRAPH: {
        schema.GRAPH_NODE: schema.NODE,
        schema.GRAPH_INITIALIZER: _INITIALIZER,
        schema.GRAPH_INPUT: schema.VALUE,
        schema.GRAPH_OUTPUT: schema.VALUE,
        _GRAPH_VALUE_INFO: schema.VALUE,
    },
    schema.NODE: {schema.NODE_ATTRIBUTE: _ATTRIBUTE},
    # An attribute may contain the tensor of a Constant or a branch of an If.
    _ATTRIBUTE: {5: _INITIALIZER, schema.ATTRIBUTE_GRAPH: schema.GRAPH},
    _INITIALIZER: {},
}
# Maximum number of elements whose values are kept: axes, sizes, pads and scales have fewer.
_MOST_VALUES: Final = 64
# Types whose int32_data contains one number per element. For other types int32_data contains bit patterns, as for
# float16, or several elements in one number.
_OF_INT32: Final = frozenset((2, 3, 4, 5, 6, 9))
# `struct` codes by TensorProto.DataType. `struct` lacks bfloat16; values of other types stay unknown.
_RAW: Final = {1: "f", 2: "B", 3: "b", 6: "i", 7: "q", 9: "?", 10: "e", 11: "d"}
_OWN_DOMAINS: Final = ("", "ai.onnx")


class NodeEntry(NamedTuple):
    """A node of the file. op: the operator, with the domain unless it is ONNX's own.

    inside: the branch or function that contains the node; "" in the main graph. top: position in the main graph of
    the node, or of the node that contains it. always_taken: whether the node always runs: it is in no function, and
    each enclosing If has a known condition that selects the node's branch.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    inside: str = ""
    top: int = 0
    always_taken: bool = True


class _Reference(NamedTuple):
    """An attribute in a function body that refers to an attribute of the call."""

    name: str


class _Body:
    """Contents of a graph or function. Inputs, outputs and defaults of attributes are stored for functions only."""

    def __init__(self) -> None:
        self.nodes: list[NodeEntry] = []
        self.types: dict[str, tuple[str, Shape | None]] = {}
        self.constants: dict[str, GraphTensor] = {}
        # Inputs of the model. A caller may set each of them, even if an initializer is its default.
        self.overridable: set[str] = set()
        # Outputs of the model, in their order.
        self.shown: dict[str, None] = {}
        self.inputs: tuple[str, ...] = ()
        self.outputs: tuple[str, ...] = ()
        self.defaults: Mapping[str, Any] = {}


class FileGraph(GraphIndex):
    """Main graph of a model file. known: facts of its tensors, completed by `static_shapes`."""

    def __init__(
        self, entries: Sequence[NodeEntry], known: dict[str, GraphTensor], outputs: Collection[str] = ()
    ) -> None:
        self.entries = entries
        self.known = known
        self._outputs = outputs

    @property
    def outputs(self) -> Collection[str]:
        return self._outputs

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
    """Read the main graph of a model file.

    Args:
        file: seekable file, opened for reading in binary mode.
        size: size of the file in bytes.
        sizes: sizes of free dimensions by name, as the session sets them.

    Raises:
        Garbage: the file is not a model.
        OSError: reading failed.
    """
    reader = _Reader(sizes or {})
    walk(file, size, schema.MODEL, _SCHEMA, reader)
    return reader.graph()


def read_model(source: str | os.PathLike[str] | bytes, sizes: Mapping[str, int] | None = None) -> FileGraph | None:
    """Return the graph of a model file, or of a model's bytes; None if it is not a model or cannot be read."""
    with contextlib.suppress(Garbage, OSError):
        if isinstance(source, bytes):
            return read_graph(io.BytesIO(source), len(source), sizes)
        # Open the file without a buffer, because the protobuf reader reads large blocks.
        with open(source, "rb", buffering=0) as file:
            return read_graph(file, os.fstat(file.fileno()).st_size, sizes)
    return None


# Key in `Message.notes` for the contents of a graph or function. Attribute names, the other keys, have no blank.
_BODY: Final = " body"
# Maximum number of nodes from branches and functions. A chain of thirty functions, each of which calls the next
# twice, would otherwise have a billion nodes.
_MOST_WRITTEN_OUT: Final = 20_000


class _Reader:
    """Visitor that processes the messages of one pass through the file."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.looked = 0
        self._sizes = sizes
        self._main = _Body()
        self._functions: dict[str, _Body] = {}
        self._ir_version = 0
        self._entries: list[NodeEntry] = []
        self._known: dict[str, GraphTensor] = {}
        self._written_out = 0

    def wants(self, kind: MessageKind, parent: Message, window: bytes, at: int, length: int) -> bool:
        return True

    def close(self, message: Message) -> None:
        # Child messages are closed before their parents: an attribute stores its value in the notes of its node.
        kind, parent = message.kind, message.parent
        if kind is schema.NODE:
            self._close_node(message)
        elif kind is _ATTRIBUTE:
            if parent is not None:
                parent.notes[message.text(schema.ATTRIBUTE_NAME) or ""] = _value_of(message)
        elif kind is _INITIALIZER:
            tensor = _constant_of(message)
            if parent is not None and parent.kind is _ATTRIBUTE:
                parent.notes["tensor"] = tensor
            else:
                _body_of(parent).constants[tensor.name] = tensor
        elif kind is schema.VALUE:
            name, (element, shape) = message.text(schema.VALUE_NAME) or "", type_of_value(message)
            # An output may be declared without a type; its type then follows from the node that computes it.
            known = "" if element == schema.UNKNOWN else element.removeprefix("tensor(").removesuffix(")")
            _body_of(parent).types[name] = (known, self._fixed(shape))
            if message.field == schema.GRAPH_INPUT:
                _body_of(parent).overridable.add(name)
            elif message.field == schema.GRAPH_OUTPUT:
                _body_of(parent).shown[name] = None
        elif kind is schema.GRAPH and parent is not None:
            parent.notes[_BODY] = _body_of(message)
        elif kind is _FUNCTION:
            self._close_function(message)
        elif kind is schema.MODEL:
            self._main = _body_of(message)
            self._ir_version = message.number(schema.MODEL_IR_VERSION) or 0
        else:
            close_type(message)

    def _fixed(self, shape: Iterable[int | str | None] | None) -> Shape | None:
        if shape is None:
            return None
        return tuple(self._sizes.get(one) if isinstance(one, str) else one for one in shape)

    def _close_node(self, node: Message) -> None:
        op, domain = node.text(schema.NODE_TYPE) or "", node.text(schema.NODE_DOMAIN) or ""
        full = op if domain in _OWN_DOMAINS else f"{domain}.{op}"
        attributes = {
            name: value
            for name, value in node.notes.items()
            if value is not None and (full == "If" or not isinstance(value, _Body))
        }
        name, inputs = node.text(schema.NODE_NAME) or "", node.texts(schema.NODE_INPUT)
        entry = NodeEntry(full, name, inputs, node.texts(schema.NODE_OUTPUT), attributes)
        _body_of(node.parent).nodes.append(entry)

    def _close_function(self, function: Message) -> None:
        name, domain = function.text(schema.FUNCTION_NAME), function.text(schema.FUNCTION_DOMAIN) or ""
        body = _body_of(function)
        # field numbers: input 4, output 5
        body.inputs, body.outputs = function.texts(4), function.texts(5)
        body.defaults = {name: value for name, value in function.notes.items() if not isinstance(value, _Body)}
        self._functions[f"{name}" if domain in _OWN_DOMAINS else f"{domain}.{name}"] = body

    def graph(self) -> FileGraph:
        known = {name: GraphTensor(name, *one) for name, one in self._main.types.items()}
        # Before IR version 4 each initializer had to be an input as well, so all initializers are constant.
        fixed = self._ir_version < 4
        # The exact shape of an initializer replaces the declared shape of its input, which may have free axes.
        constants = self._main.constants
        known |= {name: one for name, one in constants.items() if fixed or name not in self._main.overridable}
        self._known = known
        for place, entry in enumerate(self._main.nodes):
            self._add(entry._replace(top=place), 0)
        return FileGraph(self._entries, known, self._main.shown.keys())

    def _add(self, entry: NodeEntry, depth: int) -> None:
        """Add a node after the nodes inside of it. The nodes of a function replace its call."""
        body = self._functions.get(entry.op)
        if body is not None and depth < _MOST_DEPTH and self._written_out < _MOST_WRITTEN_OUT:
            names = dict(zip(body.inputs, entry.inputs, strict=False))
            names = {
                **dict.fromkeys(body.inputs, ""),
                **names,
                **dict(zip(body.outputs, entry.outputs, strict=False)),
            }
            given = {**body.defaults, **entry.attributes}
            owner = entry._replace(inside=entry.inside or f"the function {entry.op}", always_taken=False)
            self._write_out(body, names, given, owner, depth)
            return
        condition = self._known.get(entry.inputs[0]) if entry.inputs else None
        known = condition.values if condition is not None else None
        inside = entry.inside or f"a branch of the If {entry.name}".rstrip()
        owner = entry._replace(inside=inside, always_taken=entry.always_taken and bool(known))
        for name, branch in entry.attributes.items():
            taken = not known or name.startswith("then") == bool(known[0])
            if isinstance(branch, _Body) and taken and depth < _MOST_DEPTH:
                self._write_out(branch, {}, {}, owner, depth)
        # Record the value under the result's name. Keep the node, because positions count all nodes of the file.
        if entry.op == "Constant" and entry.outputs:
            made = entry.outputs[0]
            self._known[made] = dataclasses.replace(_of_constant_node(entry.attributes), name=made)
        self._entries.append(entry)

    def _write_out(
        self, body: _Body, names: dict[str, str], given: Mapping[str, Any], owner: NodeEntry, depth: int
    ) -> None:
        self._written_out += len(body.nodes)
        if self._written_out > _MOST_WRITTEN_OUT:
            return
        prefix = f"inside {self._written_out}/"
        own = [name for node in body.nodes for name in node.outputs if name] + list(body.constants)
        names = {**{name: prefix + name for name in own}, **names}
        self._known |= {
            names[name]: GraphTensor(names[name], *one)
            for name, one in body.types.items()
            if name in names and names[name] not in self._known
        }
        self._known |= {
            names[key]: dataclasses.replace(one, name=names[key]) for key, one in body.constants.items()
        }
        for node in body.nodes:
            inputs, outputs = (
                tuple(names.get(name, name) for name in some) for some in (node.inputs, node.outputs)
            )
            attributes = {
                name: given.get(value.name) if isinstance(value, _Reference) else value
                for name, value in node.attributes.items()
            }
            attributes = {name: value for name, value in attributes.items() if value is not None}
            inner = owner._replace(
                op=node.op, name=node.name, inputs=inputs, outputs=outputs, attributes=attributes
            )
            self._add(inner, depth + 1)


# Limit on nested branches and functions. It refuses no usable model: ONNX Runtime fails at much smaller depths.
_MOST_DEPTH: Final = 50


def _body_of(message: Message | None) -> _Body:
    """Return the body of the graph or function that is being read."""
    if message is None:
        return _Body()
    # If the model contains a second graph, protobuf merges it into the first, so both share one body.
    if message.kind is schema.GRAPH and message.parent is not None and message.parent.kind is schema.MODEL:
        message = message.parent
    found = message.notes.get(_BODY)
    if not isinstance(found, _Body):
        found = message.notes[_BODY] = _Body()
    return found


def _value_of(attribute: Message) -> Any:
    """Return the value as int, float, string, tensor or list; None for a graph or a list that is too long."""
    for inner in ("tensor", _BODY):
        if inner in attribute.notes:
            return attribute.notes[inner]
    values, lists = attribute.values, attribute.lists
    if 21 in values:
        return _Reference(attribute.text(21) or "")
    if any(len(one) > MAX_KEPT_VALUES for one in lists.values()):
        return None
    # AttributeProto: f 2, i 3, s 4, floats 7, ints 8, strings 9.
    if 8 in lists:
        return _whole_numbers(lists[8])
    if 7 in lists:
        return [number for one in lists[7] if isinstance(one, bytes) for number in _floats(one)]
    if 9 in lists:
        return [one.decode("utf-8", "replace") for one in lists[9] if isinstance(one, bytes)]
    if 2 in values:
        single = values[2]
        # A float field has four bytes; a shorter one is damaged.
        return _floats(single)[0] if isinstance(single, bytes) and len(single) == 4 else None
    if 3 in values:
        return attribute.number(3)
    return attribute.text(4)


def _whole_numbers(values: Iterable[Any]) -> list[int]:
    """Decode the integers of a repeated field, packed or not."""
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
    return GraphTensor(tensor.text(8) or "", text_of(element), dims, True, _values_of(tensor, element, dims))


def _values_of(tensor: Message, element: int, dims: tuple[int, ...]) -> tuple[Any, ...] | None:
    # The number of dimensions is limited too: a hostile tensor may have thousands.
    count = math.prod(dims) if len(dims) <= _MOST_VALUES else -1
    if not 0 <= count <= _MOST_VALUES or tensor.number(schema.TENSOR_LOCATION) == schema.EXTERNAL:
        return None
    # A tensor's values are either in raw_data (9) or in the list of its type.
    raw = tensor.values.get(9)
    found: tuple[Any, ...] = ()
    if isinstance(raw, bytes) and element in _RAW:
        code = f"<{count}{_RAW[element]}"
        if struct.calcsize(code) == len(raw):
            found = struct.unpack(code, raw)
    elif 4 in tensor.lists:
        found = tuple(number for one in tensor.lists[4] if isinstance(one, bytes) for number in _floats(one))
    elif 7 in tensor.lists or (5 in tensor.lists and element in _OF_INT32):
        found = tuple(_whole_numbers(tensor.lists.get(7) or tensor.lists[5]))
    # A tensor with more or fewer values than its shape requires is damaged; ignore its values.
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
    # For a string or a sparse tensor the index records only that it is constant.
    return GraphTensor("", constant=True)
