"""The lock that makes a daemon the only one of its folder. Held until the process ends, however it does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LOCK_NAME: Final = "daemon.lock"


class FolderLock:
    """Belongs to the main thread. The operating system gives it free when the process ends."""

    def __init__(self, folder: Path) -> None:
        from filelock import FileLock

        self._path = folder / LOCK_NAME
        self._lock = FileLock(os.fspath(self._path), thread_local=False, mode=0o600)
        self._identity: tuple[int, int] | None = None

    def take(self) -> bool:
        """False if another process has it."""
        from filelock import Timeout

        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        self._identity = self._now_there()
        return True

    @property
    def is_ours(self) -> bool:
        """Whether the file that lies there is still the one that we have locked: a folder may be cleaned up."""
        return self._identity is not None and self._now_there() == self._identity

    def _now_there(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino
