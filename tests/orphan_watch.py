"""Ends what a test run leaves behind that is itself ended in the middle (SIGTERM, SIGKILL, out of memory).

Daemons are made to outlive whoever started them, and then no fixture is left to stop them. So a small process of its
own session waits for the end of the run, as the end of a pipe, and ends whatever inherited the run's temporary
folder.
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
for _ in range(3):  # one of them may be starting another
    for process in heirs():
        try:
            process.kill()
        except psutil.Error:
            pass
    psutil.wait_procs(heirs(), timeout=2)
"""


@contextlib.contextmanager
def orphans_end_with_this_process(folder: Path) -> Iterator[None]:
    """folder: the TMPDIR of all that the run starts; not yet that of this process. Does nothing to what is alive
    when the block ends by itself."""
    watcher = subprocess.Popen(
        [sys.executable, "-c", _WATCHER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watcher.kill()
        watcher.wait(END_TIMEOUT_S)
        assert watcher.stdin is not None
        watcher.stdin.close()
