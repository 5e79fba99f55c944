"""Recommend changes of a model, the most valuable first, and predict its placement with fixed sizes.

QNN supports only fixed shapes. For a model with free dimensions, the benefit of all other recommendations is
therefore computed on a copy with fixed sizes. The functions are pure and need no host.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.graph import shapes as model_shapes
from qnnbridge_host.graph.model_index import Editor, ModelIndex
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.model import operator_tables as tables
from qnnbridge_host.model.double_edges import is_conversion
from qnnbridge_host.rewrite.catalogue import chosen
from qnnbridge_host.rewrite.constants import fix_values
from qnnbridge_host.rewrite.deciding import deciding_inputs, results_text, sizing_inputs, tried_sizes
from qnnbridge_host.rewrite.rank import FOLDED
from qnnbridge_models.analyze.analysis import BAD, Advice, NodePlace, NodeVerdict, QnnAnswer
from qnnbridge_models.analyze.costs import Cost, costs_of
from qnnbridge_models.analyze.predict import DEQUANTIZE, Prediction, parts_of, predict_model
from qnnbridge_models.analyze.rules import QUANTISE_AGAIN
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.input_tensors import options_text
from qnnbridge_protocol.shell import fix_command
from qnnbridge_protocol.shown import listed

NO_SHAPE: Final = "replace the first operator before these nodes whose output shape is unknown or depends on values"
_NAMED = 3
# Largest quantisation step for which the error factor exp(step) is printed as a number, not as "1e300 and more".
_MOST_EXPONENT: Final = 690
# Maximum number of kinds of objections whose benefit is computed: each computation traverses the graph.
_MOST_TRIED = 40
# Maximum number of nodes to visit in all these traversals: 100,000 nodes take a tenth of a second. The limit does
# not affect models of up to 10,000 nodes.
_MOST_WALKED = 400_000
# Sizes to try for free dimensions, except for axis 0 (the batch), which gets 1. All rules are applied for each
# size.
_TRIED_SIZES = (64, 224, 16)
# Size to try last if each input has a single free dimension besides the batch: an audio model needs at least one
# window of samples.
_SAMPLES = 16000
# Code of the advice to make an input constant, because the input decides which branch of an If runs.
_DECIDING = "deciding-input"
# Maximum number of nodes for which several sizes are tried.
_LARGE = 2000
# Order of advice by severity. Sizes come first, because the benefit of all other advice is computed on a copy with
# fixed sizes.
_ORDER = {"sizes": 0, "crash": 1, "fails": 2, "known-wrong": 3, "cpu": 4, "model": 5}
_CALCULATING = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Mod", "CumSum", "ReduceSum", "MatMul", "Sum"})


@dataclasses.dataclass(frozen=True, slots=True)
class Sized:
    """Prediction for a model whose free dimensions were set to sizes.

    Args:
        prediction: result of the rules.
        costs: cost of each node.
        sizes: the sizes that were chosen for the free dimensions.
    """

    prediction: Prediction
    costs: Sequence[Cost]
    sizes: Dimensions

    @property
    def all_on_qnn(self) -> bool:
        places = {verdict.place for verdict in self.prediction.verdicts}
        return "qnn" in places and not places & set(BAD)


def with_sizes(model: Any, arch: int, folder: Path) -> Sized | None:
    """Return the best prediction among several sizes; None for a model without free dimensions."""
    free = model_shapes.free_dimensions(model.graph)
    best: Sized | None = None
    for sizes in _possible(free, large=len(model.graph.node) > _LARGE):
        copy = type(model)()
        copy.CopyFrom(model)
        model_shapes.fix(copy, sizes)
        model_shapes.forget_inferred(copy.graph)
        prediction = predict_model(copy, arch, folder)
        found = Sized(prediction, costs_of(prediction.view, copy), sizes)
        if best is None or _placed(found) > _placed(best):
            best = found
        if best.all_on_qnn:
            break
    return best


def _placed(sized: Sized) -> int:
    return sum(verdict.place == "qnn" for verdict in sized.prediction.verdicts)


def _possible(free: Sequence[model_shapes.FreeAxis], *, large: bool) -> Iterator[Dimensions]:
    if not free:
        return
    # Do not try several sizes for axis 0, which is assumed to be the batch.
    behind = any(one.axis for one in free)
    lines = max(Counter(one.input for one in free if one.axis).values(), default=0) == 1
    for size in _TRIED_SIZES[:1] if large or not behind else (*_TRIED_SIZES, *((_SAMPLES,) if lines else ())):
        yield Dimensions({}, {(one.input, one.axis): size if one.axis else 1 for one in free})


SEQUENCE_PARTS: Final = "sequence-parts"
# Rewrites of patterns that exporters produce, with the operators that each rewrite replaces.
_OF_EXPORTERS: Final[Mapping[str, frozenset[str]]] = {
    "default-activations": frozenset({"GRU", "LSTM"}),
    "gather-places": frozenset({"GatherND"}),
    "integer-table": frozenset({"Gather"}),
    SEQUENCE_PARTS: frozenset({"SequenceAt"}),
    "scatter-rows": frozenset({"ScatterElements"}),
    "dft": frozenset({"DFT"}),
    "einsum": frozenset({"Einsum"}),
    "attention-mask": frozenset({"Attention"}),
    "scatter-extremes": frozenset({"ScatterElements"}),
    "col2im": frozenset({"Col2Im"}),
    "clip-limits": frozenset({"Clip"}),
    "half-infinity": frozenset({"IsInf"}),
    "equal-bool": frozenset({"Equal"}),
    "negative-integer": frozenset({"Neg"}),
    "integer-padding": frozenset({"Pad"}),
    "rank": FOLDED,
}


def rewritten_results(
    model: Any, folder: Path, in_file: Mapping[str, str], refused: Collection[str]
) -> dict[str, str]:
    """Return the tensors whose producer a rewrite of `qnnbridge fix` changes, with the name of the rewrite.

    Each rewrite is applied to a copy; no model is run.

    Args:
        model: `ModelProto` of the model.
        folder: folder of its external tensors.
        in_file: operator that computes each tensor of the file's main graph. Tensors of functions are missing,
            because `fix` does not change functions.
        refused: operators that stay on the CPU; rewrites of other operators are skipped.
    """
    found: dict[str, str] = {}
    for rewrite in chosen(_OF_EXPORTERS, ()):
        about = _OF_EXPORTERS[rewrite.name]
        if not about.intersection(refused):
            continue
        copy = type(model)()
        copy.CopyFrom(model)
        if not rewrite.apply(Editor(copy, folder)):
            continue
        now = {name: node.SerializeToString() for node in copy.graph.node for name in node.output}
        for node in model.graph.node:
            as_it_was = node.SerializeToString()
            for name in node.output:
                if in_file.get(name) == node.op_type and now.get(name) != as_it_was:
                    found.setdefault(name, rewrite.name)
    return found


def notes_on(
    prediction: Prediction, model: Any, path: Path, truth: QnnAnswer | None, known: Sequence[Advice] = ()
) -> list[Advice]:
    """Return recommendations about the model as a whole, and one that explains QNN's error.

    Args:
        known: known faults that the model contains.
    """
    notes: list[Advice] = []
    view = prediction.view
    if prediction.no_input:
        notes.append(
            Advice(
                "Export the model with its input", "the model has no input, which QNN requires", severity="fails"
            )
        )
    if view.opset > tables.NEWEST_OPSET or view.model.ir_version > tables.NEWEST_IR_VERSION:
        notes.append(
            Advice(
                f"Export with opset {tables.NEWEST_OPSET} and IR version {tables.NEWEST_IR_VERSION} at most",
                f"the model has opset {view.opset} and IR version {view.model.ir_version}; "
                f"ONNX Runtime {tables.NEWEST_ORT} does not load it",
                severity="fails",
            )
        )
    crashing = any(verdict.place == "crash" for verdict in prediction.verdicts)
    if prediction.empty and not crashing:
        names = ", ".join(prediction.empty[:3])
        notes.append(
            Advice(
                fix_command(path, "--only zero-size"),
                "the process crashes when QNN runs an operator that reads or writes a tensor without elements "
                f"({names})",
                severity="crash",
            )
        )
    wide = _nodes_with_wide_integers(prediction)
    if wide:
        notes.append(
            Advice(
                "Keep int64 values within 32 bits",
                f"{len(wide)} {'node on QNN computes' if len(wide) == 1 else 'nodes on QNN compute'} with int64, "
                "and QNN silently keeps only 32 bits",
                tuple(wide),
                severity="model",
            )
        )
    if coarse := _in_coarse_steps(view):
        step = coarse[0][1]
        factor = "1e300 and more" if step > _MOST_EXPONENT else f"{math.exp(step):.3g}"
        notes.append(
            Advice(
                QUANTISE_AGAIN[0].upper() + QUANTISE_AGAIN[1:],
                f"the input of {len(coarse)} Softmax {'nodes' if len(coarse) > 1 else 'node'} is quantised in "
                f"steps of {step:.3g}: one step changes the result by a factor of {factor}, on the CPU as well. "
                "The large values of an attention mask leave no resolution for the scores",
                tuple(index for index, _ in coarse),
                severity="model",
            )
        )
    # Omit QNN's error if the rules predicted a failing node, because the rules explain the failure better.
    foreseen = any(verdict.place in ("crash", "fails") for verdict in prediction.verdicts)
    foreseen |= any(one.severity == "fails" for one in known)
    if truth is not None and isinstance(truth.error, BridgeError) and not foreseen:
        notes.append(Advice(truth.error.fix or "See the error above", truth.error.message, severity="fails"))
    return notes


def _in_coarse_steps(view: ModelIndex) -> list[tuple[int, float]]:
    """Return (index, step) of each Softmax whose argument is quantised with a step above 1, largest step first."""
    found = []
    for node in view.nodes:
        maker = view.origin(node.given[0].name) if node.op == "Softmax" and node.given else None
        scale = maker.input(1) if maker is not None and maker.op in DEQUANTIZE else None
        if scale is not None and scale.values and all(map(math.isfinite, scale.values)) and max(scale.values) > 1:
            found.append((node.index, max(scale.values)))
    return sorted(found, key=lambda one: -one[1])


def about_deciding_inputs(
    model: Any, path: Path, view: ModelIndex, verdicts: Sequence[NodeVerdict], dims: str
) -> list[Advice]:
    """Advise to replace inputs by constants if they decide which branches of If nodes run.

    Args:
        dims: options that fix free dimensions.
    """
    branching = [
        number
        for number, (node, verdict) in enumerate(zip(view.nodes, verdicts, strict=True))
        if node.op == "If" and verdict.place in BAD
    ]
    constants = deciding_inputs(model) if branching else {}
    if not constants:
        return []
    options = options_text(constants)
    names, labels = ", ".join(constants), ", ".join(view.nodes[number].label for number in branching[:_NAMED])
    return [
        Advice(
            fix_command(path, options.strip(), dims),
            f"QNN does not support If; the value of {names} decides which branch of {labels} runs. If a constant "
            f"replaces {names}, only one branch is left. The value in this command is an example from the model: "
            "give your own value instead",
            tuple(branching),
            severity="sizes",
            code=_DECIDING,
        )
    ]


def about_sizing_inputs(
    model: Any,
    path: Path,
    arch: int,
    verdicts: Sequence[NodeVerdict],
    sized: Sized | None,
    decided: Dimensions,
    dims: str,
) -> list[Advice]:
    """Advise to replace inputs by constants if their values are sizes and QNN then supports more nodes.

    Args:
        path: path of the given model.
        verdicts: verdicts on the nodes, with fixed sizes if the model has free dimensions.
        sized: prediction with fixed sizes, for a model with free dimensions.
        decided: the sizes that the user gave.
        dims: options that fix free dimensions.
    """
    inputs = sizing_inputs(model)
    refused = {number for number, verdict in enumerate(verdicts) if verdict.place in BAD}
    results = dict.fromkeys(name for names in inputs.values() for name in names)
    if not any(name in results for number in refused for name in model.graph.node[number].output):
        return []
    sizes = sized.sizes if sized is not None else Dimensions()
    known = Dimensions({**decided.by_name}, {**decided.by_axis, **sizes.by_axis})
    constants = tried_sizes(path, model, inputs, known, {})
    if not constants:
        return []
    copy = type(model)()
    copy.CopyFrom(model)
    model_shapes.fix(copy, sizes)
    fix_values(Editor(copy, path.parent), constants)
    model_shapes.forget_inferred(copy.graph)
    now = predict_model(copy, arch, path.parent)
    cured = tuple(number for number in sorted(refused) if now.verdicts[number].place not in BAD)
    if not cured:
        return []
    names = ", ".join(constants)
    on_qnn, live = (sum(one.place in places for one in now.verdicts) for places in (("qnn",), ("qnn", *BAD)))
    return [
        Advice(
            fix_command(path, options_text(constants).strip(), dims),
            f"QNN supports fixed sizes only; the value of {names} determines the size of "
            f"{results_text(list(results))}. If a constant replaces {names}, the rules predict {on_qnn} of {live} "
            "nodes on the NPU. The values in this command are examples that the model accepts: give your own "
            "values instead",
            cured,
            severity="sizes",
            code=_DECIDING,
        )
    ]


_REWRITES = re.compile(r"qnnbridge fix \(([\w-]+(?:, [\w-]+)*)\)( .*)?(.*)")


def with_commands(verdicts: Sequence[NodeVerdict], path: Path, sizes: str) -> tuple[NodeVerdict, ...]:
    """Return the verdicts with rewrite names like "qnnbridge fix (rank)" replaced by complete commands.

    Args:
        path: path of the given model.
        sizes: options that fix free dimensions.
    """
    fixed = f"{sizes} --only fixed-shapes" if sizes else ""

    def command(found: re.Match[str]) -> str:
        rewrites = " ".join(f"--only {name}" for name in found[1].split(", "))
        effect = f" ({found[2].strip()})" if found[2] else ""
        return fix_command(path, fixed, rewrites) + effect + found[3]

    return tuple(dataclasses.replace(one, fix=_REWRITES.sub(command, one.fix)) for one in verdicts)


def _nodes_with_wide_integers(prediction: Prediction) -> list[int]:
    return [
        node.index
        for node, verdict in zip(prediction.view.nodes, prediction.verdicts, strict=True)
        if verdict.place == "qnn" and node.op in _CALCULATING and node.made and node.made[0].type == "int64"
    ]


def advise(
    view: ModelIndex,
    verdicts: Sequence[NodeVerdict],
    costs: Sequence[Cost],
    notes: Sequence[Advice],
    sized: Sized | None,
    path: Path,
    dims: str,
) -> list[Advice]:
    """Return the recommendations, the most valuable first. Objections of the same kind form one recommendation.

    The benefit is computed: the nodes are moved to QNN in a copy of the placement, and the parts are counted again.

    Args:
        path: path of the given model.
        notes: recommendations for the whole model.
        sized: prediction with fixed sizes, for a model with free dimensions.
        dims: options that fix free dimensions.
    """
    found = list(notes)
    if sized is not None:
        waiting = [
            index
            for index, (verdict, then) in enumerate(zip(verdicts, sized.prediction.verdicts, strict=True))
            if verdict.place in BAD and then.place not in BAD
        ]
        if waiting and all(one.code != _DECIDING for one in notes):
            found.append(_about_sizes(view, verdicts, waiting, sized, path, dims))
        # From here on use the copy with fixed sizes: objections that the sizes remove are covered by the advice
        # about sizes, and all others need a different remedy.
        view, costs = sized.prediction.view, sized.costs
        verdicts = [
            dataclasses.replace(one, fix=NO_SHAPE) if one.rule == "free-shape" else one
            for one in with_commands(sized.prediction.verdicts, path, dims)
        ]
    kinds: dict[tuple[str, str, str], list[int]] = {}
    decided = {index for one in notes if one.code == _DECIDING for index in one.nodes}
    for index, verdict in enumerate(verdicts):
        # Nodes that `fix` deliberately leaves on the CPU need no advice.
        if verdict.place in BAD and index not in decided and not is_conversion(view.nodes[index].name):
            kinds.setdefault(_kind(view, index, verdict), []).append(index)
    places: list[NodePlace] = [verdict.place for verdict in verdicts]
    now = len(parts_of(view, places)) if kinds else 0
    largest = sorted(kinds.items(), key=lambda item: -len(item[1]))
    # Do fewer traversals for larger graphs.
    most = min(_MOST_TRIED, _MOST_WALKED // max(1, len(view.nodes)))
    for number, (_, nodes) in enumerate(largest):
        tried = _would_join(view, places, nodes, now) if number < most else 0
        found.append(_advice(view, verdicts, costs, nodes, tried))
    return sorted(found, key=lambda one: (_ORDER[one.severity], -one.macs, -one.parts, -len(one.nodes)))


def _about_sizes(
    view: ModelIndex, verdicts: Sequence[NodeVerdict], waiting: Sequence[int], sized: Sized, path: Path, dims: str
) -> Advice:
    pairs = list(zip(sized.prediction.verdicts, sized.costs, strict=True))
    live = sum(cost.nodes for verdict, cost in pairs if verdict.place != "folded")
    on_qnn = sum(cost.nodes for verdict, cost in pairs if verdict.place == "qnn")
    count = f"all {live} nodes run" if sized.all_on_qnn else f"{on_qnn} of {live} nodes run"
    alone = "the model needs no other change: " if sized.all_on_qnn else ""
    tried = ", ".join(f"{name}:{axis}={size}" for (name, axis), size in list(sized.sizes.by_axis.items())[:4])
    first = next((verdicts[index].reason for index in waiting if verdicts[index].rule == "free-shape"), "")
    branching = [view.nodes[index].label for index in waiting if index in sized.prediction.decided]
    labels = ", ".join(branching[:_NAMED])
    return Advice(
        fix_command(path, dims),
        f"QNN supports fixed sizes only; {alone}the rules predict that {count} on the NPU with the sizes {tried}"
        + (
            f". The sizes decide which branch of {labels} runs; the command also removes the branches that do not "
            "run (untaken-branches)"
            if branching
            else ""
        )
        + (f". Without sizes: {first}" if first else ""),
        tuple(waiting),
        sum(sized.costs[index].macs for index in waiting if sized.prediction.verdicts[index].place == "qnn"),
        0,
        "sizes",
    )


def _kind(view: ModelIndex, index: int, verdict: NodeVerdict) -> tuple[str, str, str]:
    # Treat all free shapes as one objection, because fixing the sizes of the inputs removes all of them.
    if verdict.rule == "free-shape":
        return verdict.rule, "", ""
    return verdict.rule, "" if verdict.fix else view.nodes[index].op, verdict.fix


def _would_join(view: ModelIndex, places: Sequence[NodePlace], nodes: Sequence[int], now: int) -> int:
    moved = list(places)
    for index in nodes:
        moved[index] = "qnn"
    return now - len(parts_of(view, moved))


def _advice(
    view: ModelIndex, verdicts: Sequence[NodeVerdict], costs: Sequence[Cost], nodes: Sequence[int], parts: int
) -> Advice:
    first = verdicts[nodes[0]]
    ops = list(dict.fromkeys(view.nodes[index].op for index in nodes))
    count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    names = listed([view.nodes[index].label for index in nodes], _NAMED)
    shown = ", ".join(ops[:_NAMED]) + (" and others" if len(ops) > _NAMED else "")
    what = first.fix or f"Replace {shown}, or accept that the CPU runs it"
    return Advice(
        what[0].upper() + what[1:] if not what.startswith("qnnbridge") else what,
        f"{count} ({shown}): {first.reason.rstrip('.')}. In: {names}",
        tuple(nodes),
        sum(costs[index].macs for index in nodes),
        max(parts, 0),
        first.place,
    )
