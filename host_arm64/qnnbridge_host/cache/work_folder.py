"""Temporary folders that do not outlive their process for long, whatever ended it: the next one of its kind sweeps.

A folder holds a lock file, which is locked as long as its process lives. The lock decides, and not a process'
number: that may be another one's by now, or one of another container with the same folder for temporary files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import Final

# Only in this module's folders: others are swept by nothing.
MARK: Final = ".qnnbridge-work"
# A folder that is younger may not be locked yet.
SETTLED_S: Final = 60.0


@contextlib.contextmanager
def work_folder(kind: str, parent: str | None = None) -> Iterator[str]:
    """A new folder ``qnnbridge-KIND-...``, removed at the end. What others of this kind have left is swept.

    Args:
        kind: a word for the use, one for each.
        parent: where to make it; default the folder for temporary files.
    """
    from filelock import FileLock

    parent = tempfile.gettempdir() if parent is None else parent
    prefix = f"qnnbridge-{kind}-"
    sweep(parent, prefix)
    # The lock lies beside the contents: users may list, and count, what they put there.
    outer = tempfile.mkdtemp(prefix=prefix, dir=parent)
    lock = FileLock(os.path.join(outer, MARK), thread_local=False)  # another thread may end it
    try:
        lock.acquire()
        inner = os.path.join(outer, "work")
        os.mkdir(inner)
        yield inner
    finally:
        lock.release()
        shutil.rmtree(outer, ignore_errors=True)


def sweep(parent: str, prefix: str) -> int:
    """Remove folders of this kind whose process has ended. Returns their number; never raises."""
    removed = 0
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(parent)):
            if entry.name.startswith(prefix) and _is_abandoned(entry.path):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed += 1
    return removed


def _is_abandoned(folder: str) -> bool:
    from filelock import FileLock, Timeout

    mark = os.path.join(folder, MARK)
    try:
        # No link is followed: in a folder that all users share, another one may have put it there.
        about, marked = os.lstat(folder), os.lstat(mark)
        mine = not hasattr(os, "geteuid") or (about.st_uid == marked.st_uid == os.geteuid())
        if not (mine and stat.S_ISDIR(about.st_mode) and stat.S_ISREG(marked.st_mode)):
            return False
        if time.time() - about.st_mtime < SETTLED_S:
            return False
        with FileLock(mark, timeout=0):
            return True
    except (OSError, Timeout):
        return False
