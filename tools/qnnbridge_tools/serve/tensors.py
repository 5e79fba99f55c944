"""The Open Inference Protocol's names for element types, and what a model takes and gives in those terms.

`Contract` is made once per session and immutable; any thread. ONNX types that the protocol has no name for
(complex, float8, everything below a byte, sequences, maps, sparse tensors) are never converted: a model that needs
one as an input is refused, an output of such a type is left out of the metadata and refused when it is asked for.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, ElementType, from_ort_type, measure
from qnnbridge_protocol.tensors import Typed
from qnnbridge_tools.serve.errors import Refused, bad_request

DATATYPES: Final[Mapping[ElementType, str]] = {
    ElementType.BOOL: "BOOL",
    ElementType.UINT8: "UINT8",
    ElementType.UINT16: "UINT16",
    ElementType.UINT32: "UINT32",
    ElementType.UINT64: "UINT64",
    ElementType.INT8: "INT8",
    ElementType.INT16: "INT16",
    ElementType.INT32: "INT32",
    ElementType.INT64: "INT64",
    ElementType.FLOAT16: "FP16",
    ElementType.FLOAT: "FP32",
    ElementType.DOUBLE: "FP64",
    ElementType.BFLOAT16: "BF16",
    ElementType.STRING: "BYTES",
}

# JSON has no form for these in the protocol.
BINARY_ONLY: Final = frozenset({ElementType.FLOAT16, ElementType.BFLOAT16})

PLATFORM: Final = "onnx_onnxv1"


class DeclaredTensor(Protocol):
    """`qnnbridge.NodeArg` is such."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> Any: ...


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. shape: -1 for a size that is free."""

    name: str
    element: ElementType
    shape: tuple[int, ...]

    @property
    def datatype(self) -> str:
        return DATATYPES[self.element]

    def described(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclasses.dataclass(frozen=True, slots=True)
class GivenTensor:
    """One input as it came. Exactly one of `data` (from JSON) and `raw` (binary) is there."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any] | None
    raw: memoryview | None


@dataclasses.dataclass(frozen=True, slots=True)
class Contract:
    """The inputs and outputs of a served model.

    Args:
        inputs: Required ones first, in the model's order, then initializers that may be fed.
        required: How many are.
        unnamed: Outputs that the protocol cannot carry, with their ONNX type.
    """

    inputs: Mapping[str, TensorSpec]
    required: int
    outputs: Mapping[str, TensorSpec]
    unnamed: Mapping[str, str]

    def described(self) -> dict[str, Any]:
        """The part of the model's metadata that tells of tensors."""
        return {
            "inputs": [tensor.described() for tensor in list(self.inputs.values())[: self.required]],
            "outputs": [tensor.described() for tensor in self.outputs.values()],
        }


def make_contract(
    inputs: Iterable[DeclaredTensor], overridable: Iterable[DeclaredTensor], outputs: Iterable[DeclaredTensor]
) -> Contract:
    """Raises `errors.OptionError` for a model that cannot be served."""
    fed: dict[str, TensorSpec] = {}
    for node in inputs:
        tensor = _tensor_spec(node)
        if tensor is None:
            raise errors.OptionError(
                f"The model cannot be served: its input {node.name!r} is {node.type}.",
                cause="The Open Inference Protocol has no datatype for it.",
                fix="Give the model inputs of ordinary tensor types, or use it from Python.",
            )
        fed[node.name] = tensor
    required = len(fed)
    fed.update({tensor.name: tensor for tensor in map(_tensor_spec, overridable) if tensor is not None})
    given: dict[str, TensorSpec] = {}
    unnamed: dict[str, str] = {}
    for node in outputs:
        tensor = _tensor_spec(node)
        if tensor is None:
            unnamed[node.name] = node.type
        else:
            given[node.name] = tensor
    if not given:
        listed = ", ".join(f"{name} ({kind})" for name, kind in unnamed.items()) or "none"
        raise errors.OptionError(
            f"The model cannot be served: none of its outputs can be sent. They are: {listed}.",
            cause="The Open Inference Protocol has no datatype for them.",
        )
    return Contract(fed, required, given, unnamed)


def _tensor_spec(node: DeclaredTensor) -> TensorSpec | None:
    try:
        declared = from_ort_type(node.type)
    except errors.NotImplemented:
        return None
    inner = declared.item if declared.kind == "optional" and declared.item is not None else declared
    if inner.kind != "tensor" or inner.element is None or inner.element not in DATATYPES:
        return None
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape or ())
    return TensorSpec(node.name, inner.element, shape)


Array = np.ndarray[Any, np.dtype[Any]]

# Elements that become JSON at a time: between two steps other threads have their turn.
JSON_STEP: Final = 65536

_LENGTH: Final = struct.Struct("<I")


# --- in ---------------------------------------------------------------------------------------------------------


def to_value(given: GivenTensor, declared: TensorSpec) -> Array | Typed:
    """The value to feed. The session checks fixed sizes. Raises `Refused`."""
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


def _from_json(given: GivenTensor, declared: TensorSpec, count: int) -> Array:
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


def check_form(tensor: TensorSpec, binary: bool) -> None:
    """Before the model is run: whether an output can be sent in the form that is asked for."""
    if not binary and tensor.element in BINARY_ONLY:
        raise bad_request(
            f"Output {tensor.name!r} is {tensor.datatype}, which can only be sent as binary data: give the request "
            "the parameter binary_data_output, or the output the parameter binary_data."
        )


def to_bytes(value: Any, tensor: TensorSpec) -> bytes | memoryview:
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


def to_json(value: Any, tensor: TensorSpec) -> Iterator[str]:
    """An output as a flat JSON array, in pieces. NaN and Infinity are written as Triton writes them."""
    items = _array(value, tensor).reshape(-1)
    yield "["
    for begin in range(0, items.size, JSON_STEP):
        text = json.dumps(items[begin : begin + JSON_STEP].tolist(), separators=(",", ":"))
        yield ("," if begin else "") + text[1:-1]
    yield "]"


def shape_of(value: Any, tensor: TensorSpec) -> list[int]:
    return list(_array(value, tensor).shape)


def _array(value: Any, tensor: TensorSpec) -> Array:
    if not isinstance(value, np.ndarray):  # an optional without content
        raise Refused(500, f"The model gave no tensor for output {tensor.name!r}; the protocol cannot say that.")
    return value
