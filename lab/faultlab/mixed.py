"""Soak test of the fast path: many calls with all sizes, call options and numbers of threads, while hosts are
killed.

Every result is compared with the right result, bit for bit; borrowed results are compared again later. The calls
are divided into laps. After each lap both processes release unused resources, as they do after half a minute
without calls, and are measured: neither descriptors nor memory may grow. Shared memory must never exceed its limit.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import gc
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import qnnbridge
from qnnbridge._fastpath import MEMORY_LIMIT_BYTES

# Sizes of the arrays in bytes, and their relative weights in the random choice. Large arrays are rare, since
# copying them would dominate the test.
SIZES = {0: 8, 4: 15, 64: 25, 4096: 30, 65_536: 16, 614_400: 5, 4_194_304: 0.9, 33_554_432: 0.1}

CROWDS = (1, 2, 4, 8)
WAYS = ("plain", "out", "zero-copy", "borrow")
LAPS = 8
CALLS_BETWEEN_KILLS = 32
RETRIES = 4
# Number of borrowed results that each thread keeps to check them again.
HELD = 3

# Allowed growth of the heaps. Shared memory is measured separately and may not grow at all.
GROWTH_BYTES = 16 * 1024 * 1024

GROWTH_FDS = 2
REST_TIMEOUT_S = 10.0
# Shared memory for the phases of calls, which exists as long as the host, rounded up to the allocation size.
PHASES_BYTES = 128 * 1024
STUCK_AFTER_S = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Rest:
    """Resources of an idle process: number of descriptors, bytes of its heaps (`own`), bytes of shared memory."""

    fds: int
    own: int
    shared: int

    @classmethod
    def of(cls, pid: int) -> Rest:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
        return cls(
            len(list(Path(f"/proc/{pid}/fd").iterdir())),
            int(sizes["RssAnon"]) * 1024,
            int(sizes["RssShmem"]) * 1024,
        )

    def __str__(self) -> str:
        return f"{self.fds:4} fds {self.own / 1e6:7.1f} MB {self.shared / 1e6:6.1f} MB shared"


@dataclasses.dataclass
class MixedResult:
    """Outcome of the soak test.

    Args:
        laps: resources of the idle application and host after each lap.
        peak: largest number of shared bytes at any time.
    """

    calls: int = 0
    wrong: int = 0
    kills: int = 0
    ways: Counter[str] = dataclasses.field(default_factory=Counter)
    errors: Counter[str] = dataclasses.field(default_factory=Counter)
    laps: list[tuple[Rest, Rest]] = dataclasses.field(default_factory=list)
    stuck: bool = False
    seconds: float = 0.0
    shared_calls: int = 0
    retried: int = 0
    peak: int = 0
    limit: int = 0

    @property
    def flat(self) -> bool:
        """True if descriptors and memory did not grow in the second half of the laps, and the peak is within its
        limit.
        """
        half = len(self.laps) // 2
        for side in (0, 1):
            rests = [lap[side] for lap in self.laps]
            if len(rests) > 1:
                before, behind = rests[:half], rests[half:]
                if max(rest.fds for rest in behind) > max(rest.fds for rest in before) + GROWTH_FDS:
                    return False
                if max(rest.own for rest in behind) > max(rest.own for rest in before) + GROWTH_BYTES:
                    return False
            if any(rest.shared > PHASES_BYTES for rest in rests):
                return False
        return self.peak <= self.limit

    @property
    def good(self) -> bool:
        return not (self.wrong or self.errors or self.stuck) and self.flat

    def __str__(self) -> str:
        lines = [
            f"{self.calls} calls ({', '.join(f'{n} {way}' for way, n in sorted(self.ways.items()))}), "
            f"{self.kills} kills, {self.retried} calls repeated, {self.seconds:.0f} s",
            f"calls with shared memory: {self.shared_calls}",
            f"wrong results: {self.wrong}; errors that reached a caller: {self.errors.total()}",
            *(f"  {count} x {text}" for text, count in self.errors.most_common(5)),
            f"peak of shared memory {self.peak / 1e6:.0f} MB, limit {self.limit / 1e6:.0f} MB",
            "idle after each lap: application | host",
            *(f"  {application} | {host}" for application, host in self.laps),
            "flat" if self.flat else "GROWN",
        ]
        if self.stuck:
            lines.append("STUCK")
        return "\n".join(lines)


def mixed_soak(
    host: qnnbridge.Host,
    model: Path,
    *,
    calls: int,
    kills: int,
    seed: int,
    laps: int = LAPS,
    on_progress: Callable[[str], None] = lambda _: None,
) -> MixedResult:
    """Run the soak test.

    Args:
        model: a model that adds 1 to a vector of any length.
        on_progress: called with a message after each lap.
    """
    result = MixedResult(limit=2 * MEMORY_LIMIT_BYTES)
    begin = time.monotonic()
    return_freed_memory()
    options = qnnbridge.SessionOptions()
    options.enable_cpu_mem_arena = False  # the arena never returns memory to the system, which looks like a leak
    with (
        host,
        qnnbridge.InferenceSession(str(model), options, providers=["CPUExecutionProvider"], host=host) as session,
    ):
        for lap in range(laps):
            _Lap(host, session, result, calls // laps, kills // laps, f"{seed} {lap}").run()
            if result.stuck:
                break
            # Make the same calls before each measurement: a host that started after the last kill may not have
            # allocated the usual resources yet.
            caller = _Caller(session, random.Random(0))
            result.wrong += sum(not caller.call(way, size) for size in SIZES for way in WAYS)
            result.wrong += caller.spoiled()
            del caller
            result.laps.append(_come_to_rest(host, result.laps[0][1].fds if result.laps else None))
            application, other = result.laps[-1]
            on_progress(
                f"lap {lap + 1} of {laps}, {time.monotonic() - begin:.0f} s: {result.calls} calls, "
                f"{result.kills} kills, {result.wrong} wrong, {result.errors.total()} errors | {application} | {other}"
            )
        stats = host.stats
        result.shared_calls = stats.shared_calls
        result.retried = stats.retried_calls
    result.seconds = time.monotonic() - begin
    return result


def _come_to_rest(host: qnnbridge.Host, usual_fds: int | None) -> tuple[Rest, Rest]:
    """Make both processes release unused resources, as when they are idle; return the remaining resources.

    Args:
        usual_fds: number of descriptors of an idle host, once it is known.
    """
    gc.collect()
    process = host.supervisor.running
    assert process is not None
    if process.pool is not None:
        seen: dict[int, int] = {}
        process.pool.trim(seen)  # the first call records the use of each channel
        process.pool.trim(seen)  # the second call closes the channels that were not used since
        assert not len(process.pool)
    host.ping(REST_TIMEOUT_S)
    until = time.monotonic() + REST_TIMEOUT_S
    rest = Rest.of(os.getpid()), Rest.of(process.real_pid)
    while time.monotonic() < until:
        # Wait, because separate threads close the host's fast channels and the stderr pipe of a dead host.
        threading.Event().wait(0.1)
        before, rest = rest, (Rest.of(os.getpid()), Rest.of(process.real_pid))
        quiet = rest[1].fds == before[1].fds if usual_fds is None else rest[1].fds <= usual_fds
        if quiet and all(side.shared <= PHASES_BYTES for side in rest):
            break
    return rest


# Environment of the host. By default the C library raises this threshold and keeps freed memory in the heap of each
# thread. This memory is not leaked, but it would hide real leaks.
HEAP_SETTING = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}


def return_freed_memory() -> None:
    """Set the threshold of `HEAP_SETTING` in this process, so that freed large arrays are returned to the
    system."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_mmap_threshold = -3
        mallopt(m_mmap_threshold, int(HEAP_SETTING["MALLOC_MMAP_THRESHOLD_"]))


