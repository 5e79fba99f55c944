"""The work of `qnnbridge bench`: measure the bundled models in several sizes, or the user's model."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_host.cache.files import work_folder
from qnnbridge_host.graph.files import existing_model
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_protocol.errors import BridgeError, OptionError, PlacementRefused
from qnnbridge_tools import arguments, feeds
from qnnbridge_tools.bench.measuring import (
    DirectProcess,
    Rig,
    Subject,
    Timing,
    open_session,
    pinned,
    race,
    specification,
)
from qnnbridge_tools.sessions import CPU, QNN

if TYPE_CHECKING:
    from qnnbridge import Host, HostInfo, HostStats
    from qnnbridge_protocol.specs import Placement
    from qnnbridge_tools.feeds import Feed
    from qnnbridge_tools.options import BenchRequest


ASSETS = Path(__file__).with_name("assets")
KIB, MIB = 1024, 1024 * 1024

# Bytes of the input; the output has the same size.
SIZES = {"4 KB": 4 * KIB, "64 KB": 64 * KIB, "600 KB": 600 * KIB, "4 MB": 4 * MIB, "32 MB": 32 * MIB}
QUICK_SIZES = ("4 KB", "600 KB", "4 MB")


def adding(size: int) -> Subject:
    """Return a model with hardly any work: x + 1."""
    import numpy as np

    # A float32 has four bytes.
    values = np.random.default_rng(1).normal(size=size // 4).astype(np.float32)
    return Subject(ASSETS / "add.onnx", {"x": values})


def convolving() -> Subject:
    """Return a model with 100 to 250 us of work on 600 KB."""
    import numpy as np

    image = np.random.default_rng(2).random((1, 3, 224, 224), np.float32)
    return Subject(ASSETS / "convnet.onnx", {"x": image})


def users_own(
    host: Host,
    model: Path,
    providers: tuple[str, ...],
    fallback: str,
    dimensions: Dimensions,
    seed: int,
    loaded: Sequence[Feed] = (),
) -> Subject:
    """Return the user's model with the given inputs, and generated values for all other inputs."""
    # threads=0 selects ONNX Runtime's default, which the user's application would also use.
    empty = Subject(model, {}, providers, fallback, threads=0, sizes=dimensions.by_name)
    with open_session(host, empty) as session:
        given = feeds.complete(session.get_inputs(), loaded, dimensions, seed=seed)
    return dataclasses.replace(empty, feed={feed.name: feed.value for feed in given})


def calls_per_second(call: Callable[[], Any], threads: int, seconds: float) -> float:
    """Return the rate of calls from several threads, which start together and stop after `seconds`."""
    counts = [0] * threads
    # This thread waits at the barrier, too, and reads the clock when all workers are ready.
    start = threading.Barrier(threads + 1)
    over = threading.Event()
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            # Make one call before the start, so that no thread measures its first call.
            call()
            start.wait()
            done = 0
            while not over.is_set():
                call()
                done += 1
            counts[index] = done
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            # Record the error before aborting the barrier: after that, the other threads record a
            # BrokenBarrierError.
            failures.append(error)
            # Release the other threads, which would wait at the barrier forever.
            start.abort()

    workers = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(threads)]
    for worker in workers:
        worker.start()
    try:
        start.wait()
    except threading.BrokenBarrierError:
        pass
    begin = time.perf_counter()
    if not failures:
        over.wait(seconds)
    over.set()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return sum(counts) / (time.perf_counter() - begin)


def crowds(call: Callable[[], Any], sizes: Sequence[int], *, rounds: int, seconds: float) -> dict[int, float]:
    """Return the median calls per second for each number of threads. Each round measures all numbers of threads."""
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            taken[size].append(calls_per_second(call, size, seconds))
    return {size: statistics.median(numbers) for size, numbers in taken.items()}


CROWDS = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """Number and length of the measurements of a bench.

    Args:
        sizes: names of the sizes.
        rounds: number of rounds.
        turn_s: seconds per turn.
        crowd_s: seconds per measurement with several threads.
        starts: number of new processes of each kind.
        kills: number of hosts that are killed.
    """

    sizes: Sequence[str]
    rounds: int
    turn_s: float
    crowd_s: float
    starts: int
    kills: int


