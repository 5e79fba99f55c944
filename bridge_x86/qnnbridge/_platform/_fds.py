"""Descriptors that no fork of this process may keep.

A fork (`os.fork`, multiprocessing's fork start method, a pre-forking server) copies every descriptor. A copy of
our end of the host's stdin keeps the host alive after the application was killed; a copy of the host's end of
its stdout hides the host's death from the application. So every descriptor is closed in the child of a fork.

Threads: any. One lock, held for a few system calls, keeps a fork in one thread from falling between the
creation and the registration of a pipe in another. It is re-entrant because garbage collection may run
`OwnedFds.__del__` in a thread that holds it. The other lock keeps forks away while a program is being started.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable

_lock: contextlib.AbstractContextManager[object]
if sys.platform == "win32":
    # No fork, and closing a descriptor waits there for a reader of the same descriptor: no lock around that.
    _lock = contextlib.nullcontext()
else:
    _lock = threading.RLock()

# Held while a program is started. `Popen` waits for the end of a pipe of its own, of which a fork that happens in
# between would hold a copy: the start would last as long as the fork lives. Taken before the other lock.
no_fork = threading.RLock()

# How many forks lie between the first process that imported this and this one: `os.getpid` is a system call.
forks = 0

_all: weakref.WeakSet[OwnedFds] = weakref.WeakSet()


class OwnedFds:
    """A set of descriptors with one owner. Closed by its owner, by garbage collection, or in a forked child."""

    def __init__(self) -> None:
        self._fds: set[int] = set()
        with _lock:
            _all.add(self)

    def pipe(self) -> tuple[int, int]:
        """A new pipe: its read end and its write end, neither inherited by programs that are started."""
        with _lock:
            read_fd, write_fd = os.pipe()
            self._fds |= {read_fd, write_fd}
        return read_fd, write_fd

    def duplicate(self, fd: int) -> int:
        """A descriptor of our own for what `fd` refers to."""
        with _lock:
            copy = os.dup(fd)
            self._fds.add(copy)
        return copy

    def adopt(self, fd: int) -> int:
        with _lock:
            self._fds.add(fd)
        return fd

    def take(self, receive: Callable[[], Iterable[int]]) -> list[int]:
        """Adopt the descriptors that `receive` makes. It must not wait: no fork can happen meanwhile."""
        with _lock:
            fds = list(receive())
            self._fds.update(fds)
        return fds

    def close(self, fd: int) -> None:
        """Close one of them; one that is closed already is left alone."""
        with _lock:
            if fd in self._fds:
                self._fds.discard(fd)
                os.close(fd)

    def close_all(self) -> None:
        for fd in tuple(self._fds):
            self.close(fd)

    def __del__(self) -> None:
        self.close_all()


if sys.platform != "win32":

    def _before_fork() -> None:
        no_fork.acquire()
        _lock.__enter__()

    def _after_fork_in_parent() -> None:
        _lock.__exit__(None, None, None)
        no_fork.release()

    def _after_fork_in_child() -> None:
        global forks
        forks += 1
        try:
            for owned in tuple(_all):
                with contextlib.suppress(OSError):  # closed behind its owner's back
                    owned.close_all()
        finally:
            _lock.__exit__(None, None, None)
            no_fork.release()

    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
