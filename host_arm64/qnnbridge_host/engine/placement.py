"""Placement of a session's nodes, and the error for a strict session with nodes on the CPU.

``get_providers()`` proves nothing: it lists QNN even if every node is on the CPU. Only ONNX Runtime's own graph
assignment (since 1.24) reports the provider of each node. Pure functions on a session that does not run yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from qnnbridge_host.engine.qnn_options import PROVIDER
from qnnbridge_host.model.collector import OP_TYPE
from qnnbridge_host.model.qnn_operators import lacking, nothing_for_qnn
from qnnbridge_protocol.config_keys import BACKENDS_WITHOUT_RESULTS
from qnnbridge_protocol.errors import BridgeError, PlacementRefused
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.specs import AFTER_OPTIMISATION, NO_OPERATOR, NodeInfo, Placement

CPU_PROVIDER = "CPUExecutionProvider"
MAX_CPU_LIST = 200
_NAMED_NODES = 10
_QUANTIZATION = ("QuantizeLinear", "DequantizeLinear")
# Operators that contain subgraphs. ONNX Runtime's list also contains the nodes of the subgraphs, without marking
# them.
_WITH_BODIES = ("If", "Loop", "Scan")
# Operators that onnxruntime's quantize_dynamic creates and QNN does not support.
_DYNAMIC = frozenset({"DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "ConvInteger"})


class PlacementTarget(NamedTuple):
    """Backend and chip that compute the QNN part of a session.

    backend: the backend's type (htp, gpu, ...). simulator: whether the machine lacks an NPU. soc_model: the chip,
    if the application has given one. edges_on_cpu: whether QNN leaves quantization at the graph's inputs and
    outputs to the CPU, which is its default if the CPU is allowed.
    """

    backend: str
    simulator: bool
    soc_model: str | None = None
    edges_on_cpu: bool = False


class SessionOperators(NamedTuple):
    """Properties of a session's operators that determine the advice in an error.

    without_qnn: operators that QNN never supports, whatever their sizes and types. none_for_qnn: whether QNN
        supports none of the session's operators. quantised: whether the session contains QuantizeLinear or
        DequantizeLinear.
    """

    without_qnn: tuple[str, ...] = ()
    none_for_qnn: bool = False
    quantised: bool = False


_NOT_KNOWN = SessionOperators()


def read(session: Any, target: PlacementTarget | None, source: str = "") -> Placement:
    """Return the placement of a session; its ``known`` is False if this ONNX Runtime does not report placements.

    source: where QNN was loaded from; becomes the placement's `source`.
    """
    base = Placement(known=False)
    if target is not None:
        base = dataclasses.replace(
            base,
            backend=target.backend,
            simulator=target.simulator,
            soc_model=target.soc_model,
            source=source,
            cause=BACKENDS_WITHOUT_RESULTS.get(target.backend),
        )
    assignment = _assignment(session)
    if assignment is None:
        return base
    qnn = cpu = other = partitions = 0
    on_cpu: list[tuple[str, str]] = []
    for subgraph in assignment:
        nodes = subgraph.get_nodes()
        if subgraph.ep_name == PROVIDER:
            partitions += 1
            qnn += len(nodes)
        elif subgraph.ep_name == CPU_PROVIDER:
            # Count all nodes but list only some, because the list must fit into a message header.
            cpu += len(nodes)
            on_cpu += [(node.name, node.op_type) for node in nodes[: MAX_CPU_LIST - len(on_cpu)]]
        else:
            other += len(nodes)
    placed = dataclasses.replace(
        base,
        known=True,
        qnn_nodes=qnn,
        cpu_nodes=cpu,
        other_nodes=other,
        partitions=partitions,
        cpu_list=tuple(on_cpu),
    )
    if target is not None and cpu and placed.cause is None:
        cause = _cause(
            placed,
            infos(session.get_inputs()),
            target.edges_on_cpu,
            compiled=is_compiled(session),
            operators=session_operators(session),
        )
        placed = dataclasses.replace(placed, cause=cause)
    return placed


def is_compiled(session: Any) -> bool:
    """Return whether a node on QNN contains or refers to a context binary."""
    graphs = [graph for graph in _assignment(session) or () if graph.ep_name == PROVIDER]
    return any(node.op_type == OP_TYPE for graph in graphs for node in graph.get_nodes())


def operators_on_qnn(session: Any) -> frozenset[str]:
    """Return the operators of the nodes on QNN. The result is empty if ONNX Runtime does not report the
    placement."""
    graphs = [graph for graph in _assignment(session) or () if graph.ep_name == PROVIDER]
    return frozenset(str(node.op_type) for graph in graphs for node in graph.get_nodes())


def session_operators(session: Any) -> SessionOperators:
    """Return the properties of a session's operators that determine the advice in an error."""
    names = {
        str(node.op_type) if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        for graph in _assignment(session) or ()
        for node in graph.get_nodes()
    }
    return SessionOperators(
        tuple(sorted(lacking(names))), nothing_for_qnn(names), not names.isdisjoint(_QUANTIZATION)
    )


