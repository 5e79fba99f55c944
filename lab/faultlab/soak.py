"""Soak test with random faults under load; every outcome is checked against the published promises.

A `Soak` has one host. Its threads are workers that use models, one that kills and stops the host from outside, and
one that kills whole applications. Each thread has a random generator seeded by (seed, thread), so the same seed
gives the same faults, though not at the same times.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.fakes.fair_clock import FairClock
from tests.fakes.hosts import script

import qnnbridge
from lab.faultlab.leaks import holdings, leaked_since
from lab.faultlab.models import Case, is_right
from lab.faultlab.orphans import STATES, kill_an_application
from lab.faultlab.promises import PROMISES, Ledger
from qnnbridge import errors

DEADLINE_GRACE_S = 1.0
STUCK_AFTER_S = 60.0
LONGEST_EXTRA_S = 60.0
TRIED_AT_THE_END = "leak"
# Shortest and longest pause in seconds between two signals (SIGKILL or SIGSTOP) to the host process.
OUTSIDE_PAUSE_S = (0.05, 1.0)

X = np.arange(6, dtype=np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    seconds: float
    result: Any = None
    error: BaseException | None = None


class Soak:
    """A soak test of one host, which `run` closes.

    Args:
        least_crashes: on a slow machine the test continues beyond `seconds`, until this number of hosts have
            crashed and each promise has been checked.
    """

    def __init__(
        self,
        host: qnnbridge.Host,
        cases: list[Case],
        *,
        seconds: float,
        seed: int,
        threads: int,
        folder: Path,
        real: bool,
        least_crashes: int | None = None,
    ) -> None:
        self.ledger = Ledger()
        self.calls = 0
        self.faults = 0
        self._host = host
        self._cases = cases
        self._seconds = seconds
        self._seed = seed
        self._threads = threads
        self._folder = folder
        self._real = real
        self._least_crashes = least_crashes
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._names = 0
        self.stats = host.stats

    def run(self) -> Ledger:
        before = holdings()
        with self._host:
            self._sessions = [case.open(self._host) for case in self._cases]
            jobs: list[Callable[[random.Random], None]] = [self._use] * self._threads
            jobs += [self._trouble_from_outside, self._kill_applications]
            threads = [
                threading.Thread(
                    target=self._guarded, args=(job, random.Random(f"{self._seed} {n}")), name=f"soak {n}"
                )
                for n, job in enumerate(jobs)
            ]
            for thread in threads:
                thread.start()
            self._over.wait(self._seconds)
            until = time.monotonic() + LONGEST_EXTRA_S
            while not self._enough() and time.monotonic() < until:
                self._over.wait(0.1)
            self._over.set()
            for thread in threads:
                thread.join(STUCK_AFTER_S)
                self.ledger.check("alive", not thread.is_alive(), f"{thread.name} did not end")
            self._all_models_work_at_the_end()
            self._sessions = []
            self.stats = self._host.stats
        left = leaked_since(before)
        self.ledger.check("leak", not left, str(left))
        return self.ledger

    def _enough(self) -> bool:
        if self._least_crashes is None:
            return True
        all_tried = all(self.ledger.tried(promise) for promise in PROMISES if promise != TRIED_AT_THE_END)
        return all_tried and self._host.stats.crashes >= self._least_crashes

    def _guarded(self, job: Callable[[random.Random], None], dice: random.Random) -> None:
        try:
            job(dice)
        except BaseException as error:
            self.ledger.check("result", False, f"not a typed error: {type(error).__name__}: {error}")
            raise

    # --- the load ---

    def _use(self, dice: random.Random) -> None:
        turns: list[tuple[int, Callable[[random.Random], None]]] = [(40, self._run), (4, self._open_and_close)]
        if not self._real:
            turns += [
                (4, self._dies_once),
                (3, self._late),
                (3, self._late_and_killed),
                (4, self._python_exception),
                (1, self._always_crashes),
            ]
        works = [work for weight, work in turns for _ in range(weight)]
        while not self._over.is_set():
            dice.choice(works)(dice)

    def _run(self, dice: random.Random) -> None:
        """Call a healthy model, which must return the right result."""
        number = dice.randrange(len(self._cases))
        self._call_healthy(self._cases[number], self._sessions[number], dice)

    def _call_healthy(self, case: Case, session: qnnbridge.InferenceSession, dice: random.Random) -> None:
        feeds, expected = case.draw(dice)
        timeout = dice.choice((None, None, 30.0))
        outcome = self._call(lambda: session.run(None, feeds, timeout=timeout)[0], timeout)
        self._judge(outcome, expected, case.name)
        placement = session.placement
        self.ledger.check("silent cpu", placement.qnn_nodes > 0 and not placement.cpu_nodes, str(placement))

    def _open_and_close(self, dice: random.Random) -> None:
        """Open a new session, call it, and close or drop it."""
        case = dice.choice(self._cases)
        outcome = self._call(lambda: case.open(self._host), None)
        if outcome.error is not None:
            self._judge(outcome, None, case.name)
            return
        session = outcome.result
        self._call_healthy(case, session, dice)
        if dice.random() < 0.5:
            session.close()
            outcome = self._call(lambda: session.run(None, case.inputs[0][0]), None)
            self.ledger.check("result", isinstance(outcome.error, errors.Closed), f"closed: {outcome.error!r}")

    def _dies_once(self, dice: random.Random) -> None:
        """Use a model that crashes the host once, when created or run; its caller must still get the result."""
        when, how = dice.choice(("on_create", "on_run")), dice.choice(("segv", "abort"))
        mark = self._new_file()
        model = script(scale=11, once=str(mark), **{when: [how]})
        self.faults += 1

        def use() -> Any:
            with qnnbridge.InferenceSession(model, host=self._host) as session:
                return session.run(None, {"x": X})[0]

        outcome = self._call(use, None)
        self._judge(outcome, X * np.float32(11), f"{how} {when}")
        mark.unlink(missing_ok=True)

    def _late(self, dice: random.Random) -> None:
        """Make a call that exceeds its timeout."""
        self._deadline("raise", dice)

    def _late_and_killed(self, dice: random.Random) -> None:
        self._deadline("kill", dice)

    def _deadline(self, on_deadline: Any, dice: random.Random) -> None:
        self.faults += 1
        # Use a new model for each call, because a model that hangs repeatedly is quarantined.
        model = script(scale=13, on_run=[f"sleep:{dice.uniform(0.3, 0.6):.9f}"])
        outcome = self._call(lambda: qnnbridge.InferenceSession(model, host=self._host), None)
        if outcome.error is not None:
            self._judge(outcome, None, "slow model")
            return
        with outcome.result as session:
            timeout = dice.uniform(0.01, 0.2)
            outcome = self._call(
                lambda: session.run(None, {"x": X}, timeout=timeout, on_deadline=on_deadline), timeout
            )
        self.ledger.check(
            "result",
            isinstance(outcome.error, errors.DeadlineExceeded),
            f"a call past its deadline: {outcome.error!r}",
        )

    def _python_exception(self, dice: random.Random) -> None:
        """Cause an exception in the host: it must reach the caller and not end the host."""
        kind = dice.choice(("SystemExit", "KeyboardInterrupt", "MemoryError", "RecursionError", "BadText"))
        self.faults += 1

        def use() -> None:
            with qnnbridge.InferenceSession(script(on_run=[f"exception:{kind}"]), host=self._host) as session:
                session.run(None, {"x": X})

        outcome = self._call(use, None)
        typed = isinstance(outcome.error, errors.RemoteError)
        self.ledger.check("result", typed, f"{kind}: {outcome.error!r}")

    def _always_crashes(self, dice: random.Random) -> None:
        """Use a model that always crashes the host, while other threads may also use such models."""
        with self._lock:
            self.faults += 1
            self._names += 1
            name = self._names
        how = dice.choice(("segv", "abort"))
        model = script(scale=17 + name / 1024, **{dice.choice(("on_create", "on_run")): [how]})

        def use() -> None:
            qnnbridge.InferenceSession(model, host=self._host).run(None, {"x": X})

        for _ in range(8):
            outcome = self._call(use, None)
            if isinstance(outcome.error, errors.ModelQuarantined):
                break
            self._judge_crash(outcome, "always crashes")
            # A crash of one model must not fail the next call of another.
            self._run(dice)
        self.ledger.check("blame", isinstance(outcome.error, errors.ModelQuarantined), f"{outcome.error!r}")
        quick = self._call(use, None)
        self.ledger.check("blame", isinstance(quick.error, errors.ModelQuarantined), f"again: {quick.error!r}")

    # --- faults from outside ---

    def _trouble_from_outside(self, dice: random.Random) -> None:
        while not self._over.wait(dice.uniform(*OUTSIDE_PAUSE_S)):
            process = self._host.supervisor.running
            if process is None:
                continue
            self.faults += 1
            if dice.random() < 0.5:
                process._child.kill()
            else:
                # After the exit code has been collected, the pid may belong to another process.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGSTOP)
                    self._over.wait(dice.uniform(0.05, 0.5))
                    os.kill(process.pid, signal.SIGCONT)

    def _kill_applications(self, dice: random.Random) -> None:
        while not self._over.is_set():
            state = dice.choice(STATES)
            self.faults += 1
            seconds = kill_an_application(state)
            self.ledger.check("orphan", seconds is not None, f"application killed in state {state}")
            self._over.wait(1.0)

    # --- checking ---

    def _call(self, work: Callable[[], Any], timeout: float | None) -> _Outcome:
        clock = FairClock()
        result = error = None
        try:
            result = work()
        except Exception as caught:
            error = caught
        seconds = clock.seconds
        with self._lock:
            self.calls += 1
        if timeout is not None:
            self.ledger.check(
                "deadline",
                seconds < timeout + DEADLINE_GRACE_S,
                f"a call took {seconds:.2f} s with a deadline of {timeout:.2f} s",
            )
        self.ledger.check("alive", seconds < STUCK_AFTER_S, f"a call took {seconds:.0f} s")
        self._judge_words(error)
        return _Outcome(seconds, result, error)

    def _judge(self, outcome: _Outcome, expected: Any, name: str) -> None:
        """Check the outcome of a call of a healthy model."""
        error = outcome.error
        if error is None:
            if expected is not None:
                self.ledger.check("result", is_right(outcome.result, expected), f"{name}: wrong result")
            self.ledger.check("next call", True)
            return
        self.ledger.check("result", isinstance(error, errors.BridgeError), f"{name}: {error!r}")
        self.ledger.check("blame", not isinstance(error, errors.ModelQuarantined), f"{name}: {error}")
        self.ledger.check("next call", False, f"{name}: {error}")

    def _judge_crash(self, outcome: _Outcome, name: str) -> None:
        # The retry may fail with HostHung, if the host is killed because of another call's deadline.
        typed = isinstance(outcome.error, (errors.HostCrashed, errors.HostHung))
        self.ledger.check("result", typed, f"{name}: {outcome.error!r}")

    def _judge_words(self, error: BaseException | None) -> None:
        if not isinstance(error, (errors.HostCrashed, errors.HostStartFailed)):
            return
        report = error.details.get("report")
        said = bool(error.cause) and "exit code" in error.message and bool(report) and Path(report).is_file()
        self.ledger.check("cause", said, str(error))

    def _all_models_work_at_the_end(self) -> None:
        for case, session in zip(self._cases, self._sessions, strict=True):
            for feeds, expected in case.inputs:
                outcome = self._call(lambda s=session, f=feeds: s.run(None, f)[0], None)
                self._judge(outcome, expected, f"{case.name} at the end")

    def _new_file(self) -> Path:
        with self._lock:
            self._names += 1
            return self._folder / f"once-{self._names}"
