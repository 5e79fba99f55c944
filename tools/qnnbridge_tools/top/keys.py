"""One key at a time from the terminal, where standard input is one."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

# Seconds to wait -> the key, in lower case; empty if none was pressed.
WaitForKey = Callable[[float], str]

if sys.platform == "win32":
    import msvcrt

    _LOOK_INTERVAL_S: Final = 0.05
    # Of keys such as the arrows, which come as two characters.
    _PREFIXES: Final = ("\x00", "\xe0")

    @contextlib.contextmanager
    def raw_keys() -> Iterator[WaitForKey]:
        """Keys of a Windows console."""

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

else:
    import select
    import termios
    import tty

    # A terminal that is closed ends the view, as the key does.
    TERMINAL_GONE: Final = "q"

    @contextlib.contextmanager
    def raw_keys() -> Iterator[WaitForKey]:
        """Keys of a POSIX terminal: its line mode is off while keys are read, and comes back in any case."""
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


@contextlib.contextmanager
def keyboard() -> Iterator[WaitForKey]:
    """Keys come as they are pressed and are not shown. Ctrl+C still interrupts. Without a keyboard time passes."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _only_wait
        return
    with raw_keys() as wait:
        yield wait


def _only_wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""
