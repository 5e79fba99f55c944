"""Choose the nodes whose precision differs from the rest, and measure the cost of quantising single layers.

A node's precision differs if the user selected the node, or if the node joins branches of very different
magnitudes. The cost of a layer is measured on the float model with only the tensors of this layer quantised.

Each rounding error adds nearly independent noise to the outputs, so leaving a layer in float removes the noise of
this layer. A search that divides groups of layers finds the layers that cause most of the noise.
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import graphlib
import heapq
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.numerics.judge import NO_ERROR_DB
from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_models.accuracy import ColumnGroup, FloatResults, labelled
from qnnbridge_models.command_options import ResolvedSettings
from qnnbridge_models.progress import phase
from qnnbridge_models.quantize.ort_quantizer import WEIGHTED_OPS, CalibratedModel, Precision
from qnnbridge_protocol.errors import BridgeError, OptionError

# Number of parts into which a noisy group of layers is split.
_PARTS = 4
_LABEL = "a partly quantised model"


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """One node and its quantised tensors, or one input of the model.

    Args:
        node: name of the node, or of the input.
        op: operator, or `input`.
        outputs: names of the quantised outputs.
        weights: names of the quantised weights.
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
    """SNR in dB of the worst output if only this layer is quantised."""

    layer: Layer
    snr_db: float

    @property
    def noise(self) -> float:
        return noise_of_db(self.snr_db)

    def document(self) -> dict[str, Any]:
        return {"node": self.layer.node, "op": self.layer.op, "snr_db": self.snr_db}


def noise_of_db(snr_db: float) -> float:
    """Return the noise-to-signal energy ratio of an SNR."""
    return float(10 ** (-snr_db / 10))


def layers_of(index: ModelIndex) -> list[Layer]:
    """Return the inputs as layers, then the nodes in the order of the graph."""
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
    """Builds models in which only some tensors of a float model are quantised.

    Args:
        index: index of the float model.
        quantized: the quantised model with its weights.
        reference: results of the float model to compare with.
    """

    def __init__(self, index: ModelIndex, quantized: Any, reference: FloatResults) -> None:
        self._reference = reference
        self._index = index
        self._full = ModelIndex(quantized)
        self._full_nodes = {node.name: node for node in self._full.protos}
        self._initializers = {tensor.name: tensor for tensor in quantized.graph.initializer}
        # Names of tensors in the float model, by their names in the quantised model. The quantizer renames the
        # tensor that a model output is quantised from, and gives the original name to the result of
        # DequantizeLinear.
        self._float_name = {
            there: here
            for node in index.protos
            if node.name in self._full_nodes
            for here, there in zip(node.output, self._full_nodes[node.name].output, strict=False)
        }

    def snr_of(self, tensors: Iterable[str]) -> float:
        """Return the SNR of the worst output if only these tensors are quantised."""
        with phase("looking for noisy layers"):
            session = cpu.open_session(self.model_with(frozenset(tensors)), _LABEL)
            names = list(self._reference.names)
            found = [cpu.run(session, feeds, _LABEL, names) for feeds in self._reference.samples]
        return self._reference.lowest(found)

    def model_with(self, tensors: frozenset[str]) -> bytes:
        """Return the float model, serialised, with only these tensors quantised."""
        made = copy.deepcopy(self._index.model)
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
        # The quantizing nodes need the opset of the quantised model: 16-bit types require opset 21.
        del made.opset_import[:]
        made.opset_import.extend(self._full.model.opset_import)
        return bytes(made.SerializeToString())

    def _free_outputs(self, made: Any, tensors: frozenset[str], needed: list[str]) -> dict[str, str]:
        """Rename the results of nodes that compute outputs to be quantised; return the new names by old name."""
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
        """Add the QuantizeLinear and DequantizeLinear nodes, with their scales, that compute `needed` from float
        tensors.
        """
        there = {tensor.name for tensor in made.graph.initializer}
        done: set[str] = set()
        nodes: list[Any] = []
        while needed:
            name = needed.pop()
            node = self._full.maker(name)
            if name in done or not _is_quantizer(node):
                continue
            done.add(name)
            nodes.append(copy.deepcopy(node))
            for number, source in enumerate(nodes[-1].input):
                if source in self._initializers:
                    if source not in there:
                        made.graph.initializer.add().CopyFrom(self._initializers[source])
                        there.add(source)
                elif _is_quantizer(self._full.maker(source)) and source not in before:
                    needed.append(source)
                else:
                    here = self._float_name.get(source, source)
                    nodes[-1].input[number] = before.get(here, here)
        _sort_into(made.graph, nodes)


def _is_quantizer(node: Any) -> bool:
    return node is not None and node.op_type in ("QuantizeLinear", "DequantizeLinear")


def _sort_into(graph: Any, more: Sequence[Any]) -> None:
    """Add nodes to the graph and sort all nodes topologically."""
    nodes = copy.deepcopy([*graph.node, *more])
    maker = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    sources = {
        number: [maker[name] for name in graphs.reads(node) if name in maker and maker[name] != number]
        for number, node in enumerate(nodes)
    }
    del graph.node[:]
    graph.node.extend(nodes[number] for number in graphlib.TopologicalSorter(sources).static_order())


