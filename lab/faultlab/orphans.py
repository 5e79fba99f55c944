"""Kill applications and check whether their hosts end, too."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from qnnbridge_os.processes import wait_readable

STATES = ("idle", "run", "create", "compile", "gil", "slots", "fork", "fork-run")
# Seconds in which a host ends after its application, as the README promises.
END_TIMEOUT_S = 5.0

START_TIMEOUT_S = 60.0
ROOT = Path(__file__).parents[2]


def kill_an_application(state: str) -> float | None:
    """Kill an application in `state` with -9; return the seconds until its host ended, ``None`` if it did not."""
    with tempfile.TemporaryDirectory(prefix="faultlab-") as folder:
        return kill_when_ready(state, [sys.executable, "-m", "lab.faultlab.application", state, f"{folder}/began"])


def kill_when_ready(state: str, command: list[str]) -> float | None:
    """Kill an application as `kill_an_application` does.

    Args:
        command: command line of the application, which prints the pids of its hosts in one line when it is ready.
    """
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not wait_readable(process.stdout.fileno(), START_TIMEOUT_S):
            raise AssertionError(f"the application did not reach the state {state!r} in time")
        pids = process.stdout.readline().split()
        if not pids:
            raise AssertionError(f"the application ended before it reached the state {state!r}")
        hosts = [os.pidfd_open(int(pid)) for pid in pids]
        try:
            begin = time.monotonic()
            process.kill()
            ended = [wait_readable(host, begin + END_TIMEOUT_S - time.monotonic()) for host in hosts]
            return time.monotonic() - begin if all(ended) else None
        finally:
            for host in hosts:
                os.close(host)
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):
            process.stdin.close()  # the forked sibling ends when its stdin is closed
        process.stdout.close()
