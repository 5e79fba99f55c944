"""Plain seeded walks: alone, several threads over the same sessions, with kills of the host, and through the daemon."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence

import qnnbridge
from lab.walk.models import models
from lab.walk.steps import Pair, Walk, Wrong, walking

# Steps until a walker begins again with no sessions, values and results.
FRESH_AFTER = 200

# Steps of all walkers between two kills. By the clock, a busy machine would do little but start hosts.
KILL_EVERY = 30


def alone(hosts: Sequence[qnnbridge.Host], steps: int, seed: int) -> int:
    """One thread with sessions of its own. Returns the number of comparisons. Raises `Wrong`."""
    dice = random.Random(seed)
    done = calls = 0
    while done < steps:
        with walking(Walk(hosts, dice.choice)) as walk:
            for _ in range(min(FRESH_AFTER, steps - done)):
                walk.step()
                done += 1
        calls += walk.calls
    return calls


def crowd(hosts: Sequence[qnnbridge.Host], threads: int, steps: int, seed: int, *, kills: bool = False) -> int:
    """Several threads over the same sessions, `steps` in all. kills: hosts die meanwhile."""
    dice = random.Random(seed)
    pairs = [Pair(model, hosts, dice.choice) for model in models()]
    calls, lefts, wrong = [0] * threads, [steps // threads] * threads, []

    def work(number: int) -> None:
        own = random.Random(f"{seed} {number}")
        try:
            while lefts[number] > 0 and not wrong:
                with walking(Walk(hosts, own.choice, pairs, deaths=kills)) as walk:
                    for _ in range(min(FRESH_AFTER, lefts[number])):
                        walk.step()
                        lefts[number] -= 1
                calls[number] += walk.calls
        except Wrong as error:
            wrong.append(error)

    walkers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for walker in walkers:
        walker.start()
    with _killer(hosts, lefts) if kills else contextlib.nullcontext():
        for walker in walkers:
            walker.join()
    for pair in pairs:
        pair.bridged.close()
    if wrong:
        raise wrong[0]
    return sum(calls)


@contextlib.contextmanager
def _killer(hosts: Sequence[qnnbridge.Host], lefts: Sequence[int]) -> Iterator[None]:
    """Kills one host after the other. A planned end is waited for: the process may be gone already.

    Args:
        lefts: the steps that each walker has before it.
    """
    over = threading.Event()

    def kill() -> None:
        turn, due = 0, sum(lefts) - KILL_EVERY
        while not over.wait(0.02):
            if sum(lefts) > due:
                continue
            due = sum(lefts) - KILL_EVERY
            process = hosts[turn % len(hosts)].supervisor.running
            turn += 1
            if process is not None and process.ready_at is not None and time.monotonic() - process.ready_at > 0.3:
                with contextlib.suppress(OSError):
                    os.kill(process.real_pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()
