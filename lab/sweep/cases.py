"""A case: a tiny graph in words that JSON can hold, from which any process builds the same model and inputs.

The words are what the table of known-wrong operators keeps as the way to reproduce a row. No threads, no files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]

_TYPES: Final = {
    "float": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "bool": TensorProto.BOOL,
}
FLOATS: Final = ("float", "float16")
# The newest that every ONNX Runtime of the sweep loads.
IR_VERSION: Final = 10
MICROSOFT: Final = "com.microsoft."


@dataclasses.dataclass(frozen=True, slots=True)
class SweepTensor:
    """A tensor that no node makes.

    values: how it is filled, as `filled` takes it. constant: it is part of the model.
    """

    shape: tuple[int, ...]
    type: str = "float"
    values: Any = "normal"
    constant: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class SweepNode:
    """One node. Its first output is called `y` and its number; an input that is left out is ""."""

    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    outputs: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One case. form: float, float16, or qdq8, qdq16 with all float tensors quantised to that many bits."""

    tensors: Mapping[str, SweepTensor]
    nodes: tuple[SweepNode, ...]
    opset: int = 17
    form: str = "float"
    seed: int = 0

    @property
    def name(self) -> str:
        """The operators and a hash of the words."""
        digest = hashlib.sha256(json.dumps(self.to_words(), sort_keys=True).encode()).hexdigest()
        return f"{'+'.join(node.op for node in self.nodes)}-{self.form}-{digest[:10]}"

    def to_words(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "tensors": {name: list(dataclasses.astuple(one)) for name, one in self.tensors.items()},
            "nodes": [[n.op, list(n.inputs), dict(n.attributes), n.outputs] for n in self.nodes],
            "opset": self.opset,
            "form": self.form,
            "seed": self.seed,
        }

    @classmethod
    def from_words(cls, words: Mapping[str, Any]) -> Case:
        """What `to_words` gave."""
        return cls(
            {name: SweepTensor(tuple(shape), *rest) for name, (shape, *rest) in words["tensors"].items()},
            tuple(SweepNode(op, tuple(inputs), dict(attrs), many) for op, inputs, attrs, many in words["nodes"]),
            words["opset"],
            words["form"],
            words["seed"],
        )


def filled(tensor: SweepTensor, seed: int) -> Array:
    """The values of a tensor, exact in half floats.

    `tensor.values`: a list; "normal"; ["normal", scale]; ["uniform", low, high]; ["grid", step, largest] for whole
    multiples of a step; ["ints", low, high] (high excluded); "ramp"; "permutation".
    """
    rng = np.random.default_rng(seed)
    listed = isinstance(tensor.values, (list, tuple))
    kind, *rest = tensor.values if listed and len(tensor.values) else [None if listed else tensor.values]
    if not isinstance(kind, str):
        values: Array = np.asarray(tensor.values).reshape(tensor.shape)
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
    elif kind == "fan":  # weights that keep the size of the values
        values = rng.normal(0, 1, tensor.shape) / np.sqrt(max(1, np.prod(tensor.shape[1:])))
    else:
        raise ValueError(f"values {tensor.values!r}")
    if tensor.type in FLOATS:
        with np.errstate(over="ignore"):
            values = values.astype(np.float16)
    return values.astype(helper.tensor_dtype_to_np_dtype(_TYPES[tensor.type]))


def feeds_of(case: Case) -> dict[str, Array]:
    """The inputs of the model."""
    found = {}
    for number, (name, tensor) in enumerate(case.tensors.items()):
        if not tensor.constant:
            found[name] = filled(_in_form(tensor, case.form), case.seed * 1000 + number)
    return found


def float_model(case: Case, *, every_output: bool = False) -> onnx.ModelProto:
    """The model without quantisation. every_output: of all nodes, not of the last alone."""
    constants = [
        numpy_helper.from_array(filled(_in_form(tensor, case.form), case.seed * 1000 + number), name)
        for number, (name, tensor) in enumerate(case.tensors.items())
        if tensor.constant
    ]
    inputs = [
        helper.make_tensor_value_info(name, _TYPES[_in_form(tensor, case.form).type], tensor.shape)
        for name, tensor in case.tensors.items()
        if not tensor.constant
    ]
    nodes = []
    for number, node in enumerate(case.nodes):
        domain = "com.microsoft" if node.op.startswith(MICROSOFT) else ""
        outputs = [f"y{number}", *(f"y{number}_{k}" for k in range(1, node.outputs))]
        op = node.op.removeprefix(MICROSOFT)
        nodes.append(
            helper.make_node(op, node.inputs, outputs, name=f"node{number}", domain=domain, **node.attributes)
        )
    shown = [name for node in (nodes if every_output else nodes[-1:]) for name in node.output]
    return _complete(nodes, inputs, shown, constants, case.opset)


