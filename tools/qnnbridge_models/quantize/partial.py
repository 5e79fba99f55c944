"""What the quantisation of single layers costs: the float model with only some of its tensors quantised.

Each error of rounding adds its own noise to the outputs, nearly independent of the others. The noise that a layer
makes alone shows what is won by leaving it float, and a search over halves finds the layers that make most of it.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.numerics.judge import NO_ERROR_DB
from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_models.accuracy import ColumnGroups, lowest_of_folds
from qnnbridge_models.progress import phase

# Into how many parts a noisy group of layers is cut.
_PARTS = 4
_LABEL = "a partly quantised model"


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """One node with what is quantised of it, or one input.

    Args:
        node: name; of an input, its own.
        op: operator, or `input`.
        outputs, weights: names of tensors.
    """

    node: str
    op: str
    outputs: frozenset[str]
    weights: frozenset[str] = frozenset()

    @property
    def tensors(self) -> frozenset[str]:
        return self.outputs | self.weights


@dataclasses.dataclass(frozen=True, slots=True)
class LayerError:
    """What the quantisation of one layer alone leaves of the worst output, in dB."""

    layer: Layer
    snr_db: float

    @property
    def noise(self) -> float:
        return noise_of_db(self.snr_db)

    def document(self) -> dict[str, Any]:
        return {"node": self.layer.node, "op": self.layer.op, "snr_db": self.snr_db}


def noise_of_db(snr_db: float) -> float:
    """Energy of the errors over that of the signal."""
    return float(10 ** (-snr_db / 10))


def layers_of(index: ModelIndex) -> list[Layer]:
    """In the order of the graph, inputs first."""
    inputs = [Layer(name, "input", frozenset((name,))) for name in index.inputs]
    return inputs + [
        Layer(
            node.name,
            node.op_type,
            frozenset(name for name in node.output if name),
            frozenset(name for name in node.input if name in index.weights),
        )
        for node in index.protos
    ]


class PartialModels:
    """Models between a float one and its quantised one.

    Args:
        index: of the float model.
        quantized: the quantised model, with its weights.
        samples, names, expected: inputs, and what the float model gives for them.
        groups: columns of the outputs that are judged by themselves.
    """

    def __init__(
        self,
        index: ModelIndex,
        quantized: Any,
        samples: Sequence[Feeds],
        names: Sequence[str],
        expected: Sequence[Sequence[Any]],
        groups: ColumnGroups,
    ) -> None:
        self.runs = 0
        self._index = index
        self._full = ModelIndex(quantized)
        self._full_nodes = {node.name: node for node in self._full.protos}
        self._initializers = {tensor.name: tensor for tensor in quantized.graph.initializer}
        self._samples, self._names, self._expected, self._groups = samples, list(names), expected, groups
        # Outputs have other names before they are quantised.
        self._float_name = {
            there: here
            for node in index.protos
            if node.name in self._full_nodes
            for here, there in zip(node.output, self._full_nodes[node.name].output, strict=False)
        }

    def snr_of(self, tensors: Iterable[str]) -> float:
        """Of the worst output, with only these tensors quantised."""
        self.runs += 1
        with phase("looking for noisy layers"):
            session = cpu.open_session_of_bytes(self.model_with(frozenset(tensors)), _LABEL)
            found = [cpu.run(session, feeds, _LABEL, self._names) for feeds in self._samples]
        return lowest_of_folds(self._names, self._expected, found, self._groups)

    def model_with(self, tensors: frozenset[str]) -> bytes:
        """The float model with only these tensors quantised, as a file."""
        import onnx

        made = onnx.ModelProto()
        made.CopyFrom(self._index.model)
        needed: list[str] = []
        before = self._free_outputs(made, tensors, needed)
        for node in made.graph.node:
            full = self._full_nodes.get(node.name)
            for number, name in enumerate(node.input):
                there = full.input[number] if full is not None and number < len(full.input) else name
                if name in tensors and there != name and there in self._full.makers:
                    node.input[number] = there
                    needed.append(there)
                elif name in before:
                    node.input[number] = before[name]
        self._add_pairs(made, needed, before)
        # The pairs need the opset of the quantised model: 16-bit types came with 21.
        del made.opset_import[:]
        made.opset_import.extend(self._full.model.opset_import)
        return bytes(made.SerializeToString())

    def _free_outputs(self, made: Any, tensors: frozenset[str], needed: list[str]) -> dict[str, str]:
        """Renames the outputs that are to be quantised, at the nodes that make them."""
        before = {
            name: f"{name}__float"
            for name in self._index.outputs
            if name in tensors and name in self._index.makers and _is_quantizer(self._full.maker(name))
        }
        needed += before
        for node in made.graph.node:
            for number, name in enumerate(node.output):
                node.output[number] = before.get(name, name)
        return before

    def _add_pairs(self, made: Any, needed: list[str], before: dict[str, str]) -> None:
        """The nodes that quantise, with their scales, back to the float tensors."""
        import onnx

        there = {tensor.name for tensor in made.graph.initializer}
        done: set[str] = set()
        nodes: list[Any] = []
        while needed:
            name = needed.pop()
            node = self._full.maker(name)
            if name in done or not _is_quantizer(node):
                continue
            done.add(name)
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            nodes.append(copy)
            for number, source in enumerate(copy.input):
                if source in self._initializers:
                    if source not in there:
                        made.graph.initializer.add().CopyFrom(self._initializers[source])
                        there.add(source)
                elif _is_quantizer(self._full.maker(source)) and source not in before:
                    needed.append(source)
                else:
                    here = self._float_name.get(source, source)
                    copy.input[number] = before.get(here, here)
        _sort_into(made.graph, nodes)


def _is_quantizer(node: Any) -> bool:
    return node is not None and node.op_type in ("QuantizeLinear", "DequantizeLinear")


def _sort_into(graph: Any, more: Sequence[Any]) -> None:
    """All nodes in an order in which each comes behind those that it reads."""
    import onnx

    nodes = []
    for node in [*graph.node, *more]:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        nodes.append(copy)
    maker = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    waits = [
        {maker[name] for name in graphs.reads(node) if name in maker and maker[name] != number}
        for number, node in enumerate(nodes)
    ]
    readers: dict[int, list[int]] = {}
    for number, sources in enumerate(waits):
        for source in sources:
            readers.setdefault(source, []).append(number)
    # A heap: of those that are ready the first in the file comes next, so that the order stays near to the file's.
    ready = [number for number, sources in enumerate(waits) if not sources]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for reader in readers.get(number, ()):
            waits[reader].discard(number)
            if not waits[reader]:
                heapq.heappush(ready, reader)
    del graph.node[:]
    graph.node.extend(nodes[number] for number in order)


def noisiest(
    layers: Sequence[Layer],
    snr_of: Callable[[frozenset[str]], float],
    allowed: float,
    budget: int,
    deadline: float = math.inf,
) -> list[LayerError]:
    """The layers that make most of the noise, the worst first, until the rest makes no more than `allowed`.

    Groups of layers are cut into parts, the noisiest first. allowed: noise over signal. budget: of runs.
    deadline: of `time.monotonic`; groups that are left then are taken as they are.
    """

    def measured(group: Sequence[Layer]) -> float:
        return noise_of_db(snr_of(frozenset().union(*(layer.tensors for layer in group))))

    found: list[LayerError] = []
    serial = 0
    # The serial number decides between equal noises: lists of layers cannot be compared.
    waiting = [(-measured(layers), serial, list(layers))] if layers else []
    runs = 1
    while waiting and -sum(entry[0] for entry in waiting) > allowed:
        noise, _, group = heapq.heappop(waiting)
        # A group that is not cut any further is blamed as a whole.
        if len(group) == 1 or runs >= budget or time.monotonic() > deadline:
            found += [LayerError(layer, _db(-noise)) for layer in group]
            continue
        size = -(-len(group) // _PARTS)
        for start in range(0, len(group), size):
            part = group[start : start + size]
            serial, runs = serial + 1, runs + 1
            heapq.heappush(waiting, (-measured(part), serial, part))
    return sorted(found, key=lambda one: one.snr_db)


def _db(noise: float) -> float:
    return NO_ERROR_DB if noise <= 0 else min(NO_ERROR_DB, -10 * math.log10(noise))
