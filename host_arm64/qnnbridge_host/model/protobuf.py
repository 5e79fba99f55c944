"""Read the wanted fields of a protobuf file and skip all others without reading them.

One forward pass reads field tags and lengths only; the contents of a field are skipped unless its value is wanted,
so a model with two gigabytes of weights costs a few reads. The file is read instead of mapped: if a mapped file is
truncated in the meantime, SIGBUS kills the application, and a 32-bit application lacks the address space for a
large file. The reader accepts what protobuf itself accepts (unknown fields, groups) and refuses what protobuf
refuses. `MOST_FIELDS` limits its work for any file. The second part of this module defines the fields of an ONNX
file and does not need onnx. The functions have no side effects.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from qnnbridge_protocol.element_types import text_of
from qnnbridge_protocol.limits import MAX_METADATA_BYTES
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    import re


WINDOW_BYTES: Final = 8192
# A field's tag and its value or length: two varints.
_LONGEST_HEADER_BYTES: Final = 20
# Longest value that is kept by default: names, paths and short strings are shorter.
MAX_KEPT_BYTES: Final = 4096
# Maximum length of a list. One value more is kept, to show that the list is incomplete.
MAX_KEPT_VALUES: Final = 4096
# Protobuf's own default limit on nested messages.
_MAX_DEPTH: Final = 100
# Maximum number of fields that `walk` reads: at 0.2 to 0.4 us per field and 1 to 3 us per message, any file takes
# at most half a minute. A model of half a million nodes, each with three attributes and typed results, has 60
# million fields.
MOST_FIELDS: Final = 2**26
_MESSAGE_COST: Final = 8
# After this many equal tags, a regular expression skips the rest of an unwanted list of numbers at 100 MB per
# second (a forest of decision trees has 100 million numbers). Every 64 skipped bytes count as one field, so that 2
# GiB use half of `MOST_FIELDS`.
_RUN_FIELDS: Final = 64
_RUN_BYTES_A_FIELD: Final = 64

VARINT, FIXED64, BYTES, _GROUP_BEGIN, _GROUP_END, FIXED32 = range(6)


class Garbage(Exception):
    """The data is not protobuf, or is cut off.

    why: the fault as a sentence without full stop. at: position of the fault in the file. zeros: number of zero
        bytes at that position.
    """

    def __init__(self, why: str = "a number has no end", at: int | None = None, zeros: int = 0) -> None:
        super().__init__(why)
        self.why = why
        self.at = at
        self.zeros = zeros


class TooMuch(Garbage):
    """The data may be protobuf, but reading it would take minutes."""


class MessageKind(NamedTuple):
    """A message type, with the fields to read.

    kept: fields whose values are kept. repeated: fields of which every value is kept. longest: maximum size of a
        value in bytes; for longer values only position and size are kept.
    """

    name: str
    kept: frozenset[int] = frozenset()
    repeated: frozenset[int] = frozenset()
    longest: int = MAX_KEPT_BYTES


class Span(NamedTuple):
    """Position and size in bytes of a value that is too long to keep."""

    start: int
    length: int


Value = int | bytes | Span


class Message:
    """A message being read.

    values: last value of each kept field. lists: all values of repeated fields. notes: results of child messages,
        for the visitor.
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
        # For a field that is not repeated, protobuf uses the last value.
        self.values[number] = value
        if number in self.kind.repeated:
            values = self.lists.setdefault(number, [])
            if len(values) <= MAX_KEPT_VALUES:
                values.append(value)

    def wants(self, number: int) -> bool:
        """Return whether another value of a field is to be kept."""
        return number in self.kept and len(self.lists.get(number, ())) <= MAX_KEPT_VALUES

    def text(self, number: int) -> str | None:
        """Return a field as a string; ``None`` if the field is absent or too long."""
        # Decode bytes that are not UTF-8 as lone surrogates, like `os.fsdecode`. A path with surrogates is refused
        # before it is sent to the host.
        value = self.values.get(number)
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else None

    def number(self, number: int) -> int | None:
        """Return a field as a signed number; ``None`` if it is absent."""
        value = self.values.get(number)
        return signed(value) if isinstance(value, int) else None

    def texts(self, number: int) -> tuple[str, ...]:
        return tuple(
            value.decode("utf-8", "surrogateescape")
            for value in self.lists.get(number, ())
            if isinstance(value, bytes)
        )


# Groups are obsolete, and ONNX does not use them. This reader skips them, because protobuf does.
_GROUP: Final = MessageKind("group")


