"""Seeded walks: one thread, several threads with the same sessions, with kills of the host, and with the daemon."""

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

# Number of steps until a walker restarts with new sessions, values and results.
FRESH_AFTER = 200

# Number of steps of all walkers between two kills. If kills were timed, a busy machine would mainly start hosts.
KILL_EVERY = 30


def alone(hosts: Sequence[qnnbridge.Host], steps: int, seed: int) -> int:
    """Walk in one thread with its own sessions; return the number of comparisons. Raises `Wrong`."""
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
    """Walk in several threads with the same sessions; return the number of comparisons. Raises `Wrong`.

    Args:
        steps: total number of steps.
        kills: whether to kill hosts during the walk.
    """
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
    """Kill one host after another during the block, but only hosts that have been ready for a while.

    Args:
        lefts: number of remaining steps of each walker.
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
