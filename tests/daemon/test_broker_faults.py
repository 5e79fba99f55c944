"""Faults of the NPU host, of another client or of the client itself, as clients of a daemon see them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge import errors
from qnnbridge._transport.channel import Channel
from qnnbridge_daemon.accounts import BrokerSettings
from qnnbridge_daemon.client_sessions import _ChannelWatch
from tests.daemon.brokers import GRACE_S, Lab, in_threads, until
from tests.fakes.hosts import fake_host, script
from tests.fakes.later import Later as LaterModel

X = np.arange(5, dtype=np.float32)
DOUBLE = (X * 2).tolist()


class Later(LaterModel):
    """Model that doubles its input. A session that has run it is warm."""

    def __init__(self, folder: Path, *actions: str, **more: Any) -> None:
        super().__init__(folder, *actions, scale=2, **more)

    def open(self, host: qnnbridge.Host, **options: Any) -> qnnbridge.InferenceSession:
        session = qnnbridge.InferenceSession(self.path, host=host, **options)
        for _ in range(3):
            session.run(None, {"x": X})
        return session


def run(session: qnnbridge.InferenceSession, **options: Any) -> Callable[[], Any]:
    return lambda: session.run(None, {"x": X}, **options)[0].tolist()


def in_background(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    out: list[Any] = []

    def work() -> None:
        try:
            out.append(call())
        except BaseException as error:
            out.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, out


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared", "inline"])
def test_calls_of_three_clients_survive_a_crash_of_the_host(lab: Lab, tmp_path: Path, shared_memory: bool) -> None:
    npu_pid = tmp_path / "go"
    waits = script(on_run=[f"wait:{npu_pid}"])
    npu_pid.touch()
    sessions = [qnnbridge.InferenceSession(waits, host=lab.client(shared_memory=shared_memory)) for _ in range(3)]
    for session in sessions:
        for _ in range(2):
            assert run(session)() == DOUBLE
    npu_pid.unlink()
    calls = [in_background(run(session)) for session in sessions]
    until(lambda: lab.broker.fair_share.running + lab.broker.fair_share.waiting == 3)
    process = lab.npu_host.supervisor.running
    assert process is not None
    os.kill(process.real_pid, signal.SIGKILL)
    npu_pid.touch()
    for thread, out in calls:
        thread.join(GRACE_S)
        assert out == [DOUBLE]
    assert lab.npu_host.stats.crashes == 1
    assert all(session.generation == 1 for session in sessions), "their connection has not even noticed"


def test_the_error_of_a_call_without_retry_reports_the_crash(lab: Lab, tmp_path: Path) -> None:
    later = Later(tmp_path, "segv")
    session = later.open(lab.client())
    later.now()
    with pytest.raises(errors.HostCrashed) as caught:
        run(session, retry=0)()
    assert "SIGSEGV" in str(caught.value)
    assert caught.value.cause
    assert caught.value.fix
    assert caught.value.evidence
    assert caught.value.details["suspects"]
    assert run(session)() == DOUBLE
    assert session.host.stats.generation == 1


def test_a_session_without_retry_reports_the_crash_on_the_fast_path_too(lab: Lab, tmp_path: Path) -> None:
    later = Later(tmp_path, "segv")
    session = later.open(lab.client(), retry=0)
    assert session.host.stats.shared_calls
    later.now()
    with pytest.raises(errors.HostCrashed):
        run(session)()
    assert run(session)() == DOUBLE


def test_a_model_that_crashes_the_host_is_quarantined_for_all_clients_and_the_others_continue(lab: Lab) -> None:
    bad = script(on_run=["segv"])
    killers = [qnnbridge.InferenceSession(bad, host=lab.client(), retry=0) for _ in range(2)]
    good = qnnbridge.InferenceSession(script(), host=lab.client())
    for session in killers:
        with pytest.raises(errors.HostCrashed):
            run(session)()
        assert run(good)() == DOUBLE
    for session in killers:
        with pytest.raises(errors.ModelQuarantined) as caught:
            run(session)()
        assert "qnnbridge quarantine clear" in (caught.value.fix or "")
    assert run(good)() == DOUBLE
    assert lab.broker.status()["host"]["crashes"] == 2


@pytest.mark.parametrize(
    "action", ["raise:ort.InvalidArgument=bad input", "raise:ort.EPFail=it failed", "exception:MemoryError"]
)
def test_an_error_is_the_same_as_from_a_private_host(lab: Lab, action: str) -> None:
    model = script(on_run=[action])
    told = []
    with fake_host() as private:
        for host in (private, lab.client()):
            session = qnnbridge.InferenceSession(model, host=host)
            with pytest.raises(errors.BridgeError) as caught:
                run(session)()
            told.append((type(caught.value), caught.value.to_wire()))
    assert told[0] == told[1]


def test_an_error_of_a_creation_is_the_same_as_from_a_private_host(lab: Lab, tmp_path: Path) -> None:
    told = []
    model = script(on_create=["raise:ort.Fail=no such thing"])
    with fake_host() as private:
        for host in (private, lab.client()):
            with pytest.raises(errors.BridgeError) as caught:
                qnnbridge.InferenceSession(model, host=host)
            told.append((type(caught.value), caught.value.to_wire()))
    assert told[0] == told[1]


def test_a_reset_of_the_npu_that_needs_a_new_host_closes_no_connection_of_a_client(
    lab: Lab, tmp_path: Path
) -> None:
    lost = "[ONNXRuntimeError] : 11 : EP_FAIL : QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL error 1011"
    later = Later(tmp_path, f"raise:ort.EngineError={lost}")
    session = later.open(lab.client())
    later.now()
    assert run(session)() == DOUBLE
    assert session.host.stats.generation == 1


@pytest.mark.parametrize("way", ["connection", "line"])
def test_a_deadline_is_kept_and_the_call_is_stopped(
    lab: Lab, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine it takes a while until all processes on the way have handled the cancel.
    for name in (
        "qnnbridge._transport.channel",
        "qnnbridge._session.fast_calls",
        "qnnbridge_daemon.client_sessions",
    ):
        monkeypatch.setattr(f"{name}.CANCEL_TIMEOUT_S", GRACE_S)
    monkeypatch.setattr("qnnbridge_host.serve.server.CANCEL_GRACE_S", GRACE_S)
    later = Later(tmp_path, "stoppable:60")
    session = later.open(lab.client())
    later.now()
    late = run(session, timeout=0.3, retry=0 if way == "connection" else None)
    assert later.late(late).state == "stopped"
    until(lambda: not lab.broker.fair_share.running)
    assert run(session)() == DOUBLE


def test_a_queued_call_is_cancelled_at_its_deadline(tmp_path: Path) -> None:
    made = Lab(fake_host(), BrokerSettings(slots=1))
    go, note = tmp_path / "go", tmp_path / "ran"
    try:
        stuck = qnnbridge.InferenceSession(script(on_run=[f"wait:{go}"]), host=made.client())
        other = qnnbridge.InferenceSession(script(on_run=[f"note:{note}"]), host=made.client())
        thread, out = in_background(run(stuck))
        until(lambda: made.broker.fair_share.running == 1)
        with pytest.raises(errors.DeadlineExceeded):
            run(other, timeout=0.2)()
        until(lambda: not made.broker.fair_share.waiting)
        go.touch()
        thread.join(GRACE_S)
        assert out == [DOUBLE]
        assert not note.exists()
        assert run(other)() == DOUBLE
    finally:
        made.close()


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the end of the host as long as a busy machine needs."""
    monkeypatch.setattr("qnnbridge._session.remote_session.KILL_ANSWER_S", GRACE_S)


