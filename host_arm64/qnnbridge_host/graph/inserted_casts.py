"""Casts that ONNX Runtime puts around float16 operators which its CPU provider lacks; QNN does not need them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from qnnbridge_host.graph import graphs

# How ONNX Runtime names them.
INSERTED_CAST: Final = "InsertedPrecisionFreeCast_"
# TensorProto.DataType.
_FLOAT, _FLOAT16 = 1, 10


def strip_inserted_casts(model: Any) -> int:
    """Takes out the casts that ONNX Runtime put around float16 operators for the CPU; gives how many there were.

    QNN computes float16 itself, and would have the whole graph in float32 with them.
    """
    graph = model.graph
    casts: list[Any] = []
    kept: list[Any] = []
    for node in graph.node:
        inserted = node.op_type == "Cast" and node.name.startswith(INSERTED_CAST) and node.input
        (casts if inserted else kept).append(node)
    if not casts:
        return 0
    from_name = {node.output[0]: node.input[0] for node in casts}
    outputs = {value.name for value in graph.output}
    # A cast that makes an output of the model: what it takes gets the name of the output.
    renamed = {node.input[0]: node.output[0] for node in casts if node.output[0] in outputs}

    def source(name: str) -> str:
        # Several casts may follow each other.
        while name in from_name:
            name = from_name[name]
        return str(renamed.get(name, name))

    for node in kept:
        for number, name in enumerate(node.input):
            node.input[number] = source(name)
        for number, name in enumerate(node.output):
            node.output[number] = renamed.get(name, name)
    del graph.node[:]
    graph.node.extend(kept)
    _halve_constants(model)
    del graph.value_info[:]  # their types were those of the float32 graph; every reader infers them again
    return len(casts)


def _halve_constants(model: Any) -> None:
    """Constants that ONNX Runtime has made float32 behind a cast are float16 again where the other operands are."""
    from onnx import numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    half = {value.name for value in graph.input if value.type.tensor_type.elem_type == _FLOAT16}
    half |= {name for name, tensor in constants.items() if tensor.data_type == _FLOAT16}
    made: dict[str, str] = {}
    taken = set(constants) | {name for node in graph.node for name in (*node.input, *node.output)}
    for node in graph.node:
        tensor = graphs.constant_tensor(node)
        if tensor is not None:
            constants[node.output[0]] = tensor
            half |= set(node.output) if tensor.data_type == _FLOAT16 else set()
        elif node.op_type == "Cast":
            half |= {node.output[0] for one in node.attribute if one.name == "to" and one.i == _FLOAT16}
        for inputs, outputs in _of_one_type(model, node):
            if half.isdisjoint(node.input[number] for number in inputs):
                continue
            half.update(node.output[number] for number in outputs)
            for number in inputs:
                name = node.input[number]
                if name in half or name not in constants or constants[name].data_type != _FLOAT:
                    continue
                if name not in made:
                    made[name] = next(
                        new for k in itertools.count() if (new := f"{name}/half{k or ''}") not in taken
                    )
                    values = numpy_helper.to_array(constants[name])
                    with np.errstate(over="ignore"):
                        graph.initializer.append(numpy_helper.from_array(values.astype(np.float16), made[name]))
                    taken.add(made[name])
                    half.add(made[name])
                node.input[number] = made[name]


def _of_one_type(model: Any, node: Any) -> Iterator[tuple[list[int], list[int]]]:
    """The numbers of inputs and outputs of a node that the operator wants to be of one type, for each such type."""
    import onnx

    version = next((one.version for one in model.opset_import if one.domain == node.domain), 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return
    types: dict[str, tuple[list[int], list[int]]] = {}
    for side, names, formal in ((0, node.input, schema.inputs), (1, node.output, schema.outputs)):
        for number, name in enumerate(names):
            if name and formal:
                text = formal[min(number, len(formal) - 1)].type_str
                types.setdefault(text, ([], []))[side].append(number)
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    yield from (numbers for text, numbers in types.items() if text in variables)
