"""Planned replacement of a host that has grown: QNN leaks about 0.15 MB with each compile, devices more.

Sources: 200 compiles grew the simulator's process from 174 to 204 MB (measured); onnxruntime issue 22511 reports
700 MB that were kept after the session was closed.
"""

from __future__ import annotations

import dataclasses
import time

CHECK_INTERVAL_S = 2.0


@dataclasses.dataclass(frozen=True)
class RecycleAfter:
    """When a host is replaced by a fresh one between two calls. ``None`` means never.

    rss_bytes: resident memory of the host process. creations: sessions made in it, beyond the first of each kind.
    """

    rss_bytes: int | None = None
    creations: int | None = None


class Recycler:
    """Says when it is time. Any thread; being asked twice at once does no harm."""

    def __init__(self, after: RecycleAfter) -> None:
        self._after = after
        self._next_check = 0.0
        self._generation = 0
        self._first: set[str] = set()
        self._extra = 0

    def created(self, generation: int, key: str) -> None:
        """A session was made in this generation. key: of its model and options.

        The first one of each kind does not count: they come back after every restart, and would cause the next.
        """
        if generation != self._generation:
            self._generation, self._first, self._extra = generation, set(), 0
        if key in self._first:
            self._extra += 1
        self._first.add(key)

    def is_due(self, generation: int, pid: int) -> bool:
        """Whether the host should be replaced now. Looks at its memory every two seconds at most."""
        after = self._after
        if after.creations is not None and generation == self._generation and self._extra >= after.creations:
            return True
        if after.rss_bytes is None or time.monotonic() < self._next_check:
            return False
        self._next_check = time.monotonic() + CHECK_INTERVAL_S
        import psutil  # 12 ms, for those who want it only

        try:
            return bool(psutil.Process(pid).memory_info().rss > after.rss_bytes)
        except psutil.Error:
            return False
