"""Runs a model for one request and writes the answer's body. Called in a worker thread; keeps nothing."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any, Protocol

from qnnbridge_protocol.errors import DeadlineExceeded
from qnnbridge_tools.serve import tensors
from qnnbridge_tools.serve.datatypes import Contract, Tensor
from qnnbridge_tools.serve.infer_request import InferRequest
from qnnbridge_tools.serve.refusals import bad_request


class Session(Protocol):
    """What is used of `qnnbridge.InferenceSession`."""

    def run(
        self, output_names: Any, input_feed: Any, *, timeout: float | None = None, borrow: bool = False
    ) -> list[Any]: ...


@dataclasses.dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is loaded."""

    name: str
    version: str
    contract: Contract
    session: Session


@dataclasses.dataclass(frozen=True, slots=True)
class InferReply:
    """json_size: how many bytes of the body are JSON; ``None`` if all are."""

    body: bytes
    json_size: int | None


def infer(model: ServedModel, request: InferRequest, deadline: float | None) -> InferReply:
    """deadline: by `time.monotonic`. Raises `Refused` and the errors of `qnnbridge.errors`."""
    wanted = _wanted(model.contract, request)
    feed = {}
    for given in request.inputs:
        declared = model.contract.inputs.get(given.name)
        if declared is None:
            known = ", ".join(model.contract.inputs) or "none"
            raise bad_request(f"The model {model.name} has no input {given.name[:80]!r}. Its inputs: {known}.")
        feed[given.name] = tensors.to_value(given, declared)
    names = None if request.outputs is None else [tensor.name for tensor, _ in wanted]
    values = model.session.run(names, feed, timeout=time_left_s(deadline), borrow=True)
    return _reply(model, request, wanted, values)


def time_left_s(deadline: float | None) -> float | None:
    """Seconds until then. Raises `DeadlineExceeded` if there are none left."""
    if deadline is None:
        return None
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise not_started()
    return left_s


def not_started() -> DeadlineExceeded:
    return DeadlineExceeded(
        "The time for the request was over before its turn came.",
        fix="Send fewer requests at once, or grant more time (--timeout, the parameter timeout).",
        details={"state": "not-started"},
    )


def _wanted(contract: Contract, request: InferRequest) -> list[tuple[Tensor, bool]]:
    """The outputs to send, and whether as binary data."""
    if request.outputs is None:
        if contract.unnamed:
            listed = ", ".join(f"{name!r} ({kind})" for name, kind in contract.unnamed.items())
            raise bad_request(
                f"The Open Inference Protocol cannot carry {listed}. Ask for the others by name, in the request's "
                f'"outputs": {", ".join(contract.outputs)}.'
            )
        wanted = [(tensor, request.binary) for tensor in contract.outputs.values()]
    else:
        wanted = []
        for output in request.outputs:
            tensor = contract.outputs.get(output.name)
            if tensor is None:
                raise bad_request(_no_output(contract, output.name))
            wanted.append((tensor, request.binary if output.binary is None else output.binary))
        if len({tensor.name for tensor, _ in wanted}) < len(wanted):
            raise bad_request("An output is asked for twice.")
    for tensor, binary in wanted:
        tensors.check_form(tensor, binary)
    return wanted


def _no_output(contract: Contract, name: str) -> str:
    if name in contract.unnamed:
        return f"The Open Inference Protocol cannot carry output {name!r}, which is {contract.unnamed[name]}."
    return f"The model has no output {name[:80]!r}. Its outputs: {', '.join(contract.outputs)}."


def _reply(
    model: ServedModel, request: InferRequest, wanted: list[tuple[Tensor, bool]], values: list[Any]
) -> InferReply:
    head: dict[str, Any] = {"model_name": model.name, "model_version": model.version}
    if request.id is not None:
        head["id"] = request.id
    pieces: list[str] = [json.dumps(head)[:-1], ', "outputs": [']
    binaries: list[bytes | memoryview] = []
    for number, ((tensor, binary), value) in enumerate(zip(wanted, values, strict=True)):
        fields: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensors.shape_of(value, tensor),
        }
        if binary:
            data = tensors.to_bytes(value, tensor)
            binaries.append(data)
            fields["parameters"] = {"binary_data_size": len(data)}
        pieces.append((", " if number else "") + json.dumps(fields))
        if not binary:
            pieces[-1] = pieces[-1][:-1] + ', "data": '
            pieces.extend(tensors.to_json(value, tensor))
            pieces.append("}")
    pieces.append("]}")
    front = "".join(pieces).encode()
    if not binaries:
        return InferReply(front, None)
    return InferReply(b"".join([front, *binaries]), len(front))
