"""What `inspect` found, as a JSON document."""

from __future__ import annotations

import dataclasses
from typing import Any

from qnnbridge_host.model.chips import chip_of
from qnnbridge_host.model.compatibility import Target
from qnnbridge_host.model.context_files import Blob
from qnnbridge_host.model.nodes import EpContextNode
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools.models.inspection.facts import Facts

SCHEMA_VERSION = 1


def document(facts: Facts) -> dict[str, Any]:
    """``compiled`` is null for a model that is not."""
    scan = facts.scan
    return {
        "schema_version": SCHEMA_VERSION,
        "model": facts.path,
        "format": scan.format,
        "size_bytes": scan.size_bytes,
        "is_compiled": scan.is_compiled,
        "ir_version": scan.ir_version or None,
        "producer": {"name": scan.producer, "version": scan.producer_version},
        "opsets": dict(scan.opsets),
        "graph": scan.graph_name,
        "metadata": dict(scan.metadata),
        "inputs": [_value(node) for node in scan.inputs],
        "outputs": [_value(node) for node in scan.outputs],
        "nodes": {"count": scan.node_count, "by_operator": dict(scan.ops), "in_functions": scan.function_nodes},
        "functions": list(scan.functions),
        "initializers": scan.initializer_count,
        "external_data": [{"name": file.name, "size_bytes": file.size} for file in facts.data_files],
        "lookalikes": [_node(node) for node in scan.lookalikes],
        "compiled": _compiled(facts),
        "host": _host(facts),
        "verdict": _verdict(facts),
    }


def _compiled(facts: Facts) -> dict[str, Any] | None:
    examination = facts.examination
    if examination is None:
        return None
    made, scan = examination.made, facts.scan
    text = made.compatibility
    return {
        "sources": list(scan.sources),
        "qnn_sdk": made.sdk,
        "targets": [_target(target) for target in made.targets],
        "multi_soc": made.multi,
        "nodes": [_node(node) for node in scan.ep_contexts],
        "left_on_cpu": {name: count for name, count in scan.ops.items() if name != "com.microsoft.EPContext"},
        "blobs": [_blob(blob) for blob in examination.found.blobs],
        "compatibility": None
        if text is None
        else {
            "text": text.text,
            "form": text.form,
            "backend": text.backend,
            "qnn_sdk": text.sdk,
            "backend_api": text.backend_api,
            "targets": [_target(target) for target in text.targets],
            "user_driver": text.user_driver,
        },
        "manifest": dataclasses.asdict(examination.manifest) if examination.manifest else None,
    }


def _host(facts: Facts) -> dict[str, Any] | None:
    if facts.host is None:
        return None
    return {"python": facts.host_python, **dataclasses.asdict(facts.host)}


def _verdict(facts: Facts) -> dict[str, Any] | None:
    if facts.examination is None:
        return None
    if facts.host is None and facts.examination.broken is None:
        return {"level": "unknown", "reason": facts.no_host.message if facts.no_host else ""}
    verdict = facts.examination.verdict
    return {
        "level": verdict.level,
        "reason": verdict.reason,
        "cause": verdict.cause,
        "fix": verdict.fix,
        "evidence": list(verdict.evidence),
        "notes": list(verdict.notes),
    }


def _value(node: NodeInfo) -> dict[str, Any]:
    return {"name": node.name, "type": node.type, "shape": node.shape}


def _node(node: EpContextNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "op_type": node.op_type,
        "domain": node.domain,
        "where": node.where,
        "source": node.source,
        "main_context": node.main_context,
        "embed_mode": node.embed_mode,
        "cache_path": node.cache_path,
        "sdk_version": node.sdk_version,
        "partition_name": node.partition_name,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
    }


def _target(target: Target) -> dict[str, Any]:
    chip = chip_of(target.soc_model)
    return {
        "soc_model": target.soc_model or None,
        "chip": chip.name if chip else None,
        "htp_arch": target.known_arch,
        "vtcm_mb": target.vtcm_mb or None,
    }


def _blob(blob: Blob) -> dict[str, Any]:
    facts = blob.facts
    return {
        "name": blob.name,
        "path": blob.path,
        "embedded": blob.name is None,
        "kind": facts.kind,
        "size_bytes": facts.size,
        "is_whole": facts.is_whole,
        "is_shared": blob.is_shared,
        "qnn_sdk": facts.sdk,
        "vtcm_mb": facts.vtcm_mb,
        "graphs": list(facts.graphs),
    }
