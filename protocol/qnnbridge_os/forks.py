"""Make objects usable again in a forked child: unlock the locks and reset the counts of threads that exist only in
the parent.

`os.fork` copies one thread only. A lock that another thread held at that moment stays locked in the child forever.
Therefore objects that outlive a call are registered here (`renew_in_forks`) and made usable in each child before
other code runs there. Objects that exist only during a call, or that a registered object creates again, are not
registered.

Thread-safe. On Windows, which cannot fork, nothing is registered.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any, TypeVar

if sys.platform != "win32":
    # Import `_posix_process` first, so that its fork handler runs first: renewed hosts use the spawner that this
    # handler resets.
    import qnnbridge_os._posix_process  # noqa: F401

T = TypeVar("T")

_registered: weakref.WeakSet[Any] = weakref.WeakSet()


def renew_in_forks(thing: T) -> T:
    """Call the object's method ``_at_fork_reinit()`` in each forked child, as long as the object exists. Return the
    object.

    Python's locks have this method, which unlocks them.
    """
    if hasattr(os, "register_at_fork"):
        _registered.add(thing)
    return thing


def _renew_all() -> None:
    for thing in tuple(_registered):
        thing._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