class FieldVisitor(Protocol):
    """Visitor that decides which messages are read, and processes each message after it has been read.

    looked: number of fields that `wants` has read; `walk` adds `looked` to its own count and sets it to 0.
    """

    looked: int

    def wants(self, kind: MessageKind, parent: Message, window: bytes, at: int, length: int) -> bool:
        """Return whether to read the fields of a message that is completely in `window`. Longer messages are always
        read."""

    def close(self, message: Message) -> None:
        """Process a message that has been read completely, after its children."""


# State of the walk: `window` contains the bytes of the file from `base` on, and `at` is an offset into it. Skipping
# a value only increases `at`. If `at` passes the end of the window, the next window begins after the value, so
# skipped bytes are never read. `top` is the innermost open message and `parent` the message around it: these links
# replace a call stack, so the walk needs no recursion and limits the depth with a counter. Protobuf does not mark
# the end of a message, but writes its length before it. Every length is compared with the end of the enclosing
# message, so a wrong length cannot lead out of the parent or past the end of the file.
def walk(
    file: BinaryIO,
    size: int,
    root: MessageKind,
    schema: Mapping[MessageKind, Mapping[int, MessageKind]],
    visitor: FieldVisitor,
) -> None:
    """Walk through a whole file.

    Args:
        file: seekable file, opened for reading in binary mode.
        size: size of the file in bytes.
        root: type of the outermost message.
        schema: for each message type, the numbers of the fields that contain messages to read, with the types of
            these messages.
        visitor: decides which messages are read, and processes them.

    Raises:
        Garbage: the data is not protobuf, or is cut off.
        OSError: reading failed.
    """
    top: Message | None = Message(root, schema[root], None, 0, 0, size)
    depth = 0
    base = at = position = 0  # file offset of the window, offset in the window, file offset of the current field
    window = b""
    fields = last = repeats = 0
    # Use a local variable, because it is compared for every field.
    most = MOST_FIELDS
    try:
        while top is not None:
            position = base + at
            # At the end of the file each iteration closes one message, up to the outermost.
            if position >= top.end:
                # Fixed-width values are skipped without a check, so an overrun is detected here. A group ends only
                # with its end tag.
                if position > top.end or top.kind is _GROUP:
                    raise Garbage(_TOO_LONG)
                visitor.close(top)
                top = top.parent
                depth -= 1
                continue
            # Read the next window early, so that a tag is never cut at the end of the window.
            if at + _LONGEST_HEADER_BYTES > len(window) and base + len(window) < size:
                base, at = position, 0
                window = _read(file, base, WINDOW_BYTES)
            tag, at = varint(window, at)
            number, wire = tag >> 3, tag & 7
            if not number:
                raise _invalid_field(window[position - base :])
            fields += 1
            if fields > most:
                raise TooMuch(f"more than {most} fields would have to be read, more than any model needs")
            if wire == BYTES:
                length, at = varint(window, at)
                start = base + at
                # Check before reading: a damaged file may contain any length.
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
                            raise Garbage(_TOO_DEEP)
                        continue
                if number in top.kept:
                    if length <= top.kind.longest:
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
                # A group has no length: until its end tag it may extend to the end of the enclosing message.
                top = Message(_GROUP, {}, top, number, base + at, top.end)
                depth += 1
                if depth > _MAX_DEPTH:
                    raise Garbage(_TOO_DEEP)
            # The end tag has the group's number. Protobuf refuses other numbers, and end tags outside of groups.
            elif wire == _GROUP_END and top.kind is _GROUP and top.field == number:
                top = top.parent
                depth -= 1
            else:
                raise Garbage(f"a field has the wire type {wire}, which is not allowed here")
            repeats = repeats + 1 if tag == last else 0
            last = tag
            if repeats >= _RUN_FIELDS and tag in _RUN_TAGS and top is not None and not top.wants(number):
                # Stop at the end of the message: the bytes after it may be fields of the enclosing message.
                run = _run_of(tag).match(window, at, top.end - base) if at < len(window) else None
                if run is not None:
                    fields += len(run[0]) // _RUN_BYTES_A_FIELD
                    at = run.end()
            if at > len(window):
                # Continue after the skipped bytes, which are never read.
                base, at, window = base + at, 0, b""
    except Garbage as found:
        if found.at is None:
            found.at = position
        raise


_TOO_LONG: Final = "a field is longer than the message that contains it"
_TOO_DEEP: Final = f"more than {_MAX_DEPTH} messages are nested"
# One-byte tags of numeric fields. Lists of numbers consist of such fields.
_RUN_TAGS: Final = frozenset(tag for tag in range(8, 0x80) if tag & 7 in (VARINT, FIXED64, FIXED32))


def _invalid_field(rest: bytes) -> Garbage:
    zeros = len(rest) - len(rest.lstrip(b"\0"))
    return Garbage("a field has the invalid number 0", zeros=zeros)


