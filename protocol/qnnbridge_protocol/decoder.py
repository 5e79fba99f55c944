"""Descriptors and received buffers to values. The grammar is in `values`.

Owns `Decoder`, one per message, used by one thread. A descriptor comes from another process and is believed in
nothing: tags, types, shapes, buffer numbers and sizes, offsets, indices and depth are checked before anything is
allocated, and whatever is wrong is a `ProtocolDesync`. What is allocated is bounded by a small multiple of the size
of the buffers and the descriptor: numeric tensors are views, and each string or map entry has bytes of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, MAX_DEPTH, ElementType, Layout, measure
from qnnbridge_protocol.maps import KEY_ELEMENTS, SCALAR_ELEMENTS
from qnnbridge_protocol.sparse import Sparse
from qnnbridge_protocol.string_tensors import decode_strings
from qnnbridge_protocol.typed import Typed, unused_bits

Array = np.ndarray[Any, np.dtype[Any]]

_LAYOUTS_BY_NUMBER: dict[int, tuple[ElementType, Layout]] = {int(e): (e, layout) for e, layout in LAYOUTS.items()}


class Decoder:
    """Reads the values of one message; each buffer belongs to at most one of them.

    Numeric arrays are views of `buffers` (a copy if the address does not suit the type, or with `copy`) and as
    writable as these are.
    """

    __slots__ = ("_buffers", "_copy", "_taken")

    def __init__(self, buffers: Sequence[Array], *, copy: bool = False) -> None:
        self._buffers = buffers
        self._copy = copy
        self._taken: set[int] = set()

    def value(self, descriptor: Any) -> Any:
        """The value; `errors.ProtocolDesync` if the descriptor or a buffer is not what the protocol allows."""
        try:
            return self._value(descriptor, 1)
        except (ValueError, OverflowError, errors.InvalidArgument) as error:
            cause = error.cause if isinstance(error, errors.InvalidArgument) else str(error)
            raise _desync(descriptor, cause or str(error)) from None

    def finish(self) -> None:
        """Call after the last value: `errors.ProtocolDesync` if a buffer belongs to none."""
        if len(self._taken) != len(self._buffers):
            raise errors.ProtocolDesync(
                "The message carries buffers that no value refers to.",
                details={"buffers": len(self._buffers), "used": len(self._taken)},
            )

    def _value(self, node: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        if node.__class__ is not list or not node or node[0].__class__ is not str:
            raise ValueError("a descriptor is a list that starts with a tag")
        tag = node[0]
        if tag == "t":
            return self._tensor(node)
        if tag == "n" and len(node) == 1:
            return None
        if tag == "q":
            return [self._value(item, depth + 1) for item in node[1:]]
        if tag == "m" and len(node) == 3:
            return _mapping(self._listed(node[1], KEY_ELEMENTS, 1), self._listed(node[2], SCALAR_ELEMENTS, 1))
        if tag == "d" and len(node) > 1:
            keys = self._listed(node[1], KEY_ELEMENTS, 1)
            return _mapping(keys, [self._value(item, depth + 1) for item in node[2:]])
        if tag == "r" and len(node) == 3:
            return self._rows(node[1], node[2])
        if tag == "v" and len(node) == 4:
            return self._varied_rows(node[1], node[2], node[3])
        if tag == "x" and len(node) > 3:
            return self._sparse(node)
        raise ValueError(f"no descriptor has the tag {tag!r:.20} and {len(node)} members")

    # --- tensors

    def _tensor(self, node: Any) -> Array | Typed:
        if node.__class__ is not list or len(node) < 4 or node[0] != "t" or node[1].__class__ is not int:
            raise ValueError("not a tensor")
        found = _LAYOUTS_BY_NUMBER.get(node[1])
        if found is None:
            raise ValueError(f"no element type has the number {node[1]}")
        element, layout = found
        shape = _shape(node[2])
        count, size = measure(layout.bits, shape)
        if element is ElementType.STRING:
            if len(node) != 5:
                raise ValueError("a string tensor has two buffers")
            texts = decode_strings(self._take(node[3]), self._take(node[4]), count)
            array = np.empty(count, object)
            array[:] = texts
            return array.reshape(shape)
        if len(node) != 4:
            raise ValueError("a tensor has one buffer")
        buffer = self._take(node[3])
        if buffer.nbytes != size:
            raise ValueError(f"{buffer.nbytes} bytes for {element.text} of shape {list(shape)}, which needs {size}")
        if layout.packed:
            data = self._array((size,), layout.storage, buffer)
            if size and data[-1] & unused_bits(size, layout.bits, count):
                raise ValueError("bits that belong to no element are not zero")
        else:
            data = self._array(shape, layout.storage, buffer)
        if not layout.named:
            return Typed(data, element, shape)
        if element is ElementType.BOOL and size and data.view(np.uint8).max() > 1:
            raise ValueError("a bool is neither 0 nor 1")
        return data

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any], buffer: Array) -> Array:
        array: Array = np.ndarray(shape, dtype, buffer)
        return array.copy() if self._copy or not array.flags.aligned else array

    def _take(self, index: Any) -> Array:
        if index.__class__ is not int or not 0 <= index < len(self._buffers):
            raise ValueError(f"there is no buffer {_brief(index)}")
        if index in self._taken:
            raise ValueError(f"buffer {index} is used twice")
        self._taken.add(index)
        return self._buffers[index]

    def _sparse(self, node: list[Any]) -> Sparse:
        parts = [self._tensor(part) for part in node[3:]]
        if node[1].__class__ is not str or any(part.__class__ is not np.ndarray for part in parts):
            raise ValueError("not a sparse tensor")
        return Sparse(parts[0], _shape(node[2]), node[1], tuple(parts[1:]))  # type: ignore[arg-type]

    # --- maps

    def _rows(self, key_node: Any, value_node: Any) -> list[dict[Any, Any]]:
        keys = self._listed(key_node, KEY_ELEMENTS, 1)
        if not keys:
            raise ValueError("rows without keys")  # their number would cost the sender nothing
        rows = self._listed(value_node, SCALAR_ELEMENTS, 2)
        if rows and len(rows[0]) != len(keys):
            raise ValueError(f"rows of {len(rows[0])} values for {len(keys)} keys")
        _mapping(keys, keys)
        return [dict(zip(keys, row, strict=True)) for row in rows]

    def _varied_rows(self, length_node: Any, key_node: Any, value_node: Any) -> list[dict[Any, Any]]:
        lengths = self._listed(length_node, frozenset({ElementType.INT64}), 1)
        keys = self._listed(key_node, KEY_ELEMENTS, 1)
        values = self._listed(value_node, SCALAR_ELEMENTS, 1)
        if any(length < 0 for length in lengths) or not sum(lengths) == len(keys) == len(values):
            raise ValueError("row lengths, keys and values do not fit together")
        rows, start = [], 0
        for length in lengths:
            end = start + length
            rows.append(_mapping(keys[start:end], values[start:end]))
            start = end
        return rows

    def _listed(self, node: Any, allowed: frozenset[ElementType], rank: int) -> list[Any]:
        """A tensor of one of a few types, as a list of Python scalars, or of such lists."""
        if node.__class__ is not list or len(node) < 3 or node[1].__class__ is not int or node[1] not in allowed:
            raise ValueError("not a tensor of a type that maps have")
        if node[2].__class__ is not list or len(node[2]) != rank:
            raise ValueError(f"not a tensor of rank {rank}")
        listed: list[Any] = self._tensor(node).tolist()  # type: ignore[union-attr]  # none of these is Typed
        return listed


def decode(descriptor: Any, buffers: Sequence[Array], *, copy: bool = False) -> Any:
    """The one value of a message. For several values over the same buffers use one `Decoder`."""
    return Decoder(buffers, copy=copy).value(descriptor)


def _shape(node: Any) -> tuple[int, ...]:
    if node.__class__ is not list:
        raise ValueError("a shape is a list")
    for dim in node:
        if dim.__class__ is not int:
            raise ValueError("a dimension is an integer")
    return tuple(node)


def _mapping(keys: list[Any], values: list[Any]) -> dict[Any, Any]:
    if len(values) != len(keys):
        raise ValueError(f"{len(values)} values for {len(keys)} keys")
    mapping = dict(zip(keys, values, strict=True))
    if len(mapping) != len(keys):
        raise ValueError("a key occurs twice")
    return mapping


def _desync(descriptor: Any, cause: str) -> errors.ProtocolDesync:
    return errors.ProtocolDesync(
        "The other side sent a value that the protocol does not allow.",
        cause=cause,
        fix="Both sides must run the same release of qnnbridge; if they do, please report this.",
        evidence=[f"descriptor: {_head(descriptor)}"],
    )


def _head(descriptor: Any) -> str:
    """The start of a descriptor as text, whatever it is."""
    if descriptor.__class__ is not list:
        return _brief(descriptor)
    inner = ", ".join(map(_brief, descriptor[:8]))
    return f"[{inner}{', ...' if len(descriptor) > 8 else ''}]"


def _brief(item: Any) -> str:
    """Short text of something hostile: containers, long texts and huge numbers are only named."""
    if item.__class__ is int and item.bit_length() <= 64:
        return str(item)
    if item.__class__ is str:
        return repr(item[:40])
    return f"<{item.__class__.__name__}>"
