"""While one process compiles, others wait: signs of life from the one, words and patience of the others."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_log = logging.getLogger("qnnbridge.cache")

BEAT_EVERY_S: Final = 1.0
STALLED_S: Final = 60.0
"""A compiler that gives no sign for so long is not waited for: it was stopped, or its lock is held by a fork."""

FIRST_WORD_S: Final = 2.0
WORD_EVERY_S: Final = 15.0
LOUD_S: Final = 15.0
"""From here on the words are warnings: people see those."""


class Words:
    """Says now and then how long something takes."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._next_s = FIRST_WORD_S

    def __call__(self, seconds: float) -> None:
        if seconds < self._next_s:
            return
        self._next_s = seconds + WORD_EVERY_S
        _log.log(logging.WARNING if seconds >= LOUD_S else logging.INFO, "%s (%.0f s so far)", self._what, seconds)


class Heartbeat:
    """The compiler's sign of life: the date of a file. Called with the seconds so far, by whatever thread."""

    def __init__(self, path: Path, words: Callable[[float], None]) -> None:
        self._path = path
        self._words = words
        self._next_s = 0.0

    def __call__(self, seconds: float) -> None:
        if seconds >= self._next_s:
            self._next_s = seconds + BEAT_EVERY_S
            with contextlib.suppress(OSError):
                self._path.touch()
        self._words(seconds)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


class WaitPolicy:
    """The one who waits; ``False`` from it when there has been no sign of life for too long.

    The date is compared with itself only: neither machine's clock matters.
    """

    def __init__(
        self,
        path: Path,
        words: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        stalled_s: float = STALLED_S,
    ) -> None:
        self._path = path
        self._words = words
        self._clock = clock
        self._stalled_s = stalled_s
        self._seen: int | None = None
        self._seen_at = clock()

    def __call__(self, seconds: float) -> bool:
        self._words(seconds)
        beat = self._date()
        now = self._clock()
        if beat != self._seen:
            self._seen, self._seen_at = beat, now
        return now - self._seen_at < self._stalled_s

    def _date(self) -> int | None:
        try:
            return os.stat(self._path).st_mtime_ns
        except OSError:
            return None
