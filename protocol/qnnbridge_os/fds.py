"""Descriptors that are closed in forks of this process.

A fork (`os.fork`, multiprocessing's fork start method, a pre-forking server) copies every descriptor. A copy of the
application's end of the host's stdin would keep the host alive after the application was killed; a copy of the
host's end of its stdout would hide the host's death from the application. So every descriptor is closed in a forked
child.

Thread-safe. One lock, held for a few system calls, prevents a fork between the creation and the registration of a
pipe in another thread. It is reentrant, because a thread that holds the lock may fork. The other lock prevents
forks while a program is being started.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import itertools
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from qnnbridge_os.native import RLock
from qnnbridge_os.shield import when_gone

_lock: contextlib.AbstractContextManager[object]
if sys.platform == "win32":
    # On systems without forks no lock is needed. It would even be harmful, because closing a descriptor waits for a
    # thread that reads from it.
    _lock = contextlib.nullcontext()
else:
    _lock = RLock()

# Held while a program is started. `Popen` waits for the end of a pipe, and a child that is forked meanwhile would
# keep a copy of the pipe open, so the start would not return before that child ends. Acquired before `_lock`.
no_fork = RLock()

# Number of forks between the first process that imported this module and this process. Comparing it detects a fork
# without the system call of `os.getpid`.
forks = 0

_all: weakref.WeakSet[OwnedFds] = weakref.WeakSet()


# Identity of the object behind a descriptor: type and rights, inode number, device. For a pipe, Windows provides
# only the first item.
Mark = tuple[int, ...]


def mark_of(fd: int) -> Mark:
    """Return the identity of the object behind a descriptor. Raise `OSError` if the descriptor is closed."""
    return os.fstat(fd)[:3]


def is_marked(fd: int, mark: Mark | None) -> bool:
    """Return whether the descriptor refers to the object with this identity."""
    try:
        return mark_of(fd) == mark
    except OSError:
        return False


def is_device(fd: int) -> bool:
    """Return whether the descriptor refers to the null device, a terminal or another device."""
    try:
        return stat.S_ISCHR(os.fstat(fd).st_mode)
    except OSError:
        return False


def closed_by_others() -> OSError:
    return OSError(errno.EBADF, "other code of this program has closed the descriptor")


class OwnedFds:
    """A set of descriptors with one owner. The descriptors are closed by the owner, by garbage collection, or in a
    forked child.

    A descriptor that other code has closed (`os.closerange`, a library that daemonizes the program) is not closed
    again, because its number may belong to another file.

    The result of a system call is stored, and a closed descriptor is removed, within one C operation, so that an
    exception of a signal handler can neither lose a descriptor nor cause it to be closed twice.
    """

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._marks: dict[int, Mark] = {}
        when_gone(self, functools.partial(_close_all, self._fds, self._marks))
        with _lock:
            _all.add(self)

    def pipe(self) -> tuple[int, int]:
        """Create a pipe and return its read end and its write end. Programs that are started inherit neither
        end."""
        read_fd, write_fd = self.take(os.pipe)
        return read_fd, write_fd

    def duplicate(self, fd: int) -> int:
        """Return a separate descriptor for the file of `fd`."""
        return self.make(os.dup, fd)

    def make(self, function: Callable[..., int], *arguments: Any) -> int:
        """Call a C function that creates a descriptor; own the descriptor and return it."""
        with _lock:
            self._fds.extend(itertools.starmap(function, (arguments,)))
            fd = self._fds[-1]
            self._mark(fd)
            return fd

    def adopt(self, fd: int) -> int:
        with _lock:
            self._fds.append(fd)
            self._mark(fd)
        return fd

    def take(self, receive: Callable[[], Iterable[int]]) -> list[int]:
        """Own the descriptors that `receive` creates. `receive` must not wait, because no thread can fork
        during the call."""
        with _lock:
            before = len(self._fds)
            self._fds.extend(itertools.chain.from_iterable(itertools.starmap(receive, ((),))))
            taken = self._fds[before:]
            for fd in taken:
                self._mark(fd)
            return taken

    def mark(self, fd: int) -> Mark | None:
        """Return the identity that a descriptor's object had when the descriptor was added; ``None`` for a
        closed descriptor."""
        return self._marks.get(fd)

    def is_ours(self, fd: int) -> bool:
        """Return whether a descriptor still refers to the same object as when it was added."""
        return is_marked(fd, self._marks.get(fd))

    def mark_again(self, fd: int) -> None:
        """Record the new object of a descriptor that the owner has redirected, for example with `dup2`."""
        with _lock:
            self._mark(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor unless it is already closed."""
        with _lock:
            _close(self._fds, self._marks, fd)

    def close_all(self) -> None:
        _close_all(self._fds, self._marks)

    def _mark(self, fd: int) -> None:
        # Other code has closed the descriptor, or the system does not support `fstat` for it: leave it without a
        # mark.
        with contextlib.suppress(OSError):
            self._marks[fd] = mark_of(fd)


def _close(fds: list[int], marks: dict[int, Mark], fd: int) -> None:
    with contextlib.suppress(ValueError):  # the descriptor is closed already
        mark = marks.get(fd)
        if mark is not None and not is_marked(fd, mark):
            fds.remove(fd)
        else:
            # Find, remove and close the descriptor within one C operation (`OwnedFds`).
            collections.deque(map(os.close, map(fds.pop, map(fds.index, (fd,)))), 0)
        marks.pop(fd, None)


def _close_all(fds: list[int], marks: dict[int, Mark]) -> None:
    for fd in tuple(fds):
        with _lock:
            _close(fds, marks, fd)


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
                with contextlib.suppress(OSError):  # other code has closed a descriptor
                    owned.close_all()
        finally:
            _lock.__exit__(None, None, None)
            no_fork.release()

    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
