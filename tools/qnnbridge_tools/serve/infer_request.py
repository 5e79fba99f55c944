"""An inference request, read: the JSON object at the front of the body, and the binary tensors behind it.

Everything that does not depend on the model is checked here: JSON, fields and their types, shapes, the sizes of the
binary parts. Pure functions; the arrays are not made yet, binary parts are views of the body.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final

from qnnbridge_protocol.elements import MAX_RANK
from qnnbridge_tools.serve.refusals import Refused, bad_request

MAX_JSON_BYTES: Final = 64 * 1024**2
"""JSON is read in one go, and nothing else runs meanwhile: this is half a second or more."""

_UNSERVED: Final = {
    "shared_memory_region": "Shared memory regions are not supported",
    "classification": "The classification extension is not supported",
}
"""Parameters that cannot be passed over as unknown, because the answer would be another one."""


@dataclasses.dataclass(frozen=True, slots=True)
class GivenTensor:
    """One input as it came. Exactly one of `data` (from JSON) and `raw` (binary) is there."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any] | None
    raw: memoryview | None


@dataclasses.dataclass(frozen=True, slots=True)
class WantedOutput:
    """binary: ``None`` if the request does not say it for this one."""

    name: str
    binary: bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class InferRequest:
    """id: to be echoed; ``None`` if there was none. outputs: ``None`` for all of the model's.

    binary: how outputs are sent of which nothing else is said. timeout_s: what the client grants; ``None``: any.
    """

    id: str | None
    inputs: tuple[GivenTensor, ...]
    outputs: tuple[WantedOutput, ...] | None
    binary: bool
    timeout_s: float | None


def header_length(text: str | None, size: int) -> int | None:
    """What ``Inference-Header-Content-Length`` says of a body of this size; ``None`` without it."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) > size:
        raise bad_request(
            f"Inference-Header-Content-Length is {text[:40]!r}, which cannot be: the body has {size} bytes."
        )
    return int(text)


def read_request(body: memoryview, json_size: int | None) -> InferRequest:
    """json_size: how many bytes of the body are JSON; all if ``None``. Raises `Refused`."""
    document = _object(read_json(body if json_size is None else body[:json_size]), "The request")
    binaries = _Binaries(body[len(body) if json_size is None else json_size :])
    inputs = tuple(_input(entry, binaries) for entry in _list(document, "inputs", required=True) or ())
    if binaries.left:
        raise bad_request(f"{binaries.left} bytes of the body belong to no input; see binary_data_size.")
    names = [tensor.name for tensor in inputs]
    if len(set(names)) < len(names):
        raise bad_request(f"An input is given twice: {', '.join(names)}.")
    wanted = _list(document, "outputs", required=False)
    parameters = _parameters(document, "The request")
    return InferRequest(
        id=_text(document, "id", "The request", required=False),
        inputs=inputs,
        outputs=tuple(map(_output, wanted)) if wanted else None,
        binary=_boolean(parameters, "binary_data_output") or False,
        timeout_s=_timeout(parameters),
    )


def read_json(data: memoryview) -> Any:
    """JSON of a request. NaN and Infinity, which JSON does not have, are understood: clients send them."""
    if len(data) > MAX_JSON_BYTES:
        raise Refused(
            413,
            f"The JSON part has {len(data)} bytes, more than {MAX_JSON_BYTES}. "
            "Send large tensors as binary data (binary_data_size).",
        )
    try:
        return json.loads(bytes(data))
    except RecursionError:
        raise bad_request("The JSON is nested too deep.") from None
    except ValueError as error:
        raise bad_request(f"The JSON cannot be read: {error}.") from None


class _Binaries:
    """Hands out the binary part from front to back."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._used = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._used

    def take(self, size: int, name: str) -> memoryview:
        if size > self.left:
            raise bad_request(f"Input {name!r}: binary_data_size is {size}, and only {self.left} bytes are left.")
        begin = self._used
        self._used += size
        return self._data[begin : self._used]


def _input(entry: Any, binaries: _Binaries) -> GivenTensor:
    fields = _object(entry, "An input")
    name = _text(fields, "name", "An input") or ""
    where = f"Input {name!r}"
    datatype = _text(fields, "datatype", where) or ""
    shape = _shape(fields.get("shape"), where)
    parameters = _parameters(fields, where)
    size = parameters.get("binary_data_size")
    data = fields.get("data")
    if size is None:
        if data is None:
            raise bad_request(f"{where} has neither data nor the parameter binary_data_size.")
        if not isinstance(data, list):
            raise bad_request(f"{where}: data is no array.")
        return GivenTensor(name, datatype, shape, data, None)
    if data is not None:
        raise bad_request(f"{where} has data and binary_data_size; give one of them.")
    if type(size) is not int or size < 0:
        raise bad_request(f"{where}: binary_data_size is {_shown(size)}, which is no number of bytes.")
    return GivenTensor(name, datatype, shape, None, binaries.take(size, name))


def _output(entry: Any) -> WantedOutput:
    fields = _object(entry, "An output")
    name = _text(fields, "name", "An output") or ""
    return WantedOutput(name, _boolean(_parameters(fields, f"Output {name!r}"), "binary_data"))


def _shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise bad_request(f"{where}: shape is {_shown(value)}, not an array of sizes.")
    if len(value) > MAX_RANK:
        raise bad_request(f"{where}: {len(value)} dimensions are too many.")
    return tuple(value)


def _timeout(parameters: Mapping[str, Any]) -> float | None:
    """Microseconds, as Triton has it. 0 is no limit."""
    value = parameters.get("timeout")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**63:
        raise bad_request(f"The parameter timeout is {_shown(value)}, which is no number of microseconds.")
    return value / 1e6 if value else None


def _parameters(fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Unknown ones are passed over, as the protocol wants it."""
    parameters = fields.get("parameters")
    if parameters is None:
        return {}
    found = _object(parameters, f"{where}: parameters")
    for name, words in _UNSERVED.items():
        if found.get(name):
            raise bad_request(f"{where} has the parameter {name}. {words}.")
    return found


def _boolean(parameters: Mapping[str, Any], name: str) -> bool | None:
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"The parameter {name} is {_shown(value)}, neither true nor false.")
    return value


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise bad_request(f"{what} is no JSON object.")
    return value


def _list(fields: Mapping[str, Any], name: str, *, required: bool) -> list[Any] | None:
    value = fields.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, list):
        raise bad_request(f'The request has no array "{name}".' if value is None else f'"{name}" is no array.')
    return value


def _text(fields: Mapping[str, Any], name: str, where: str, *, required: bool = True) -> str | None:
    value = fields.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, str):
        raise bad_request(f'{where} has no text "{name}".')
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
