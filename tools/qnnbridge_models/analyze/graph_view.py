"""A model as the rules see it: nodes with types, shapes and attributes, and the maker of each tensor. No weights
are read.

Immutable after `view_of`. Nodes inside of If, Loop and Scan are counted with their node, not one by one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from qnnbridge_host.graph import graphs
from qnnbridge_protocol.elements import LAYOUTS, ElementType

# Constants up to here are read, since they may be axes, sizes or limits.
_SMALL_BYTES = 1 << 12
_ELEMENTS = frozenset(element.value for element in ElementType)


@dataclasses.dataclass(frozen=True, slots=True)
class GraphTensor:
    """One tensor.

    Args:
        type: "" if it is not known.
        shape: None if the rank is not known; None for an axis without a fixed size.
    """

    name: str
    type: str = ""
    shape: tuple[int | None, ...] | None = None
    constant: bool = False

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def fixed(self) -> tuple[int, ...] | None:
        """The shape if every axis has a size."""
        if self.shape is None or None in self.shape:
            return None
        return cast("tuple[int, ...]", self.shape)

    @property
    def elements(self) -> int | None:
        shape = self.fixed
        return None if shape is None else math.prod(shape)

    @property
    def is_empty(self) -> bool:
        return self.shape is not None and 0 in self.shape


@dataclasses.dataclass(frozen=True, eq=False)
class GraphNode:
    """One node of the main graph.

    Args:
        op: `Conv`, or with its domain if that is not ONNX's own.
        inputs: None where one is left out.
    """

    index: int
    name: str
    op: str
    inputs: tuple[GraphTensor | None, ...]
    outputs: tuple[GraphTensor | None, ...]
    attributes: Mapping[str, Any]
    # Nodes of its subgraphs.
    inner: int = 0
    inner_ops: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.name or (self.made[0].name if self.made else f"#{self.index}")

    # Kept: the rules ask dozens of times for each node.
    @functools.cached_property
    def given(self) -> tuple[GraphTensor, ...]:
        return tuple(tensor for tensor in self.inputs if tensor is not None)

    @functools.cached_property
    def made(self) -> tuple[GraphTensor, ...]:
        return tuple(tensor for tensor in self.outputs if tensor is not None)

    def input(self, number: int) -> GraphTensor | None:
        return self.inputs[number] if number < len(self.inputs) else None

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)


@dataclasses.dataclass(frozen=True)
class GraphView:
    """The main graph of a model.

    Args:
        nodes: in the order of the file.
        inputs, outputs: of the model; weights are no inputs.
    """

    nodes: tuple[GraphNode, ...]
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    # Small constants by name, as numpy arrays.
    values: Mapping[str, Any]
    opset: int
    ir_version: int
    # Bytes of constants by name.
    sizes: Mapping[str, int]
    # What subgraphs use from outside of them.
    captured: frozenset[str]

    @functools.cached_property
    def maker(self) -> Mapping[str, GraphNode]:
        return {tensor.name: node for node in self.nodes for tensor in node.made}

    @functools.cached_property
    def users(self) -> Mapping[str, tuple[GraphNode, ...]]:
        found: dict[str, list[GraphNode]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(tensor.name for tensor in node.given):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @functools.cached_property
    def links(self) -> tuple[list[tuple[int, ...]], list[list[int]]]:
        """Indexes of the makers of what each node takes, and of the users of what it makes, each once."""
        made_by = {tensor.name: node.index for node in self.nodes for tensor in node.made}
        before: list[tuple[int, ...]] = []
        behind: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            makers = dict.fromkeys(made_by[tensor.name] for tensor in node.given if tensor.name in made_by)
            before.append(tuple(makers))
            for maker in makers:
                behind[maker].append(node.index)
        return before, behind

    @functools.cached_property
    def operators(self) -> frozenset[str]:
        """As nodes name them: with their domains."""
        return frozenset(node.op for node in self.nodes)

    @functools.cached_property
    def output_names(self) -> frozenset[str]:
        return frozenset(tensor.name for tensor in self.outputs)

    def value(self, tensor: GraphTensor | None) -> Any | None:
        """A small constant's value."""
        return None if tensor is None else self.values.get(tensor.name)


def view_of(
    model: Any, known: Mapping[str, graphs.TensorType] | None = None, names: Sequence[str] | None = None
) -> GraphView:
    """Reads the main graph of a model.

    Args:
        model: a `ModelProto`; tensors in other files need not be loaded.
        known: types and shapes, if inferred.
        names: of the nodes, in place of those that they have.
    """
    known = graphs.types_of(model) if known is None else known
    values: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for tensor in _constants(model.graph):
        sizes[tensor.name] = _bytes_of(tensor)
        if sizes[tensor.name] <= _SMALL_BYTES:
            _read(tensor, values)
    overridable = {value.name for value in model.graph.input}
    constants = {name for name in sizes if model.ir_version < 4 or name not in overridable}
    tensors: dict[str, GraphTensor] = {}

    def tensor_of(name: str) -> GraphTensor | None:
        if not name:
            return None
        if name not in tensors:
            element, shape = known.get(name, (0, None))
            tensors[name] = GraphTensor(name, _type_name(element), shape, name in constants)
        return tensors[name]

    nodes = tuple(
        GraphNode(
            index,
            node.name if names is None else names[index],
            graphs.op_name(node),
            tuple(map(tensor_of, node.input)),
            tuple(map(tensor_of, node.output)),
            graphs.attribute_values(node),
            *_inner(node),
        )
        for index, node in enumerate(model.graph.node)
    )
    inputs = [value for value in model.graph.input if value.name not in sizes]
    return GraphView(
        nodes,
        tuple(filter(None, (tensor_of(value.name) for value in inputs))),
        tuple(filter(None, (tensor_of(value.name) for value in model.graph.output))),
        values,
        graphs.opset_of(model) or 0,
        model.ir_version,
        sizes,
        frozenset(graphs.captured_names(model.graph)),
    )


def _constants(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    yield from filter(None, map(graphs.constant_tensor, graph.node))


@functools.cache
def _type_name(element: int) -> str:
    return ElementType(element).text if element in _ELEMENTS else ""


def _bytes_of(tensor: Any) -> int:
    if tensor.raw_data:
        return len(tensor.raw_data)
    bits_each = LAYOUTS[ElementType(tensor.data_type)].bits if tensor.data_type in _ELEMENTS else 8
    bits: int = math.prod(tensor.dims) * bits_each
    return bits // 8


def _read(tensor: Any, values: dict[str, Any]) -> None:
    from onnx import numpy_helper

    if tensor.data_location or tensor.data_type == 8:
        return
    try:
        values[tensor.name] = numpy_helper.to_array(tensor)
    except (ValueError, TypeError):  # fewer bytes than its shape says: ONNX Runtime will refuse the model
        return


def _inner(node: Any) -> tuple[int, tuple[str, ...]]:
    if not node.attribute:
        return 0, ()
    ops = [
        graphs.op_name(inner)
        for attribute in node.attribute
        for graph in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
        for deep in graphs.subgraphs(graph)
        for inner in deep.node
    ]
    return len(ops), tuple(dict.fromkeys(ops))
