"""Ends the host when its application is gone, however that went.

End of input is not enough: a fork of the application may hold the pipe's other end. So a thread waits for the
application's process, and on Linux the kernel is asked to kill the host as well: that works even while native code
holds the GIL. On Windows the application's job object does the same.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from qnnbridge_os.parent import ParentHandle, error_dialogs_off

__all__ = ["arm", "error_dialogs_off"]


def _leave() -> None:
    os._exit(0)


def arm(parent_pid: int | None, on_parent_gone: Callable[[], object] = _leave) -> tuple[str, ...]:
    """Watch the process that the host belongs to; calls `on_parent_gone` from a thread, or now if it is too late.

    Says by what means: "pdeathsig" (the kernel kills), "pidfd", "handle", "polling" (the thread waits). Without
    any, only the end of input is left; so it is for a parent of another system (``None``).
    """
    if parent_pid is None:
        return ()
    try:
        parent = ParentHandle(parent_pid)
    except ProcessLookupError as error:
        print(f"qnnbridge host: its application has ended ({error})", file=sys.stderr, flush=True)
        on_parent_gone()
        return ()
    except OSError as error:
        text = f"process {parent_pid} cannot be watched ({error}); the host ends with its input"
        print(f"qnnbridge host: {text}", file=sys.stderr, flush=True)
        return ()

    def watch() -> None:
        parent.wait()
        on_parent_gone()

    threading.Thread(target=watch, name="qnnbridge-parent-watch", daemon=True).start()
    return parent.means
