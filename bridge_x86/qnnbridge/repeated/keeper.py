"""Looks after the lines of one host process from time to time: those that nobody needs, and callers that get no
answer.

One thread for each process that has lines; it ends with them, and does not keep them alive.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from qnnbridge.repeated import line

TRIM_LOOKS = 2
"""A line that was not used in so many intervals of `line.LOOK_INTERVAL_S` is closed, and its memory given back."""


class Kept(Protocol):
    """The lines. Any thread may call."""

    closed: bool

    def look(self, under_way: dict[int, int]) -> None:
        """After callers that wait; `under_way` is what it noted the last time."""

    def trim(self, seen: dict[int, int]) -> bool:
        """After what was not used; `seen` as above. False if there is nothing left to look after."""


def keep(reference: weakref.ref[Kept], wake: threading.Event) -> None:
    """What the thread does. wake: is set when the lines are closed."""
    under_way: dict[int, int] = {}
    seen: dict[int, int] = {}
    looks = 0
    while not wake.wait(line.LOOK_INTERVAL_S):
        lines = reference()
        if lines is None or lines.closed:
            return
        lines.look(under_way)
        looks += 1
        if looks % TRIM_LOOKS == 0 and not lines.trim(seen):
            return
        del lines


__all__ = ["Kept", "keep"]
