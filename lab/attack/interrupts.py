"""Interrupt calls with exceptions that a signal handler raises, like Ctrl+C in a notebook or pytest-timeout.

Each program is a separate process that uses the bridge in its main thread, where handlers run. *storm*: an interval
timer interrupts the program after 0.05 to 5 ms, sometimes again while an interruption is handled. *walk*: one step
is interrupted at each of its checkpoints in turn (`checkpoints`), which finds faults for which a timer needs
thousands of attempts. Between the interruptions and at the end, an uninterrupted call must return the right result
quickly, and no descriptors, threads, processes, shared memory or files may leak. POSIX only.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import qnnbridge
import qnnbridge.futures
from lab.attack.checkpoints import Walker
from lab.attack.report import Report
from lab.faultlab.shared_daemon import SCALES, make_models
from qnnbridge.errors import DeadlineExceeded

ROOT = Path(__file__).parents[2]

# Timeout of an uninterrupted call, and the duration from which it is reported as slow. A call may have to start a
# host.
CALL_S, QUICK_S = 10.0, 8.0
# Number of interruptions between two uninterrupted calls.
INTERRUPTS_BEFORE_A_CALL = 20
# Number of descriptors that a program may open after its first calls, for further channels and a replaced host.
MORE_DESCRIPTORS = 40
SETTLE_S = 12.0
# Duration after which a step of a program counts as hanging.
HANGS_AFTER_S = 60.0
CHILD_S = 3600.0

# A walk with at least this many interrupts visits every checkpoint; a shorter walk skips checkpoints evenly.
WALKED_WHOLE = 2000

SHORTEST_MS, LONGEST_MS = 0.05, 5.0
NUMBER = signal.SIGALRM


class Interrupt(Exception):
    """Exception that the signal handler raises alternately with `KeyboardInterrupt`."""


# --- programs ---


class Program:
    """A program that uses the bridge: its `step` is interrupted, its `check` is not."""

    size = 64

    def __init__(self, folder: Path) -> None:
        self.model = make_models(folder)[0]
        self.x = np.arange(self.size, dtype=np.float32)
        self.wanted = self.x * np.float32(SCALES[0])
        self.host = self.new_host()
        self.session = self.open()

    def new_host(self) -> qnnbridge.Host:
        return qnnbridge.Host()

    def open(self, **more: Any) -> qnnbridge.InferenceSession:
        return qnnbridge.InferenceSession(
            self.model, providers=["CPUExecutionProvider"], host=self.host, verify=False, **more
        )

    def step(self) -> None:
        self.right(self.session.run(None, {"x": self.x}))

    def check(self) -> None:
        self.right(self.session.run(None, {"x": self.x}, timeout=CALL_S))

    def right(self, results: list[Any]) -> None:
        # `np.array_equal` is not used because it catches an interrupt and returns False.
        if results[0].shape != self.wanted.shape or not (results[0] == self.wanted).all():
            raise AssertionError(f"a wrong result: {results[0]!r:.300}")

    def close(self) -> None:
        self.session.close()
        self.host.close()


class Small(Program):
    """Make calls with small tensors, mostly on the fast path."""


class Large(Program):
    """Use tensors of 2.4 MB in shared memory."""

    size = 600_000


class Slow(Program):
    """Pass run options to calls, which prevents the fast path."""

    def step(self) -> None:
        self.right(self.session.run(None, {"x": self.x}, qnnbridge.RunOptions()))


class Plain(Program):
    """Work without shared memory and channels."""

    def new_host(self) -> qnnbridge.Host:
        host = qnnbridge.Host(shared_memory=False)
        host.sharing.why_not = "switched off for this program"
        return host


class Timeouts(Program):
    """Use timeouts that sometimes expire."""

    size = 100_000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._dice = random.Random(1)

    def step(self) -> None:
        try:
            self.right(self.session.run(None, {"x": self.x}, timeout=self._dice.uniform(0.00005, 0.003)))
        except DeadlineExceeded:
            pass


class Placed(Program):
    """Use ``out=``, ``borrow=`` and `empty_input`."""

    size = 30_000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._in = self.session.empty_input("x", self.x.shape)
        self._in[:] = self.x
        self._out = self.session.empty_output("y", self.x.shape)

    def step(self) -> None:
        self.right(self.session.run(None, {"x": self._in}, out=[self._out]))
        self.right(self.session.run(None, {"x": self.x}, borrow=True))
        self.session.empty_input("x", (1000,))

    def close(self) -> None:
        del self._in, self._out
        super().close()


class Bound(Program):
    """Use an IOBinding."""

    size = 20_000

    def step(self) -> None:
        binding = self.session.io_binding()
        binding.bind_cpu_input("x", self.x)
        binding.bind_output("y")
        self.session.run_with_iobinding(binding)
        self.right(binding.copy_outputs_to_cpu())


class Sessions(Program):
    """Create and close sessions."""

    def step(self) -> None:
        with self.open() as session:
            self.right(session.run(None, {"x": self.x}))


class Restarts(Program):
    """Restart the host; the sessions are recreated in the new host."""

    def step(self) -> None:
        self.host.restart()
        self.right(self.session.run(None, {"x": self.x}))


class Hosts(Program):
    """Start and close hosts."""

    def step(self) -> None:
        with qnnbridge.Host() as host:
            host.start()


class Daemon(Program):
    """Use a daemon."""

    def new_host(self) -> qnnbridge.Host:
        return qnnbridge.connect(timeout=60.0)

    def close(self) -> None:
        self.session.close()
        daemon = psutil.Process(self.host.call({"op": "daemon.status"}).header["status"]["daemon"]["pid"])
        self.host.call({"op": "daemon.stop"})
        psutil.wait_procs([daemon], timeout=CALL_S)
        self.host.close()


class DaemonHosts(Daemon):
    """Open and close connections to a daemon."""

    def step(self) -> None:
        with qnnbridge.connect(timeout=CALL_S) as host:
            host.start()


class Buckets(Program):
    """Use a session with buckets."""

    def open(self, **more: Any) -> qnnbridge.InferenceSession:
        return super().open(buckets={"n": [64, 128]}, pad=0, **more)

    def step(self) -> None:
        self.right(self.session.run(None, {"x": self.x}))
        self.session.run(None, {"x": np.ones(100, np.float32)})


class Async(Program):
    """Use `run_async` and futures."""

    def step(self) -> None:
        future = qnnbridge.futures.submit(self.session, None, {"x": self.x})
        self.right(future.result())
        done: list[Any] = []
        self.session.run_async(None, {"x": self.x}, lambda results, _data, _error: done.append(results), None)
        while not done:
            time.sleep(0.0005)


class Threads(Program):
    """Make calls from several threads. Only the main thread is interrupted; the other threads must not be
    affected."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._over = False
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._work, args=(slow,)) for slow in (False, True, True)]
        for thread in self._threads:
            thread.start()

    def step(self) -> None:
        self.right(self.session.run(None, {"x": self.x}))
        self.right(self.session.run(None, {"x": self.x}, qnnbridge.RunOptions()))

    def check(self) -> None:
        super().check()
        if self.errors:
            raise AssertionError(f"in another thread: {self.errors[0]}")

    def close(self) -> None:
        self._over = True
        for thread in self._threads:
            thread.join()
        super().close()

    def _work(self, slow: bool) -> None:
        while not self._over:
            begin = time.monotonic()
            try:
                self.right(self.session.run(None, {"x": self.x}, qnnbridge.RunOptions() if slow else None))
            except BaseException as error:
                self.errors.append(repr(error))
            if time.monotonic() - begin > QUICK_S:
                self.errors.append(f"a call took {time.monotonic() - begin:.1f} s")
            time.sleep(0.0005)


