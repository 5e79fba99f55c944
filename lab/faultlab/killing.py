"""Make many calls from many threads on several models while the host is repeatedly killed with -9."""

from __future__ import annotations

import dataclasses
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable

import qnnbridge
from lab.faultlab.leaks import holdings, leaked_since
from lab.faultlab.models import Case, is_right

# Minimum number of calls between two kills. A call is retried only once, so a second kill during it would be an
# error.
CALLS_BETWEEN_KILLS = 16

STUCK_AFTER_S = 60.0


@dataclasses.dataclass
class Result:
    """Outcome of a run. `errors` counts the errors that reached a caller, by their text."""

    calls: int = 0
    kills: int = 0
    wrong: int = 0
    errors: Counter[str] = dataclasses.field(default_factory=Counter)
    recovery_s: list[float] = dataclasses.field(default_factory=list)
    leaks: dict[str, object] = dataclasses.field(default_factory=dict)
    stuck: bool = False
    seconds: float = 0.0
    quarantined: int = 0
    retried: int = 0

    @property
    def good(self) -> bool:
        return not (self.wrong or self.errors or self.leaks or self.stuck or self.quarantined)

    def __str__(self) -> str:
        times = sorted(self.recovery_s) or [0.0]
        lines = [
            f"{self.calls} calls, {self.kills} kills, {self.retried} calls repeated, {self.seconds:.1f} s",
            f"wrong results: {self.wrong}",
            f"errors that reached a caller: {self.errors.total()}",
            *(f"  {count} x {text}" for text, count in self.errors.most_common(5)),
            f"from a kill to the next right result: median {statistics.median(times) * 1000:.0f} ms, "
            f"worst {times[-1] * 1000:.0f} ms",
            f"leaks: {self.leaks or 'none'}",
        ]
        if self.stuck:
            lines.append(f"STUCK: no call ended for {STUCK_AFTER_S:g} s")
        return "\n".join(lines)


def kill_under_load(
    host: qnnbridge.Host,
    cases: list[Case],
    *,
    calls: int,
    kills: int | None,
    threads: int,
    seed: int,
    storm: bool = False,
) -> Result:
    """Make calls and kill the host until at least `calls` calls and `kills` kills were made.

    The host is started here and closed at the end; resources that remain then are leaks.

    Args:
        calls: minimum number of calls.
        kills: number of kills; ``None`` kills until the calls are done.
        storm: kill as soon as any call has a reply of the next host, regardless of the other calls.
    """
    before = holdings()
    result = Result()
    begin = time.monotonic()
    with host:
        sessions = [case.open(host) for case in cases]
        load = _Load(host, cases, sessions, result, calls=calls, kills=kills, threads=threads, seed=seed)
        load.run(storm=storm)
        result.retried = host.stats.retried_calls
        del sessions
    result.seconds = time.monotonic() - begin
    result.leaks = leaked_since(before)
    return result


class _Load:
    def __init__(
        self,
        host: qnnbridge.Host,
        cases: list[Case],
        sessions: list[qnnbridge.InferenceSession],
        result: Result,
        *,
        calls: int,
        kills: int | None,
        threads: int,
        seed: int,
    ) -> None:
        self._host = host
        self._cases = cases
        self._sessions = sessions
        self._result = result
        self._calls = calls
        self._kills = kills
        self._threads = threads
        self._seed = seed
        self._moved = threading.Condition()
        self._taken = 0
        self._killed: tuple[int, float] | None = None
        self._since_kill = 0
        # For each thread with a running call: the number of kills before the call began.
        self._under_way: dict[int, int] = {}
        self._kills_so_far = 0

    def run(self, *, storm: bool) -> None:
        workers = [
            threading.Thread(target=self._work, args=(n, random.Random(f"{self._seed} {n}")), name=f"load {n}")
            for n in range(self._threads)
        ]
        for worker in workers:
            worker.start()
        if storm:
            self._kill_at_once(random.Random(self._seed))
        else:
            self._kill_at_random(random.Random(self._seed))
        for worker in workers:
            worker.join(STUCK_AFTER_S)
        self._result.stuck |= any(worker.is_alive() for worker in workers)

    def _work(self, worker: int, dice: random.Random) -> None:
        while True:
            with self._moved:
                if (self._taken >= self._calls and not self._more_kills) or self._result.stuck:
                    return
                self._taken += 1
                self._under_way[worker] = self._kills_so_far
            number = dice.randrange(len(self._cases))
            feeds, expected = self._cases[number].draw(dice)
            try:
                right = is_right(self._sessions[number].run(None, feeds)[0], expected)
                error = None
            except Exception as caught:
                right, error = False, f"{type(caught).__name__}: {caught}"
            self._note(worker, self._sessions[number].generation, right, error)

    def _note(self, worker: int, generation: int, right: bool, error: str | None) -> None:
        with self._moved:
            result = self._result
            result.calls += 1
            del self._under_way[worker]
            self._since_kill += 1
            if error is not None:
                result.errors[error] += 1
            elif not right:
                result.wrong += 1
            elif self._killed is not None and generation > self._killed[0]:
                # The call has recovered: this reply comes from the new host, not from the pipe of the killed host.
                result.recovery_s.append(time.monotonic() - self._killed[1])
                self._killed = None
            self._moved.notify_all()

    @property
    def _more_kills(self) -> bool:
        return self._kills is not None and self._result.kills < self._kills

    def _kill_at_once(self, dice: random.Random) -> None:
        result = self._result
        while self._more_kills or (self._kills is None and result.calls < self._calls):
            with self._moved:
                if not self._wait_for(lambda: self._killed is None or result.calls >= self._calls):
                    return
            threading.Event().wait(dice.random() * 0.003)
            self._kill()

    def _kill_at_random(self, dice: random.Random) -> None:
        result = self._result
        assert self._kills is not None
        while self._more_kills:
            # Distribute the kills over the remaining calls, with a random number of calls between two kills.
            average = max(CALLS_BETWEEN_KILLS, (self._calls - result.calls) // (self._kills - result.kills + 1))
            wanted = dice.randint(CALLS_BETWEEN_KILLS, 2 * average - CALLS_BETWEEN_KILLS)
            with self._moved:
                if not self._wait_for(
                    lambda wanted=wanted: self._since_kill >= wanted and self._all_have_answers()
                ):
                    return
            # Wait a random time of up to 3 ms, so that kills hit every stage of a call.
            threading.Event().wait(dice.random() * 0.003)
            self._kill()

    def _kill(self) -> None:
        process = self._host.supervisor.running
        if process is None:
            return
        with self._moved:
            self._since_kill = 0
            self._killed = (process.generation, time.monotonic())
            self._result.kills += 1
        # Use the process object that collects the exit code, so that the pid cannot have been reused.
        process._child.kill()
        with self._moved:
            self._kills_so_far += 1

    def _all_have_answers(self) -> bool:
        """Return whether all calls that ran during the last kill have ended. The caller holds the lock.

        A call is retried only once, so another kill during such a call would be an error.
        """
        return all(kills == self._kills_so_far for kills in self._under_way.values())

    def _wait_for(self, condition: Callable[[], bool]) -> bool:
        """Wait for the condition; return False if no call ends for a long time. The caller holds the lock."""
        while not condition():
            before = self._result.calls
            if not self._moved.wait(STUCK_AFTER_S) and self._result.calls == before:
                self._result.stuck = True
                return False
        return True
