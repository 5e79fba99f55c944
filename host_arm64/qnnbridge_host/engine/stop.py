"""Stops a run from another thread. Imports nothing heavy: the server makes handles before a session exists."""

from __future__ import annotations

import threading
from typing import Any


class StopHandle:
    """Asks one run to stop; any thread may call `stop`, before, during or after the run.

    ONNX Runtime looks at the request between two nodes. A run that is inside QNN continues to its end, because a
    QNN partition is one node.
    """

    __slots__ = ("_lock", "run_options", "stopped")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Whether `stop` was called.
        self.stopped = False
        # What `attach` was last called with.
        self.run_options: Any = None

    def stop(self) -> None:
        """Ask. Does nothing to a run that is over."""
        with self._lock:
            self.stopped = True
            if self.run_options is not None:
                self.run_options.terminate = True

    def attach(self, run_options: Any) -> None:
        """The run that will use these options is about to start."""
        with self._lock:
            if self.stopped:
                run_options.terminate = True
            self.run_options = run_options

    def detach(self) -> None:
        """The run is over."""
        with self._lock:
            self.run_options = None
