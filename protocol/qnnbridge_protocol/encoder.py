"""Values to descriptors and buffers. The grammar is in `values`.

Owns `Encoder`, one per message, used by one thread. What always holds:

- every entry of `Encoder.buffers` is a ``uint8`` array of one dimension, C order, little-endian;
- a contiguous native array is not copied: its buffer *is* the caller's memory until the message has been sent;
- nothing is converted silently. A declared type only decides for what has no type of its own (lists, Python
  scalars, empty maps); an array of another dtype goes as it is, and the check of names and types tells.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, MAX_DEPTH, ElementType, ValueType, element_of
from qnnbridge_protocol.maps import flat_keys, flat_values, keys_array, one_key_list, scalars_array
from qnnbridge_protocol.sparse import Sparse
from qnnbridge_protocol.string_tensors import encode_strings
from qnnbridge_protocol.typed import Typed, ml_dtype, unused_bits

Array = np.ndarray[Any, np.dtype[Any]]
Descriptor = list[Any]

_UINT8 = np.dtype(np.uint8)
_NATIVE_IS_LITTLE = sys.byteorder == "little"
_PYTHON_SCALARS = (bool, int, float, complex, str)


class Encoder:
    """Collects the buffers of one message."""

    __slots__ = ("buffers",)

    def __init__(self) -> None:
        self.buffers: list[Array] = []

    def add(self, value: Any, type: ValueType | None = None) -> Descriptor:  # noqa: A002 - the contract's name
        """The descriptor of `value`; its bytes are appended to `buffers`.

        `type` is what the model declares, if known. Raises `errors.InvalidArgument`; the encoder is then no
        longer usable, because a part of the value may be in `buffers`.
        """
        if value.__class__ is np.ndarray:
            return self._dense(value)
        return self._value(value, type, 1)

    def _value(self, value: Any, declared: ValueType | None, depth: int) -> Descriptor:
        if depth > MAX_DEPTH:
            raise errors.InvalidArgument(f"The value is nested more than {MAX_DEPTH} deep.")
        if declared is not None and declared.kind == "optional":
            declared = declared.item
        if value is None:
            return ["n"]
        if isinstance(value, np.ndarray):
            return self._dense(np.asarray(value))
        if isinstance(value, np.generic):
            return self._dense(np.asarray(value))
        if isinstance(value, Typed):
            return self._typed(value)
        if isinstance(value, Sparse):
            return self._sparse(value)
        if isinstance(value, dict):
            return self._map(value, declared if declared is not None and declared.kind == "map" else None, depth)
        if declared is not None and declared.kind == "tensor" and declared.element is not None:
            if isinstance(value, (list, tuple, *_PYTHON_SCALARS)):
                return self._value(_converted(value, declared.element), None, depth)
        elif isinstance(value, (list, tuple)):
            return self._sequence(value, declared, depth)
        raise _unknown(value, declared)

    # --- tensors

    def _dense(self, array: Array) -> Descriptor:
        element = element_of(array.dtype)
        if element is None:
            raise errors.InvalidArgument(
                f"A numpy array of dtype {array.dtype} has no ONNX type.",
                fix="Convert it with astype() to the type that the model declares.",
            )
        if element is ElementType.STRING:
            offsets, blob = encode_strings(array)
            return ["t", 8, list(array.shape), self._put(offsets), self._put(blob)]
        if not LAYOUTS[element].named:
            return self._typed(Typed.of(array))
        raw = _bytes(array)
        if element is ElementType.BOOL and raw.size and raw.max() > 1:
            raw = (raw != 0).view(_UINT8)  # numpy takes any byte for true, the wire only 1
        return ["t", int(element), list(array.shape), self._put(raw)]

    def _typed(self, tensor: Typed) -> Descriptor:
        raw, layout = _bytes(tensor.data), LAYOUTS[tensor.element_type]
        if layout.packed and raw.size:
            unused = unused_bits(raw.size, layout.bits, tensor.size)
            if raw[-1] & unused:
                raw = raw.copy()
                raw[-1] &= ~unused & 0xFF
        return ["t", int(tensor.element_type), list(tensor.shape), self._put(raw)]

    def _sparse(self, tensor: Sparse) -> Descriptor:
        values = self._dense(tensor.values)
        return ["x", tensor.format, list(tensor.dense_shape), values, *map(self._dense, tensor.indices)]

    # --- containers

    def _sequence(self, items: list[Any] | tuple[Any, ...], declared: ValueType | None, depth: int) -> Descriptor:
        item_type = declared
        if declared is not None and declared.kind == "sequence":
            item_type = declared.item
        if items and all(isinstance(item, dict) for item in items):
            rows = self._rows(list(items), item_type)
            if rows is not None:
                return rows
        out: Descriptor = ["q"]
        for item in items:
            out.append(self._value(item, item_type, depth + 1))
        return out

    def _rows(self, rows: list[dict[Any, Any]], declared: ValueType | None) -> Descriptor | None:
        """Maps of scalars, by columns; ``None`` if they hold something else."""
        key, element = _map_elements(declared)
        scalars = scalars_array(flat_values(rows), element)
        if scalars is None:
            return None
        if one_key_list(rows):
            keys = self._dense(keys_array(rows[0], key))
            return ["r", keys, self._dense(scalars.reshape(len(rows), -1))]
        keys = self._dense(keys_array(flat_keys(rows), key))
        lengths = self._dense(np.fromiter(map(len, rows), np.int64, len(rows)))
        return ["v", lengths, keys, self._dense(scalars)]

    def _map(self, value: dict[Any, Any], declared: ValueType | None, depth: int) -> Descriptor:
        key, element = _map_elements(declared)
        scalars = scalars_array(value.values(), element)
        keys = self._dense(keys_array(value, key))
        if scalars is not None:
            return ["m", keys, self._dense(scalars)]
        item_type = declared.item if declared is not None else None
        return ["d", keys, *(self._value(item, item_type, depth + 1) for item in value.values())]

    def _put(self, raw: Array) -> int:
        self.buffers.append(raw)
        return len(self.buffers) - 1


def _bytes(array: Array) -> Array:
    """The elements in C order and little-endian as bytes, without a copy where that is possible."""
    if array.dtype.isnative is not _NATIVE_IS_LITTLE and array.dtype.itemsize > 1:
        array = array.astype(array.dtype.newbyteorder("<"), order="C")
    elif not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    raw: Array = np.ndarray((array.nbytes,), _UINT8, array)
    return raw


def _map_elements(declared: ValueType | None) -> tuple[ElementType | None, ElementType | None]:
    if declared is None or declared.kind != "map" or declared.item is None:
        return None, None
    return declared.key, declared.item.element


def _converted(value: Any, element: ElementType) -> Array:
    """What ONNX Runtime makes of a list for a tensor input: numpy's conversion to the declared type."""
    layout = LAYOUTS[element]
    dtype = layout.storage if layout.named else ml_dtype(element)
    if dtype is None:
        raise errors.InvalidArgument(
            f"A Python list cannot become a tensor of {element.text} here.",
            cause="numpy has no such type and ml_dtypes, which has, is not installed.",
            fix="Install ml_dtypes, or pass qnnbridge's Typed with the raw bytes.",
        )
    try:
        return np.asarray(value, dtype=dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise errors.InvalidArgument(
            f"The {value.__class__.__name__} cannot become a tensor of {element.text}.",
            cause=str(error),
            fix="Pass a numpy array of the declared type.",
        ) from None


def _unknown(value: Any, declared: ValueType | None) -> errors.InvalidArgument:
    name = value.__class__.__name__
    if isinstance(value, _PYTHON_SCALARS):
        return errors.InvalidArgument(
            f"A plain Python {name} has no ONNX type.",
            cause="No tensor type is declared for it." if declared is None else f"The model declares {declared}.",
            fix="Pass a numpy scalar or array, for example numpy.float32(1.0).",
        )
    return errors.InvalidArgument(
        f"A value of class {name} cannot be sent.",
        cause="Values are numpy arrays, lists (sequences), dicts (maps), None (empty optional), Typed, Sparse.",
        fix="Convert it, for example with numpy.asarray(value).",
    )
