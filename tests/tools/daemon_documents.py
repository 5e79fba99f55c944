"""Status documents of the daemon: one during work, and the smallest one."""

from __future__ import annotations

import copy
import math
from typing import Any

LATENCY = {"p50": 1.5, "p90": 3.0, "p99": 12.25, "max": 40.0}
NO_LATENCY = {"p50": None, "p90": None, "p99": None, "max": None}

BUSY_DAEMON: dict[str, Any] = {
    "daemon": {
        "pid": 4711,
        "qnnbridge": "0.3.0",
        "python": "3.12.4",
        "uptime_s": 11_405.2,
        "instance": "5f1c0a9be2d74f08",
        "endpoint": "/run/user/1000/qnnbridge/daemon.sock",
        "log_file": "/home/maria/.local/state/qnnbridge/logs/daemon.log",
        "idle_exit_s": None,
        "idle_unload_s": 600.0,
    },
    "host": {
        "running": True,
        "pid": 4720,
        "generation": 3,
        "machine": "ARM64",
        "versions": {"onnxruntime": "1.31.1", "onnxruntime_qnn": "2.7.0", "qnn_sdk": "2.51.0"},
        "simulator": False,
        "crashes": 1,
        "planned_restarts": 1,
        "rss_bytes": 210 << 20,
        "last_crash": "The host ended by SIGSEGV while it ran detector.onnx.\nSee the report.",
    },
    "clients": [
        {
            "id": 1,
            "pid": 5001,
            "name": "camera.py",
            "connected_s": 3600.5,
            "sessions": 2,
            "calls": 120_000,
            "errors": 2,
            "busy": 7,
            "in_flight": 1,
            "waiting": 3,
            "bytes": 9 << 30,
            "shared_bytes": 12 << 20,
            "kv_bytes": 96 << 20,
            "reused_prefixes": 12,
            "reused_tokens": 14_400,
            "calls_per_s": 33.3,
            "latency_ms": LATENCY,
        },
        {
            "id": 2,
            "pid": 5002,
            "name": 'we"ird\\na\nme',
            "connected_s": 1.0,
            "sessions": 1,
            "calls": 5,
            "errors": 0,
            "busy": 0,
            "in_flight": 0,
            "waiting": 0,
            "bytes": 100,
            "shared_bytes": 0,
            "calls_per_s": 0.5,
            "latency_ms": {**LATENCY, "p99": 300.0},
        },
    ],
    "models": [
        {
            "key": "2a2454e7c10b" + "0" * 52,
            "label": "detector.onnx",
            "runs_on": "QNN+CPU",
            "qnn_nodes": 40,
            "cpu_nodes": 2,
            "numbers": "differs",
            "compared": 3,
            "clients": 2,
            "sessions": 2,
            "loaded": True,
            "idle_s": 0.02,
            "calls": 120_005,
            "errors": 2,
            "calls_per_s": 33.8,
            "latency_ms": LATENCY,
            "opened_ms": 812.5,
        },
        {
            "key": "c11a328c0ce8" + "1" * 52,
            "label": "ocr.onnx",
            "runs_on": "QNN",
            "qnn_nodes": 1,
            "cpu_nodes": 0,
            "clients": 1,
            "sessions": 1,
            "loaded": False,
            "idle_s": 754.0,
            "calls": 0,
            "errors": 0,
            "calls_per_s": 0.0,
            "latency_ms": NO_LATENCY,
            "opened_ms": 93.1,
        },
    ],
    "queue": {"slots": 4, "running": 1, "waiting": 3},
    "memory": {"daemon_rss_bytes": 48 << 20, "shared_bytes": 12 << 20},
    "totals": {
        "clients": 9,
        "sessions_created": 11,
        "sessions_shared": 6,
        "calls": 120_305,
        "errors": 2,
        "busy": 7,
        "calls_per_s": 41.2,
        "unloads": 2,
        "reloads": 1,
        "latency_s": {
            "sum": 241.7,
            "count": 120_305,
            "buckets": [[0.001, 20_000], [0.0025, 90_000], [0.01, 119_000], [0.05, 120_305], [math.inf, 120_305]],
        },
    },
}


def busy_daemon() -> dict[str, Any]:
    """Return a copy that can be changed."""
    return copy.deepcopy(BUSY_DAEMON)


def idle_daemon() -> dict[str, Any]:
    """Return the status before any client has connected: no NPU host, no latency."""
    document = busy_daemon()
    document["host"] = {
        "running": False,
        "pid": None,
        "generation": 0,
        "machine": None,
        "versions": {},
        "simulator": None,
        "crashes": 0,
        "planned_restarts": 0,
        "rss_bytes": None,
        "last_crash": None,
    }
    document["clients"] = document["models"] = []
    document["queue"].update(running=0, waiting=0)
    totals = dict.fromkeys(document["totals"], 0)
    document["totals"] = {**totals, "latency_s": {"sum": 0.0, "count": 0, "buckets": []}}
    return document
