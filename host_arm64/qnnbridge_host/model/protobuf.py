"""Reads the wanted fields of a protobuf file, and skips all others unread.

One forward pass reads field headers only: the contents of a field are skipped unless its value is wanted, so a
model of two gigabytes of weights costs a few reads. The file is read, never mapped: a mapped file that is
cut off meanwhile would kill the application with SIGBUS, and a 32-bit application has no room to map a large one.
It takes what protobuf itself takes (unknown fields, groups) and refuses what protobuf refuses. Its work is limited
(`MOST_FIELDS`), whatever is in the file. The second part has the fields of an ONNX file, and needs no onnx. Pure
functions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from qnnbridge_protocol.element_types import text_of
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    import re


WINDOW_BYTES: Final = 8192
# The number of a field and its value or length, two variable-length integers.
_LONGEST_HEADER_BYTES: Final = 20
# Names, paths and short texts are shorter; of longer values only place and size are kept.
MAX_KEPT_BYTES: Final = 4096
# Of a repeated field one value more is kept, which shows that the list is not whole.
MAX_KEPT_VALUES: Final = 4096
# The default of protobuf itself.
_MAX_DEPTH: Final = 100
# Of a walk: with 0.2 to 0.4 us a field and 1 to 3 us a message at most half a minute, whatever is in the file. To
# read half a million nodes with three attributes each and the types of their results takes 60 million.
MOST_FIELDS: Final = 2**26
_MESSAGE_COST: Final = 8
# A list of numbers that nobody wants (a forest of trees has 100 million) is skipped by a regular expression, 100 MB
# a second: from this many equal headers on, at one field for this many bytes. 2 GiB cost half of `MOST_FIELDS`.
_RUN_FIELDS: Final = 64
_RUN_BYTES_A_FIELD: Final = 64

VARINT, FIXED64, BYTES, _GROUP_BEGIN, _GROUP_END, FIXED32 = range(6)


class Garbage(Exception):
    """This is no protobuf, or it is cut off.

    why: what is wrong, one sentence without full stop. at: where in the file. zeros: number of zero bytes there.
    """

    def __init__(self, why: str = "a number has no end", at: int | None = None, zeros: int = 0) -> None:
        super().__init__(why)
        self.why = why
        self.at = at
        self.zeros = zeros


class TooMuch(Garbage):
    """It may be one, but to read it would take minutes."""


class MessageKind(NamedTuple):
    """A kind of message. kept: fields whose values are wanted. repeated: those of them of which all are wanted."""

    name: str
    kept: frozenset[int] = frozenset()
    repeated: frozenset[int] = frozenset()


class Span(NamedTuple):
    """Stands for a value that was too long to keep: where in the file it is, and its size in bytes."""

    start: int
    length: int


Value = int | bytes | Span


class Message:
    """A message that is being read. values: of its kept fields, the last of each. lists: all of repeated ones.

    notes is for the visitor: the results of the children.
    """

    __slots__ = ("children", "end", "field", "kept", "kind", "lists", "notes", "parent", "start", "values")

    def __init__(
        self,
        kind: MessageKind,
        children: Mapping[int, MessageKind],
        parent: Message | None,
        field: int,
        start: int,
        end: int,
    ) -> None:
        self.kind = kind
        self.children = children
        self.kept = kind.kept
        self.parent = parent
        self.field = field
        self.start = start
        self.end = end
        self.values: dict[int, Value] = {}
        self.lists: dict[int, list[Value]] = {}
        self.notes: dict[str, object] = {}

    def keep(self, number: int, value: Value) -> None:
        # Of a field that is not repeated protobuf takes the last value.
        self.values[number] = value
        if number in self.kind.repeated:
            values = self.lists.setdefault(number, [])
            if len(values) <= MAX_KEPT_VALUES:
                values.append(value)

    def wants(self, number: int) -> bool:
        """Whether another value of a field is to be kept."""
        return number in self.kept and len(self.lists.get(number, ())) <= MAX_KEPT_VALUES

    def text(self, number: int) -> str | None:
        """A field as text; ``None`` if it is not there or too long."""
        # Other bytes than UTF-8 stay as lone surrogates, as in `os.fsdecode`; `check_travels` refuses such a path.
        value = self.values.get(number)
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else None

    def number(self, number: int) -> int | None:
        """A field as a signed number; ``None`` if it is not there."""
        value = self.values.get(number)
        return signed(value) if isinstance(value, int) else None

    def texts(self, number: int) -> tuple[str, ...]:
        return tuple(
            value.decode("utf-8", "surrogateescape")
            for value in self.lists.get(number, ())
            if isinstance(value, bytes)
        )


# Unknown to ONNX and out of date, but protobuf reads over it.
_GROUP: Final = MessageKind("group")


class FieldVisitor(Protocol):
    """Decides about each message of a walk, and is called at its end. looked: the fields that `wants` read; `walk`
    counts them and sets it back."""

    looked: int

    def wants(self, kind: MessageKind, parent: Message, window: bytes, at: int, length: int) -> bool:
        """Whether to read the fields of a message, which is complete in `window`. Longer messages are always
        read.
        """

    def close(self, message: Message) -> None:
        """The message has been read to its end; its children were closed before."""


# How the walk moves. `window` holds the bytes of the file from `base` on, `at` counts inside of it. To skip a value
# only moves `at`. Where that passes the end of the window, the next window begins behind the value, so what was
# skipped is never read. `top` is the innermost open message and `parent` the one around it: these links are the
# stack, so deep nesting costs a counter and no recursion of Python. Protobuf has no mark for the end of a message;
# it ends where the length in front of it says. Every length is compared with the end of the message around it, so
# a false one can neither leave its parent nor make the walk read behind the file.
def walk(
    file: BinaryIO,
    size: int,
    root: MessageKind,
    schema: Mapping[MessageKind, Mapping[int, MessageKind]],
    visitor: FieldVisitor,
) -> None:
    """Walk the whole file, whose size is `size`.

    schema: for each kind the fields (by number) that hold messages to look into, and their kinds.
    Raises `Garbage`, and `OSError` as reading does.
    """
    top: Message | None = Message(root, schema[root], None, 0, 0, size)
    depth = 0
    base = at = position = 0  # of the window, of the next byte in the window, and of the field, in the file
    window = b""
    fields = last = repeats = 0
    # Local: it is compared for every field.
    most = MOST_FIELDS
    try:
        while top is not None:
            position = base + at
            # Also at the very end of a file: each turn closes one message, up to the outermost.
            if position >= top.end:
                # Fixed-width values are stepped over unchecked, so an overrun shows only here.
                # A group ends by its tag alone.
                if position > top.end or top.kind is _GROUP:
                    raise Garbage(_OVER)
                visitor.close(top)
                top = top.parent
                depth -= 1
                continue
            # Read on early, so that a header is never cut by the end of the window.
            if at + _LONGEST_HEADER_BYTES > len(window) and base + len(window) < size:
                base, at = position, 0
                window = _read(file, base, WINDOW_BYTES)
            tag, at = varint(window, at)
            number, wire = tag >> 3, tag & 7
            if not number:
                raise _no_field(window[position - base :])
            fields += 1
            if fields > most:
                raise TooMuch(f"more than {most} fields would have to be read, which no model needs")
            if wire == BYTES:
                length, at = varint(window, at)
                start = base + at
                # Before anything is read: the length is whatever the file says.
                if start + length > top.end:
                    raise Garbage(_past_end(start, length, size))
                inside = at + length <= len(window)
                kind = top.children.get(number)
                if kind is not None:
                    read = not inside or visitor.wants(kind, top, window, at, length)
                    fields += _MESSAGE_COST + visitor.looked
                    visitor.looked = 0
                    if read:
                        top = Message(kind, schema[kind], top, number, start, start + length)
                        depth += 1
                        if depth > _MAX_DEPTH:
                            raise Garbage(_DEEP)
                        continue
                if number in top.kept:
                    if length <= MAX_KEPT_BYTES:
                        top.keep(number, window[at : at + length] if inside else _read(file, start, length))
                    else:
                        top.keep(number, Span(start, length))
                at += length
            elif wire == VARINT:
                value, at = varint(window, at)
                if number in top.kept:
                    top.keep(number, value)
            elif wire == FIXED64:
                at += 8
            elif wire == FIXED32:
                if number in top.kept:
                    top.keep(number, window[at : at + 4])
                at += 4
            elif wire == _GROUP_BEGIN:
                # A group has no length: until its end tag comes it may reach as far as the message around it.
                top = Message(_GROUP, {}, top, number, base + at, top.end)
                depth += 1
                if depth > _MAX_DEPTH:
                    raise Garbage(_DEEP)
            # The end has its group's number. protobuf refuses another number, and an end outside of a group.
            elif wire == _GROUP_END and top.kind is _GROUP and top.field == number:
                top = top.parent
                depth -= 1
            else:
                raise Garbage(f"a field is of the kind {wire}, which there is not here")
            repeats = repeats + 1 if tag == last else 0
            last = tag
            if repeats >= _RUN_FIELDS and tag in _RUN_TAGS and top is not None and not top.wants(number):
                # Bounded by the message: behind it the same bytes may be fields of the one around it.
                run = _run_of(tag).match(window, at, top.end - base) if at < len(window) else None
                if run is not None:
                    fields += len(run[0]) // _RUN_BYTES_A_FIELD
                    at = run.end()
            if at > len(window):
                # After the bytes read so far: the skipped bytes are never read.
                base, at, window = base + at, 0, b""
    except Garbage as found:
        if found.at is None:
            found.at = position
        raise


_OVER: Final = "a field is longer than what it is part of"
_DEEP: Final = f"more than {_MAX_DEPTH} messages are inside of each other"
# Headers of one byte of numbers, of which lists are made.
_RUN_TAGS: Final = frozenset(tag for tag in range(8, 0x80) if tag & 7 in (VARINT, FIXED64, FIXED32))


def _no_field(rest: bytes) -> Garbage:
    zeros = len(rest) - len(rest.lstrip(b"\0"))
    return Garbage("a field has the number 0, which none has", zeros=zeros)


def _past_end(start: int, length: int, size: int) -> str:
    missing = start + length - size
    return f"a field is {length} bytes long, of which the file lacks {missing}" if missing > 0 else _OVER


@functools.cache
def _run_of(tag: int) -> re.Pattern[bytes]:
    """Fields with this header, one after the other. At most one pattern for each of `_RUN_TAGS`."""
    import re  # only large models need it

    # Ten bytes at most, as in `varint`. DOTALL below: a fixed-width value may hold the byte of a line feed.
    value = {VARINT: rb"[\x80-\xff]{0,9}[\x00-\x7f]", FIXED64: rb".{8}", FIXED32: rb".{4}"}[tag & 7]
    return re.compile(b"(?:" + re.escape(bytes([tag])) + value + b")*", re.DOTALL)


def signed(value: int) -> int:
    """A variable-length integer as the int64 that it stands for."""
    # Ten bytes hold 70 bits, of which protobuf drops the upper six. A length keeps them, and is too long then.
    value &= (1 << 64) - 1
    # protobuf writes a negative int32, too, as 64 bits in two's complement: ten bytes.
    return value - (1 << 64) if value >= 1 << 63 else value


def _read(file: BinaryIO, position: int, length: int) -> bytes:
    file.seek(position)
    return file.read(length)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends. Raises `Garbage`."""
    try:
        # One byte is the usual case: headers, and lengths of names.
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        value, shift = byte & 0x7F, 7
        # Ten bytes at most, as in protobuf.
        while shift < 70:
            at += 1
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at + 1
            shift += 7
    # The data ends inside of the number. In a walk that is the end of the file: windows are read on in time.
    except IndexError:
        pass
    raise Garbage


