"""Daemons as processes: the first client starts one, one runs at a time, and clients find it again after a loss."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

import qnnbridge
from qnnbridge._daemon.discovery import (
    LOCK_NAME,
    Starting,
    make_runtime_folder,
    read_discovery,
    runtime_folder,
    write_discovery,
)
from qnnbridge._host import shared_daemon_host
from qnnbridge_daemon.main import EXIT_OK, EXIT_RUNNING, log_file, stderr_file
from qnnbridge_protocol.errors import DeadlineExceeded, HostCrashed, HostNotFound, HostStartFailed, OptionError
from tests import needs
from tests.daemon.brokers import until
from tests.daemon.daemons import (
    CPU,
    GRACE_S,
    MODEL,
    daemon_process,
    daemons_alive,
    new_discovery,
    program,
    stop_daemon,
    told,
)
from tests.fakes.fair_clock import FairClock
from tests.fakes.stopping import stop

pytestmark = [needs.posix, pytest.mark.timeout(180)]

# Opening takes 2 ms on an idle machine. On a busy machine, only one of the attempts needs to be this quick.
QUICK_S = 1.0
TRIES = 5
TOGETHER = 10
CLIENTS = 4

CONNECTS = """
import sys, qnnbridge
sys.stdin.readline()
with qnnbridge.connect() as host:
    print(host.supervisor.running.peer.pid, flush=True)
    sys.stdin.readline()
