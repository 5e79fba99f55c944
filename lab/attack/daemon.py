"""Attack a daemon: half-open connections, a client that overwrites shared memory, stopped processes.

Meanwhile a well-behaved client makes calls; none of its results may be wrong, lost or late.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import qnnbridge
from lab.attack.report import Report
from lab.faultlab.shared_daemon import make_models
from qnnbridge import errors
from qnnbridge._daemon.connector import enter_daemon
from qnnbridge._daemon.discovery import runtime_folder

CPU = ["CPUExecutionProvider"]
SCALE = 3.0
X = np.arange(20_000, dtype=np.float32)
# Longest acceptable call of the well-behaved client in seconds. Its calls normally take a millisecond.
LATE_S = 5.0
TIMEOUT_S = 2.0
START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0
# Number of additional descriptors that the daemon may hold after an attack.
SPARE_DESCRIPTORS = 8

# A client that overwrites all memory that it shares with the daemon during its own calls.
SCRIBBLER = """
import json, os, random, sys, threading, time
import numpy as np, qnnbridge
seconds, seed, model = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng, done, counts = random.Random(seed), threading.Event(), {}
def shared():
    for line in open("/proc/self/maps"):
        words = line.split()
        if "s" in words[1] and "w" in words[1] and int(words[4]):
            begin, end = (int(word, 16) for word in words[0].split("-"))
            yield begin, end - begin
def scribble():
    memory = os.open("/proc/self/mem", os.O_RDWR)
    while not done.is_set():
        for begin, size in list(shared()):
            for _ in range(200):
                length = rng.choice([1, 4, 8, 64, 4096])
                at = rng.choice([rng.randrange(max(1, size - length)), rng.randrange(256) * 4])
                data = rng.choice([rng.randbytes(length), b"\\0" * length, b"\\xff" * length])
                try:
                    os.pwrite(memory, data[: size - at], begin + at)
                except OSError:
                    break  # the memory is no longer mapped
with qnnbridge.connect(start=False) as host:
    session = qnnbridge.InferenceSession(model, providers=["CPUExecutionProvider"], host=host)
    thread = threading.Thread(target=scribble, daemon=True)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        size = rng.choice([1, 100, 20_000, 300_000])
        feed = session.empty_input("x", (size,))
        feed[:] = 1
        try:
            (y,) = session.run(None, {"x": feed}, timeout=2.0, retry=0, borrow=rng.random() < 0.5)
            what = "right result" if (y == 3).all() else "result of scribbled memory"
        except qnnbridge.errors.BridgeError as error:
            what = type(error).__name__
        counts[what] = counts.get(what, 0) + 1
        if not thread.is_alive():
            thread.start()
    done.set()
    thread.join()
print(json.dumps(counts), flush=True)
"""
# A client that is stopped while it has running calls.
CALLER = """
import sys, threading
import numpy as np, qnnbridge
x = np.arange(20_000, dtype=np.float32)
with qnnbridge.connect(start=False) as host:
    session = qnnbridge.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"], host=host)
    print("ready", flush=True)
    wrong = []
    def work():
        for _ in range(int(sys.argv[2])):
            if not np.array_equal(session.run(None, {"x": x}, timeout=60.0)[0], x * 3):
                wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(len(wrong), "wrong", flush=True)
