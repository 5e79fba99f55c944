"""Kill hosts while both sides hold shared memory: borrowed results, application arrays, and a running call."""

from __future__ import annotations

import collections
import dataclasses
import gc
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from tests.fakes.hosts import fake_host, script

import qnnbridge
from lab.faultlab.mixed import Rest, return_freed_memory

WARM_UP = 4
GROWTH_FDS = 2
GROWTH_BYTES = 16 * 1024 * 1024
COUNT = 300_000
STUCK_AFTER_S = 60.0


@dataclasses.dataclass
class SlotsResult:
    """Outcome of the test.

    Args:
        before: resources of the application after the first crashes.
        after: resources of the application at the end.
        names: new names in /dev/shm.
        held: shared memory of other hosts that the application held before the test.
    """

    kills: int
    before: Rest
    after: Rest
    names: list[str]
    wrong: int = 0
    held: int = 0

    @property
    def good(self) -> bool:
        return (
            not self.wrong
            and not self.names
            and self.after.shared <= self.held
            and self.after.fds <= self.before.fds + GROWTH_FDS
            and self.after.own <= self.before.own + GROWTH_BYTES
        )

    def __str__(self) -> str:
        return (
            f"{self.kills} hosts killed, {self.wrong} wrong results, names in /dev/shm: {self.names or 'none'}\n"
            f"application after {WARM_UP} kills: {self.before}\napplication at the end: {self.after}"
        )


def kill_hosts(times: int) -> SlotsResult:
    """Kill `times` hosts, each during a call, while the application holds results of this host and of earlier
    hosts."""
    return_freed_memory()
    names = _names()
    gc.collect()
    at_first = Rest.of(os.getpid()).shared
    wrong = 0
    before = None
    with tempfile.TemporaryDirectory(prefix="faultlab-") as folder, fake_host() as host:
        once, began = Path(folder, "once"), Path(folder, "began")
        once.touch()
        model = script(scale=2, on_run=[f"note:{began}", "sleep:600"], once=str(once), npu=False)
        session = qnnbridge.InferenceSession(model, providers=["CPUExecutionProvider"], host=host)
        held: collections.deque[tuple[np.ndarray, int]] = collections.deque(maxlen=4)
        for number in range(times):
            x, out = session.empty_input("x", (COUNT,)), session.empty_output("y", (COUNT,))
            x[:] = number
            for _ in range(3):
                session.run(None, {"x": x}, out=[out])
            for _ in range(2):
                held.append((session.run(None, {"x": x}, borrow=True)[0], number))
            once.unlink()  # the script then hangs in the next call, during which the host is killed
            killer = threading.Thread(target=_kill_in_call, args=(host, began))
            killer.start()
            session.run(None, {"x": x}, out=[out])
            killer.join()
            began.unlink()
            wrong += not bool((out == 2 * number).all())
            wrong += sum(not bool((y == 2 * value).all()) for y, value in held)
            if number + 1 == WARM_UP:
                before = _at_rest(host)
        held.clear()
        del x, out
        after = _at_rest(host)
        kills = host.stats.crashes
    return SlotsResult(kills, before or after, after, sorted(_names() - names), wrong, at_first)


def _names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


def _kill_in_call(host: qnnbridge.Host, began: Path) -> None:
    process = host.supervisor.running
    assert process is not None
    until = time.monotonic() + STUCK_AFTER_S
    while not began.exists() and time.monotonic() < until:
        threading.Event().wait(0.001)
    os.kill(process.real_pid, 9)


def _at_rest(host: qnnbridge.Host) -> Rest:
    gc.collect()
    process = host.supervisor.running
    assert process is not None
    if process.pool is not None:
        seen: dict[int, int] = {}
        process.pool.trim(seen)
        process.pool.trim(seen)
    threading.Event().wait(0.1)  # wait for the thread that unmaps the memory
    return Rest.of(os.getpid())
