"""Inference: read a request, run the model, and write the body of the answer.

A request is a JSON object followed by binary tensors. Reading checks everything that does not depend on the model:
JSON, fields and their types, shapes, and sizes of the binary parts, which stay views of the body. The model is run
in a worker thread. No state is kept between requests.

A `Contract` is created once per session, is immutable, and may be used by any thread. ONNX types that the protocol
does not have (complex, float8, types below a byte, sequences, maps, sparse tensors) are never converted: a model
that requires such an input is refused; an output of such a type is omitted from the metadata, and a request for
this output is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, MAX_RANK, ElementType, from_ort_type, measure
from qnnbridge_protocol.tensors import Typed
from qnnbridge_serve.errors import Refused, wrong
from qnnbridge_serve.json_reading import (
    NULL,
    Check,
    Fields,
    Take,
    read_fields,
    read_numbers,
    read_texts,
    read_value,
)
from qnnbridge_serve.status import SessionStatus
from qnnbridge_serve.transport import check_answer_time, time_left_s

if TYPE_CHECKING:
    from qnnbridge import NodeArg
    from qnnbridge_protocol.model_records import NumbersReport
    from qnnbridge_protocol.specs import Placement


# --- inputs and outputs of a model, as the protocol describes them ---

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

# Types for which the protocol has no JSON format.
BINARY_ONLY: Final = frozenset({ElementType.FLOAT16, ElementType.BFLOAT16})

# The protocol's name for ONNX models, independent of the runtime.
PLATFORM: Final = "onnx_onnxv1"


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, type and shape of an input or output. In the shape, -1 is a free dimension."""

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
    """Input of a request. Exactly one of `data` (text of a JSON array) and `raw` (binary) is set."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | None
    raw: memoryview | None


@dataclasses.dataclass(frozen=True, slots=True)
class Contract:
    """Inputs and outputs of a served model.

    Args:
        inputs: required inputs in the model's order, then overridable initializers.
        required: number of required inputs.
        outputs: outputs that the protocol can represent.
        unnamed: outputs that the protocol cannot represent: ONNX types by name.
    """

    inputs: Mapping[str, TensorSpec]
    required: int
    outputs: Mapping[str, TensorSpec]
    unnamed: Mapping[str, str]

    def described(self) -> dict[str, Any]:
        """Return the inputs and outputs for the model's metadata."""
        return {
            "inputs": [tensor.described() for tensor in list(self.inputs.values())[: self.required]],
            "outputs": [tensor.described() for tensor in self.outputs.values()],
        }


def make_contract(
    inputs: Iterable[NodeArg], overridable: Iterable[NodeArg], outputs: Iterable[NodeArg]
) -> Contract:
    """Return the inputs and outputs of a served model. Raise `errors.OptionError` if the model cannot be served."""
    fed: dict[str, TensorSpec] = {}
    for node in inputs:
        tensor = _tensor_spec(node)
        if tensor is None:
            raise errors.OptionError(
                f"The model cannot be served: its input {node.name!r} is {node.type}.",
                cause="The Open Inference Protocol has no datatype for this type.",
                fix="Export the model with inputs of ordinary tensor types, or use the model from Python.",
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
            cause="The Open Inference Protocol has no datatypes for these types.",
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

# Number of elements that are converted to JSON in one step. Other threads run between two steps.
JSON_STEP: Final = 65536

# Number of strings of BYTES data between two checks of the deadline.
TEXT_STEP: Final = 65536
# Bytes that Python needs for a string in addition to the string's characters.
TEXT_BYTES: Final = 64

# Maximum product of the non-zero sizes of an empty tensor, such as an empty batch of images or an empty KV cache. A
# model may create a tensor of this size, for example by a sum over the empty dimension.
MOST_BESIDE_ZERO: Final = 2**24

_LENGTH: Final = struct.Struct("<I")


def has_many_texts(inputs: Iterable[GivenTensor]) -> bool:
    """Return whether a request has so large an array of strings that it runs in the separate thread for strings."""
    return any(given.datatype == "BYTES" and math.prod(given.shape) > TEXT_STEP for given in inputs)


# --- tensors of a request ---


def to_value(
    given: GivenTensor, declared: TensorSpec, take: Take = lambda size: None, check: Check = lambda: None
) -> Array | Typed:
    """Return the value of an input for the session, which checks fixed dimensions.

    Raise `Refused` if the input does not match the model.

    take: reserves memory for values that are not views of the body; may raise `Refused` or `Busy`. check: raises an
    error after the deadline of the request.
    """
    where = f"Input {given.name!r}"
    if given.datatype != declared.datatype:
        raise wrong(f"{where} has the datatype {given.datatype[:20]}, but the model expects {declared.datatype}.")
    layout = LAYOUTS[declared.element]
    try:
        count, size = measure(layout.bits, given.shape)
    except ValueError as error:
        raise wrong(f"{where}: {error}.") from None
    if not count and math.prod(filter(None, given.shape)) > MOST_BESIDE_ZERO:
        raise wrong(
            f"{where}: its shape {list(given.shape)} has no elements, and the product of its dimensions other than "
            f"0 is more than {MOST_BESIDE_ZERO}."
        )
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
            f"{where}: {declared.datatype} of shape {list(given.shape)} has {size} bytes, "
            f"but binary_data_size is {len(given.raw)}."
        )
    return _from_bytes(given.raw, declared.element, given.shape, where)