"""

WORKS_ON = """
import sys, json, numpy as np, qnnbridge
session = qnnbridge.InferenceSession(sys.argv[1], host="daemon", providers=["CPUExecutionProvider"])
x = np.arange(6, dtype=np.float32).reshape(3, 2)
first = session.run(None, {"X": x})[0].tolist()
print("ready", flush=True)
sys.stdin.readline()
same = all(session.run(None, {"X": x})[0].tolist() == first for _ in range(5))
peer = session.host.supervisor.running.peer.pid
print(json.dumps([same, peer, session.generation, session.host.stats.crashes]), flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def no_daemon_left() -> Iterator[None]:
    yield
    stop_daemon()


def x_of(session: qnnbridge.InferenceSession) -> dict[str, np.ndarray]:
    return {"X": np.arange(6, dtype=np.float32).reshape(3, 2)}


def test_a_session_of_the_daemon_computes_what_a_private_host_computes() -> None:
    with qnnbridge.connect() as host, qnnbridge.InferenceSession(MODEL, host=host, providers=CPU) as session:
        results = [session.run(None, x_of(session))[0] for _ in range(5)]
        assert host.is_daemon
        assert host.info.pid == daemon_process().pid != os.getpid()
        assert session.cache.state == "off"
        assert "daemon" not in session.cache.reason  # the daemon supplies the reason
    with qnnbridge.Host() as private, qnnbridge.InferenceSession(MODEL, host=private, providers=CPU) as session:
        assert not private.is_daemon
        expected = session.run(None, x_of(session))[0]
    assert all(result.tobytes() == expected.tobytes() for result in results)


def test_two_applications_share_the_session_of_a_model_and_the_second_opens_it_quickly() -> None:
    with qnnbridge.connect() as one, qnnbridge.connect() as other:
        first = qnnbridge.InferenceSession(MODEL, host=one, providers=CPU)
        took_s: list[float] = []
        for _ in range(TRIES):
            begin = time.perf_counter()
            second = qnnbridge.InferenceSession(MODEL, host=other, providers=CPU)
            took_s.append(time.perf_counter() - begin)
            if took_s[-1] < QUICK_S:
                break
        assert [s._remote.is_shared for s in (first, second)] == [False, True]
        assert first.run(None, x_of(first))[0].tolist() == second.run(None, x_of(second))[0].tolist()
    assert min(took_s) < QUICK_S


def test_ten_programs_that_start_at_the_same_time_get_one_daemon() -> None:
    programs = [program(CONNECTS) for _ in range(TOGETHER)]
    for one in programs:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    pids = {int(one.stdout.readline() or 0) for one in programs if one.stdout is not None}
    for one in programs:
        told(one)
    until(lambda: len(daemons_alive()) == 1)  # daemons that were too late end by themselves
    assert pids == {process.pid for process in daemons_alive()} == {daemon_process().pid}


def test_a_killed_daemon_with_four_clients_is_replaced_by_one_and_every_call_is_answered() -> None:
    programs = [program(WORKS_ON, MODEL) for _ in range(CLIENTS)]
    assert [one.stdout.readline() for one in programs if one.stdout is not None] == ["ready\n"] * CLIENTS
    old = daemon_process()
    old.kill()
    for one in programs:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    answers = [json.loads(one.stdout.readline()) for one in programs if one.stdout is not None]
    until(lambda: len({process.pid for process in daemons_alive()} - {old.pid}) == 1)  # a late daemon ends
    alive = {process.pid for process in daemons_alive()} - {old.pid}
    for one in programs:
        told(one)
    assert [answer[0] for answer in answers] == [True] * CLIENTS
    assert {answer[1] for answer in answers} == alive == {daemon_process().pid}
    assert [answer[2:] for answer in answers] == [[2, 1]] * CLIENTS


def test_a_discovery_file_whose_pid_belongs_to_another_process_harms_no_process() -> None:
    unrelated = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    folder = make_runtime_folder()
    stale = new_discovery(folder, pid=unrelated.pid)
    write_discovery(folder, stale)
    with qnnbridge.connect() as host:
        assert host.ping() >= 0
        found = read_discovery(folder)
        assert found is not None
        assert found.instance != stale.instance
    stop_daemon()
    assert unrelated.poll() is None
    unrelated.communicate(b"\n")


def test_the_error_for_a_client_without_permission_explains_how_to_start_a_daemon() -> None:
    with pytest.raises(HostStartFailed, match="No qnnbridge daemon could be reached") as caught:
        qnnbridge.connect(start=False)
    assert "qnnbridge host start" in str(caught.value.fix)
    assert daemons_alive() == []


def test_a_stopped_daemon_is_not_started_by_a_client_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qnnbridge._daemon.connector.RECONNECT_TIMEOUT_S", 0.5)
    with qnnbridge.connect() as starter, qnnbridge.connect(start=False) as guest:
        guest.ping()
        starter.close()
        stop_daemon()
        with pytest.raises(HostCrashed, match="closed the connection"):
            guest.ping()
        with pytest.raises(HostStartFailed, match="No qnnbridge daemon"):
            guest.ping()
    assert daemons_alive() == []


def test_a_killed_daemon_raises_an_error_with_its_log_and_is_restarted() -> None:
    with qnnbridge.connect() as host:
        host.ping()
        daemon_process().kill()
        with pytest.raises(HostCrashed) as caught:
            host.ping(GRACE_S)
        assert caught.value.details["log_file"] == str(log_file())
        assert any("daemon" in line for line in caught.value.evidence)
        assert not (log_file().parent.parent / "crashes").exists()  # no model is to blame
        assert host.ping(GRACE_S) >= 0


def test_a_caller_with_an_expired_deadline_does_not_wait_for_the_start_of_the_daemon() -> None:
    from qnnbridge._daemon import DaemonAccess
    from qnnbridge._host import daemon_host

    with daemon_host(DaemonAccess()) as host:
        clock = FairClock()
        with pytest.raises(DeadlineExceeded):
            host.start(timeout=0.01)
        assert clock.seconds < 1.5  # the call's deadline, and a second
        host.start(timeout=GRACE_S)
        assert len(daemons_alive()) == 1


def test_the_host_argument_daemon_is_one_host_for_all_sessions_and_survives_pickling() -> None:
    one = qnnbridge.InferenceSession(MODEL, host="daemon", providers=CPU)
    other = pickle.loads(pickle.dumps(one))
    assert one.host is other.host is shared_daemon_host()
    assert one.run(None, x_of(one))[0].tolist() == other.run(None, x_of(other))[0].tolist()
    one.host.close()


def test_the_environment_variable_makes_the_daemon_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_HOST", "daemon")
    host = qnnbridge.default_host()
    try:
        assert host.is_daemon
        assert host.ping(GRACE_S) >= 0
    finally:
        host.close()
    monkeypatch.setenv("QNNBRIDGE_HOST", "demon")
    with pytest.raises(OptionError, match="demon"):
        qnnbridge.default_host()
    monkeypatch.setenv("QNNBRIDGE_HOST", "private")
    assert not qnnbridge.default_host().is_daemon


def test_a_restart_replaces_the_npu_host_and_not_the_daemon() -> None:
    def pids() -> tuple[int, int]:
        status = host.call({"op": "daemon.status"}).header["status"]
        return status["daemon"]["pid"], status["host"]["pid"]

    with qnnbridge.connect() as host, qnnbridge.InferenceSession(MODEL, host=host, providers=CPU) as session:
        before = session.run(None, x_of(session))[0].tolist()
        daemon, old = pids()
        host.restart()
        assert session.run(None, x_of(session))[0].tolist() == before
        same, new = pids()
        assert (same, session.generation) == (daemon, 1)
        assert new != old


def test_an_interpreter_that_cannot_run_the_host_starts_no_daemon() -> None:
    with pytest.raises(HostNotFound, match="/no/such/python"):
        qnnbridge.connect(python="/no/such/python")
    assert daemons_alive() == []


def test_a_timeout_of_none_waits_without_a_limit() -> None:
    with qnnbridge.connect(timeout=None) as host:
        assert host.ping(GRACE_S) >= 0


def test_an_unknown_string_for_the_host_argument_is_refused() -> None:
    with pytest.raises(OptionError, match=r"is not a qnnbridge\.Host"):
        qnnbridge.InferenceSession(MODEL, host="deamon")  # type: ignore[arg-type]


# --- state of the daemon -------------------------------------------------------------------------------------


def foreground(*options: str) -> subprocess.Popen[str]:
    """Start a daemon as a service manager does; return when its endpoint accepts connections."""
    process = subprocess.Popen(
        [sys.executable, "-m", "qnnbridge_daemon", "--foreground", *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert " daemon, process " in process.stderr.readline()
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_with_exit_code_0(number: signal.Signals) -> None:
    process = foreground()
    with qnnbridge.connect(start=False) as host:
        host.ping()
        process.send_signal(number)
        _, said = process.communicate(timeout=GRACE_S)
    assert process.returncode == EXIT_OK
    assert "the daemon has ended" in said
    assert sorted(entry.name for entry in runtime_folder().iterdir()) == ["daemon.lock"]


def test_a_second_daemon_reports_the_first_one_and_does_not_disturb_it() -> None:
    process = foreground()
    second = subprocess.run(
        [sys.executable, "-m", "qnnbridge_daemon", "--foreground"],
        capture_output=True, text=True, timeout=GRACE_S, check=False,
    )  # fmt: skip
    assert second.returncode == EXIT_RUNNING
    assert f"A qnnbridge daemon is already running (process {process.pid}" in second.stderr
    assert Starting().wait(time.monotonic() + GRACE_S) == "running"
    with qnnbridge.connect(start=False) as host:
        assert host.info.pid == process.pid
    process.terminate()
    process.communicate(timeout=GRACE_S)


def test_an_unused_daemon_ends_if_it_has_an_idle_timeout() -> None:
    process = foreground("--idle-exit", "0.5")
    _, said = process.communicate(timeout=GRACE_S)
    assert process.returncode == EXIT_OK
    assert "unused for 0.5 s" in said


@pytest.mark.parametrize("name", ["daemon.json", "daemon.sock", LOCK_NAME])
def test_a_daemon_without_its_discovery_files_ends(name: str) -> None:
    process = foreground()
    (runtime_folder() / name).unlink()
    _, said = process.communicate(timeout=GRACE_S)
    assert process.returncode == EXIT_OK
    assert "does not belong to this daemon any more" in said


def test_a_daemon_whose_files_were_removed_does_not_remove_those_of_its_successor() -> None:
    first = foreground()
    # Stop the first daemon, so that it cannot check its files before the second daemon runs.
    stop(first.pid)
    for name in ("daemon.json", "daemon.sock", LOCK_NAME):
        (runtime_folder() / name).unlink()
    second = foreground()
    first.send_signal(signal.SIGCONT)
    _, said = first.communicate(timeout=GRACE_S)
    assert "does not belong to this daemon any more" in said
    with qnnbridge.connect(start=False) as host:
        assert host.info.pid == second.pid
    second.terminate()
    second.communicate(timeout=GRACE_S)


def test_a_daemon_that_does_not_start_prints_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from qnnbridge._daemon import discovery

    monkeypatch.setattr(discovery, "DETACHED", "--no-such-option")
    with pytest.raises(HostStartFailed, match="did not start") as caught:
        qnnbridge.connect()
    assert "unrecognized arguments: --no-such-option" in str(caught.value.cause)


def test_a_started_daemon_keeps_no_descriptor_of_the_process_that_started_it() -> None:
    """The daemon has no terminal, parent, working folder or stream of its starter, and continues when the starter
    ends.
    """
    read_fd, write_fd = os.pipe()
    os.set_inheritable(write_fd, True)  # as a careless program would
    starter = program(CONNECTS)
    told_pid, _ = starter.communicate("\n\n", timeout=GRACE_S)
    os.close(write_fd)
    assert os.read(read_fd, 1) == b""
    os.close(read_fd)
    process = daemon_process()
    assert process.pid == int(told_pid)
    assert process.ppid() != starter.pid
    assert process.terminal() is None
    assert os.getsid(process.pid) != os.getsid(0)
    targets = {os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in (0, 1, 2)}
    assert targets == {"/dev/null", str(stderr_file(log_file()))}
    assert {psutil.Process(process.pid).cwd()} == {str(runtime_folder())}


def test_the_token_is_neither_in_the_command_line_nor_in_the_log_of_the_daemon() -> None:
    with qnnbridge.connect() as host:
        host.ping()
        found = read_discovery(runtime_folder())
        assert found is not None
        assert found.token.hex() not in " ".join(daemon_process().cmdline())
        assert found.token.hex() not in log_file().read_text("utf-8")
        assert dataclasses.replace(found, token=bytes(32)).pid == daemon_process().pid


@pytest.mark.parametrize("kills", [2, 9])
def test_a_daemon_that_is_killed_during_its_start_is_started_again(
    kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Starting] = []

    class Killed(Starting):
        def __init__(self, *arguments: object) -> None:
            super().__init__()
            started.append(self)
            if len(started) <= kills:
                self._process._process.kill()  # before the daemon has detached from its starter

    monkeypatch.setattr("qnnbridge._daemon.connector.Starting", Killed)
    monkeypatch.setattr("qnnbridge._daemon.connector._START_AGAIN_S", 0.05)
    if kills == 2:
        with qnnbridge.connect() as host:
            host.ping()
        assert len(started) == 3
    else:
        with pytest.raises(HostStartFailed, match="did not start") as caught:
            qnnbridge.connect()
        assert caught.value.cause == "It ended without output."
        assert len(started) == 4
