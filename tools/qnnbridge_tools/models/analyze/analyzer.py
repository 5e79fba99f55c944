"""`analyze_model`: the work of the command, for programs."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from qnnbridge_host.graph import files, graphs
from qnnbridge_host.graph import shapes as model_shapes
from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_host.model.chips import DEFAULT_SIMULATED_CHIP, chip_label, chip_of, chip_of_this_computer
from qnnbridge_protocol.errors import BridgeError, HostStartFailed, ProviderUnavailable
from qnnbridge_tools.arguments import read_chip
from qnnbridge_tools.models.analyze import tables
from qnnbridge_tools.models.analyze.ask_qnn import ask
from qnnbridge_tools.models.analyze.graph_view import GraphView
from qnnbridge_tools.models.analyze.predict import Prediction, parts_of, predict_model
from qnnbridge_tools.models.analyze.result import (
    BAD,
    Advice,
    Analysis,
    Cost,
    GraphPlacement,
    NodePlace,
    NodeVerdict,
    QnnAnswer,
    costs_of,
)

_NAMED = 3
# Kinds of objections for which the parts are counted again; each takes a walk over the graph.
_MOST_TRIED = 40
_ORDER = {"crash": 0, "fails": 1, "cpu": 2, "model": 3}

COMMAND = "qnnbridge analyze"
_NO_SHAPE = "replace the operator before them from where on the shape is not known, or depends on the values"
_CALCULATING = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Mod", "CumSum", "ReduceSum", "MatMul", "Sum"})


def analyze_model(
    source: str | os.PathLike[str],
    *,
    shapes: model_shapes.Shapes | None = None,
    dims: Mapping[str, int] | Dimensions | None = None,
    soc_model: str | None = None,
    offline: bool = False,
    host_python: str | None = None,
    provider_options: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Analysis:
    """Tells where a model would run, by the rules, and by QNN itself if there is a host. Nothing is written.

    Args:
        source: path of the model.
        shapes: all sizes of an input, by name; for the answer only, the file is not changed.
        dims: sizes of free dimensions, by name or by `"x:2"`.
        soc_model: number or name of the chip; default that of this computer, or 60 (Snapdragon X Elite).
        offline: ask the rules only.
        host_python: interpreter of the host; default the one that is set up.
        provider_options: options of QNN.
        timeout_s: seconds for QNN's answer; default no limit.

    Raises:
        CompiledModelRefused: the model is compiled.
        NoSuchFile: the model or its weights are not there.
        InvalidProtobuf: the file is no model.
        OptionError: a size or the chip is wrong.
    """
    number, label, arch = chip_options(soc_model)
    begun = time.perf_counter()
    given = files.given_model(source, COMMAND)
    path, scan = given.path, given.scan
    model = graphs.load(path)
    fixed = model_shapes.fix(
        model, model_shapes.decide(model.graph, shapes or {}, model_shapes.as_dimensions(dims))
    )
    model = _inlined(model)
    if fixed:
        model_shapes.forget_inferred(model.graph)
    prediction = predict_model(model, arch, path.parent)
    view = prediction.view
    predicted = _with_parts(view, prediction.verdicts)
    costs = costs_of(view)
    offline_s = time.perf_counter() - begun
    truth: QnnAnswer | None = None
    reason = "only the rules were asked"
    begun = time.perf_counter()
    if not offline:
        options = {"soc_model": number, **(provider_options or {})} if number else dict(provider_options or {})
        try:
            answer = ask(
                model,
                path,
                scan.external_files,
                view,
                predicted,
                options=options,
                host_python=host_python,
                timeout_s=timeout_s,
            )
            if isinstance(answer.error, ProviderUnavailable) and host_python is None:
                reason = answer.error.message
            else:
                truth = dataclasses.replace(answer, disagreements=_disagreements(predicted, answer))
        except HostStartFailed as error:
            if host_python is not None:
                raise
            reason = error.message
    free = model_shapes.free_dimensions(model.graph)
    placed = _explained(predicted, truth, model_shapes.options_text(free))
    notes = _notes(prediction, model, truth)
    return Analysis(
        path,
        label,
        view,
        costs,
        predicted,
        tuple(advise(view, placed, costs, notes)),
        prediction.empty,
        truth,
        "" if truth else reason,
        offline_s,
        time.perf_counter() - begun if truth else 0.0,
    )


def chip_options(soc_model: str | None) -> tuple[str, str, int]:
    """The option for the host ("" for its own choice), a label, and the architecture."""
    if soc_model is None:
        here = chip_of_this_computer()
        chip = here or chip_of(DEFAULT_SIMULATED_CHIP)
        assert chip is not None
        return ("" if here else str(chip.number)), chip.label, chip.arch
    number = read_chip(soc_model)
    named = chip_of(number)
    return str(number), chip_label(number), named.arch if named is not None else tables.FIRST_FLOAT_ARCH


def _inlined(model: Any) -> Any:
    """With the bodies of its own functions in the place of their calls, as ONNX Runtime does it."""
    if not model.functions:
        return model
    from onnx import inliner

    return inliner.inline_local_functions(model)


def _with_parts(view: GraphView, verdicts: tuple[NodeVerdict, ...]) -> GraphPlacement:
    parts = parts_of(view, [verdict.place for verdict in verdicts])
    return GraphPlacement(verdicts, tuple(map(tuple, parts)))


def _disagreements(predicted: GraphPlacement, truth: QnnAnswer) -> tuple[int, ...]:
    if truth.placed is None:
        return ()
    pairs = zip(predicted.verdicts, truth.placed.verdicts, strict=True)
    return tuple(
        index for index, (rule, true) in enumerate(pairs) if true.place != "folded" and rule.place != true.place
    )


def _explained(predicted: GraphPlacement, truth: QnnAnswer | None, sizes: str) -> list[NodeVerdict]:
    """The true places; where the rules agree, with what they know to do about it. sizes: options that fix them."""
    what = f"qnnbridge fix MODEL -o OUT {sizes}" if sizes else _NO_SHAPE
    rules = [dataclasses.replace(v, fix=what) if v.rule == "free-shape" else v for v in predicted.verdicts]
    predicted = dataclasses.replace(predicted, verdicts=tuple(rules))
    if truth is None or truth.placed is None:
        return list(predicted.verdicts)
    explained = []
    for rule, true in zip(predicted.verdicts, truth.placed.verdicts, strict=True):
        if rule.place == "cpu" and true.place == "cpu":
            reason = rule.reason if true.reason.startswith(("QNN gives no", "Failed to add node")) else true.reason
            explained.append(NodeVerdict("cpu", rule.rule, reason, rule.fix))
        else:
            explained.append(true)
    return explained


def _notes(prediction: Prediction, model: Any, truth: QnnAnswer | None) -> list[Advice]:
    notes: list[Advice] = []
    view = prediction.view
    if prediction.no_input:
        notes.append(
            Advice("Export the model with its input", "QNN runs no graph without an input", severity="fails")
        )
    if view.opset > tables.NEWEST_OPSET or view.ir_version > tables.NEWEST_IR_VERSION:
        notes.append(
            Advice(
                f"Export with opset {tables.NEWEST_OPSET} and IR version {tables.NEWEST_IR_VERSION} at most",
                f"it has opset {view.opset} and IR version {view.ir_version}; "
                f"ONNX Runtime {tables.NEWEST_ORT} does not load it",
                severity="fails",
            )
        )
    crashing = any(verdict.place == "crash" for verdict in prediction.verdicts)
    if prediction.empty and not crashing:
        names = ", ".join(prediction.empty[:3])
        notes.append(
            Advice(
                "qnnbridge fix (zero-size) takes them out",
                f"tensors without elements ({names}) end the process as soon as QNN takes one of their operators",
                severity="crash",
            )
        )
    wide = _nodes_with_wide_integers(prediction)
    if wide:
        notes.append(
            Advice(
                "Keep values of int64 within 32 bits",
                f"{len(wide)} nodes on QNN compute with int64, and QNN keeps 32 bits of it without a word",
                tuple(wide),
                severity="model",
            )
        )
    if truth is not None and isinstance(truth.error, BridgeError):
        notes.append(Advice(truth.error.fix or "See the error above", truth.error.message, severity="fails"))
    return notes


def _nodes_with_wide_integers(prediction: Prediction) -> list[int]:
    return [
        node.index
        for node, verdict in zip(prediction.view.nodes, prediction.verdicts, strict=True)
        if verdict.place == "qnn" and node.op in _CALCULATING and node.made and node.made[0].type == "int64"
    ]


def advise(
    view: GraphView, verdicts: Sequence[NodeVerdict], costs: Sequence[Cost], notes: Sequence[Advice]
) -> list[Advice]:
    """Things to do, the most valuable first; objections of one kind are one thing.

    Args:
        notes: about the whole model. The value of a thing is found by trying: its nodes are put on QNN in a copy of
            the answer, and the parts counted again.
    """
    kinds: dict[tuple[str, str, str], list[int]] = {}
    for index, verdict in enumerate(verdicts):
        if verdict.place in BAD:
            kinds.setdefault(_kind(view, index, verdict), []).append(index)
    places: list[NodePlace] = [verdict.place for verdict in verdicts]
    now = len(parts_of(view, places))
    found = list(notes)
    largest = sorted(kinds.items(), key=lambda item: -len(item[1]))
    for number, (_, nodes) in enumerate(largest):
        tried = _would_join(view, places, nodes, now) if number < _MOST_TRIED else 0
        found.append(_advice(view, verdicts, costs, nodes, tried))
    return sorted(found, key=lambda one: (_ORDER[one.severity], -one.macs, -one.parts, -len(one.nodes)))


def _kind(view: GraphView, index: int, verdict: NodeVerdict) -> tuple[str, str, str]:
    if verdict.rule == "free-shape":
        return verdict.rule, "", ""
    return verdict.rule, "" if verdict.fix else view.nodes[index].op, verdict.fix


def _would_join(view: GraphView, places: Sequence[NodePlace], nodes: Sequence[int], now: int) -> int:
    moved = list(places)
    for index in nodes:
        moved[index] = "qnn"
    return now - len(parts_of(view, moved))


def _advice(
    view: GraphView, verdicts: Sequence[NodeVerdict], costs: Sequence[Cost], nodes: Sequence[int], parts: int
) -> Advice:
    first = verdicts[nodes[0]]
    ops = list(dict.fromkeys(view.nodes[index].op for index in nodes))
    count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    names = ", ".join(view.nodes[index].label for index in nodes[:_NAMED])
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    shown = ", ".join(ops[:_NAMED]) + (" and others" if len(ops) > _NAMED else "")
    what = first.fix or f"Replace {shown}, or accept that it stays on the CPU"
    return Advice(
        what[0].upper() + what[1:] if not what.startswith("qnnbridge") else what,
        f"{count} ({shown}): {first.reason}. In: {names}{more}",
        tuple(nodes),
        sum(costs[index].macs for index in nodes),
        max(parts, 0),
        first.place,
    )
