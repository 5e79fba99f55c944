"""Detect leaks: compare open files, threads, children, temporary files and shared memory before and after a
test."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from tests.process_table import descendants

# Seconds to wait until the threads that read a dead host's stderr have ended and zombies are reaped.
GRACE_S = 5.0

OUR_FILES = "*qnnbridge*"
# Names of threads that run as long as the process, so they are not leaks.
ALWAYS_THERE = ("qnnbridge-spawner", "qnnbridge cleaner")


@dataclasses.dataclass(frozen=True, slots=True)
class Holdings:
    """Resources that a process holds."""

    files: int
    threads: frozenset[str]
    children: frozenset[int]
    temporary: frozenset[str]
    shared_memory: frozenset[str]

    def more_than(self, before: Holdings) -> dict[str, object]:
        """Return the resources that `before` does not contain; empty if there are none."""
        grown: dict[str, object] = {}
        if self.files > before.files:
            grown["open files"] = self.files - before.files
        for name in ("threads", "children", "temporary", "shared_memory"):
            if new := getattr(self, name) - getattr(before, name):
                grown[name] = sorted(new)
        return grown


def holdings() -> Holdings:
    """Return the current resources of this process."""
    gc.collect()
    threads = {f"{t.name} ({t.ident})" for t in threading.enumerate() if t.name not in ALWAYS_THERE}
    return Holdings(
        files=_open_files(),
        threads=frozenset(threads),
        children=frozenset(descendants()),
        temporary=frozenset(p.name for p in Path(tempfile.gettempdir()).glob(OUR_FILES)),
        shared_memory=frozenset(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else frozenset(),
    )


def _open_files() -> int:
    """Return the number of open files; on Windows the number of all handles, which include files."""
    return psutil.Process().num_handles() if sys.platform == "win32" else len(os.listdir("/proc/self/fd"))


def leaked_since(before: Holdings, grace_s: float = GRACE_S) -> dict[str, object]:
    """Wait for new threads and processes to end, up to `grace_s` seconds; return the remaining new resources."""
    came = holdings().threads - before.threads
    for thread in threading.enumerate():
        if f"{thread.name} ({thread.ident})" in came:
            thread.join(grace_s)
    children = psutil.Process().children(recursive=True)
    psutil.wait_procs([one for one in children if one.pid not in before.children], timeout=grace_s)
    until = time.monotonic() + grace_s
    while (grown := holdings().more_than(before)) and time.monotonic() < until:
        threading.Event().wait(0.05)
    return grown