def test_on_deadline_kill_ends_the_host_and_calls_of_other_clients_are_repeated(
    lab: Lab, tmp_path: Path, long_waits: None
) -> None:
    stuck = qnnbridge.InferenceSession(script(on_run=["sleep:60"], npu=False), host=lab.client())
    other = qnnbridge.InferenceSession(script(), host=lab.client())
    assert run(other)() == DOUBLE
    state = "not-started"
    while state == "not-started":  # until the thread runs, on a busy machine
        with pytest.raises(errors.DeadlineExceeded) as caught:
            run(stuck, timeout=0.3, on_deadline="kill")()
        state = caught.value.state
    assert state == "stopped"
    assert run(other)() == DOUBLE
    assert lab.npu_host.stats.generation == 2
    assert lab.npu_host.stats.crashes == 0
    assert stuck.host.stats.generation == other.host.stats.generation == 1


def test_on_deadline_kill_of_a_creation_ends_the_host_and_calls_of_other_clients_are_repeated(
    lab: Lab, long_waits: None
) -> None:
    other = qnnbridge.InferenceSession(script(), host=lab.client())
    assert run(other)() == DOUBLE
    state = "not-started"
    while state == "not-started":  # until the thread runs, on a busy machine
        with pytest.raises(errors.DeadlineExceeded) as caught:
            qnnbridge.InferenceSession(
                script(on_create=["sleep:60"]), host=lab.client(), timeout=0.5, on_deadline="kill"
            )
        state = caught.value.state
    assert state == "stopped"
    assert run(other)() == DOUBLE
    assert lab.npu_host.stats.generation == 2
    assert lab.npu_host.stats.crashes == 0
    assert other.host.stats.generation == 1