def _from_bytes(raw: memoryview, element: ElementType, shape: tuple[int, ...], where: str) -> Array | Typed:
    layout = LAYOUTS[element]
    array: Array = np.frombuffer(raw, layout.storage)
    # The binary data begin where the JSON part ends, so their address may not be a multiple of the element size.
    if not array.flags.aligned:
        array = np.frombuffer(bytes(raw), layout.storage)
    if element is ElementType.BOOL and array.size and int(array.view(np.uint8).max()) > 1:
        raise wrong(f"{where}: a BOOL is one byte, 0 or 1.")
    return array.reshape(shape) if layout.named else Typed(array.reshape(shape), element, shape)


def _split(raw: memoryview, count: int, where: str, take: Take, check: Check) -> list[str]:
    """Return the elements of BYTES data, in which each element follows its length."""
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
                    raise wrong(f"{where}: its BYTES data ends in the middle of element {len(elements)}.")
                elements.append(str(raw[begin:end], "utf-8"))
                at = end
                if at == size:
                    break
    except UnicodeDecodeError as error:
        raise wrong(f"{where}: ONNX strings must be UTF-8, but an element is not ({error.reason}).") from None
    if len(elements) != count or at != len(raw):
        found = len(elements) if at == len(raw) else "more"
        raise wrong(f"{where}: its shape has {count} elements, but its BYTES data has {found}.")
    return elements


def _texts(elements: list[str], shape: tuple[int, ...]) -> Array:
    array: Array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


# --- tensors of an answer ---


def check_form(tensor: TensorSpec, binary: bool) -> None:
    """Raise `Refused` if an output requested as JSON must be binary data. Called before the model runs."""
    if not binary and tensor.element in BINARY_ONLY:
        raise wrong(
            f"Output {tensor.name!r} is {tensor.datatype}, which can only be sent as binary data: set the "
            "request's parameter binary_data_output or the output's parameter binary_data to true."
        )


def to_bytes(value: Any, tensor: TensorSpec, check: Check = lambda: None) -> bytes | memoryview:
    """Return an output as binary data. Do not copy an array whose memory already has the protocol's layout."""
    array = _array(value, tensor)
    if tensor.element is ElementType.STRING:
        texts = array.reshape(-1)
        steps: list[bytes] = []
        for begin in range(0, texts.size, TEXT_STEP):  # a single join would hold the GIL for a second
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
    # Arrays of ml_dtypes have the kind V; their bits are used unchanged.
    if flat.dtype.kind != "V":
        flat = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    return flat.view(storage).view(np.uint8).data


