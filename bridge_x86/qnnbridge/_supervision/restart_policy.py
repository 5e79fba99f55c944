"""When a host that died is started again, and when one that has grown is replaced.

`RestartPolicy` has two measures: a *delay* that grows while starts bring nothing, and a *breaker* that stops
trying for a while. The worth of a generation decides:

- **productive**: it answered at least one call well. Whatever ended it, the next start has no delay, the delay's
  exponent is back at zero and the breaker's list is empty. A host that is killed from outside 200 times a minute
  while it works in between must go on working, and such a cycle cannot spin, since each turn pays for a whole start
  and gives an answer. A model that kills the host every time is the quarantine's business, not this module's: so a
  death that is booked on models neither delays the next start nor counts for the breaker, which other models need.
- **settled**: it answered nothing, but was ready for a minute (no call came). It resets the exponent too.
- **barren**: everything else. The next start waits ``0.25 s x 2^n`` with full jitter, at most 30 s, where n is the
  number of barren generations in a row before the one that died.

Five barren deaths within two minutes, with nothing good in between, open the breaker for a minute; then one start
is tried (half-open). If that one is barren too, the breaker opens for twice as long, up to ten minutes; if it
gives a good answer or settles, the breaker is closed. A barren host that was *killed from outside* (SIGKILL,
SIGTERM, Ctrl+C) does not count for the breaker: it says nothing about whether the next one could work. For the
delay it counts from the fourth in a row, so that kills at random moments, which hit some starts as well, cost
little, while a cause that kills every start is soon down to two tries a minute.

A restart cannot cure a missing interpreter, a wrong machine, a missing library or versions without overlap: the
same error is raised at once for every further start, until `reset`.

`Recycler` says when a living host is due for replacement: QNN leaks about 0.15 MB with each compile, devices more
(200 compiles grew the simulator's process from 174 to 204 MB, measured; onnxruntime issue 22511 reports 700 MB
that were kept after the session was closed). A replacement makes every session that is still used anew, and those
creations must not bring about the next replacement. So a creation counts only if the application asked for it: of
each key as many are free in a generation as the most that any earlier generation made. A key that names one
session, not only its model, makes the count exact; with a key per model a program that opens and closes one model
again and again gets a fresh host after 1, 3, 6, 10 ... times the number.

Any thread; one policy belongs to one host. Nothing waits in here: `next_start` says how long to wait. Policies
take a `Clock`, so that tests need no waiting.
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
        """Seconds that only ever grow; for every duration and deadline."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970; only for written records, because it can jump."""
        return time.time()


# With jitter: several applications whose hosts die of one cause do not start in step.
FIRST_DELAY_S: Final = 0.25
MAX_DELAY_S: Final = 30.0
SETTLED_AFTER_S: Final = 60.0
# This many barren deaths in a row by a kill from outside do not make the delay grow.
FREE_KILLS: Final = 3
# systemd's 5 in 10 s and Erlang's 1 in 5 s never fire here: a cold start alone takes about 2 s.
BREAKER_DEATHS: Final = 5
BREAKER_WINDOW_S: Final = 120.0
OPEN_S: Final = 60.0
# After a repair the first call works within ten minutes without anyone's doing.
MAX_OPEN_S: Final = 600.0

