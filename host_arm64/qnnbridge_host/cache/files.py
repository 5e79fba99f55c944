"""Basic files of the cache: small JSON files, locks between processes, temporary folders.

A JSON file is written atomically and verified when it is read. It contains ``{"sha256": ..., "content": {...}}``,
so a flipped byte is detected. Safe for several threads and processes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.model.paths import open_regular
from qnnbridge_os.files import TEMPORARY, NotOurs, enter, is_own, make_folders, make_own, write_whole
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from filelock import BaseFileLock


# Version of entries, negative entries and keys. Data of other versions is never read.
SCHEMA: Final = 1
VERSION_FOLDER: Final = f"v{SCHEMA}"

MAX_JSON_BYTES: Final = 16 * 1024 * 1024


class Damaged(Exception):
    """The contents of a file differ from what was written. The message contains the reason."""


def write_json(path: Path, content: dict[str, Any], *, durable: bool = False) -> None:
    """Write a JSON file atomically; raise `OSError` if this fails. durable: the file survives a power failure."""
    document = {"sha256": _digest(content), "content": content}
    text = json.dumps(document, sort_keys=True, ensure_ascii=True, indent=1)
    write_whole(path, text.encode("ascii"), durable=durable)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON file; return ``None`` if it does not exist. Raise `Damaged`, or `OSError` if reading fails."""
    try:
        with io.BufferedReader(open_regular(path)) as file:
            data = file.read(MAX_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        document = json.loads(data, parse_int=_whole_number)
        content, digest = document["content"], document["sha256"]
        if not isinstance(content, dict) or digest != _digest(content):
            raise Damaged(f"{path.name} has been changed since it was written")
        if b"\\ud" in data.lower():
            _refuse_halves(content)
    except (ValueError, LookupError, TypeError, RecursionError, OverflowError):
        raise Damaged(f"{path.name} is not readable") from None
    return content


def _whole_number(text: str) -> int:
    """Parse an integer; refuse integers that the wire protocol's 64 bits cannot represent. No valid record
    contains them."""
    number = int(text)
    if not -(2**63) <= number < 2**64:
        raise ValueError("a number is too large")
    return number


def _refuse_halves(value: object) -> None:
    """Raise `ValueError` for a lone surrogate, unless Python uses it for an undecodable byte of a file name."""
    text = json.dumps(value, ensure_ascii=False)
    text.encode("utf-8", "surrogateescape")


def is_time(seconds: float) -> bool:
    """Return whether a record's time (seconds since 1970) is plausible."""
    # 2**36 is the year 4147; `datetime` fails after 9999.
    return math.isfinite(seconds) and 0 <= seconds < 2**36


# Pattern of the name of a record or folder in the cache.
KEY_FORM: Final = re.compile(r"[0-9a-f]{32}")
RECORD_FORM: Final = re.compile(r"(?:[a-z]+-)?[0-9a-z]{1,64}\.(json|odd)")

# Folders in the cache for copies of models (`create/replaced`). `cache clear` removes them.
COPIES: Final = ("fixed", "wrapped")
_MADE_FORM: Final = r"(?:removed-)?[0-9a-f]{16}(?:\.lock)?"
# Pattern of the file names in each folder. Other files do not belong to the cache.
FORMS: Final[Mapping[str, re.Pattern[str]]] = {
    "entries": KEY_FORM,
    "uses": KEY_FORM,
    "tmp": re.compile(_MADE_FORM),
    "bad": re.compile(r"\d{8}-\d{6}-[0-9a-f]{16}-[0-9a-f]{8}"),
    "locks": re.compile(r"[0-9a-z-]+\.(?:lock|beat)"),
    "notes": RECORD_FORM,
    "verdicts": RECORD_FORM,
    "optimizers": RECORD_FORM,
    **dict.fromkeys(COPIES, KEY_FORM),
}


def is_part(root: Path, name: str) -> bool:
    """Return whether the folder `name` contains only files of the cache. Used if the cache has no marker file."""
    form = FORMS.get(name)
    if form is None:
        return False
    return is_own(root / name, lambda one: form.fullmatch(one) is not None or one.startswith(TEMPORARY))


class JsonFolder:
    """Small JSON files in a folder, each named by a key. Safe for several threads and processes.

    An intact record that this version cannot interpret comes from another build: it gets the suffix .odd and is
    reported once.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keys(self) -> list[str]:
        """Return the keys, the oldest first."""
        dated = []
        with contextlib.suppress(OSError), os.scandir(self._entered()) as files:
            for file in files:
                if file.name.endswith(".json") and RECORD_FORM.fullmatch(file.name):
                    with contextlib.suppress(FileNotFoundError):  # another process has removed the file
                        dated.append((file.stat().st_mtime, file.name[:-5]))
        return [key for _, key in sorted(dated)]

    def remove(self, key: str) -> bool:
        """Remove a record; return whether it existed. Raise `OSError` if it cannot be removed."""
        try:
            self._entered()
            os.unlink(self._file(key))
        except (FileNotFoundError, NotOurs):
            return False
        return True

    def clear(self) -> None:
        """Remove all records, including those that were set aside, and nothing else."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._entered()):
                if RECORD_FORM.fullmatch(name):
                    with contextlib.suppress(OSError):
                        os.unlink(self._folder / name)

    def set_aside(self, key: str, reason: str) -> None:
        """Rename a record that this version cannot interpret."""
        with contextlib.suppress(OSError):
            self._entered()
            os.replace(self._file(key), self._file(key).with_suffix(".odd"))
            log_of("qnnbridge.cache").warning(
                "The record %s was set aside, because this version cannot interpret it: %s", self._file(key), reason
            )

    def _entered(self) -> Path:
        """Return the folder's path. Raise `NotOurs` if the folder or its parent is a link."""
        enter(self._folder.parent)
        return enter(self._folder)

    def _read(self, key: str) -> dict[str, Any] | None:
        self._entered()
        return read_json(self._file(key))

    def _write(self, key: str, content: dict[str, Any]) -> None:
        """Write a record. Ignore failures, because a missing record only costs time. Write nothing if the folder
        does not belong to qnnbridge."""
        with contextlib.suppress(OSError):
            root = self._folder.parent
            make_own(root, lambda name: is_part(root, name))
            make_folders(self._entered())
            write_json(self._file(key), content)

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def remove_tree(path: Path) -> None:
    """Remove a folder or file as completely as possible. A missing path is not an error."""

    def make_writable(function: Callable[[str], None], name: str, _info: object) -> None:
        try:
            os.chmod(name, stat.S_IRWXU)
            function(name)
        except OSError:
            pass

    try:
        is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return
    import shutil  # import it here because it imports the compression modules, which takes time

    if not is_folder:
        try:
            os.unlink(path)
        except OSError:
            # `chmod` would follow a link to a file outside of the cache.
            if not os.path.islink(path):
                make_writable(os.unlink, os.fspath(path), None)
    elif sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=make_writable)
    else:
        shutil.rmtree(path, onerror=make_writable)


