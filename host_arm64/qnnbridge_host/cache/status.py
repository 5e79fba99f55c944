"""What a session says of the cache, and how trouble with the cache is said once."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
import warnings
from typing import Final, Literal

_log = logging.getLogger("qnnbridge.cache")

State = Literal["hit", "miss", "off"]

_PACKAGE: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")

_said: set[str] = set()
_said_lock = threading.Lock()


class CacheWarning(UserWarning):
    """The cache of compiled models cannot be used; sessions are made without it."""


@dataclasses.dataclass(frozen=True, slots=True)
class CacheStatus:
    """What the cache did for a session.

    state: "hit", loaded a compiled model of the cache; "miss", compiled into the cache, then loaded from there;
    "off", made from the model itself. reason: why, in words. key: of the entry. compile_seconds: what compiling
    took, now or then.
    """

    state: State
    reason: str = ""
    key: str | None = None
    compile_seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


def say_once(text: str) -> None:
    """A warning at the line of the application that led here, and one in the log, once in a process."""
    with _said_lock:
        if text in _said:
            return
        _said.add(text)
    _log.warning("%s", text)
    warnings.warn(text, CacheWarning, stacklevel=_level_of_the_application() - 1)


def _level_of_the_application() -> int:
    """How many calls above this one the application is. Trouble with the disk shows up at many depths."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
