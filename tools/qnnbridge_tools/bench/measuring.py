"""The contenders (ways to make a call) and their timing. They take turns, so that disturbances affect all of them
alike.

Each contender has one turn per round. The report contains percentiles over all calls; noise is the spread of the
medians of the rounds. Only one thread measures at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from qnnbridge_host.cache.files import work_folder
from qnnbridge_protocol.errors import BridgeError, OptionError
from qnnbridge_protocol.values import check_sum

if TYPE_CHECKING:
    from qnnbridge import Host, InferenceSession


# Function that makes the given number of calls and returns the duration of each in nanoseconds.
Batch = Callable[[int], Sequence[int]]

# Largest number of calls in a round.
MOST_CALLS = 5000


@dataclasses.dataclass(frozen=True, slots=True)
class Contender:
    """One kind of call that is measured.

    Args:
        name: name in the report.
        batch: makes the calls.
        least_calls: smallest number of calls in a round, however long they take.
    """

    name: str
    batch: Batch
    least_calls: int = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds.

    Args:
        noise: half the interquartile range of the rounds' medians, relative to the median.
        calls: number of measured calls.
    """

    median_s: float
    p90_s: float
    p99_s: float
    best_s: float
    noise: float
    calls: int


def timed(call: Callable[[], Any]) -> Batch:
    """Return a function that times calls of `call` in this process."""

    def batch(count: int) -> Sequence[int]:
        # Use the loop of `qnnbridge_host.direct`, so that times with and without the bridge include the same
        # clock overhead.
        clock = time.perf_counter_ns
        times = [0] * count
        for number in range(count):
            begin = clock()
            call()
            times[number] = clock() - begin
        return times

    return batch


