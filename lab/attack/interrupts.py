"""Exceptions that a signal handler raises in the middle of calls: Ctrl+C in a notebook, `signal.alarm`, pytest-timeout.

Each program is a process of its own that uses the bridge in its main thread, where handlers run. *storm*: an
interval timer interrupts it after 0.05 to 5 ms, now and then again while the interruption is dealt with. *walk*: one
step is interrupted at each of its checkpoints in turn (`checkpoints`), which finds what a timer needs thousands of
tries for. In between and at the end a call without interruptions must be right and quick, and nothing may be left:
descriptors, threads, processes, shared memory, files. POSIX only.
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

# A call after interruptions has so many seconds, and is expected to need far less, even if a host is started for it.
CALL_S, QUICK_S = 10.0, 8.0
# So many interruptions between two such calls.
INTERRUPTS_BEFORE_A_CALL = 20
# Descriptors that a program may have more in the middle than after its first calls: channels, a host to be replaced.
MORE_DESCRIPTORS = 40
SETTLE_S = 12.0
# No step of a program may take longer than this.
HANGS_AFTER_S = 60.0
CHILD_S = 3600.0

# With so many interrupts a walk leaves no checkpoint out.
WALKED_WHOLE = 2000

SHORTEST_MS, LONGEST_MS = 0.05, 5.0
NUMBER = signal.SIGALRM


class Interrupt(Exception):
    """What the handler raises; every other time it is a `KeyboardInterrupt`."""


# --- programs ---


class Program:
    """A use of the bridge. `step` is interrupted, `check` is not."""

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
        # Not `np.array_equal`, which takes an interrupt for a difference.
        if results[0].shape != self.wanted.shape or not (results[0] == self.wanted).all():
            raise AssertionError(f"a wrong result: {results[0]!r:.300}")

    def close(self) -> None:
        self.session.close()
        self.host.close()


class Small(Program):
    """Small calls, mostly on the fast path."""


class Large(Program):
    """Tensors of 2.4 MB, in shared memory."""

    size = 600_000


class Slow(Program):
    """Run options take the slow path."""

    def step(self) -> None:
        self.right(self.session.run(None, {"x": self.x}, qnnbridge.RunOptions()))


class Plain(Program):
    """Without shared memory and channels."""

    def new_host(self) -> qnnbridge.Host:
        host = qnnbridge.Host(shared_memory=False)
        host.sharing.why_not = "switched off for this program"
        return host


class Timeouts(Program):
    """Deadlines that are sometimes over."""

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
    """``out=``, ``borrow=``, `empty_input`."""

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
    """An IOBinding."""

    size = 20_000

    def step(self) -> None:
        binding = self.session.io_binding()
        binding.bind_cpu_input("x", self.x)
        binding.bind_output("y")
        self.session.run_with_iobinding(binding)
        self.right(binding.copy_outputs_to_cpu())


class Sessions(Program):
    """Sessions that are made and closed."""

    def step(self) -> None:
        with self.open() as session:
            self.right(session.run(None, {"x": self.x}))


class Restarts(Program):
    """A host that is replaced; sessions are made again in it."""

    def step(self) -> None:
        self.host.restart()
        self.right(self.session.run(None, {"x": self.x}))


class Hosts(Program):
    """Hosts that are started and closed."""

    def step(self) -> None:
        with qnnbridge.Host() as host:
            host.start()


class Daemon(Program):
    """By a daemon."""

    def new_host(self) -> qnnbridge.Host:
        return qnnbridge.connect(timeout=60.0)

    def close(self) -> None:
        self.session.close()
        daemon = psutil.Process(self.host.call({"op": "daemon.status"}).header["status"]["daemon"]["pid"])
        self.host.call({"op": "daemon.stop"})
        psutil.wait_procs([daemon], timeout=CALL_S)
        self.host.close()


class DaemonHosts(Daemon):
    """Connections to a daemon that are made and closed."""

    def step(self) -> None:
        with qnnbridge.connect(timeout=CALL_S) as host:
            host.start()


class Buckets(Program):
    """A session with buckets."""

    def open(self, **more: Any) -> qnnbridge.InferenceSession:
        return super().open(buckets={"n": [64, 128]}, pad=0, **more)

    def step(self) -> None:
        self.right(self.session.run(None, {"x": self.x}))
        self.session.run(None, {"x": np.ones(100, np.float32)})


class Async(Program):
    """`run_async` and futures."""

    def step(self) -> None:
        future = qnnbridge.futures.submit(self.session, None, {"x": self.x})
        self.right(future.result())
        done: list[Any] = []
        self.session.run_async(None, {"x": self.x}, lambda results, _data, _error: done.append(results), None)
        while not done:
            time.sleep(0.0005)


class Threads(Program):
    """Other threads call at the same time; they are not interrupted and must not notice anything."""

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


# --- one program, in a process of its own ---


class Subject:
    """The program that is interrupted, and what it holds."""

    def __init__(self, name: str, folder: Path, report: Report) -> None:
        self.name, self._folder, self._report = name, folder, report
        sys.unraisablehook = self._swallowed
        threading.excepthook = lambda ended: report.finding(f"a thread ended with {ended.exc_value!r}")
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        # Once in full: what is loaded and started only once in a process is not to be counted.
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
        """A call that is not interrupted. False if nothing further can be learnt."""
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
        """A step raised something else than what interrupted it."""
        lines = traceback.format_exception(error)
        self._report.finding(f"{self.name}: {error!r:.200} {when}\n{''.join(lines)[-2500:]}")

    def end(self) -> None:
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        self.program.close()
        del self.program
        after = self._settled(self.before)  # with the thread that watches for hangs, as before
        for what, count in after.items():
            if count > self.before[what]:
                names = [thread.name for thread in threading.enumerate()] if what == "threads" else ""
                self._report.finding(f"{self.name}: {count - self.before[what]} {what} left {names}")
        faulthandler.cancel_dump_traceback_later()

    def _settled(self, wanted: Mapping[str, int] | None) -> dict[str, int]:
        """What this process holds, when it holds no more than wanted, or after a while."""
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
        """A finalizer that was interrupted has not done its work."""
        where, trace = "?", told.exc_traceback
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            if "qnnbridge" in name:
                where = f"{os.path.basename(name)}:{trace.tb_lineno}"
            trace = trace.tb_next
        if where != "?":
            self._report.finding(f"{self.name}: an exception was swallowed at {where}")


class Storm:
    """Interrupts `step` by a timer."""

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
                self._subject.report_error(error, f"in the midst of interrupt {done}")
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
        while self._raised == raised:  # a finalizer of any library may swallow the exception
            self._subject.program.step()

    def _shoot(self, longest_ms: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._dice.uniform(SHORTEST_MS, longest_ms) / 1000)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        while frame is not None and frame.f_code is not Storm._interrupted.__code__:
            frame = frame.f_back
        if frame is None:  # too early, or it came late
            self._shoot(LONGEST_MS)
            return
        self._raised += 1
        if self._dice.random() < 0.3:
            self._shoot(0.5)  # while this one is dealt with
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
    """NAME HOW SEED COUNT: prints what was found."""
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
        os._exit(0)  # a program that hangs at its end would hide what was found


def one(name: str, how: str, seed: int, count: int, timeout_s: float = CHILD_S) -> Report:
    """A program in a process of its own. walk: with a stride of `seed`."""
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
        report.finding(f"{name}: it ended with {ran.returncode}: {ran.stderr[-3000:]}")
    else:
        report.expect(not ran.stderr, f"{name}: it printed {ran.stderr[-1500:]}")
    return report


def attack(interrupts: int, seed: int, names: tuple[str, ...] = tuple(PROGRAMS)) -> Report:
    """interrupts: of each program; of those that make hosts a twentieth."""
    report = Report("interrupts")
    for name in names:
        few = 20 if issubclass(PROGRAMS[name], (Hosts, Restarts)) else 1
        begin = time.monotonic()
        found = one(name, "storm", seed, max(10, interrupts // few))
        # All checkpoints from so many interrupts on, before that a part of them.
        found.add(one(name, "walk", max(1, WALKED_WHOLE // interrupts), max(10, interrupts // few)))
        report.rows.append(f"  {name}: {dict(found.counts)}, {time.monotonic() - begin:.0f} s")
        report.add(found)
    return report


if __name__ == "__main__":
    main(sys.argv[1:])
