"""Locks between threads and processes: of the operating system, so those of a killed process are free at once.

A lock is a file; whoever holds it is alone, in all processes; nothing is ever written into it. It is removed only
by its holder, and only where nobody else can be about to take it (under another lock). Waiting asks again and
again, because only that can be bounded and interrupted on every system.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from filelock import BaseFileLock

POLL_S: Final = 0.02
ASK_AGAIN_S: Final = 0.25
"""Between two calls of ``on_wait``."""


class Held:
    """A lock that is held. Release it once; the end of the process does it, too."""

    def __init__(self, lock: BaseFileLock, path: Path) -> None:
        self._lock = lock
        self.path = path

    def release(self, *, remove: bool = False) -> None:
        """remove: nobody waits for this one, so its file can go."""
        if remove:
            with contextlib.suppress(OSError):
                os.unlink(self.path)  # fails on Windows while it is open; then below
        self._lock.release(force=True)
        if remove:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def try_hold(path: Path) -> Held | None:
    """The lock, or ``None`` if somebody has it. Raises `OSError` where locks cannot be had at all."""
    from filelock import FileLock, Timeout

    lock = FileLock(os.fspath(path), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except NotImplementedError as error:  # no locks on this file system
        raise OSError(f"{path}: {error}") from None
    return Held(lock, path)


def hold(path: Path, deadline: float | None, on_wait: Callable[[float], bool | None] | None = None) -> Held | None:
    """The lock, as soon as it is free; ``None`` when `deadline` (`time.monotonic`) is over.

    on_wait: called now and then with the seconds waited so far; ``False`` from it gives up.
    """
    begun = time.monotonic()
    told = begun
    while True:
        held = try_hold(path)
        if held is not None:
            return held
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return None
        if on_wait is not None and now - told >= ASK_AGAIN_S:
            told = now
            if on_wait(now - begun) is False:
                return None
        time.sleep(POLL_S)


@contextlib.contextmanager
def holding(path: Path, deadline: float | None = None) -> Iterator[bool]:
    """Hold the lock around a block. Gives whether it is held: ``False`` when `deadline` was over before."""
    held = hold(path, deadline)
    try:
        yield held is not None
    finally:
        if held is not None:
            held.release()