def _in_form(tensor: SweepTensor, form: str) -> SweepTensor:
    if form == "float16" and tensor.type == "float":
        return dataclasses.replace(tensor, type="float16")
    return tensor


def _complete(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    constants: Sequence[onnx.TensorProto],
    opset: int,
) -> onnx.ModelProto:
    """With types and shapes of the outputs as they are inferred. Raises `ValueError` where they are not."""
    graph = helper.make_graph(list(nodes), "case", list(inputs), [], list(constants))
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=IR_VERSION)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    known = {value.name: value for value in inferred.graph.value_info}
    for name in outputs:
        if name in known and known[name].type.tensor_type.elem_type:
            model.graph.output.append(known[name])
        else:
            model.graph.output.append(helper.make_empty_tensor_value_info(name))
    return model


def quantised_model(case: Case, ranges: Mapping[str, tuple[float, float]]) -> onnx.ModelProto:
    """With a pair of QuantizeLinear and DequantizeLinear behind every float tensor, as exporters write them.

    ranges: smallest and largest value of every float tensor that is no constant. Constants get 8 bits with a sign,
    a bias (third input of Conv and the like) 32.
    """
    plain = float_model(case)
    bits = 16 if case.form == "qdq16" else 8
    kind = np.uint16 if bits == 16 else np.uint8
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in plain.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    scales: dict[str, float] = {}
    shown: dict[str, str] = {}
    domain = "com.microsoft" if bits == 16 and case.opset < 21 else ""

    def constant(name: str, value: Array) -> str:
        constants.append(numpy_helper.from_array(value, name))
        return name

    def pair(name: str, low: float, high: float) -> None:
        low, high = min(low, 0.0), max(high, 0.0)
        scale = max((high - low) / (2**bits - 1), 1e-6)
        zero = int(np.clip(round(-low / scale), 0, 2**bits - 1))
        scales[name] = scale
        both = [constant(f"{name}_scale", np.float32(scale)), constant(f"{name}_zero", np.array(zero, kind))]
        nodes.append(helper.make_node("QuantizeLinear", [name, *both], [f"{name}_q"], domain=domain))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *both], [f"{name}_dq"], domain=domain))
        shown[name] = f"{name}_dq"

    def weight(name: str, bias_scale: float | None) -> str:
        value = weights[name]
        if value.dtype != np.float32:
            return constant(name, value) if not any(c.name == name for c in constants) else name
        if name in shown:
            return shown[name]
        if bias_scale is not None:
            scale, whole = bias_scale, np.int32
            quantised = np.round(value / scale).astype(np.int32)
        else:
            scale = max(float(np.abs(value).max()) / 127, 1e-6)
            quantised, whole = np.clip(np.round(value / scale), -127, 127).astype(np.int8), np.int8
        scales[name] = scale
        given = [
            constant(f"{name}_q", quantised),
            constant(f"{name}_scale", np.float32(scale)),
            constant(f"{name}_zero", np.array(0, whole)),
        ]
        nodes.append(helper.make_node("DequantizeLinear", given, [f"{name}_dq"], domain=domain))
        shown[name] = f"{name}_dq"
        return shown[name]

    for value in plain.graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            pair(value.name, *ranges[value.name])
    for node in plain.graph.node:
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        del changed.input[:]
        for position, name in enumerate(node.input):
            if name in weights:
                has_bias = position == 2 and node.op_type in ("Conv", "ConvTranspose", "Gemm")
                of_bias = scales[node.input[0]] * scales[node.input[1]] if has_bias else None
                changed.input.append(weight(name, of_bias))
            else:
                changed.input.append(shown.get(name, name))
        nodes.append(changed)
        for name in node.output:
            if name in ranges:
                pair(name, *ranges[name])
    outputs = [shown.get(value.name, value.name) for value in plain.graph.output]
    return _complete(nodes, list(plain.graph.input), outputs, constants, case.opset)
