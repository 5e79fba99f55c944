"""When to restart a host that died, and when to replace one that has grown.

`RestartPolicy` has two measures: a *delay* that grows while starts achieve nothing, and a *breaker* that stops
trying for a while. The value of a generation decides:

- **productive**: it answered at least one call successfully. The next start is not delayed, regardless of the cause
  of its end, the exponent of the delay is reset to zero and the breaker's list is cleared. A host that is killed
  from outside 200 times a minute but works in between must continue, and such a cycle cannot spin, since each turn
  pays for a whole start and gives an answer. A model that crashes the host every time is handled by the quarantine,
  not here: a death that is blamed on models neither delays the next start nor counts for the breaker, which would
  stop other models.
- **settled**: it answered nothing, but was ready for a minute (no call came). It resets the exponent, too.
- **barren**: everything else. The next start waits ``0.25 s x 2^n`` with full jitter, at most 30 s, where n is the
  number of consecutive barren generations before the one that died.

Five barren deaths within two minutes, with no success in between, open the breaker for a minute; then one start is
tried (half-open). If that generation is barren too, the breaker opens for twice as long, up to ten minutes; if it
gives a good answer or settles, the breaker closes. A barren host that was *killed from outside* (SIGKILL, SIGTERM,
Ctrl+C) does not count for the breaker, because its end does not predict the next one's. For the delay it counts
from the fourth in a row, so that kills at random moments, which also hit some starts, cost little, while a cause
that kills every start soon leads to two tries a minute.

A restart cannot fix a missing interpreter, a wrong machine type, a missing library or versions without overlap: the
same error is raised at once for every further start, until `reset`.

`Recycler` decides when to replace a living host: QNN leaks about 0.15 MB with each compilation, devices more (200
compilations grew the simulator's process from 174 to 204 MB, measured; onnxruntime issue 22511 reports 700 MB that
were kept after the session was closed). A replacement recreates every session that is still used, and those
creations must not trigger the next replacement. So a creation counts only if the application requested it: for each
key, as many creations are free in a generation as the maximum of any earlier generation. A key that identifies one
session, not only its model, makes the count exact; with a key per model, a program that opens and closes one model
again and again gets a fresh host after 1, 3, 6, 10 ... times the number.

Thread-safe; one policy belongs to one host. Nothing waits in here: `next_start` returns how long to wait. Policies
take a `Clock`, so that tests need not wait.
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
        """Return seconds that only increase, for all durations and deadlines."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since 1970, only for written records, because this clock can jump."""
        return time.time()


# With jitter, so that several applications whose hosts die of the same cause do not start in step.
FIRST_DELAY_S: Final = 0.25
MAX_DELAY_S: Final = 30.0
SETTLED_AFTER_S: Final = 60.0
# Up to this many consecutive barren deaths by a kill from outside do not increase the delay.
FREE_KILLS: Final = 3
# systemd's 5 in 10 s and Erlang's 1 in 5 s would never trigger here: a cold start alone takes about 2 s.
BREAKER_DEATHS: Final = 5
BREAKER_WINDOW_S: Final = 120.0
OPEN_S: Final = 60.0
# After a repair, the first call works within ten minutes without further action.
MAX_OPEN_S: Final = 600.0

