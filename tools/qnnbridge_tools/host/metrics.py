"""The daemon's figures as metric families of the prometheus library, and their text in OpenMetrics format.

The suffix of a sample name depends on the type of its family, as parsers require.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from qnnbridge_tools.host.figures import ClientFigures, Figures, Latency, ModelFigures, read_figures

Kind = Literal["gauge", "counter", "info", "histogram", "summary"]
Labels = Mapping[str, str]
# Sample of a family: (suffix of the family's name including the underscore, labels, value).
Sample = tuple[str, Labels, float]

# "unknown" means that no call has been compared with the CPU, or that comparison is not possible.
NUMBERS_STATES: Final = ("agrees", "differs", "unknown")
_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class Families(Collector):
    """Prometheus collector that returns the given metric families, except those without samples."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        # `generate_latest` would write HELP and TYPE for a family without samples as well.
        return (family for family in self._families if family.samples)


def family(kind: Kind, name: str, help_text: str, samples: Iterable[Sample], unit: str = "") -> Metric:
    """Create a family.

    Args:
        unit: unit that the name ends with, or empty.

    Raises:
        ValueError: the name is invalid or does not end with the unit.
    """
    # OpenMetrics requires that the name of a family with a unit ends with the unit.
    if not _NAME.fullmatch(name) or (unit and not name.endswith(f"_{unit}")):
        raise ValueError(f"{name} with unit {unit}")
    # Do not use the library's `Counter` and `Gauge`, which count in this process: the daemon already did the
    # counting.
    made = Metric(name, help_text, kind, unit)
    for suffix, labels, value in samples:
        # A name from a file system may contain half a surrogate pair, which UTF-8 cannot encode.
        whole = {key: text.encode("utf-8", "replace").decode("utf-8") for key, text in labels.items()}
        made.add_sample(name + suffix, whole, value)
    return made


def gauge(name: str, help_text: str, values: Iterable[tuple[Labels, float]], unit: str = "") -> Metric:
    return family("gauge", name, help_text, (("", labels, value) for labels, value in values), unit)


def counter(name: str, help_text: str, values: Iterable[tuple[Labels, float]], unit: str = "") -> Metric:
    # In OpenMetrics the samples of a counter end in `_total`, but its family does not.
    return family("counter", name, help_text, (("_total", labels, value) for labels, value in values), unit)


def info(name: str, help_text: str, labels: Labels) -> Metric:
    # The value of an info sample is always 1, because the information is in its labels.
    return family("info", name, help_text, [("_info", labels, 1)])


def summary(
    name: str, help_text: str, values: Iterable[tuple[Labels, Mapping[float, float | None]]], unit: str = ""
) -> Metric:
    """Create a family of type summary.

    Args:
        values: quantiles for each set of labels; unknown quantiles are omitted.
    """
    # Omit `_sum` and `_count`: the daemon reports only quantiles of a client or model.
    samples = (
        ("", {**labels, "quantile": floatToGoString(quantile)}, value)
        for labels, quantiles in values
        for quantile, value in quantiles.items()
        if value is not None
    )
    return family("summary", name, help_text, samples, unit)


def histogram(
    name: str, help_text: str, buckets: Sequence[tuple[float, int]], total: float, count: int, unit: str = ""
) -> Metric:
    """Create a family of type histogram, and add the infinite bucket.

    The format requires consistent counts, so the total count is at least the count of the last bucket.

    Args:
        buckets: upper bounds, ascending, each with the number of values at or below it.
        total: sum of all values.
        count: number of values.
    """
    count = max([count, *(number for _, number in buckets)])
    bounds = [*((bound, number) for bound, number in buckets if math.isfinite(bound)), (math.inf, count)]
    samples: list[Sample] = [("_bucket", {"le": floatToGoString(bound)}, number) for bound, number in bounds]
    return family("histogram", name, help_text, [*samples, ("_sum", {}, total), ("_count", {}, count)], unit)


def numbers_families(prefix: str, rows: Sequence[tuple[Labels, str, int]]) -> Iterator[Metric]:
    """Yield the families of the comparison with the CPU.

    Args:
        prefix: prefix of the names.
        rows: labels of a model, the state of its comparison, and the number of compared calls.
    """
    yield gauge(
        f"{prefix}_numbers",
        "1 for the state of a model's comparison with the CPU, else 0.",
        [
            ({**labels, "state": state}, int(state == (found if found in NUMBERS_STATES else "unknown")))
            for labels, found, _ in rows
            for state in NUMBERS_STATES
        ],
    )
    yield counter(
        f"{prefix}_compared_calls",
        "Calls of a model that were compared with the CPU.",
        [(labels, compared) for labels, _, compared in rows],
    )


