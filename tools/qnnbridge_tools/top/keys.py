"""One key at a time from the terminal, where standard input is one."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

# Seconds to wait -> the key, in lower case; empty if none was pressed.
WaitForKey = Callable[[float], str]

if sys.platform == "win32":
    from qnnbridge_tools.top._keys_win32 import raw_keys
else:
    from qnnbridge_tools.top._keys_posix import raw_keys


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