PROGRAMS: dict[str, type[Program]] = {
    program.__name__.lower(): program
    for program in (
        Small,
        Large,
        Slow,
        Plain,
        Timeouts,
        Placed,
        Bound,
        Sessions,
        Restarts,
        Hosts,
        Daemon,
        DaemonHosts,
        Buckets,
        Async,
        Threads,
    )
}


# --- one program in a separate process ---


class Subject:
    """The interrupted program and the resources that it holds."""

    def __init__(self, name: str, folder: Path, report: Report) -> None:
        self.name, self._folder, self._report = name, folder, report
        sys.unraisablehook = self._swallowed
        threading.excepthook = lambda ended: report.finding(f"a thread ended with {ended.exc_value!r}")
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        # Run the program once before counting, so that resources which are created once per process do not count.
        self.program = self._new()
        self.program.close()
        self.before = self._settled(None)
        self.program = self._new()
        self._descriptors = len(os.listdir("/proc/self/fd"))

    def _new(self) -> Program:
        program = PROGRAMS[self.name](self._folder)
        for _ in range(10):
            program.step()
            program.check()
        return program

    def check(self, behind: str) -> bool:
        """Make a call without interruption. Return False if the call failed or too many descriptors are open."""
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        begin = time.monotonic()
        try:
            self.program.check()
        except Exception as error:
            self._report.finding(f"{self.name}: {type(error).__name__}: {error!s:.200} {behind}")
            return False
        seconds = time.monotonic() - begin
        if seconds > QUICK_S:
            self._report.finding(f"{self.name}: the next call took {seconds:.1f} s {behind}")
        more = len(os.listdir("/proc/self/fd")) - self._descriptors
        if more > MORE_DESCRIPTORS:
            self._report.finding(f"{self.name}: {more} more descriptors {behind}")
            return False
        return True

    def report_error(self, error: BaseException, when: str) -> None:
        """Report that a step raised an exception that is not the handler's."""
        lines = traceback.format_exception(error)
        self._report.finding(f"{self.name}: {error!r:.200} {when}\n{''.join(lines)[-2500:]}")

    def end(self) -> None:
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        self.program.close()
        del self.program
        # faulthandler's watchdog thread also ran when `before` was measured, so it does not count as a leak.
        after = self._settled(self.before)
        for what, count in after.items():
            if count > self.before[what]:
                names = [thread.name for thread in threading.enumerate()] if what == "threads" else ""
                self._report.finding(f"{self.name}: {count - self.before[what]} {what} left {names}")
        faulthandler.cancel_dump_traceback_later()

    def _settled(self, wanted: Mapping[str, int] | None) -> dict[str, int]:
        """Wait until this process holds no more resources than `wanted`, or until a timeout; return its
        resources."""
        until = time.monotonic() + SETTLE_S
        while True:
            gc.collect()
            now = self._holdings()
            if time.monotonic() > until or (
                wanted is not None and all(count <= wanted[what] for what, count in now.items())
            ):
                return now
            if wanted is None and time.monotonic() > until - SETTLE_S + 1.0:
                return now
            time.sleep(0.1)

    def _holdings(self) -> dict[str, int]:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            shared = sum("memfd:" in line for line in maps)
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": psutil.Process().num_threads(),
            "children": len(psutil.Process().children(recursive=True)),
            "pieces of shared memory": shared,
            "temporary files": len(os.listdir(tempfile.gettempdir())),
        }

    def _swallowed(self, told: sys.UnraisableHookArgs) -> None:
        """Report an exception in a finalizer: an interrupted finalizer has not released its resource."""
        where, trace = "?", told.exc_traceback
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            if "qnnbridge" in name:
                where = f"{os.path.basename(name)}:{trace.tb_lineno}"
            trace = trace.tb_next
        if where != "?":
            self._report.finding(f"{self.name}: an exception was swallowed at {where}")


