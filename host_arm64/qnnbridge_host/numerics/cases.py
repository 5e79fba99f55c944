"""Define test cases: tiny graphs in a JSON form from which any process builds the same model and inputs.

The known-wrong table stores this form to reproduce a row. Models are written as bytes without the package onnx;
their outputs have no types, which ONNX Runtime infers. The module uses neither threads nor files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from qnnbridge_host.model.writing import (
    attribute_message,
    bytes_field,
    number_field,
    tensor_message,
)
from qnnbridge_protocol.elements import element_of

Array = npt.NDArray[Any]

_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "float": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint8": np.dtype(np.uint8),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "bool": np.dtype(np.bool_),
}
FLOATS: Final = ("float", "float16")
# The newest IR version that every tested ONNX Runtime loads.
IR_VERSION: Final = 10
MICROSOFT: Final = "com.microsoft."


@dataclasses.dataclass(frozen=True, slots=True)
class SweepTensor:
    """An input or a constant of a test case's graph.

    values: how to generate its contents, see `filled`. constant: whether it is a constant of the model.
    """

    shape: tuple[int, ...]
    type: str = "float"
    values: Any = "normal"
    constant: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class SweepNode:
    """A node. Its first output is `y` with the node's number; an omitted input has the name ""."""

    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    outputs: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A test case. form: the number format: float, float16, or qdq8 or qdq16, in which all float tensors are
    quantised to 8 or 16 bits."""

    tensors: Mapping[str, SweepTensor]
    nodes: tuple[SweepNode, ...]
    opset: int = 17
    form: str = "float"
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of the case: its operators, its number format and a hash."""
        digest = hashlib.sha256(json.dumps(self.to_words(), sort_keys=True).encode()).hexdigest()
        return f"{'+'.join(node.op for node in self.nodes)}-{self.form}-{digest[:10]}"

    def to_words(self) -> dict[str, Any]:
        """Return the case as JSON types."""
        return {
            "tensors": {name: list(dataclasses.astuple(one)) for name, one in self.tensors.items()},
            "nodes": [[n.op, list(n.inputs), dict(n.attributes), n.outputs] for n in self.nodes],
            "opset": self.opset,
            "form": self.form,
            "seed": self.seed,
        }

    @classmethod
    def from_words(cls, words: Mapping[str, Any]) -> Case:
        """Create the case from the result of `to_words`."""
        return cls(
            {name: SweepTensor(tuple(shape), *rest) for name, (shape, *rest) in words["tensors"].items()},
            tuple(SweepNode(op, tuple(inputs), dict(attrs), many) for op, inputs, attrs, many in words["nodes"]),
            words["opset"],
            words["form"],
            words["seed"],
        )


def filled(tensor: SweepTensor, seed: int) -> Array:
    """Return the values of a tensor, all of which a half float can represent exactly.

    `tensor.values`: a list; "normal"; ["normal", scale]; ["uniform", low, high]; ["grid", step, largest] for
    integer multiples of a step; ["ints", low, high] (high excluded); "ramp" (0, 1, 2, ...); "permutation" of a
    ramp; "fan", normal values divided by the square root of the fan-in.
    """
    rng = np.random.default_rng(seed)
    listed = isinstance(tensor.values, (list, tuple))
    words: list[Any] = list(tensor.values) if listed and len(tensor.values) else [None if listed else tensor.values]
    kind, rest = words[0], words[1:]
    values: Any
    if not isinstance(kind, str):
        values = np.asarray(tensor.values).reshape(tensor.shape)
    elif kind == "normal":
        values = rng.normal(0, rest[0] if rest else 1, tensor.shape)
    elif kind == "uniform":
        values = rng.uniform(rest[0], rest[1], tensor.shape)
    elif kind == "grid":
        steps = int(rest[1] / rest[0])
        values = rng.integers(-steps, steps + 1, tensor.shape) * rest[0]
    elif kind == "ints":
        values = rng.integers(rest[0], rest[1], tensor.shape)
    elif kind == "ramp":
        values = np.arange(np.prod(tensor.shape, dtype=int)).reshape(tensor.shape)
    elif kind == "permutation":
        values = rng.permutation(int(np.prod(tensor.shape))).reshape(tensor.shape)
    elif kind == "fan":  # weights, scaled so that products keep the magnitude of the inputs
        values = rng.normal(0, 1, tensor.shape) / np.sqrt(max(1, math.prod(tensor.shape[1:])))
    else:
        raise ValueError(f"values {tensor.values!r}")
    if tensor.type in FLOATS:
        with np.errstate(over="ignore"):
            values = values.astype(np.float16)
    return np.asarray(values.astype(_DTYPES[tensor.type]))


