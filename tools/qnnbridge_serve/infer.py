"""Inference: reads a request, runs the model, writes the answer's body.

A request is a JSON object and the binary tensors behind it. What does not depend on the model is checked while
reading: JSON, fields and their types, shapes, sizes of the binary parts; binary parts stay views of the body.
Running is called in a worker thread; nothing is kept.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from qnnbridge_protocol.elements import MAX_RANK
from qnnbridge_serve import tensors
from qnnbridge_serve.errors import wrong
from qnnbridge_serve.json_reading import NULL, Check, Fields, Take, read_fields, read_value
from qnnbridge_serve.tensors import Contract, GivenTensor, TensorSpec
from qnnbridge_serve.transport import check_answer_time, time_left_s

# Parameters that cannot be passed over as unknown, because the answer would be another one.
_UNSERVED: Final = {
    "shared_memory_region": "Shared memory regions are not supported",
    "classification": "The classification extension is not supported",
}


@dataclasses.dataclass(frozen=True, slots=True)
class WantedOutput:
    """binary: ``None`` if the request does not say it for this one."""

    name: str
    binary: bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class InferRequest:
    """A request, read.

    Args:
        id: Echoed in the reply; ``None`` if the request has none.
        outputs: ``None`` for all outputs of the model.
        binary: Default form of the outputs.
        timeout_s: Seconds that the client grants; ``None`` for no limit.
    """

    id: str | None
    inputs: tuple[GivenTensor, ...]
    outputs: tuple[WantedOutput, ...] | None
    binary: bool
    timeout_s: float | None


def header_length(text: str | None, size: int) -> int | None:
    """The value of ``Inference-Header-Content-Length`` for a body of this size; ``None`` without the header."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) > size:
        raise wrong(
            f"Inference-Header-Content-Length is {text[:40]!r}, which cannot be: the body has {size} bytes."
        )
    return int(text)


def read_request(body: memoryview, json_size: int | None) -> InferRequest:
    """Reads the body of an inference request.

    Args:
        json_size: Bytes of the body that are JSON; ``None`` for all.

    Raises `Refused`.
    """
    document = read_fields(body if json_size is None else body[:json_size])
    binaries = _Binaries(body[len(body) if json_size is None else json_size :])
    if document.inputs is None:
        raise wrong('The request has no array "inputs".')
    inputs = tuple(_input(entry, binaries) for entry in document.inputs)
    # As Triton does: bytes that belong to no input are a mistake in a size, and the tensors before it may be
    # shifted.
    if binaries.left:
        raise wrong(f"{binaries.left} bytes of the body belong to no input; see binary_data_size.")
    names = [tensor.name for tensor in inputs]
    # The session's feed is a dict: the second one would replace the first in silence.
    if len(set(names)) < len(names):
        raise wrong(f"An input is given twice: {', '.join(names)}.")
    parameters = _parameters(document.own, "The request")
    return InferRequest(
        id=_text(document.own, "id", "The request", required=False),
        inputs=inputs,
        # An empty array asks for all outputs, as a request without the field does.
        outputs=tuple(map(_output, document.outputs)) if document.outputs else None,
        binary=_boolean(parameters, "binary_data_output") or False,
        timeout_s=_timeout(parameters),
    )


class _Binaries:
    """Hands out the binary part from front to back."""

    def __init__(self, data: memoryview) -> None:
        # A view of the body: binary tensors are not copied before the model takes them.
        self._data = data
        self._used = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._used

    def take(self, size: int, name: str) -> memoryview:
        if size > self.left:
            raise wrong(f"Input {name!r}: binary_data_size is {size}, and only {self.left} bytes are left.")
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
            raise wrong(f"{where}: data is no array.")
        return GivenTensor(name, datatype, shape, data, None)
    if data != NULL:
        raise wrong(f"{where} has data and binary_data_size; give one of them.")
    if type(size) is not int or size < 0:
        raise wrong(f"{where}: binary_data_size is {_shown(size)}, which is no number of bytes.")
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
    """Microseconds, as Triton has it. 0 is no limit."""
    value = parameters.get("timeout")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**63:
        raise wrong(f"The parameter timeout is {_shown(value)}, which is no number of microseconds.")
    return value / 1e6 if value else None


