"""The cost of each node: number of computations, size of its constants, and number of nodes including those in
subgraphs.

Costs are estimated from shapes. A node with subgraphs (If, Loop, Scan) includes the cost of its subgraphs: QNN runs
such a node as a whole or not at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.model.work import makes_products, products_of

# Bytes per element; unlisted types (int8, uint8, bool) have 1.
_BYTES: Final[Mapping[str, float]] = {
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int4", "uint4"), 0.5),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one node, including its subgraphs.

    Args:
        macs: number of multiply-accumulate operations; for operators without multiplications, one per output
            element.
        weights, results: size in bytes.
        nodes: number of nodes in the file, including nodes of subgraphs that may run.
        beforehand: number of nodes in subgraphs that never run: Constant nodes, and nodes of branches that are not
            taken.
        sized: number of nodes whose results have known shapes.
        guessed: operations in `macs` for nodes with unknown shapes: one operation for each weight.
    """

    macs: int = 0
    weights: int = 0
    results: int = 0
    nodes: int = 1
    beforehand: int = 0
    sized: int = 0
    guessed: int = 0


def costs_of(view: ModelIndex, model: Any) -> list[Cost]:
    """Return the cost of each node. The size of a constant is counted once, for the first node that reads it.

    Args:
        view: index used for the prediction, in which both branches of an If with a known condition are copies of
            the taken branch.
        model: the original `ModelProto`, used to count nodes.
    """
    left = dict(view.sizes)
    costs = [_cost(node, left) for node in view.nodes]
    if any(node.inner_ops for node in view.nodes):
        # Infer the types inside subgraphs here, because the index contains only the main graph.
        for index, node in enumerate(graphs.infer(view.model).graph.node):
            if costs[index] and view.nodes[index].inner_ops:
                costs[index] = _with_bodies(costs[index], node, view.nodes[index], view, left)
        for index, node in enumerate(model.graph.node):
            inner = sum(len(body.node) for body in graphs.graphs_in(node))
            running = _running(view.protos[index])
            costs[index] = dataclasses.replace(costs[index], nodes=1 + running, beforehand=inner - running)
    return costs


def _running(proto: Any) -> int:
    """Count the nodes of subgraphs, except Constant nodes and branches that never run."""
    bodies = {body.SerializeToString(): body for body in graphs.bodies_of(proto)}
    inner = [one for body in bodies.values() for graph in graphs.subgraphs(body) for one in graph.node]
    return sum(one.op_type != "Constant" for one in inner)


def _cost(node: GraphNode, left: dict[str, int]) -> Cost:
    macs, guessed = products_of(node), 0
    if macs is None:
        macs = sum([tensor.elements or 0 for tensor in node.made])
        if makes_products(node):
            macs = guessed = max(macs, sum([tensor.elements or 0 for tensor in node.given if tensor.constant]))
    weights = sum([left.pop(tensor.name, 0) for tensor in node.given])
    results = sum([int((tensor.elements or 0) * _BYTES.get(tensor.type, 1)) for tensor in node.made])
    sized = all(tensor.fixed is not None for tensor in node.made)
    return Cost(macs, weights, results, sized=sized, guessed=guessed)


def _with_bodies(cost: Cost, proto: Any, node: GraphNode, outer: ModelIndex, left: dict[str, int]) -> Cost:
    """Add the computations and constants of a node's subgraphs to its cost, but not the size of the subgraphs'
    results.
    """
    bodies = [_of_body(body, outer, left) for body in graphs.bodies_of(proto)]
    works = [sum([one.macs for one in body]) for body in bodies]
    guesses = [sum([one.guessed for one in body]) for body in bodies]
    # Only one branch of an If runs, so count the more expensive one. The body of a loop runs for each step.
    if node.op == "If":
        macs, guessed = max(zip(works, guesses, strict=True), default=(0, 0))
    else:
        steps = _steps(node)
        macs, guessed = sum(works) * steps, sum(guesses) * steps
    inner = [one for body in bodies for one in body]
    return dataclasses.replace(
        cost,
        macs=macs,
        guessed=guessed,
        weights=cost.weights + sum([one.weights for one in inner]),
        sized=cost.sized + sum([one.sized for one in inner]),
    )


def _of_body(body: Any, outer: ModelIndex, left: dict[str, int]) -> list[Cost]:
    types = dict(outer.types)
    for tensor in body.initializer:
        types[tensor.name] = (tensor.data_type, tuple(tensor.dims))
    for value in (*body.value_info, *body.input, *body.output):
        types[value.name] = graphs.type_of_value(value)
    # Pass only the graph and the versions, which the index needs: a full `ModelProto` would copy the subgraph's
    # weights.
    model = SimpleNamespace(graph=body, ir_version=outer.model.ir_version, opset_import=outer.model.opset_import)
    index = ModelIndex(model, types)
    left.update(index.sizes)
    costs = []
    for node, proto in zip(index.nodes, index.protos, strict=True):
        if node.op == "Constant":
            continue
        cost = _cost(node, left)
        costs.append(_with_bodies(cost, proto, node, index, left) if node.inner_ops else cost)
    return costs


def _steps(node: GraphNode) -> int:
    """Return how often the body of a loop runs; 1 if unknown."""
    if node.op == "Loop":
        most = node.input(0)
        values = most.values if most is not None else None
        return max(1, int(values[0])) if values else 1
    scanned = int(node.get("num_scan_inputs", 0))
    first = node.given[-scanned] if 0 < scanned <= len(node.given) else None
    axes: Sequence[int] = node.get("scan_input_axes", ()) or (0,)
    sizes = first.fixed if first is not None else None
    return max(1, sizes[axes[0]]) if sizes and -len(sizes) <= axes[0] < len(sizes) else 1
