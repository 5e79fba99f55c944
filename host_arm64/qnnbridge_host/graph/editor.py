"""The main graph of a model while it is being rewritten.

What the index knows is dropped by `changed`. Names that a subgraph takes from the main graph count as uses. One
rewrite works on one `Editor`; no threads.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Array, ModelIndex

# TensorProto.DataType: float, float16, double, bfloat16.
FLOATS = (1, 10, 11, 16)
INTEGERS = (2, 3, 4, 5, 6, 7, 12, 13)


class Editor(ModelIndex):
    """The main graph while it is rewritten.

    Each `add_*` gives the name of what it added.

    Args:
        folder: where the model's external tensors lie.
    """

    def __init__(self, model: Any, folder: Path) -> None:
        super().__init__(model, folder=folder)
        self.folder = folder
        self._taken: set[str] | None = None
        # The last number that a hint got.
        self._numbers: dict[str, int] = {}

    def changed(self, *, shapes: bool = False) -> None:
        """To be called after nodes were put in or taken out. shapes: what is known of them is void, too."""
        # `cached_property` keeps its value in `__dict__`. Deleted there, it is computed anew when it is asked for.
        for name in [name for name in self.__dict__ if name != "types" or shapes]:
            if isinstance(getattr(type(self), name, None), functools.cached_property):
                del self.__dict__[name]

    @functools.cached_property
    def op_types(self) -> frozenset[str]:
        """The operators of the main graph, without their domains."""
        return frozenset(node.op_type for node in self.protos)

    # --- changing -----------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """A name that nothing has yet."""
        if self._taken is None:
            self._taken = set()
            # Names of subgraphs count, too: ONNX allows a name only once, in the main graph or in them.
            for graph in graphs.subgraphs(self.graph):
                self._taken.update(value.name for value in [*graph.input, *graph.output, *graph.initializer])
                for node in graph.node:
                    self._taken.update((*node.input, *node.output, node.name))
        # The count goes on where it stopped, since many nodes have the same hint.
        name, number = hint, self._numbers.get(hint, 0)
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._numbers[hint] = number
        self._taken.add(name)
        return name

    def rename_result(self, node: Any, number: int, name: str) -> None:
        """A node makes its result under another name."""
        # Kept up by hand: `changed` would drop the whole index for one name.
        self.makers[name] = self.makers.pop(node.output[number])
        node.output[number] = name

    def add_constant(self, value: Array, hint: str, name: str | None = None) -> str:
        from onnx import numpy_helper

        name = name or self.fresh(hint)
        # `ascontiguousarray` gives a scalar one dimension, which the reshape takes away again.
        self.graph.initializer.append(
            numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
        )
        # protobuf has appended a copy: the tensor in the graph is another object.
        tensor = self.graph.initializer[-1]
        self.constants[name] = tensor
        if "types" in self.__dict__:
            self.types[name] = (tensor.data_type, tuple(value.shape))
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
        reads = [graphs.reads(node) for node in nodes]
        counts = Counter(itertools.chain.from_iterable(reads))
        counts.update(self.outputs)
        # The usual case: no node is dead.
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
