"""`/metrics` of `qnnbridge serve`, read back by the parsers of Prometheus' own library."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read_plain
from serving import Server

from qnnbridge_protocol.model_records import NumbersReport
from qnnbridge_serve.app import ServeMetrics
from qnnbridge_serve.repository import Repository
from qnnbridge_tools.host.metrics import counter, gauge, histogram, info, summary

pytestmark = pytest.mark.process

INFER = "/v2/models/{name}/infer"
X = {"name": "x", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}


def samples(families: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = [sample for family in families for sample in family.samples]
    read = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}
    assert len(read) == len(found)
    return read


def scraped(server: Server) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = server.ask("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    return samples(read_open(answer.body.decode()))


def count(found: Any, route: str, method: str, status: int) -> float:
    labels = {"route": route, "method": method, "status": str(status)}
    return found.get(("qnnbridge_http_requests_total", frozenset(labels.items())), 0.0)


def test_requests_are_counted_by_path_and_status(server: Server) -> None:
    before = scraped(server)
    for _ in range(3):
        assert server.infer("same-INT32", X).status == 200
    assert server.infer("none", X).status == 404
    for path in ("/one", "/two", "/v3/models/x"):
        assert server.ask("GET", path).status == 404
    assert server.ask("GET", "/v2/health/live", headers={"Host": "elsewhere.example"}).status == 403
    after = scraped(server)

    def more(*labels: Any) -> float:
        return count(after, *labels) - count(before, *labels)

    assert more(INFER, "POST", 200) == 3
    assert more(INFER, "POST", 404) == 1
    assert more("/metrics", "GET", 200) == 1
    # Values invented by clients do not become labels.
    assert more("", "", 404) == 3
    assert more("", "", 403) == 1
    times = ("qnnbridge_http_request_duration_seconds_count", frozenset({("route", INFER)}))
    assert after[times] - before.get(times, 0.0) == 4
    assert after["qnnbridge_http_requests_running", frozenset()] == 1  # the current request


def test_the_page_lists_each_metric(server: Server) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")
    assert server.infer("same-INT32", X).status == 200
    # The page shows some names without their prefix: `_requests_running`.
    names = {family.name for family in read_open(server.ask("GET", "/metrics").body.decode()) if family.samples}
    assert {"qnnbridge_http_requests", "qnnbridge_http_request_duration_seconds"} <= names
    short = {name: "_" + name.split("_", 2)[2] for name in names}
    assert [name for name in sorted(names) if name not in page and f"`{short[name]}`" not in page] == []


def test_older_clients_get_the_older_text_format(server: Server) -> None:
    answer = server.ask("GET", "/metrics", headers={"Accept": "text/plain;version=0.0.4"})
    assert answer.headers["content-type"].startswith("text/plain")
    assert count(samples(read_plain(answer.body.decode())), "/metrics", "GET", 200) >= 0
    wanted = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    answer = server.ask("GET", "/metrics", headers={"Accept": wanted})
    assert answer.body.endswith(b"# EOF\n")


def test_every_metric_keeps_its_name_and_value() -> None:
    families = [
        gauge("a_bytes", 'a "help"\n', [({"model": 'x"\\\n'}, 3)], "bytes"),
        counter("b", "", [({}, 2**53)]),
        info("c", "which", {"version": "1"}),
        summary("d_seconds", "", [({"model": "m"}, {0.5: 0.25, 0.9: None})], "seconds"),
        histogram("e_seconds", "", [(0.5, 3)], 1.5, 4, "seconds"),
        gauge("never", "no sample", []),
    ]
    text, _ = ServeMetrics().exposition(families, "")
    found = samples(read_open(text.decode()))
    for (name, labels), value in {
        ("a_bytes", (("model", 'x"\\\n'),)): 3.0,
        ("b_total", ()): float(2**53),
        ("c_info", (("version", "1"),)): 1.0,
        ("d_seconds", (("model", "m"), ("quantile", "0.5"))): 0.25,
        ("e_seconds_bucket", (("le", "0.5"),)): 3.0,
        ("e_seconds_bucket", (("le", "+Inf"),)): 4.0,
        ("e_seconds_sum", ()): 1.5,
        ("e_seconds_count", ()): 4.0,
    }.items():
        assert found[name, frozenset(labels)] == value
    assert not any(name.startswith("never") for name, _ in found)


def test_the_numbers_of_the_served_models_are_in_the_metrics() -> None:
    """Only models on QNN have a verdict."""
    verdicts = {"right": ("agrees", 3), "wrong": ("differs", 1), "new": ("pending", 0), "cpu": ("off", 0)}
    files = [SimpleNamespace(name=name, version="1") for name in verdicts]

    def opened(file: Any) -> Any:
        state, compared = verdicts[file.name]
        session = SimpleNamespace(verified=NumbersReport(state, compared=compared), close=lambda: None)  # type: ignore[arg-type]
        return SimpleNamespace(session=session, summary="", close=lambda: None)

    repository = Repository(files, opened)  # type: ignore[arg-type]
    repository.load_all(lambda _: None)
    numbers, compared = repository.families()
    found = {(one.labels["model"], one.labels["state"]) for one in numbers.samples if one.value == 1}
    assert found == {("right", "agrees"), ("wrong", "differs"), ("new", "unknown")}
    assert {one.labels["model"]: one.value for one in compared.samples} == {"right": 3, "wrong": 1, "new": 0}
