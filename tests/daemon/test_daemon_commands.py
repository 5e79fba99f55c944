"""`qnnbridge host` and `qnnbridge top` with a real daemon and a real NPU host."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from filelock import FileLock
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from typer.testing import CliRunner

import qnnbridge
from qnnbridge._daemon.discovery import LOCK_NAME
from qnnbridge_daemon.main import EXIT_RUNNING
from qnnbridge_protocol.errors import HostStartFailed
from qnnbridge_tools import reporting
from qnnbridge_tools.cli import app
from qnnbridge_tools.doctor.machine import ends_with_job, look_for_daemon
from qnnbridge_tools.host import link
from tests import needs
from tests.contract.small_models import CPU, counting_loop, turns_that_take
from tests.fakes.stopping import stop_other

MODEL = Path(__file__).parents[1] / "models" / "sigmoid.onnx"
COMMAND = [sys.executable, "-m", "qnnbridge_tools"]
# Timeout that only a defect reaches.
GRACE_S = 30.0

# Duration of a call that must still run while the test does other things.
CALL_S = 3.0

pytestmark = needs.posix


@pytest.fixture(autouse=True)
def runtime(private_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate runtime folder for each test; a daemon in it ends with the test."""
    folder = private_temporary_folder / "run"
    monkeypatch.setenv("QNNBRIDGE_RUNTIME_DIR", str(folder))
    yield folder
    folder.chmod(0o700) if folder.exists() else None
    # A second daemon that was started in vain may replace the one that is stopped.
    while link.is_running():
        told("host", "stop", "--drain", "0")
    for name in ("daemon.json", "daemon.sock", LOCK_NAME):
        (folder / name).unlink(missing_ok=True)
    if folder.exists():
        folder.rmdir()


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def told(*arguments: str, code: int = 0) -> str:
    got, out, err = run(*arguments)
    assert got == code, out + err
    return out if code in (0, reporting.EXIT_BAD_INPUT) and out else out + err


def document(*arguments: str, code: int = 0) -> Any:
    got, out, err = run(*arguments, "--json")
    assert got == code, out + err
    return json.loads(out)


def start(*options: str) -> dict[str, Any]:
    found = document("host", "start", *options)
    assert found["started"] is True
    return dict(found["daemon"])


def session(host: qnnbridge.Host | None = None) -> qnnbridge.InferenceSession:
    return qnnbridge.InferenceSession(MODEL, providers=["CPUExecutionProvider"], host=host or connect())


def connect() -> qnnbridge.Host:
    return qnnbridge.connect(start=False)


def call(opened: qnnbridge.InferenceSession) -> None:
    (got,) = opened.run(None, {"x": np.zeros((3, 4, 5), np.float32)})
    assert np.all(np.asarray(got) == 0.5)


def wait_for_end(pid: int) -> None:
    if psutil.pid_exists(pid):
        try:
            psutil.Process(pid).wait(GRACE_S)
        except psutil.NoSuchProcess:
            pass


# --- no daemon ---


@pytest.mark.parametrize(
    "command", [("host", "status"), ("host", "metrics"), ("host", "restart"), ("top",), ("host",)]
)
def test_without_a_daemon_the_command_explains_how_to_start_one(command: tuple[str, ...]) -> None:
    code, out, err = run(*command)
    assert (code, out) == (reporting.EXIT_NO_DAEMON, "")
    assert "No qnnbridge daemon runs." in err
    assert "qnnbridge host start" in err
    assert "Traceback" not in err


def test_without_a_daemon_the_json_document_names_the_error() -> None:
    for command in (("host", "status"), ("top",)):
        error = document(*command, code=reporting.EXIT_NO_DAEMON)["error"]
        assert error["details"]["daemon_state"] == "none"


def test_stopping_a_daemon_that_does_not_run_succeeds() -> None:
    assert told("host", "stop") == "No daemon runs.\n"
    assert document("host", "stop") == {"stopped": False, "before": None}


# --- start, status, stop ---


def test_json_documents_list_the_clients_without_the_command_itself() -> None:
    start()
    for command in (("host", "status"), ("top",), ("host", "stop")):
        # A separate process, as for a user.
        ran = subprocess.run([*COMMAND, *command, "--json"], capture_output=True, text=True, check=True)
        found = json.loads(ran.stdout)
        assert found.get("before", found)["clients"] == []


