"""The daemon's status document as typed records, and their texts for `host status`, `top` and metrics.

A daemon of a slightly older or newer version may report other fields: missing values and values of a wrong type are
read as 0 or empty, and unknown fields are ignored. Records are frozen, and functions are pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from qnnbridge_tools import output
from qnnbridge_tools.output import size_text

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonFigures:
    """Figures of the daemon.

    Args:
        idle_exit_s: seconds without a client after which the daemon ends; ``None`` if it never ends by itself.
        idle_unload_s: seconds without a call after which a model is unloaded; ``None`` if models stay loaded.
    """

    pid: int
    qnnbridge: str
    python: str
    uptime_s: float
    instance: str
    endpoint: str
    log_file: str
    idle_exit_s: float | None
    idle_unload_s: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class HostFigures:
    """Figures of the NPU host.

    Args:
        simulator: whether QNN runs on the simulator; ``None`` if unknown.
        last_crash: report of the last crash; empty if there was none.
    """

    running: bool
    pid: int
    generation: int
    machine: str
    versions: Mapping[str, str]
    simulator: bool | None
    crashes: int
    planned_restarts: int
    rss_bytes: int
    last_crash: str


@dataclasses.dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles in milliseconds; all ``None`` before the first call."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ClientFigures:
    """Figures of one client.

    Args:
        busy: number of calls refused because of a limit.
        kv_bytes: memory of the client's generators.
        reused_prefixes: number of prompts that reused tokens of earlier prompts in a generator.
        reused_tokens: total number of reused tokens.
    """

    id: str
    pid: int
    name: str
    connected_s: float
    sessions: int
    calls: int
    errors: int
    busy: int
    in_flight: int
    waiting: int
    bytes: int
    shared_bytes: int
    kv_bytes: int
    reused_prefixes: int
    reused_tokens: int
    calls_per_s: float
    latency_ms: Latency


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFigures:
    """Figures of a model's session, which clients share.

    Args:
        runs_on: "QNN", "CPU" or "QNN+CPU".
        numbers: "agrees", "differs", or "" if no call was compared with the CPU.
        compared: number of calls compared with the CPU.
        clients, sessions: number of clients and sessions that use the model.
        npu_bytes: size of the portion that is loaded into QNN.
    """

    key: str
    label: str
    runs_on: str
    qnn_nodes: int
    cpu_nodes: int
    numbers: str
    compared: int
    clients: int
    sessions: int
    loaded: bool
    npu_bytes: int
    idle_s: float
    calls: int
    errors: int
    calls_per_s: float
    latency_ms: Latency
    opened_ms: float


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
    """Totals since the start of the daemon, including clients that have disconnected.

    Args:
        calls_per_s: rate over the last seconds; ``None`` if not reported.
        latency_buckets: upper bounds in seconds, ascending, with the number of calls that took at most this long.
    """

    clients: int
    sessions_created: int
    sessions_shared: int
    calls: int
    errors: int
    busy: int
    calls_per_s: float | None
    unloads: int
    reloads: int
    latency_sum_s: float
    latency_count: int
    latency_buckets: tuple[tuple[float, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """All figures of a status document.

    Args:
        slots, running, waiting: maximum and current number of calls inside the NPU host, and number of waiting
            calls.
    """

    daemon: DaemonFigures
    host: HostFigures
    clients: tuple[ClientFigures, ...]
    models: tuple[ModelFigures, ...]
    slots: int
    running: int
    waiting: int
    daemon_rss_bytes: int
    shared_bytes: int
    totals: Totals

    @property
    def calls_per_s(self) -> float:
        """Rate of all clients, including those that have disconnected."""
        rate = self.totals.calls_per_s
        return sum(client.calls_per_s for client in self.clients) if rate is None else rate

    def without_client(self, pid: int) -> Figures:
        """Return the figures without clients of the process `pid` that have no sessions."""
        # While `top` and `host status` query the daemon, they are clients themselves.
        kept = tuple(client for client in self.clients if client.pid != pid or client.sessions)
        return dataclasses.replace(self, clients=kept)


def read_figures(document: Mapping[str, Any]) -> Figures:
    queue, memory = _part(document, "queue"), _part(document, "memory")
    return Figures(
        daemon=_record(DaemonFigures, _part(document, "daemon")),
        host=_host(_part(document, "host")),
        clients=tuple(
            _record(ClientFigures, part, latency_ms=_latency(part)) for part in _list(document, "clients")
        ),
        models=tuple(_record(ModelFigures, part, latency_ms=_latency(part)) for part in _list(document, "models")),
        slots=_int(queue, "slots"),
        running=_int(queue, "running"),
        waiting=_int(queue, "waiting"),
        daemon_rss_bytes=_int(memory, "daemon_rss_bytes"),
        shared_bytes=_int(memory, "shared_bytes"),
        totals=_totals(_part(document, "totals")),
    )


def _record(kind: type[T], document: Mapping[str, Any], **given: Any) -> T:
    """Create a record from a document; `given` contains the fields that are not read from it."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return kind(
        **{one.name: _READERS[str(one.type)](document, one.name) for one in fields if one.name not in given},
        **given,
    )