def infos(nodes: Any) -> tuple[NodeInfo, ...]:
    """Return the session's inputs or outputs, with free dimension overrides applied."""
    return tuple(NodeInfo(node.name, node.type, tuple(node.shape)) for node in nodes)


def refusal(
    model: str,
    placement: Placement | None,
    model_inputs: Sequence[NodeInfo],
    second_error: BridgeError | None = None,
    *,
    compiled: bool = False,
    operators: SessionOperators = _NOT_KNOWN,
) -> PlacementRefused:
    """Return the error for a strict session that ONNX Runtime refused.

    Args:
        model: name of the model for the message.
        placement: placement in a second session, which allowed the CPU; ``None`` if its creation failed.
        model_inputs: inputs of the second session.
        second_error: why the second session could not be created.
        compiled: result of `is_compiled`.
        operators: result of `session_operators`.
    """
    free = dynamic_dimensions(model_inputs)
    if placement is None or not placement.cpu_nodes:
        message = f"Some nodes of {model} would run on the CPU, and this session forbids it."
        cause = _dynamic(free)
        if cause is None and second_error is not None:
            cause = second_error.cause or second_error.message
    else:
        total = placement.qnn_nodes + placement.cpu_nodes + placement.other_nodes
        if placement.qnn_nodes == 0:
            count = "1 node" if total == 1 else f"{total} nodes"
            message = (
                f"No node of {model} can run on the NPU ({count} {AFTER_OPTIMISATION}), and this session forbids "
                "the CPU."
            )
        else:
            count = f"{placement.cpu_nodes} of {total} nodes"
            message = f"After optimisation, {count} of {model} would run on the CPU, and this session forbids it."
        cause = _cause(placement, model_inputs, compiled=compiled, operators=operators)
    details: dict[str, Any] = {"dynamic_inputs": {name: list(dims) for name, dims in free.items()}}
    if placement is not None and placement.known:
        details |= {
            "qnn_nodes": placement.qnn_nodes,
            "cpu_nodes": placement.cpu_nodes,
            "cpu_list": [list(node) for node in placement.cpu_list],
        }
    if second_error is not None:
        details["with_fallback"] = second_error.message
    on_cpu = {op for _, op in placement.cpu_list} if placement is not None else ()
    fix = _fix(free, on_cpu, compiled=compiled, operators=operators)
    return PlacementRefused(message, cause=cause, fix=fix, details=details)


def dynamic_dimensions(model_inputs: Sequence[NodeInfo]) -> dict[str, tuple[str, ...]]:
    """Return the free dimensions of each input that has free dimensions, by name or by position (``axis 0``)."""
    found = {}
    for node in model_inputs:
        free = tuple(
            dim if isinstance(dim, str) and dim else f"axis {axis}"
            for axis, dim in enumerate(node.shape or ())
            if not isinstance(dim, int) or dim < 0
        )
        if free:
            found[node.name] = free
    return found


def _assignment(session: Any) -> Sequence[Any] | None:
    ask = getattr(session, "get_provider_graph_assignment_info", None)
    if ask is None:  # before 1.24
        return None
    try:
        found: Sequence[Any] = ask()
    except Exception:  # noqa: BLE001 - the application's session entry has disabled recording
        return None
    return found


def _dynamic(free: Mapping[str, Sequence[str]]) -> str | None:
    if not free:
        return None
    dims = "; ".join(f"input {name!r}: {', '.join(dims)}" for name, dims in free.items())
    return f"QNN needs fixed dimensions, but these dimensions have no fixed size: {dims}."


