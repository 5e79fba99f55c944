"""A float16 model in float32, with its inputs and outputs as they were: the quantizer reads float32 only."""

from __future__ import annotations

from typing import Any

from qnnbridge_tools.models.shared import graphs

FLOAT, FLOAT16 = 1, 10
_TYPE_ATTRIBUTES = ("to", "dtype")
"""Of Cast, EyeLike, RandomNormal and others: an element type as a number."""


def has_float16(model: Any) -> bool:
    return any(
        tensor.data_type == FLOAT16 for graph in graphs.subgraphs(model.graph) for tensor in graph.initializer
    ) or any(value.type.tensor_type.elem_type == FLOAT16 for value in [*model.graph.input, *model.graph.output])


def widen(model: Any) -> None:
    """Makes every float16 tensor float32, in place; a cast at each float16 input and output keeps the interface."""
    for graph in graphs.subgraphs(model.graph):
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for value in graph.value_info:
            _widen_value(value)
        for node in graph.node:
            _widen_attributes(node)
        if graph is not model.graph:
            for value in [*graph.input, *graph.output]:
                _widen_value(value)
    for function in model.functions:
        for node in function.node:
            _widen_attributes(node)
    _cast_inputs(model.graph)
    _cast_outputs(model.graph)


def _cast_inputs(graph: Any) -> None:
    from onnx import helper

    initialized = {tensor.name for tensor in graph.initializer}
    casts = []
    for value in graph.input:
        if value.type.tensor_type.elem_type != FLOAT16:
            continue
        if value.name in initialized:
            _widen_value(value)
            continue
        inner = f"{value.name}__float32"
        _rename(graph, value.name, inner, outputs=False)
        casts.append(helper.make_node("Cast", [value.name], [inner], name=f"{inner}_cast", to=FLOAT))
    for number, cast in enumerate(casts):
        graph.node.insert(number, cast)


def _cast_outputs(graph: Any) -> None:
    from onnx import helper

    for value in graph.output:
        if value.type.tensor_type.elem_type == FLOAT16:
            inner = f"{value.name}__float32"
            _rename(graph, value.name, inner, outputs=True)
            graph.node.append(helper.make_node("Cast", [inner], [value.name], name=f"{inner}_cast", to=FLOAT16))


def _rename(graph: Any, old: str, new: str, *, outputs: bool) -> None:
    """Nodes inside of other nodes see the names around them."""
    for inner in graphs.subgraphs(graph):
        for node in inner.node:
            for number, name in enumerate(node.input):
                if name == old:
                    node.input[number] = new
            if outputs and inner is graph:
                for number, name in enumerate(node.output):
                    if name == old:
                        node.output[number] = new


def _widen_attributes(node: Any) -> None:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i == FLOAT16:
            attribute.i = FLOAT


def _widen_tensor(tensor: Any) -> None:
    if tensor.data_type != FLOAT16:
        return
    import numpy as np
    from onnx import numpy_helper

    wide = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
    tensor.CopyFrom(wide)


def _widen_value(value: Any) -> None:
    if value.type.tensor_type.elem_type == FLOAT16:
        value.type.tensor_type.elem_type = FLOAT
