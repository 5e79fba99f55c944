"""A few daemon threads for `run_async`, futures and asyncio.

Not `concurrent.futures`: the interpreter joins its threads before it ends, so a native call that never returns
would keep the application from ending too.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

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


class Background:
    """Runs jobs in the order of their arrival, `threads` at a time. Any thread. An idle one has no threads."""

    def __init__(self, name: str, threads: int = THREADS) -> None:
        self._name = name
        self._most = threads
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._changed = threading.Condition()
        self._threads = 0

    def submit(self, job: Callable[[], None]) -> None:
        with self._changed:
            self._jobs.append(job)
            if self._threads == self._most:
                return
            self._threads += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until all jobs are done. False if one still is not."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._threads -= 1
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
            job()