def _digest(content: object) -> str:
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    ).hexdigest()


# --- locks between threads and processes, and waiting for them with heartbeats ---------------------------
#
# The operating system's file locks are used, so the locks of a killed process are released at once. A lock is a
# file that one process at a time can lock; nothing is ever written to it. Only the holder removes the file, and
# only while another lock prevents other processes from locking it. A process waits by polling, because only a
# polling wait can have a timeout and be interrupted on every system.

# Polling interval in seconds: short compared with a compilation, long compared with a system call.
POLL_S: Final = 0.02
# Seconds between two calls of ``on_wait``.
ASK_AGAIN_S: Final = 0.1


class Held:
    """A lock that this process holds. Release it once; the end of the process also releases it."""

    def __init__(self, lock: BaseFileLock, path: Path) -> None:
        self._lock = lock
        self.path = path

    def release(self, *, remove: bool = False) -> None:
        """Release the lock. remove: also delete the lock's file; allowed only if no process waits for the lock."""
        if remove:
            with contextlib.suppress(OSError):
                # Remove the file while the lock is held. Otherwise a process on POSIX could take the lock just
                # before the file disappears.
                os.unlink(self.path)  # fails on Windows, where the file is still open
        self._lock.release(force=True)
        if remove:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def try_hold(path: Path) -> Held | None:
    """Take a lock; return ``None`` if another process holds it. Raise `OSError` if the file system has no locks."""
    from filelock import FileLock, Timeout

    # Refuse a link, because taking the lock would truncate its target.
    if os.path.islink(path):
        raise NotOurs(errno.ELOOP, "The lock file is a link, so it is not used", os.fspath(path))
    # `thread_local=False`: a session may be created in one thread and released in another thread.
    lock = FileLock(os.fspath(path), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except NotImplementedError as error:  # this file system has no locks
        raise OSError(f"{path}: {error}") from None
    return Held(lock, path)


def hold(path: Path, deadline: float | None, on_wait: Callable[[float], bool | None] | None = None) -> Held | None:
    """Wait for a lock and take it; return ``None`` after `deadline` (a time by `time.monotonic`).

    on_wait: called periodically with the seconds waited so far; the wait ends if it returns ``False``.
    """
    begun = time.monotonic()
    last_asked = begun
    while True:
        held = try_hold(path)
        if held is not None:
            return held
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return None
        if on_wait is not None and now - last_asked >= ASK_AGAIN_S:
            last_asked = now
            if on_wait(now - begun) is False:
                return None
        time.sleep(POLL_S)


@contextlib.contextmanager
def holding(path: Path, deadline: float | None = None) -> Iterator[bool]:
    """Hold a lock during a block. Yield whether it is held: ``False`` if `deadline` expired."""
    held = hold(path, deadline)
    try:
        yield held is not None
    finally:
        if held is not None:
            held.release()


BEAT_EVERY_S: Final = 1.0
# Seconds without a heartbeat after which a process stops waiting: the compiling process is suspended, or it has
# ended and a forked child still holds its lock.
STALLED_S: Final = 60.0


class Heartbeat:
    """Progress callback that updates a file's modification time, which is the compiling process's heartbeat."""

    def __init__(self, path: Path, on_wait: Callable[[float], None]) -> None:
        self._path = path
        self._on_wait = on_wait
        self._next_s = 0.0

    def __call__(self, seconds: float) -> None:
        if seconds >= self._next_s:
            self._next_s = seconds + BEAT_EVERY_S
            with contextlib.suppress(OSError):
                self._path.touch()
        self._on_wait(seconds)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


class WaitPolicy:
    """Callback of a wait: returns ``False``, which ends the wait, when the last heartbeat is too old.

    Modification times are only compared with each other, so the clocks of the machines do not matter.
    """

    def __init__(
        self,
        path: Path,
        on_wait: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        stalled_s: float = STALLED_S,
    ) -> None:
        self._path = path
        self._on_wait = on_wait
        self._clock = clock
        self._stalled_s = stalled_s
        self._seen: int | None = None
        self._seen_at = clock()

    def __call__(self, seconds: float) -> bool:
        self._on_wait(seconds)
        beat = None
        with contextlib.suppress(OSError):
            beat = os.stat(self._path).st_mtime_ns
        now = self._clock()
        # Any change counts, even to an earlier time, because the clock of a network drive's server may be wrong.
        if beat != self._seen:
            self._seen, self._seen_at = beat, now
        return now - self._seen_at < self._stalled_s


# --- temporary folders that are removed soon after their process has ended -------------------------------
#
# The next process that creates such a folder removes ("sweeps") the folders of processes that have ended in any
# way. A folder contains a lock file, which is locked while its process runs. A process id would be unreliable: it
# may be reused, or belong to another container that shares the temporary folder.

# Lock file of a work folder. Folders without it are never swept.
MARK: Final = ".qnnbridge-work"
# Name of the lock file in earlier versions, in hidden folders next to compiled models.
EARLIER_MARK: Final = ".lock"
# Do not sweep folders below this age in seconds, because they may not be locked yet.
SETTLED_S: Final = 60.0
CONTENTS: Final = "work"


@contextlib.contextmanager
def work_folder(kind: str, parent: str | None = None, *, hidden: bool = False) -> Iterator[str]:
    """Create a folder ``qnnbridge-KIND-...`` for the duration of a block. Sweep abandoned folders of the same kind
    first.

    Args:
        kind: what the folder is for.
        parent: the folder in which it is created; default: the folder for temporary files.
        hidden: begin the name with a dot, because users look into `parent`.
    """
    import shutil
    import tempfile

    parent = tempfile.gettempdir() if parent is None else parent
    prefix = f"{'.' if hidden else ''}qnnbridge-{kind}-"
    sweep(parent, prefix)
    # Put the lock file next to the work folder, not inside: users may list and count the work folder's files.
    outer = tempfile.mkdtemp(prefix=prefix, dir=parent)
    held = None
    try:
        with contextlib.suppress(OSError):  # on a file system without locks the folder is never swept
            held = try_hold(Path(outer, MARK))
        inner = os.path.join(outer, CONTENTS)
        os.mkdir(inner)
        yield inner
    finally:
        if held is not None:
            held.release()
        shutil.rmtree(outer, ignore_errors=True)


def sweep(parent: str, prefix: str) -> int:
    """Remove the folders with this prefix whose process has ended. Return their number. Never raise an error."""
    import shutil

    removed = 0
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(parent)):
            if entry.name.startswith(prefix) and _is_abandoned(entry.path):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed += 1
    return removed


def _is_abandoned(folder: str) -> bool:
    mark = os.path.join(folder, MARK)
    if os.path.basename(folder).startswith(".") and not os.path.lexists(mark):
        mark = os.path.join(folder, EARLIER_MARK)
    try:
        # Do not follow links: in a folder that all users share, another user may have created a link.
        about, marked = os.lstat(folder), os.lstat(mark)
        mine = not hasattr(os, "geteuid") or (about.st_uid == marked.st_uid == os.geteuid())
        if not (mine and stat.S_ISDIR(about.st_mode) and stat.S_ISREG(marked.st_mode)):
            return False
        # A time in the future (after the clock was set back) must not protect a folder forever. Ignore the age
        # of a folder with contents: its process takes the lock before it creates the contents.
        young = 0 <= time.time() - about.st_mtime < SETTLED_S
        if young and not os.path.isdir(os.path.join(folder, CONTENTS)):
            return False
        held = try_hold(Path(mark))
    except OSError:
        return False
    if held is None:
        return False
    held.release()
    return True
