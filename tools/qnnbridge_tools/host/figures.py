"""The daemon's status document as typed values: what the texts, `qnnbridge top` and the metrics are made of.

A daemon of a neighbouring version may report less or more: what is missing or of another type reads as nothing
(0, empty), what is unknown is passed over. Frozen data; pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonFigures:
    """idle_exit_s: ``None`` if it never leaves by itself; idle_unload_s: ``None`` if models stay loaded."""

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
    """The NPU host. last_crash: its text, empty if there was none. simulator: ``None`` if that is not known."""

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
    """In milliseconds; all ``None`` as long as there was no call."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ClientFigures:
    """busy: calls that were refused because of a limit."""

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
    calls_per_s: float
    latency_ms: Latency


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFigures:
    """One shared session. runs_on: "QNN", "CPU", "QNN+CPU". clients, sessions: how many use it.
    npu_bytes: size of what is loaded into QNN."""

    key: str
    label: str
    runs_on: str
    qnn_nodes: int
    cpu_nodes: int
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
    """Since the daemon began, also of clients that are gone. latency_buckets: upper bounds in seconds, rising, and
    how many calls took at most so long. calls_per_s: of the last seconds; ``None`` if not reported."""

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
    """slots, running, waiting: of the calls that are inside the NPU host or on their way."""

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
        """The rate of all clients, including those that have left."""
        rate = self.totals.calls_per_s
        return sum(client.calls_per_s for client in self.clients) if rate is None else rate

    def without_client(self, pid: int) -> Figures:
        """Without an onlooker: a client of this process that has no session."""
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
    """A class of figures from the names of its fields, but for those that are given."""
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
        simulator=simulator if isinstance(simulator, bool) else None,
    )


def _latency(document: Mapping[str, Any]) -> Latency:
    # Zeros of a client without calls would look like very quick ones.
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
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        return ()
    found: list[tuple[float, int]] = []
    for pair in listed:
        try:
            bound, count = pair
            # JSON has no infinity: the last bound is null.
            found.append((float("inf") if bound is None else float(bound), int(count)))
        except (TypeError, ValueError):
            return ()
    return tuple(found)


# --- one value ---


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = document.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, (list, tuple)) else []


def _number(document: Mapping[str, Any], name: str) -> float | None:
    found = document.get(name)
    # True is an int for Python, and no figure.
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def _float(document: Mapping[str, Any], name: str) -> float:
    return _number(document, name) or 0.0


def _int(document: Mapping[str, Any], name: str) -> int:
    return int(_float(document, name))


def _text(document: Mapping[str, Any], name: str) -> str:
    found = document.get(name)
    return "" if found is None else str(found)


def _bool(document: Mapping[str, Any], name: str) -> bool:
    return document.get(name) is True


# By the annotation of a field, which is text in this module.
_READERS: Final[dict[str, Callable[[Mapping[str, Any], str], object]]] = {
    "int": _int,
    "float": _float,
    "float | None": _number,
    "str": _text,
    "bool": _bool,
}