def feeds_of(case: Case) -> dict[str, Array]:
    """Return the inputs of a case's model."""
    found = {}
    for number, (name, tensor) in enumerate(case.tensors.items()):
        if not tensor.constant:
            found[name] = filled(_in_form(tensor, case.form), case.seed * 1000 + number)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class CaseNode:
    """A node of a case's model, with the names of its tensors."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    name: str = ""
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    domain: str = ""

    def to_message(self) -> bytes:
        """Return the encoded NodeProto."""
        fields = [bytes_field(1, one) for one in self.inputs] + [bytes_field(2, one) for one in self.outputs]
        fields += [bytes_field(3, self.name)] if self.name else []
        fields.append(bytes_field(4, self.op))
        # The attributes are sorted by name, as onnx writes them.
        fields += [bytes_field(5, attribute_message(name, one)) for name, one in sorted(self.attributes.items())]
        fields.append(bytes_field(7, self.domain))
        return b"".join(fields)


@dataclasses.dataclass(frozen=True, slots=True)
class CaseModel:
    """Nodes, inputs, outputs and constants of a case's model."""

    nodes: Sequence[CaseNode]
    inputs: Mapping[str, SweepTensor]
    outputs: Sequence[str]
    constants: Mapping[str, Array]
    opset: int

    def to_bytes(self) -> bytes:
        """Return the encoded model."""
        graph = [bytes_field(1, node.to_message()) for node in self.nodes]
        graph.append(bytes_field(2, "case"))
        graph += [bytes_field(5, _constant(name, value)) for name, value in self.constants.items()]
        graph += [bytes_field(11, _input(name, tensor)) for name, tensor in self.inputs.items()]
        graph += [bytes_field(12, bytes_field(1, name)) for name in self.outputs]
        domains = [("", self.opset), ("com.microsoft", 1)]
        imports = [bytes_field(8, bytes_field(1, name) + number_field(2, version)) for name, version in domains]
        return number_field(1, IR_VERSION) + bytes_field(7, b"".join(graph)) + b"".join(imports)


def float_model(case: Case, *, every_output: bool = False) -> CaseModel:
    """Return the model without quantisation. every_output: whether each node's result is an output of the model."""
    nodes = []
    for number, node in enumerate(case.nodes):
        domain = "com.microsoft" if node.op.startswith(MICROSOFT) else ""
        outputs = (f"y{number}", *(f"y{number}_{k}" for k in range(1, node.outputs)))
        op = node.op.removeprefix(MICROSOFT)
        nodes.append(CaseNode(op, node.inputs, outputs, f"node{number}", node.attributes, domain))
    tensors = {name: _in_form(tensor, case.form) for name, tensor in case.tensors.items()}
    constants = {
        name: filled(tensor, case.seed * 1000 + number)
        for number, (name, tensor) in enumerate(tensors.items())
        if tensor.constant
    }
    shown = [name for node in (nodes if every_output else nodes[-1:]) for name in node.outputs]
    inputs = {name: tensor for name, tensor in tensors.items() if not tensor.constant}
    return CaseModel(nodes, inputs, shown, constants, case.opset)


def _in_form(tensor: SweepTensor, form: str) -> SweepTensor:
    if form == "float16" and tensor.type == "float":
        return dataclasses.replace(tensor, type="float16")
    return tensor


