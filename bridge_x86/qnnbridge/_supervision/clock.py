"""Time, as a seam: policies take a `Clock`, so that tests need no waiting."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that only ever grow; for every duration and deadline."""

    def wall(self) -> float:
        """Seconds since 1970; only for what is written down, because it can jump."""


class RealClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
