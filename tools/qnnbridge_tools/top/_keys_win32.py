"""Keys of a Windows console."""

from __future__ import annotations

import contextlib
import msvcrt
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

assert sys.platform == "win32"

_LOOK_INTERVAL_S: Final = 0.05
# Of keys such as the arrows, which come as two characters.
_PREFIXES: Final = ("\x00", "\xe0")


@contextlib.contextmanager
def raw_keys() -> Iterator[Callable[[float], str]]:
    def wait(seconds: float) -> str:
        end = time.monotonic() + seconds
        while not msvcrt.kbhit():
            left = end - time.monotonic()
            if left <= 0:
                return ""
            time.sleep(min(_LOOK_INTERVAL_S, left))
        key = msvcrt.getwch()
        if key in _PREFIXES:
            msvcrt.getwch()
            return ""
        if key == "\x03":  # getwch takes Ctrl+C for a key
            raise KeyboardInterrupt
        return key.lower()

    yield wait