def _host(document: Mapping[str, Any]) -> HostFigures:
    simulator = document.get("simulator")
    return _record(
        HostFigures,
        document,
        versions={str(name): str(version) for name, version in _part(document, "versions").items() if version},
        # The value is null until a session on QNN has reported it; null must not become false.
        simulator=simulator if isinstance(simulator, bool) else None,
    )


def _latency(document: Mapping[str, Any]) -> Latency:
    # A client without calls reports zeros; omit them, because they would look like very fast calls.
    if not _int(document, "calls"):
        return Latency()
    part = _part(document, "latency_ms")
    return Latency(*(_number(part, name) for name in ("p50", "p90", "p99", "max")))


def _totals(document: Mapping[str, Any]) -> Totals:
    latency = _part(document, "latency_s")
    return _record(
        Totals,
        document,
        latency_sum_s=_float(latency, "sum"),
        latency_count=_int(latency, "count"),
        latency_buckets=_buckets(latency.get("buckets")),
    )


def _buckets(listed: object) -> tuple[tuple[float, int], ...]:
    # Drop a damaged histogram completely, because a portion of it would have wrong counts.
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        return ()
    found: list[tuple[float, int]] = []
    for pair in listed:
        try:
            bound, count = pair
            # JSON has no infinity, so the last bound is null.
            found.append((float("inf") if bound is None else float(bound), int(count)))
        except (TypeError, ValueError):
            return ()
    return tuple(found)


# --- one value ------------------------------------------------------------------------------------------


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = document.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, (list, tuple)) else []


def _number(document: Mapping[str, Any], name: str) -> float | None:
    found = document.get(name)
    # True is an int in Python, but not a valid figure.
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def _float(document: Mapping[str, Any], name: str) -> float:
    return _number(document, name) or 0.0


def _int(document: Mapping[str, Any], name: str) -> int:
    return int(_float(document, name))


def _text(document: Mapping[str, Any], name: str) -> str:
    found = document.get(name)
    return "" if found is None else str(found)


# Reader functions by the annotation of a field; annotations are strings in this module.
_READERS: Final[dict[str, Callable[[Mapping[str, Any], str], object]]] = {
    "int": _int,
    "float": _float,
    "float | None": _number,
    "str": _text,
    "bool": lambda document, name: document.get(name) is True,
}


# --- text and table cells -------------------------------------------------------------------------------

# Texts for `ep_source`.
QNN_SOURCES = {"wheel": "its wheel", "windowsml": "the catalogue of Windows", "folder": "a folder"}
KEY_SHOWN = 12
_DAY_S = 24 * 3600


# Columns of the tables of clients and models: header and cell.
_CLIENT_COLUMNS: Final[tuple[tuple[str, Callable[[ClientFigures], str]], ...]] = (
    ("id", lambda one: one.id),
    ("pid", lambda one: str(one.pid)),
    ("client", lambda one: output.visible(one.name) or "-"),
    ("sessions", lambda one: str(one.sessions)),
    ("calls", lambda one: count_text(one.calls)),
    ("calls/s", lambda one: rate_text(one.calls_per_s)),
    ("p50", lambda one: milliseconds(one.latency_ms.p50)),
    ("p99", lambda one: milliseconds(one.latency_ms.p99)),
    ("errors", lambda one: str(one.errors)),
    ("busy", lambda one: str(one.busy)),
    ("now", lambda one: _now(one)),
    ("memory", lambda one: size_text(one.shared_bytes) if one.shared_bytes else "-"),
)
_MODEL_COLUMNS: Final[tuple[tuple[str, Callable[[ModelFigures], str]], ...]] = (
    # Labels come from applications and file names, so replace escape sequences before printing.
    ("model", lambda one: output.visible(one.label) or one.key[:KEY_SHOWN]),
    ("runs on", lambda one: _where(one)),
    ("numbers", lambda one: {"agrees": "agree", "differs": "DIFFER"}.get(one.numbers, "-")),
    ("NPU memory", lambda one: size_text(one.npu_bytes) if one.npu_bytes else "-"),
    ("state", lambda one: model_state(one)),
    ("clients", lambda one: str(one.clients)),
    ("calls", lambda one: count_text(one.calls)),
    ("calls/s", lambda one: rate_text(one.calls_per_s)),
    ("p50", lambda one: milliseconds(one.latency_ms.p50)),
    ("p90", lambda one: milliseconds(one.latency_ms.p90)),
    ("p99", lambda one: milliseconds(one.latency_ms.p99)),
    ("errors", lambda one: str(one.errors)),
    # Treat 0 as a missing value: opening a session never takes 0 ms.
    ("opened in", lambda one: milliseconds(one.opened_ms or None)),
)
CLIENT_HEADERS: Final = tuple(header for header, _ in _CLIENT_COLUMNS)
MODEL_HEADERS: Final = tuple(header for header, _ in _MODEL_COLUMNS)


