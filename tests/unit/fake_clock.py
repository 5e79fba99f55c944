"""A clock that advances only when a test requests it."""

from __future__ import annotations


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.wall_offset = 1_800_000_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.wall_offset

    def sleep(self, seconds: float) -> None:
        self.now += seconds