def to_json(value: Any, tensor: TensorSpec, check: Check = lambda: None) -> Iterator[bytes]:
    """Yield an output as a flat JSON array, in pieces. Write NaN and Infinity as Triton does."""
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
    """Replace each null of msgspec's text by NaN, Infinity or -Infinity: msgspec writes null for all of them."""
    words = [_WORDS[str(number)] for number in numbers[~np.isfinite(numbers)].tolist()]
    return b"".join(itertools.chain(*zip(text.split(b"null"), [*words, b""], strict=True)))


_WORDS: Final = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}


def shape_of(value: Any, tensor: TensorSpec) -> list[int]:
    return list(_array(value, tensor).shape)


def _array(value: Any, tensor: TensorSpec) -> Array:
    if not isinstance(value, np.ndarray):  # an optional output may have no value
        raise Refused(500, f"The model returned no tensor for output {tensor.name!r}; the protocol requires one.")
    return value


# --- the request and its answer ---

# Unsupported parameters that must be refused, because ignoring them would change the meaning of the answer.
_UNSERVED: Final = {
    "shared_memory_region": "Shared memory regions are not supported",
    "classification": "The classification extension is not supported",
}


@dataclasses.dataclass(frozen=True, slots=True)
class WantedOutput:
    """Requested output. binary: whether to send it as binary data; ``None`` for the request's default."""

    name: str
    binary: bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class InferRequest:
    """Parsed request.

    Args:
        id: repeated in the reply; ``None`` if the request has none.
        outputs: requested outputs; ``None`` for all outputs of the model.
        binary: whether outputs are sent as binary data by default.
        timeout_s: seconds that the client allows; ``None`` for no limit.
    """

    id: str | None
    inputs: tuple[GivenTensor, ...]
    outputs: tuple[WantedOutput, ...] | None
    binary: bool
    timeout_s: float | None


def header_length(text: str | None, size: int) -> int | None:
    """Return the value of ``Inference-Header-Content-Length``; ``None`` if missing. size: bytes of the body."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) > size:
        raise wrong(f"Inference-Header-Content-Length is {text[:40]!r}; at most {size}, the body's size, is valid.")
    return int(text)


def read_request(body: memoryview, json_size: int | None) -> InferRequest:
    """Parse the body of an inference request. Raise `Refused` if it is invalid.

    json_size: number of bytes of the JSON part; ``None`` for the whole body.
    """
    document = read_fields(body if json_size is None else body[:json_size])
    binaries = _Binaries(body[len(body) if json_size is None else json_size :])
    if document.inputs is None:
        raise wrong('The request has no array "inputs".')
    inputs = tuple(_input(entry, binaries) for entry in document.inputs)
    # Like Triton, refuse bytes that belong to no input: they indicate a wrong size, so other tensors may have been
    # read from the wrong position.
    if binaries.left:
        raise wrong(f"{binaries.left} bytes of the body do not belong to any input; check binary_data_size.")
    names = [tensor.name for tensor in inputs]
    # The session's feed is a dict, in which the second input would silently replace the first.
    if len(set(names)) < len(names):
        raise wrong(f"An input is given twice: {', '.join(names)}.")
    parameters = _parameters(document.own, "The request")
    return InferRequest(
        id=_text(document.own, "id", "The request", required=False),
        inputs=inputs,
        # An empty array requests all outputs, like a missing field.
        outputs=tuple(map(_output, document.outputs)) if document.outputs else None,
        binary=_boolean(parameters, "binary_data_output") or False,
        timeout_s=_timeout(parameters),
    )


class _Binaries:
    """Binary part of a request's body. `take` returns its tensors in order."""

    def __init__(self, data: memoryview) -> None:
        # Use a view of the body, so that binary tensors are not copied before they are passed to the model.
        self._data = data
        self._used = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._used

    def take(self, size: int, name: str) -> memoryview:
        if size > self.left:
            raise wrong(f"Input {name!r}: binary_data_size is {size}, but only {self.left} bytes are left.")
        begin = self._used
        self._used += size
        return self._data[begin : self._used]


