"""Tensors between the Open Inference Protocol and a session: binary and JSON, both ways, bit-exact.

Pure functions; any thread. A binary input is an array on the request's own bytes; nothing is converted. What JSON
says is taken only if it means one value of the type: no text for a number, no fraction for an integer, nothing out
of range.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from qnnbridge_protocol.elements import LAYOUTS, ElementType, measure
from qnnbridge_protocol.typed import Typed
from qnnbridge_tools.serve.datatypes import BINARY_ONLY, Tensor
from qnnbridge_tools.serve.infer_request import GivenTensor
from qnnbridge_tools.serve.refusals import Refused, bad_request

Array = np.ndarray[Any, np.dtype[Any]]

JSON_STEP: Final = 65536
"""Elements that become JSON at a time: between two steps other threads have their turn."""

_LENGTH: Final = struct.Struct("<I")


# --- in ---------------------------------------------------------------------------------------------------------


def to_value(given: GivenTensor, declared: Tensor) -> Array | Typed:
    """What a session is fed with. Its fixed sizes are checked by the session. Raises `Refused`."""
    where = f"Input {given.name!r}"
    if given.datatype != declared.datatype:
        raise bad_request(f"{where} is {given.datatype[:20]}, but the model takes {declared.datatype}.")
    bits = LAYOUTS[declared.element].bits
    try:
        count, size = measure(bits, given.shape)
    except ValueError as error:
        raise bad_request(f"{where}: {error}.") from None
    if given.raw is None:
        return _from_json(given, declared, count)
    if declared.element is ElementType.STRING:
        return _texts(_split(given.raw, count, where), given.shape, where)
    if len(given.raw) != size:
        raise bad_request(
            f"{where}: {declared.datatype} of shape {list(given.shape)} is {size} bytes, "
            f"and binary_data_size is {len(given.raw)}."
        )
    return _from_bytes(given.raw, declared.element, given.shape, where)


def _from_bytes(raw: memoryview, element: ElementType, shape: tuple[int, ...], where: str) -> Array | Typed:
    layout = LAYOUTS[element]
    array: Array = np.frombuffer(raw, layout.storage)
    if not array.flags.aligned:  # it begins where the JSON happens to end
        array = np.frombuffer(bytes(raw), layout.storage)
    if element is ElementType.BOOL and array.size and int(array.view(np.uint8).max()) > 1:
        raise bad_request(f"{where}: a BOOL is one byte, 0 or 1.")
    return array.reshape(shape) if layout.named else Typed(array.reshape(shape), element, shape)


def _split(raw: memoryview, count: int, where: str) -> list[memoryview]:
    """The elements of BYTES data: each has its length before it."""
    elements: list[memoryview] = []
    at = 0
    while at < len(raw):
        end = at + _LENGTH.size
        if end > len(raw) or end + _LENGTH.unpack_from(raw, at)[0] > len(raw):
            raise bad_request(f"{where}: element {len(elements)} of its BYTES data is cut off.")
        at = end + _LENGTH.unpack_from(raw, at)[0]
        elements.append(raw[end:at])
    if len(elements) != count:
        raise bad_request(f"{where}: its shape has {count} elements, and its BYTES data {len(elements)}.")
    return elements


def _texts(elements: list[memoryview], shape: tuple[int, ...], where: str) -> Array:
    array: Array = np.empty(len(elements), object)
    try:
        array[:] = [str(element, "utf-8") for element in elements]
    except UnicodeDecodeError as error:
        raise bad_request(f"{where}: ONNX has texts in UTF-8 only; an element is none ({error.reason}).") from None
    return array.reshape(shape)


def _from_json(given: GivenTensor, declared: Tensor, count: int) -> Array:
    where = f"Input {given.name!r}"
    if declared.element in BINARY_ONLY:
        raise bad_request(f"{where}: {declared.datatype} can only be sent as binary data (binary_data_size).")
    items = _flat(given.data or [], given.shape, where)
    if len(items) != count:
        raise bad_request(
            f"{where}: its shape {list(given.shape)} has {count} elements, and data has {len(items)}."
        )
    kinds = set(map(type, items))
    element = declared.element
    if element is ElementType.STRING:
        _only(kinds, {str}, "texts", where)
        if not all(map(_is_utf8, items)):
            raise bad_request(f"{where}: half a surrogate pair is no text in UTF-8.")
        array: Array = np.empty(count, object)
        array[:] = items
    elif element is ElementType.BOOL:
        _only(kinds, {bool, int}, "true and false", where)
        if not set(items) <= {False, True}:
            raise bad_request(f"{where}: a BOOL is true or false, or 0 or 1.")
        array = np.array(items, bool)
    elif element in (ElementType.FLOAT, ElementType.DOUBLE):
        _only(kinds, {int, float}, "numbers", where)
        array = _floats(items, element, where)
    else:
        _only(kinds, {int}, "integers", where)
        array = _integers(items, element, where)
    return array.reshape(given.shape)


def _flat(data: list[Any], shape: tuple[int, ...], where: str) -> list[Any]:
    """Data is flat, or nested as the shape says."""
    if list not in set(map(type, data)):
        return data
    level: list[Any] = [data]
    for size in shape:
        if any(type(item) is not list or len(item) != size for item in level):
            raise bad_request(f"{where}: data is nested, and not as its shape {list(shape)} says.")
        level = [item for part in level for item in part]
    if list in set(map(type, level)):
        raise bad_request(f"{where}: data is nested deeper than its shape {list(shape)} says.")
    return level


def _only(kinds: set[type], allowed: set[type], words: str, where: str) -> None:
    if not kinds <= allowed:
        other = ", ".join(sorted(_JSON_NAMES.get(kind, kind.__name__) for kind in kinds - allowed))
        raise bad_request(f"{where}: data must be {words}; it has {other}, too.")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_JSON_NAMES: Final = {
    bool: "true or false",
    int: "integers",
    float: "fractions",
    str: "texts",
    dict: "objects",
    type(None): "null",
}


def _floats(items: list[Any], element: ElementType, where: str) -> Array:
    try:
        wide: Array = np.array(items, np.float64)
    except OverflowError:
        raise bad_request(f"{where}: a number is too large for a floating point number.") from None
    if element is ElementType.DOUBLE:
        return wide
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    if bool((np.isinf(narrow) & ~np.isinf(wide)).any()):
        raise bad_request(f"{where}: a number is too large for FP32.")
    return narrow


def _integers(items: list[int], element: ElementType, where: str) -> Array:
    dtype = LAYOUTS[element].storage
    limits = np.iinfo(dtype)
    if items and (min(items) < limits.min or max(items) > limits.max):
        raise bad_request(f"{where}: a number is not between {limits.min} and {limits.max}.")
    return np.array(items, dtype)


# --- out --------------------------------------------------------------------------------------------------------


def check_form(tensor: Tensor, binary: bool) -> None:
    """Before the model is run: whether an output can be sent in the form that is asked for."""
    if not binary and tensor.element in BINARY_ONLY:
        raise bad_request(
            f"Output {tensor.name!r} is {tensor.datatype}, which can only be sent as binary data: give the request "
            "the parameter binary_data_output, or the output the parameter binary_data."
        )


def to_bytes(value: Any, tensor: Tensor) -> bytes | memoryview:
    """An output as binary data, without a copy where its memory is as the protocol wants it."""
    array = _array(value, tensor)
    if tensor.element is ElementType.STRING:
        parts: list[bytes] = []
        for text in array.reshape(-1).tolist():
            data = text.encode()
            parts += (_LENGTH.pack(len(data)), data)
        return b"".join(parts)
    storage = LAYOUTS[tensor.element].storage
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind != "V":
        flat = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    return flat.view(storage).view(np.uint8).data


def to_json(value: Any, tensor: Tensor) -> Iterator[str]:
    """An output as a flat JSON array, in pieces. NaN and Infinity are written as Triton writes them."""
    items = _array(value, tensor).reshape(-1)
    yield "["
    for begin in range(0, items.size, JSON_STEP):
        text = json.dumps(items[begin : begin + JSON_STEP].tolist(), separators=(",", ":"))
        yield ("," if begin else "") + text[1:-1]
    yield "]"


def shape_of(value: Any, tensor: Tensor) -> list[int]:
    return list(_array(value, tensor).shape)


def _array(value: Any, tensor: Tensor) -> Array:
    if not isinstance(value, np.ndarray):  # an optional without content
        raise Refused(500, f"The model gave no tensor for output {tensor.name!r}; the protocol cannot say that.")
    return value
