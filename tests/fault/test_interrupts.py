"""Ctrl+C interrupts a call with KeyboardInterrupt; the host continues to run and can be used at once."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from lab.attack import interrupts
from lab.attack.checkpoints import Walker
from tests.needs import length

from qnnbridge_os.processes import wait_readable

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0

PROGRAM = """
import os, sys, tempfile, threading
import numpy as np
import qnnbridge
from tests.fakes.hosts import fake_host, script
X = np.arange(4, dtype=np.float32)
host = fake_host()
pid = host.info.pid
began, end = sys.argv[2] + "/began", sys.argv[2] + "/end"
other = qnnbridge.InferenceSession(script(scale=3), host=host)
what = {
    "run": lambda: slow.run(None, {"x": X}),
    "run with a deadline": lambda: slow.run(None, {"x": X}, timeout=60),
    "create": lambda: qnnbridge.InferenceSession(script(on_create=["note:" + began, "wait:" + end]), host=host),
    "follow": lambda: slow.run(None, {"x": X}),
}[sys.argv[1]]
slow = qnnbridge.InferenceSession(script(on_run=["note:" + began, "wait:" + end]), host=host)
def tell():
    while not os.path.exists(began) or host.stats.calls_in_flight < 1 + (sys.argv[1] == "follow"):
        threading.Event().wait(0.002)
    print("began", flush=True)
if sys.argv[1] == "follow":
    # Another thread reads; the main thread, which gets the interrupt, waits for it.
    reader = threading.Thread(target=lambda: slow.run(None, {"x": X}))
    reader.start()
    while not os.path.exists(began): threading.Event().wait(0.002)
threading.Thread(target=tell, daemon=True).start()
try:
    what()
except KeyboardInterrupt:
    print("interrupted", flush=True)
open(end, "w").close()
assert host.info.pid == pid, "the host was replaced"
assert other.run(None, {"x": X})[0].tolist() == [0, 3, 6, 9]
assert slow.run(None, {"x": X})[0].tolist() == [0, 2, 4, 6]
assert host.stats.generation == 1
if sys.argv[1] == "follow":
    reader.join()
host.close()
print("usable", flush=True)
"""


def begun(text: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program and wait until it reports that its call is running."""
    program = subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "began\n"
    return program


@pytest.mark.parametrize("where", ["run", "run with a deadline", "create", "follow"])
def test_an_interrupt_ends_only_the_call(where: str, tmp_path: Path):
    program = begun(PROGRAM, where, str(tmp_path))
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=WAIT_S)
    assert out.splitlines() == ["interrupted", "usable"], err
    assert program.returncode == 0
    assert err == ""


STARTS = """
import os, sys, threading, time
import numpy as np
import qnnbridge
from tests.fakes.hosts import fake_host, script
began, gate = sys.argv[3] + "/began", sys.argv[3] + "/gate"
host = fake_host(*(f"--{sys.argv[1]}={what}" for what in ("note:" + began, "wait:" + gate)))
def tell():
    while not os.path.exists(began): time.sleep(0.002)
    print("began", flush=True)
threading.Thread(target=tell, daemon=True).start()
try:
    qnnbridge.InferenceSession(script(), host=host)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    if sys.argv[2] == "ends":
        raise
open(gate, "w").close()
session = qnnbridge.InferenceSession(script(scale=3), host=host)
assert session.run(None, {"x": np.arange(4, dtype=np.float32)})[0].tolist() == [0, 3, 6, 9]
print("usable", host.stats.generation, os.path.getsize(began), flush=True)
"""


