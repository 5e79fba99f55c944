"""Tells how long work has taken so far, from a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

_log = logging.getLogger("qnnbridge.compiling")

TICK_S = 0.2
"""Between two calls of ``on_progress``. The first comes at once: work that is over sooner is told of as well."""


@contextlib.contextmanager
def ticking(on_progress: Callable[[float], None] | None) -> Iterator[None]:
    """While the block runs, `on_progress` is called with the seconds since its start, at least once. Its errors are
    only logged: showing progress must not decide whether the work succeeds."""
    if on_progress is None:
        yield
        return
    done = threading.Event()
    begun = time.monotonic()

    def tick() -> None:
        try:
            on_progress(0.0)
            while not done.wait(TICK_S):
                on_progress(time.monotonic() - begun)
        except Exception:  # noqa: BLE001 - see above
            _log.exception("on_progress failed")

    thread = threading.Thread(target=tick, name="qnnbridge progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