# A benchmark with QUICK takes a few seconds, with THOROUGH about a minute.
QUICK = Effort(QUICK_SIZES, rounds=5, turn_s=0.03, crowd_s=0.1, starts=3, kills=2)
THOROUGH = Effort(tuple(SIZES), rounds=15, turn_s=0.08, crowd_s=0.4, starts=7, kills=5)


@dataclasses.dataclass(frozen=True, slots=True)
class CallTimings:
    """Timings of one model, or of one size of inputs, by contender."""

    name: str
    bytes_in: int
    timings: dict[str, Timing]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """All results of a bench.

    Args:
        rows: timings of calls.
        crowds: calls per second by number of threads.
        starts, recovery_s: seconds of each attempt.
        pinned: all processes ran on one CPU.
        placement: where the user's model runs.
        load: load of the machine before and after, if the system reports it.
        cpus: number of CPUs.
    """

    rows: list[CallTimings]
    crowds: dict[int, float]
    starts: dict[str, list[float]]
    recovery_s: list[float]
    pinned: bool
    placement: Placement | None
    host: HostInfo
    stats: HostStats
    load: tuple[float, float] | None
    cpus: int


def perform(request: BenchRequest, say: Callable[[str], None]) -> Measured:
    """Measure calls, parallel callers, starts and recovery.

    Args:
        request: the options.
        say: called with a line for each step.
    """
    loaded = feeds.load(*arguments.read_one_set(request.inputs))
    if loaded and request.model is None:
        raise OptionError("--input needs --model: the bundled models have their own inputs.")
    if request.model is not None:
        existing_model(request.model)
    _check_dimensions(request)
    try:
        return _performed(request, loaded, say)
    except PlacementRefused as refused:
        models = [] if request.model is None else arguments.read_models([request.model], Dimensions())
        arguments.in_options(refused, [node for scan in models for node in scan.inputs])
        raise


def _effort(request: BenchRequest) -> Effort:
    return QUICK if request.quick else THOROUGH


def _check_dimensions(request: BenchRequest) -> None:
    if not request.sizes.dims.by_name and not request.sizes.dims.by_axis:
        return
    if request.model is None:
        raise OptionError("--dim needs --model: the bundled models have no free dimensions.")
    arguments.read_models([request.model], request.sizes.dims)


def _performed(request: BenchRequest, loaded: Sequence[Feed], say: Callable[[str], None]) -> Measured:
    effort = _effort(request)
    before = _load()
    say("starting hosts")
    with Rig(request.host_python) as rig:
        todo, placement, spec = _subjects(request, rig, loaded)
        rows, held = _race(rig, todo, request, say)
        say("threads")
        crowds = _crowds(rig, todo[0][1], effort)
        stats, info = rig.shared.stats, rig.info
    small = todo[0][1] if request.model is not None else convolving()
    # Measure starts after the hosts of `rig` have ended, because they would compete with the new processes.
    say("start-up")
    starts = starting(info.executable, small, effort.starts, spec)
    say("recovery")
    recovery_s = recovery(info.executable, small, effort.kills)
    after = _load()
    load = (before, after) if before is not None and after is not None else None
    return Measured(rows, crowds, starts, recovery_s, held, placement, info, stats, load, os.cpu_count() or 1)


def _subjects(
    request: BenchRequest, rig: Rig, loaded: Sequence[Feed]
) -> tuple[list[tuple[str, Subject]], Placement | None, dict[str, Any] | None]:
    """Return the subjects by name; for the user's model also its placement and the spec of its session."""
    if request.model is None:
        ours = [(name, adding(SIZES[name])) for name in _effort(request).sizes]
        return [*ours, ("convnet", convolving())], None, None
    subject = users_own(
        rig.shared,
        request.model,
        (CPU if request.provider == "cpu" else QNN,),
        request.fallback,
        request.sizes.dims,
        seed=0,
        loaded=loaded,
    )
    with open_session(rig.shared, subject) as session:
        return [(request.model.name, subject)], session.placement, specification(session)


