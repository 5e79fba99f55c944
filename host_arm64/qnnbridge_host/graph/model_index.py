"""Index of a `ModelProto`: nodes and tensors by name, types and shapes from onnx's inference, constants.

Weights are read when a value is requested. An `Editor` is an index of a model that is being rewritten; its method
`changed` discards cached data. Tensors that a subgraph reads from the main graph count as used. Not thread-safe:
each rewrite uses its own `Editor`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.graph import graphs
from qnnbridge_host.model.graph_index import GraphIndex, GraphNode, GraphTensor
from qnnbridge_protocol.element_types import text_of
from qnnbridge_protocol.elements import LAYOUTS, ElementType

Array = npt.NDArray[Any]

_EXTERNAL = 1
_TEXT = 8


class ModelIndex(GraphIndex):
    """Index of a model's main graph. The model must not change.

    Args:
        model: the `ModelProto`.
        types: types of the tensors; default: inferred types.
        names: labels of the nodes, which replace the nodes' own names.
        folder: folder of the external tensors; without it their values are unknown.
        follows: index of a constant-folded copy of the model, in which more tensors have known values.
    """

    def __init__(
        self,
        model: Any,
        types: Mapping[str, graphs.TensorType] | None = None,
        names: Sequence[str] | None = None,
        folder: Path | None = None,
        follows: ModelIndex | None = None,
    ) -> None:
        self.model = model
        self._follows = follows
        self._folder = folder
        self.opset = graphs.opset_of(model) or 0
        self._labels = names
        if types is not None:
            self.types = dict(types)

    @property
    def graph(self) -> Any:
        return self.model.graph

    # --- nodes -------------------------------------------------------------------------------------------

    @functools.cached_property
    def protos(self) -> list[Any]:
        """Nodes of the model as protobuf messages."""
        return list(self.graph.node)

    def ops(self) -> Iterator[str]:
        return map(graphs.op_name, self.protos)

    def _reads(self) -> Iterator[Iterable[str]]:
        return (node.input for node in self.protos)

    def _makes(self) -> Iterator[Iterable[str]]:
        return (node.output for node in self.protos)

    def _record(self, place: int) -> GraphNode:
        node = self.protos[place]
        inner = (graphs.op_name(one) for graph in graphs.graphs_in(node) for one in graph.node)
        return GraphNode(
            place,
            node.name if self._labels is None else self._labels[place],
            graphs.op_name(node),
            self.tensors(node.input),
            self.tensors(node.output),
            graphs.attribute_values(node),
            tuple(dict.fromkeys(inner)),
        )

    def maker(self, name: str) -> Any | None:
        """Return the node that computes a tensor."""
        place = self.makers.get(name)
        return None if place is None else self.protos[place]

    def maker_of(self, name: str, *operators: str) -> Any | None:
        """Return the node that computes a tensor if it is one of these ONNX operators, not a call of a function of
        the model."""
        maker = self.maker(name)
        is_one = maker is not None and maker.op_type in operators and maker.domain in graphs.ONNX_DOMAINS
        return maker if is_one else None

    def uses(self, name: str) -> list[Any]:
        """Return the nodes of the main graph that have a tensor as input."""
        return [self.protos[place] for place in self.users.get(name, ())]

    # --- names -------------------------------------------------------------------------------------------

    @functools.cached_property
    def weights(self) -> frozenset[str]:
        """Initializers, by name."""
        return frozenset(tensor.name for tensor in self.graph.initializer)

    @functools.cached_property
    def inputs(self) -> KeysView[str]:
        """Inputs that a caller must give, in their order, without initializers."""
        return dict.fromkeys(value.name for value in self.graph.input if value.name not in self.weights).keys()

    @functools.cached_property
    def outputs(self) -> KeysView[str]:
        """Outputs of the model, in their order."""
        # Use a dict: unlike a set it keeps the order, and searching it is as fast.
        return dict.fromkeys(value.name for value in self.graph.output).keys()

    @functools.cached_property
    def captured(self) -> frozenset[str]:
        """Tensors that subgraphs read from the main graph."""
        return frozenset(name for node in self.protos for name in graphs.captured_by(node))

    def is_free(self, name: str) -> bool:
        """Return whether only nodes of the main graph use a tensor: no subgraph reads it, and it is not an output
        of the model."""
        return name not in self.outputs and name not in self.captured

    # --- tensors -----------------------------------------------------------------------------------------

    @functools.cached_property
    def types(self) -> dict[str, graphs.TensorType]:
        """Known types and shapes of all tensors."""
        return graphs.types_of(self.model)

    def _known(self, name: str) -> graphs.TensorType:
        known = self.types.get(name)
        if known is None:
            tensor = self.tensor(name)
            return (tensor.data_type, tuple(tensor.dims)) if tensor is not None else (0, None)
        return known

    def element(self, name: str) -> int:
        """Return the TensorProto.DataType of a tensor; 0 if the type is unknown."""
        return self._known(name)[0]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor if every size is known, else None."""
        dims = self._known(name)[1]
        if dims is None or None in dims:
            return None
        return tuple(dim for dim in dims if dim is not None)

    def dims(self, name: str) -> tuple[int | None, ...] | None:
        """Return the sizes of a tensor, with None for an unknown size; None if the rank is unknown."""
        return self._known(name)[1]

    def rank(self, name: str) -> int | None:
        dims = self._known(name)[1]
        return None if dims is None else len(dims)

    def is_empty(self, name: str) -> bool:
        """Return whether a tensor is known to be empty."""
        dims = self._known(name)[1] if name else None
        return dims is not None and 0 in dims and None not in dims

    # --- constants ---------------------------------------------------------------------------------------

    @functools.cached_property
    def constants(self) -> dict[str, Any]:
        """Constants: initializers that no caller can override, and tensors of Constant nodes."""
        found = graphs.constants(self.graph)
        # Since IR version 4 an initializer that is also an input is a default that a caller may override.
        for value in self.graph.input if self.model.ir_version >= 4 else ():
            found.pop(value.name, None)
        return found

    def tensor(self, name: str) -> Any | None:
        """Return the initializer, or the tensor of a Constant node."""
        return self.constants.get(name)

    def constant(self, name: str, limit: int | None = None) -> Array | None:
        """Return the value of a constant; None if it is not a constant or has more than `limit` elements."""
        tensor = self.tensor(name)
        if tensor is None or tensor.data_type == _TEXT:
            return None
        if limit is not None and int(np.prod(tensor.dims, dtype=np.int64)) > limit:
            return None
        from onnx import numpy_helper

        if tensor.data_location == _EXTERNAL:
            if self._folder is None:
                return None
            # Load a copy, so that the model does not keep every weight that is read once.
            copy = type(tensor)()
            copy.CopyFrom(tensor)
            graphs.load_tensor(copy, self._folder)
            tensor = copy
        return np.asarray(numpy_helper.to_array(tensor))

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """Sizes of initializers and constants in bytes, by name."""
        return {name: _bytes_of(tensor) for name, tensor in graphs.constants(self.graph).items()}

    # --- records -----------------------------------------------------------------------------------------

    @functools.cached_property
    def _tensors(self) -> dict[str, GraphTensor]:
        return {}

    def about(self, name: str) -> GraphTensor:
        found = self._tensors.get(name)
        if found is None:
            element, shape = self.types.get(name, (0, None))
            constant = name in self.constants
            values = self._values(name) if constant else None
            if not constant and self._follows is not None:
                values = self._follows.about(name).values
            found = self._tensors[name] = GraphTensor(name, text_of(element), shape, constant, values)
        return found

    def _values(self, name: str) -> tuple[Any, ...] | None:
        if _bytes_of(self.constants[name]) > graphs.SMALL_BYTES:
            return None
        try:
            value = self.constant(name)
        # the tensor has fewer bytes than its shape requires: ONNX Runtime will refuse the model
        except (ValueError, TypeError):
            return None
        return None if value is None else tuple(value.ravel().tolist())


