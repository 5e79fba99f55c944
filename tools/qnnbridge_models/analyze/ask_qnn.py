"""Asks QNN itself: makes a session on a host and reads where each node runs, and QNN's reason for the rest.

The provider writes a trace of its decisions (onnxruntime-qnn 2.4 and later), also when the session fails. Nodes are
found again by names that a copy of the model gets for this. The host is a process of its own for this one question.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qnnbridge_host.cache.work_folder import work_folder
from qnnbridge_host.graph.files import link_files
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_models.analyze.analysis import GraphPlacement, NodeVerdict, QnnAnswer
from qnnbridge_models.analyze.predict import parts_of
from qnnbridge_protocol.errors import BridgeError, OptionError
from qnnbridge_tools.sessions import QNN, SessionSettings, opened

_TRACE_FILE = "qnn_op_trace.json"
# ONNX Runtime appends "_token_" and a number to the name of a node that it remakes in another layout.
_NAME = re.compile(r"qnnbridge_node_(\d+)(?:_token_\d+)?$")
_REPEATED = re.compile(r"(?<=\.)\w+ node `[^`]*` will not be assigned to QNN EP\.")
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
    """Without a trace only the nodes on the CPU are known.

    Then nodes that the rules hold for computed stay so, and the others are on QNN, in the parts that follow.

    Raises `BridgeError` if there is no host at all.

    Args:
        model: the `ModelProto` of `path`, which is not changed.
        predicted: the answer of the rules.
    """
    from qnnbridge import Host

    with work_folder("analyze") as folder:
        copy = _named_copy(model, path, external_files, Path(folder))
        with Host(python=host_python) as host:
            info = host.info
            placement, error = _make(host, copy, Path(folder), options, timeout_s)
            versions, simulator = dict(info.versions), bool(info.simulator)
        # When the host has ended, so that nothing writes to the trace any more.
        trace = _read(Path(folder) / _TRACE_FILE)
    placed = None
    if trace:
        placed = _placed(view, trace, placement, predicted)
    elif placement is not None and placement.known:
        placed = _without_trace(view, predicted, placement)
    return QnnAnswer(placed, error, versions=versions, simulator=simulator)


def _named_copy(model: Any, path: Path, external_files: Iterable[str], folder: Path) -> Path:
    copy = type(model)()
    copy.CopyFrom(model)
    for index, node in enumerate(copy.graph.node):
        node.name = f"qnnbridge_node_{index}"
    # Linked and not copied: weights may be gigabytes.
    link_files(path.parent, external_files, folder)
    named = folder / "model.onnx"
    named.write_bytes(copy.SerializeToString())
    return named


def _make(
    host: Any, model: Path, folder: Path, options: Mapping[str, str], timeout_s: float | None
) -> tuple[Any, BridgeError | None]:
    """The placement of a session with tracing, or why there is none."""
    tracing = {"enable_framework_op_trace": "1", "framework_op_trace_dir": str(folder)}
    # Its default leaves Quantize and Dequantize at the edges of the model to the CPU.
    whole = {"offload_graph_io_quantization": "0", **options}
    # With the trace first; without it where the provider refuses its options.
    for extra in (tracing, {}):
        try:
            with opened(host, model, QNN, SessionSettings({**whole, **extra}, {}, timeout_s)) as session:
                return session.placement, None
        except OptionError as error:
            if not extra:
                return None, error
            # An onnxruntime-qnn before 2.4 does not know the trace.
        except BridgeError as error:
            return None, error
    return None, None


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _placed(
    view: ModelIndex, trace: Mapping[str, Any], placement: Any, predicted: GraphPlacement
) -> GraphPlacement:
    verdicts: dict[int, NodeVerdict] = {}
    parts: list[list[int]] = []
    for node in trace.get("unsupported_nodes", ()):
        index = _index(node.get("node_name", ""))
        if index is not None:
            verdicts[index] = NodeVerdict("cpu", "qnn", _reason(view, str(node.get("reason", ""))))
    for name, _ in placement.cpu_list if placement is not None else ():
        index = _index(name)
        if index is not None:
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
    # What neither list names was folded or removed before the provider saw the graph.
    gone = NodeVerdict("folded", "qnn", "computed or taken out before anything was placed")
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
    """Adds the nodes that QNN never saw because they were merged into a neighbour.

    A merged node still does its work, where the neighbour is: it counts there, so that the answers of the rules and
    of QNN count the same nodes. What the rules hold for computed is computed. An `If` whose branch took its place
    has no neighbour of its own; where QNN left nothing to the CPU it is on QNN.
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
        # Only those beside them can have a neighbour now.
        beside = {near for index, _ in joined for near in (*before[index], *behind[index])}
        asked = [missing[index] for index in sorted(beside & missing.keys())]
    if placement is not None and placement.known and placement.qnn_nodes and not placement.cpu_nodes:
        verdicts.update((index, NodeVerdict("qnn", "merged", "what is left of it is on QNN")) for index in missing)
        if missing and not parts:
            parts.append(list(missing))


def _neighbour(view: ModelIndex, node: GraphNode, known: Mapping[int, NodeVerdict]) -> int | None:
    """The first node before it that is placed, else the first behind it."""
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
    return GraphPlacement(verdicts, tuple(map(tuple, parts_of(view, [verdict.place for verdict in verdicts]))))


def _index(name: str) -> int | None:
    match = _NAME.match(name)
    return int(match[1]) if match else None


def _reason(view: ModelIndex, text: str) -> str:
    """QNN's words, with the names that the nodes really have."""

    def real(match: re.Match[str]) -> str:
        index = _index(match[0])
        return view.nodes[index].label if index is not None and index < len(view.nodes) else match[0]

    text = _REPEATED.sub("", text).strip()
    return _OWN_NAME.sub(real, text) or "QNN gives no reason"
