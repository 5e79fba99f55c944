"""Neither application nor host outlives the other, forks work or raise an explained error, and every exit is clean."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from lab.faultlab.orphans import END_TIMEOUT_S, STATES, kill_an_application
from tests import needs
from tests.fakes.hosts import fake_host, script
from tests.fakes.later import until

import qnnbridge
from qnnbridge import errors
from qnnbridge_os.processes import wait_readable

X = np.arange(4, dtype=np.float32)
ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
# A call sleeps three times as long; ending a host step by step takes seven seconds on an idle machine.
CLOSE_TIMEOUT_S = 20.0
TIMES = 3


# --- end of the application --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", needs.some(STATES))
def test_a_host_ends_with_its_killed_application_every_time(state: str, capsys: pytest.CaptureFixture[str]):
    """Cover rows 10 and 11 of the fault table: ``kill -9`` while idle, in run, in create, with the GIL held, with a
    sibling.
    """
    ended = [kill_an_application(state) for _ in range(TIMES)]
    assert None not in ended, f"the host outlived its application by more than {END_TIMEOUT_S:g} s"
    with capsys.disabled():
        print(f"\n{state}: host gone after {max(s for s in ended if s is not None) * 1000:.0f} ms at most")


def run_application(program: str, *, timeout_s: float = WAIT_S) -> tuple[int, str, str, bool]:
    """Run a program that prints its host's pid first.

    Return its exit code, further output, stderr, and whether the host ended.
    """
    prologue = (
        "import os, sys, threading, atexit\nimport numpy as np\nimport qnnbridge\n"
        "from tests.fakes.hosts import fake_host, script\nX = np.arange(4, dtype=np.float32)\n"
    )
    done = subprocess.Popen(
        [sys.executable, "-c", prologue + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout is not None
    pid = int(done.stdout.readline())
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        watch = None
    out, err = done.communicate(timeout=timeout_s)
    ended = watch is None or wait_readable(watch, END_TIMEOUT_S)
    if watch is not None:
        os.close(watch)
    return done.returncode, out, err, ended


START = "host = fake_host()\nprint(host.info.pid, flush=True)\n"
IN_A_RUN = (
    "import tempfile, time\n"
    "began = tempfile.mktemp()\n"
    "session = qnnbridge.InferenceSession(script(on_run=['note:' + began, 'sleep:60']), host=host)\n"
    "{thread}.start()\n"
    "while not os.path.exists(began): time.sleep(0.002)\n"
    "os.unlink(began)\n"
)
DAEMON = "threading.Thread(target=lambda: session.run(None, {'x': X}), daemon=True)"

ENDINGS = {
    "end of the program": ("", 0, ""),
    "sys.exit": ("sys.exit(7)", 7, ""),
    "exception": ("raise ValueError('mine')", 1, "ValueError: mine"),
    "os._exit": ("os._exit(9)", 9, ""),
    "exception in atexit": ("atexit.register(lambda: 1 / 0)", 0, "ZeroDivisionError"),
    "a session is left in a global": (
        "s = qnnbridge.InferenceSession(script(), host=host); s.run(None, {'x': X})",
        0,
        "",
    ),
    "used in atexit": (
        "s = qnnbridge.InferenceSession(script(scale=3), host=host)\n"
        "atexit.register(lambda: print(s.run(None, {'x': X})[0][1]))",
        0,
        "",
    ),
    "started in atexit": (
        "def late():\n"
        "    with fake_host() as other: print(qnnbridge.InferenceSession(script(), host=other).run(None, {'x': X})[0][1])\n"
        "atexit.register(late)",
        0,
        "",
    ),
    "in the middle of a call": (IN_A_RUN.format(thread=DAEMON), 0, ""),
    "before a thread's next call": (
        "import time\n"
        "s = qnnbridge.InferenceSession(script(), host=host)\n"
        "closed, close = threading.Event(), host.close\n"
        "def slow(): close(), closed.set(), time.sleep(0.3)\n"
        "host.close = slow\n"
        "def next_call(): closed.wait(), s.run(None, {'x': X})\n"
        "threading.Thread(target=next_call, daemon=True).start()",
        0,
        "",
    ),
    "in the middle of a creation": (
        IN_A_RUN.format(thread=DAEMON)
        .replace("session = ", "model = ")
        .replace("on_run", "on_create")
        .replace(
            "qnnbridge.InferenceSession(script(on_create=['note:' + began, 'sleep:60']), host=host)",
            "script(on_create=['note:' + began, 'sleep:60'])",
        )
        .replace("session.run(None, {'x': X})", "qnnbridge.InferenceSession(model, host=host)"),
        0,
        "",
    ),
}


@pytest.mark.parametrize("ending", needs.some(ENDINGS))
def test_an_application_may_end_in_any_way_and_keeps_its_exit_code(ending: str):
    """Cover row 61 of the fault table in docs/dev/verification.md."""
    program, expected, says = ENDINGS[ending]
    begin = time.monotonic()
    code, out, err, host_ended = run_application(START + program)
    assert code == expected, err
    assert says in err
    assert "Fatal Python error" not in err
    assert host_ended
    assert time.monotonic() - begin < WAIT_S
    if not says:
        assert "Traceback" not in err, err
    if ending.endswith("in atexit") and not says:
        assert out.strip() in ("3.0", "2.0")


def test_a_host_that_was_killed_does_not_disturb_the_exit_of_the_application():
    code, _, err, _ = run_application(START + "os.kill(host.info.pid, 9)")
    assert (code, err) == (0, "")


# --- forks ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_session_works_in_a_fork_with_its_own_host(no_leaks):
    """Cover row 58 of the fault table in docs/dev/verification.md."""
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        parents = host.info.pid
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
                assert session.generation == 2
                assert host.info.pid != parents
                session.close()
                host.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert host.stats.generation == 1


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_calls_does_not_disturb_them(no_leaks):
    """Cover row 58 of the fault table: the child copies locks that other threads hold, and the parent must not be
    affected.
    """
    with fake_host() as host, ThreadPoolExecutor(4) as pool:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        stop = threading.Event()
        calls = [0] * 3

        def work(number: int) -> None:
            while not stop.is_set():
                assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
                calls[number] += 1

        workers = [pool.submit(work, number) for number in range(len(calls))]
        until(lambda: all(calls))
        before = sum(calls)
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    assert np.array_equal(session.run(None, {"x": X}, timeout=WAIT_S)[0], X * 3)
                    host.close()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        until(lambda: sum(calls) > before)
        stop.set()
        for worker in workers:
            worker.result(WAIT_S)
        assert host.stats.generation == 1


def test_a_pickled_session_is_recreated_in_another_process(tmp_path: Path):
    """Cover row 58 of the fault table: behave as spawned workers of multiprocessing."""
    model = tmp_path / "model"
    model.write_bytes(script(scale=3))
    with fake_host() as host:
        session = qnnbridge.InferenceSession(model, host=host)
        pickled = pickle.dumps(session)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    (tmp_path / "pickled").write_bytes(pickled)
    program = (
        "import pickle, sys, numpy as np, qnnbridge._host\n"
        "from tests.fakes.hosts import fake_host\n"
        "from qnnbridge import _host\n_host._default = fake_host()\n"
        f"session = pickle.load(open({str(tmp_path / 'pickled')!r}, 'rb'))\n"
        "print(session.run(None, {'x': np.ones(2, np.float32)})[0].tolist(), session.host.stats.generation)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=WAIT_S)
    assert ran.stdout.strip() == "[3.0, 3.0] 1", ran.stderr


# --- closing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("npu", [True, False])
def test_closing_the_host_during_many_calls_ends_each_with_its_result_or_as_closed(npu: bool, no_leaks):
    """Cover row 59 of the fault table in docs/dev/verification.md."""
    with ThreadPoolExecutor(32) as pool:
        host = fake_host()
        sessions = [qnnbridge.InferenceSession(script(scale=n + 2, npu=npu), host=host) for n in range(4)]
        half = threading.Event()
        done: list[int] = []

        def work(number: int) -> str:
            factor = np.float32(number % 4 + 2)
            for _ in range(1000):
                try:
                    assert np.array_equal(sessions[number % 4].run(None, {"x": X})[0], X * factor)
                except errors.Closed:
                    return "closed"
                done.append(number)
                if len(done) > 500:
                    half.set()
            return "finished"

        workers = [pool.submit(work, number) for number in range(32)]
        assert half.wait(WAIT_S)
        begin = time.monotonic()
        host.close()
        assert time.monotonic() - begin < CLOSE_TIMEOUT_S
        assert {worker.result(WAIT_S) for worker in workers} <= {"closed", "finished"}
        assert host.stats.crashes == 0


def test_closing_does_not_wait_for_a_call_that_does_not_end(tmp_path: Path, no_leaks):
    began = tmp_path / "began"
    with ThreadPoolExecutor(2) as pool:
        host = fake_host()
        session = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", "sleep:60"]), host=host)
        call = pool.submit(session.run, None, {"x": X})
        while not began.exists():
            threading.Event().wait(0.002)
        begin = time.monotonic()
        host.close()
        assert time.monotonic() - begin < CLOSE_TIMEOUT_S
        assert isinstance(call.exception(WAIT_S), errors.Closed)
        with pytest.raises(errors.Closed):
            session.run(None, {"x": X})


def test_closing_a_session_during_its_calls_ends_each_with_its_result_or_as_closed():
    """Cover row 59 of the fault table in docs/dev/verification.md."""
    with fake_host() as host, ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            session = qnnbridge.InferenceSession(script(scale=3), host=host)

            def work(session: qnnbridge.InferenceSession = session) -> None:
                while True:
                    try:
                        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
                    except errors.Closed:
                        return

            workers = [pool.submit(work) for _ in range(4)]
            session.close()
            for worker in workers:
                worker.result(WAIT_S)
        assert host.stats.generation == 1


def test_sessions_that_are_dropped_anywhere_are_released_with_the_next_call(tmp_path: Path):
    """Cover row 62 of the fault table: also when the garbage collector runs in the middle of a send."""

    class Cycle:
        def __init__(self, session: qnnbridge.InferenceSession) -> None:
            self.session = session
            self.me = self

    thresholds = gc.get_threshold()
    with fake_host() as host:
        keeper = qnnbridge.InferenceSession(script(scale=3), host=host)
        try:
            gc.set_threshold(5)
            for n in range(40):
                Cycle(qnnbridge.InferenceSession(script(scale=n), host=host))
                assert np.array_equal(keeper.run(None, {"x": X})[0], X * 3)
        finally:
            gc.set_threshold(*thresholds)
        gc.collect()

        def released() -> bool:  # a thread of the bridge handles the last sessions a moment later
            keeper.run(None, {"x": X})
            return host.call({"op": "host.stats"}).header["sessions"] == 1

        until(released)