def noisiest(
    layers: Sequence[Layer],
    snr_of: Callable[[frozenset[str]], float],
    allowed: float,
    budget: int,
    deadline: float = math.inf,
) -> list[LayerError]:
    """Return the layers that cause most of the noise, the worst first; the other layers cause at most `allowed`.

    Groups of layers are split, the noisiest first.

    Args:
        layers: all layers.
        snr_of: measures the SNR in dB with only the given tensors quantised.
        allowed: noise-to-signal ratio that the remaining layers may cause.
        budget: largest number of calls of `snr_of`.
        deadline: value of `time.monotonic` after which groups are no longer split.
    """

    def measured(group: Sequence[Layer]) -> float:
        return noise_of_db(snr_of(frozenset().union(*(layer.tensors for layer in group))))

    found: list[LayerError] = []
    serial = 0
    # The serial number orders entries of equal noise, because lists of layers cannot be compared.
    waiting = [(-measured(layers), serial, list(layers))] if layers else []
    runs = 1
    while waiting and -sum(entry[0] for entry in waiting) > allowed:
        noise, _, group = heapq.heappop(waiting)
        # Report all layers of a group that cannot be split further.
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


# --- nodes that the user selects, and nodes that join branches of very different magnitudes ------------------

# Operators that only move values: groups of columns can be traced through them.
_MOVES = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Slice", "Gather")
# Branches whose magnitudes differ by this factor are quantised separately: with a common scale the smaller one
# would lose 3 bits.
UNLIKE = 8.0
_SHOWN = 3
# Maximum number of nodes to visit backwards from an output in search of its weights.
_MOST_MAKERS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class JoinedOutput:
    """An output that joins branches of very different magnitudes.

    Args:
        output: name of the output.
        tail: nodes from the first Concat of such branches to the output.
        branches: joined tensors with their magnitudes.
    """

    output: str
    tail: tuple[str, ...]
    branches: Mapping[str, float]


def matching(patterns: Iterable[str], index: ModelIndex, original: Any, option: str) -> frozenset[str]:
    """Return the nodes selected by name, operator or name pattern. Raise `OptionError` for a pattern without a
    match.
    """
    found: set[str] = set()
    for pattern in patterns:
        here = {node.name for node in index.protos if _matches(pattern, node)}
        if not here:
            raise _matches_nothing(pattern, index, original, option)
        found |= here
    return frozenset(found)


def _matches(pattern: str, node: Any) -> bool:
    # `fnmatch.fnmatch` would ignore case on Windows.
    return pattern in (node.name, node.op_type) or fnmatch.fnmatchcase(node.name, pattern)


def _matches_nothing(pattern: str, index: ModelIndex, original: Any, option: str) -> OptionError:
    import difflib

    gone = [node.name for node in original.graph.node if _matches(pattern, node)]
    if gone:
        return OptionError(
            f'{option} "{pattern}" matches {gone[0] or "a node without a name"}, which no longer exists when '
            "the model is quantised.",
            cause="Preparing the model folds this node into a constant or merges it into another operator.",
            fix="Omit this pattern, or select the nodes that follow the removed nodes.",
        )
    known = [*{node.op_type: None for node in index.protos}, *(node.name for node in index.protos)]
    near = difflib.get_close_matches(pattern, known, _SHOWN, 0.5)
    return OptionError(
        f'{option} "{pattern}" matches no node of the model.',
        cause=f"Similar names: {', '.join(near)}." if near else f"Its operators: {', '.join(known[:8])}.",
        fix="Give the name of a node, an operator (Softmax), or a pattern of names (*/stft/*).",
    )


def given(
    index: ModelIndex, original: Any, exclude: Sequence[str], wide: Sequence[str], settings: ResolvedSettings
) -> Precision:
    """Return the precision that the options request. Raise `OptionError`."""
    floats = matching(exclude, index, original, "--exclude")
    if wide and settings.wide_activation is None and settings.wide_weight is None:
        raise OptionError(
            "--wide has no effect: activations and weights already have 16 bits, or QNN does not support wider "
            "types.",
            fix="Omit --wide, or keep the nodes float: --exclude.",
        )
    return Precision(floats).joined(widened(index, matching(wide, index, original, "--wide"), settings))


def widened(index: ModelIndex, names: Iterable[str], settings: ResolvedSettings) -> Precision:
    """Return a precision that gives these nodes 16-bit outputs, or 16-bit weights if activations already have 16
    bits.
    """
    nodes = [node for node in index.protos if node.name in set(names)]
    if settings.wide_activation is not None:
        return Precision(wide_tensors=frozenset(name for node in nodes for name in node.output if name))
    return Precision(wide_weights=frozenset(node.name for node in nodes if node.op_type in WEIGHTED_OPS))


def joined_outputs(index: ModelIndex, calibrated: CalibratedModel) -> list[JoinedOutput]:
    """Return the outputs that join branches of very different magnitudes."""
    found = []
    for output in index.outputs:
        tail: dict[str, None] = {}
        branches: dict[str, float] = {}
        if _follow(output, index, calibrated, tail, branches):
            found.append(JoinedOutput(output, tuple(tail), branches))
    return found


