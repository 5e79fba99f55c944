"""The soak of the quick way: very many calls of all sizes, threads and ways, with kills in between.

Every result is held against the right one, bit for bit, also those that were lent and are looked at again later.
After each lap both processes are measured: descriptors and own memory must not have grown since the first.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import qnnbridge

SIZES = {0: 8, 4: 15, 64: 25, 4096: 30, 65_536: 16, 614_400: 5, 4_194_304: 0.9, 33_554_432: 0.1}
"""Bytes, and how often. The large ones are rare, or the soak would only copy."""

CROWDS = (1, 2, 4, 8)
WAYS = ("plain", "out", "zero-copy", "borrow")
LAPS = 8
CALLS_BETWEEN_KILLS = 32
RETRIES = 4
HELD = 3
"""Lent results that each thread keeps, to look at again."""

GROWTH_BYTES = 48 * 1024 * 1024
"""What the first lap may lack: the heaps of eight threads and the largest results."""

GROWTH_FDS = 8
STUCK_AFTER_S = 300.0


@dataclasses.dataclass
class MixedResult:
    """laps: descriptors and own bytes of the application and of the host, after each."""

    calls: int = 0
    wrong: int = 0
    kills: int = 0
    ways: Counter[str] = dataclasses.field(default_factory=Counter)
    errors: Counter[str] = dataclasses.field(default_factory=Counter)
    laps: list[tuple[int, int, int, int]] = dataclasses.field(default_factory=list)
    stuck: bool = False
    seconds: float = 0.0
    shared_calls: int = 0
    inline_calls: int = 0
    retried: int = 0

    @property
    def flat(self) -> bool:
        """Whether nothing has grown between the first half of the laps and the second."""
        if len(self.laps) < 3:
            return True
        # How much is open at the end of a lap depends on the sizes that came last: halves are compared, not laps.
        half = len(self.laps) // 2
        for index, more in enumerate((GROWTH_FDS, GROWTH_BYTES, GROWTH_FDS, GROWTH_BYTES)):
            before, behind = (max(lap[index] for lap in laps) for laps in (self.laps[:half], self.laps[half:]))
            if behind > before * 1.1 + more:
                return False
        return True

    @property
    def good(self) -> bool:
        return not (self.wrong or self.errors or self.stuck) and self.flat

    def __str__(self) -> str:
        lines = [
            f"{self.calls} calls ({', '.join(f'{n} {way}' for way, n in sorted(self.ways.items()))}), "
            f"{self.kills} kills, {self.retried} calls repeated, {self.seconds:.0f} s",
            f"in shared memory {self.shared_calls}, in the pipes {self.inline_calls}",
            f"wrong results: {self.wrong}; errors that reached a caller: {self.errors.total()}",
            *(f"  {count} x {text}" for text, count in self.errors.most_common(5)),
            "after each lap, descriptors and own MB: application, host",
            *(f"  {a:4} {b / 1e6:7.1f}   {c:4} {d / 1e6:7.1f}" for a, b, c, d in self.laps),
            "flat" if self.flat else "GROWN",
        ]
        if self.stuck:
            lines.append("STUCK")
        return "\n".join(lines)


def mixed_soak(host: qnnbridge.Host, model: Path, *, calls: int, kills: int, seed: int) -> MixedResult:
    """model: adds 1 to a vector of any length."""
    result = MixedResult()
    begin = time.monotonic()
    with host, qnnbridge.InferenceSession(str(model), providers=["CPUExecutionProvider"], host=host) as session:
        for lap in range(LAPS):
            _Lap(host, session, result, calls // LAPS, kills // LAPS, f"{seed} {lap}").run()
            if result.stuck:
                break
            # The last kill may have left a host that has done nothing yet: before they are measured, all do the same.
            caller = _Caller(session, random.Random(0))
            result.wrong += sum(not caller.call(way, size) for size in SIZES for way in WAYS)
            result.wrong += caller.spoiled()
            del caller
            gc.collect()
            process = host.supervisor.running
            assert process is not None
            result.laps.append((*_holdings(psutil.Process()), *_holdings(psutil.Process(process.real_pid))))
        stats = host.stats
        result.shared_calls, result.inline_calls = stats.shared_calls, stats.inline_calls
        result.retried = stats.retried_calls
    result.seconds = time.monotonic() - begin
    return result


def _holdings(process: psutil.Process) -> tuple[int, int]:
    return process.num_fds(), process.memory_full_info().uss


class _Lap:
    """A share of the calls, by as many threads as it is the turn of, one crowd after the other."""

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
    """One thread's calls."""

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
        """Whether the result, and a lent one from before, are right."""
        start = float(self._dice.randrange(1000))
        good = True
        if len(self._held) > HELD:
            good = not self._wrong(*self._held.popleft())
        y, _ = self._ways[way](size // 4, start)
        if way == "borrow":
            self._held.append((y, start))
        return good and not self._wrong(y, start) and y.size == size // 4

    def spoiled(self) -> int:
        """Lent results that are not what they were."""
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
    """Whole numbers that repeat after 4096, so that adding 1 is exact and a shifted block is seen."""
    ramp = np.resize(np.arange(4096, dtype=np.float32), count)
    ramp += np.float32(start)
    return ramp
