"""Which nodes are not quantised as the rest: those that the user names, and those that join unlike branches.

An output that joins boxes of 0 to 640 with scores of 0 to 1 has one scale for both, and steps of 2.5 in 8 bits: all
scores are 0. So the Concat and what follows it stay float, and each branch is quantised for itself.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_models.accuracy import ColumnGroup, labelled
from qnnbridge_models.command_options import ResolvedSettings
from qnnbridge_models.quantize.ort_quantizer import WEIGHTED_OPS, CalibratedModel, Precision
from qnnbridge_protocol.errors import BridgeError, OptionError

# What only moves values: groups of columns can be followed through it.
_MOVES = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Slice", "Gather")
# Branches whose magnitudes differ by this factor are quantised apart: 3 bits less for the smaller one.
UNLIKE = 8.0
_SHOWN = 3
# So far the weights of an output are looked for.
_MOST_MAKERS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class JoinedOutput:
    """An output that joins branches of unlike magnitudes.

    Args:
        tail: the nodes from the first Concat that joins them to the output.
        branches: the tensors that it joins, with their magnitudes.
    """

    output: str
    tail: tuple[str, ...]
    branches: Mapping[str, float]


def matching(patterns: Iterable[str], index: ModelIndex, original: Any, option: str) -> frozenset[str]:
    """The nodes that patterns name: a name, an operator, or a pattern of names. Raises `OptionError`."""
    found: set[str] = set()
    for pattern in patterns:
        here = {node.name for node in index.protos if _matches(pattern, node)}
        if not here:
            raise _matches_nothing(pattern, index, original, option)
        found |= here
    return frozenset(found)


def _matches(pattern: str, node: Any) -> bool:
    return pattern in (node.name, node.op_type) or fnmatch.fnmatchcase(node.name, pattern)


def _matches_nothing(pattern: str, index: ModelIndex, original: Any, option: str) -> OptionError:
    import difflib

    gone = [node.name for node in original.graph.node if _matches(pattern, node)]
    if gone:
        return OptionError(
            f'{option} "{pattern}" names {gone[0] or "a node"}, which is computed in advance or part of another '
            "operator when the model is prepared.",
            fix="Leave it away, or name the nodes behind it.",
        )
    known = [*{node.op_type: None for node in index.protos}, *(node.name for node in index.protos)]
    near = difflib.get_close_matches(pattern, known, _SHOWN, 0.5)
    return OptionError(
        f'{option} "{pattern}" names no node of the model.',
        cause=f"Near to it: {', '.join(near)}." if near else f"Its operators: {', '.join(known[:8])}.",
        fix="Give the name of a node, an operator (Softmax), or a pattern of names (*/stft/*).",
    )


def given(
    index: ModelIndex, original: Any, exclude: Sequence[str], wide: Sequence[str], settings: ResolvedSettings
) -> Precision:
    """The precision that options ask for. Raises `OptionError`."""
    floats = matching(exclude, index, original, "--exclude")
    if wide and settings.wide_activation is None and settings.wide_weight is None:
        raise OptionError(
            "--wide has nothing to widen: activations and weights have 16 bits, or QNN cannot run wider ones.",
            fix="Leave it away, or keep the nodes float: --exclude.",
        )
    return Precision(floats).joined(widened(index, matching(wide, index, original, "--wide"), settings))


def widened(index: ModelIndex, names: Iterable[str], settings: ResolvedSettings) -> Precision:
    """16 bits for nodes: what they compute where activations have 8, else their weights."""
    nodes = [node for node in index.protos if node.name in set(names)]
    if settings.wide_activation is not None:
        return Precision(wide_tensors=frozenset(name for node in nodes for name in node.output if name))
    return Precision(wide_weights=frozenset(node.name for node in nodes if node.op_type in WEIGHTED_OPS))


def joined_outputs(index: ModelIndex, calibrated: CalibratedModel) -> list[JoinedOutput]:
    """The outputs that join branches of unlike magnitudes."""
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
    """Whether what makes this tensor joins unlike branches; if so its nodes are in `tail`."""
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
    # A tensor of unknown magnitude, or one that was always 0, says nothing about unlike branches.
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
    """The nodes from the last weights to an output: a MatMul has one scale for the weights of all columns."""
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
    """Which elements of an output come from which branch: the tail only moves values, so it moves labels, too."""
    return {one.output: groups for one in joined if (groups := _groups_of(index, one, sample))}


def _groups_of(index: ModelIndex, joined: JoinedOutput, sample: Feeds) -> list[ColumnGroup]:
    branches = list(joined.branches)
    try:
        shapes = _shapes_of(index, branches, sample)
        # The tail moves the number of a branch in place of its values: what arrives shows where each element comes
        # from.
        labels = _moved(index, joined, [np.full(shape, n, np.float32) for n, shape in enumerate(shapes)])
    except BridgeError:
        return []  # a tail with sizes of its own making; the output is judged as a whole
    groups: list[ColumnGroup] = []
    for together in _alike(joined.branches):
        mask = np.isin(labels, [float(branches.index(name)) for name in together])
        if mask.any() and not mask.all():
            more = f" and {len(together) - 1} more" if len(together) > 1 else ""
            groups.append(ColumnGroup(together[0], labelled(together[0] + more, mask), mask))
    return groups


def _alike(branches: Mapping[str, float]) -> list[list[str]]:
    """Branches of like magnitude together: three heads with boxes each are one group."""
    groups: list[list[str]] = []
    for name, size in sorted(branches.items(), key=lambda item: -item[1]):
        if groups and branches[groups[-1][0]] < UNLIKE * size:
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def _shapes_of(index: ModelIndex, names: Sequence[str], sample: Feeds) -> list[tuple[int, ...]]:
    session = cpu.open_session_of_bytes(_with_outputs(index.model, names), "the branches of an output")
    return [np.asarray(value).shape for value in cpu.run(session, sample, "the branches of an output", list(names))]


def _with_outputs(model: Any, names: Sequence[str]) -> bytes:
    import onnx

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.output[:]
    for name in names:
        changed.graph.output.add().name = name
    return bytes(changed.SerializeToString())


def _moved(index: ModelIndex, joined: JoinedOutput, values: Sequence[Any]) -> Any:
    """What the tail makes of these values for its branches."""
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
    session = cpu.open_session_of_bytes(made.SerializeToString(), label)
    return cpu.run(session, dict(zip(names, values, strict=True)), label)[0]


def load_index(path: Path) -> ModelIndex:
    """Of a prepared model, with its weights."""
    return ModelIndex(graphs.load(path, weights=True))