@pytest.mark.parametrize("then", ["goes on", "ends"])
@pytest.mark.parametrize("where", ["first", "import"])
def test_an_interrupt_during_the_start_of_the_host_leaves_no_orphan_process(
    where: str, then: str, tmp_path: Path
) -> None:
    """first: before the host's HELLO. import: while the host imports ONNX Runtime, for which a creation waits."""
    program = begun(STARTS, where, then, str(tmp_path))
    hosts = psutil.Process(program.pid).children(recursive=True)
    assert hosts
    begin = time.monotonic()
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=WAIT_S)
    if then == "goes on":
        assert out.splitlines() == ["interrupted", "usable 1 1"], err
        assert (program.returncode, err) == (0, "")
    else:
        assert out.splitlines() == ["interrupted"]
        # Exit code 1: CPython forgets that it was an interrupt if any thread then executes a string, such as the import
        # of a module with a named tuple.
        assert program.returncode in (-signal.SIGINT, 1), err
        assert err.splitlines()[-1] == "KeyboardInterrupt"
        assert time.monotonic() - begin < WAIT_S / 3, "nobody opens the gate: the host must be ended"
    assert psutil.wait_procs(hosts, timeout=WAIT_S)[1] == []


def test_ctrl_c_in_the_terminal_reaches_all_foreground_processes_except_the_host(tmp_path: Path):
    """In a real terminal with a shell job, the kernel sends the signal to the whole process group."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM, "run", str(tmp_path)])
    said = b""
    try:
        while b"began" not in said:
            assert wait_readable(terminal, WAIT_S)
            said += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        while b"usable" not in said and wait_readable(terminal, WAIT_S):
            try:
                said += os.read(terminal, 4096)
            except OSError:  # the other side has closed the terminal
                break
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, said.decode()
    assert b"interrupted" in said
    assert b"usable" in said


def test_interrupts_at_any_moment_leave_the_session_usable(tmp_path: Path):
    """Fifty interrupts at random moments of small calls: each call returns its result or raises KeyboardInterrupt."""
    program = """
import os, random, signal, sys, threading, time
import numpy as np
import qnnbridge
from tests.fakes.hosts import fake_host, script
X = np.arange(4, dtype=np.float32)
dice = random.Random(1)
host = fake_host()
session = qnnbridge.InferenceSession(script(scale=3), host=host, retry=2)
interrupted, wrong, sent = 0, 0, threading.Semaphore(0)
stop = False
def shoot():
    for _ in range(50):
        sent.acquire()
        time.sleep(dice.random() * 0.002)
        os.kill(os.getpid(), signal.SIGINT)
thread = threading.Thread(target=shoot)
thread.start()
shots = 0
while shots < 50:
    try:
        shots += 1
        sent.release()
        while True:
            (y,) = session.run(None, {"x": X})
            wrong += not np.array_equal(y, X * 3)
    except KeyboardInterrupt:
        interrupted += 1
thread.join()
(y,) = session.run(None, {"x": X})
wrong += not np.array_equal(y, X * 3)
print(interrupted, wrong, host.stats.generation, flush=True)
host.close()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=WAIT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    interrupted, wrong, generations = map(int, ran.stdout.split())
    assert (interrupted, wrong) == (50, 0)
    # An interrupt in the microseconds of parsing a message may cost a host, but never a result.
    assert generations <= 5


# --- exceptions at every checkpoint ---


@pytest.mark.parametrize(
    ("program", "how", "seed", "count"),
    [
        # Use every seventh position (every 42nd in the short form) of a call at which a handler can run; `python -m
        # lab.attack interrupts` uses all positions.
        ("slow", "walk", length(42, 7), 1000),
        ("hosts", "walk", length(20, 5), 1000),
        ("sessions", "walk", 67, length(20, 40)),
        ("threads", "storm", 1, length(50, 100)),
    ],
)
def test_an_exception_in_a_signal_handler_at_any_line_ends_only_its_call(
    program: str, how: str, seed: int, count: int
) -> None:
    """After each exception, the next call is right and quick, and nothing leaks."""
    report = interrupts.run_program(program, how, seed, count)
    assert report.good, str(report)
    assert report.counts["interrupts"] + report.counts["checkpoints"] > 5


def test_the_search_with_exceptions_finds_a_lock_that_stays_held() -> None:
    lock, walker, left_taken = threading.Lock(), Walker(), 0

    def work() -> None:
        lock.acquire()
        try:
            threading.current_thread()
        finally:
            lock.release()

    checkpoint = 1
    while walker.run(work, checkpoint, (__file__,)):
        checkpoint += 1
        if lock.locked():
            left_taken += 1
            lock.release()
    assert left_taken == 1
    assert checkpoint > 3
