"""Refuse a model in seconds whose compilation takes long and ends in a refusal.

ONNX Runtime asks QNN which nodes it takes, lets QNN compile these, and only then refuses a session that forbids the
CPU. Where the tables list an operator that QNN refuses (`qnnbridge_host.model.doubts`), a worker makes a session in
which QNN writes the graphs to files (with its IR library) instead of compiling them. The NPU's own library still
checks each node, so the placement is the same.

Invariant: the model is refused only if QNN leaves an operator to the CPU that the tables doubt, too. In every other
case (no such library, an error, a worker that dies) nothing is raised, and the model is compiled. Any thread.
"""

from __future__ import annotations

import dataclasses
import os
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

# A smaller model is compiled before a worker has started.
LEAST_BYTES: Final = 2**20
_MOST_EVIDENCE: Final = 10
# The trace's reason where the NPU's library refused the node (code 3110, which only the log has).
_GENERAL: Final = "Failed to add node"
# The name alone: the host looks for it beside the provider.
_IR_LIBRARY: Final = "QnnIr.dll" if sys.platform == "win32" else "libQnnIr.so"
_WRITES_FILES: Final = ("enable_profiling", "optimized_model_filepath")


def refuse_beforehand(
    source: ModelSource, spec: SessionSpec, initializers: Sequence[Any], order: WorkOrder
) -> None:
    """Raise `PlacementRefused` for a session that QNN would refuse after the compilation.

    Args:
        source: the model.
        spec: of the session. Only one that forbids the CPU is refused.
        initializers: values of those that `spec` announces.
        order: for the worker.

    Raises:
        Cancelled, DeadlineExceeded: the worker was ended.
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
    name = os.path.basename(source.path) if source.path is not None else "the model"
    refused = refusal(name, placed, info.inputs)
    refused.evidence = tuple(map(_evidence, trace.get("unsupported_nodes", ())[:_MOST_EVIDENCE]))
    raise refused


def _evidence(node: Mapping[str, Any]) -> str:
    name, reason = node.get("node_name"), reason_of(node)
    if reason.startswith(_GENERAL):
        reason = "the backend refuses this operator, data type or rank on this target"
    return f"{node.get('op_type')}{f' ({name})' if name else ''}: {reason}"


def _placed(source: ModelSource, spec: SessionSpec, initializers: Sequence[Any], order: WorkOrder) -> SessionInfo:
    # Not at the top: few sessions need it, and it loads what runs need, which is loaded behind the answer.
    from qnnbridge_host.create.worker import Worker, WorkerSession

    with Worker(order).running() as worker:
        return WorkerSession(worker, spec, initializers, source.data).info


def _placing(spec: SessionSpec, folder: str) -> SessionSpec | None:
    """Return the session that is placed and not compiled; None for a session without the NPU."""
    providers = spec.providers or (ProviderSpec(QNN),)
    options = next((dict(one.options) for one in providers if one.name == QNN), None)
    written = placement_only(options, folder, _IR_LIBRARY) if options is not None else {}
    if options is None or not written:
        return None
    # As in a session that forbids the CPU, QNN keeps quantization at the graph's edges.
    own = ProviderSpec(QNN, {"offload_graph_io_quantization": "0", **options, **written, **tracing(folder)})
    others = tuple(one for one in providers if one.name != QNN)
    entries = without_compiling(spec.config_entries)
    return dataclasses.replace(
        spec,
        fallback="cpu",
        fix=None,
        providers=(own, *others),
        # Nothing that this session logs is about the model's own session.
        options={
            **{name: value for name, value in spec.options.items() if name not in _WRITES_FILES},
            "log_severity_level": 4,
        },
        config_entries={key: text for key, text in entries.items() if key != "session.disable_cpu_ep_fallback"},
    )
