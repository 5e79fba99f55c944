"""Decide when to restart a host that died, and when to replace a running host, which leaks memory.

`RestartPolicy` has two measures: a *delay* that grows with each start that leads to no useful work, and a *breaker*
that prevents starts for some time. Each generation (process of the host) is in one of three classes:

- **productive**: it answered at least one call successfully. Regardless of its end, the next start is not delayed,
  the exponent of the delay is reset to zero and the breaker's list is cleared. A host that is killed from outside
  200 times a minute but works in between must continue. Such a cycle is not an endless loop without progress,
  because each turn includes a complete start and an answer. A model that crashes the host every time is handled by
  the quarantine, not here: a death that is blamed on models neither delays the next start nor counts for the
  breaker, which would stop other models.
- **settled**: it was ready for a minute, but received no call. This also resets the exponent.
- **barren**: everything else. The next start waits ``0.25 s x 2^n`` with full jitter, at most 30 s, where n is the
  number of consecutive barren generations before the one that died.

Five deaths of barren generations within two minutes, without a success in between, open the breaker for a minute.
Then one start is tried (half-open). If that generation is barren too, the breaker opens for twice as long, up to
ten minutes; if it gives a good answer or settles, the breaker closes. A barren host that was *killed from outside*
(SIGKILL, SIGTERM, Ctrl+C) does not count for the breaker, because such a kill does not mean that the next host
fails. The delay increases only from the fourth consecutive kill on. So kills at random moments, of which some occur
during a start, cause little delay, while a cause that kills every start soon leads to two attempts a minute.

A restart cannot fix a missing interpreter, a wrong machine type, a missing library or incompatible versions: the
same error is raised at once for every further start, until `reset`.

`Recycler` decides when to replace a running host. QNN leaks about 0.15 MB with each compilation, and more on
devices (200 compilations grew the simulator's process from 174 to 204 MB, measured; onnxruntime issue 22511 reports
700 MB that were kept after the session was closed). After a replacement, every session that is still used is
created again, and these creations must not trigger the next replacement. So only creations that the application
requested are counted. Each creation is recorded with a key: if an earlier generation has created N sessions with a
key, the first N creations with this key in a later generation do not count. The count is exact if a key identifies
one session and not only its model. If a key identifies only the model, a program that opens and closes one model
repeatedly gets a new host after 1, 3, 6, 10 ... times the limit.

Thread-safe; each host has its own policy. No function waits: `next_start` returns how long to wait. Policies take a
`Clock`, so that tests can replace the time.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import BreakerOpen, BridgeError

if TYPE_CHECKING:
    from qnnbridge._diagnosis.exit_codes import ExitStatus


class Clock:
    def monotonic(self) -> float:
        """Return the time in seconds on a clock that only increases. Used for all durations and deadlines."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since 1970. Use this only for stored records, because the system clock can jump."""
        return time.time()


# First delay before a restart. Delays are multiplied by a random factor (jitter), so that several applications
# whose hosts die for the same reason do not start hosts at the same moment.
FIRST_DELAY_S: Final = 0.25
MAX_DELAY_S: Final = 30.0
SETTLED_AFTER_S: Final = 60.0
# Number of consecutive kills from outside (of generations without useful work) that do not increase the delay.
FREE_KILLS: Final = 3
# Number of deaths that open the breaker. With the limits of systemd (5 starts in 10 s) and Erlang (1 in 5 s) the
# breaker would hardly ever open, because a cold start takes about 2 s.
BREAKER_DEATHS: Final = 5
BREAKER_WINDOW_S: Final = 120.0
OPEN_S: Final = 60.0
# Maximum time for which the breaker is open, so that calls work again at most ten minutes after a repair.
MAX_OPEN_S: Final = 600.0

