"""Stops a run from another thread. Imports nothing heavy: the server makes handles before a session exists."""

from __future__ import annotations

import threading
from typing import Any


class StopHandle:
    """Asks one run to stop; any thread may call `stop`, before, during or after the run.

    ONNX Runtime looks at the request between two nodes. A run that is inside QNN goes on to its end, because a QNN
    partition is one node.
    """

    __slots__ = ("_lock", "_run_options", "_stopped")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._run_options: Any = None

    @property
    def run_options(self) -> Any:
        """What `attach` was last called with."""
        return self._run_options

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def stop(self) -> None:
        """Ask. Does nothing to a run that is over."""
        with self._lock:
            self._stopped = True
            if self._run_options is not None:
                self._run_options.terminate = True

    def attach(self, run_options: Any) -> None:
        """The run that will use these options is about to start."""
        with self._lock:
            if self._stopped:
                run_options.terminate = True
            self._run_options = run_options

    def detach(self) -> None:
        """The run is over."""
        with self._lock:
            self._run_options = None