def _follow(
    tensor: str,
    index: ModelIndex,
    calibrated: CalibratedModel,
    tail: dict[str, None],
    branches: dict[str, float],
) -> bool:
    """Return whether the tensor joins branches of very different magnitudes; if so, add the joining nodes to
    `tail`.
    """
    node = index.maker(tensor)
    if node is None:
        return False
    if node.op_type in _MOVES and node.input[0]:
        if not _follow(node.input[0], index, calibrated, tail, branches):
            return False
        tail[node.name] = None
        return True
    if node.op_type != "Concat":
        return False
    inside: dict[str, None] = {}
    deeper: dict[str, float] = {}
    through = {name for name in node.input if _follow(name, index, calibrated, inside, deeper)}
    sizes = {name: calibrated.magnitude(name) for name in node.input}
    # Ignore tensors with unknown or zero magnitude, which are not evidence of a difference.
    known = {name: size for name, size in sizes.items() if size}
    unlike = len(known) > 1 and max(known.values()) >= UNLIKE * min(known.values())
    if not unlike and not through:
        return False
    tail.update(inside)
    tail[node.name] = None
    branches.update(deeper)
    branches.update({name: size or 0.0 for name, size in sizes.items() if name not in through})
    return True


def made_by(index: ModelIndex, output: str) -> list[str]:
    """Return the nodes that compute an output, back to the last node with weights.

    If an output has small and large columns, these nodes stay in float: a MatMul has a single scale for all columns
    of its weights, so that columns of small weights lose precision.
    """
    found: list[str] = []
    name: str | None = output
    while name is not None and len(found) < _MOST_MAKERS:
        node = index.maker(name)
        if node is None:
            break
        found.append(node.name)
        if node.op_type in WEIGHTED_OPS:
            break
        name = next((one for one in node.input if one in index.makers), None)
    return found


def column_groups(index: ModelIndex, joined: Sequence[JoinedOutput], sample: Feeds) -> dict[str, list[ColumnGroup]]:
    """Return the elements of each output, grouped by branch.

    The nodes after the branches only move values: if each branch is filled with its own index, the output shows the
    branch of each element.
    """
    return {one.output: groups for one in joined if (groups := _groups_of(index, one, sample))}


def _groups_of(index: ModelIndex, joined: JoinedOutput, sample: Feeds) -> list[ColumnGroup]:
    branches = list(joined.branches)
    try:
        shapes = _shapes_of(index, branches, sample)
        # Feed each branch's number instead of its values: the output then shows which branch each element comes
        # from.
        labels = _moved(index, joined, [np.full(shape, n, np.float32) for n, shape in enumerate(shapes)])
    except BridgeError:
        return []  # a shape depends on the branches' values, so measure the output as a whole
    groups: list[ColumnGroup] = []
    for together in _alike(joined.branches):
        mask = np.isin(labels, [float(branches.index(name)) for name in together])
        if mask.any() and not mask.all():
            more = f" and {len(together) - 1} more" if len(together) > 1 else ""
            groups.append(ColumnGroup(together[0], labelled(together[0] + more, mask), mask))
    return groups


def _alike(branches: Mapping[str, float]) -> list[list[str]]:
    """Group branches of similar magnitude, for example the three box heads of a detector."""
    groups: list[list[str]] = []
    for name, size in sorted(branches.items(), key=lambda item: -item[1]):
        if groups and branches[groups[-1][0]] < UNLIKE * size:
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def _shapes_of(index: ModelIndex, names: Sequence[str], sample: Feeds) -> list[tuple[int, ...]]:
    changed = copy.deepcopy(index.model)
    del changed.graph.output[:]
    for name in names:
        changed.graph.output.add().name = name
    label = "the branches of an output"
    session = cpu.open_session(changed.SerializeToString(), label)
    return [np.asarray(value).shape for value in cpu.run(session, sample, label, list(names))]


def _moved(index: ModelIndex, joined: JoinedOutput, values: Sequence[Any]) -> Any:
    """Run the nodes of an output's tail on the given values of its branches."""
    from onnx import TensorProto, helper

    nodes = [node for node in index.protos if node.name in joined.tail]
    used = {name for node in nodes for name in node.input}
    names = list(joined.branches)
    label = "the end of an output"
    graph = helper.make_graph(
        nodes,
        "tail",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in zip(names, values, strict=True)],
        [helper.make_tensor_value_info(joined.output, TensorProto.FLOAT, None)],
        [tensor for tensor in index.model.graph.initializer if tensor.name in used],
    )
    made = helper.make_model(graph, opset_imports=index.model.opset_import, ir_version=index.model.ir_version)
    session = cpu.open_session(made.SerializeToString(), label)
    return cpu.run(session, dict(zip(names, values, strict=True)), label)[0]


def load_index(path: Path) -> ModelIndex:
    """Load a prepared model with its weights."""
    return ModelIndex(graphs.load(path, weights=True))