# --- the messages of an ONNX file ----------------------------------------------------------------------
# Types of inputs and outputs are in ONNX Runtime's words: tensor(float), seq(tensor(int64)). Each message of a
# type, when it has been read, informs the one around it.

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
    # graph, opset_import, metadata_props, functions.
    MODEL: {7: GRAPH, 8: OPSET, 14: ENTRY, 25: FUNCTION},
    GRAPH: {
        GRAPH_NODE: NODE,
        GRAPH_INITIALIZER: TENSOR,
        GRAPH_INPUT: VALUE,
        GRAPH_OUTPUT: VALUE,
        GRAPH_SPARSE_INITIALIZER: SPARSE_TENSOR,
    },
    # Without 9, the opsets that a function imports for its body: `ModelScan.opsets` is the model's.
    FUNCTION: {7: NODE, 11: ATTRIBUTE},
    NODE: {NODE_ATTRIBUTE: ATTRIBUTE},
    ATTRIBUTE: {
        # One of a kind, and a list of them: tensors 5 and 10, graphs 6 and 11, sparse tensors 22 and 23.
        5: TENSOR,
        ATTRIBUTE_GRAPH: GRAPH,
        10: TENSOR,
        ATTRIBUTE_GRAPHS: GRAPH,
        22: SPARSE_TENSOR,
        23: SPARSE_TENSOR,
    },
    SPARSE_TENSOR: {1: TENSOR, 2: TENSOR},
    # external_data: one entry each for location, offset and length.
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
    if kind is DIMENSION:
        size = message.number(DIMENSION_VALUE)
        dimension: int | str | None = message.text(DIMENSION_NAME) or None
        if size is not None:
            dimension = size if size >= 0 else None  # -1 is how some exporters say free
        found = parent.notes.setdefault(_DIMENSIONS, [])
        if isinstance(found, list):
            found.append(dimension)
    elif kind is SHAPE:
        sizes = message.notes.get(_DIMENSIONS)
        parent.notes[_SHAPE] = tuple(sizes) if isinstance(sizes, list) else ()
    # A TypeProto only wraps one kind of type, so it hands on what that left.
    elif kind is TYPE:
        parent.notes |= message.notes
    else:
        parent.notes[_TYPE] = _text(message)
        # The shape inside of a sequence is that of its elements, so only tensors hand theirs on.
        if kind in (TENSOR_TYPE, SPARSE_TYPE):
            parent.notes[_SHAPE] = message.notes.get(_SHAPE)


def type_of_value(value: Message) -> tuple[str, Shape | None]:
    """Type and shape of an input or output; no shape where it has none or does not say."""
    shape = value.notes.get(_SHAPE)
    return str(value.notes.get(_TYPE, UNKNOWN)), shape if isinstance(shape, tuple) else None


def _text(message: Message) -> str:
    inner = str(message.notes.get(_TYPE, UNKNOWN))
    if message.kind is TENSOR_TYPE:
        return f"tensor({_element(message, TENSOR_TYPE_ELEMENT)})"
    if message.kind is SPARSE_TYPE:
        return f"sparse_tensor({_element(message, TENSOR_TYPE_ELEMENT)})"
    if message.kind is SEQUENCE_TYPE:
        return f"seq({inner})"
    if message.kind is OPTIONAL_TYPE:
        return f"optional({inner})"
    return f"map({_element(message, MAP_TYPE_KEY)},{inner})"


def _element(message: Message, field: int) -> str:
    number = message.number(field)
    return text_of(number) or (f"type {number}" if number else UNKNOWN)
