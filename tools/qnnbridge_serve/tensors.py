"""The Open Inference Protocol's names for element types, and what a model takes and gives in those terms.

`Contract` is made once per session and immutable; any thread. ONNX types that the protocol has no name for
(complex, float8, everything below a byte, sequences, maps, sparse tensors) are never converted: a model that needs
one as an input is refused, an output of such a type is left out of the metadata and refused when it is asked for.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, ElementType, from_ort_type, measure
from qnnbridge_protocol.tensors import Typed
from qnnbridge_serve.errors import Refused, wrong
from qnnbridge_serve.json_reading import Check, Take, read_numbers, read_texts

if TYPE_CHECKING:
    from qnnbridge import NodeArg

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

# The protocol's own name for a model in the form of ONNX, whatever runs it.
PLATFORM: Final = "onnx_onnxv1"


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
    """One input as it came. Exactly one of `data` (the text of a JSON array) and `raw` (binary) is there."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | None
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
        """The part of the model's metadata about tensors."""
        return {
            "inputs": [tensor.described() for tensor in list(self.inputs.values())[: self.required]],
            "outputs": [tensor.described() for tensor in self.outputs.values()],
        }


def make_contract(
    inputs: Iterable[NodeArg], overridable: Iterable[NodeArg], outputs: Iterable[NodeArg]
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


def _tensor_spec(node: NodeArg) -> TensorSpec | None:
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

# Texts of BYTES data between two looks at the time, and what one takes beside its characters.
TEXT_STEP: Final = 65536
TEXT_BYTES: Final = 64

_LENGTH: Final = struct.Struct("<I")


def has_many_texts(inputs: Iterable[GivenTensor]) -> bool:
    """Whether making the texts of a request takes so long that it is not to keep a thread from others."""
    return any(given.datatype == "BYTES" and math.prod(given.shape) > TEXT_STEP for given in inputs)


# --- in ---------------------------------------------------------------------------------------------------------


def to_value(
    given: GivenTensor, declared: TensorSpec, take: Take = lambda size: None, check: Check = lambda: None
) -> Array | Typed:
    """The value to feed. The session checks fixed sizes. Raises `Refused`, and what take and check raise.

    Args:
        take: Reserves the memory of what is not a view of the body.
        check: Raises when the time of the request is over.
    """
    where = f"Input {given.name!r}"
    if given.datatype != declared.datatype:
        raise wrong(f"{where} is {given.datatype[:20]}, but the model takes {declared.datatype}.")
    layout = LAYOUTS[declared.element]
    try:
        count, size = measure(layout.bits, given.shape)
    except ValueError as error:
        raise wrong(f"{where}: {error}.") from None
    if given.data is not None:
        if declared.element in BINARY_ONLY:
            raise wrong(f"{where}: {declared.datatype} can only be sent as binary data (binary_data_size).")
        if declared.element is ElementType.STRING:
            return _texts(read_texts(given.data, given.shape, where, take, check), given.shape)
        return read_numbers(given.data, given.shape, layout.storage, where, take, check).reshape(given.shape)
    assert given.raw is not None
    if declared.element is ElementType.STRING:
        return _texts(_split(given.raw, count, where, take, check), given.shape)
    if len(given.raw) != size:
        raise wrong(
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
        raise wrong(f"{where}: a BOOL is one byte, 0 or 1.")
    return array.reshape(shape) if layout.named else Typed(array.reshape(shape), element, shape)


def _split(raw: memoryview, count: int, where: str, take: Take, check: Check) -> list[str]:
    """The elements of BYTES data: each has its length before it."""
    take(min(count, len(raw) // _LENGTH.size) * TEXT_BYTES + len(raw))
    elements: list[str] = []
    at, size, length = 0, len(raw), _LENGTH.unpack_from
    try:
        while at < size and len(elements) < count:
            check()
            for _ in range(min(TEXT_STEP, count - len(elements))):
                begin = at + _LENGTH.size
                end = begin + length(raw, at)[0] if begin <= size else size + 1
                if end > size:
                    raise wrong(f"{where}: element {len(elements)} of its BYTES data is cut off.")
                elements.append(str(raw[begin:end], "utf-8"))
                at = end
                if at == size:
                    break
    except UnicodeDecodeError as error:
        raise wrong(f"{where}: ONNX has texts in UTF-8 only; an element is none ({error.reason}).") from None
    if len(elements) != count or at != len(raw):
        found = len(elements) if at == len(raw) else "more"
        raise wrong(f"{where}: its shape has {count} elements, and its BYTES data {found}.")
    return elements


def _texts(elements: list[str], shape: tuple[int, ...]) -> Array:
    array: Array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


# --- out --------------------------------------------------------------------------------------------------------


def check_form(tensor: TensorSpec, binary: bool) -> None:
    """Before the model is run: whether an output can be sent in the form that is asked for."""
    if not binary and tensor.element in BINARY_ONLY:
        raise wrong(
            f"Output {tensor.name!r} is {tensor.datatype}, which can only be sent as binary data: give the request "
            "the parameter binary_data_output, or the output the parameter binary_data."
        )


def to_bytes(value: Any, tensor: TensorSpec, check: Check = lambda: None) -> bytes | memoryview:
    """An output as binary data, without a copy where its memory is as the protocol wants it."""
    array = _array(value, tensor)
    if tensor.element is ElementType.STRING:
        texts = array.reshape(-1)
        steps: list[bytes] = []
        for begin in range(0, texts.size, TEXT_STEP):  # one join over all would hold Python's lock for a second
            check()
            parts: list[bytes] = []
            for text in texts[begin : begin + TEXT_STEP].tolist():
                data = text.encode()
                parts += (_LENGTH.pack(len(data)), data)
            steps.append(b"".join(parts))
        check()
        return b"".join(steps)
    storage = LAYOUTS[tensor.element].storage
    flat = np.ascontiguousarray(array).reshape(-1)
    # Arrays of ml_dtypes have the kind V; their bits are taken as they are.
    if flat.dtype.kind != "V":
        flat = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    return flat.view(storage).view(np.uint8).data


def to_json(value: Any, tensor: TensorSpec, check: Check = lambda: None) -> Iterator[bytes]:
    """An output as a flat JSON array, in pieces. NaN and Infinity are written as Triton writes them."""
    items = _array(value, tensor).reshape(-1)
    yield b"["
    for begin in range(0, items.size, JSON_STEP):
        if begin:
            check()
        part = items[begin : begin + JSON_STEP]
        text = msgspec.json.encode(part.tolist())
        if part.dtype.kind == "f" and not bool(np.isfinite(part).all()):
            text = _with_words(text, part)
        yield (b"," if begin else b"") + text[1:-1]
    yield b"]"


def _with_words(text: bytes, numbers: Array) -> bytes:
    """msgspec writes null for each number that is none in JSON."""
    words = [_WORDS[str(number)] for number in numbers[~np.isfinite(numbers)].tolist()]
    return b"".join(itertools.chain(*zip(text.split(b"null"), [*words, b""], strict=True)))


_WORDS: Final = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}


def shape_of(value: Any, tensor: TensorSpec) -> list[int]:
    return list(_array(value, tensor).shape)


def _array(value: Any, tensor: TensorSpec) -> Array:
    if not isinstance(value, np.ndarray):  # an optional without content
        raise Refused(500, f"The model gave no tensor for output {tensor.name!r}; the protocol cannot say that.")
    return value
