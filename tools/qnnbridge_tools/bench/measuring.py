"""Times of several contenders that take turns, so that what disturbs the machine disturbs all of them alike.

Each has one turn in a round; the report has percentiles over all calls, and as noise how far the medians
of its rounds lie apart. Only one thread measures at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Makes this many calls and returns the nanoseconds of each.
Batch = Callable[[int], Sequence[int]]

# In one round.
MOST_CALLS = 5000


@dataclasses.dataclass(frozen=True, slots=True)
class Contender:
    """batch: does the calls. least_calls: in a round, however long they take."""

    name: str
    batch: Batch
    least_calls: int = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. noise: half the distance between the quartiles of the rounds' medians, as a part of the median."""

    median_s: float
    p90_s: float
    p99_s: float
    best_s: float
    noise: float
    calls: int


def timed(call: Callable[[], Any]) -> Batch:
    """A batch of plain calls in this process."""

    def batch(count: int) -> Sequence[int]:
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
    """Let them take turns of about `turn_s` each. They are warm by then."""
    counts = {contender.name: _calls_in(contender, turn_s) for contender in contenders}
    taken: dict[str, list[Sequence[int]]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        # Every other round backwards: no contender always follows the same neighbour.
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            contender.batch(1)  # what the neighbour has pushed out of the caches is fetched again
            taken[contender.name].append(contender.batch(counts[contender.name]))
        on_round(number)
    return {name: summary(times) for name, times in taken.items()}


def summary(rounds: Sequence[Sequence[int]]) -> Timing:
    """The timing of nanoseconds, round by round."""
    everything = sorted(time_ns for times in rounds for time_ns in times)
    medians = [statistics.median(times) for times in rounds]
    # Of the rounds, not of all calls: a round that something else ran in counts as one, not as all its calls.
    median = statistics.median(medians)
    noise = 0.0
    if len(medians) > 1 and median:
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
    """The value that this part of them does not exceed."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _calls_in(contender: Contender, turn_s: float) -> int:
    # Warm, and then measured: the first calls take longer.
    contender.batch(contender.least_calls)
    one_s = statistics.median(contender.batch(contender.least_calls)) / 1e9
    return max(contender.least_calls, min(MOST_CALLS, int(turn_s / max(one_s, 1e-7))))


@contextlib.contextmanager
def pinned(pids: Sequence[int], *, wanted: bool = True) -> Iterator[bool]:
    """This process and these on one CPU, so that no call pays for waking another one up. Whether that worked."""
    import psutil

    before: list[tuple[int, list[int]]] = []
    done = wanted
    try:
        if wanted:
            try:
                for pid in (os.getpid(), *pids):
                    allowed = psutil.Process(pid).cpu_affinity()
                    before.append((pid, allowed))
                    # All on one CPU that this process may use; which one does not matter.
                    _keep_on(pid, [before[0][1][0]])
            except (psutil.Error, AttributeError, OSError, ValueError):
                done = False
        yield done
    finally:
        for pid, allowed in reversed(before):
            with contextlib.suppress(psutil.Error, OSError):
                _keep_on(pid, allowed)


def _keep_on(pid: int, cpus: list[int]) -> None:
    import psutil

    process = psutil.Process(pid)
    process.cpu_affinity(cpus)
    if sys.platform == "linux":  # there that is the main thread alone, and threads that it starts from now on
        for thread in process.threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, cpus)
