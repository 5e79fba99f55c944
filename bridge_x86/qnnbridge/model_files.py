"""Which other files an ONNX model is made of: external tensor data and context binaries.

A model may keep its weights in files beside it (``TensorProto.external_data``), and a compiled one its context
binary (``ep_cache_context`` of an EPContext node with ``embed_mode`` 0). The protobuf is walked in one forward pass
that looks at field headers only and skips what they announce, so weights inside the model cost nothing, and the
application needs no onnx. The file is read, never mapped: a mapped file that somebody cuts off meanwhile would kill
the application with SIGBUS, and a 32-bit application has no room to map a large one. Pure functions.
"""

from __future__ import annotations

import enum
import io
from collections.abc import Mapping
from typing import BinaryIO, Final

_WINDOW_BYTES: Final = 8192
_LONGEST_HEADER_BYTES: Final = 20
"""The number of a field and its value or length, two variable-length integers."""
_MAX_KEPT_BYTES: Final = 4096
"""Paths and names are shorter; an embedded context binary, which stands in the place of a path, is longer."""
_MAX_DEPTH: Final = 100
"""What protobuf itself takes by default."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EXTERNAL = 1
"""``TensorProto.DataLocation``."""
_EP_CONTEXT: Final = (b"EPContext", b"com.microsoft")
_EMBEDDED = 1
"""``embed_mode``, also of a node that does not say it: the context binary is inside of the node."""


class _Message(enum.Enum):
    MODEL = enum.auto()
    GRAPH = enum.auto()
    FUNCTION = enum.auto()
    NODE = enum.auto()
    ATTRIBUTE = enum.auto()
    SPARSE_TENSOR = enum.auto()
    TENSOR = enum.auto()
    ENTRY = enum.auto()


_M = _Message
_CHILDREN: Final[Mapping[_Message, Mapping[int, _Message]]] = {
    _M.MODEL: {7: _M.GRAPH, 25: _M.FUNCTION},
    _M.GRAPH: {1: _M.NODE, 5: _M.TENSOR, 15: _M.SPARSE_TENSOR},
    _M.FUNCTION: {7: _M.NODE, 11: _M.ATTRIBUTE},
    _M.NODE: {5: _M.ATTRIBUTE},
    _M.ATTRIBUTE: {
        5: _M.TENSOR,
        6: _M.GRAPH,
        10: _M.TENSOR,
        11: _M.GRAPH,
        22: _M.SPARSE_TENSOR,
        23: _M.SPARSE_TENSOR,
    },
    _M.SPARSE_TENSOR: {1: _M.TENSOR, 2: _M.TENSOR},
    _M.TENSOR: {13: _M.ENTRY},
    _M.ENTRY: {},
}
"""Fields (by number, as in onnx.proto) that hold messages in which a file may be named."""

_NODE_TYPE, _NODE_DOMAIN = 4, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_INT, _ATTRIBUTE_TEXT = 1, 3, 4
_TENSOR_LOCATION = 14
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_KEPT: Final[Mapping[_Message, frozenset[int]]] = {
    **{kind: frozenset() for kind in _Message},
    _M.NODE: frozenset((_NODE_TYPE, _NODE_DOMAIN)),
    _M.ATTRIBUTE: frozenset((_ATTRIBUTE_NAME, _ATTRIBUTE_INT, _ATTRIBUTE_TEXT)),
    _M.TENSOR: frozenset((_TENSOR_LOCATION,)),
    _M.ENTRY: frozenset((_ENTRY_KEY, _ENTRY_VALUE)),
}
"""Fields whose values are needed when the message has been read."""


class _Garbage(Exception):
    """This is no protobuf, or it is cut off."""


class _Open:
    """A message that is being read. values: of its kept fields. inner: what its children told it."""

    __slots__ = ("children", "end", "inner", "kept", "kind", "values")

    def __init__(self, kind: _Message, end: int) -> None:
        self.kind = kind
        self.end = end
        self.children = _CHILDREN[kind]
        self.kept = _KEPT[kind]
        self.values: dict[int, bytes | int] = {}
        self.inner: dict[bytes, bytes | int] = {}


def referenced_files(data: bytes | bytearray | memoryview | BinaryIO) -> list[str]:
    """The paths as the model has them (mostly relative to its folder), each once, in order of appearance.

    data: the model's bytes, or a seekable file opened for reading them. What is no ONNX model has none: whether it
    is one is for ONNX Runtime to say. Raises only what reading the file raises (`OSError`).
    """
    file: BinaryIO = io.BytesIO(data) if isinstance(data, (bytes, bytearray, memoryview)) else data
    found: dict[bytes, None] = {}
    try:
        _walk(file, file.seek(0, io.SEEK_END), found)
    except _Garbage:
        return []
    return [path.decode("utf-8", "surrogateescape") for path in found]


def _walk(file: BinaryIO, size: int, found: dict[bytes, None]) -> None:
    stack = [_Open(_M.MODEL, size)]
    base = at = 0  # of the window, and inside of it
    window = b""
    while stack:
        top = stack[-1]
        position = base + at
        if position >= top.end:
            if position > top.end:
                raise _Garbage
            stack.pop()
            _close(top, stack[-1] if stack else None, found)
            continue
        if at + _LONGEST_HEADER_BYTES > len(window) and base + len(window) < size:
            base, at = position, 0
            window = _read(file, base, _WINDOW_BYTES)
        tag, at = _varint(window, at)
        number, wire = tag >> 3, tag & 7
        if wire == _BYTES:
            length, at = _varint(window, at)
            start = base + at
            if start + length > top.end:
                raise _Garbage
            kind = top.children.get(number)
            if kind is not None:
                if (
                    kind is _M.NODE
                    and start + length <= base + len(window)
                    and not _names_a_file(window, at, length)
                ):
                    at += length
                    continue
                if len(stack) >= _MAX_DEPTH:
                    raise _Garbage
                stack.append(_Open(kind, start + length))
                continue
            if number in top.kept:
                if length <= _MAX_KEPT_BYTES:
                    inside = at + length <= len(window)
                    top.values[number] = window[at : at + length] if inside else _read(file, start, length)
                else:
                    top.values.pop(number, None)
            at += length
        elif wire == _VARINT:
            value, at = _varint(window, at)
            if number in top.kept:
                top.values[number] = value
        elif wire == _FIXED64:
            at += 8
        elif wire == _FIXED32:
            at += 4
        else:
            raise _Garbage
        if at > len(window):
            # Behind what has been read: the skipped bytes are never looked at.
            base, at, window = base + at, 0, b""


def _names_a_file(window: bytes, at: int, length: int) -> bool:
    """Whether it can be: both ways to name one have a word of their own. 15 times quicker than to look closely."""
    end = at + length
    return window.find(b"location", at, end) >= 0 or window.find(b"ep_cache_context", at, end) >= 0


def _close(message: _Open, parent: _Open | None, found: dict[bytes, None]) -> None:
    """A message has been read to its end: what it means for the one around it, and for the result."""
    values = message.values
    if parent is None:
        return
    if message.kind is _M.ENTRY:
        if values.get(_ENTRY_KEY) == b"location":
            parent.inner[b"location"] = values.get(_ENTRY_VALUE, b"")
    elif message.kind is _M.TENSOR:
        if values.get(_TENSOR_LOCATION) == _EXTERNAL:
            _add(message.inner.get(b"location"), found)
    elif message.kind is _M.ATTRIBUTE:
        name = values.get(_ATTRIBUTE_NAME)
        if name == b"embed_mode":
            parent.inner[name] = values.get(_ATTRIBUTE_INT, 0)
        elif name == b"ep_cache_context":
            parent.inner[name] = values.get(_ATTRIBUTE_TEXT, b"")
    elif (
        message.kind is _M.NODE
        and (values.get(_NODE_TYPE), values.get(_NODE_DOMAIN)) == _EP_CONTEXT
        and message.inner.get(b"embed_mode", _EMBEDDED) == 0
    ):
        _add(message.inner.get(b"ep_cache_context"), found)


def _add(path: bytes | int | None, found: dict[bytes, None]) -> None:
    if isinstance(path, bytes) and path and b"\0" not in path:
        found[path] = None


def _read(file: BinaryIO, position: int, length: int) -> bytes:
    file.seek(position)
    return file.read(length)


def _varint(data: bytes, at: int) -> tuple[int, int]:
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
    raise _Garbage