def race(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    turn_s: float,
    on_round: Callable[[int], None] = lambda number: None,
) -> dict[str, Timing]:
    """Let the contenders take turns of about `turn_s` seconds each, after warming up; return their timings."""
    counts = {contender.name: _calls_in(contender, turn_s) for contender in contenders}
    taken: dict[str, list[Sequence[int]]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        # Reverse the order in every second round, so that no contender always follows the same other contender.
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            contender.batch(1)  # Refill the CPU caches, which contain data of the previous contender.
            taken[contender.name].append(contender.batch(counts[contender.name]))
        on_round(number)
    return {name: summary(times) for name, times in taken.items()}


def summary(rounds: Sequence[Sequence[int]]) -> Timing:
    """Summarise the durations (nanoseconds) of all rounds."""
    # Percentiles cover all calls: a slow call counts, whichever round it was in.
    everything = sorted(time_ns for times in rounds for time_ns in times)
    medians = [statistics.median(times) for times in rounds]
    # Use the median over rounds instead of over calls, so that a disturbed round counts as a single value.
    median = statistics.median(medians)
    noise = 0.0
    if len(medians) > 1 and median:
        # Use `inclusive`, because these rounds are the whole population and not a sample.
        low, _, high = statistics.quantiles(medians, n=4, method="inclusive")
        noise = (high - low) / 2 / median
    return Timing(
        median / 1e9,
        percentile(everything, 0.9) / 1e9,
        percentile(everything, 0.99) / 1e9,
        everything[0] / 1e9,
        noise,
        len(everything),
    )


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the value that the given fraction of the values does not exceed."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _calls_in(contender: Contender, turn_s: float) -> int:
    # Warm up before measuring: the first calls take longer.
    contender.batch(contender.least_calls)
    one_s = statistics.median(contender.batch(contender.least_calls)) / 1e9
    # Assume at least 100 ns, because the measured time is 0 for a call below the clock's resolution.
    return max(contender.least_calls, min(MOST_CALLS, int(turn_s / max(one_s, 1e-7))))


@contextlib.contextmanager
def pinned(pids: Sequence[int], *, wanted: bool = True) -> Iterator[bool]:
    """Pin this process and others to one CPU, so that no call wakes another CPU; yield whether all are pinned."""
    import psutil

    before: list[tuple[int, list[int]]] = []
    done = wanted
    try:
        if wanted:
            try:
                for pid in (os.getpid(), *pids):
                    allowed = psutil.Process(pid).cpu_affinity()
                    before.append((pid, allowed))
                    # Use the first CPU that this process may use.
                    _keep_on(pid, [before[0][1][0]])
            # psutil has no `cpu_affinity` on macOS (AttributeError), and a container may forbid the call.
            except (psutil.Error, AttributeError, OSError, ValueError):
                done = False
        yield done
    finally:
        # Restore in reverse order, because the first record of a process that is listed twice has its original
        # CPUs.
        for pid, allowed in reversed(before):
            with contextlib.suppress(psutil.Error, OSError):
                _keep_on(pid, allowed)


def _keep_on(pid: int, cpus: list[int]) -> None:
    import psutil

    process = psutil.Process(pid)
    process.cpu_affinity(cpus)
    # On Linux pin each thread: `cpu_affinity` affects only the main thread and threads that start later.
    if sys.platform == "linux":
        for thread in process.threads():
            # A thread may have ended since the threads were listed.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, cpus)


# --- the contenders -------------------------------------------------------------------------------------
# `direct` is a process with the host's interpreter that runs sessions without the bridge.

END_TIMEOUT_S = 10.0
# Time limit in seconds for one answer: QNN needs several minutes to compile a large model.
ANSWER_TIMEOUT_S = 1800.0


class DirectProcess:
    """Process that answers each JSON line on stdin with a JSON line, as `qnnbridge_host.direct` does.

    The process is started immediately. Not thread-safe.

    Args:
        python: the interpreter.
        program: arguments of the interpreter to run another program.
    """

    def __init__(self, python: str, *program: str) -> None:
        from qnnbridge._launch import INTERPRETER_FLAGS, host_environment

        self._child = subprocess.Popen(
            [python, *INTERPRETER_FLAGS, *(program or ("-m", "qnnbridge_host.direct"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A full pipe that nobody reads would block the process.
            stderr=subprocess.DEVNULL,
            # Use the environment of a host, so that ONNX Runtime gets the same variables with and without the
            # bridge.
            env=host_environment(),
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def open(self, spec: dict[str, Any], feed: Path) -> tuple[int, int]:
        """Create a session; return its number and the checksum of its outputs for this feed."""
        answer = self._opened({"open": spec, "feed": str(feed)})
        return int(answer["session"]), int(answer["crc"])

    def open_only(self, spec: dict[str, Any]) -> None:
        """Create a session without running it."""
        self._opened({"open": spec})

    def _opened(self, question: dict[str, Any]) -> dict[str, Any]:
        answer = self.ask(question)
        if "error" in answer:
            raise BridgeError(f"The model cannot run without the bridge either: {answer['error']}")
        return answer

    def batch(self, session: int) -> Batch:
        def batch(count: int) -> Sequence[int]:
            times: list[int] = self.ask({"calls": count, "session": session})["times"]
            return times

        return batch

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a question and return the answer.

        Raise `BridgeError` if the process crashes or its answer is unusable.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        begun = time.monotonic()
        # Apply the timeout in another thread, because `readline` has none.
        timer = threading.Timer(ANSWER_TIMEOUT_S, self._child.kill)
        timer.daemon = True
        timer.start()
        try:
            self._child.stdin.write(json.dumps(question).encode() + b"\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        # If the process has crashed, the write fails with a broken pipe, or the read returns an empty line.
        except OSError:
            line = b""
        finally:
            timer.cancel()
        try:
            answer: dict[str, Any] = json.loads(line)
        # The line is empty or incomplete because the process crashed, or it is not an answer.
        except ValueError:
            code = self._end()
            if time.monotonic() - begun >= ANSWER_TIMEOUT_S:
                problem = f"did not answer within {ANSWER_TIMEOUT_S:g} s, and was killed"
            else:
                problem = f"returned an unreadable answer, and was killed: {line[:60]!r}"
                if not line.endswith(b"\n"):
                    problem = f"crashed (exit code {code})"
            raise BridgeError(f"The process without the bridge {problem}.") from None
        return answer

    def __enter__(self) -> DirectProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> int:
        """End the process; return its exit code. May be called repeatedly."""
        # Closing stdin ends the process. Closing fails if the process crashed before it had read all data.
        for stream in filter(None, (self._child.stdin, self._child.stdout)):
            with contextlib.suppress(OSError):
                stream.close()
        try:
            return self._child.wait(END_TIMEOUT_S)
        # Native code may hang while the process ends.
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()


DIRECT, PLAIN, ZERO_COPY, SPIN, INLINE = "direct", "bridge", "zero-copy", "spin", "inline"
WAYS = (DIRECT, PLAIN, ZERO_COPY, SPIN, INLINE)
WAYS_IN_WORDS = {
    DIRECT: "ONNX Runtime in one process, without the bridge",
    PLAIN: "plain arrays, copied to shared memory and back",
    ZERO_COPY: "arrays in shared memory: empty_input() and out=",
    SPIN: "zero-copy, and Host(spin=True)",
    INLINE: "plain arrays, without shared memory",
}

CPU = "CPUExecutionProvider"


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A model to call, with its inputs.

    Args:
        model: path of the model.
        feed: inputs by name.
        providers: execution providers.
        fallback: argument `fallback` of the session.
        threads: threads of ONNX Runtime; 0 for its default.
        sizes: sizes of free dimensions by name.
    """

    model: Path
    feed: Mapping[str, Any]
    providers: Sequence[str] = (CPU,)
    fallback: str = "error"
    threads: int = 1
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)


class Rig:
    """Hosts with different transports, and a process that runs the same sessions without the bridge."""

    def __init__(self, python: str | None = None) -> None:
        from qnnbridge import Host

        self._stack = contextlib.ExitStack()
        self._feeds = 0
        try:
            self._folder = Path(self._stack.enter_context(work_folder("bench")))
            self.shared = self._stack.enter_context(Host(python=python))
            self.spinning = self._stack.enter_context(Host(python=python, spin=True))
            self.inline = self._stack.enter_context(Host(python=python, shared_memory=False))
            # Start all hosts before the measurement: a host that starts meanwhile would disturb the others.
            for host in self.hosts:
                host.start()
            self.info = self.shared.info
            # Use the hosts' interpreter, however it was found: another Python would not be comparable.
            self.direct = self._stack.enter_context(DirectProcess(self.info.executable))
        except BaseException:
            self._stack.close()
            raise

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.shared, self.spinning, self.inline

    @property
    def pids(self) -> list[int]:
        """Process ids of all processes that compute."""
        return [*(host.info.pid for host in self.hosts), self.direct.pid]

    def contenders(self, subject: Subject) -> tuple[list[Contender], Callable[[], None]]:
        """Return a warmed-up contender for each way to make this call, and a function that closes the sessions.

        Raises:
            BridgeError: the contenders return different results.
        """
        stack = contextlib.ExitStack()
        try:
            return self._contenders(subject, stack), stack.close
        except BaseException:
            stack.close()
            raise

    def _contenders(self, subject: Subject, stack: contextlib.ExitStack) -> list[Contender]:
        shared, spinning, inline = (stack.enter_context(open_session(host, subject)) for host in self.hosts)
        self._feeds += 1
        file = self._folder / f"feed{self._feeds}.npz"
        _save(file, subject.feed)
        # Use the bridge's spec, so that the session without the bridge has the same options and providers.
        direct, crc = self.direct.open(specification(shared), file)
        feed = dict(subject.feed)
        calls: dict[str, Callable[[], Any]] = {
            PLAIN: lambda: shared.run(None, feed),
            ZERO_COPY: zero_copy(shared, feed),
            SPIN: zero_copy(spinning, feed),
            INLINE: lambda: inline.run(None, feed),
        }
        contenders = [Contender(DIRECT, self.direct.batch(direct))]
        for name, call in calls.items():
            # Compare the second call, because the fast path begins with the second call of a signature.
            call()
            if check_sum(call()) != crc:
                raise BridgeError(
                    f"{subject.model.name}: '{name}' returns a different result than ONNX Runtime in one process.",
                    cause="The results of the model are not repeatable, or the bridge does not work.",
                )
            contenders.append(Contender(name, timed(call)))
        return contenders

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def open_session(host: Host, subject: Subject) -> InferenceSession:
    from qnnbridge import CpuFallbackWarning, InferenceSession, SessionOptions

    options = SessionOptions()
    if subject.threads:
        # Use one thread with and without the bridge; otherwise the measurement would include a thread pool.
        options.intra_op_num_threads = subject.threads
        options.inter_op_num_threads = 1
    # Log only errors, because the measurement would include the printing of warnings.
    options.log_severity_level = 3
    for name, size in subject.sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    with warnings.catch_warnings():
        # Ignore this warning, because the report contains the placement.
        warnings.simplefilter("ignore", CpuFallbackWarning)
        return InferenceSession(
            str(subject.model),
            options,
            providers=list(subject.providers),
            fallback=subject.fallback,  # type: ignore[arg-type]
            host=host,
            # Disable the cache: the process without the bridge has none, so the two would load different files.
            cache=False,
            fix=False,  # Do not rewrite the model, because the process without the bridge runs the unmodified one.
        )


def specification(session: InferenceSession) -> dict[str, Any]:
    """Return the spec of the session in the host, from which an equal session is created without the bridge."""
    return session._remote.recipe.spec.to_wire()


def zero_copy(session: InferenceSession, feed: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a call with inputs and outputs in shared memory, as if the application stored its data there."""
    import numpy as np

    lying: dict[str, Any] = {}
    for name, value in feed.items():
        lying[name] = session.empty_input(name, value.shape)
        np.copyto(lying[name], value)
    # Run once to get the sizes of the outputs, which the model may not declare.
    outputs = session.run(None, lying)
    names = [node.name for node in session.get_outputs()]
    # Strings and sequences cannot be in shared memory, so `out=` has no array for them.
    plain = [isinstance(output, np.ndarray) and output.dtype != object for output in outputs]
    out = [
        session.empty_output(name, output.shape) if lies else None
        for name, output, lies in zip(names, outputs, plain, strict=True)
    ]
    return lambda: session.run(None, lying, out=out)


def _save(file: Path, feed: Mapping[str, Any]) -> None:
    # Do not call savez(**feed), because a name may be "file", which is a parameter of that function.
    import io
    import zipfile

    import numpy as np

    with zipfile.ZipFile(file, "w") as archive:
        for name, value in feed.items():
            if not isinstance(value, np.ndarray) or value.dtype == object:
                raise OptionError(f"Input {name} cannot be measured: it is not a numeric tensor.")
            data = io.BytesIO()
            np.save(data, value, allow_pickle=False)
            archive.writestr(f"{name}.npy", data.getvalue())
