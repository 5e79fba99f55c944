"""A few daemon threads for `run_async`, futures and asyncio.

Not `concurrent.futures`: the interpreter joins its threads before it ends, so a native call that never returns
would keep the application from ending too.
"""

from __future__ import annotations

import collections
import sys
import threading
from collections.abc import Callable

from qnnbridge_os.native import Lock
from qnnbridge_os.shield import Changes, start_thread
from qnnbridge_protocol.errors import Closed

# The NPU works on one call at a time; more threads would only wait.
THREADS = 4


def silence_daemon_threads() -> None:
    """From now on a daemon thread may end with `Closed` in silence: the program ends, its hosts are closed first.

    With onnxruntime such a thread just stops; a traceback would be noise behind the application's last words.
    """
    before = threading.excepthook

    def hook(ended: threading.ExceptHookArgs) -> None:
        if not (isinstance(ended.exc_value, Closed) and ended.thread is not None and ended.thread.daemon):
            before(ended)

    threading.excepthook = hook


def refuse_at_the_end() -> None:
    """Raises `Closed` in a ``__del__`` at the end of the interpreter, when no module can be imported any more."""
    if sys.is_finalizing():
        raise Closed(
            "The program is ending: its hosts are closed.",
            fix="Make this call before the end of the program, or in a function that atexit runs, not in __del__.",
        )


class Background:
    """Runs jobs in the order of their arrival, `threads` at a time. Any thread. An idle one has no threads."""

    def __init__(self, name: str, threads: int = THREADS) -> None:
        self._name = name
        self._most = threads
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._lock = Lock()
        self._changes: Changes[bool] = Changes()
        self._threads = 0

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        self._see_to_it()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until all jobs are done. False if one still is not."""
        self._see_to_it()  # `submit` may have been interrupted before it did
        return self._changes.wait_for(lambda: not (self._threads or self._jobs), timeout_s)

    def _see_to_it(self) -> None:
        if self._jobs and self._threads < self._most:
            start_thread(self._name, self._work)

    def _work(self) -> None:
        # The threads count themselves: what starts them may be interrupted.
        with self._lock:
            if self._threads == self._most:
                return
            self._threads += 1
        while True:
            with self._lock:
                if not self._jobs:
                    self._threads -= 1
                    break
                job = self._jobs.popleft()
            job()
        self._changes.notify()
