"""A process that is stopped, and not only about to be."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path


def stop(pid: int) -> None:
    """SIGSTOP to a child, and wait until all its threads have: the signal alone is acted upon later."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def stop_other(pid: int) -> None:
    """The same for a process that is no child of this one; Linux only."""
    os.kill(pid, signal.SIGSTOP)
    while any(_state(task) not in "Tt" for task in Path(f"/proc/{pid}/task").iterdir()):
        threading.Event().wait(0.002)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
