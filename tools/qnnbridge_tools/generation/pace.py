"""How fast an answer came: time to its first token, tokens per second after that."""

from __future__ import annotations

import dataclasses
import time


@dataclasses.dataclass(slots=True)
class Pace:
    """Begun when it is made. One thread at a time."""

    begun_s: float = dataclasses.field(default_factory=time.monotonic)
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0

    def token(self, count: int = 1) -> None:
        """Tokens have come."""
        self.last_s = time.monotonic()
        if self.first_s is None:
            self.first_s = self.last_s
        self.tokens += count

    @property
    def to_first_token_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.begun_s

    @property
    def tokens_per_second(self) -> float | None:
        """Of those after the first; ``None`` for fewer than two."""
        if self.tokens < 2 or self.first_s is None or self.last_s is None or self.last_s <= self.first_s:
            return None
        return (self.tokens - 1) / (self.last_s - self.first_s)
