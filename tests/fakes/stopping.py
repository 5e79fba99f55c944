"""Stop processes and wait until they have stopped."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path


def stop(pid: int) -> None:
    """Send SIGSTOP to a child process and wait until all its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def stop_other(pid: int) -> None:
    """Stop a process that is not a child of this one, like `stop`. Linux only."""
    os.kill(pid, signal.SIGSTOP)
    while any(_state(task) not in "Tt" for task in Path(f"/proc/{pid}/task").iterdir()):
        threading.Event().wait(0.002)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
