"""The client of a worker process: how the process is started, and what happens if it crashes, hangs or is
cancelled."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests import needs

from qnnbridge_host.create import worker as worker_module
from qnnbridge_host.create.order import WorkOrder, default_command, worker_command
from qnnbridge_host.create.worker import Worker, ticking
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.request.client import StopSignal
from qnnbridge_protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    HostHung,
    HostStartFailed,
    UnknownOperation,
    WorkerDied,
)
from qnnbridge_protocol.specs import QNN, ProviderSpec, SessionSpec

SECONDS_FOR_ALL = 30.0

MODELS = Path(__file__).parents[1] / "models"
HOST = (sys.executable, "-I", "-u", "-X", "utf8", "-m", "qnnbridge_host")
DIES = (sys.executable, "-c", "import os; os._exit(7)")
HANGS = (sys.executable, "-c", "import time; time.sleep(300)")


def order(command: tuple[str, ...], **fields: Any) -> WorkOrder:
    return WorkOrder(command, fields.pop("stop", StopSignal()), ModelSource("/m.onnx", None, "f" * 64), **fields)


# --- the command line ---


def test_a_worker_is_started_with_the_command_of_its_host() -> None:
    argv = ["/py", "-I", "-m", "qnnbridge_host", "--parent", "1", "--worker", "[]"]
    assert default_command(argv) == ("/py", "-I", "-m", "qnnbridge_host", "--parent", str(os.getpid()))
    assert default_command(["/py", "-m", "h", "--parent=1"]) == ("/py", "-m", "h", "--parent", str(os.getpid()))
    assert default_command(["/py", "fake.py", "--mine"]) == ("/py", "fake.py", "--mine")
    assert default_command()[0] == sys.executable


def test_a_given_command_overrides_that_of_the_host() -> None:
    given = ["/usr/bin/qemu", "/py", "-m", "qnnbridge_host"]
    assert worker_command(json.dumps(given)) == (*given, "--parent", str(os.getpid()))


# --- stop signals ---


def test_a_stop_calls_the_handlers_of_running_jobs_once_and_of_no_finished_job() -> None:
    stop, told = StopSignal(), []
    with stop.calling(lambda: told.append("done")):
        pass
    with stop.calling(lambda: told.append("working")):
        stop.check()
        stop.stop()
        stop.stop()
    with stop.calling(lambda: told.append("late")):
        pass
    assert told == ["working", "late"]
    with pytest.raises(Cancelled):
        stop.check()


# --- processes ---


@pytest.mark.process
def test_a_worker_answers_and_exits_normally() -> None:
    worker = Worker(order(HOST))
    with worker.running():
        reply = worker.call({"op": "session.close", "session": 0})
        assert reply.header == {}
        assert worker.versions["qnnbridge"]
    assert worker.exit_code == 0


@pytest.mark.process
def test_a_worker_that_crashes_is_reported_with_its_raw_exit_code_and_its_model(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(WorkerDied, match=r"compiles m\.onnx ended unexpectedly") as caught:
        with Worker(order(DIES, request=41)).running():
            pass
    details = caught.value.details
    assert (details["exit_code"], details["label"], details["request"]) == (7, "m.onnx", 41)
    assert details["fingerprint"] == "f" * 64
    assert "\n@qnnbridge end 41\n" in capfd.readouterr().err, "the end of its last words"
    assert caught.value.retry == "safe"


@pytest.mark.process
def test_a_worker_is_killed_when_its_request_is_cancelled() -> None:
    stop = StopSignal()
    threading.Timer(0.2, stop.stop).start()
    begun = time.monotonic()
    worker = Worker(order(HANGS, stop=stop))
    with pytest.raises(Cancelled):
        with worker.running():
            pass
    assert time.monotonic() - begun < SECONDS_FOR_ALL
    assert worker.exit_code is None


@pytest.mark.process
def test_a_worker_is_killed_at_the_deadline() -> None:
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"m\.onnx was not compiled within 0\.3 s") as caught:
        with Worker(order(HANGS, deadline=time.monotonic() + 0.3, budget_s=0.3)).running():
            pass
    assert caught.value.state == "stopped"
    assert time.monotonic() - begun < SECONDS_FOR_ALL


@needs.linux
@pytest.mark.process
def test_a_worker_that_is_stopped_and_does_not_continue_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "STOPPED_LOOK_EVERY_S", 0.1)
    stops = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    worker = Worker(order(stops))
    with pytest.raises(HostHung, match=r"compiles m\.onnx was suspended and not resumed"):
        with worker.running():
            pass
    assert worker.pid is not None
    assert not psutil.pid_exists(worker.pid)


@pytest.mark.process
def test_a_worker_that_failed_leaves_no_thread_until_its_deadline() -> None:
    before = set(threading.enumerate())
    with pytest.raises(WorkerDied):
        with Worker(order(DIES, deadline=time.monotonic() + 3600)).running():
            pass
    with pytest.raises(UnknownOperation):
        with Worker(order(HOST, deadline=time.monotonic() + 3600)).running() as worker:
            worker.call({"op": "no such operation"})
    until = time.monotonic() + SECONDS_FOR_ALL
    while _begun_since(before) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _begun_since(before)


def _begun_since(before: set[threading.Thread]) -> list[str]:
    names = ("qnnbridge worker watch", "Thread-")
    return [t.name for t in threading.enumerate() if t.name.startswith(names) and t not in before]


@needs.linux
@pytest.mark.process
def test_a_crash_in_a_single_run_has_the_phase_running() -> None:
    """A request that is alone in a host does not declare its run."""
    serves_nothing = (
        "import os, sys; sys.argv = ['host']\n"
        "from qnnbridge_host import stdio_guard\nfrom qnnbridge_host.serve import handlers\n"
        "handlers.HostHandlers.handle = lambda *_: os._exit(9)\n"
        "from qnnbridge_host.start import main\n"
        "main(*stdio_guard.claim())"
    )
    with pytest.raises(WorkerDied) as caught:
        with Worker(order((sys.executable, "-c", serves_nothing))).running() as worker:
            worker.call({"op": "session.run", "session": 1, "outputs": None, "inputs": []})
    assert (caught.value.details["exit_code"], caught.value.details["phase"]) == (9, "running")


@needs.linux
@needs.a_host_python
@pytest.mark.process
def test_a_worker_ends_with_its_host(tmp_path: Path) -> None:
    """The host is killed while its worker compiles, as if the host crashed."""
    host, found = Worker(order((*HOST, "--parent", str(os.getpid())))), []

    def kill_the_host() -> None:
        assert host.pid is not None
        process = psutil.Process(host.pid)
        deadline = time.monotonic() + SECONDS_FOR_ALL
        while not found and time.monotonic() < deadline:
            found.extend(process.children())
            time.sleep(0.005)
        process.kill()

    spec = SessionSpec(str(MODELS / "mul_1.onnx"), (ProviderSpec(QNN),))
    job = {"spec": spec.to_wire(), "output": f"{tmp_path}/"}
    with pytest.raises(WorkerDied):
        with host.running():
            threading.Thread(target=kill_the_host, daemon=True).start()
            host.call({"op": "model.compile", "jobs": [job], "folder": str(tmp_path)})
    assert found, "it had a worker"
    _, alive = psutil.wait_procs(found, timeout=SECONDS_FOR_ALL)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert not list(tmp_path.glob("*.onnx"))


def test_no_worker_is_started_after_the_deadline_or_a_cancellation() -> None:
    stop = StopSignal()
    stop.stop()
    with pytest.raises(Cancelled):
        with Worker(order(("/nowhere",), stop=stop)).running():
            pass
    with pytest.raises(DeadlineExceeded) as caught:
        with Worker(order(("/nowhere",), deadline=time.monotonic())).running():
            pass
    assert caught.value.state == "not-started"


@pytest.mark.process
def test_a_missing_program_is_an_error_of_the_start() -> None:
    with pytest.raises(HostStartFailed, match="could not be started"):
        with Worker(order((os.path.join(os.sep, "nowhere", "python"),))).running():
            pass


def test_progress_is_reported_immediately_and_repeatedly() -> None:
    told: list[float] = []
    with ticking(told.append, every_s=0.01):
        deadline = time.monotonic() + SECONDS_FOR_ALL
        while len(told) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert told[0] == 0.0
    assert told == sorted(told)