State = Literal["closed", "open", "half-open", "broken"]


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Permission to start. `probe`: whether this is the single start that a half-open breaker allows."""

    delay_s: float
    probe: bool = False


class RestartPolicy:
    """Decide when the next generation of a host may start.

    Args:
        first_delay_s, max_delay_s: first and longest delay before a start after a barren generation, before jitter.
        breaker_deaths, breaker_window_s: number of barren deaths that open the breaker, and the time for them.
        open_s, max_open_s: how long the breaker stays open the first time, and at most.
        clock, jitter: sources of time and random numbers (0 to 1), replaced in tests.
    """

    def __init__(
        self,
        *,
        first_delay_s: float = FIRST_DELAY_S,
        max_delay_s: float = MAX_DELAY_S,
        breaker_deaths: int = BREAKER_DEATHS,
        breaker_window_s: float = BREAKER_WINDOW_S,
        open_s: float = OPEN_S,
        max_open_s: float = MAX_OPEN_S,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._first_delay_s = first_delay_s
        self._max_delay_s = max_delay_s
        self._breaker_deaths = breaker_deaths
        self._breaker_window_s = breaker_window_s
        self._first_open_s = open_s
        self._max_open_s = max_open_s
        self._clock: Clock = clock or Clock()
        self._jitter = jitter
        self._lock = renew_in_forks(Lock())
        self.reset()

    def reset(self) -> None:
        """Forget all deaths, because a setting was changed or the application requests another attempt."""
        with self._lock:
            self._crashed_in_a_row = 0
            self._killed_in_a_row = 0
            self._not_before = self._clock.monotonic()
            # Keep only as many deaths as the breaker needs; its error message lists them.
            self._barren_deaths: collections.deque[tuple[float, str]] = collections.deque(
                maxlen=self._breaker_deaths
            )
            self._open_until: float | None = None
            self._open_s = self._first_open_s
            self._incurable: BridgeError | None = None
            self._ready_at: float | None = None
            self._proved = False

    @property
    def state(self) -> State:
        if self._incurable is not None:
            return "broken"
        if self._open_until is None:
            return "closed"
        return "open" if self._clock.monotonic() < self._open_until else "half-open"

    def next_start(self) -> Start:
        """Return how long to wait before the next start. Has no side effects.

        Raises:
            BreakerOpen: the host must not be started; ``details["retry_after_s"]`` is the remaining time.
            BridgeError: a restart cannot help. A copy of the error of the failed start is raised.
        """
        with self._lock:
            if self._incurable is not None:
                # Raise a separate object for each caller: an exception that several threads raise would collect all
                # their tracebacks.
                raise self._incurable.copy()
            now = self._clock.monotonic()
            if self._open_until is None:
                return Start(max(0.0, self._not_before - now))
            if now < self._open_until:
                raise self._breaker_error(self._open_until - now)
            # The supervisor's start lock admits one start at a time, so there is no second probe.
            return Start(max(0.0, self._not_before - now), probe=True)

    def on_start(self) -> None:
        """Record that a process is being started."""
        with self._lock:
            self._ready_at = None
            self._proved = False

    def on_ready(self) -> None:
        """Record the host's HELLO."""
        with self._lock:
            self._ready_at = self._clock.monotonic()

    def on_good_reply(self) -> None:
        """Record a successful response to a call other than a ping. The method runs after every call, so it must be
        fast."""
        # Read the attribute without the lock: within a generation it never changes back to false.
        if self._proved:
            return
        with self._lock:
            self._proved = True
            self._recover()

    def on_death(
        self, status: ExitStatus | None = None, incurable: BridgeError | None = None, *, booked: bool = False
    ) -> None:
        """Record that the generation ended unexpectedly, or did not start.

        Args:
            incurable: if a restart cannot help, the error that `next_start` raises from now on.
            booked: whether models were blamed for the death.
        """
        with self._lock:
            now = self._clock.monotonic()
            settled = self._ready_at is not None and now - self._ready_at >= SETTLED_AFTER_S
            # Reset the state of the dead generation, so that a death before the next `on_start` counts as barren.
            productive, self._proved, self._ready_at = self._proved, False, None
            if incurable is not None:
                self._incurable = incurable
            # After a productive generation, do not delay the next start and do not count the death.
            elif productive or booked:
                self._not_before = now
            else:
                if settled:
                    self._recover()
                killed = status is not None and status.code.kind == "killed"
                self._wait_longer(now, killed=killed)
                # A kill from outside does not open the breaker, because the next start may succeed.
                if not settled and not killed:
                    self._count(now, _describe(status))

    # --- methods that are called with the lock held ---

    def _recover(self) -> None:
        self._crashed_in_a_row = 0
        self._killed_in_a_row = 0
        self._barren_deaths.clear()
        self._open_until = None
        self._open_s = self._first_open_s

    def _wait_longer(self, now: float, *, killed: bool) -> None:
        exponent = self._crashed_in_a_row + max(0, self._killed_in_a_row - FREE_KILLS)
        # Limit the exponent, because floats overflow. With 2^32 the delay exceeds its maximum in any case.
        delay_s = min(self._max_delay_s, self._first_delay_s * 2.0 ** min(exponent, 32))
        if killed:
            self._killed_in_a_row += 1
        else:
            self._crashed_in_a_row += 1
        self._not_before = now + delay_s * self._jitter()

    def _count(self, now: float, description: str) -> None:
        # The deque's `maxlen` drops older deaths, so element 0 is the first of the last five deaths.
        self._barren_deaths.append((now, description))
        if self._open_until is not None:  # the probe failed
            self._open_s = min(self._max_open_s, self._open_s * 2)
            self._open_until = now + self._open_s
        elif (
            len(self._barren_deaths) == self._breaker_deaths
            and now - self._barren_deaths[0][0] <= self._breaker_window_s
        ):
            self._open_until = now + self._open_s

    def _breaker_error(self, retry_after_s: float) -> BreakerOpen:
        deaths = [description for _, description in self._barren_deaths]
        return BreakerOpen(
            f"The host will not be started for another {retry_after_s:.0f} s: it died {len(deaths)} times in a row "
            "without doing any work.",
            cause=f"Its deaths, oldest first: {'; '.join(deaths)}.",
            fix="See `qnnbridge crashes show last` for the cause; test the installation with `qnnbridge demo`.",
            details={"retry_after_s": retry_after_s, "deaths": deaths},
        )


