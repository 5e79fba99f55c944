"""`analyze_model`: predict the placement, get QNN's placement from a host, and recommend changes."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qnnbridge_host.cache.files import work_folder
from qnnbridge_host.cache.measured import AS_IN_THE_TABLE, rows_here
from qnnbridge_host.graph import files, graphs
from qnnbridge_host.graph import shapes as model_shapes
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.graph.runnable import check_runnable
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.model import operator_tables as tables
from qnnbridge_host.model.chips import (
    DEFAULT_SIMULATED_CHIP,
    chip_label,
    chip_of,
    chip_of_this_computer,
    simulated_chip,
)
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.model.op_trace import read_trace, reason_of, tracing
from qnnbridge_models.analyze.analysis import (
    Analysis,
    GraphPlacement,
    NodeVerdict,
    QnnAnswer,
)
from qnnbridge_models.analyze.costs import costs_of
from qnnbridge_models.analyze.predict import parts_of, predict_model
from qnnbridge_models.analyze.remedies import (
    NO_SHAPE,
    SEQUENCE_PARTS,
    about_deciding_inputs,
    about_sizing_inputs,
    advise,
    notes_on,
    rewritten_results,
    with_commands,
    with_sizes,
)
from qnnbridge_models.analyze.rules import bare_edges, failing_edges, inside_branches, wrong_numbers
from qnnbridge_protocol.errors import BridgeError, HostStartFailed, InvalidGraph, OptionError, ProviderUnavailable
from qnnbridge_protocol.shell import fix_command, shell_word
from qnnbridge_tools.arguments import read_chip, with_chip
from qnnbridge_tools.sessions import QNN, SessionSettings, opened

COMMAND = "qnnbridge analyze"


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
    """Report where a model's nodes would run: by the rules, and by QNN if there is a host. Write no file.

    Args:
        source: path of the model.
        shapes: complete shapes of inputs, by name. They are used for the analysis; the file is not changed.
        dims: sizes of free dimensions, by name or by `"x:2"`.
        soc_model: number or name of the chip; default: the chip of this computer, or 60 (Snapdragon X Elite).
        offline: use only the rules.
        host_python: interpreter of the host; default: the configured host.
        provider_options: options of QNN.
        timeout_s: time limit in seconds for QNN; default: no limit.

    Raises:
        CompiledModelRefused: the model is compiled.
        NoSuchFile: the model or its weights do not exist.
        InvalidProtobuf: the file is not an ONNX model.
        OptionError: a size or the chip is wrong.
    """
    number, label, arch = chip_options(soc_model, provider_options or {})
    begun = time.perf_counter()
    given = files.given_model(source, COMMAND)
    path, scan = given.path, given.scan
    model = graphs.load(path)
    decided = model_shapes.decide(model.graph, shapes or {}, model_shapes.as_dimensions(dims))
    sizes = model_shapes.options_of(model.graph, decided)
    fixed = model_shapes.fix(model, decided)
    in_file = {name: node.op_type for node in model.graph.node for name in node.output}
    # Inline the model's functions: the rules only support ONNX's operators, and ONNX Runtime does not pass
    # functions to QNN.
    model = graphs.inlined(model)
    if fixed:
        # The shapes in the file were inferred while dimensions were free, so infer them again.
        model_shapes.forget_inferred(model.graph)
    prediction = predict_model(model, arch, path.parent)
    view = prediction.view
    edges = bare_edges(view)
    command = fix_command(path, f"{sizes} --only fixed-shapes" if sizes else "", "--only ")
    verdicts = with_commands(prediction.verdicts, path, sizes)
    predicted = _with_parts(view, failing_edges(view, verdicts, edges, command))
    costs = costs_of(view, model)
    offline_s = time.perf_counter() - begun
    truth: QnnAnswer | None = None
    reason = "only the rules were used"
    begun = time.perf_counter()
    if not offline:
        options = with_chip(provider_options or {}, number if soc_model is not None else None)
        if number:
            options.setdefault("soc_model", number)
        try:
            # Check the graph before starting a host, because QNN cannot place a graph that ONNX Runtime refuses.
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
            # If QNN is missing, report an error only if the user selected the host; otherwise use the rules alone.
            if isinstance(answer.error, ProviderUnavailable) and host_python is None:
                reason = answer.error.message
            else:
                if answer.placed is not None:
                    placed_there = failing_edges(view, answer.placed.verdicts, edges, command)
                    answer = dataclasses.replace(
                        answer, placed=dataclasses.replace(answer.placed, verdicts=placed_there)
                    )
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
    placed = _explained(predicted, truth, path, to_fix)
    refused = {node.op for verdict, node in zip(placed, view.nodes, strict=True) if verdict.place == "cpu"}
    rewritten = rewritten_results(model, path.parent, in_file, refused)
    placed = _with_rewrites(placed, view, rewritten, command)
    release = truth.versions.get("onnxruntime_qnn", "") if truth is not None else ""
    here = AS_IN_THE_TABLE
    if truth is not None:
        chip = str(number) if number else None
        here = rows_here(chip, None, truth.versions, simulator=truth.simulator)
    evidence = here.evidence(truth is None or truth.simulator)
    rows = here.rows(arch, release)
    inside = inside_branches(prediction.left, prediction.numbers, rows)
    known = wrong_numbers(view, placed, rows, str(path), evidence, sizes, inside)
    # Report known faults instead of QNN's error, which does not name the operator.
    notes = [*notes_on(prediction, model, path, truth, known), *known]
    all_sizes = f"{sizes} {to_fix}".strip()
    notes += about_deciding_inputs(model, path, view, placed, all_sizes)
    sized = with_sizes(model, arch, path.parent) if free else None
    judged = placed if sized is None else sized.prediction.verdicts
    notes += about_sizing_inputs(model, path, arch, judged, sized, decided, all_sizes)
    return Analysis(
        path,
        label,
        view,
        costs,
        predicted,
        tuple(advise(view, placed, costs, notes, sized, path, to_fix)),
        prediction.empty,
        truth,
        "" if truth else reason,
        offline_s,
        seconds_truth,
        sized is not None and sized.all_on_qnn,
        bool(free),
    )


def chip_options(soc_model: str | None, options: Mapping[str, str] = MappingProxyType({})) -> tuple[str, str, int]:
    """Return (SoC option for the host, chip label, architecture); the option is empty if the host chooses the chip.

    Args:
        soc_model: number or name of the chip.
        options: provider options, which may select a chip or an architecture as well.
    """
    given = options.get("soc_model", "0").strip(" 0") or options.get("htp_arch", "0").strip(" 0")
    if soc_model is None and given:
        # Interpret the options as a session does. Only the session refuses an unknown chip name.
        found = simulated_chip(options.get("soc_model"), options.get("htp_arch"))
        of_option = chip_of(found) if found is not None else None
        if of_option is None:
            return "", f"SoC {options.get('soc_model')}", tables.FIRST_FLOAT_ARCH
        return "", of_option.label, of_option.arch
    if soc_model is None:
        here = chip_of_this_computer()
        chip = here or chip_of(DEFAULT_SIMULATED_CHIP)
        assert chip is not None
        return ("" if here else str(chip.number)), chip.label, chip.arch
    number = read_chip(soc_model)
    named = chip_of(number)
    # Assume that an unknown chip supports floats, so that the rules do not refuse float nodes.
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
        # Skip merged nodes: they are counted where their neighbour runs, which does not contradict the rules.
        if true.place != "folded" and true.rule != "merged" and rule.place != true.place
    )


def _explained(predicted: GraphPlacement, truth: QnnAnswer | None, path: Path, sizes: str) -> list[NodeVerdict]:
    """Return QNN's verdicts, with the rule's reason and fix for nodes that both QNN and the rules place on the CPU.

    Args:
        sizes: options that fix the free dimensions.
    """
    what = fix_command(path, sizes) if sizes else NO_SHAPE
    rules = [dataclasses.replace(v, fix=what) if v.rule == "free-shape" else v for v in predicted.verdicts]
    predicted = dataclasses.replace(predicted, verdicts=tuple(rules))
    if truth is None or truth.placed is None:
        return list(predicted.verdicts)
    explained = []
    for rule, true in zip(predicted.verdicts, truth.placed.verdicts, strict=True):
        if rule.place == "cpu" and true.place == "cpu":
            # QNN's general messages are less informative than the rule that predicted the placement.
            reason = rule.reason if true.reason.startswith(("QNN gives no", "Failed to add node")) else true.reason
            explained.append(NodeVerdict("cpu", rule.rule, reason, rule.fix))
        else:
            explained.append(true)
    return explained


def _with_rewrites(
    placed: list[NodeVerdict], view: ModelIndex, rewritten: Mapping[str, str], command: str
) -> list[NodeVerdict]:
    """For each node on the CPU, replace the advice by the rewrite that changes the node, if there is one.

    Args:
        command: `qnnbridge fix` command without the name of the rewrite.
    """

    def fix(verdict: NodeVerdict, node: GraphNode) -> NodeVerdict:
        # Suggest no rewrite while sizes are free: QNN reports other objections only after the sizes are fixed.
        made = () if verdict.rule == "free-shape" else node.made
        names = [rewritten[tensor.name] for tensor in made if tensor.name in rewritten]
        # QNN cannot infer the shape of a sequence element. All nodes that depend on the element need the rewrite
        # that removes the sequence.
        if verdict.reason.startswith("Cannot get shape") and SEQUENCE_PARTS in rewritten.values():
            names.append(SEQUENCE_PARTS)
        if verdict.place != "cpu" or not names:
            return verdict
        return dataclasses.replace(verdict, fix=command + names[0])

    return [fix(verdict, node) for verdict, node in zip(placed, view.nodes, strict=True)]


# --- placement by QNN -------------------------------------------------------------------------------------
#
# A session is created on a host. Its placement contains the nodes that stay on the CPU. The trace that the provider
# writes while compiling contains the nodes from which each operator was made, and QNN's reasons for refusing
# others. All nodes are renamed in a copy of the model first, because their names may be missing or duplicate.

# ONNX Runtime appends "_token_" and a number to the name of a node that it recreates in another layout.
_NAME = re.compile(r"qnnbridge_node_(\d+)(?:_token_\d+)?$")
_OWN_NAME = re.compile(r"qnnbridge_node_\d+(?:_token_\d+)?")


def ask(
    model: Any,
    path: Path,
    external_files: Iterable[str],
    view: ModelIndex,
    predicted: GraphPlacement,
    *,
    options: Mapping[str, str],
    host_python: str | None,
    timeout_s: float | None,
) -> QnnAnswer:
    """Return QNN's placement of each node.

    Without a trace only the nodes on the CPU are known. Nodes that the rules fold are then assumed to be folded and
    all other nodes to run on QNN, divided into parts by the rules.

    Args:
        model: the `ModelProto` of `path`; it is not changed.
        predicted: placement by the rules.

    Raises:
        BridgeError: the host cannot be started.
    """
    from qnnbridge import Host

    with work_folder("analyze") as folder:
        copy = _named_copy(model, path, external_files, Path(folder))
        with Host(python=host_python) as host:
            info = host.info
            placement, error = _make(host, copy, Path(folder), options, timeout_s)
            versions, simulator = dict(info.versions), bool(info.simulator)
        # Read the trace after the host has ended, when nothing writes to it any more.
        trace = read_trace(str(folder))
    if error is not None:
        _about_given(error, view, copy, path)
    placed = None
    if trace:
        placed = _placed(view, trace, placement, predicted)
    elif placement is not None and placement.known:
        placed = _without_trace(view, predicted, placement)
    return QnnAnswer(placed, error, versions=versions, simulator=simulator, session=placement)


def _named_copy(model: Any, path: Path, external_files: Iterable[str], folder: Path) -> Path:
    copy = type(model)()
    copy.CopyFrom(model)
    for index, node in enumerate(copy.graph.node):
        # QNN refers to nodes by name, but names in models may be missing or duplicate.
        node.name = f"qnnbridge_node_{index}"
    return files.changed_copy(copy, path, external_files, folder / "named")


def _about_given(error: BridgeError, view: ModelIndex, copy: Path, path: Path) -> None:
    """Replace the temporary copy's path and node names in an error by those of the user's model."""

    def given(text: str) -> str:
        return _reason(view, text).replace(os.fspath(copy), shell_word(path))

    error.message = given(error.message)
    error.cause, error.fix = error.cause and given(error.cause), error.fix and given(error.fix)
    error.evidence = tuple(map(given, error.evidence))


def _make(
    host: Any, model: Path, folder: Path, options: Mapping[str, str], timeout_s: float | None
) -> tuple[Any, BridgeError | None]:
    """Create a session with tracing; return (placement, error)."""
    # Override the provider's default, which leaves Quantize and Dequantize at the edges of the model on the CPU.
    whole = {"offload_graph_io_quantization": "0", **options}
    # Try with a trace first; then without, in case the provider refuses the trace options.
    for extra in (tracing(str(folder)), {}):
        try:
            with opened(host, model, QNN, SessionSettings({**whole, **extra}, {}, timeout_s)) as session:
                return session.placement, None
        except OptionError as error:
            if not extra:
                return None, error
            # onnxruntime-qnn before 2.4 does not support the trace: try again without.
        except BridgeError as error:
            return None, error
    return None, None


def _placed(
    view: ModelIndex, trace: Mapping[str, Any], placement: Any, predicted: GraphPlacement
) -> GraphPlacement:
    verdicts: dict[int, NodeVerdict] = {}
    parts: list[list[int]] = []
    for node in trace.get("unsupported_nodes", ()):
        index = _index(node.get("node_name", ""))
        if index is not None:
            verdicts[index] = NodeVerdict("cpu", "qnn", _reason(view, reason_of(node)))
    for name, _ in placement.cpu_list if placement is not None else ():
        index = _index(name)
        if index is not None:
            # Keep the trace's reason if there is one: the placement only lists the node.
            verdicts.setdefault(index, NodeVerdict("cpu", "qnn", "QNN gives no reason"))
    for subgraph in trace.get("subgraph_traces", ()):
        names = (
            source.get("name", "")
            for mapping in subgraph.get("op_mappings", ())
            for source in mapping.get("sources", ())
            if source.get("type", "OP") == "OP"
        )
        part = sorted({index for index in map(_index, names) if index is not None})
        if part:
            parts.append(part)
        verdicts.update((index, NodeVerdict("qnn", "qnn")) for index in part)
    _add_merged(view, verdicts, parts, predicted, placement)
    # Nodes that are neither in the trace nor in the placement were folded or removed before the provider got the
    # graph.
    gone = NodeVerdict("folded", "qnn", "computed or removed before nodes were placed")
    return GraphPlacement(
        tuple(verdicts.get(node.index, gone) for node in view.nodes), tuple(tuple(sorted(part)) for part in parts)
    )


def _add_merged(
    view: ModelIndex,
    verdicts: dict[int, NodeVerdict],
    parts: list[list[int]],
    predicted: GraphPlacement,
    placement: Any,
) -> None:
    """Add verdicts for the nodes that QNN never received because they were merged into a neighbour.

    A merged node is counted where its neighbour runs, so that the rules and QNN count the same nodes. Nodes that
    the rules fold stay folded. An `If` that was replaced by a branch has no neighbour; it counts as running on QNN
    if no node is on the CPU.
    """
    part_of = {index: number for number, part in enumerate(parts) for index in part}
    missing = {
        node.index: node
        for node in view.nodes
        if node.index not in verdicts and predicted.verdicts[node.index].place != "folded"
    }
    before, behind = view.links
    asked = list(missing.values())
    while joined := [
        (node.index, other) for node in asked if (other := _neighbour(view, node, verdicts)) is not None
    ]:
        for index, other in joined:
            verdicts[index] = NodeVerdict(verdicts[other].place, "merged", "merged into a neighbour")
            if other in part_of:
                part_of[index] = part_of[other]
                parts[part_of[other]].append(index)
            del missing[index]
        # Continue with the neighbours of the nodes that were just placed: no other node can be placed next.
        beside = {near for index, _ in joined for near in (*before[index], *behind[index])}
        asked = [missing[index] for index in sorted(beside & missing.keys())]
    if placement is not None and placement.known and placement.qnn_nodes and not placement.cpu_nodes:
        verdicts.update(
            (index, NodeVerdict("qnn", "merged", "all placed nodes of the model run on QNN")) for index in missing
        )
        if missing and not parts:
            parts.append(list(missing))


def _neighbour(view: ModelIndex, node: GraphNode, known: Mapping[int, NodeVerdict]) -> int | None:
    """Return the first placed node before this node, else the first placed node after it."""
    before = (view.origin(tensor.name) for tensor in node.given)
    behind = (user for tensor in node.made for user in view.readers(tensor.name))
    placed = (one.index for one in (*before, *behind) if one is not None and one.index in known)
    return next((index for index in placed if known[index].place in ("qnn", "cpu")), None)


def _without_trace(view: ModelIndex, predicted: GraphPlacement, placement: Any) -> GraphPlacement:
    on_cpu = {_index(name) for name, _ in placement.cpu_list}
    verdicts = tuple(
        NodeVerdict("cpu", "qnn", "QNN gives no reason")
        if node.index in on_cpu
        else rule
        if rule.place == "folded" or not placement.qnn_nodes
        else NodeVerdict("qnn", "qnn")
        for node, rule in zip(view.nodes, predicted.verdicts, strict=True)
    )
    return _with_parts(view, verdicts)


def _index(name: str) -> int | None:
    match = _NAME.match(name)
    return int(match[1]) if match else None


def _reason(view: ModelIndex, text: str) -> str:
    """Return QNN's message with the original node names."""

    def real(match: re.Match[str]) -> str:
        index = _index(match[0])
        return view.nodes[index].label if index is not None and index < len(view.nodes) else match[0]

    return _OWN_NAME.sub(real, text) or "QNN gives no reason"