def text_of(families: Iterable[Metric]) -> str:
    """Return the families in OpenMetrics format. Lines end with a line feed on every system."""
    text: bytes = generate_latest(Families(families))
    return text.decode("utf-8")


Row = TypeVar("Row")
# Metrics of a client or model: (type, name, unit, help text, function that returns the value).
Columns = tuple[tuple[Literal["gauge", "counter"], str, str, str, Callable[[Row], float]], ...]

_CLIENT_COLUMNS: Final[Columns[ClientFigures]] = (
    ("counter", "client_calls", "", "Answered calls of a client.", lambda one: one.calls),
    ("counter", "client_call_errors", "", "Calls of a client with an error.", lambda one: one.errors),
    ("counter", "client_refused_calls", "", "Calls of a client that were refused.", lambda one: one.busy),
    (
        "counter",
        "client_transferred_bytes",
        "bytes",
        "Bytes of a client's input and output tensors.",
        lambda one: one.bytes,
    ),
    ("gauge", "client_sessions", "", "Open sessions of a client.", lambda one: one.sessions),
    ("gauge", "client_running_calls", "", "Calls of a client inside the NPU host.", lambda one: one.in_flight),
    (
        "gauge",
        "client_waiting_calls",
        "",
        "Calls of a client that wait for a slot in the NPU host.",
        lambda one: one.waiting,
    ),
    ("gauge", "client_shared_memory_bytes", "bytes", "Memory shared with a client.", lambda one: one.shared_bytes),
)
_MODEL_COLUMNS: Final[Columns[ModelFigures]] = (
    ("gauge", "model_loaded", "", "1 if a model is loaded, else 0.", lambda one: int(one.loaded)),
    ("gauge", "model_clients", "", "Clients that use a model.", lambda one: one.clients),
    ("gauge", "model_sessions", "", "Sessions that share a model.", lambda one: one.sessions),
    ("counter", "model_calls", "", "Answered calls of a model.", lambda one: one.calls),
    ("counter", "model_call_errors", "", "Calls of a model with an error.", lambda one: one.errors),
    ("gauge", "model_idle_seconds", "seconds", "Time since a model's last call.", lambda one: one.idle_s),
)


def metrics_text(document: Mapping[str, Any], onlooker: int | None = None) -> str:
    """Return the metrics text for a status document, including its final line.

    Args:
        document: the status document.
        onlooker: process id of a client that only queries the status, which is omitted.
    """
    figures = read_figures(document)
    if onlooker is not None:
        figures = figures.without_client(onlooker)
    return text_of(families_of(figures))


def families_of(figures: Figures) -> Iterator[Metric]:
    return iter((*_daemon(figures), *_host(figures), *_totals(figures), *_clients(figures), *_models(figures)))


def _one(kind: Literal["gauge", "counter"], name: str, help_text: str, value: float, unit: str = "") -> Metric:
    """Create a family with one sample without labels."""
    return (gauge if kind == "gauge" else counter)(f"qnnbridge_{name}", help_text, [({}, value)], unit)


def _columns(columns: Columns[Row], rows: Sequence[tuple[Labels, Row]]) -> Iterator[Metric]:
    for kind, name, unit, help_text, figure in columns:
        make = gauge if kind == "gauge" else counter
        yield make(f"qnnbridge_{name}", help_text, [(labels, figure(row)) for labels, row in rows], unit)


def _daemon(figures: Figures) -> Iterator[Metric]:
    daemon = figures.daemon
    labels = {"version": daemon.qnnbridge, "python": daemon.python, "instance_id": daemon.instance}
    yield info("qnnbridge_daemon", "Version, Python and instance of the daemon.", labels)
    yield _one("gauge", "daemon_uptime_seconds", "Time since the start of the daemon.", daemon.uptime_s, "seconds")
    memory = figures.daemon_rss_bytes
    yield _one("gauge", "daemon_resident_memory_bytes", "Physical memory of the daemon.", memory, "bytes")
    shared = figures.shared_bytes
    yield _one("gauge", "shared_memory_bytes", "Memory that clients and the daemon share.", shared, "bytes")
    yield _one("gauge", "slots", "Calls that may be inside the NPU host at once.", figures.slots)
    yield _one("gauge", "running_calls", "Calls inside the NPU host.", figures.running)
    yield _one("gauge", "waiting_calls", "Calls that wait for a slot in the NPU host.", figures.waiting)


