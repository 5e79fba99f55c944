"""Keys of a POSIX terminal: its line mode is off for as long as keys are read, and comes back whatever happens."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator

assert sys.platform != "win32"


@contextlib.contextmanager
def raw_keys() -> Iterator[Callable[[float], str]]:
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    at_end = False

    def wait(seconds: float) -> str:
        nonlocal at_end
        readable, _, _ = select.select([] if at_end else [fd], [], [], seconds)
        if not readable:
            return ""
        data = os.read(fd, 64)
        at_end = not data  # the terminal is gone: not asked again, it would always be ready
        return data.decode("ascii", "replace")[:1].lower()

    try:
        tty.setcbreak(fd)
        yield wait
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