def _past_end(start: int, length: int, size: int) -> str:
    missing = start + length - size
    return f"a field has {length} bytes, but the file lacks {missing} of them" if missing > 0 else _TOO_LONG


@functools.cache
def _run_of(tag: int) -> re.Pattern[bytes]:
    """Return a pattern for consecutive fields with this tag. The cache has at most one pattern for each of
    `_RUN_TAGS`.
    """
    import re  # import it here, because only large models need it

    # A varint has at most ten bytes. DOTALL is needed because a fixed-width value may contain a line feed.
    value = {VARINT: rb"[\x80-\xff]{0,9}[\x00-\x7f]", FIXED64: rb".{8}", FIXED32: rb".{4}"}[tag & 7]
    return re.compile(b"(?:" + re.escape(bytes([tag])) + value + b")*", re.DOTALL)


def signed(value: int) -> int:
    """Convert a varint to the int64 that it encodes."""
    # Ten bytes contain 70 bits, of which protobuf drops the upper six for a value. For a length it keeps them, and
    # then refuses the length as too large.
    value &= (1 << 64) - 1
    # A negative int32 is also encoded as 64 bits in two's complement, which takes ten bytes.
    return value - (1 << 64) if value >= 1 << 63 else value


def _read(file: BinaryIO, position: int, length: int) -> bytes:
    file.seek(position)
    return file.read(length)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` and the position after it. Raise `Garbage` if it is cut off or too long."""
    try:
        # Fast path for one byte, the usual case: a tag, or the length of a name.
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        value, shift = byte & 0x7F, 7
        # A varint has at most ten bytes.
        while shift < 70:
            at += 1
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at + 1
            shift += 7
    # The data ends inside of the number. In a walk this can only be the end of the file, because `walk` reads the
    # next window before a number could be cut.
    except IndexError:
        pass
    raise Garbage


# --- the messages of an ONNX file ------------------------------------------------------------------------
# Types of inputs and outputs are written as in ONNX Runtime: tensor(float), seq(tensor(int64)). A type consists of
# nested messages; each one passes its result to the enclosing message when it has been read.

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
# Entries of external data. Entries of metadata have the same fields, but longer values.
ENTRY = MessageKind("entry", frozenset((1, 2)))
METADATA = MessageKind("metadata", frozenset((1, 2)), longest=MAX_METADATA_BYTES)
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

# Fields (by number) that contain messages to read. Training graphs are omitted, because sessions do not run them.
SCHEMA: Final[Mapping[MessageKind, Mapping[int, MessageKind]]] = {
    # graph, opset_import, metadata_props, functions.
    MODEL: {7: GRAPH, 8: OPSET, 14: METADATA, 25: FUNCTION},
    GRAPH: {
        GRAPH_NODE: NODE,
        GRAPH_INITIALIZER: TENSOR,
        GRAPH_INPUT: VALUE,
        GRAPH_OUTPUT: VALUE,
        GRAPH_SPARSE_INITIALIZER: SPARSE_TENSOR,
    },
    # Field 9 (the opsets that a body imports) is not read, because `ModelScan.opsets` lists the opsets of the
    # model.
    FUNCTION: {7: NODE, 11: ATTRIBUTE},
    NODE: {NODE_ATTRIBUTE: ATTRIBUTE},
    ATTRIBUTE: {
        # Each type of value has one field for a single value and one for a list: tensors 5 and 10, graphs 6 and 11,
        # sparse tensors 22 and 23.
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
    METADATA: {},
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
    """Store the result of a completed message, which describes part of a type, in the notes of the enclosing
    message."""
    parent = message.parent
    if parent is None:
        return
    kind = message.kind
    if kind is DIMENSION:
        size = message.number(DIMENSION_VALUE)
        dimension: int | str | None = message.text(DIMENSION_NAME) or None
        if size is not None:
            dimension = size if size >= 0 else None  # some exporters write -1 for a free dimension
        found = parent.notes.setdefault(_DIMENSIONS, [])
        if isinstance(found, list):
            found.append(dimension)
    elif kind is SHAPE:
        sizes = message.notes.get(_DIMENSIONS)
        parent.notes[_SHAPE] = tuple(sizes) if isinstance(sizes, list) else ()
    # A TypeProto only contains one other type, so copy the notes of that type to the enclosing message.
    elif kind is TYPE:
        parent.notes |= message.notes
    else:
        parent.notes[_TYPE] = _text(message)
        # The shape inside of a sequence is the shape of its elements, so only tensors pass their shape on.
        if kind in (TENSOR_TYPE, SPARSE_TYPE):
            parent.notes[_SHAPE] = message.notes.get(_SHAPE)


def type_of_value(value: Message) -> tuple[str, Shape | None]:
    """Return type and shape of an input or output; ``None`` for an undeclared shape."""
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
