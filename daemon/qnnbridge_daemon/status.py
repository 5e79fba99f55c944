"""The document of ``daemon.status``: the daemon, its host, its clients and its models, as they are now.

Pure reading; starts nothing and waits for nothing. Only msgpack types, so that it can travel.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol._version import __version__

if TYPE_CHECKING:
    from qnnbridge_daemon.broker import Broker
    from qnnbridge_daemon.shared_sessions import SharedModel
    from qnnbridge_protocol.specs import Placement


def make_status(broker: Broker) -> dict[str, Any]:
    clients = [client.status() for client in broker.clients]
    shared_bytes = sum(client["shared_bytes"] for client in clients)
    return {
        "daemon": _daemon(broker),
        "host": _host(broker),
        "clients": clients,
        "models": [_model(model) for model in broker.sessions.models()],
        "queue": {
            "slots": broker.fair_share.slots,
            "running": broker.fair_share.running,
            "waiting": broker.fair_share.waiting,
        },
        "memory": {
            "daemon_rss_bytes": _rss(os.getpid()),
            "shared_bytes": shared_bytes + broker.host.stats.shared_bytes,
        },
        "totals": _totals(broker),
    }


def _daemon(broker: Broker) -> dict[str, Any]:
    settings = broker.settings
    return {
        "pid": os.getpid(),
        "qnnbridge": __version__,
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "uptime_s": round(time.monotonic() - broker.started, 1),
        "instance": settings.instance,
        "endpoint": settings.endpoint,
        "log_file": settings.log_file,
        "idle_exit_s": settings.idle_exit_s,
        "idle_unload_s": settings.idle_unload_s,
    }


def _host(broker: Broker) -> dict[str, Any]:
    stats = broker.host.stats
    process = broker.host.supervisor.running
    peer = process.peer if process is not None else None
    pid = process.real_pid if process is not None else None
    return {
        "running": process is not None,
        "pid": pid,
        "generation": stats.generation,
        "machine": peer.machine if peer is not None else None,
        "versions": dict(peer.versions) if peer is not None else {},
        "simulator": _simulator(broker),
        "crashes": stats.crashes,
        "planned_restarts": stats.planned_restarts,
        "rss_bytes": _rss(pid) if pid is not None else 0,
        "last_crash": stats.last_crash,
    }


def _simulator(broker: Broker) -> bool | None:
    """As far as a session has told."""
    told = [m.info.placement.simulator for m in broker.sessions.models() if m.info.placement.qnn_nodes]
    return any(told) if told else None


def _model(model: SharedModel) -> dict[str, Any]:
    placement = model.info.placement
    return {
        "key": model.key,
        "label": model.label,
        "runs_on": runs_on(placement),
        "qnn_nodes": placement.qnn_nodes,
        "cpu_nodes": placement.cpu_nodes,
        "clients": len(model.owners),
        "sessions": model.sessions,
        "loaded": model.loaded,
        "idle_s": round(model.idle_s, 1),
        "calls": model.meter.calls,
        "errors": model.meter.errors,
        "calls_per_s": model.meter.calls_per_s,
        "latency_ms": model.meter.latency_ms(),
        "opened_ms": model.opened_ms,
    }


def runs_on(placement: Placement) -> str:
    if placement.qnn_nodes and placement.cpu_nodes:
        return "QNN+CPU"
    return "QNN" if placement.qnn_nodes else "CPU"


def _totals(broker: Broker) -> dict[str, Any]:
    sessions, meter = broker.sessions, broker.meter
    return {
        "clients": broker.clients_served,
        "sessions_created": sessions.created,
        "sessions_shared": sessions.joined,
        "calls": meter.calls,
        "errors": meter.errors,
        "busy": meter.busy,
        "calls_per_s": meter.calls_per_s,
        "unloads": sessions.unloads,
        "reloads": sessions.reloads,
        "latency_s": meter.latency_s(),
    }


def _rss(pid: int) -> int:
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
