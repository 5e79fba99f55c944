"""Versions of `os.wait` and related functions that hide the host processes from the program. Linux.

A host is a child of the program's process. `os.wait`, or `os.waitpid` for any child, would return a host's exit
status, and a loop that waits until the program has no more children (`ChildProcessError`) would never end.
`hide_hosts` replaces these functions in the module `os` with versions that ignore hosts. A host that ends during
such a wait is reaped by its owner. Waits for one process or for a process group are passed on unchanged.

Thread-safe.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

from qnnbridge_os.native import sleep, waitpid

assert sys.platform != "win32"

from qnnbridge_os._posix_process import living_children  # noqa: E402 - type checkers find it empty on Windows
from qnnbridge_os._posix_streams import new_poll  # noqa: E402

T = TypeVar("T")

_ANY: Final = -1
# Maximum time until a wait notices a child that another thread has started.
_LOOK_INTERVAL_MS: Final = 1000
# Interval of polling if the system has no pidfd (before Linux 5.3, or in a sandbox).
_ASK_INTERVAL_S: Final = 0.05

_waitid, _wait4 = os.waitid, os.wait4


def hide_hosts() -> None:
    """Hide hosts from `os.wait`, `os.waitpid`, `os.wait3`, `os.wait4` and `os.waitid`. Idempotent."""
    if sys.platform != "linux" or os.waitpid is not waitpid:
        return  # the functions are already replaced, by this function or by gevent, which waits in its own loop
    os.wait, os.waitpid, os.waitid = _wait_for_one, _wait_for_pid, _wait_for_id
    os.wait3, os.wait4 = _wait_with_usage, _wait_for_pid_with_usage


def _wait_for_one() -> tuple[int, int]:
    return _wait_for_pid(_ANY, 0)


def _wait_for_pid(pid: int, options: int, /) -> tuple[int, int]:
    if pid != _ANY:
        return waitpid(pid, options)
    return _first(options, _flags(options), lambda one: waitpid(one, options)) or (0, 0)


def _wait_with_usage(options: int) -> tuple[int, int, Any]:
    return _wait_for_pid_with_usage(_ANY, options)


def _wait_for_pid_with_usage(pid: int, options: int) -> tuple[int, int, Any]:
    if pid != _ANY:
        return _wait4(pid, options)
    found = _first(options, _flags(options), lambda one: _wait4(one, options))
    if found is None:
        import resource

        return 0, 0, resource.struct_rusage((0,) * resource.struct_rusage.n_sequence_fields)
    return found


def _wait_for_id(kind: int, number: int, options: int, /) -> Any:
    if kind != os.P_ALL:
        return _waitid(kind, number, options)
    flags = options & (os.WEXITED | os.WSTOPPED | os.WCONTINUED)
    return _first(options, flags, lambda one: _waitid(os.P_PID, one, options))


def _flags(options: int) -> int:
    """Convert options of `os.waitpid` to flags of `os.waitid`."""
    return os.WEXITED | (os.WSTOPPED if options & os.WUNTRACED else 0) | (options & os.WCONTINUED)


def _first(options: int, flags: int, take: Callable[[int], T]) -> T | None:
    """Wait for a child of the program that changes its state, and return its status. Return ``None`` if no child
    has changed and `options` contains WNOHANG.

    Raises:
        ChildProcessError: the program has no children.
    """
    while True:
        pid = _changed(flags)
        if pid is not None:
            try:
                taken: Any = take(pid)
            except ChildProcessError:
                continue  # another thread has reaped the child
            if taken and taken[0]:
                return taken  # type: ignore[no-any-return]
            continue
        others = _others()
        if not others:
            raise ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))
        if options & os.WNOHANG:
            return None
        _wait_for_change(others)


def _changed(flags: int) -> int | None:
    """Return a child of the program whose status is available without waiting."""
    while True:
        try:
            found = _waitid(os.P_ALL, 0, flags | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if found is None:
            return None
        child = living_children.get(found.si_pid)
        if child is None:
            return found.si_pid
        # Reap a dead host, or discard the state change of a stopped host: otherwise `waitid` would report the same
        # host again instead of other children.
        if child.poll() is None:
            _waitid(os.P_PID, child.pid, (flags & ~os.WEXITED or os.WSTOPPED) | os.WNOHANG)


def _others() -> list[int]:
    """Return the children of this process that are not hosts."""
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except OSError:
            pass  # the thread has ended
    return [pid for pid in found if pid not in living_children]


def _wait_for_change(pids: list[int]) -> None:
    """Wait until one of the processes ends, or for a short time, because another thread may start a child."""
    watches: list[int] = []
    poll = new_poll()
    try:
        for pid in pids:
            watches.append(os.pidfd_open(pid))
            poll.register(watches[-1], select.POLLIN)
    except ProcessLookupError:
        return  # another thread has reaped the process
    except OSError:
        sleep(_ASK_INTERVAL_S)
        return
    else:
        poll.poll(_LOOK_INTERVAL_MS)
    finally:
        for watch in watches:
            os.close(watch)
