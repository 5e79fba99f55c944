"""`qnnbridge host metrics`: the text, read back by the parser of Prometheus' own library."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.tools.daemon_documents import busy_daemon, idle_daemon

from qnnbridge_tools.host.metrics import NUMBERS_STATES, counter, gauge, histogram, metrics_text, text_of


def parsed(text: str) -> dict[str, Any]:
    """Return the metric families by name. The parser refuses invalid text."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(text: str, sample: str, **labels: str) -> float:
    (found,) = [
        one.value
        for family in parsed(text).values()
        for one in family.samples
        if one.name == sample and labels.items() <= one.labels.items()
    ]
    return float(found)


def test_every_figure_of_the_daemon_is_present() -> None:
    text = metrics_text(busy_daemon())
    expected = {
        "qnnbridge_daemon_uptime_seconds": 11_405.2,
        "qnnbridge_daemon_resident_memory_bytes": 48 << 20,
        "qnnbridge_shared_memory_bytes": 12 << 20,
        "qnnbridge_slots": 4,
        "qnnbridge_running_calls": 1,
        "qnnbridge_waiting_calls": 3,
        "qnnbridge_host_running": 1,
        "qnnbridge_host_starts_total": 3,
        "qnnbridge_host_crashes_total": 1,
        "qnnbridge_host_planned_restarts_total": 1,
        "qnnbridge_host_resident_memory_bytes": 210 << 20,
        "qnnbridge_clients": 2,
        "qnnbridge_connections_total": 9,
        "qnnbridge_sessions_created_total": 11,
        "qnnbridge_sessions_shared_total": 6,
        "qnnbridge_model_unloads_total": 2,
        "qnnbridge_model_reloads_total": 1,
        "qnnbridge_calls_total": 120_305,
        "qnnbridge_call_errors_total": 2,
        "qnnbridge_refused_calls_total": 7,
    }
    assert {name: value(text, name) for name in expected} == expected


def test_the_latencies_are_a_histogram_with_increasing_bounds_up_to_infinity() -> None:
    text = metrics_text(busy_daemon())
    family = parsed(text)["qnnbridge_call_latency_seconds"]
    assert (family.type, family.unit) == ("histogram", "seconds")
    buckets = [(one.labels["le"], one.value) for one in family.samples if one.name.endswith("_bucket")]
    assert buckets == [("0.001", 20000), ("0.0025", 90000), ("0.01", 119000), ("0.05", 120305), ("+Inf", 120305)]
    assert value(text, "qnnbridge_call_latency_seconds_sum") == 241.7
    assert value(text, "qnnbridge_call_latency_seconds_count") == 120_305


def test_clients_and_models_are_distinguished_by_labels() -> None:
    text = metrics_text(busy_daemon())
    assert value(text, "qnnbridge_client_calls_total", pid="5001", name="camera.py", id="1") == 120_000
    assert value(text, "qnnbridge_client_transferred_bytes_total", id="1") == 9 << 30
    assert value(text, "qnnbridge_client_waiting_calls", id="1") == 3
    assert value(text, "qnnbridge_client_call_latency_seconds", id="2", quantile="0.99") == 0.3
    assert value(text, "qnnbridge_model_nodes", model="detector.onnx", device="CPU") == 2
    assert value(text, "qnnbridge_model_loaded", model="ocr.onnx") == 0
    assert value(text, "qnnbridge_model_idle_seconds", model="ocr.onnx") == 754


def test_the_comparison_of_a_model_has_one_of_three_states() -> None:
    text = metrics_text(busy_daemon())
    for model, found in (("detector.onnx", "differs"), ("ocr.onnx", "unknown")):
        states = {
            state: value(text, "qnnbridge_model_numbers", model=model, state=state) for state in NUMBERS_STATES
        }
        assert states == {state: float(state == found) for state in NUMBERS_STATES}
    assert value(text, "qnnbridge_model_compared_calls_total", model="detector.onnx") == 3


