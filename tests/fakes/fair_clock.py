"""How long a call took, on a machine that others use too."""

from __future__ import annotations

import threading
import time


class FairClock:
    """Seconds since it was made, less those in which this thread could have gone on and got no processor.

    Linux counts these for each thread; elsewhere, and where it does not tell, all seconds count. Ask in the thread
    that made it.
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