def _parameters(fields: Fields, where: str) -> Mapping[str, Any]:
    """Unknown ones are passed over, as the protocol wants it."""
    found = read_value(fields.get("parameters", NULL), f"{where}: parameters")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise wrong(f"{where}: parameters is no JSON object.")
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
        raise wrong(f'{where} has no text "{name}".')
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Session(Protocol):
    """The used part of `qnnbridge.InferenceSession`."""

    def run(
        self, output_names: Any, input_feed: Any, *, timeout: float | None = None, borrow: bool = False
    ) -> list[Any]: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is loaded. summary: where it runs, as text."""

    name: str
    version: str
    contract: Contract
    session: Session
    summary: str

    def close(self) -> None:
        self.session.close()


@dataclasses.dataclass(frozen=True, slots=True)
class InferReply:
    """json_size: how many bytes of the body are JSON; ``None`` if all are."""

    body: bytes
    json_size: int | None


def infer(
    model: ServedModel, request: InferRequest, deadline: float | None, take: Take = lambda size: None
) -> InferReply:
    """Runs the model for one request.

    Args:
        deadline: Time of `time.monotonic`; ``None`` for no limit.
        take: Reserves the memory of inputs that come as JSON or texts.

    Raises `Refused` and the errors of `qnnbridge.errors`.
    """
    wanted = _wanted(model.contract, request)
    feed = {}
    check = functools.partial(time_left_s, deadline)
    for given in request.inputs:
        declared = model.contract.inputs.get(given.name)
        if declared is None:
            known = ", ".join(model.contract.inputs) or "none"
            raise wrong(f"The model {model.name} has no input {given.name[:80]!r}. Its inputs: {known}.")
        feed[given.name] = tensors.to_value(given, declared, take, check)
    names = None if request.outputs is None else [tensor.name for tensor, _ in wanted]
    # `borrow`: results are written to the socket and dropped, so they need not be copied out of shared
    # memory.
    values = model.session.run(names, feed, timeout=time_left_s(deadline), borrow=True)
    return _reply(model, request, wanted, values, functools.partial(check_answer_time, deadline))


def _wanted(contract: Contract, request: InferRequest) -> list[tuple[TensorSpec, bool]]:
    """The outputs to send, and whether as binary data."""
    if request.outputs is None:
        # Sequences, maps and the like: a client that names its outputs can leave them out.
        if contract.unnamed:
            listed = ", ".join(f"{name!r} ({kind})" for name, kind in contract.unnamed.items())
            raise wrong(
                f"The Open Inference Protocol cannot carry {listed}. Ask for the others by name, in the request's "
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
            raise wrong("An output is asked for twice.")
    for tensor, binary in wanted:
        tensors.check_form(tensor, binary)
    return wanted


def _no_output(contract: Contract, name: str) -> str:
    if name in contract.unnamed:
        return f"The Open Inference Protocol cannot carry output {name!r}, which is {contract.unnamed[name]}."
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
    # Without its closing brace: outputs follow as text, so that no large array becomes a list of objects.
    pieces: list[bytes] = [json.dumps(head)[:-1].encode(), b', "outputs": [']
    binaries: list[bytes | memoryview] = []
    for number, ((tensor, binary), value) in enumerate(zip(wanted, values, strict=True)):
        check()
        fields: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensors.shape_of(value, tensor),
        }
        if binary:
            data = tensors.to_bytes(value, tensor, check)
            binaries.append(data)
            fields["parameters"] = {"binary_data_size": len(data)}
        pieces.append((b", " if number else b"") + json.dumps(fields).encode())
        if not binary:
            pieces[-1] = pieces[-1][:-1] + b', "data": '
            pieces.extend(tensors.to_json(value, tensor, check))
            pieces.append(b"}")
    pieces.append(b"]}")
    check()
    front = b"".join(pieces)
    if not binaries:
        return InferReply(front, None)
    return InferReply(b"".join([front, *binaries]), len(front))
