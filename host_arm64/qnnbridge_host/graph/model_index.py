"""The index of a `ModelProto`: its nodes and tensors by name, types and shapes by onnx's inference, its constants.

Weights are read where a value is asked for. An `Editor` is such an index of a model that changes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.graph import graphs
from qnnbridge_host.model.graph_index import GraphIndex, GraphNode, GraphTensor
from qnnbridge_protocol.elements import LAYOUTS, ElementType

Array = npt.NDArray[Any]

_ELEMENTS = frozenset(element.value for element in ElementType)
_EXTERNAL = 1
_TEXT = 8


class ModelIndex(GraphIndex):
    """The main graph of a model, which does not change.

    Args:
        types: of the tensors, if they are inferred.
        names: of the nodes, in place of those that they have.
        folder: where the external tensors lie; without one their values are not known.
    """

    def __init__(
        self,
        model: Any,
        types: Mapping[str, graphs.TensorType] | None = None,
        names: Sequence[str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.model = model
        self._folder = folder
        self.opset = graphs.opset_of(model) or 0
        self._labels = names
        if types is not None:
            self.types = dict(types)

    @property
    def graph(self) -> Any:
        return self.model.graph

    # --- nodes --------------------------------------------------------------------------------------------

    @functools.cached_property
    def protos(self) -> list[Any]:
        """The nodes as the model has them."""
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
        """The node that makes a tensor."""
        place = self.makers.get(name)
        return None if place is None else self.protos[place]

    def uses(self, name: str) -> list[Any]:
        """The nodes of the main graph that take it as an input."""
        return [self.protos[place] for place in self.users.get(name, ())]

    # --- names --------------------------------------------------------------------------------------------

    @functools.cached_property
    def weights(self) -> frozenset[str]:
        """The names of the initializers."""
        return frozenset(tensor.name for tensor in self.graph.initializer)

    @functools.cached_property
    def inputs(self) -> KeysView[str]:
        """The inputs that a caller gives, in their order: weights are no inputs."""
        return dict.fromkeys(value.name for value in self.graph.input if value.name not in self.weights).keys()

    @functools.cached_property
    def outputs(self) -> KeysView[str]:
        """The outputs of the model, in their order."""
        return dict.fromkeys(value.name for value in self.graph.output).keys()

    @functools.cached_property
    def captured(self) -> frozenset[str]:
        """The names that subgraphs use."""
        return frozenset(graphs.captured_names(self.graph))

    def is_free(self, name: str) -> bool:
        """Whether only nodes of the main graph use it: no output of the model, in no subgraph."""
        return name not in self.outputs and name not in self.captured

    # --- tensors ------------------------------------------------------------------------------------------

    @functools.cached_property
    def types(self) -> dict[str, graphs.TensorType]:
        """What is known of all tensors."""
        return graphs.types_of(self.model)

    def _known(self, name: str) -> graphs.TensorType:
        known = self.types.get(name)
        if known is None:
            tensor = self.tensor(name)
            return (tensor.data_type, tuple(tensor.dims)) if tensor is not None else (0, None)
        return known

    def element(self, name: str) -> int:
        """The TensorProto.DataType; 0 if it is not known."""
        return self._known(name)[0]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape if all of it is known."""
        dims = self._known(name)[1]
        if dims is None or None in dims:
            return None
        return tuple(dim for dim in dims if dim is not None)

    def dims(self, name: str) -> tuple[int | None, ...] | None:
        """Its sizes, None for one that is not known; None if not even their number is."""
        return self._known(name)[1]

    def rank(self, name: str) -> int | None:
        dims = self._known(name)[1]
        return None if dims is None else len(dims)

    def is_empty(self, name: str) -> bool:
        """Whether it is known to have no elements."""
        dims = self._known(name)[1] if name else None
        return dims is not None and 0 in dims and None not in dims

    # --- constants ----------------------------------------------------------------------------------------

    @functools.cached_property
    def constants(self) -> dict[str, Any]:
        """Initializers that no caller can override, and the tensors of Constant nodes."""
        found = graphs.constants(self.graph)
        # From IR version 4 on an initializer that is also an input is a default, which a caller may override.
        for value in self.graph.input if self.model.ir_version >= 4 else ():
            found.pop(value.name, None)
        return found

    def tensor(self, name: str) -> Any | None:
        """The initializer, or the tensor of a Constant node."""
        return self.constants.get(name)

    def constant(self, name: str, limit: int | None = None) -> Array | None:
        """The value of a constant; None for what is none, or is larger than `limit` elements."""
        tensor = self.tensor(name)
        if tensor is None or tensor.data_type == _TEXT:
            return None
        if limit is not None and int(np.prod(tensor.dims, dtype=np.int64)) > limit:
            return None
        from onnx import numpy_helper

        if tensor.data_location == _EXTERNAL:
            if self._folder is None:
                return None
            # A copy, so that the model does not keep every weight that was looked at once.
            copy = type(tensor)()
            copy.CopyFrom(tensor)
            graphs.load_tensor(copy, self._folder)
            tensor = copy
        return np.asarray(numpy_helper.to_array(tensor))

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of initializers and constants by name."""
        return {name: _bytes_of(tensor) for name, tensor in graphs.constants(self.graph).items()}

    # --- records ------------------------------------------------------------------------------------------

    @functools.cached_property
    def _tensors(self) -> dict[str, GraphTensor]:
        return {}

    def about(self, name: str) -> GraphTensor:
        found = self._tensors.get(name)
        if found is None:
            element, shape = self.types.get(name, (0, None))
            constant = name in self.constants
            values = self._values(name) if constant else None
            found = self._tensors[name] = GraphTensor(name, _type_name(element), shape, constant, values)
        return found

    def _values(self, name: str) -> tuple[Any, ...] | None:
        if _bytes_of(self.constants[name]) > graphs.SMALL_BYTES:
            return None
        try:
            value = self.constant(name)
        except (ValueError, TypeError):  # fewer bytes than its shape says: ONNX Runtime will refuse the model
            return None
        return None if value is None else tuple(value.ravel().tolist())


@functools.cache
def _type_name(element: int) -> str:
    return ElementType(element).text if element in _ELEMENTS else ""


def _bytes_of(tensor: Any) -> int:
    if tensor.raw_data:
        return len(tensor.raw_data)
    bits_each = LAYOUTS[ElementType(tensor.data_type)].bits if tensor.data_type in _ELEMENTS else 8
    bits: int = math.prod(tensor.dims) * bits_each
    return bits // 8