State = Literal["closed", "open", "half-open", "broken"]


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Permission to start. `probe`: the start is the single try of a half-open breaker."""

    delay_s: float
    probe: bool = False


class RestartPolicy:
    """Decides when the next generation of a host may start.

    Args:
        first_delay_s, max_delay_s: delay before a start after a barren generation, before jitter.
        breaker_deaths, breaker_window_s: number of barren deaths that open the breaker, and within which time.
        open_s, max_open_s: how long the breaker stays open, the first time and at most.
        clock, jitter: for tests. ``jitter()`` returns a number from 0 to 1.
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
        """Forget everything: the application changed something, or requests one more try."""
        with self._lock:
            self._crashed_in_a_row = 0
            self._killed_in_a_row = 0
            self._not_before = self._clock.monotonic()
            # The breaker and its error need only the last few deaths.
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
            BreakerOpen: no start for now; ``details["retry_after_s"]`` is the remaining time.
            BridgeError: again, the error that a restart cannot fix.
        """
        with self._lock:
            if self._incurable is not None:
                # A new object for each caller, see `Supervisor.lost`.
                raise self._incurable.copy()
            now = self._clock.monotonic()
            if self._open_until is None:
                return Start(max(0.0, self._not_before - now))
            if now < self._open_until:
                raise self._breaker_error(self._open_until - now)
            # The supervisor's start lock prevents a second probe.
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
        """Record a successful answer to a call that did something (not a ping). Cheap, since it runs after every
        call."""
        # A plain attribute without the lock: once true, it stays true for the generation.
        if self._proved:
            return
        with self._lock:
            self._proved = True
            self._recover()

    def on_death(
        self, status: ExitStatus | None = None, incurable: BridgeError | None = None, *, booked: bool = False
    ) -> None:
        """Record that the generation ended without a request, or did not start.

        Args:
            incurable: error that `next_start` raises from now on, if a restart cannot help.
            booked: the death was blamed on models.
        """
        with self._lock:
            now = self._clock.monotonic()
            settled = self._ready_at is not None and now - self._ready_at >= SETTLED_AFTER_S
            # Read and reset in one step: a second report of the same death counts as barren, never as productive.
            productive, self._proved, self._ready_at = self._proved, False, None
            if incurable is not None:
                self._incurable = incurable
            # No delay, and no count, whatever ended the host.
            elif productive or booked:
                self._not_before = now
            else:
                if settled:
                    self._recover()
                killed = status is not None and status.code.kind == "killed"
                self._wait_longer(now, killed=killed)
                # A kill from outside does not predict the next start, so it does not open the breaker.
                if not settled and not killed:
                    self._count(now, _describe(status))

    # --- under the lock ---

    def _recover(self) -> None:
        self._crashed_in_a_row = 0
        self._killed_in_a_row = 0
        self._barren_deaths.clear()
        self._open_until = None
        self._open_s = self._first_open_s

    def _wait_longer(self, now: float, *, killed: bool) -> None:
        exponent = self._crashed_in_a_row + max(0, self._killed_in_a_row - FREE_KILLS)
        # Above 2^32 the cap applies anyway, and floats overflow at some point.
        delay_s = min(self._max_delay_s, self._first_delay_s * 2.0 ** min(exponent, 32))
        if killed:
            self._killed_in_a_row += 1
        else:
            self._crashed_in_a_row += 1
        self._not_before = now + delay_s * self._jitter()

    def _count(self, now: float, description: str) -> None:
        # `maxlen` drops the oldest, so element 0 is the fifth to last death.
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
            f"The host is not started for another {retry_after_s:.0f} s: it died {len(deaths)} times in a row "
            "without doing any work.",
            cause=f"Its deaths, oldest first: {'; '.join(deaths)}.",
            fix="See `qnnbridge crashes show last` for the cause; test the installation with `qnnbridge demo`.",
            details={"retry_after_s": retry_after_s, "deaths": deaths},
        )


def _describe(status: ExitStatus | None) -> str:
    return "it did not come up" if status is None else f"exit code {status.describe()}"


# Reading a process's memory takes a system call or two; a host grows little between two checks.
CHECK_INTERVAL_S = 2.0

# Number of remembered sessions; a forgotten session counts once more.
MAX_KEYS = 10_000


@dataclasses.dataclass(frozen=True)
class RecycleAfter:
    """When to replace a host by a fresh one, between two calls. ``None`` means never.

    Attributes:
        rss_bytes: limit of the resident memory of the host process.
        creations: limit of the number of created sessions, without those that are recreated after a replacement.
    """

    rss_bytes: int | None = None
    creations: int | None = None


class Recycler:
    """Decides when to replace a host. Thread-safe; two concurrent calls do no harm."""

    def __init__(self, after: RecycleAfter) -> None:
        self._after = after
        self._next_check = 0.0
        self._lock = Lock()
        self._generation = 0
        self._counted = 0
        # Sessions created in this generation, by key.
        self._made: dict[str, int] = {}
        # Maximum that any earlier generation created, by key; the most recently used keys are at the end.
        self._free: dict[str, int] = {}

    def created(self, generation: int, key: str) -> None:
        """Record the creation of a session. `key` identifies the session, or at least its model and options."""
        if self._after.creations is None:
            return
        with self._lock:
            if generation > self._generation:
                self._begin(generation)
            # Reported late by a thread that created the session before the replacement.
            elif generation < self._generation:
                return  # its host is gone
            made = self._made[key] = self._made.get(key, 0) + 1
            self._counted += made > self._free.get(key, 0)

    def is_due(self, generation: int, pid: int) -> bool:
        """Return whether the host should be replaced now. Read its memory at most every two seconds."""
        after = self._after
        if after.creations is not None and generation == self._generation and self._counted >= after.creations:
            return True
        if after.rss_bytes is None or time.monotonic() < self._next_check:
            return False
        # Without the lock: two threads that read at the same time do no harm.
        self._next_check = time.monotonic() + CHECK_INTERVAL_S
        import psutil  # 12 ms

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
