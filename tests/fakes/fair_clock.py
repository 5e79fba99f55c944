"""Measure the duration of calls on a machine that other programs use, too."""

from __future__ import annotations

import threading
import time


class FairClock:
    """Clock of the seconds since its creation, without the time in which this thread was ready but not running.

    Linux reports that time for each thread; on other systems all seconds count. Use the clock only in the thread
    that created it.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._waited = _waited_for_a_processor_s()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin - (_waited_for_a_processor_s() - self._waited)


def _waited_for_a_processor_s() -> float:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, LookupError, ValueError):
        return 0.0
