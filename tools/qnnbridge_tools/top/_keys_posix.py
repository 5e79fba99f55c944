"""Keys of a POSIX terminal: its line mode is off for as long as keys are read, and comes back whatever happens."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import Final

assert sys.platform != "win32"

# Nobody looks any more, so it is as if somebody had left.
TERMINAL_GONE: Final = "q"


@contextlib.contextmanager
def raw_keys() -> Iterator[Callable[[float], str]]:
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def wait(seconds: float) -> str:
        readable, _, _ = select.select([fd], [], [], seconds)
        if not readable:
            return ""
        try:
            data = os.read(fd, 64)
        except OSError:
            data = b""
        return data.decode("ascii", "replace")[:1].lower() if data else TERMINAL_GONE

    try:
        tty.setcbreak(fd)
        yield wait
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
