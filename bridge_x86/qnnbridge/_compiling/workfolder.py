"""A folder on the volume of the result, in which the files grow until they are whole.

Hidden, held by an OS lock as long as its owner lives, and gone when the block ends. What a killed owner left is
removed by the next compilation into the same folder: it finds the lock free. Any process, any thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Final

from qnnbridge._compiling import trouble

PREFIX: Final = ".qnnbridge-compile-"
LOCK: Final = ".lock"
SETTLED_S: Final = 30.0
"""Younger folders are left alone: their owner may be about to take the lock."""


@contextlib.contextmanager
def work_folder(target: str) -> Iterator[str]:
    """A new folder inside of `target`, which is made if it is not there. Raises `CompileFailed`."""
    from filelock import FileLock

    made = _make(target)
    folder = None
    try:
        sweep(target)
        try:
            folder = tempfile.mkdtemp(prefix=PREFIX, dir=target)
            lock = FileLock(os.path.join(folder, LOCK))
            lock.acquire(blocking=False)
        except OSError as error:
            raise trouble.from_os(error, target) from None
        try:
            inner = os.path.join(folder, "out")
            os.mkdir(inner)
            yield inner
        finally:
            lock.release()
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        for path in made:
            with contextlib.suppress(OSError):
                os.rmdir(path)  # only if nothing came into it
        raise
    shutil.rmtree(folder, ignore_errors=True)


def sweep(target: str) -> None:
    """Remove what killed compilations have left in `target`."""
    from filelock import FileLock, Timeout

    with contextlib.suppress(OSError):
        for entry in list(os.scandir(target)):
            lock_path = os.path.join(entry.path, LOCK)
            if not entry.name.startswith(PREFIX) or not os.path.exists(lock_path):
                continue
            if 0 <= time.time() - entry.stat().st_mtime < SETTLED_S:
                continue
            lock = FileLock(lock_path)
            try:
                lock.acquire(blocking=False)
            except (Timeout, OSError):
                continue
            lock.release()
            shutil.rmtree(entry.path, ignore_errors=True)


def _make(target: str) -> list[str]:
    """Make the folder; which ones that took, the innermost first."""
    missing = []
    path = target
    while not os.path.isdir(path):
        missing.append(path)
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    try:
        os.makedirs(target, exist_ok=True)
    except OSError as error:
        raise trouble.from_os(error, target) from None
    return missing
