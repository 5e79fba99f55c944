"""End the processes of a test run that is itself killed (SIGTERM, SIGKILL, out of memory).

Daemons outlive the process that started them, and fixtures cannot stop them after a kill. A small process in a
separate session therefore waits until a pipe from the run is closed, and then kills every process that inherited
the run's temporary folder.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

END_TIMEOUT_S = 20.0

_WATCHER = """
import os, sys
sys.stdin.buffer.read()  # ends with the run
import psutil
def heirs():
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("TMPDIR") == sys.argv[1]:
                found.append(process)
        except (psutil.Error, OSError):
            pass
    return found
for _ in range(3):  # one of the processes may be starting another one
    for process in heirs():
        try:
            process.kill()
        except psutil.Error:
            pass
    psutil.wait_procs(heirs(), timeout=2)
"""


@contextlib.contextmanager
def orphans_end_with_this_process(folder: Path) -> Iterator[int]:
    """Kill all processes whose TMPDIR is `folder` if this process is killed during the block.

    A normal end of the block ends only the watcher. Yield the pid of the watcher, which is a child process.

    Args:
        folder: the TMPDIR of all processes that the run starts; not yet that of this process.
    """
    watcher = subprocess.Popen(
        [sys.executable, "-c", _WATCHER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield watcher.pid
    finally:
        watcher.kill()
        watcher.wait(END_TIMEOUT_S)
        assert watcher.stdin is not None
        watcher.stdin.close()