State = Literal["closed", "open", "half-open", "broken"]


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Permission to start. probe: it is the one try of a half-open breaker."""

    delay_s: float
    probe: bool = False


class RestartPolicy:
    """Decides when the next generation of a host may start.

    Args:
        first_delay_s, max_delay_s: the delay before a start after a barren generation, before jitter.
        breaker_deaths, breaker_window_s: how many barren deaths in how long open the breaker.
        open_s, max_open_s: how long it stays open, the first time and at most.
        clock, jitter: for tests. ``jitter()`` gives a number from 0 to 1.
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
        """Forget everything: the application changed something, or asks for one more try."""
        with self._lock:
            self._crashed_in_a_row = 0
            self._killed_in_a_row = 0
            self._not_before = self._clock.monotonic()
            # The last few are all that the breaker and its error need.
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
        """How long to wait before the next start. Asking changes nothing.

        Raises:
            BreakerOpen: no start for now; ``details["retry_after_s"]`` says for how long.
            BridgeError: what cannot be cured by a restart, again.
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
            # Nothing keeps a second probe away here: the supervisor's start lock does.
            return Start(max(0.0, self._not_before - now), probe=True)

    def on_start(self) -> None:
        """A process is being started now."""
        with self._lock:
            self._ready_at = None
            self._proved = False

    def on_ready(self) -> None:
        """It said HELLO."""
        with self._lock:
            self._ready_at = self._clock.monotonic()

    def on_good_reply(self) -> None:
        """A call that did something (not a ping) was answered well. Asked after every call: cheap."""
        # A plain attribute: asked after every call, and once true it stays so for the generation.
        if self._proved:
            return
        with self._lock:
            self._proved = True
            self._recover()

    def on_death(
        self, status: ExitStatus | None = None, incurable: BridgeError | None = None, *, booked: bool = False
    ) -> None:
        """The generation ended without being asked to, or did not come up.

        incurable: what `next_start` raises from now on, if a restart cannot help. booked: on models.
        """
        with self._lock:
            now = self._clock.monotonic()
            settled = self._ready_at is not None and now - self._ready_at >= SETTLED_AFTER_S
            # Taken and reset in one step: a second report of the same death counts as barren, never as
            # productive.
            productive, self._proved, self._ready_at = self._proved, False, None
            if incurable is not None:
                self._incurable = incurable
            # No delay and nothing counted, whatever ended it.
            elif productive or booked:
                self._not_before = now
            else:
                if settled:
                    self._recover()
                killed = status is not None and status.code.kind == "killed"
                self._wait_longer(now, killed=killed)
                # A kill from outside says nothing about the next start, so it does not open the breaker.
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
        # Past 2^32 the cap holds anyway, and floats overflow at some point.
        delay_s = min(self._max_delay_s, self._first_delay_s * 2.0 ** min(exponent, 32))
        if killed:
            self._killed_in_a_row += 1
        else:
            self._crashed_in_a_row += 1
        self._not_before = now + delay_s * self._jitter()

    def _count(self, now: float, description: str) -> None:
        # `maxlen` drops the oldest, so element 0 is the fifth last death.
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
            fix="See `qnnbridge crashes show last` for why it dies; try the installation with `qnnbridge demo`.",
            details={"retry_after_s": retry_after_s, "deaths": deaths},
        )


def _describe(status: ExitStatus | None) -> str:
    return "it did not come up" if status is None else f"exit code {status.describe()}"


# Reading a process's memory takes a system call or two; between two looks a host grows little.
CHECK_INTERVAL_S = 2.0

# Remembered; a session that was forgotten counts once more.
MAX_KEYS = 10_000


@dataclasses.dataclass(frozen=True)
class RecycleAfter:
    """When a host is replaced by a fresh one between two calls. ``None`` means never.

    rss_bytes: resident memory of the host process. creations: sessions made in it, without those that only come
    back after a replacement.
    """

    rss_bytes: int | None = None
    creations: int | None = None


class Recycler:
    """Says when it is time. Any thread; being asked twice at once does no harm."""

    def __init__(self, after: RecycleAfter) -> None:
        self._after = after
        self._next_check = 0.0
        self._lock = Lock()
        self._generation = 0
        self._counted = 0
        # Sessions made in this generation, by key.
        self._made: dict[str, int] = {}
        # The most that any earlier generation made, by key; the keys used last are at the end.
        self._free: dict[str, int] = {}

    def created(self, generation: int, key: str) -> None:
        """A session was made in this generation. key: names the session, or at least its model and options."""
        if self._after.creations is None:
            return
        with self._lock:
            if generation > self._generation:
                self._begin(generation)
            # Reported late, by a thread that made it before the replacement.
            elif generation < self._generation:
                return  # its host is gone
            made = self._made[key] = self._made.get(key, 0) + 1
            self._counted += made > self._free.get(key, 0)

    def is_due(self, generation: int, pid: int) -> bool:
        """Whether the host should be replaced now. Looks at its memory every two seconds at most."""
        after = self._after
        if after.creations is not None and generation == self._generation and self._counted >= after.creations:
            return True
        if after.rss_bytes is None or time.monotonic() < self._next_check:
            return False
        # Not under the lock: two threads that look at once do no harm.
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