def _host(figures: Figures) -> Iterator[Metric]:
    host = figures.host
    yield _one("gauge", "host_running", "1 if an NPU host runs, else 0.", int(host.running))
    # Without a running host, machine and versions are unknown, and an info sample without labels is useless.
    if host.versions or host.machine:
        yield info("qnnbridge_host", "Machine and versions.", {"machine": host.machine, **_versions(host.versions)})
    yield _one("counter", "host_starts", "NPU hosts that were started.", host.generation)
    yield _one("counter", "host_crashes", "Crashes of the NPU host.", host.crashes)
    replaced = host.planned_restarts
    yield _one("counter", "host_planned_restarts", "NPU hosts that were replaced as planned.", replaced)
    yield _one("gauge", "host_resident_memory_bytes", "Physical memory of the NPU host.", host.rss_bytes, "bytes")


def _versions(versions: Mapping[str, str]) -> dict[str, str]:
    """Return versions as labels, whose names may contain only letters, digits and underscores."""
    return {"".join(c if c.isascii() and c.isalnum() else "_" for c in name): v for name, v in versions.items()}


def _totals(figures: Figures) -> Iterator[Metric]:
    totals = figures.totals
    yield _one("gauge", "clients", "Connected applications.", len(figures.clients))
    yield _one("counter", "connections", "Applications that have connected.", totals.clients)
    yield _one("counter", "sessions_created", "Sessions that clients created.", totals.sessions_created)
    shared = totals.sessions_shared
    yield _one("counter", "sessions_shared", "Sessions that share the model of an earlier session.", shared)
    yield _one("counter", "model_unloads", "Idle models that were unloaded.", totals.unloads)
    yield _one("counter", "model_reloads", "Unloaded models that were loaded again.", totals.reloads)
    yield _one("counter", "calls", "Answered calls.", totals.calls)
    yield _one("counter", "call_errors", "Calls that ended with an error.", totals.errors)
    yield _one("counter", "refused_calls", "Calls refused because of a limit.", totals.busy)
    yield histogram(
        "qnnbridge_call_latency_seconds",
        "Time of a call within the daemon, including the wait.",
        totals.latency_buckets,
        totals.latency_sum_s,
        totals.latency_count,
        "seconds",
    )


def _clients(figures: Figures) -> Iterator[Metric]:
    rows: list[tuple[Labels, ClientFigures]] = [
        ({"id": client.id, "pid": str(client.pid), "name": client.name}, client) for client in figures.clients
    ]
    yield from _columns(_CLIENT_COLUMNS, rows)
    latencies = [(labels, _quantiles(client.latency_ms)) for labels, client in rows]
    yield summary("qnnbridge_client_call_latency_seconds", "Time of a client's calls.", latencies, "seconds")


def _models(figures: Figures) -> Iterator[Metric]:
    rows: list[tuple[Labels, ModelFigures]] = [
        ({"key": model.key, "model": model.label}, model) for model in figures.models
    ]
    yield from _columns(_MODEL_COLUMNS, rows)
    yield gauge(
        "qnnbridge_model_nodes",
        "Nodes of a model after optimisation, by where they run.",
        [
            ({**labels, "device": device}, number)
            for labels, model in rows
            for device, number in (("QNN", model.qnn_nodes), ("CPU", model.cpu_nodes))
        ],
    )
    on_qnn = [(labels, model.numbers, model.compared) for labels, model in rows if model.qnn_nodes]
    yield from numbers_families("qnnbridge_model", on_qnn)
    latencies = [(labels, _quantiles(model.latency_ms)) for labels, model in rows]
    yield summary("qnnbridge_model_call_latency_seconds", "Time of a model's calls.", latencies, "seconds")


def _quantiles(latency: Latency) -> dict[float, float | None]:
    found = {0.5: latency.p50, 0.9: latency.p90, 0.99: latency.p99, 1.0: latency.max}
    # Convert to seconds, which is Prometheus' base unit.
    return {quantile: None if value is None else value / 1000 for quantile, value in found.items()}
