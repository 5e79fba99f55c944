"""Replace initializers in an ONNX model by the values of ``SessionOptions.add_initializer``.

ONNX Runtime passes such values to the CPU's kernels only. QNN, and ONNX Runtime's fusions of weights (a
BatchNormalization into a Conv), compute with the values of the file. The model is rewritten as bytes: all fields
are copied, except the fields of the replaced tensors. Weights in separate files stay there. All functions are pure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from qnnbridge_host.model.protobuf import BYTES, FIXED32, FIXED64, VARINT, Garbage, varint
from qnnbridge_host.model.writing import bytes_field, header_of, number_field
from qnnbridge_protocol.records import NamedTuple

# Protobuf's size limit for a message.
MAX_MODEL_BYTES: Final = 2**31 - 1
_DEEPEST: Final = 100

# Field numbers of ModelProto, GraphProto, NodeProto, AttributeProto, TensorProto, SparseTensorProto.
_GRAPH: Final = 7
_NODE, _INITIALIZER, _SPARSE_INITIALIZER = 1, 5, 15
_OUTPUT, _OPERATOR, _ATTRIBUTE = 2, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS, _ATTRIBUTE_TYPE = 1, 5, 6, 11, 20
_TENSOR_DIMENSIONS, _TENSOR_TYPE, _TENSOR_NAME = 1, 2, 8
_SPARSE_VALUES: Final = 1
_IS_TENSOR: Final = 4

_Change = Callable[[memoryview], bytes | None]


class WithValues(NamedTuple):
    """A model with replaced tensors.

    replaced: names of given tensors that the model contains. misfits: names of given tensors whose type or shape
        differs in the file.
    """

    model: bytes
    replaced: frozenset[str]
    misfits: frozenset[str]


def with_values(model: bytes, tensors: Mapping[str, bytes]) -> WithValues:
    """Return the model with replaced tensors.

    As ONNX Runtime does, replace initializers and the results of Constant nodes, even in bodies of If and Loop.
    A name that the model does not contain changes nothing.

    Args:
        model: the model's bytes.
        tensors: TensorProto messages by name.

    Raises:
        Garbage: the bytes are not an ONNX model.
    """
    found = _Found(tensors, set(), set())
    made = _each(memoryview(model), {_GRAPH: lambda graph: _graph(graph, found, 0)})
    return WithValues(made, frozenset(found.replaced), frozenset(found.misfits))


class _Found(NamedTuple):
    tensors: Mapping[str, bytes]
    replaced: set[str]
    misfits: set[str]

    def take(self, name: str, before: memoryview | None) -> bytes | None:
        """Return the replacement for tensor `name`, None to keep the tensor. before: its encoding in the file."""
        given = self.tensors.get(name)
        if given is not None:
            self.replaced.add(name)
            if before is None or _type_and_shape(before) != _type_and_shape(memoryview(given)):
                self.misfits.add(name)
        return given


class _Fields:
    """Iterator over a message's fields: (number, value or None if it is not bytes, whole field with tag)."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __iter__(self) -> Iterator[tuple[int, memoryview | None, memoryview]]:
        data, at = self._data, 0
        while at < len(data):
            start = at
            # Copy ten bytes, the maximum length of a number, because `varint` cannot read a memoryview.
            tag, size = varint(bytes(data[at : at + 10]), 0)
            at += size
            number, wire, value = tag >> 3, tag & 7, None
            if wire == BYTES:
                length, size = varint(bytes(data[at : at + 10]), 0)
                at += size
                value = data[at : at + length]
                at += length
            elif wire == VARINT:
                at += varint(bytes(data[at : at + 10]), 0)[1]
            elif wire == FIXED64:
                at += 8
            elif wire == FIXED32:
                at += 4
            else:
                raise Garbage("it contains a protobuf group, which ONNX does not use")
            if at > len(data):
                raise Garbage("a field is longer than the message that contains it")
            yield number, value, data[start:at]


def _each(data: memoryview, changes: Mapping[int, _Change]) -> bytes:
    """Rewrite a message. changes: functions by field number, which return a new value for the field, or None to
    keep it."""
    made: list[bytes | memoryview] = []
    for number, value, whole in _Fields(data):
        changed = changes[number](value) if value is not None and number in changes else None
        made += [whole] if changed is None else [header_of(number, len(changed)), changed]
    return b"".join(made)


def _graph(data: memoryview, found: _Found, depth: int) -> bytes:
    if depth > _DEEPEST:
        raise Garbage(f"more than {_DEEPEST} graphs are nested")

    made: list[bytes | memoryview] = []
    for number, value, whole in _Fields(data):
        given: bytes | None = None
        if value is not None and number == _INITIALIZER:
            given = found.take(_text(value, _TENSOR_NAME), value)
        elif value is not None and number == _SPARSE_INITIALIZER:
            inner = next((one for field, one, _ in _Fields(value) if field == _SPARSE_VALUES), None)
            given = None if inner is None else found.take(_text(inner, _TENSOR_NAME), None)
        elif value is not None and number == _NODE:
            changed = _node(value, found, depth)
            made += [whole] if changed is None else [header_of(number, len(changed)), changed]
            continue
        made.append(whole if given is None else bytes_field(_INITIALIZER, given))
    return b"".join(made)


def _node(data: memoryview, found: _Found, depth: int) -> bytes | None:
    """Return the changed node, None if it is unchanged."""
    if _text(data, _OPERATOR) == "Constant":
        value = next((one for field, one, _ in _Fields(data) if field == _ATTRIBUTE and one is not None), None)
        held = () if value is None else _Fields(value)
        given = found.take(_text(data, _OUTPUT), next((one for n, one, _ in held if n == _ATTRIBUTE_TENSOR), None))
        if given is None:
            return None
        kept = [whole for number, _, whole in _Fields(data) if number != _ATTRIBUTE]
        attribute = (
            bytes_field(_ATTRIBUTE_NAME, "value")
            + bytes_field(_ATTRIBUTE_TENSOR, given)
            + number_field(_ATTRIBUTE_TYPE, _IS_TENSOR)
        )
        return b"".join([*kept, bytes_field(_ATTRIBUTE, attribute)])

    def attribute_of(value: memoryview) -> bytes | None:
        if not any(number in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS) for number, _, _ in _Fields(value)):
            return None
        change = functools.partial(_graph, found=found, depth=depth + 1)
        return _each(value, {_ATTRIBUTE_GRAPH: change, _ATTRIBUTE_GRAPHS: change})

    made = _each(data, {_ATTRIBUTE: attribute_of})
    return made if made != data else None


def _type_and_shape(tensor: memoryview) -> tuple[int, tuple[int, ...]]:
    element, sizes = 0, list[int]()
    for number, value, whole in _Fields(tensor):
        if number == _TENSOR_TYPE:
            element = _last_number(whole)
        elif number == _TENSOR_DIMENSIONS and value is None:
            sizes.append(_last_number(whole))
        elif number == _TENSOR_DIMENSIONS and value is not None:  # packed
            data, at = bytes(value), 0
            while at < len(data):
                size, at = varint(data, at)
                sizes.append(size)
    return element, tuple(sizes)


def _last_number(field: memoryview) -> int:
    """Return the value of a numeric field."""
    data = bytes(field)
    return varint(data, varint(data, 0)[1])[0]


def _text(data: memoryview, field: int) -> str:
    """Return the last value of a string field, "" if it is absent."""
    found = b""
    for number, value, _ in _Fields(data):
        if number == field and value is not None:
            found = bytes(value)
    return found.decode("utf-8", "replace")
