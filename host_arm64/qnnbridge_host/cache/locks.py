"""Locks between threads and processes, and waiting for them with heartbeats.

Locks are the operating system's, so those of a killed process are free at once. A lock is a file with one holder
in all processes; nothing is ever written into it. Only its holder removes it, and only where no other process
can be about to take it (under another lock). Waiting polls, because only polling can be bounded
and interrupted on every system.
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


# Short beside a compilation, long beside a system call.
POLL_S: Final = 0.02
# Between two calls of ``on_wait``.
ASK_AGAIN_S: Final = 0.1


class Held:
    """A held lock. Release it once; the end of the process releases it, too."""

    def __init__(self, lock: BaseFileLock, path: Path) -> None:
        self._lock = lock
        self.path = path

    def release(self, *, remove: bool = False) -> None:
        """remove: nothing waits for this one, so its file can go."""
        if remove:
            with contextlib.suppress(OSError):
                # While it is still held: on POSIX another process would otherwise take the lock of a file
                # that is about to vanish.
                os.unlink(self.path)  # fails on Windows while the file is open; it is removed below then
        self._lock.release(force=True)
        if remove:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def try_hold(path: Path) -> Held | None:
    """The lock, or ``None`` if it is held. Raises `OSError` where the file system has no locks."""
    from filelock import FileLock, Timeout

    # `thread_local=False`: the thread that releases a session may be another than the one that made it.
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

    on_wait: called periodically with the seconds waited so far; ``False`` from it gives up.
    """
    begun = time.monotonic()
    last_asked = begun
    while True:
        held = try_hold(path)
        if held is not None:
            return held
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return None
        if on_wait is not None and now - last_asked >= ASK_AGAIN_S:
            last_asked = now
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


BEAT_EVERY_S: Final = 1.0
# Time without a heartbeat after which a compiler is not awaited: it is stopped, or a fork holds its lock.
STALLED_S: Final = 60.0


class Heartbeat:
    """The compiler's heartbeat: the date of a file. Called with the seconds so far, by any thread."""

    def __init__(self, path: Path, on_wait: Callable[[float], None]) -> None:
        self._path = path
        self._on_wait = on_wait
        self._next_s = 0.0

    def __call__(self, seconds: float) -> None:
        if seconds >= self._next_s:
            self._next_s = seconds + BEAT_EVERY_S
            with contextlib.suppress(OSError):
                self._path.touch()
        self._on_wait(seconds)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


class WaitPolicy:
    """Decides how long to wait: returns ``False`` when the last heartbeat is too old.

    The date is compared with itself only: neither machine's clock matters.
    """

    def __init__(
        self,
        path: Path,
        on_wait: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        stalled_s: float = STALLED_S,
    ) -> None:
        self._path = path
        self._on_wait = on_wait
        self._clock = clock
        self._stalled_s = stalled_s
        self._seen: int | None = None
        self._seen_at = clock()

    def __call__(self, seconds: float) -> bool:
        self._on_wait(seconds)
        beat = self._date()
        now = self._clock()
        # Any change counts, also backwards: the clock of another computer on a network drive may be wrong.
        if beat != self._seen:
            self._seen, self._seen_at = beat, now
        return now - self._seen_at < self._stalled_s

    def _date(self) -> int | None:
        try:
            return os.stat(self._path).st_mtime_ns
        except OSError:
            return None