def test_an_older_daemon_reports_no_comparison() -> None:
    document = busy_daemon()
    for model in document["models"]:
        model.pop("numbers", None)
    text = metrics_text(document)
    assert value(text, "qnnbridge_model_numbers", model="detector.onnx", state="unknown") == 1


def test_a_name_with_any_characters_is_read_back_unchanged() -> None:
    document = busy_daemon()
    (family,) = [f for f in parsed(metrics_text(document)).values() if f.name == "qnnbridge_client_sessions"]
    assert {one.labels["name"] for one in family.samples} == {"camera.py", 'we"ird\\na\nme'}


@given(st.text())
def test_no_text_can_escape_from_a_label(name: str) -> None:
    about = f"<{name}>"  # the parser treats only blanks as empty
    text = text_of([gauge("g", about, [({"name": name}, 1)])])
    family = parsed(text)["g"]
    assert family.samples[0].labels == {"name": name}
    assert family.documentation == about


def test_an_unpaired_surrogate_becomes_a_question_mark() -> None:
    text = text_of([gauge("g", "", [({"name": "a\udc80b"}, 1)])])
    assert text.encode()
    assert parsed(text)["g"].samples[0].labels == {"name": "a?b"}


def test_unknown_values_are_omitted() -> None:
    text = metrics_text(busy_daemon())
    summary = parsed(text)["qnnbridge_model_call_latency_seconds"]
    assert {one.labels["model"] for one in summary.samples} == {"detector.onnx"}


def test_a_daemon_without_any_work_has_metrics() -> None:
    text = metrics_text(idle_daemon())
    families = parsed(text)
    assert value(text, "qnnbridge_host_running") == 0
    assert value(text, "qnnbridge_call_latency_seconds_count") == 0
    assert "qnnbridge_host" not in families
    assert not [name for name in families if name.startswith(("qnnbridge_client_", "qnnbridge_model_l"))]


def test_a_client_that_only_requests_metrics_is_not_counted() -> None:
    document = busy_daemon()
    document["clients"][1]["sessions"] = 0
    assert value(metrics_text(document), "qnnbridge_clients") == 2
    assert value(metrics_text(document, onlooker=5002), "qnnbridge_clients") == 1
    assert value(metrics_text(document, onlooker=5001), "qnnbridge_clients") == 2


def test_a_daemon_that_reports_fewer_fields_has_metrics() -> None:
    assert value(metrics_text({}), "qnnbridge_calls_total") == 0
    odd = {"clients": [{"pid": "x", "latency_ms": 3}, 5], "models": None, "totals": {"latency_s": {"buckets": [1]}}}
    assert value(metrics_text(odd), "qnnbridge_clients") == 1


def test_the_text_ends_as_the_format_requires_with_line_feeds_only() -> None:
    text = metrics_text(busy_daemon())
    assert text.endswith("\n# EOF\n")
    assert "\r" not in text
    assert "\n\n" not in text
    assert len(parsed(text)) == text.count("# TYPE ") == text.count("# HELP ")


def test_every_name_with_a_unit_ends_with_it_and_declares_it() -> None:
    units = {family.name: family.unit for family in parsed(metrics_text(busy_daemon())).values()}
    for name, unit in units.items():
        assert unit == next((u for u in ("seconds", "bytes") if name.endswith(f"_{u}")), ""), name


def test_the_count_of_a_histogram_is_at_least_that_of_its_last_bucket() -> None:
    text = text_of([histogram("h", "", [(0.5, 3), (math.inf, 9)], 1.0, 7)])
    assert value(text, "h_bucket", le="+Inf") == value(text, "h_count") == 9


@pytest.mark.parametrize("name", ["a b", "", "1a", "a-b", "a\nb"])
def test_a_name_that_the_format_does_not_allow_is_an_internal_error(name: str) -> None:
    with pytest.raises(ValueError, match="unit"):
        counter(name, "", [])


def test_a_unit_that_the_name_does_not_end_with_is_an_internal_error() -> None:
    with pytest.raises(ValueError, match="seconds"):
        gauge("a_bytes", "", [], "seconds")