def test_setting_terminate_stops_a_call_in_the_host(lab: Lab) -> None:
    session = qnnbridge.InferenceSession(script(on_run=["stoppable:60"]), host=lab.client())
    options = qnnbridge.RunOptions()
    thread, out = in_background(lambda: session.run(None, {"x": X}, options))
    until(lambda: lab.broker.fair_share.running == 1)
    options.terminate = True
    thread.join(GRACE_S)
    assert isinstance(out[0], errors.Fail)


def test_a_cancel_that_arrives_before_its_call_is_not_lost(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call uses a fast channel, and the cancel uses the connection."""
    told: list[str] = []
    cancel, watch = Channel.cancel, _ChannelWatch.__call__

    def cancel_and_note(*arguments: Any) -> str:
        told.append(cancel(*arguments))
        return told[-1]

    def cancelled_before_it_is_written(self: _ChannelWatch, *arguments: Any) -> None:
        watch(self, *arguments)
        self._cancellation.stop()
        until(lambda: bool(told))

    model = Later(tmp_path, "stoppable:60")
    session = model.open(lab.client())
    model.now()
    monkeypatch.setattr(Channel, "cancel", cancel_and_note)
    monkeypatch.setattr(_ChannelWatch, "__call__", cancelled_before_it_is_written)
    thread, out = in_background(run(session))
    thread.join(GRACE_S)
    assert told[0] == "not-started"
    assert isinstance(out[0], errors.Cancelled)


def test_calls_of_a_disconnected_client_are_cancelled_and_stopped(tmp_path: Path) -> None:
    made = Lab(fake_host(), BrokerSettings(slots=2, keep_unused_s=0.0))
    note = tmp_path / "ran"
    try:
        gone = made.client()
        session = qnnbridge.InferenceSession(script(on_run=["stoppable:60"]), host=gone)
        counted = qnnbridge.InferenceSession(script(on_run=[f"note:{note}", "stoppable:60"]), host=gone)
        running = [in_background(run(session, retry=0)) for _ in range(2)]
        until(lambda: made.broker.fair_share.running == 2)
        waiting = [in_background(run(counted, retry=0)) for _ in range(3)]
        until(lambda: made.broker.fair_share.waiting == 3)
        process = gone.supervisor.running
        assert process is not None
        process.kill("as if the application had died")
        until(lambda: not made.broker.clients and not made.broker.fair_share.running)
        assert not note.exists()
        for thread, out in (*running, *waiting):
            thread.join(GRACE_S)
            assert isinstance(out[0], errors.HostCrashed)
        other = qnnbridge.InferenceSession(script(), host=made.client())
        assert run(other)() == DOUBLE
    finally:
        made.close()


def test_a_planned_restart_loses_no_call(lab: Lab) -> None:
    sessions = [qnnbridge.InferenceSession(script(), host=lab.client()) for _ in range(3)]
    stop = threading.Event()
    counts = [0] * len(sessions)

    def work(number: int) -> None:
        while not stop.is_set():
            assert run(sessions[number])() == DOUBLE
            counts[number] += 1

    def restart() -> None:
        try:
            for _ in range(3):
                before = list(counts)
                until(lambda before=before: all(now > then for now, then in zip(counts, before, strict=True)))
                sessions[0].host.restart()
        finally:
            stop.set()

    in_threads(*[lambda n=number: work(n) for number in range(len(sessions))], restart)
    assert lab.npu_host.stats.planned_restarts == 3
    assert lab.npu_host.stats.crashes == 0
    assert all(session.host.stats.generation == 1 for session in sessions)


def test_a_missing_interpreter_of_the_daemon_is_reported_as_a_problem_of_the_daemon() -> None:
    """The daemon's environment variables are not those of the application that reads the message."""
    made = Lab(qnnbridge.Host("/no/such/python"), BrokerSettings())
    try:
        with pytest.raises(errors.HostNotFound) as caught:
            qnnbridge.InferenceSession(script(), host=made.client())
    finally:
        made.close()
    assert any("by the daemon" in line for line in caught.value.evidence)
    assert "qnnbridge host restart --daemon" in str(caught.value.fix)