def _race(
    rig: Rig, todo: list[tuple[str, Subject]], request: BenchRequest, say: Callable[[str], None]
) -> tuple[list[CallTimings], bool]:
    rows, held = [], request.pin
    for name, subject in todo:
        say(f"calls: {name}")
        contenders, close = rig.contenders(subject)
        try:
            with pinned(rig.pids, wanted=request.pin) as worked:
                held = held and worked
                timings = race(contenders, rounds=_effort(request).rounds, turn_s=_effort(request).turn_s)
        finally:
            close()
        rows.append(CallTimings(name, sum(value.nbytes for value in subject.feed.values()), timings))
    return rows, held


def _crowds(rig: Rig, subject: Subject, effort: Effort) -> dict[int, float]:
    with open_session(rig.shared, subject) as session:
        feed = dict(subject.feed)
        session.run(None, feed)
        # Each round lasts `crowd_s` for every number of threads: 8 s in total with THOROUGH.
        return crowds(
            lambda: session.run(None, feed), CROWDS, rounds=max(1, effort.rounds // 3), seconds=effort.crowd_s
        )


def _load() -> float | None:
    """Return the load of the last minute; ``None`` if the system does not report it."""
    if sys.platform == "win32":
        return None
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


# --- starts, and recovery after a killed host -----------------------------------------------------------
# Starts are measured without pinning and without warming up.

TIMEOUT_S = 300.0
STATE_DIR = "QNNBRIDGE_STATE_DIR"

EMPTY, READY, SESSION, DIRECT_SESSION = "python", "host ready", "session", "direct session"
APPLICATION = "application session"
MOMENTS_IN_WORDS = {
    EMPTY: "an interpreter that does nothing (python -I -c pass)",
    READY: "from the start to the host's first answer",
    SESSION: "from the start to a session, through the bridge",
    DIRECT_SESSION: "from the start to a session, in a new process without the bridge",
    APPLICATION: "from the start of an application to its session, through the bridge",
}

# Program without the bridge, with all defaults. The end of the process is not measured.
_DEFAULT = """
import sys
import onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
import os
os.write(1, b"!")
sys.stdin.buffer.read()
os._exit(0)
"""

# Program with the bridge. Do not run it with -I: qnnbridge may be installed in the user's site-packages.
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
    """Return the seconds of each kind of start. The kinds take turns; the first turn only warms the disk cache.

    Args:
        python: the interpreter.
        subject: the model.
        rounds: number of reported turns.
        spec: session for the process without the bridge; the start of an application is then not measured.
            ``None``: all sessions run on the CPU with all defaults, including ONNX Runtime's number of threads.
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
    # With -I, Python ignores its environment variables and the user's site-packages, as in hosts.
    subprocess.run([python, "-I", "-c", "pass"], stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True)
    return time.perf_counter() - begin


def _ready(python: str) -> float:
    from qnnbridge import Host

    begin = time.perf_counter()
    with Host(python=python) as host:
        host.start(TIMEOUT_S)  # waits for the host's HELLO, not for its import of ONNX Runtime
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
    """Return the seconds from the start of a process to its first output; kill it after `TIMEOUT_S`."""
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    # Apply the timeout in another thread: `read` has none. The timer also limits the wait for the process to end.
    timer = threading.Timer(TIMEOUT_S, child.kill)
    timer.daemon = True
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        timer.start()
        try:
            # The process writes one byte when the session exists.
            said = child.stdout.read(1)
            seconds = time.perf_counter() - begin
            # Closing stdin lets the process end. Its end is not measured.
            child.stdin.close()
            child.wait()
        finally:
            timer.cancel()
    if not said and seconds >= TIMEOUT_S:
        raise BridgeError(
            f"A new process did not create a session within {TIMEOUT_S:g} s, and was killed.",
            fix="Check whether other programs use the machine, and measure again.",
        )
    if not said:
        raise RuntimeError(f"a new process could not create the session (exit code {child.returncode})")
    return seconds


def recovery(python: str, subject: Subject, kills: int) -> list[float]:
    """Return the seconds from each crash of the host to the next right answer."""
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
    """Suppress log lines, crash reports and quarantine for hosts that are killed in this context."""
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
    """Kill the host's process, as a fault in a driver would."""
    process = host.supervisor.running
    if process is not None:
        # Bypass the supervisor, so that it sees an ordinary crash.
        process._child.kill()
