"""The main graph of a model while it is being rewritten: the maker and the users of each tensor, its shape, its
value.

Indexes are made on demand and dropped by `changed`. Names that a subgraph takes from the main graph count as uses.
One rewrite works on one `Editor`; no threads.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.graph import graphs

Array = npt.NDArray[Any]

# TensorProto.DataType: float, float16, double, bfloat16.
FLOATS = (1, 10, 11, 16)
INTEGERS = (2, 3, 4, 5, 6, 7, 12, 13)
_EXTERNAL = 1
_TEXT = 8


class Editor:
    """The main graph while it is rewritten.

    Each `add_*` gives the name of what it added.

    Args:
        folder: where the model's external tensors lie.
    """

    def __init__(self, model: Any, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self.opset = graphs.opset_of(model) or 0
        self._types: dict[str, graphs.TensorType] | None = None
        self._uses: dict[str, list[Any]] | None = None
        self._makers: dict[str, Any] | None = None
        self._tensors: dict[str, Any] | None = None
        self._captured: set[str] | None = None
        self._outputs: set[str] | None = None
        self._operators: set[str] | None = None
        self._names: set[str] | None = None
        # The last number that a hint got.
        self._numbers: dict[str, int] = {}

    @property
    def graph(self) -> Any:
        return self.model.graph

    def changed(self, *, shapes: bool = False) -> None:
        """To be called after nodes were put in or taken out. shapes: what is known of them is void, too."""
        self._uses = self._makers = self._tensors = self._captured = self._outputs = self._operators = None
        if shapes:
            self._types = None

    @property
    def types(self) -> dict[str, graphs.TensorType]:
        """What is known of all tensors."""
        if self._types is None:
            self._types = graphs.types_of(self.model)
        return self._types

    # --- what is there ------------------------------------------------------------------------------------

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

    def uses(self, name: str) -> list[Any]:
        """The nodes of the main graph that take it as an input."""
        if self._uses is None:
            self._uses = {}
            for node in self.graph.node:
                for used in dict.fromkeys(node.input):
                    self._uses.setdefault(used, []).append(node)
        return self._uses.get(name, [])

    def maker(self, name: str) -> Any | None:
        if self._makers is None:
            self._makers = {made: node for node in self.graph.node for made in node.output if made}
        return self._makers.get(name)

    def is_free(self, name: str) -> bool:
        """Whether only nodes of the main graph use it: no output of the model, in no subgraph."""
        return name not in self.outputs and name not in self.captured

    @property
    def outputs(self) -> set[str]:
        if self._outputs is None:
            self._outputs = {value.name for value in self.graph.output}
        return self._outputs

    @property
    def operators(self) -> set[str]:
        """The operators of the main graph, without their domains."""
        if self._operators is None:
            self._operators = {node.op_type for node in self.graph.node}
        return self._operators

    @property
    def captured(self) -> set[str]:
        """The names that subgraphs use."""
        if self._captured is None:
            self._captured = set(graphs.captured_names(self.graph))
        return self._captured

    def tensor(self, name: str) -> Any | None:
        """The initializer, or the tensor of a Constant node."""
        if self._tensors is None:
            overridable = {value.name for value in self.graph.input} if self.model.ir_version >= 4 else set()
            self._tensors = {t.name: t for t in self.graph.initializer if t.name not in overridable}
            for node in self.graph.node:
                if node.op_type == "Constant" and node.domain in graphs.ONNX_DOMAINS:
                    for attribute in node.attribute:
                        if attribute.name == "value":
                            self._tensors[node.output[0]] = attribute.t
        return self._tensors.get(name)

    def constant(self, name: str, limit: int | None = None) -> Array | None:
        """The value of a constant; None for what is none, or is larger than `limit` elements."""
        tensor = self.tensor(name)
        if tensor is None or tensor.data_type == _TEXT:
            return None
        if limit is not None and int(np.prod(tensor.dims, dtype=np.int64)) > limit:
            return None
        from onnx import numpy_helper

        if tensor.data_location == _EXTERNAL:
            copy = type(tensor)()
            copy.CopyFrom(tensor)
            graphs.load_tensor(copy, self.folder)
            tensor = copy
        return np.asarray(numpy_helper.to_array(tensor))

    # --- changing -----------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """A name that nothing has yet."""
        if self._names is None:
            self._names = set()
            for graph in graphs.subgraphs(self.graph):
                self._names.update(value.name for value in [*graph.input, *graph.output, *graph.initializer])
                for node in graph.node:
                    self._names.update((*node.input, *node.output, node.name))
        name, number = hint, self._numbers.get(hint, 0)
        while name in self._names:
            number += 1
            name = f"{hint}_{number}"
        self._numbers[hint] = number
        self._names.add(name)
        return name

    def rename_result(self, node: Any, number: int, name: str) -> None:
        """A node makes its result under another name."""
        if self._makers is not None:
            self._makers.pop(node.output[number], None)
            self._makers[name] = node
        node.output[number] = name

    def add_constant(self, value: Array, hint: str, name: str | None = None) -> str:
        from onnx import numpy_helper

        name = name or self.fresh(hint)
        self.graph.initializer.append(
            numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
        )
        if self._tensors is not None:
            self._tensors[name] = self.graph.initializer[-1]
        if self._types is not None:
            self._types[name] = (self.graph.initializer[-1].data_type, tuple(value.shape))
        return name

    def like(self, name: str, value: Any, hint: str) -> str:
        """A scalar constant of the element type that tensor `name` has."""
        from onnx import helper

        dtype = helper.tensor_dtype_to_np_dtype(self.element(name))
        return self.add_constant(np.asarray(value).astype(dtype), hint)

    def make(
        self, op: str, inputs: Sequence[str], after: Any, output: str | None = None, domain: str = "", **attrs: Any
    ) -> Any:
        """A node, named after the node `after` that it stands for. It is not in the graph yet."""
        from onnx import helper

        base = after.name or after.output[0]
        name = self.fresh(f"{base}/{op}")
        return helper.make_node(op, list(inputs), [output or f"{name}_out"], name=name, domain=domain, **attrs)

    def map_nodes(
        self, change: Callable[[Any], Sequence[Any] | None], operators: Collection[str] | None = None
    ) -> int:
        """Puts what `change` gives in place of each node, None keeps it; returns how many were changed.

        The new nodes must make the outputs of the node that goes. Indexes stay those of before.

        Args:
            operators: only their nodes are looked at, whatever their domain; default all.
        """
        if operators is not None and self.operators.isdisjoint(operators):
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
        op: str,
        change: Callable[[Any], Sequence[Any] | None],
        what_changed: str,
        domains: Sequence[str] = graphs.ONNX_DOMAINS,
    ) -> list[str]:
        """`map_nodes` for the nodes of one operator; drops what is dead then, and says how many were changed."""
        count = self.map_nodes(lambda node: change(node) if node.domain in domains else None, (op,))
        if count:
            self.drop_dead()
        return [f"{count} {what_changed}"] if count else []

    def set_nodes(self, nodes: Sequence[Any]) -> None:
        """All nodes at once. References to nodes from before are then to copies that are not in the graph."""
        kept = list(nodes)
        del self.graph.node[:]
        self.graph.node.extend(kept)
        self.changed()

    def drop_dead(self) -> int:
        """Takes out nodes and constants that nothing uses; gives the number of nodes."""
        nodes = list(self.graph.node)
        reads = [[*node.input, *(graphs.captured_by(node) if node.attribute else ())] for node in nodes]
        counts = Counter(itertools.chain.from_iterable(reads))
        counts.update(self.outputs)
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
        used |= {value.name for value in self.graph.input}
        count = sum(tensor.name in used for tensor in self.graph.initializer)
        if count < len(self.graph.initializer):
            # No tensor is copied, nor compared with others.
            self.graph.initializer.sort(key=lambda tensor: tensor.name not in used)
            del self.graph.initializer[count:]
            self.changed()

    # --- shapes -------------------------------------------------------------------------------------------

    def _known(self, name: str) -> graphs.TensorType:
        known = self.types.get(name)
        if known is None:
            tensor = self.tensor(name)
            return (tensor.data_type, tuple(tensor.dims)) if tensor is not None else (0, None)
        return known