def _input(fields: Fields, binaries: _Binaries) -> GivenTensor:
    name = _text(fields, "name", "An input") or ""
    where = f"Input {name!r}"
    datatype = _text(fields, "datatype", where) or ""
    shape = _shape(read_value(fields.get("shape", NULL), f"{where}: shape"), where)
    parameters = _parameters(fields, where)
    size = parameters.get("binary_data_size")
    data = fields.get("data", NULL)
    if size is None:
        if data == NULL:
            raise wrong(f"{where} has neither data nor the parameter binary_data_size.")
        if not data.startswith(b"["):
            raise wrong(f"{where}: data is not an array.")
        return GivenTensor(name, datatype, shape, data, None)
    if data != NULL:
        raise wrong(f"{where} has data and binary_data_size; give one of them.")
    if type(size) is not int or size < 0:
        raise wrong(f"{where}: binary_data_size is {_shown(size)}, which is not a number of bytes.")
    return GivenTensor(name, datatype, shape, None, binaries.take(size, name))


def _output(fields: Fields) -> WantedOutput:
    name = _text(fields, "name", "An output") or ""
    return WantedOutput(name, _boolean(_parameters(fields, f"Output {name!r}"), "binary_data"))


def _shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise wrong(f"{where}: shape is {_shown(value)}, not an array of sizes.")
    if len(value) > MAX_RANK:
        raise wrong(f"{where}: {len(value)} dimensions are too many.")
    return tuple(value)


def _timeout(parameters: Mapping[str, Any]) -> float | None:
    """Return the timeout in seconds. The parameter is in microseconds, as in Triton, and 0 means no limit."""
    value = parameters.get("timeout")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**63:
        raise wrong(f"The parameter timeout is {_shown(value)}, which is not a number of microseconds.")
    return value / 1e6 if value else None


def _parameters(fields: Fields, where: str) -> Mapping[str, Any]:
    """Return the parameters of a request, input or output. Ignore unknown parameters, as the protocol requires."""
    found = read_value(fields.get("parameters", NULL), f"{where}: parameters")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise wrong(f"{where}: parameters is not a JSON object.")
    for name, words in _UNSERVED.items():
        if found.get(name):
            raise wrong(f"{where} has the parameter {name}. {words}.")
    return found


def _boolean(parameters: Mapping[str, Any], name: str) -> bool | None:
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(f"The parameter {name} is {_shown(value)}, neither true nor false.")
    return value


def _text(fields: Fields, name: str, where: str, *, required: bool = True) -> str | None:
    value = read_value(fields.get(name, NULL), f"{where}: {name}")
    if value is None and not required:
        return None
    if not isinstance(value, str):
        raise wrong(f'{where} has no string "{name}".')
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Session(Protocol):
    """Part of the interface of `qnnbridge.InferenceSession` that is used here."""

    def run(
        self, output_names: Any, input_feed: Any, *, timeout: float | None = None, borrow: bool = False
    ) -> list[Any]: ...

    def close(self) -> None: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def verified(self) -> NumbersReport: ...


@dataclasses.dataclass(frozen=True, slots=True)
class ServedModel:
    """Loaded model. summary: text that describes where the model runs."""

    name: str
    version: str
    contract: Contract
    session: Session
    summary: str

    @property
    def parts(self) -> Mapping[str, SessionStatus]:
        return {"": SessionStatus(self.session.placement, self.session.verified)}

    def close(self) -> None:
        self.session.close()


@dataclasses.dataclass(frozen=True, slots=True)
class InferReply:
    """Answer of an inference request.

    json_size: number of bytes of the JSON part; ``None`` for the whole body. spent_s: seconds for reading the
    inputs, for the run, and for writing the outputs.
    """

    body: bytes
    json_size: int | None
    spent_s: tuple[float, float, float] = (0.0, 0.0, 0.0)


