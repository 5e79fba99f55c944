"""Whether this process is a fork of the one that made something. A look at a number, where `os.getpid` is a system
call."""

from __future__ import annotations

import os

_forks = 0


def forks() -> int:
    """How many forks lie between the first process that imported this and the current one."""
    return _forks


def _count() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)