def test_a_daemon_is_started_once_shown_and_stopped() -> None:
    daemon = start()
    again = document("host", "start")
    assert again["started"] is False
    assert again["daemon"]["pid"] == daemon["pid"]
    text = told("host", "status")
    assert f"pid {daemon['pid']}" in text
    assert daemon["endpoint"] in text
    assert "not running; starts with the first session" in text
    assert document("host", "status")["daemon"]["instance"] == daemon["instance"]
    assert told("host", "stop") == f"The daemon, pid {daemon['pid']}, has ended.\n"
    wait_for_end(daemon["pid"])
    assert run("host", "status")[0] == reporting.EXIT_NO_DAEMON


def test_commands_that_start_the_daemon_at_the_same_time_all_report_the_same_daemon() -> None:
    command = [*COMMAND, "host", "start", "--json"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    answers = [json.loads(process.communicate(timeout=2 * GRACE_S)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    assert len({answer["daemon"]["instance"] for answer in answers}) == 1
    assert sum(answer["started"] for answer in answers) == 1


def test_commands_that_stop_the_daemon_at_the_same_time_all_succeed() -> None:
    start()
    command = [*COMMAND, "host", "stop", "--json"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [json.loads(process.communicate(timeout=2 * GRACE_S)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), answers
    assert any(answer["stopped"] for answer in answers)
    assert run("host", "status")[0] == reporting.EXIT_NO_DAEMON


def test_a_daemon_that_ends_during_the_handshake_counts_as_not_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(self: qnnbridge.Host, timeout: float | None = None) -> None:
        raise qnnbridge.errors.HostCrashed("The qnnbridge daemon closed the connection.")

    monkeypatch.setattr(qnnbridge.Host, "start", closed)
    with pytest.raises(qnnbridge.errors.HostStartFailed) as caught:
        link.reach_soon(0.0)
    assert link.is_none(caught.value)


def test_options_reach_the_daemon_when_it_starts_and_later_options_do_not() -> None:
    start("--slots", "2", "--idle-unload", "77", "--idle-exit", "1000", "--max-sessions", "1")
    status = document("host", "status")
    assert status["queue"]["slots"] == 2
    assert (status["daemon"]["idle_unload_s"], status["daemon"]["idle_exit_s"]) == (77, 1000)
    code, _, err = run("host", "start", "--slots", "3")
    assert code == 0
    assert "qnnbridge host restart --daemon" in err
    with connect() as host:
        first = session(host)
        with pytest.raises(qnnbridge.errors.Busy, match="--max-sessions"):
            session(host)
        first.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ("start", "--slots", "0"),
        ("start", "--max-bytes", "lots"),
        ("start", "--idle-exit", "-1"),
        ("restart", "--slots", "2"),
        ("logs", "-n", "-1"),
        ("stop", "--drain", "soon"),
    ],
)
def test_invalid_arguments_are_refused_and_start_nothing(arguments: tuple[str, ...], runtime: Path) -> None:
    assert run("host", *arguments)[0] == 2
    assert not runtime.exists()


def test_a_daemon_that_cannot_start_reports_the_reason(runtime: Path) -> None:
    runtime.mkdir(mode=0o777)
    runtime.chmod(0o777)
    code, _, err = run("host", "start")
    assert code == reporting.EXIT_DAEMON_UNREACHABLE
    assert "other users have access to it" in err
    assert "chmod" in err


def test_stopping_names_the_ended_processes_and_waits_for_all_of_them() -> None:
    daemon = start()
    with connect() as host:
        opened = session(host)
        call(opened)
        npu_host = document("host", "status")["host"]["pid"]
        # The command's client is this very process; with a session it is listed as a client.
        text = told("host", "stop")
        assert f"pid {daemon['pid']}" in text
        assert f"NPU host, pid {npu_host}" in text
        assert f"({os.getpid()})" in text
        wait_for_end(daemon["pid"])
        assert not psutil.pid_exists(npu_host)


def test_running_calls_are_answered_before_the_daemon_ends() -> None:
    """Disable retries, which would hide a lost answer."""
    start()
    with connect() as host:
        opened = qnnbridge.InferenceSession(counting_loop(), providers=[CPU], host=host, retry=0)
        turns = turns_that_take(opened, CALL_S)
        is_seen = False
        while not is_seen:  # a call that ends before it is observed was too short for this machine
            results: list[Any] = []
            thread = threading.Thread(target=lambda out, n: out.append(outcome(opened, n)), args=(results, turns))
            thread.start()
            while not is_seen and thread.is_alive():
                is_seen = bool(document("host", "status")["queue"]["running"])
            assert is_seen or results == ["right"]
            turns *= 2
        told("host", "stop", "--drain", str(GRACE_S))  # the work takes longer on a busy machine
        thread.join(2 * GRACE_S)
    assert results == ["right"]


def outcome(opened: qnnbridge.InferenceSession, turns: int) -> str:
    try:
        (got,) = opened.run(None, {"n": np.array(turns, np.int64), "x": np.zeros(1, np.float32)})
    except qnnbridge.errors.BridgeError as error:
        return str(error)
    return "right" if got == [turns] else "wrong"


def test_a_killed_daemon_counts_as_not_running_and_the_next_one_starts() -> None:
    first = start()
    os.kill(first["pid"], signal.SIGKILL)
    wait_for_end(first["pid"])
    code, _, err = run("host", "status")
    assert code == reporting.EXIT_NO_DAEMON
    assert "no daemon listens at the endpoint" in err.lower()
    assert look_for_daemon(None).state == "stale"
    assert start()["instance"] != first["instance"]
    assert look_for_daemon(None).state == "runs"


# --- during work ---


def test_clients_and_models_are_shown_counted_and_exported() -> None:
    start()
    with connect() as host:
        opened = session(host)
        for _ in range(5):
            call(opened)
        status = told("host", "status")
        page = told("top")
        top = document("top")
        metrics = told("host", "metrics")
    for text in (status, page):
        assert re.search(rf"^\d+ +{os.getpid()} ", text, re.MULTILINE), text
        assert re.search(r"^sigmoid\.onnx +CPU +- +- +(in use|idle \d+ s) +1 +5 ", text, re.MULTILINE), text
    assert [model["calls"] for model in top["models"]] == [5]
    samples = {
        (one.name, one.labels.get("model", "")): one.value
        for family in text_string_to_metric_families(metrics)
        for one in family.samples
    }
    assert samples["qnnbridge_calls_total", ""] == 5
    assert samples["qnnbridge_model_calls_total", "sigmoid.onnx"] == 5
    assert samples["qnnbridge_call_latency_seconds_count", ""] == 5
    assert samples["qnnbridge_host_running", ""] == 1


def test_the_npu_host_is_replaced_without_a_lost_call() -> None:
    start()
    failures: list[BaseException] = []
    stop, called = threading.Event(), threading.Semaphore(0)
    with connect() as host:
        opened = session(host)

        def work() -> None:
            try:
                while not stop.is_set():
                    call(opened)
                    called.release()
            except BaseException as error:
                failures.append(error)
                called.release()

        thread = threading.Thread(target=work)
        thread.start()
        assert called.acquire(timeout=GRACE_S)
        before = document("host", "status")
        restarted = document("host", "restart")
        for _ in range(50):
            assert called.acquire(timeout=GRACE_S)
        stop.set()
        thread.join(GRACE_S)
        call(opened)
        after = document("host", "status")
    assert failures == []
    assert restarted["restarted"] is True
    assert after["daemon"]["pid"] == before["daemon"]["pid"]
    assert after["host"]["pid"] != before["host"]["pid"]
    assert (after["host"]["planned_restarts"], after["host"]["crashes"]) == (1, 0)
    assert after["totals"]["errors"] == 0


def test_the_whole_daemon_is_replaced_and_clients_find_the_new_one() -> None:
    first = start()
    with connect() as host:
        opened = session(host)
        call(opened)
        text = told("host", "restart", "--daemon", "--slots", "3")
        assert f"The daemon, pid {first['pid']}, has ended" in text
        call(opened)
        status = document("host", "status")
    assert status["daemon"]["instance"] != first["instance"]
    assert status["queue"]["slots"] == 3


def test_restarting_a_daemon_that_does_not_run_starts_it() -> None:
    assert document("host", "restart", "--daemon")["started"] is True


def test_restarting_an_npu_host_that_does_not_run_does_nothing() -> None:
    start()
    assert "No NPU host runs" in told("host", "restart")
    assert document("host", "restart")["restarted"] is False


def test_an_interpreter_that_cannot_run_the_host_is_refused_before_anything_is_started_or_ended() -> None:
    assert "/no/such/python" in told("host", "start", "--python", "/no/such/python", code=reporting.EXIT_BAD_INPUT)
    assert not link.is_running()
    first = start()
    for command in (("start",), ("restart", "--daemon"), ("run",)):
        said = told("host", *command, "--python", "/no/such/python", code=reporting.EXIT_BAD_INPUT)
        assert "does not exist" in said
    assert document("host", "status")["daemon"]["instance"] == first["instance"]


def test_a_relative_path_of_an_interpreter_is_resolved_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon itself is in another process."""
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o700)
    monkeypatch.chdir(tmp_path)
    start("--python", "./python")
    with connect() as host:
        call(session(host))


# --- an unusable daemon ---


def test_an_unreachable_daemon_is_distinguished_from_a_missing_one(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    lock = FileLock(runtime / LOCK_NAME)
    with lock:
        code, _, err = run("host", "status")
        assert code == reporting.EXIT_DAEMON_UNREACHABLE
        assert "There is a qnnbridge daemon, but it cannot be reached." in err
        assert "qnnbridge host logs" in err
    assert run("host", "status")[0] == reporting.EXIT_NO_DAEMON


@needs.linux
def test_the_command_does_not_wait_for_a_frozen_daemon_and_doctor_reports_it() -> None:
    daemon = start()
    stop_other(daemon["pid"])
    try:
        with ThreadPoolExecutor() as pool:  # each call has a timeout of five seconds
            looked = pool.submit(look_for_daemon, None)
            connected = pool.submit(qnnbridge.connect, timeout=5.0)
            code, _, err = run("host", "status")
            facts = looked.result(GRACE_S)
            with pytest.raises(HostStartFailed, match="could not be reached within 5 s") as caught:
                connected.result(GRACE_S)
    finally:
        os.kill(daemon["pid"], signal.SIGCONT)
    assert "did not answer" in str(caught.value)
    assert code == reporting.EXIT_DAEMON_UNREACHABLE, err
    assert "did not answer" in err
    assert (facts.state, facts.pid) == ("silent", daemon["pid"])


def test_the_error_for_a_daemon_of_another_release_names_the_side_to_upgrade() -> None:
    program = (
        "import qnnbridge_protocol as v; v.__version__ = '9.0.0';"
        "from qnnbridge_daemon.main import main; main(['--foreground'])"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "9.0.0" in process.stderr.readline()
        code, _, err = run("host", "status")
        facts = look_for_daemon(None)
        assert f"The daemon, pid {process.pid}, has ended" in told("host", "stop")
        process.communicate(timeout=GRACE_S)
        assert process.returncode == 0
    assert code == reporting.EXIT_DAEMON_OTHER_VERSION, err
    assert "9.0.0" in err
    assert "more than one minor version apart" in err
    assert (facts.state, facts.version, facts.fits) == ("runs", "9.0.0", False)


def test_doctor_reports_a_folder_that_other_users_may_use_as_untrusted(runtime: Path) -> None:
    start()
    runtime.chmod(0o755)
    facts = look_for_daemon(0x2000)
    assert (facts.state, facts.folder, facts.dies_with_us) == ("untrusted", str(runtime), True)
    assert "other users have access to it" in facts.said
    assert "chmod" in facts.fix
    runtime.chmod(0o700)
    assert look_for_daemon(None).state == "runs"


@pytest.mark.parametrize(
    ("flags", "ends"),
    [(None, False), (0, False), (0x2000, True), (0x2400, True), (0x2800, False), (0x3000, False), (0x0800, False)],
)
def test_a_windows_job_that_kills_its_processes_and_allows_no_breakaway_is_recognised(
    flags: int | None, ends: bool
) -> None:
    """KILL_ON_JOB_CLOSE 0x2000, BREAKAWAY_OK 0x800, SILENT_BREAKAWAY_OK 0x1000, others."""
    assert ends_with_job(flags) is ends


def test_doctor_reports_no_daemon_if_there_is_none(runtime: Path) -> None:
    facts = look_for_daemon(None)
    assert (facts.state, facts.folder, facts.version) == ("none", str(runtime), "")
    assert not runtime.exists()


# --- logs ---


def test_the_log_is_shown_whether_the_daemon_runs_or_not() -> None:
    code, _, err = run("host", "logs")
    assert (code, "There is no log" in err) == (1, True)
    daemon = start()
    path = told("host", "logs", "--path").strip()
    assert path == daemon["log_file"]
    assert f"process {daemon['pid']}" in told("host", "logs")
    told("host", "stop")
    assert "the daemon has ended" in told("host", "logs", "-n", "1")
    assert told("host", "logs", "-n", "0") == ""


def test_the_log_is_followed() -> None:
    start()
    with subprocess.Popen(
        [*COMMAND, "host", "logs", "-n", "1", "--follow"], stdout=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        tail.stdout.readline()  # existing lines: from here on new lines are followed
        with connect():
            line = tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        assert tail.wait(GRACE_S) == reporting.EXIT_INTERRUPTED
    assert f"process {os.getpid()}" in line


def test_following_the_log_ends_with_its_reader_even_if_nothing_is_logged() -> None:
    """Behave as `qnnbridge host logs --follow | head -1`."""
    start()
    command = [*COMMAND, "host", "logs", "-n", "1", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        tail.stdout.readline()
        tail.stdout.close()
        assert tail.wait(GRACE_S) == 1
        assert tail.stderr is not None
        assert tail.stderr.read() == ""


def test_the_log_shown_is_that_of_the_running_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager may have started the daemon with other folders than those of this shell."""
    daemon = start()
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", str(tmp_path / "another"))
    assert told("host", "logs", "--path").strip() == daemon["log_file"]
    assert f"process {daemon['pid']}" in told("host", "logs")


# --- in the foreground ---


def test_in_the_foreground_the_process_is_the_daemon_until_it_is_stopped() -> None:
    with subprocess.Popen([*COMMAND, "host", "run", "--slots", "3"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert f"process {process.pid}" in line
        status = document("host", "status")
        assert (status["daemon"]["pid"], status["queue"]["slots"]) == (process.pid, 3)
        second = subprocess.run([*COMMAND, "host", "run"], capture_output=True, text=True, timeout=GRACE_S)
        assert second.returncode == EXIT_RUNNING
        assert f"process {process.pid}" in second.stderr
        process.terminate()
        process.communicate(timeout=GRACE_S)
        assert process.returncode == 0
    assert run("host", "status")[0] == reporting.EXIT_NO_DAEMON


def test_a_daemon_runs_without_standard_streams_as_under_task_scheduler() -> None:
    program = (
        "import sys; sys.stdin = sys.stdout = sys.stderr = None; sys.argv = ['qnnbridge', 'host', 'run'];"
        "from qnnbridge_tools.cli import main; sys.exit(main())"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        while run("host", "status")[0]:
            assert process.poll() is None
        with connect() as host:
            call(session(host))
        told("host", "stop")
        assert process.wait(GRACE_S) == 0


# --- the live view ---


class Terminal:
    """A terminal in which `qnnbridge top` runs."""

    def __init__(self, *options: str) -> None:
        import fcntl
        import struct
        import termios

        self._ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 130, 0, 0))
        self.modes = termios.tcgetattr(self.theirs)
        self.process = subprocess.Popen(
            [*COMMAND, "top", "--interval", "0.2", *options],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**os.environ, "TERM": "xterm"},
        )
        self.text = ""

    def read_until(self, words: str) -> None:
        """Read output until the text occurs. The time limit of the test ends a program that never prints it."""
        self.text = ""
        while words not in self.text:
            self.text += os.read(self._ours, 65536).decode("utf-8", "replace")

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def end(self) -> int:
        """Return the exit code. Read the remaining output, since the program would block on it otherwise."""
        os.close(self.theirs)
        try:
            while os.read(self._ours, 65536):
                pass
        except OSError:
            pass  # state of a terminal in which no program runs
        os.close(self._ours)
        return self.process.wait(GRACE_S)


def test_the_live_view_obeys_keys_and_restores_the_terminal() -> None:
    import termios

    start()
    with connect() as host:
        opened = session(host)
        call(opened)
        terminal = Terminal()
        terminal.read_until("sigmoid.onnx")
        terminal.press("s")
        terminal.read_until("sorted by calls")
        call(opened)
        told("host", "restart")
        terminal.read_until("replaced 1")
        terminal.press("q")
        assert terminal.process.wait(GRACE_S) == 0
        assert termios.tcgetattr(terminal.theirs) == terminal.modes
        assert terminal.end() == 0


def test_the_live_view_waits_for_a_daemon_that_ends_and_ctrl_c_closes_it() -> None:
    start()
    terminal = Terminal("--sort", "name")
    terminal.read_until("sorted by name")
    told("host", "stop")
    terminal.read_until("Waiting for the daemon")
    daemon = start()
    terminal.read_until(f"pid {daemon['pid']}")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0
