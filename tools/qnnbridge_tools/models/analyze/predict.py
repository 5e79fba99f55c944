"""The offline verdict: for each node of a model where it would run, without QNN and without running the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnbridge_tools.models.analyze import fused, quantized, rules
from qnnbridge_tools.models.analyze.folding import folded
from qnnbridge_tools.models.analyze.graph_view import GraphView, Node, view_of
from qnnbridge_tools.models.analyze.rules import RULES, Context
from qnnbridge_tools.models.analyze.verdicts import ON_QNN, Verdict

_COMPUTED = Verdict("folded", reason="computed once when the model is loaded")
_NOT_COMPUTED = frozenset({"CastLike", "Size"})
"""What ONNX Runtime does not compute ahead."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """verdicts: one for each node of the main graph, in order. view: the nodes, with all shapes that are known.

    empty: tensors without elements, of nodes wherever they would run. Each of them may end the process.
    """

    verdicts: tuple[Verdict, ...]
    view: GraphView
    empty: tuple[str, ...]
    no_input: bool


def predict_model(model: Any, arch: int, folder: Path | None = None) -> Prediction:
    """model: a `ModelProto`, which is not changed; its weights need not be loaded. arch: of the HTP, 73 for V73.

    folder: where the model's external tensors lie, of which small ones are read.
    """
    from qnnbridge_tools.models.fix.editor import Editor
    from qnnbridge_tools.models.fix.folding import fold
    from qnnbridge_tools.models.shared import inference

    light = inference.without_weights(model)
    for index, node in enumerate(light.graph.node):
        node.name = str(index)
    if folder is None:
        for tensor in light.graph.initializer:
            del tensor.external_data[:]
    fold(Editor(light, folder or Path()), _NOT_COMPUTED)
    left = view_of(light)
    verdicts = dict(zip((int(node.name) for node in left.nodes), predict(left, arch), strict=True))
    return Prediction(
        tuple(verdicts.get(index, _COMPUTED) for index in range(len(model.graph.node))),
        view_of(model, inference.types_of(light)),
        tuple(dict.fromkeys(tensor.name for node in left.nodes for tensor in rules.empty_tensors(node))),
        not left.inputs,
    )


def predict(view: GraphView, arch: int) -> list[Verdict]:
    """One verdict for each node, in order, of a graph in which everything that can be computed is a constant."""
    context = Context(view, arch)
    gone = folded(view)
    units = quantized.units_of(view)
    fusions = fused.fusions_of(view)
    verdicts = [
        Verdict("folded", reason=gone[node.index])
        if node.index in gone
        else _verdict(node, context, units, fusions)
        for node in _with_constants(view, gone)
    ]
    return quantized.spread(view, verdicts, units)


def _verdict(node: Node, context: Context, units: quantized.Units, fusions: dict[int, str]) -> Verdict:
    if node.index in fusions:
        return ON_QNN
    quantized_unit = units.get(node.index)
    for rule in RULES:
        if quantized_unit is not None and rule.name in ("type", "rearranged", "chip"):
            continue
        verdict = rule.verdict(node, context)
        if verdict is not None:
            return verdict
    if quantized_unit is not None:
        return quantized.verdict(node, quantized_unit, context.arch)
    return ON_QNN


def _with_constants(view: GraphView, gone: Mapping[int, str]) -> list[Node]:
    """The nodes; what ONNX Runtime computes ahead is a constant to those that take it."""
    computed = {
        tensor.name
        for node in view.nodes
        if gone.get(node.index, "").startswith("computed")
        for tensor in node.made
    }
    return [
        dataclasses.replace(
            node,
            inputs=tuple(
                dataclasses.replace(tensor, constant=True)
                if tensor is not None and tensor.name in computed
                else tensor
                for tensor in node.inputs
            ),
        )
        if any(tensor.name in computed for tensor in node.given)
        else node
        for node in view.nodes
    ]
