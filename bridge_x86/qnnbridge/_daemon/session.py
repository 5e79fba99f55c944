"""What a session of the daemon is told when it is made, besides what every host is told, and what the daemon says
of it.

The daemon keeps the cache of compiled models, the quarantine and the manifest of the session, and repeats calls
when its NPU host dies. So it has to know what the application wants of these. Any thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from qnnbridge._recipe import SessionRecipe
from qnnbridge_host.cache.status import CacheStatus

# How long the daemon's answer to a call is waited for after the time at which it is to end the NPU host.
KILL_ANSWER_S = 0.5

_STATES = ("hit", "miss", "off")


class DaemonSession:
    """Belongs to one `RemoteSession`, for all daemons that it lives in.

    cache_status: what the daemon's cache did. is_shared: whether another application has the same session.
    """

    def __init__(self, manifest: SessionRecipe, retry: int) -> None:
        self._cache = manifest.cache
        self._retry = retry
        self._fingerprint = manifest.source.fingerprint
        self.cache_status = CacheStatus("off", "the daemon has not made the session yet")
        self.is_shared = False
        self.kill_at: float | None = None
        """As for `of_call`, while the session is being opened."""

    def request(self) -> dict[str, Any]:
        """For the header of `session.create`."""
        told = self.of_call(self._retry, self.kill_at)
        return {**told, "cache": self._cache, "fingerprint": self._fingerprint}

    def of_call(self, retry: int, kill_at: float | None) -> dict[str, Any]:
        """For the header of a call. kill_at: when the daemon is to end the NPU host if that still works on it."""
        told: dict[str, Any] = {"retry": retry}
        if kill_at is not None:
            told["kill_after_s"] = round(max(0.0, kill_at - time.monotonic()), 3)
        return told

    def made(self, reply: Mapping[str, Any]) -> None:
        """The header of its reply. What a newer daemon says differently is no reason to fail."""
        self.is_shared = reply.get("shared") is True
        told = reply.get("cache")
        if not isinstance(told, Mapping) or told.get("state") not in _STATES:
            self.cache_status = CacheStatus("off", "the daemon says nothing about its cache")
            return
        key, seconds = told.get("key"), told.get("compile_seconds")
        self.cache_status = CacheStatus(
            told["state"],
            str(told.get("reason", "")),
            key if isinstance(key, str) else None,
            float(seconds) if isinstance(seconds, (int, float)) else None,
        )