def client_row(client: ClientFigures) -> list[str]:
    return [cell(client) for _, cell in _CLIENT_COLUMNS]


def model_row(model: ModelFigures) -> list[str]:
    return [cell(model) for _, cell in _MODEL_COLUMNS]


def model_state(model: ModelFigures) -> str:
    if not model.loaded:
        return "unloaded"
    # A model counts as idle after one second: a model in constant use is also idle for moments between two calls.
    return f"idle {duration(model.idle_s)}" if model.idle_s >= 1 else "in use"


def host_text(host: HostFigures) -> str:
    """Return the state of the NPU host in one line."""
    if not host.running:
        return "not running; starts with the first session" if not host.generation else "not running"
    return f"pid {host.pid}, memory {size_text(host.rss_bytes)}; {host_kind(host)}"


def host_kind(host: HostFigures) -> str:
    """Return the machine type, whether QNN uses an NPU or simulator, the versions, and the source of QNN."""
    where = {True: "QNN's simulator", False: "NPU", None: ""}[host.simulator]
    # Skip ep_source, ep_package and ep_version, which `_provider` combines into one text.
    versions = (f"{name} {version}" for name, version in host.versions.items() if not name.startswith("ep_"))
    return ", ".join(part for part in (host.machine, where, *versions, _provider(host.versions)) if part)


def _provider(versions: Mapping[str, str]) -> str:
    source = versions.get("ep_source")
    if source is None:
        return ""
    # A wheel's release is already listed as `onnxruntime_qnn`; add name and version only for other sources.
    named = "" if source == "wheel" else " ".join(versions.get(name, "") for name in ("ep_package", "ep_version"))
    return f"QNN from {QNN_SOURCES.get(source, source)}" + (f" ({named.strip()})" if named.strip() else "")


def restarts_text(host: HostFigures) -> str:
    planned = _times(host.planned_restarts)
    # Each new host gets the next generation number, so the latest number is the number of starts.
    return f"started {_times(host.generation)}, crashed {_times(host.crashes)}, replaced as planned {planned}"


def queue_text(figures: Figures) -> str:
    return f"{figures.running} of {figures.slots} slots in use, {figures.waiting} waiting"


def totals_text(figures: Figures) -> str:
    totals = figures.totals
    refused = f", {count_text(totals.busy)} refused as Busy" if totals.busy else ""
    return (
        f"{count_text(totals.calls)} calls (now {rate_text(figures.calls_per_s)} per second), "
        f"{count_text(totals.errors)} with an error{refused}"
    )


def sessions_text(figures: Figures) -> str:
    totals = figures.totals
    text = f"{count_text(totals.sessions_created)} created, {count_text(totals.sessions_shared)} of them shared"
    if totals.unloads:
        text += f"; models unloaded {_times(totals.unloads)}, loaded again {_times(totals.reloads)}"
    return text


def generation_text(figures: Figures) -> str:
    """Return the figures of all clients' generators in one line; empty if there were none."""
    kv_bytes, prefixes, tokens = (
        sum(getattr(one, name) for one in figures.clients)
        for name in ("kv_bytes", "reused_prefixes", "reused_tokens")
    )
    if not kv_bytes and not prefixes:
        return ""
    reused = f"{count_text(tokens)} tokens of {count_text(prefixes)} prompts reused"
    return f"KV caches {size_text(kv_bytes)}, {reused if prefixes else 'no tokens reused'}"


def duration(seconds: float) -> str:
    """Return a duration as text: 42 s, 3 min 5 s, 2 h 10 min, 3 d 4 h."""
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
        # Show only the summary; the command in the next line shows evidence and stack.
        pairs.append(("last crash", figures.host.last_crash.splitlines()[0]))
        pairs.append(("", "`qnnbridge crashes show last` shows why."))
    return pairs


def _work_pairs(figures: Figures) -> list[tuple[str, str]]:
    generation = generation_text(figures)
    return [
        ("calls", totals_text(figures)),
        ("queue", queue_text(figures)),
        ("sessions", sessions_text(figures)),
        *([("generation", generation)] if generation else []),
        (
            "clients",
            f"{len(figures.clients)} connected now; {count_text(figures.totals.clients)} connections so far",
        ),
    ]
