"""Reads the wanted fields of a protobuf file, and skips all others unread.

One forward pass reads field headers only: the contents of a field are skipped unless its value is wanted, so a
model of two gigabytes of weights costs a few reads. The file is read, never mapped: a mapped file that is
cut off meanwhile would kill the application with SIGBUS, and a 32-bit application has no room to map a large one.
Knows nothing of ONNX and needs no onnx. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO, Final, Protocol

from qnnbridge_protocol.records import NamedTuple

WINDOW_BYTES: Final = 8192
# The number of a field and its value or length, two variable-length integers.
_LONGEST_HEADER_BYTES: Final = 20
# Names, paths and short texts are shorter; of longer values only place and size are kept.
MAX_KEPT_BYTES: Final = 4096
# The default of protobuf itself.
_MAX_DEPTH: Final = 100

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Garbage(Exception):
    """This is no protobuf, or it is cut off."""


class MessageKind(NamedTuple):
    """A kind of message. kept: fields whose values are wanted. repeated: those of them of which all are wanted."""

    name: str
    kept: frozenset[int] = frozenset()
    repeated: frozenset[int] = frozenset()


class Span(NamedTuple):
    """In the place of a value that was too long to keep: where in the file it is, and its size in bytes."""

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
        self.values[number] = value
        if number in self.kind.repeated:
            self.lists.setdefault(number, []).append(value)

    def text(self, number: int) -> str | None:
        """A field as text; ``None`` if it is not there or too long."""
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


class FieldVisitor(Protocol):
    """Decides about each message of a walk, and is called at its end."""

    def wants(self, kind: MessageKind, parent: Message, window: bytes, at: int, length: int) -> bool:
        """Whether to read the fields of a message, which is complete in `window`. Longer messages are always
        read.
        """

    def close(self, message: Message) -> None:
        """The message has been read to its end; its children were closed before."""


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
    depth = 1
    base = at = 0  # of the window in the file, and of the next byte in the window
    window = b""
    while top is not None:
        position = base + at
        if position >= top.end:
            if position > top.end:
                raise Garbage
            visitor.close(top)
            top = top.parent
            depth -= 1
            continue
        if at + _LONGEST_HEADER_BYTES > len(window) and base + len(window) < size:
            base, at = position, 0
            window = _read(file, base, WINDOW_BYTES)
        tag, at = varint(window, at)
        number, wire = tag >> 3, tag & 7
        if wire == _BYTES:
            length, at = varint(window, at)
            start = base + at
            if start + length > top.end:
                raise Garbage
            inside = at + length <= len(window)
            kind = top.children.get(number)
            if kind is not None and not (inside and not visitor.wants(kind, top, window, at, length)):
                if depth >= _MAX_DEPTH:
                    raise Garbage
                top = Message(kind, schema[kind], top, number, start, start + length)
                depth += 1
                continue
            if number in top.kept:
                if length <= MAX_KEPT_BYTES:
                    top.keep(number, window[at : at + length] if inside else _read(file, start, length))
                else:
                    top.keep(number, Span(start, length))
            at += length
        elif wire == _VARINT:
            value, at = varint(window, at)
            if number in top.kept:
                top.keep(number, value)
        elif wire == _FIXED64:
            at += 8
        elif wire == _FIXED32:
            if number in top.kept:
                top.keep(number, window[at : at + 4])
            at += 4
        else:
            raise Garbage
        if at > len(window):
            # After the bytes read so far: the skipped bytes are never read.
            base, at, window = base + at, 0, b""


def signed(value: int) -> int:
    """A variable-length integer as the int64 that it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _read(file: BinaryIO, position: int, length: int) -> bytes:
    file.seek(position)
    return file.read(length)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends. Raises `Garbage`."""
    try:
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        value, shift = byte & 0x7F, 7
        while shift < 70:
            at += 1
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at + 1
            shift += 7
    except IndexError:
        pass
    raise Garbage
