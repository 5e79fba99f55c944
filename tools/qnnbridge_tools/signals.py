"""End a command and the processes that it started at a signal. Needs only the standard library."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from typing import Any, Final

# Time for a process to end its host and to remove its files; then it is killed.
_END_S: Final = 5.0


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """In the block, SIGTERM and SIGHUP raise `SystemExit`, so that temporary files are removed and hosts are ended.

    Ignored signals (`nohup`) stay ignored. Commands with other signal handlers replace the handlers of this block.
    """

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in known if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def end(child: subprocess.Popen[Any]) -> None:
    """End a child process that runs in `ended_by_signals`, after its parent was interrupted."""
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_END_S)
        return
    child.kill()
    child.wait()
