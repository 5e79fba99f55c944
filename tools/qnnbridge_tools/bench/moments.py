"""Single events: starts, and recovery after a killed host. Nothing here is pinned or warm."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge_host.cache.work_folder import work_folder
from qnnbridge_tools.bench.hosts import DirectProcess, Subject, open_session

if TYPE_CHECKING:
    from qnnbridge import Host

TIMEOUT_S = 300.0
STATE_DIR = "QNNBRIDGE_STATE_DIR"

EMPTY, READY, SESSION, DIRECT_SESSION = "python", "host ready", "session", "direct session"
APPLICATION = "application session"
MOMENTS_IN_WORDS = {
    EMPTY: "an interpreter that does nothing (python -I -c pass)",
    READY: "from the start to the host's first answer",
    SESSION: "from the start to a session, through the bridge",
    DIRECT_SESSION: "from the start to a session, in a fresh process without the bridge",
    APPLICATION: "from the start of an application to its session, through the bridge",
}

# With all defaults: what people start today. Its end is not part of the time.
_DEFAULT = """
import sys
import onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
import os
os.write(1, b"!")
sys.stdin.buffer.read()
os._exit(0)
"""

# The same through the bridge, in a process that has imported nothing yet (and is not isolated: qnnbridge may be a
# package of the user's).
_APPLICATION = """
import os, sys
import qnnbridge
host = qnnbridge.Host(python=sys.argv[2])
qnnbridge.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"], host=host, cache=False)
os.write(1, b"!")
sys.stdin.buffer.read()
host.close()
os._exit(0)
"""


def starting(
    python: str, subject: Subject, rounds: int, spec: dict[str, Any] | None = None
) -> dict[str, list[float]]:
    """Seconds of each, in turns. The first turn warms the disk's cache and is not reported.

    Args:
        spec: What the process without the bridge is to make, and no application is started. ``None``: all
            sessions run on the CPU with all defaults, so with ONNX Runtime's own number of threads.
    """
    subject = dataclasses.replace(subject, threads=0)
    works: dict[str, Callable[[], float]] = {
        EMPTY: lambda: _empty(python),
        READY: lambda: _ready(python),
        SESSION: lambda: _session(python, subject),
        DIRECT_SESSION: lambda: (
            _first_output_s([python, "-I", "-c", _DEFAULT, str(subject.model)])
            if spec is None
            else _same(python, spec)
        ),
    }
    if spec is None:
        works[APPLICATION] = lambda: _first_output_s(
            [sys.executable, "-c", _APPLICATION, str(subject.model), python]
        )
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            seconds = work()
            if number:
                taken[name].append(seconds)
    return taken


def _empty(python: str) -> float:
    begin = time.perf_counter()
    subprocess.run([python, "-I", "-c", "pass"], stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True)
    return time.perf_counter() - begin


def _ready(python: str) -> float:
    from qnnbridge import Host

    begin = time.perf_counter()
    with Host(python=python) as host:
        host.start(TIMEOUT_S)  # its HELLO; what is asked next may wait for the import of ONNX Runtime
        return time.perf_counter() - begin


def _session(python: str, subject: Subject) -> float:
    from qnnbridge import Host

    begin = time.perf_counter()
    with Host(python=python) as host, open_session(host, subject):
        return time.perf_counter() - begin


def _same(python: str, spec: dict[str, Any]) -> float:
    begin = time.perf_counter()
    with DirectProcess(python) as process:
        process.open_only(spec)
        return time.perf_counter() - begin


def _first_output_s(command: list[str]) -> float:
    """Seconds from the start of a process to its first output."""
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        # One byte: the process says by it that the session is there.
        said = child.stdout.read(1)
        seconds = time.perf_counter() - begin
        # Its end, which waits for this, is not measured.
        child.stdin.close()
        child.wait(TIMEOUT_S)
    if not said:
        raise RuntimeError(f"a fresh process could not make the session (exit code {child.returncode})")
    return seconds


def recovery(python: str, subject: Subject, kills: int) -> list[float]:
    """Seconds from the death of the host to the next right answer."""
    from qnnbridge import Host

    taken = []
    with _expected_deaths(), Host(python=python) as host, open_session(host, subject) as session:
        feed: dict[str, Any] = dict(subject.feed)
        session.run(None, feed)
        for _ in range(kills):
            kill(host)
            begin = time.perf_counter()
            session.run(None, feed)
            taken.append(time.perf_counter() - begin)
    return taken


@contextlib.contextmanager
def _expected_deaths() -> Iterator[None]:
    """Hosts are killed within: that is no news, and no matter for the user's crash reports and quarantine."""
    log = logging.getLogger("qnnbridge.supervisor")
    kept, disabled = os.environ.get(STATE_DIR), log.disabled
    with work_folder("bench") as folder:
        os.environ[STATE_DIR], log.disabled = folder, True
        try:
            yield
        finally:
            log.disabled = disabled
            if kept is None:
                del os.environ[STATE_DIR]
            else:
                os.environ[STATE_DIR] = kept


def kill(host: Host) -> None:
    """End the process as a fault in a driver would."""
    process = host.supervisor.running
    if process is not None:
        process._child.kill()


def middle(seconds: Sequence[float]) -> float:
    return statistics.median(seconds)