def infer(
    model: ServedModel, request: InferRequest, deadline: float | None, take: Take = lambda size: None
) -> InferReply:
    """Run the model for one request. Raise `Refused` or the errors of `qnnbridge.errors`.

    Args:
        deadline: time of `time.monotonic`; ``None`` for no limit.
        take: function that reserves memory for inputs that are sent as JSON or strings.
    """
    begun = time.monotonic()
    wanted = _wanted(model.contract, request)
    feed = {}
    check = functools.partial(time_left_s, deadline)
    for given in request.inputs:
        declared = model.contract.inputs.get(given.name)
        if declared is None:
            known = ", ".join(model.contract.inputs) or "none"
            raise wrong(f"The model {model.name} has no input {given.name[:80]!r}. Its inputs: {known}.")
        feed[given.name] = to_value(given, declared, take, check)
    names = None if request.outputs is None else [tensor.name for tensor, _ in wanted]
    fed = time.monotonic()
    # `borrow` leaves the results in shared memory instead of copying them: they are needed only until the answer is
    # written.
    values = model.session.run(names, feed, timeout=time_left_s(deadline), borrow=True)
    ran = time.monotonic()
    reply = _reply(model, request, wanted, values, functools.partial(check_answer_time, deadline))
    return dataclasses.replace(reply, spent_s=(fed - begun, ran - fed, time.monotonic() - ran))


def _wanted(contract: Contract, request: InferRequest) -> list[tuple[TensorSpec, bool]]:
    """Return the outputs to send, and whether each is sent as binary data."""
    if request.outputs is None:
        # Refuse outputs that the protocol cannot represent, such as sequences and maps. A client can list the other
        # outputs.
        if contract.unnamed:
            listed = ", ".join(f"{name!r} ({kind})" for name, kind in contract.unnamed.items())
            raise wrong(
                f"The Open Inference Protocol cannot represent {listed}. Request the other outputs by name, in "
                f'"outputs": {", ".join(contract.outputs)}.'
            )
        wanted = [(tensor, request.binary) for tensor in contract.outputs.values()]
    else:
        wanted = []
        for output in request.outputs:
            tensor = contract.outputs.get(output.name)
            if tensor is None:
                raise wrong(_no_output(contract, output.name))
            wanted.append((tensor, request.binary if output.binary is None else output.binary))
        if len({tensor.name for tensor, _ in wanted}) < len(wanted):
            raise wrong("An output is requested twice.")
    for tensor, binary in wanted:
        check_form(tensor, binary)
    return wanted


def _no_output(contract: Contract, name: str) -> str:
    if name in contract.unnamed:
        return f"The Open Inference Protocol cannot represent output {name!r}, which is {contract.unnamed[name]}."
    return f"The model has no output {name[:80]!r}. Its outputs: {', '.join(contract.outputs)}."


def _reply(
    model: ServedModel,
    request: InferRequest,
    wanted: list[tuple[TensorSpec, bool]],
    values: list[Any],
    check: Check,
) -> InferReply:
    head: dict[str, Any] = {"model_name": model.name, "model_version": model.version}
    if request.id is not None:
        head["id"] = request.id
    # Remove the closing brace and append outputs as text, so that large arrays do not become lists of objects.
    pieces: list[bytes] = [json.dumps(head)[:-1].encode(), b', "outputs": [']
    binaries: list[bytes | memoryview] = []
    for number, ((tensor, binary), value) in enumerate(zip(wanted, values, strict=True)):
        check()
        fields: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": shape_of(value, tensor),
        }
        if binary:
            data = to_bytes(value, tensor, check)
            binaries.append(data)
            fields["parameters"] = {"binary_data_size": len(data)}
        pieces.append((b", " if number else b"") + json.dumps(fields).encode())
        if not binary:
            pieces[-1] = pieces[-1][:-1] + b', "data": '
            pieces.extend(to_json(value, tensor, check))
            pieces.append(b"}")
    pieces.append(b"]}")
    check()
    front = b"".join(pieces)
    if not binaries:
        return InferReply(front, None)
    return InferReply(b"".join([front, *binaries]), len(front))
