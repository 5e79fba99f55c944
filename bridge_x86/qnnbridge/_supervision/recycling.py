"""Planned replacement of a host that has grown: QNN leaks about 0.15 MB with each compile, devices more.

Sources: 200 compiles grew the simulator's process from 174 to 204 MB (measured); onnxruntime issue 22511 reports
700 MB that were kept after the session was closed.

A replacement makes every session that is still used anew, and those creations must not bring about the next
replacement, or a host with more sessions than `RecycleAfter.creations` would be replaced for ever. So a creation
counts only if the application asked for it: of each key as many are free in a generation as the most that any
earlier generation made. Where nothing new is asked for, that is soon as many as there are sessions, and nothing
counts any more. A key that names one session, not only its model, makes the count exact: then a program that opens
and closes the same model again and again, too, gets a fresh host each time the number is reached; with a key per
model it gets one after 1, 3, 6, 10 ... times the number.
"""

from __future__ import annotations

import dataclasses
import threading
import time

CHECK_INTERVAL_S = 2.0

# Remembered; a session that was forgotten counts once more.
MAX_KEYS = 10_000


@dataclasses.dataclass(frozen=True)
class RecycleAfter:
    """When a host is replaced by a fresh one between two calls. ``None`` means never.

    rss_bytes: resident memory of the host process. creations: sessions made in it, without those that only come
    back after a replacement.
    """

    rss_bytes: int | None = None
    creations: int | None = None


class Recycler:
    """Says when it is time. Any thread; being asked twice at once does no harm."""

    def __init__(self, after: RecycleAfter) -> None:
        self._after = after
        self._next_check = 0.0
        self._lock = threading.Lock()
        self._generation = 0
        self._counted = 0
        self._made: dict[str, int] = {}
        """Sessions made in this generation, by key."""
        self._free: dict[str, int] = {}
        """The most that any earlier generation made, by key; the keys used last are at the end."""

    def created(self, generation: int, key: str) -> None:
        """A session was made in this generation. key: names the session, or at least its model and options."""
        if self._after.creations is None:
            return
        with self._lock:
            if generation > self._generation:
                self._begin(generation)
            elif generation < self._generation:
                return  # its host is gone
            made = self._made[key] = self._made.get(key, 0) + 1
            self._counted += made > self._free.get(key, 0)

    def is_due(self, generation: int, pid: int) -> bool:
        """Whether the host should be replaced now. Looks at its memory every two seconds at most."""
        after = self._after
        if after.creations is not None and generation == self._generation and self._counted >= after.creations:
            return True
        if after.rss_bytes is None or time.monotonic() < self._next_check:
            return False
        self._next_check = time.monotonic() + CHECK_INTERVAL_S
        import psutil  # 12 ms, for those who want it only

        try:
            return bool(psutil.Process(pid).memory_info().rss > after.rss_bytes)
        except psutil.Error:
            return False

    def _begin(self, generation: int) -> None:
        for key, made in self._made.items():
            self._free[key] = max(made, self._free.pop(key, 0))
        for key in list(self._free)[:-MAX_KEYS]:
            del self._free[key]
        self._generation, self._counted, self._made = generation, 0, {}
