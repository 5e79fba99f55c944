"""The daemon's status, and requests to the daemon."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge import errors
from qnnbridge._session import create
from qnnbridge_daemon.accounts import BrokerSettings
from qnnbridge_protocol.connection import DAEMON_FEATURE
from qnnbridge_tools.host.figures import host_text, read_figures
from tests.daemon.brokers import Lab, until
from tests.fakes.hosts import fake_host, script

X = np.arange(5, dtype=np.float32)


def status(host: qnnbridge.Host) -> dict[str, Any]:
    told: dict[str, Any] = host.call({"op": "daemon.status"}).header["status"]
    return told


def test_the_status_counts_the_work_done(lab: Lab, tmp_path: Path) -> None:
    one, two = lab.client(), lab.client()
    good = qnnbridge.InferenceSession(script(), host=one)
    bad = qnnbridge.InferenceSession(script(on_run=["raise:ort.Fail=no"]), host=two)
    for _ in range(5):
        good.run(None, {"x": X})
    for _ in range(2):
        with pytest.raises(errors.Fail):
            bad.run(None, {"x": X})
    told = status(one)
    assert told == {**told, "queue": {"slots": 4, "running": 0, "waiting": 0}}
    first, second = told["clients"]
    assert (first["calls"], first["errors"], first["sessions"]) == (5, 0, 1)
    assert (second["calls"], second["errors"], second["sessions"]) == (2, 2, 1)
    assert first["pid"] == os.getpid()
    assert first["bytes"] >= 5 * X.nbytes
    assert first["shared_bytes"] > 0
    assert 0 < first["latency_ms"]["p50"] <= first["latency_ms"]["max"]
    assert sorted(model["calls"] for model in told["models"]) == [2, 5]
    assert told["totals"]["calls"] == told["totals"]["latency_s"]["count"] == 7
    assert told["daemon"]["pid"] == os.getpid()
    assert told["daemon"]["python"] == "{}.{}.{}".format(*sys.version_info[:3])
    process = lab.npu_host.supervisor.running
    assert process is not None
    assert told["host"]["running"]
    assert told["host"]["pid"] == process.real_pid
    assert told["host"]["rss_bytes"] > 0
    assert told["memory"]["daemon_rss_bytes"] > 0
    assert told["memory"]["shared_bytes"] >= first["shared_bytes"]


def test_calls_of_a_disconnected_client_still_count_in_the_rate(lab: Lab) -> None:
    now = time.monotonic()
    lab.broker.meter._clock = lambda: now  # however long this takes
    with lab.client() as leaving:
        session = qnnbridge.InferenceSession(script(), host=leaving)
        for _ in range(3):
            session.run(None, {"x": X})
    until(lambda: not lab.broker.clients)
    assert lab.broker.status()["totals"]["calls_per_s"] > 0


def test_requesting_the_status_starts_no_host() -> None:
    made = Lab(fake_host())
    try:
        with made.client() as host:
            told = status(host)
            assert not told["host"]["running"]
            assert told["host"]["pid"] is None
            assert told["models"] == []
        assert made.npu_host.stats.generation == 0
    finally:
        made.close()


def test_settings_are_shown_as_given() -> None:
    settings = BrokerSettings(
        endpoint="/run/x", log_file="/log", instance="abc", idle_exit_s=5.0, idle_unload_s=7.0
    )
    made = Lab(fake_host(), settings)
    try:
        daemon = made.broker.status()["daemon"]
        assert daemon["endpoint"] == "/run/x"
        assert (daemon["idle_exit_s"], daemon["idle_unload_s"], daemon["instance"]) == (5.0, 7.0, "abc")
    finally:
        made.close()


def test_a_client_learns_that_it_is_connected_to_a_daemon_and_which_host_runs(lab: Lab) -> None:
    lab.npu_host.start()
    host = lab.client()
    host.start()
    process = host.supervisor.running
    assert process is not None
    assert DAEMON_FEATURE in process.peer.features
    assert process.peer.pid == os.getpid()
    behind = lab.npu_host.supervisor.running
    assert behind is not None
    assert process.peer.versions == behind.peer.versions
    assert host.info.providers == lab.npu_host.info.providers


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("--qnn=windowsml:1.8.21.0", "QNN from the catalogue of Windows (1.8.21.0)"),
        ("--qnn=folder", "QNN from a folder"),
        ("--qnn=wheel:2.7.0", "QNN from its wheel"),
    ],
)
def test_the_status_reports_where_qnn_comes_from(source: str, words: str) -> None:
    """The host reports its QNN without a request as soon as it has found the packages, which is after HELLO."""
    made = Lab(fake_host(source))
    try:
        client = made.client()
        qnnbridge.InferenceSession(script(), host=client)
        text = host_text(read_figures(status(client)).host)
        assert words in text
        assert "ep_" not in text
    finally:
        made.close()


@pytest.mark.parametrize(
    ("engine", "path", "is_said"),
    [("wheel", "", True), ("folder", "/its", True), ("windowsml", "", False), ("", "", False), ("auto", "", False)],
)
def test_an_application_that_requests_another_qnn_than_the_daemon_uses_is_warned_once(
    engine: str, path: str, is_said: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(create, "_said", set())
    made = Lab(fake_host("--qnn=windowsml:1.8.21.0"))
    try:
        made.npu_host.start()
        monkeypatch.setenv("QNNBRIDGE_ENGINE", engine)
        monkeypatch.setenv("QNNBRIDGE_EP_PATH", path and f"{path}/elsewhere")
        for scale in (2, 3):
            qnnbridge.InferenceSession(script(scale=scale), host=made.client())
        said = [line for line in caplog.messages if "has no effect: the daemon uses QNN of windowsml" in line]
        assert len(said) == is_said
        assert all(f"QNNBRIDGE_ENGINE={engine}" in line and "host restart --daemon" in line for line in said)
    finally:
        made.close()


def test_a_crash_of_the_host_is_reported(lab: Lab) -> None:
    session = qnnbridge.InferenceSession(script(on_run=["segv"]), host=lab.client(), retry=0)
    with pytest.raises(errors.HostCrashed):
        session.run(None, {"x": X})
    told = lab.broker.status()["host"]
    assert told["crashes"] == 1
    assert "SIGSEGV" in told["last_crash"]
    assert not told["running"]


def test_the_host_is_replaced_when_a_client_requests_it(lab: Lab) -> None:
    host = lab.client()
    session = qnnbridge.InferenceSession(script(), host=host)
    host.call({"op": "daemon.restart_host"})
    assert session.run(None, {"x": X})[0][1] == 2
    told = status(host)["host"]
    assert (told["generation"], told["planned_restarts"], told["crashes"]) == (2, 1, 0)


def test_a_client_can_request_the_end_of_the_daemon(lab: Lab) -> None:
    assert not lab.broker.stop_requested.is_set()
    lab.client().call({"op": "daemon.stop", "drain_s": 1.5})
    assert lab.broker.stop_requested.is_set()
    assert lab.broker.drain_s == 1.5


@pytest.mark.parametrize(("operation", "words"), [("model.compile", "qnnbridge.compile"), ("what.ever", "Upgrade")])
def test_an_operation_that_the_daemon_does_not_support_is_refused_with_an_explanation(
    lab: Lab, operation: str, words: str
) -> None:
    with pytest.raises(errors.UnknownOperation) as caught:
        lab.client().call({"op": operation})
    assert words in (caught.value.fix or "")


@pytest.mark.parametrize(
    "header",
    [
        {"op": "session.create"},
        {"op": "session.create", "spec": {"model_path": None}, "initializers": 5},
        {"op": "session.create", "spec": {"model_path": None}, "retry": "often"},
        {"op": "session.run", "session": 77, "inputs": []},
        {"op": "session.run"},
        {"op": "session.set_ep_dynamic_options", "session": "x", "options": 1},
        {"op": "daemon.stop", "drain_s": "soon"},
    ],
)
def test_an_invalid_request_is_answered_and_does_no_harm(lab: Lab, header: dict[str, Any]) -> None:
    host = lab.client()
    session = qnnbridge.InferenceSession(script(), host=host)
    try:
        host.call(header)
    except errors.BridgeError as error:
        assert error.message
    assert session.run(None, {"x": X})[0][1] == 2
    assert lab.broker.clients[0].account.sessions == 1
    until(lambda: not lab.broker.fair_share.running)