class _Lap:
    """A portion of the calls, divided equally among the thread counts in `CROWDS`."""

    def __init__(
        self,
        host: qnnbridge.Host,
        session: qnnbridge.InferenceSession,
        result: MixedResult,
        calls: int,
        kills: int,
        seed: str,
    ) -> None:
        self._host = host
        self._session = session
        self._result = result
        self._calls = calls
        self._kills = kills
        self._seed = seed
        self._lock = threading.Lock()
        self._left = 0
        self._since_kill = 0
        self._over = threading.Event()

    def run(self) -> None:
        for crowd in CROWDS:
            self._left = self._calls // len(CROWDS)
            self._over.clear()
            killer = threading.Thread(target=self._kill, args=(self._left, self._kills // len(CROWDS)))
            workers = [
                threading.Thread(target=self._work, args=(random.Random(f"{self._seed} {crowd} {n}"),), daemon=True)
                for n in range(crowd)
            ]
            for thread in (*workers, killer):
                thread.start()
            for worker in workers:
                while worker.is_alive() and not self._result.stuck:
                    before = self._result.calls
                    worker.join(STUCK_AFTER_S)
                    self._result.stuck |= worker.is_alive() and self._result.calls == before
            self._over.set()
            killer.join()

    def _work(self, dice: random.Random) -> None:
        caller = _Caller(self._session, dice)
        sizes, weights = list(SIZES), list(SIZES.values())
        while not self._result.stuck:
            with self._lock:
                if self._left <= 0:
                    break
                self._left -= 1
            way = dice.choice(WAYS)
            try:
                right, error = caller.call(way, dice.choices(sizes, weights)[0]), None
            except Exception as caught:
                right, error = True, f"{type(caught).__name__}: {str(caught).splitlines()[0]}"
            with self._lock:
                self._result.peak = max(self._result.peak, self._host.sharing.bytes)
                self._result.calls += 1
                self._result.ways[way] += 1
                self._result.wrong += not right
                self._since_kill += 1
                if error is not None:
                    self._result.errors[error] += 1
        with self._lock:
            self._result.wrong += caller.spoiled()

    def _kill(self, calls: int, kills: int) -> None:
        dice = random.Random(f"{self._seed} kills")
        for _ in range(kills):
            wanted = dice.randint(CALLS_BETWEEN_KILLS, max(CALLS_BETWEEN_KILLS + 1, 2 * calls // (kills + 1)))
            while self._since_kill < wanted:
                if self._over.wait(0.002):
                    return
            process = self._host.supervisor.running
            if process is None:
                continue
            self._since_kill = 0
            process._child.kill()
            self._result.kills += 1


class _Caller:
    """Makes the calls of one thread and checks their results."""

    def __init__(self, session: qnnbridge.InferenceSession, dice: random.Random) -> None:
        self._session = session
        self._dice = dice
        self._held: collections.deque[tuple[Any, float]] = collections.deque()
        self._ways: dict[str, Callable[[int, float], tuple[Any, Any]]] = {
            "plain": self._plain,
            "out": self._out,
            "zero-copy": self._zero_copy,
            "borrow": self._borrow,
        }

    def call(self, way: str, size: int) -> bool:
        """Make a call; return whether its result, and a borrowed result of an earlier call, are right."""
        start = float(self._dice.randrange(1000))
        good = True
        if len(self._held) > HELD:
            good = not self._wrong(*self._held.popleft())
        y, _ = self._ways[way](size // 4, start)
        if way == "borrow":
            self._held.append((y, start))
        return good and not self._wrong(y, start) and y.size == size // 4

    def spoiled(self) -> int:
        """Return the number of borrowed results that have changed."""
        return sum(self._wrong(y, start) for y, start in self._held)

    @staticmethod
    def _wrong(y: Any, start: float) -> bool:
        return y.dtype != np.float32 or not bool(
            (y.view(np.uint32) == _ramp(y.size, start + 1).view(np.uint32)).all()
        )

    def _plain(self, count: int, start: float) -> tuple[Any, Any]:
        return self._session.run(None, {"x": _ramp(count, start)}, retry=RETRIES)[0], None

    def _out(self, count: int, start: float) -> tuple[Any, Any]:
        target = np.empty(count, np.float32)
        (y,) = self._session.run(None, {"x": _ramp(count, start)}, out=[target], retry=RETRIES)
        assert y is target
        return y, None

    def _zero_copy(self, count: int, start: float) -> tuple[Any, Any]:
        x = self._session.empty_input("x", (count,))
        np.copyto(x, _ramp(count, start))
        target = self._session.empty_output("y", (count,))
        (y,) = self._session.run(None, {"x": x}, out=[target], retry=RETRIES)
        assert y is target
        return y, x

    def _borrow(self, count: int, start: float) -> tuple[Any, Any]:
        return self._session.run(None, {"x": _ramp(count, start)}, borrow=True, retry=RETRIES)[0], None


def _ramp(count: int, start: float) -> Any:
    """Return integers that repeat after 4096, so that adding 1 is exact and a shifted block is detected."""
    ramp = np.resize(np.arange(4096, dtype=np.float32), count)
    ramp += np.float32(start)
    return ramp