def _cause(
    placement: Placement,
    model_inputs: Sequence[NodeInfo],
    edges_on_cpu: bool = False,
    *,
    compiled: bool = False,
    operators: SessionOperators = _NOT_KNOWN,
) -> str:
    if operators.none_for_qnn:
        return (
            f"{NO_OPERATOR} {', '.join(operators.without_qnn[:_NAMED_NODES])}, and the model has no other "
            "operators."
        )
    dynamic = _dynamic(dynamic_dimensions(model_inputs))
    if dynamic:
        return f"{dynamic}{_staying(operators)}"
    nodes, count, edges = placement.cpu_list, placement.cpu_nodes, ""
    if edges_on_cpu and placement.qnn_nodes:
        nodes = tuple(node for node in nodes if node[1] not in _QUANTIZATION)
        if len(nodes) < len(placement.cpu_list):
            count -= len(placement.cpu_list) - len(nodes)
            edges = "QNN leaves quantization at the graph's edges to the CPU (offload_graph_io_quantization)."
        if not count:
            return edges
    cutting = tuple(node for node in nodes if node[1] in _WITH_BODIES)
    if cutting and placement.qnn_nodes:
        nodes, inside = cutting, count - len(cutting)
        count = len(cutting)
        bodies = "branches" if all(op == "If" for _, op in cutting) else "bodies"
        of = f"the {bodies} of {'this node' if count == 1 else 'these nodes'}"
        rest = f"{inside} more {'nodes stay' if inside > 1 else 'node stays'}"
        edges = f"{rest} on the CPU, including all nodes inside {of}. {edges}" if inside else edges
    shown = [f"{op} ({name})" if name else op for name, op in nodes[:_NAMED_NODES]]
    more = count - len(shown)
    listed = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
    if compiled:
        return f"The model is compiled, and its context binary lacks these nodes: {listed}. {edges}".rstrip()
    if placement.qnn_nodes:
        return f"QNN does not support these nodes as they are: {listed}. {edges}".rstrip()
    return (
        f"QNN took none of these nodes: {listed}. Either QNN does not support them, or its backend did not start."
    )


def _staying(operators: SessionOperators) -> str:
    """Return a sentence that lists the operators of ai.onnx.ml: QNN lacks them even if all dimensions are fixed.

    Other operators that QNN lacks are omitted, because ONNX Runtime may fold some of them into constants.
    """
    names = [name for name in operators.without_qnn if name.startswith("ai.onnx.ml.")]
    return f" {NO_OPERATOR} {', '.join(names)}, and fixed dimensions do not change that." if names else ""


def _fix(
    free: Mapping[str, Sequence[str]],
    on_cpu: Collection[str] = (),
    *,
    compiled: bool = False,
    operators: SessionOperators = _NOT_KNOWN,
) -> str:
    allow = "To run unsupported nodes on the CPU, create the session with fallback='cpu'."
    if compiled:
        return f"Change these nodes in the original model so that QNN supports them, and compile it again. {allow}"
    if not free and not _DYNAMIC.isdisjoint(on_cpu):
        lacks = f"QNN does not support {_named(on_cpu)}"
        return f"Use the float model, or quantise it with qnnbridge quantize; {lacks}. {allow}"
    if operators.none_for_qnn:
        return f"Run the model on the CPU provider, or replace these operators with other operators. {allow}"
    if not free:
        if operators.quantised:
            # Advise to quantise the float model: `qnnbridge quantize` refuses a model that is quantised already.
            return f"Change these nodes, or quantise the float model again with other types. {allow}"
        return f"Change or quantize these nodes so that QNN supports them. {allow}"
    axes = [dim for dims in free.values() for dim in dims]
    # Do not suggest an override for a name that one input uses for several axes (such as "?"), because it would set
    # all of them.
    names = [dim for dim in dict.fromkeys(axes) if all(_is_handle(dim, dims) for dims in free.values())]
    how = ", ".join(f"add_free_dimension_override_by_name({name!r}, SIZE)" for name in names)
    if how and set(axes) == set(names):
        return f"Fix the dimensions: {how}, or export the model with fixed shapes. {allow}"
    partly = f"  (named dimensions can be fixed in the session options: {how})" if how else ""
    return f"Export the model with fixed shapes{partly}. {allow}"


def _named(operators: Collection[str]) -> str:
    return " and no ".join(sorted(_DYNAMIC.intersection(operators)))


def _is_handle(dim: str, dims: Sequence[str]) -> bool:
    return not dim.startswith("axis ") and dims.count(dim) <= 1
