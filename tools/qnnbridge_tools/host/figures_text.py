"""The daemon's figures as text and table cells, for `host status` and `top`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from qnnbridge_tools import output
from qnnbridge_tools.host.figures import ClientFigures, Figures, HostFigures, ModelFigures
from qnnbridge_tools.output import size_text

CLIENT_HEADERS = (
    "id",
    "pid",
    "client",
    "sessions",
    "calls",
    "calls/s",
    "p50",
    "p99",
    "errors",
    "busy",
    "now",
    "memory",
)
MODEL_HEADERS = (
    "model",
    "runs on",
    "NPU memory",
    "state",
    "clients",
    "calls",
    "calls/s",
    "p50",
    "p90",
    "p99",
    "errors",
    "opened in",
)
# Of `ep_source`.
QNN_SOURCES = {"wheel": "its wheel", "windowsml": "the catalogue of Windows", "folder": "a folder"}
KEY_SHOWN = 12
_DAY_S = 24 * 3600


def client_row(client: ClientFigures) -> list[str]:
    return [
        client.id,
        str(client.pid),
        output.visible(client.name) or "-",
        str(client.sessions),
        count_text(client.calls),
        rate_text(client.calls_per_s),
        milliseconds(client.latency_ms.p50),
        milliseconds(client.latency_ms.p99),
        str(client.errors),
        str(client.busy),
        _now(client),
        size_text(client.shared_bytes) if client.shared_bytes else "-",
    ]


def model_row(model: ModelFigures) -> list[str]:
    latency = model.latency_ms
    return [
        output.visible(model.label) or model.key[:KEY_SHOWN],
        _where(model),
        size_text(model.npu_bytes) if model.npu_bytes else "-",
        model_state(model),
        str(model.clients),
        count_text(model.calls),
        rate_text(model.calls_per_s),
        milliseconds(latency.p50),
        milliseconds(latency.p90),
        milliseconds(latency.p99),
        str(model.errors),
        milliseconds(model.opened_ms or None),
    ]


def model_state(model: ModelFigures) -> str:
    if not model.loaded:
        return "unloaded"
    return f"idle {duration(model.idle_s)}" if model.idle_s >= 1 else "in use"


def host_text(host: HostFigures) -> str:
    """The NPU host in one line."""
    if not host.running:
        return "not running; starts with the first session" if not host.generation else "not running"
    return f"pid {host.pid}, memory {size_text(host.rss_bytes)}; {host_kind(host)}"


def host_kind(host: HostFigures) -> str:
    """Machine, what QNN computes on, versions, where QNN comes from."""
    where = {True: "QNN's simulator", False: "NPU", None: ""}[host.simulator]
    versions = (f"{name} {version}" for name, version in host.versions.items() if not name.startswith("ep_"))
    return ", ".join(part for part in (host.machine, where, *versions, _provider(host.versions)) if part)


def _provider(versions: Mapping[str, str]) -> str:
    source = versions.get("ep_source")
    if source is None:
        return ""
    named = "" if source == "wheel" else " ".join(versions.get(name, "") for name in ("ep_package", "ep_version"))
    return f"QNN from {QNN_SOURCES.get(source, source)}" + (f" ({named.strip()})" if named.strip() else "")


def restarts_text(host: HostFigures) -> str:
    planned = _times(host.planned_restarts)
    return f"started {_times(host.generation)}, crashed {_times(host.crashes)}, replaced in good order {planned}"


def queue_text(figures: Figures) -> str:
    return f"{figures.running} of {figures.slots} slots in use, {figures.waiting} waiting"


def totals_text(figures: Figures) -> str:
    totals = figures.totals
    refused = f", {count_text(totals.busy)} refused as Busy" if totals.busy else ""
    return (
        f"{count_text(totals.calls)} calls ({rate_text(figures.calls_per_s)} a second now), "
        f"{count_text(totals.errors)} with an error{refused}"
    )


def sessions_text(figures: Figures) -> str:
    totals = figures.totals
    text = f"{count_text(totals.sessions_created)} made, {count_text(totals.sessions_shared)} of them shared"
    if totals.unloads:
        text += f"; models unloaded {_times(totals.unloads)}, loaded again {_times(totals.reloads)}"
    return text


def duration(seconds: float) -> str:
    """A duration as text: 42 s, 3 min 5 s, 2 h 10 min, 3 d 4 h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < _DAY_S:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // 3600} h"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else output.seconds(value / 1000)


def rate_text(per_second: float) -> str:
    return f"{per_second:.1f}" if per_second < 100 else f"{per_second:,.0f}"


def count_text(count: int) -> str:
    return f"{count:,}"


def _where(model: ModelFigures) -> str:
    if model.qnn_nodes and model.cpu_nodes:
        return f"{model.runs_on} ({model.qnn_nodes}+{model.cpu_nodes} nodes)"
    return model.runs_on or "-"


def _now(client: ClientFigures) -> str:
    if not client.in_flight and not client.waiting:
        return "-"
    waiting = f", {client.waiting} wait" if client.waiting else ""
    return f"{client.in_flight} run{waiting}"


def _times(number: int) -> str:
    return "once" if number == 1 else "never" if not number else f"{number} times"


def print_status(figures: Figures) -> None:
    output.print_pairs("Daemon", _daemon_pairs(figures))
    output.print_pairs("NPU host", _host_pairs(figures))
    output.print_pairs("Work", _work_pairs(figures))
    if figures.clients:
        print("\nClients")
        output.print_table(CLIENT_HEADERS, [client_row(client) for client in figures.clients])
    if figures.models:
        print("\nModels")
        output.print_table(MODEL_HEADERS, [model_row(model) for model in figures.models])


def _daemon_pairs(figures: Figures) -> list[tuple[str, str]]:
    daemon = figures.daemon
    pairs = [
        ("running", f"for {duration(daemon.uptime_s)}, pid {daemon.pid}"),
        ("version", f"qnnbridge {daemon.qnnbridge}, Python {daemon.python}"),
        ("endpoint", daemon.endpoint),
        ("log", daemon.log_file),
        ("memory", f"{size_text(figures.daemon_rss_bytes)}; shared with clients {size_text(figures.shared_bytes)}"),
    ]
    if daemon.idle_exit_s:
        pairs.append(("leaves", f"after {duration(daemon.idle_exit_s)} without a client"))
    if daemon.idle_unload_s:
        pairs.append(("unloads", f"a model after {duration(daemon.idle_unload_s)} without a call"))
    return [pair for pair in pairs if pair[1]]


def _host_pairs(figures: Figures) -> list[tuple[str, str]]:
    pairs = [("host", host_text(figures.host))]
    if figures.host.generation:
        pairs.append(("history", restarts_text(figures.host)))
    if figures.host.last_crash:
        pairs.append(("last crash", figures.host.last_crash.splitlines()[0]))
        pairs.append(("", "`qnnbridge crashes show last` shows why."))
    return pairs


def _work_pairs(figures: Figures) -> list[tuple[str, str]]:
    return [
        ("calls", totals_text(figures)),
        ("queue", queue_text(figures)),
        ("sessions", sessions_text(figures)),
        (
            "clients",
            f"{len(figures.clients)} connected now; {count_text(figures.totals.clients)} connections so far",
        ),
    ]
