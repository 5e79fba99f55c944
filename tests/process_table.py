"""Find the child processes of this process.

Linux lists the children of a process in /proc. psutil would read the whole process table of the machine, which
takes 4 to 13 ms, twice per test.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil


def _children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [
        int(child) for thread in os.listdir(tasks) for child in (tasks / thread / "children").read_text().split()
    ]


def descendants() -> set[int]:
    """Return the pids of all descendants of this process, except those whose parent has ended."""
    found: set[int] = set()
    unseen = {os.getpid()}
    while unseen:
        pid = unseen.pop()
        try:
            children = _children_of(pid)
        except OSError:  # the process or a thread has ended, or the system has no such file
            children = [p.pid for p in psutil.Process(pid).children()] if psutil.pid_exists(pid) else []
        unseen |= set(children) - found
        found |= set(children)
    return found
