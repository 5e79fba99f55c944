"""A crash of the host is explained: its phase, its model, and its cause."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.fakes.fair_clock import FairClock
from tests.fakes.hosts import dying_host, fake_host, script
from tests.fakes.later import until

import qnnbridge
from qnnbridge import errors
from qnnbridge._diagnosis import CrashReports
from qnnbridge._supervision.blame import Quarantine
from qnnbridge._supervision.restart_policy import RestartPolicy

X = np.arange(4, dtype=np.float32)
CLOSE_TIMEOUT_S = 10.0


def points() -> dict[str, float]:
    """Return the points of the quarantine by phase."""
    accounts = Quarantine()._read()
    return {account.phase: account.points for account in accounts.values()}


def test_a_crash_before_hello_is_a_failed_start_with_its_exit_code_and_output(no_leaks):
    """Cover row 1 of the fault table in docs/dev/verification.md."""
    with fake_host("--first=stderr:20", "--first=signal:9") as host:
        with pytest.raises(errors.HostStartFailed) as caught:
            host.start()
        text = str(caught.value)
        assert "before it was ready" in text
        assert "SIGKILL" in text
        details = caught.value.details
        assert details["exit"]["number"] == -signal.SIGKILL
        assert details["stderr_head"].startswith("\ufffd")
        assert caught.value.retry == "safe"
        assert Path(details["report"]).is_file()


def test_a_failed_start_is_tried_again_by_the_next_call_after_its_delay(tmp_path: Path):
    """Cover row 1 of the fault table: the restart policy tries again without any action of the application."""
    with dying_host("host:HELLO_OK:prefix", tmp_path / "once", restart=RestartPolicy(jitter=lambda: 0.5)) as host:
        with pytest.raises(errors.HostStartFailed):
            qnnbridge.InferenceSession(script(), host=host, retry=0)
        begin = time.monotonic()
        session = qnnbridge.InferenceSession(script(scale=3), host=host, retry=0)
        assert time.monotonic() - begin > 0.1
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)


@pytest.mark.parametrize(
    ("action", "number", "name"),
    [
        ("segv", -signal.SIGSEGV, "SIGSEGV"),
        ("abort", -signal.SIGABRT, "SIGABRT"),
        (f"signal:{int(signal.SIGILL)}", -signal.SIGILL, "SIGILL"),
        (f"signal:{int(signal.SIGFPE)}", -signal.SIGFPE, "SIGFPE"),
        (f"signal:{int(signal.SIGBUS)}", -signal.SIGBUS, "SIGBUS"),
        ("exit:127", 127, "127"),
        ("exit:0", 0, "exit code 0"),
    ],
)
def test_a_crash_in_native_code_names_phase_model_and_cause_and_the_next_model_works(
    action: str, number: int, name: str, tmp_path: Path, no_leaks
):
    """Cover row 4 of the fault table: only that model gets a point."""
    path = tmp_path / "bad model.onnx"
    path.write_bytes(script(on_create=[action]))
    with fake_host() as host:
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        with pytest.raises(errors.HostCrashed) as caught:
            qnnbridge.InferenceSession(path, host=host, retry=0)
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
        text = str(caught.value)
        assert "while creating a session of bad model.onnx" in text
        assert name in text
        assert caught.value.cause
        details = caught.value.details
        assert details["exit"]["number"] == number
        assert details["phase"] == "creating"
        assert [suspect["model"] for suspect in details["suspects"]] == ["bad model.onnx"]
        assert details["generation"] == 1
        report = json.loads(Path(details["report"]).with_suffix(".json").read_text())
        assert report["exit"]["number"] == number
        assert host.stats.crashes == 1
    assert points() == {"creating": 1.0}


CPU = "CPUExecutionProvider"


@pytest.mark.parametrize(
    ("what", "keywords"),
    [
        ({"on_create": ["segv"]}, {"providers": [CPU]}),
        ({"on_run": ["segv"]}, {"providers": [CPU]}),
        ({"on_run": ["segv"], "npu": False}, {"fallback": "cpu"}),
    ],
    ids=["created for the CPU", "run for the CPU", "QNN took no node"],
)
@pytest.mark.filterwarnings("ignore::qnnbridge.CpuFallbackWarning")
def test_a_crash_on_the_cpu_is_not_blamed_on_qnn(what: dict[str, Any], keywords: dict[str, Any], no_leaks):
    with fake_host() as host, pytest.raises(errors.HostCrashed) as caught:
        session = qnnbridge.InferenceSession(script(**what), host=host, retry=0, **keywords)
        session.run(None, {"x": X})
    assert "which runs on the CPU: QNN was not involved" in (caught.value.cause or "")
    assert "CPU provider" not in (caught.value.fix or "")
    assert [suspect["without_qnn"] for suspect in caught.value.details["suspects"]] == [True]


@pytest.mark.parametrize(
    ("what", "keywords"),
    [
        ({"on_run": ["segv"]}, {}),
        ({"on_create": ["segv"], "npu": False}, {"fallback": "cpu"}),
    ],
    ids=["run on QNN", "asked of QNN"],
)
def test_a_crash_with_qnn_involved_is_blamed_on_qnn(what: dict[str, Any], keywords: dict[str, Any], no_leaks):
    with (
        fake_host() as host,
        pytest.raises(errors.HostCrashed, match=r"QNN (or the NPU driver )?crashed") as caught,
    ):
        session = qnnbridge.InferenceSession(script(**what), host=host, retry=0, **keywords)
        session.run(None, {"x": X})
    assert [suspect["without_qnn"] for suspect in caught.value.details["suspects"]] == [False]


@pytest.mark.filterwarnings("ignore::qnnbridge.CpuFallbackWarning")
def test_a_fast_call_that_crashes_on_the_cpu_is_not_blamed_on_qnn(tmp_path: Path, no_leaks):
    gate = tmp_path / "gate"
    gate.touch()
    model = script(on_run=[f"note:{tmp_path / 'runs'}", f"wait:{gate}"])
    with fake_host() as host, ThreadPoolExecutor(1) as pool:
        session = qnnbridge.InferenceSession(model, host=host, retry=0, providers=[CPU])
        for _ in range(5):
            session.run(None, {"x": X})
        assert host.stats.shared_calls > 0, "they go by a channel"
        gate.unlink()
        running = pool.submit(session.run, None, {"x": X})
        while len((tmp_path / "runs").read_text()) < 6:
            time.sleep(0.01)
        os.kill(host.info.pid, signal.SIGSEGV)
        with pytest.raises(errors.HostCrashed, match="which runs on the CPU: QNN was not involved"):
            running.result()


def test_a_crash_by_an_illegal_instruction_names_the_processor(no_leaks):
    with fake_host() as host, pytest.raises(errors.HostCrashed) as caught:
        model = script(on_run=[f"signal:{int(signal.SIGILL)}"])
        qnnbridge.InferenceSession(model, host=host, retry=0).run(None, {"x": X})
    assert "an instruction that the processor, or the emulator that runs it, does not have" in str(caught.value)
    assert os.uname().machine in (caught.value.cause or "")
    assert caught.value.details["processor"] in (caught.value.cause or "")
    report = json.loads(Path(caught.value.details["report"]).with_suffix(".json").read_text())
    assert report["processor"] == caught.value.details["processor"]


def test_a_kill_from_outside_is_not_blamed_on_a_model():
    """Cover row 4 of the fault table: SIGKILL alone proves nothing about the model."""
    with fake_host() as host:
        with pytest.raises(errors.HostCrashed, match="SIGKILL"):
            qnnbridge.InferenceSession(script(on_create=["signal:9"]), host=host, retry=0)
    assert points() == {}


def test_a_crash_under_a_dynamic_option_is_blamed_on_the_option(no_leaks):
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(scale=3, on_dynamic=["abort"]), host=host, retry=0)
        with pytest.raises(errors.HostCrashed) as caught:
            session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
        assert "while running" in str(caught.value)
        assert "dynamic option" in str(caught.value.cause)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert points() == {"running": 1.0}


@pytest.mark.parametrize("action", ["segv", "abort", "signal:9"])
def test_a_crash_of_the_host_at_import_is_explained(action: str):
    with fake_host(f"--import={action}") as host:
        with pytest.raises((errors.HostCrashed, errors.HostStartFailed)) as caught:
            qnnbridge.InferenceSession(script(), host=host, retry=0)
        assert "while importing ONNX Runtime" in str(caught.value)
        assert caught.value.details["phase"] == "importing"
        assert caught.value.cause


def test_the_text_of_a_python_failure_at_import_reaches_the_caller_and_the_host_survives():
    with fake_host("--import=raise:py.RuntimeError=no such library") as host:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no such library"):
                qnnbridge.InferenceSession(script(), host=host)
        assert host.stats.generation == 1


@pytest.mark.parametrize("when", ["client:GOODBYE:prefix", "client:GOODBYE:whole", "host:GOODBYE:prefix"])
def test_a_crash_after_the_work_is_done_is_not_an_error(
    when: str, tmp_path: Path, no_leaks, caplog: pytest.LogCaptureFixture
):
    """Cover row 7 of the fault table: the crash is not an error, but a warning."""
    host = dying_host(when, tmp_path / "once")
    session = qnnbridge.InferenceSession(script(scale=3), host=host)
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    clock = FairClock()
    with caplog.at_level("WARNING", "qnnbridge"):
        host.close()
    assert clock.seconds < CLOSE_TIMEOUT_S
    assert (tmp_path / "once").exists(), "it did die there"
    assert host.stats.crashes == 0
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "died after its work was done" in warning
    assert "SIGKILL" in warning


def test_a_host_that_exits_normally_is_not_logged(no_leaks, caplog: pytest.LogCaptureFixture):
    with caplog.at_level("WARNING", "qnnbridge"), fake_host() as host:
        qnnbridge.InferenceSession(script(), host=host).run(None, {"x": X})
        host.restart()
        qnnbridge.InferenceSession(script(), host=host).run(None, {"x": X})
    assert [record.getMessage() for record in caplog.records] == []


def test_only_a_host_that_crashed_is_reported_as_a_crash(no_leaks):
    """A planned or requested end is not a crash, but a kill by another process is."""
    with fake_host() as host:
        slow = qnnbridge.InferenceSession(script(on_run=["sleep:60"]), host=host)
        state = "not-started"
        while state == "not-started":  # until the thread runs, on a busy machine
            with pytest.raises(errors.DeadlineExceeded) as caught:
                slow.run(None, {"x": X}, timeout=0.2, on_deadline="kill")
            state = caught.value.state
        assert state == "stopped"
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        host.restart()
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
        assert host.stats.generation == 3
        assert (CrashReports().summaries(), host.stats.crashes) == ([], 0)
        (ended,) = CrashReports().ended.summaries()
        assert "deadline" in ended.cause
        host.supervisor.running.kill("its work is not wanted any more")  # as a compilation does
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
        assert (CrashReports().summaries(), host.stats.crashes) == ([], 0)
        os.kill(host.info.pid, signal.SIGKILL)  # idle
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
        (crash,) = CrashReports().summaries()
        assert "SIGKILL" in crash.exit
        assert host.stats.crashes == 1
    assert len(CrashReports().summaries()) == 1, "closing is no crash"


def test_a_program_that_is_not_a_host_is_named_as_such_and_not_as_a_crash(no_leaks):
    """A path is mistyped: with the right path the host starts."""
    program = shutil.which("true")
    assert program is not None
    with qnnbridge.Host(python=program) as host:
        with pytest.raises(errors.HostStartFailed) as caught:
            host.start()
        assert "is not a Python interpreter" in str(caught.value.cause)
        assert (CrashReports().summaries(), host.stats.crashes) == ([], 0)
        (ended,) = CrashReports().ended.summaries()
        assert caught.value.details["report"] == str(ended.path)
    with fake_host("--first=segv") as host:
        with pytest.raises(errors.HostStartFailed, match="SIGSEGV"):
            host.start()
        assert len(CrashReports().summaries()) == 1, "a native death before HELLO is one"


def test_a_session_that_crashes_the_host_when_it_is_closed_raises_no_error(no_leaks):
    with fake_host() as host:
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        qnnbridge.InferenceSession(script(on_close=["segv"]), host=host).close()
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
    host = fake_host()
    qnnbridge.InferenceSession(script(on_close=["segv"]), host=host)
    host.close()


def test_text_that_the_host_prints_never_reaches_the_wire(caplog: pytest.LogCaptureFixture):
    """Cover row 14 of the fault table: print, C's puts, a raw write and a child process; before HELLO, at import,
    in create and in run.
    """
    caplog.set_level(logging.DEBUG, logger="qnnbridge.host")
    with fake_host("--first=print:first", "--import=print:import") as host:
        session = qnnbridge.InferenceSession(script(on_create=["print:create"], on_run=["print:run"]), host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
        assert host.supervisor.running.channel.preamble == b""
        for where in ("first", "import", "create", "run"):
            for how in ("", "native ", "raw ", "child "):
                until(lambda said=f"{how}{where}": said in caplog.text)  # another thread reads the line


def test_ten_megabytes_on_stderr_before_hello_block_nothing_and_both_ends_are_kept():
    """Cover row 40 of the fault table: no newline, invalid UTF-8."""
    with fake_host("--first=stderr:10485760", "--import=segv") as host:
        with pytest.raises((errors.HostCrashed, errors.HostStartFailed)) as caught:
            qnnbridge.InferenceSession(script(), host=host, retry=0)
        details = caught.value.details
        assert len(details["stderr_head"]) == 16 * 1024
        assert "Fatal Python error: Segmentation fault" in details["stderr_tail"]
        assert "SIGSEGV" in str(caught.value)


def test_a_host_that_has_closed_its_stderr_continues():
    """Cover row 41 of the fault table in docs/dev/verification.md."""
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(on_create=["close_stderr"]), host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
        assert np.array_equal(qnnbridge.InferenceSession(script(scale=3), host=host).run(None, {"x": X})[0], X * 3)
        assert host.stats.generation == 1


def test_a_crash_report_that_cannot_be_written_changes_nothing_else(monkeypatch: pytest.MonkeyPatch):
    """Cover row 41 of the fault table: a full disk, represented by a folder that is not a folder."""
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", "/proc/no/such/folder")
    with fake_host() as host:
        poison = qnnbridge.InferenceSession(script(on_run=["segv"]), host=host)
        with pytest.raises(errors.HostCrashed) as caught:
            poison.run(None, {"x": X})
        assert "SIGSEGV" in str(caught.value)
        assert caught.value.details["report"] is None
        with pytest.raises(errors.ModelQuarantined):
            poison.run(None, {"x": X})


def test_a_killed_host_leaves_nothing_in_the_process_table():
    with fake_host() as host:
        host.start()
        pid = host.info.pid
        os.kill(pid, signal.SIGKILL)
        session = qnnbridge.InferenceSession(script(), host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
        assert not psutil.pid_exists(pid)


def test_a_model_that_runs_during_kills_from_outside_is_not_blamed_for_them():
    """Random kills hit the same model repeatedly; only a lack of memory would be evidence against the model."""
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(scale=3, on_run=["signal:9"]), host=host, retry=0)
        for _ in range(5):
            with pytest.raises(errors.HostCrashed, match="SIGKILL") as caught:
                session.run(None, {"x": X})
            assert [suspect["phase"] for suspect in caught.value.details["suspects"]] == ["running"]
    assert points() == {}