"""


def attack(scale: float, seed: int) -> Report:
    """Attack a new daemon, whose folders (`QNNBRIDGE_*_DIR`) must be set in the environment.

    Args:
        scale: length of the attack; 1 takes 15 seconds.
    """
    report = Report("daemon")
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, ExitStack() as stack:
        model = make_models(Path(folder))[0]
        host = stack.enter_context(qnnbridge.connect(start=True, timeout=START_TIMEOUT_S))
        daemon = psutil.Process(_status(host)["daemon"]["pid"])
        try:
            session = qnnbridge.InferenceSession(model, providers=CPU, host=host)
            _call(session)
            npu_host = _status(host)["host"]["pid"]
            with _neighbour(report, session):
                _half_open(report, daemon, model, int(100 * scale), seed)
                _scribble(report, model, max(2.0, 2.0 * scale), seed)
                _stopped_client(report, model, rounds=max(1, int(scale)))
            report.expect(_status(host)["host"]["pid"] == npu_host, "the NPU host has been replaced")
            _stopped(report, "NPU host", npu_host, session)
            _stopped(report, "daemon", daemon.pid, session)
        finally:
            host.call({"op": "daemon.stop"})
            _, alive = psutil.wait_procs([daemon], timeout=END_TIMEOUT_S)
            for process in alive:
                report.finding("the daemon did not end")
                process.kill()
    return report


def _status(host: qnnbridge.Host) -> dict[str, Any]:
    return dict(host.call({"op": "daemon.status"}).header["status"])


def _call(session: qnnbridge.InferenceSession, timeout: float | None = None) -> bool:
    return bool(np.array_equal(session.run(None, {"x": X}, timeout=timeout)[0], X * np.float32(SCALE)))


@contextmanager
def _neighbour(report: Report, session: qnnbridge.InferenceSession) -> Iterator[None]:
    """Make calls as the well-behaved client, one after another, while the block runs."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(0.001):
            begin = time.monotonic()
            try:
                report.expect(_call(session), "a result of the well-behaved client is wrong")
            except Exception as error:
                report.finding(f"a call of the well-behaved client failed: {type(error).__name__}: {error}")
            report.expect(time.monotonic() - begin < LATE_S, "a call of the well-behaved client was late")
            report.count("calls of the well-behaved client")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _half_open(report: Report, daemon: psutil.Process, model: Path, count: int, seed: int) -> None:
    """Open connections that send nothing or random bytes, and connect clients that never send HELLO."""
    before = daemon.num_fds()
    endpoint = str(runtime_folder() / "daemon.sock")
    held: list[socket.socket] = []
    links = []
    try:
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(TIMEOUT_S)
            connection.connect(endpoint)
            try:
                if rng.random() < 0.7:
                    connection.sendall(rng.randbytes(rng.choice([1, 16, 200, 5000])))
            except OSError:
                report.count("connections closed at once")
            held.append(connection)
            report.count("half-open connections")
            if number % 50 == 49:
                links.append(enter_daemon(time.monotonic() + LATE_S))
                report.count("clients that send no HELLO")
            if number % 100 == 99:
                begin = time.monotonic()
                with qnnbridge.connect(start=False, timeout=LATE_S) as other:
                    with qnnbridge.InferenceSession(model, providers=CPU, host=other) as session:
                        report.expect(_call(session), "a new client's result is wrong")
                report.expect(time.monotonic() - begin < LATE_S, "a new client had to wait")
    except Exception as error:
        report.finding(f"{len(held)} half-open connections: {type(error).__name__}: {error}")
    finally:
        for connection in held:
            connection.close()
        for link in links:
            link.close()
    _until(lambda: daemon.num_fds() <= before + SPARE_DESCRIPTORS)
    report.expect(
        daemon.num_fds() <= before + SPARE_DESCRIPTORS, f"{before} to {daemon.num_fds()} descriptors in the daemon"
    )


def _scribble(report: Report, model: Path, seconds: float, seed: int) -> None:
    """Run the client that overwrites shared memory, and count the outcomes of its calls."""
    command = [sys.executable, "-c", SCRIBBLER, str(seconds), str(seed), str(model)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        report.finding("the client that overwrites its shared memory does not exit")
        return
    if done.returncode:
        # This client may crash, because it overwrites its own memory, but all exceptions of qnnbridge must be
        # `BridgeError`s.
        report.count(f"scribbler: exit code {done.returncode}")
        report.expect("Traceback" not in done.stderr, done.stderr[-2000:])
        return
    for what, count in json.loads(done.stdout).items():
        report.count(f"scribbler: {what}", count)


def _stopped_client(report: Report, model: Path, rounds: int) -> None:
    """Stop and continue a client that has running calls."""
    for _ in range(rounds):
        command = [sys.executable, "-c", CALLER, str(model), "300"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        report.expect(process.stdout.readline() == "ready\n", "a client did not start")
        for _ in range(3):
            time.sleep(0.02)
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.5)
            process.send_signal(signal.SIGCONT)
            report.count("stops of a client")
        out, said = process.communicate(timeout=END_TIMEOUT_S)
        report.expect(out == "0 wrong\n", f"wrong output of a stopped and continued client: {out} {said[-1000:]}")


def _stopped(report: Report, name: str, pid: int, session: qnnbridge.InferenceSession) -> None:
    """Stop a process with SIGSTOP; check that calls reach their deadline, and succeed after SIGCONT."""
    os.kill(pid, signal.SIGSTOP)
    _until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    begin = time.monotonic()
    try:
        _call(session, timeout=TIMEOUT_S)
        report.finding(f"a call was answered although the {name} was stopped")
    except errors.DeadlineExceeded:
        report.count(f"expired deadlines of calls to the stopped {name}")
    except Exception as error:
        report.finding(f"stopped {name}: {type(error).__name__}: {error}")
    finally:
        os.kill(pid, signal.SIGCONT)
    report.expect(
        time.monotonic() - begin < TIMEOUT_S + LATE_S, f"a call to the stopped {name} ended after its deadline"
    )
    report.expect(_call(session, timeout=END_TIMEOUT_S), f"a wrong result after the {name} was stopped")


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + END_TIMEOUT_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
