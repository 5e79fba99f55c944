"""Kill the daemon, its NPU host or an application with SIGKILL during calls, and check the remaining processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

import qnnbridge
from qnnbridge.errors import HostCrashed
from tests import needs
from tests.contract.small_models import CPU, counting_loop, turns_that_take
from tests.daemon.brokers import until
from tests.daemon.real_daemon import END_TIMEOUT_S, daemon_of_its_own, status

pytest.importorskip("onnxruntime")

# Duration of a call on one core: long enough to be interrupted, short enough to be repeated.
CALL_S = 1.0

FOR_EVER = 2**62
DEADLINE_S = 60.0

APPLICATION = """
import sys, numpy as np, qnnbridge
with qnnbridge.connect(start=False) as host:
    session = qnnbridge.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"], host=host)
    print("open", flush=True)
    session.run(None, {"n": np.array(int(sys.argv[2]), np.int64), "x": np.zeros(1, np.float32)})
"""


WHICH = """
import qnnbridge
with qnnbridge.connect(start=True) as host:
    print(host.call({"op": "daemon.status"}).header["status"]["daemon"]["pid"])
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[qnnbridge.Host]:
    with daemon_of_its_own(tmp_path, monkeypatch) as host:
        yield host


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "loop.onnx"
    path.write_bytes(counting_loop())
    return path


class Applications:
    """Three connections, each with a running call."""

    def __init__(self, model: Path) -> None:
        self.hosts = [qnnbridge.connect(start=True) for _ in range(3)]
        self._sessions = [qnnbridge.InferenceSession(model, providers=[CPU], host=host) for host in self.hosts]
        self._pool = ThreadPoolExecutor(len(self.hosts))
        self.turns = turns_that_take(self._sessions[0], CALL_S)
        self.results = [float(self.turns + number) for number in range(len(self.hosts))]

    def begin(self, turns: int, **options: float) -> list[Future[float]]:
        return [
            self._pool.submit(self._call, session, turns + number, options)
            for number, session in enumerate(self._sessions)
        ]

    @staticmethod
    def _call(session: qnnbridge.InferenceSession, turns: int, options: dict[str, float]) -> float:
        (y,) = session.run(None, {"n": np.array(turns, np.int64), "x": np.zeros(1, np.float32)}, **options)  # type: ignore[arg-type]
        return float(y[0])

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        self._pool.shutdown()


@pytest.fixture
def applications(daemon: qnnbridge.Host, model: Path) -> Iterator[Applications]:
    made = Applications(model)
    yield made
    made.close()


def wait_until_running(host: qnnbridge.Host, calls: int) -> None:
    until = time.monotonic() + END_TIMEOUT_S
    while status(host)["queue"]["running"] < calls:
        assert time.monotonic() < until, "the calls did not begin"
        threading.Event().wait(0.01)


def test_calls_of_all_applications_survive_a_crash_of_the_npu_host(
    daemon: qnnbridge.Host, applications: Applications
) -> None:
    calls = applications.begin(applications.turns, timeout=DEADLINE_S)
    wait_until_running(daemon, 3)
    before = status(daemon)
    psutil.Process(before["host"]["pid"]).kill()
    assert [call.result(DEADLINE_S) for call in calls] == applications.results
    after = status(daemon)
    assert after["daemon"]["pid"] == before["daemon"]["pid"]
    assert after["host"]["generation"] == before["host"]["generation"] + 1
    assert [host.stats.crashes for host in applications.hosts] == [0, 0, 0], "an application noticed"


def test_calls_of_all_applications_survive_the_end_of_the_daemon_in_one_new_daemon(
    daemon: qnnbridge.Host, applications: Applications
) -> None:
    calls = applications.begin(applications.turns, timeout=DEADLINE_S)
    wait_until_running(daemon, 3)
    old = status(daemon)
    psutil.Process(old["daemon"]["pid"]).kill()
    assert [call.result(DEADLINE_S) for call in calls] == applications.results
    pids = {status(host)["daemon"]["pid"] for host in (daemon, *applications.hosts)}
    assert len(pids) == 1
    assert pids != {old["daemon"]["pid"]}
    orphan = old["host"]["pid"]
    until(lambda: not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE)


def test_without_retry_the_end_of_the_daemon_raises_an_error(
    daemon: qnnbridge.Host, applications: Applications
) -> None:
    calls = applications.begin(FOR_EVER, timeout=DEADLINE_S, retry=0)
    wait_until_running(daemon, 3)
    psutil.Process(status(daemon)["daemon"]["pid"]).kill()
    for call in calls:
        with pytest.raises(HostCrashed, match="daemon") as caught:
            call.result(DEADLINE_S)
        assert caught.value.fix


def test_the_end_of_an_application_ends_its_call_and_no_other(
    daemon: qnnbridge.Host, applications: Applications, model: Path
) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", APPLICATION, str(model), str(FOR_EVER)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        wait_until_running(daemon, 1)
        calls = applications.begin(applications.turns, timeout=DEADLINE_S)
        wait_until_running(daemon, 4)
        assert status(daemon)["totals"]["sessions_created"] == 1, "the four applications share one session"
        host_pid = status(daemon)["host"]["pid"]
    finally:
        other.kill()
        other.communicate()
    assert [call.result(DEADLINE_S) for call in calls] == applications.results
    until = time.monotonic() + END_TIMEOUT_S
    while (now := status(daemon))["queue"]["running"] or len(now["clients"]) != 4:
        assert time.monotonic() < until, (
            f"something of the dead application is left: {now['queue']}, {now['clients']}"
        )
        threading.Event().wait(0.01)
    assert now["host"]["pid"] == host_pid
    assert now["host"]["crashes"] == 0


@needs.posix
@pytest.mark.parametrize("name", needs.some(["token", "endpoint"]))
def test_a_changed_discovery_file_is_written_again_by_the_running_daemon(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client could authenticate to the daemon, or find it: applications waited a minute, `host stop` could not
    end it.
    """
    with daemon_of_its_own(tmp_path, monkeypatch) as host:
        pid = status(host)["daemon"]["pid"]
        path = tmp_path / "runtime" / "daemon.json"
        right = json.loads(path.read_text())
        wrong = "0" * len(right["token"]) if name == "token" else right["endpoint"] + "x"
        for _ in range(2):
            path.write_text(json.dumps({**right, name: wrong}))
            path.chmod(0o600)
            other = subprocess.run([sys.executable, "-c", WHICH], capture_output=True, text=True, check=True)
            assert int(other.stdout) == pid
            until(lambda: json.loads(path.read_text()) == right)
            assert os.stat(path).st_mode & 0o777 == 0o600
        path.write_text(json.dumps({**right, name: wrong}))
        daemon = psutil.Process(pid)
        done = subprocess.run(
            [sys.executable, "-m", "qnnbridge_tools", "host", "stop"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        daemon.wait(END_TIMEOUT_S)