def _describe(status: ExitStatus | None) -> str:
    return "it did not start" if status is None else f"exit code {status.describe()}"


# Minimum seconds between two checks of the memory, which need system calls. A host grows little in this time.
CHECK_INTERVAL_S = 2.0

# Maximum number of stored keys. If a key was dropped, the next creation of its session counts as new.
MAX_KEYS = 10_000


@dataclasses.dataclass(frozen=True)
class RecycleAfter:
    """Limits at which a new process replaces the host, between two calls. ``None`` means no limit.

    Attributes:
        rss_bytes: limit of the resident memory of the host process.
        creations: limit of the number of created sessions, not counting sessions that are created again after a
            replacement.
    """

    rss_bytes: int | None = None
    creations: int | None = None


class Recycler:
    """Decide when to replace a host. Thread-safe; concurrent calls are harmless."""

    def __init__(self, after: RecycleAfter) -> None:
        self._after = after
        self._next_check = 0.0
        self._lock = Lock()
        self._generation = 0
        self._counted = 0
        # Number of sessions created in this generation, by key.
        self._made: dict[str, int] = {}
        # Largest number of sessions that any earlier generation created, by key. The most recently used keys come
        # last.
        self._free: dict[str, int] = {}

    def created(self, generation: int, key: str) -> None:
        """Record the creation of a session. `key` identifies the session, or at least its model and options."""
        if self._after.creations is None:
            return
        with self._lock:
            if generation > self._generation:
                self._begin(generation)
            # Ignore a session that a thread created before the host was replaced, and reports only now.
            elif generation < self._generation:
                return
            made = self._made[key] = self._made.get(key, 0) + 1
            self._counted += made > self._free.get(key, 0)

    def is_due(self, generation: int, pid: int) -> bool:
        """Return whether to replace the host. The host's memory is measured at most every two seconds."""
        after = self._after
        if after.creations is not None and generation == self._generation and self._counted >= after.creations:
            return True
        if after.rss_bytes is None or time.monotonic() < self._next_check:
            return False
        # Take no lock: it is harmless if two threads read the memory at the same time.
        self._next_check = time.monotonic() + CHECK_INTERVAL_S
        import psutil  # imported here because the import takes 12 ms

        try:
            return bool(psutil.Process(pid).memory_info().rss > after.rss_bytes)
        except psutil.Error:
            return False

    def _begin(self, generation: int) -> None:
        for key, made in self._made.items():
            self._free[key] = max(made, self._free.pop(key, 0))
        for key in list(self._free)[:-MAX_KEYS]:
            del self._free[key]
        self._generation, self._counted, self._made = generation, 0, {}
