"""`analyze_model`: the work of the command, for programs."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping

from qnnbridge_host.graph import files, graphs
from qnnbridge_host.graph import shapes as model_shapes
from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.graph.runnable import check_runnable
from qnnbridge_host.model.chips import DEFAULT_SIMULATED_CHIP, chip_label, chip_of, chip_of_this_computer
from qnnbridge_models.analyze import tables
from qnnbridge_models.analyze.analysis import (
    Analysis,
    GraphPlacement,
    NodeVerdict,
    QnnAnswer,
    costs_of,
)
from qnnbridge_models.analyze.ask_qnn import ask
from qnnbridge_models.analyze.predict import parts_of, predict_model
from qnnbridge_models.analyze.remedies import about_deciding_inputs, advise, notes_on, with_sizes
from qnnbridge_models.analyze.wrong_numbers import wrong_numbers
from qnnbridge_protocol.errors import HostStartFailed, InvalidGraph, ProviderUnavailable
from qnnbridge_tools.arguments import read_chip

COMMAND = "qnnbridge analyze"
_NO_SHAPE = "replace the operator before them from where on the shape is not known, or depends on the values"


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
    model = graphs.inlined(model)
    if fixed:
        # The shapes in the file were inferred while dimensions were free.
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
            # Before a host is started: a graph that ONNX Runtime refuses is no question for QNN.
            check_runnable(model)
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
            # A computer without QNN is no finding about the model. A host that was named has to have it.
            if isinstance(answer.error, ProviderUnavailable) and host_python is None:
                reason = answer.error.message
            else:
                truth = dataclasses.replace(answer, disagreements=_disagreements(predicted, answer))
        except InvalidGraph as error:
            reason = error.message
        except HostStartFailed as error:
            if host_python is not None:
                raise
            reason = error.message
    seconds_truth = time.perf_counter() - begun if truth else 0.0
    free = model_shapes.free_dimensions(model.graph)
    to_fix = model_shapes.options_text(free)
    placed = _explained(predicted, truth, to_fix)
    release = truth.versions.get("onnxruntime_qnn", "") if truth is not None else ""
    notes = notes_on(prediction, model, truth)
    notes += about_deciding_inputs(model, view, placed, to_fix)
    notes += wrong_numbers(view, placed, arch, release, str(path))
    sized = with_sizes(model, arch, path.parent) if free else None
    return Analysis(
        path,
        label,
        view,
        costs,
        predicted,
        tuple(advise(view, placed, costs, notes, sized)),
        prediction.empty,
        truth,
        "" if truth else reason,
        offline_s,
        seconds_truth,
        sized is not None and sized.all_on_qnn,
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
    # An unknown chip is taken for one that computes floats: the rules refuse it no node for its age.
    return str(number), chip_label(number), named.arch if named is not None else tables.FIRST_FLOAT_ARCH


def _with_parts(view: ModelIndex, verdicts: tuple[NodeVerdict, ...]) -> GraphPlacement:
    parts = parts_of(view, [verdict.place for verdict in verdicts])
    return GraphPlacement(verdicts, tuple(map(tuple, parts)))


def _disagreements(predicted: GraphPlacement, truth: QnnAnswer) -> tuple[int, ...]:
    if truth.placed is None:
        return ()
    pairs = zip(predicted.verdicts, truth.placed.verdicts, strict=True)
    return tuple(
        index
        for index, (rule, true) in enumerate(pairs)
        # A merged node has the place of its neighbour, which says nothing about the rule for it.
        if true.place != "folded" and true.rule != "merged" and rule.place != true.place
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
            # QNN's general sentences say less than the rule that foresaw them.
            reason = rule.reason if true.reason.startswith(("QNN gives no", "Failed to add node")) else true.reason
            explained.append(NodeVerdict("cpu", rule.rule, reason, rule.fix))
        else:
            explained.append(true)
    return explained
