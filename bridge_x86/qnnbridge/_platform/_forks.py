"""Whether this process is a fork of the one that made something. A look at a number, where `os.getpid` is a system
call."""

from __future__ import annotations

import os

# How many forks lie between the first process that imported this and the current one.
count = 0


def _count() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)