def _bytes_of(tensor: Any) -> int:
    if tensor.raw_data:
        return len(tensor.raw_data)
    bits_each = LAYOUTS[ElementType(tensor.data_type)].bits if text_of(tensor.data_type) else 8
    bits: int = math.prod(tensor.dims) * bits_each
    return bits // 8


# --- an index of a model that changes --------------------------------------------------------------------

# TensorProto.DataType: float, float16, double, bfloat16.
FLOATS = (1, 10, 11, 16)
INTEGERS = (2, 3, 4, 5, 6, 7, 12, 13)


class Editor(ModelIndex):
    """Edit the main graph and keep its index up to date.

    Each method `add_*` returns the name of the added node or tensor.

    Args:
        model: the `ModelProto`.
        folder: folder of the model's external tensors.
        right_here: rows of the known-wrong table to ignore, because QNN computes them right on this computer.
    """

    def __init__(self, model: Any, folder: Path, right_here: Collection[str] = ()) -> None:
        super().__init__(model, folder=folder)
        self.folder = folder
        self.right_here = frozenset(right_here)
        # Names in use. Not a cached property, because `changed` would discard the names of nodes that are not in
        # the graph yet.
        self._taken: set[str] | None = None
        # Last number that was appended to each name hint.
        self._numbers: dict[str, int] = {}

    def changed(self, *, shapes: bool = False) -> None:
        """Discard cached data after nodes were added or removed. shapes: also discard types and shapes."""
        # `cached_property` stores its value in `__dict__`. Once deleted, the value is computed again on access.
        for name in [name for name in self.__dict__ if name != "types" or shapes]:
            if isinstance(getattr(type(self), name, None), functools.cached_property):
                del self.__dict__[name]

    @functools.cached_property
    def op_types(self) -> frozenset[str]:
        """Operators of the main graph, without their domains."""
        return frozenset(node.op_type for node in self.protos)

    # --- changing ----------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """Return a name that is not in use yet."""
        if self._taken is None:
            self._taken = set()
            # Include subgraphs, because a name may occur only once in the main graph and its subgraphs.
            for graph in graphs.subgraphs(self.graph):
                self._taken.update(value.name for value in [*graph.input, *graph.output, *graph.initializer])
                for node in graph.node:
                    self._taken.update((*node.input, *node.output, node.name))
        # Continue after the last number used for this hint, because many nodes have the same hint.
        name, number = hint, self._numbers.get(hint, 0)
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._numbers[hint] = number
        self._taken.add(name)
        return name

    def rename_result(self, node: Any, number: int, name: str) -> None:
        """Rename output `number` of a node."""
        # Update only this entry, because `changed` would discard the whole index.
        self.makers[name] = self.makers.pop(node.output[number])
        node.output[number] = name

    def add_constant(self, value: Array, hint: str, name: str | None = None) -> str:
        from onnx import numpy_helper

        name = name or self.fresh(hint)
        # `ascontiguousarray` adds a dimension to a scalar, which the reshape removes.
        self.graph.initializer.append(
            numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
        )
        # Return the last tensor of the graph: Protobuf has appended a copy, so `tensor` is another object.
        tensor = self.graph.initializer[-1]
        self.constants[name] = tensor
        # Check whether `types` exists, because accessing it would start the inference of the whole model.
        if "types" in self.__dict__:
            self.types[name] = (tensor.data_type, tuple(value.shape))
        return name

    def like(self, name: str, value: Any, hint: str) -> str:
        """Add a constant of the element type of tensor `name`."""
        from onnx import helper

        dtype = helper.tensor_dtype_to_np_dtype(self.element(name))
        return self.add_constant(np.asarray(value).astype(dtype), hint)

    def make(
        self, op: str, inputs: Sequence[str], after: Any, output: str | None = None, domain: str = "", **attrs: Any
    ) -> Any:
        """Create a node without adding it to the graph. Its name derives from the node `after`, which it
        replaces."""
        from onnx import helper

        base = after.name or after.output[0]
        name = self.fresh(f"{base}/{op}")
        return helper.make_node(op, list(inputs), [output or f"{name}_out"], name=name, domain=domain, **attrs)

    def map_nodes(
        self, change: Callable[[Any], Sequence[Any] | None], operators: Collection[str] | None = None
    ) -> int:
        """Replace each node by the nodes that `change` returns (None keeps the node). Return the number of changed
        nodes.

        The new nodes must compute the outputs of the node that they replace. Node positions stay valid
        until all nodes have been visited.

        Args:
            change: function that returns the replacement of a node.
            operators: only nodes of these operators are visited, in any domain; default: all.
        """
        if operators is not None and self.op_types.isdisjoint(operators):
            return 0
        kept: list[Any] = []
        count = 0
        for node in list(self.graph.node):
            others = change(node) if operators is None or node.op_type in operators else None
            count += others is not None
            kept.extend([node] if others is None else others)
        if count:
            self.set_nodes(kept)
        return count

    def replace(
        self,
        op: str | Collection[str],
        change: Callable[[Any], Sequence[Any] | None],
        what_changed: str,
        domains: Sequence[str] = graphs.ONNX_DOMAINS,
    ) -> list[str]:
        """Replace nodes like `map_nodes`, then remove dead nodes. Return the number of replaced nodes as text."""
        operators = (op,) if isinstance(op, str) else op
        count = self.map_nodes(lambda node: change(node) if node.domain in domains else None, operators)
        if count:
            self.drop_dead()
        return [f"{count} {what_changed}"] if count else []

    def set_nodes(self, nodes: Sequence[Any]) -> None:
        """Replace all nodes of the graph. Node objects read before the call are no longer part of the graph."""
        kept = list(nodes)
        del self.graph.node[:]
        self.graph.node.extend(kept)
        # Positions are node indices, so every position may have changed.
        self.changed()

    def drop_dead(self) -> int:
        """Remove nodes and constants whose results are unused; return the number of removed nodes."""
        # Uses are counted once and decrease as nodes are removed. A node is visited again only when the last use of
        # one of its results is gone, so a long dead chain takes linear, not quadratic time. A tensor that a
        # subgraph reads from the main graph is used by the node that contains the subgraph.
        nodes = list(self.graph.node)
        reads = [graphs.reads(node) for node in nodes]
        counts = Counter(itertools.chain.from_iterable(reads))
        counts.update(self.outputs)
        # Fast path: no node is dead.
        if all(any(map(counts.__contains__, filter(None, node.output))) for node in nodes):
            self._drop_constants(set(counts))
            return 0
        makers: dict[str, list[int]] = {}
        for number, node in enumerate(nodes):
            for name in node.output:
                makers.setdefault(name, []).append(number)
        dead: set[int] = set()
        waiting = list(range(len(nodes)))
        while waiting:
            number = waiting.pop()
            if number in dead or any(counts[name] for name in nodes[number].output if name):
                continue
            dead.add(number)
            for name in reads[number]:
                counts[name] -= 1
                if not counts[name]:
                    waiting += makers.get(name, ())
        if dead:
            self.set_nodes([node for number, node in enumerate(nodes) if number not in dead])
        self._drop_constants({name for name, count in counts.items() if count})
        return len(dead)

    def _drop_constants(self, used: set[str]) -> None:
        # Keep the initializer of an input: it is the default, without which a caller would have to give the input.
        used |= {value.name for value in self.graph.input}
        count = sum(tensor.name in used for tensor in self.graph.initializer)
        if count < len(self.graph.initializer):
            # Sort the unused tensors to the end and delete them there: sorting does not copy contents.
            self.graph.initializer.sort(key=lambda tensor: tensor.name not in used)
            del self.graph.initializer[count:]
            self.changed()