def quantised_model(case: Case, ranges: Mapping[str, tuple[float, float]]) -> CaseModel:
    """Return the model with a QuantizeLinear and DequantizeLinear pair after every float tensor, as exporters do.

    ranges: smallest and largest value of every float tensor that is not constant. Constants are quantised to signed
        8-bit integers, and a bias (third input of Conv and similar) to 32 bits.
    """
    plain = float_model(case)
    bits = 16 if case.form == "qdq16" else 8
    kind = np.uint16 if bits == 16 else np.uint8
    weights = plain.constants
    nodes: list[CaseNode] = []
    constants: dict[str, Array] = {}
    scales: dict[str, float] = {}
    shown: dict[str, str] = {}
    domain = "com.microsoft" if bits == 16 and case.opset < 21 else ""

    def constant(name: str, value: Array) -> str:
        constants[name] = np.asarray(value)
        return name

    def pair(name: str, low: float, high: float) -> None:
        low, high = min(low, 0.0), max(high, 0.0)
        scale = max((high - low) / (2**bits - 1), 1e-6)
        zero = int(np.clip(round(-low / scale), 0, 2**bits - 1))
        scales[name] = scale
        both = [constant(f"{name}_scale", np.float32(scale)), constant(f"{name}_zero", np.array(zero, kind))]
        nodes.append(CaseNode("QuantizeLinear", (name, *both), (f"{name}_q",), domain=domain))
        nodes.append(CaseNode("DequantizeLinear", (f"{name}_q", *both), (f"{name}_dq",), domain=domain))
        shown[name] = f"{name}_dq"

    def weight(name: str, bias_scale: float | None) -> str:
        value = weights[name]
        if value.dtype != np.float32:
            return name if name in constants else constant(name, value)
        if name in shown:
            return shown[name]
        if bias_scale is not None:
            scale, whole = bias_scale, np.int32
            quantised = np.round(value / scale).astype(np.int32)
        else:
            scale = max(float(np.abs(value).max()) / 127, 1e-6)
            quantised, whole = np.clip(np.round(value / scale), -127, 127).astype(np.int8), np.int8
        scales[name] = scale
        given = (
            constant(f"{name}_q", quantised),
            constant(f"{name}_scale", np.float32(scale)),
            constant(f"{name}_zero", np.array(0, whole)),
        )
        nodes.append(CaseNode("DequantizeLinear", given, (f"{name}_dq",), domain=domain))
        shown[name] = f"{name}_dq"
        return shown[name]

    for name, tensor in plain.inputs.items():
        if tensor.type == "float":
            pair(name, *ranges[name])
    for node in plain.nodes:
        inputs = []
        for position, name in enumerate(node.inputs):
            if name in weights:
                has_bias = position == 2 and node.op in ("Conv", "ConvTranspose", "Gemm")
                of_bias = scales[node.inputs[0]] * scales[node.inputs[1]] if has_bias else None
                inputs.append(weight(name, of_bias))
            else:
                inputs.append(shown.get(name, name))
        nodes.append(dataclasses.replace(node, inputs=tuple(inputs)))
        for name in node.outputs:
            if name in ranges:
                pair(name, *ranges[name])
    outputs = [shown.get(name, name) for name in plain.outputs]
    return dataclasses.replace(plain, nodes=nodes, outputs=outputs, constants=constants)


def _constant(name: str, value: Array) -> bytes:
    element = element_of(value.dtype)
    assert element is not None
    return tensor_message(name, int(element), value.shape, np.ascontiguousarray(value).tobytes())


def _input(name: str, tensor: SweepTensor) -> bytes:
    element = element_of(_DTYPES[tensor.type])
    assert element is not None
    shape = b"".join(bytes_field(1, number_field(1, size)) for size in tensor.shape)
    type_ = bytes_field(1, number_field(1, int(element)) + bytes_field(2, shape))
    return bytes_field(1, name) + bytes_field(2, type_)