class Storm:
    """Interrupt the step of a program with a timer."""

    def __init__(self, subject: Subject, dice: random.Random) -> None:
        self._subject, self._dice = subject, dice
        self._raised = 0
        signal.signal(NUMBER, self._handle)

    def run(self, interrupts: int) -> int:
        done = 0
        while done < interrupts:
            before = self._raised
            try:
                self._interrupted()
            except (Interrupt, KeyboardInterrupt):
                pass
            except Exception as error:
                self._subject.report_error(error, f"while handling interrupt {done}")
                break
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            count = self._raised - before
            if (done + count) // INTERRUPTS_BEFORE_A_CALL > done // INTERRUPTS_BEFORE_A_CALL and not (
                self._subject.check(f"after {done + count} interrupts")
            ):
                break
            done += count
        return done

    def _interrupted(self) -> None:
        raised = self._raised
        self._shoot(LONGEST_MS)
        # Usually the exception ends this loop. If a finalizer of a library has swallowed the exception, the
        # condition ends the loop.
        while self._raised == raised:
            self._subject.program.step()

    def _shoot(self, longest_ms: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._dice.uniform(SHORTEST_MS, longest_ms) / 1000)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        while frame is not None and frame.f_code is not Storm._interrupted.__code__:
            frame = frame.f_back
        if frame is None:  # the timer expired outside of `_interrupted`: set it again
            self._shoot(LONGEST_MS)
            return
        self._raised += 1
        if self._dice.random() < 0.3:
            self._shoot(0.5)  # interrupt the handling of this interruption, too
        raise Interrupt if self._raised % 2 else KeyboardInterrupt


