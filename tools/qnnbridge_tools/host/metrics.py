"""The daemon's figures as OpenMetrics: which families there are, and what they mean. Pure.

Counters of the daemon as a whole never go down while it lives. Those of a client or a model end with it, as those
of a process do in other tools; the label ``id`` or ``key`` tells a new one from the old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qnnbridge_tools.host.figures import ClientFigures, Figures, Latency, ModelFigures, read_figures
from qnnbridge_tools.host.openmetrics import Family, Labels, counter, gauge, histogram, info, summary, text_of

_ALONE: Labels = {}


def metrics_text(document: Mapping[str, Any], onlooker: int | None = None) -> str:
    """The whole text for a status document, with the line that ends it. onlooker: the process that only asks."""
    figures = read_figures(document)
    if onlooker is not None:
        figures = figures.without_client(onlooker)
    return text_of((*_daemon(figures), *_host(figures), *_totals(figures), *_clients(figures), *_models(figures)))


def _daemon(figures: Figures) -> Iterator[Family]:
    daemon = figures.daemon
    labels = {"version": daemon.qnnbridge, "python": daemon.python, "instance_id": daemon.instance}
    yield info("qnnbridge_daemon", "Which daemon this is.", labels)
    yield gauge(
        "qnnbridge_daemon_uptime_seconds", "How long the daemon runs.", [(_ALONE, daemon.uptime_s)], "seconds"
    )
    yield gauge(
        "qnnbridge_daemon_resident_memory_bytes",
        "Physical memory of the daemon.",
        [(_ALONE, figures.daemon_rss_bytes)],
        "bytes",
    )
    yield gauge(
        "qnnbridge_shared_memory_bytes",
        "Memory that clients and the daemon share.",
        [(_ALONE, figures.shared_bytes)],
        "bytes",
    )
    yield gauge("qnnbridge_slots", "Calls that may be inside the NPU host at once.", [(_ALONE, figures.slots)])
    yield gauge("qnnbridge_running_calls", "Calls inside the NPU host.", [(_ALONE, figures.running)])
    yield gauge("qnnbridge_waiting_calls", "Calls that wait for their turn.", [(_ALONE, figures.waiting)])


def _host(figures: Figures) -> Iterator[Family]:
    host = figures.host
    yield gauge("qnnbridge_host_running", "1 if an NPU host runs, else 0.", [(_ALONE, int(host.running))])
    if host.versions or host.machine:
        yield info("qnnbridge_host", "What the NPU host is.", {"machine": host.machine, **_versions(host.versions)})
    yield counter("qnnbridge_host_starts", "NPU hosts that were started.", [(_ALONE, host.generation)])
    yield counter("qnnbridge_host_crashes", "Deaths of the NPU host nobody asked for.", [(_ALONE, host.crashes)])
    yield counter(
        "qnnbridge_host_planned_restarts",
        "NPU hosts that were replaced in good order.",
        [(_ALONE, host.planned_restarts)],
    )
    yield gauge(
        "qnnbridge_host_resident_memory_bytes",
        "Physical memory of the NPU host.",
        [(_ALONE, host.rss_bytes)],
        "bytes",
    )


def _versions(versions: Mapping[str, str]) -> dict[str, str]:
    """As labels: their names have letters, digits and underscores only."""
    return {"".join(c if c.isascii() and c.isalnum() else "_" for c in name): v for name, v in versions.items()}


def _totals(figures: Figures) -> Iterator[Family]:
    totals = figures.totals
    yield gauge("qnnbridge_clients", "Connected applications.", [(_ALONE, len(figures.clients))])
    yield counter("qnnbridge_connections", "Applications that have connected.", [(_ALONE, totals.clients)])
    yield counter("qnnbridge_sessions_created", "Sessions that clients made.", [(_ALONE, totals.sessions_created)])
    yield counter(
        "qnnbridge_sessions_shared",
        "Sessions that share the model of an earlier one.",
        [(_ALONE, totals.sessions_shared)],
    )
    yield counter("qnnbridge_model_unloads", "Idle models that were unloaded.", [(_ALONE, totals.unloads)])
    yield counter("qnnbridge_model_reloads", "Unloaded models that came back.", [(_ALONE, totals.reloads)])
    yield counter("qnnbridge_calls", "Answered calls.", [(_ALONE, totals.calls)])
    yield counter("qnnbridge_call_errors", "Calls that ended with an error.", [(_ALONE, totals.errors)])
    yield counter("qnnbridge_refused_calls", "Calls refused because of a limit.", [(_ALONE, totals.busy)])
    yield histogram(
        "qnnbridge_call_latency_seconds",
        "Time of a call within the daemon, waiting included.",
        totals.latency_buckets,
        totals.latency_sum_s,
        totals.latency_count,
        "seconds",
    )


def _clients(figures: Figures) -> Iterator[Family]:
    rows = [(_client_labels(client), client) for client in figures.clients]
    yield counter("qnnbridge_client_calls", "Answered calls of a client.", [(x, c.calls) for x, c in rows])
    yield counter(
        "qnnbridge_client_call_errors", "Calls of a client with an error.", [(x, c.errors) for x, c in rows]
    )
    yield counter(
        "qnnbridge_client_refused_calls", "Calls of a client that were refused.", [(x, c.busy) for x, c in rows]
    )
    yield counter(
        "qnnbridge_client_transferred_bytes",
        "Bytes of tensors of a client, both ways.",
        [(x, c.bytes) for x, c in rows],
        "bytes",
    )
    yield gauge("qnnbridge_client_sessions", "Open sessions of a client.", [(x, c.sessions) for x, c in rows])
    yield gauge(
        "qnnbridge_client_running_calls",
        "Calls of a client inside the NPU host.",
        [(x, c.in_flight) for x, c in rows],
    )
    yield gauge(
        "qnnbridge_client_waiting_calls",
        "Calls of a client that wait for their turn.",
        [(x, c.waiting) for x, c in rows],
    )
    yield gauge(
        "qnnbridge_client_shared_memory_bytes",
        "Memory shared with a client.",
        [(x, c.shared_bytes) for x, c in rows],
        "bytes",
    )
    yield summary(
        "qnnbridge_client_call_latency_seconds",
        "Time of a client's calls.",
        [(x, _quantiles(c.latency_ms)) for x, c in rows],
        "seconds",
    )


def _models(figures: Figures) -> Iterator[Family]:
    rows = [(_model_labels(model), model) for model in figures.models]
    yield gauge("qnnbridge_model_loaded", "1 if a model is loaded, else 0.", [(x, int(m.loaded)) for x, m in rows])
    yield gauge("qnnbridge_model_clients", "Clients that use a model.", [(x, m.clients) for x, m in rows])
    yield gauge("qnnbridge_model_sessions", "Sessions that share a model.", [(x, m.sessions) for x, m in rows])
    yield gauge(
        "qnnbridge_model_nodes",
        "Nodes of a model, by where they run.",
        [
            ({**x, "device": device}, number)
            for x, m in rows
            for device, number in (("QNN", m.qnn_nodes), ("CPU", m.cpu_nodes))
        ],
    )
    yield counter("qnnbridge_model_calls", "Answered calls of a model.", [(x, m.calls) for x, m in rows])
    yield counter(
        "qnnbridge_model_call_errors", "Calls of a model with an error.", [(x, m.errors) for x, m in rows]
    )
    yield gauge(
        "qnnbridge_model_idle_seconds",
        "Time since a model's last call.",
        [(x, m.idle_s) for x, m in rows],
        "seconds",
    )
    yield summary(
        "qnnbridge_model_call_latency_seconds",
        "Time of a model's calls.",
        [(x, _quantiles(m.latency_ms)) for x, m in rows],
        "seconds",
    )


def _client_labels(client: ClientFigures) -> Labels:
    return {"id": client.id, "pid": str(client.pid), "name": client.name}


def _model_labels(model: ModelFigures) -> Labels:
    return {"key": model.key, "model": model.label}


def _quantiles(latency: Latency) -> dict[float, float | None]:
    found = {0.5: latency.p50, 0.9: latency.p90, 0.99: latency.p99, 1.0: latency.max}
    return {quantile: None if value is None else value / 1000 for quantile, value in found.items()}
