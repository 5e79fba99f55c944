"""A process that is stopped, and not only about to be."""

from __future__ import annotations

import os
import signal


def stop(pid: int) -> None:
    """SIGSTOP to a child, and wait until all its threads have: the signal alone is acted upon later."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
