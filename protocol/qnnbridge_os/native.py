"""Locks, threads and waits of the operating system, also under gevent and eventlet.

Both libraries replace names of the standard library (`monkey.patch_all`, `monkey_patch`) with versions that switch
to another greenlet of the same thread. With them a lock of qnnbridge could be taken by a second greenlet, its
threads would be greenlets that do not run while another greenlet waits in C, and a timeout would wait for a switch
that never comes. So qnnbridge imports its waiting functions from here. A call of a session blocks its thread, as in
onnxruntime itself.

If gevent or eventlet replaced names before this module was imported, the originals are taken from the library's own
records. Later replacements by gevent have no effect here; eventlet also replaces existing objects (`check_locks`).
"""

from __future__ import annotations

import _thread
import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

from qnnbridge_protocol.errors import HostStartFailed


def original(module: str, name: str) -> Any:
    """Return the standard library's own object of this name, even if gevent or eventlet has replaced it."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and hasattr(gevent, "get_original"):
        return gevent.get_original(module, name)
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched(module):
        return getattr(eventlet.original(module), name)
    return getattr(importlib.import_module(module), name)


if TYPE_CHECKING:
    from _thread import start_new_thread as start_new_thread
    from os import waitpid as waitpid
    from queue import SimpleQueue as SimpleQueue
    from threading import Lock as Lock
    from threading import RLock as RLock
    from threading import get_ident as get_ident
    from threading import local as local
    from time import sleep as sleep
else:
    Lock = original("_thread", "allocate_lock")
    RLock = original("_thread", "RLock")
    local = original("_thread", "_local")
    get_ident = original("_thread", "get_ident")
    start_new_thread = original("_thread", "start_new_thread")
    SimpleQueue = original("queue", "SimpleQueue")
    sleep = original("time", "sleep")
    waitpid = original("os", "waitpid")


def threads_are_replaced() -> bool:
    """Return whether `threading` creates greenlets instead of threads."""
    return _thread.start_new_thread is not start_new_thread


def popen() -> type[subprocess.Popen[bytes]]:
    """Return `subprocess.Popen`. gevent also removes names that the original class needs, so under gevent a copy
    of the module is used."""
    if original("subprocess", "Popen") is subprocess.Popen:
        return subprocess.Popen
    spec = importlib.util.find_spec("subprocess")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("type[subprocess.Popen[bytes]]", module.Popen)


# A lock that `locks_hold` checks: eventlet replaces either all locks of this type at once, or none.
_specimen = RLock()


def locks_hold() -> bool:
    """Return whether existing objects still have their original locks."""
    return isinstance(_specimen, RLock)


def check_locks() -> None:
    """Raise `HostStartFailed` if eventlet has replaced the locks."""
    if not locks_hold():
        error = HostStartFailed(
            "qnnbridge cannot work in this process: eventlet has replaced its locks.",
            cause="eventlet.monkey_patch() was called after qnnbridge had been imported, and replaces the locks of "
            "all modules with locks that do not work between threads.",
            fix="Call eventlet.monkey_patch() before anything else is imported, see eventlet's documentation.",
        )
        error.retry = "pointless"
        raise error
