"""Refuse a model within seconds if its long compilation would end in a refusal.

ONNX Runtime asks QNN which nodes it supports, lets QNN compile these, and only then refuses a session that forbids
the CPU. If the model has an operator that QNN refuses according to the tables (`qnnbridge_host.model.doubts`), a
worker creates a session in which QNN writes the graphs to files (with its IR library) instead of compiling them.
The NPU's own library still checks each node, so the placement is the same.

Invariant: the model is refused only if QNN leaves an operator to the CPU that the tables also list. In every other
case (the library is missing, an error, a crash of the worker) nothing is raised, and the model is compiled.
Thread-safe.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.cache.files import work_folder
from qnnbridge_host.cache.key import size_of
from qnnbridge_host.create.publish import without_compiling
from qnnbridge_host.engine.placement import refusal
from qnnbridge_host.engine.qnn_options import placement_only
from qnnbridge_host.model.doubts import refused_operators
from qnnbridge_host.model.op_trace import read_trace, reason_of, tracing
from qnnbridge_protocol.errors import BridgeError, Cancelled, DeadlineExceeded
from qnnbridge_protocol.specs import QNN, ProviderSpec, SessionInfo, SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.create.order import WorkOrder
    from qnnbridge_host.model.source import ModelSource

# Do not check smaller models: compiling them takes less time than starting a worker.
LEAST_BYTES: Final = 2**20
_MOST_EVIDENCE: Final = 10
# Reason in the placement trace for a node that the NPU's library refused. The log also has the error code, 3110.
_GENERAL: Final = "Failed to add node"
# File name of QNN's IR library, without a folder: the host searches for it in the provider's folder.
_IR_LIBRARY: Final = "QnnIr.dll" if sys.platform == "win32" else "libQnnIr.so"
_WRITES_FILES: Final = ("enable_profiling", "optimized_model_filepath")


def refuse_beforehand(
    source: ModelSource, spec: SessionSpec, initializers: Sequence[Any], order: WorkOrder
) -> None:
    """Raise `PlacementRefused` for a session that QNN would refuse after the compilation.

    Args:
        source: the model.
        spec: the session's description. A session that allows the CPU is never refused.
        initializers: the values of the initializers that `spec` announces.
        order: stop signal, deadline and receiver of progress events for the worker.

    Raises:
        Cancelled, DeadlineExceeded: the request was withdrawn, or its deadline expired.
    """
    scan = source.scan
    readable = scan is not None and scan.format == "onnx" and not scan.is_compiled
    if spec.fallback != "error" or not readable or size_of(source) < LEAST_BYTES:
        return
    doubted = refused_operators(source.given, spec.free_dimensions_by_name)
    if not doubted:
        return
    try:
        with work_folder("place") as folder:
            placing = _placing(spec, folder)
            if placing is None:
                return
            info = _placed(source, placing, initializers, order)
            trace = read_trace(folder)
    except (Cancelled, DeadlineExceeded):
        raise
    except (BridgeError, OSError):
        return
    placed = info.placement
    if not placed.known or not placed.qnn_nodes or doubted.isdisjoint(op for _, op in placed.cpu_list):
        return
    refused = refusal(source.label, placed, info.inputs)
    refused.evidence = tuple(map(_evidence, trace.get("unsupported_nodes", ())[:_MOST_EVIDENCE]))
    raise refused


def _evidence(node: Mapping[str, Any]) -> str:
    name, reason = node.get("node_name"), reason_of(node)
    if reason.startswith(_GENERAL):
        reason = "QNN's backend does not support the operator, its data type or its rank on this chip"
    return f"{node.get('op_type')}{f' ({name})' if name else ''}: {reason}"


def _placed(source: ModelSource, spec: SessionSpec, initializers: Sequence[Any], order: WorkOrder) -> SessionInfo:
    # Import the module here, because few sessions need it: it loads modules for runs, which would delay the
    # response.
    from qnnbridge_host.create.worker import Worker, WorkerSession

    with Worker(order).running() as worker:
        return WorkerSession(worker, spec, initializers, source.data).info


def _placing(spec: SessionSpec, folder: str) -> SessionSpec | None:
    """Return the description of a session that places nodes without compiling; ``None`` if QNN cannot do so."""
    providers = spec.providers or (ProviderSpec(QNN),)
    options = next((dict(one.options) for one in providers if one.name == QNN), None)
    written = placement_only(options, folder, _IR_LIBRARY) if options is not None else {}
    if options is None or not written:
        return None
    # Keep quantization at the graph's edges on QNN, as a session that forbids the CPU does.
    own = ProviderSpec(QNN, {"offload_graph_io_quantization": "0", **options, **written, **tracing(folder)})
    others = tuple(one for one in providers if one.name != QNN)
    entries = without_compiling(spec.config_entries)
    return dataclasses.replace(
        spec,
        fallback="cpu",
        fix=None,
        providers=(own, *others),
        # Log fatal errors only: the application must not get log lines about this trial session.
        options={
            **{name: value for name, value in spec.options.items() if name not in _WRITES_FILES},
            "log_severity_level": 4,
        },
        config_entries={key: text for key, text in entries.items() if key != "session.disable_cpu_ep_fallback"},
    )
