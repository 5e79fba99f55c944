"""The result of `qnnbridge profile` as a JSON document: everything, with nothing left out for brevity."""

from __future__ import annotations

from typing import Any, Final

from qnnbridge_tools import version
from qnnbridge_tools.models.profiling.result import Partition, Phase, ProfileResult, Series

SCHEMA: Final = 1


def document(result: ProfileResult) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": result.model,
        "compiled": result.compiled,
        "level": result.level,
        "runs": result.runs,
        "inputs": [{"name": name, "type": kind, "source": source} for name, kind, source in result.inputs],
        "placement": result.placement.to_wire(),
        "simulator": result.placement.simulator,
        "load": {
            "host_ready_seconds": result.load.host_ready_s,
            "create_seconds": result.load.create_s,
            "phases": [_phase(phase) for phase in result.load.phases],
        },
        "run_seconds": _series(result.call_s),
        "components": [
            {"key": one.key, "name": one.name, "seconds": _series(one.time_s)} for one in result.components
        ],
        "partitions": [_partition(one) for one in result.partitions],
        "operators": [
            {
                "name": one.name,
                "type": one.type or None,
                "partition": one.partition,
                "is_transfer": one.is_transfer,
                "cycles": _series(one.cycles),
                "share": one.share,
                "seconds": one.time_s,
            }
            for one in result.operators
        ],
        "cpu_nodes": [
            {
                "name": one.name,
                "operator": one.op,
                "provider": one.provider,
                "calls_per_run": one.calls_per_run,
                "nested": one.nested,
                "seconds": _series(one.time_s),
            }
            for one in result.cpu_nodes
        ],
        "transfers": {"bytes_to_host": result.bytes_to_host, "bytes_from_host": result.bytes_from_host},
        "notes": list(result.notes),
        "host": version.host_document(result.host),
        "application": version.application_document(),
    }


def _phase(phase: Phase) -> dict[str, Any]:
    return {"name": phase.name, "seconds": phase.time_s, "parts": [_phase(part) for part in phase.parts]}


def _partition(one: Partition) -> dict[str, Any]:
    return {
        "label": one.label,
        "name": one.name,
        "operators": list(one.operators),
        "seconds": _series(one.node_s),
        "execute_seconds": _optional(one.execute_s),
        "accelerator_seconds": _optional(one.accelerator_s),
        "bytes_in": one.bytes_in,
        "bytes_out": one.bytes_out,
        "figures": [{"name": fact.name, "unit": fact.unit, **_series(fact.values)} for fact in one.facts],
    }


def _series(series: Series) -> dict[str, Any]:
    """median, least and most are those of the runs after the first."""
    return {
        "first": series.first,
        "median": series.median,
        "least": series.least,
        "most": series.most,
        "values": list(series.values),
    }


def _optional(series: Series | None) -> dict[str, Any] | None:
    return None if series is None else _series(series)
