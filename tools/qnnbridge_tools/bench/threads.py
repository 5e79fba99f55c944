"""Many callers at once: how many calls a second come through."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any


def calls_per_second(call: Callable[[], Any], threads: int, seconds: float) -> float:
    """All begin together, and stop at the first look after the time is over."""
    counts = [0] * threads
    start = threading.Barrier(threads + 1)
    over = threading.Event()
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            call()
            start.wait()
            done = 0
            while not over.is_set():
                call()
                done += 1
            counts[index] = done
        except BaseException as error:  # noqa: BLE001 - told by the caller
            failures.append(error)
            start.abort()

    workers = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(threads)]
    for worker in workers:
        worker.start()
    try:
        start.wait()
    except threading.BrokenBarrierError:
        pass
    begin = time.perf_counter()
    if not failures:
        over.wait(seconds)
    over.set()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return sum(counts) / (time.perf_counter() - begin)


def crowds(call: Callable[[], Any], sizes: Sequence[int], *, rounds: int, seconds: float) -> dict[int, float]:
    """Calls a second by number of threads, in turns, medians."""
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            taken[size].append(calls_per_second(call, size, seconds))
    return {size: statistics.median(numbers) for size, numbers in taken.items()}