def walk(subject: Subject, first: int, stride: int, most: int) -> int:
    """Interrupt a step at its checkpoints `first`, `first` + stride and so on."""
    walker, done, checkpoint = Walker(), 0, first
    while done < most:
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        try:
            if not walker.run(subject.program.step, checkpoint):
                break
        except Exception as error:
            subject.report_error(error, f"at checkpoint {checkpoint}, {walker.place}")
            break
        done += 1
        if not subject.check(f"after an interrupt at checkpoint {checkpoint}, {walker.place}"):
            break
        checkpoint += stride
    return done


def main(arguments: list[str]) -> None:
    """Run one program, as the arguments NAME HOW SEED COUNT specify, and print counts and findings as JSON."""
    name, how, seed, count = arguments[0], arguments[1], int(arguments[2]), int(arguments[3])
    report, dice = Report("interrupts"), random.Random(seed)
    logging.getLogger().addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="interrupts-") as folder:
        subject = Subject(name, Path(folder), report)
        if how == "storm":
            report.count("interrupts", Storm(subject, dice).run(count))
        else:
            stride = max(1, seed)
            report.count("checkpoints", walk(subject, dice.randint(1, stride), stride, count))
        if report.good:
            subject.end()
    print(json.dumps([report.counts, report.findings]), flush=True)
    if not report.good:
        os._exit(0)  # skip the normal exit, which could hang and hide the findings


def run_program(name: str, how: str, seed: int, count: int, timeout_s: float = CHILD_S) -> Report:
    """Run a program in a separate process. If `how` is "walk", `seed` is the distance between checkpoints."""
    report = Report("interrupts")
    with tempfile.TemporaryDirectory(prefix="interrupts-") as folder:
        environment = {**os.environ, "TMPDIR": folder, "QNNBRIDGE_RUNTIME_DIR": folder + "/run"}
        ran = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-m", __name__, name, how, str(seed), str(count)],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    try:
        counts, findings = json.loads(ran.stdout.splitlines()[-1])
        report.counts.update(counts)
        report.findings += findings
    except (IndexError, ValueError):
        report.finding(f"{name}: exit code {ran.returncode}: {ran.stderr[-3000:]}")
    else:
        report.expect(not ran.stderr, f"{name}: unexpected output on stderr: {ran.stderr[-1500:]}")
    return report


def attack(interrupts: int, seed: int, names: tuple[str, ...] = tuple(PROGRAMS)) -> Report:
    """Run all programs.

    Args:
        interrupts: number of interrupts per program. Programs that start hosts get a twentieth of this number.
    """
    report = Report("interrupts")
    for name in names:
        few = 20 if issubclass(PROGRAMS[name], (Hosts, Restarts)) else 1
        begin = time.monotonic()
        found = run_program(name, "storm", seed, max(10, interrupts // few))
        # With few interrupts, visit only every n-th checkpoint.
        found.add(run_program(name, "walk", max(1, WALKED_WHOLE // interrupts), max(10, interrupts // few)))
        report.rows.append(f"  {name}: {dict(found.counts)}, {time.monotonic() - begin:.0f} s")
        report.add(found)
    return report


if __name__ == "__main__":
    main(sys.argv[1:])
