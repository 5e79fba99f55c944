"""Cuts parts out of a model: everything up to one tensor, or one node alone. Works on a `ModelProto`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qnnbridge_tools.model_work import graphs
from qnnbridge_tools.model_work.inference import Known


def ancestors(graph: Any, names: Iterable[str]) -> list[int]:
    """Indexes of all nodes that these tensors depend on, in order."""
    wanted = set(names)
    found: list[int] = []
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        if any(name in wanted for name in node.output if name):
            found.append(index)
            wanted.update(_reads(node))
    return found[::-1]


def up_to(model: Any, name: str, known: Mapping[str, Known]) -> Any | None:
    """The part of the model that makes the tensor `name`; None if its type is not known."""
    nodes = ancestors(model.graph, [name])
    return _part(model, nodes, [name], {value.name for value in model.graph.input}, known)


def alone(model: Any, index: int, known: Mapping[str, Known]) -> Any | None:
    """One node; what others make for it is an input."""
    node = model.graph.node[index]
    constants = {tensor.name for tensor in model.graph.initializer}
    return _part(model, [index], [n for n in node.output if n][:1], set(_reads(node)) - constants, known)


def _part(
    model: Any, indexes: list[int], outputs: list[str], inputs: set[str], known: Mapping[str, Known]
) -> Any | None:
    from onnx import helper

    graph = model.graph
    used = {name for index in indexes for name in _reads(graph.node[index])}
    made = {name for index in indexes for name in graph.node[index].output}
    entries = {}
    for name in [*outputs, *(used & inputs)]:
        element, shape = known.get(name, (0, None))
        if not element or shape is None or (name not in outputs and None in shape):
            return None
        entries[name] = helper.make_tensor_value_info(name, element, list(shape))
    part = type(model)()
    part.ir_version = model.ir_version
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    part.graph.name = "part"
    part.graph.node.extend(graph.node[index] for index in indexes)
    part.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in used)
    constants = {tensor.name for tensor in part.graph.initializer}
    part.graph.input.extend(
        entries[name] for name in sorted(used & inputs) if name not in made and name not in constants
    )
    part.graph.output.extend(entries[name] for name in outputs)
    return part


def _reads(node: Any) -> list[str]:
    """Its inputs, and what its subgraphs take from outside."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            inside = {name for inner in graphs.subgraphs(graph) for n in inner.node for name in n.output}
            inside |= {tensor.name for inner in graphs.subgraphs(graph) for tensor in inner.initializer}
            inside |= {value.name for inner in graphs.subgraphs(graph) for value in inner.input}
            for inner in graphs.subgraphs(graph):
                names += [name for n in inner.node for name in n.input if name and name not in inside]
                names += [value.name for value in inner.output if value.name not in inside]
    return names
