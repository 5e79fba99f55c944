"""Entries of the cache: complete or absent, and below a size limit.

::

    v1/entries/KEY/manifest.json, model_ctx.onnx, model_ctx_qnn.bin
    v1/locks/KEY.lock       held while this entry is compiled, verified or removed
    v1/uses/KEY/RANDOM.lock held by each process that has sessions of the entry; next to hits.json
    v1/tmp/RANDOM/          entries that are being created, each with RANDOM.lock held by its creator
    v1/bad/WHEN-KEY/        entries that were set aside, with reason.json
    v1/notes/KEY.json       models that are not compiled or cached
    v1/fixed/KEY/           rewritten copies of models
    v1/verdicts/KEY.json    verdicts on the numbers of models
    memo/                   hashes of files

Invariants: an entry is created by one rename, after all its files are on the disk, with the manifest written last.
It is used only after its files are verified against the manifest. To remove an entry, the store
renames its folder, then deletes the files. Methods that change an entry are called under its lock (`lock`). They
raise `OSError` when the disk fails. Safe for several threads and processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

from qnnbridge_host.cache.entry import FILE_NAME, CacheEntry, EntryManifest
from qnnbridge_host.cache.files import (
    COPIES,
    FORMS,
    VERSION_FOLDER,
    Damaged,
    Held,
    hold,
    holding,
    is_part,
    is_time,
    read_json,
    remove_tree,
    try_hold,
    write_json,
)
from qnnbridge_host.cache.memo import HashMemo
from qnnbridge_host.model.source import KnownFile
from qnnbridge_os.files import NotOurs, enter, is_own, make_folders, make_own, sync_file, sync_folder
from qnnbridge_protocol.field_types import read_document

# Timeout in seconds for the sweep lock, whose holder may be deleting gigabytes of abandoned files.
SWEEP_WAIT_S: Final = 10.0
# Maximum number of set-aside entries that are kept, with the reason.
MAX_INVALID: Final = 20
MANY_USES: Final = 16
REASON_FILE: Final = "reason.json"
HITS_FILE: Final = "hits.json"
# Pattern of the lock file of a process that uses an entry: process id and random number.
_USE: Final = re.compile(r"\d+-[0-9a-f]+\.lock")

_WINDOWS_MAX_PATH: Final = 259
_LONGEST_NAME: Final = 40

Fault = Literal["damaged", "foreign", "crashed", "unloadable", "differs"]


@dataclasses.dataclass(frozen=True, slots=True)
class Hits:
    """Approximate number of uses of an entry. last: time of the last use, in seconds since 1970."""

    count: int = 0
    last: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class InvalidEntry:
    """An entry that was set aside. when: time of setting it aside, in seconds since 1970."""

    folder: Path
    key: str
    fault: str
    reason: str
    label: str
    when: float


class Store:
    """Reads, publishes, uses and removes entries. folder: folder of the whole cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / VERSION_FOLDER
        self.memo = HashMemo(folder)
        self._own = False

    def prepare(self) -> None:
        """Create the folders. Raise `OSError` if the path is too long or a folder cannot be created."""
        longest = len(os.fspath(self.root / "entries")) + _LONGEST_NAME + 2 * (_LONGEST_NAME + 1)
        if os.name == "nt" and longest > _WINDOWS_MAX_PATH:
            raise OSError(f"the path {self.folder} is too long: Windows could not open the files in this folder")
        # Create all folders below one root, so that entries can be moved between them by rename.
        make_own(self.root, self._is_ours)
        for name in ("entries", "locks", "uses", "tmp", "bad", "notes"):
            make_folders(self.part(name))

    @property
    def is_usable(self) -> bool:
        """True if the cache's folder exists and belongs to qnnbridge."""
        return self.root.is_dir() and is_own(self.root, self._is_ours)

    def part(self, name: str) -> Path:
        """Return the path of a folder of the cache, which may not exist. Raise `NotOurs` if it is a link, or if the
        cache's folder does not belong to qnnbridge."""
        if not self._own:
            enter(self.root)
            if not is_own(self.root, self._is_ours):
                text = "The folder contains files of other programs, so qnnbridge does not use it"
                raise NotOurs(errno.EEXIST, text, os.fspath(self.root))
            self._own = True
        return enter(self.root / name)

    def _is_ours(self, name: str) -> bool:
        return is_part(self.root, name)

    def listed(self, name: str) -> list[Path]:
        """Return the cache's own files in one of its folders, without other files and links."""
        form = FORMS[name]
        try:
            return [
                file for file in _listed(self.part(name)) if form.fullmatch(file.name) and not file.is_symlink()
            ]
        except NotOurs:
            return []

    def check_room(self, size_bytes: int) -> None:
        """Raise `OSError` if less than `size_bytes` of disk space is free. Call this before compiling a model."""
        free = shutil.disk_usage(self.root).free
        if free < size_bytes:
            raise OSError(errno.ENOSPC, f"The disk is full ({free} bytes are free)")

    # --- one entry ---

    def lock(
        self, key: str, deadline: float | None, on_wait: Callable[[float], bool | None] | None = None
    ) -> Held | None:
        """Take the lock of an entry; return ``None`` if the deadline expires or `on_wait` ends the wait."""
        return hold(self._lock_file(key), deadline, on_wait)

    def try_lock(self, key: str) -> Held | None:
        return try_hold(self._lock_file(key))

    def find(self, key: str, *, fresh: bool = False) -> CacheEntry | None:
        """Return an entry after verifying its files; ``None`` if the key has none. Raise `Damaged` with the reason.

        fresh: read every file, even if its stamp is unchanged since an earlier verification.
        """
        entry = self.peek(key)
        if entry is None:
            return None
        return dataclasses.replace(entry, checked=self._check(entry, fresh))

    def peek(self, key: str) -> CacheEntry | None:
        """Return an entry after checking only its manifest. Raise `Damaged` if the manifest is invalid, or if the
        entry's path is a link or a file."""
        folder = self.entry_folder(key)
        try:
            enter(folder)
        except NotOurs:
            raise Damaged("its path is a link or a file instead of a folder") from None
        try:
            manifest = EntryManifest.read(folder)
        except OSError as error:
            raise Damaged(f"its manifest cannot be read ({error.strerror or error})") from None
        # A folder without a manifest was never finished, because the manifest is written last.
        if manifest is None:
            if not os.path.lexists(folder):
                return None
            raise Damaged("it has no manifest")
        return CacheEntry(folder, manifest)

    def publish(self, draft: Draft, manifest: EntryManifest) -> CacheEntry:
        """Publish the finished draft as the entry of its key, atomically. Replace files that another entry
        also contains by hard links."""
        for record in manifest.files:
            self._share(draft.folder / record.name, record.sha256, record.size)
            sync_file(draft.folder / record.name)
        # Write the manifest last, after the files are on the disk: an entry with a manifest is complete.
        manifest.write(draft.folder)
        target = self.entry_folder(manifest.key)
        if os.path.lexists(target):
            self.remove(manifest.key)
        os.rename(draft.folder, target)
        # The rename itself must reach the disk, because a power failure could otherwise undo it.
        sync_folder(target.parent)
        draft.close()
        return CacheEntry(target, manifest)

    def quarantine_entry(self, key: str, fault: Fault, reason: str) -> None:
        """Move an entry to a folder from which nothing is loaded, and record the reason."""
        folder = self.entry_folder(key)
        if not os.path.lexists(folder):
            return
        label = ""
        with contextlib.suppress(Damaged):
            entry = self.peek(key)
            label = entry.manifest.label if entry is not None else ""
        now = time.time()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(8)}-{key[:8]}"
        target = self.part("bad") / name
        # Move the entry before writing the reason, so that no process loads it in the meantime.
        os.rename(folder, target)
        # If the entry was a link, write no reason: only the link was moved, and its target is outside of the cache.
        if target.is_dir() and not target.is_symlink():
            with contextlib.suppress(OSError):  # the entry is moved even if the reason cannot be written
                content = {"key": key, "fault": fault, "reason": reason, "label": label, "when": now}
                write_json(target / REASON_FILE, content)
        for bad in self.invalid_entries()[MAX_INVALID:]:
            remove_tree(bad.folder)

    def remove(self, key: str) -> None:
        """Remove an entry and the records of its use."""
        folder = self.entry_folder(key)
        if os.path.lexists(enter(folder)):
            discarded = self.part("tmp") / f"removed-{secrets.token_hex(8)}"
            # Rename first, then remove: if the process is killed in between, no partial entry is left.
            os.rename(folder, discarded)
            remove_tree(discarded)
        if not self.in_use(key):
            remove_tree(self._uses(key))

    # --- processes that use an entry ---------------------------------------------------------------------

    def use(self, key: str) -> Held:
        """Mark an entry as used: it is not evicted as long as the returned lock is held."""
        folder = self._uses(key)
        folder.mkdir(parents=True, exist_ok=True)
        # A lock file's name begins with the process id. Locks of this process need no check unless there are many.
        names = [name for name in os.listdir(folder) if name.endswith(".lock")]
        if len(names) > MANY_USES or any(not name.startswith(f"{os.getpid()}-") for name in names):
            # Remove lock files of killed processes and of sessions that were never closed.
            self.in_use(key)
        # Use one lock for each session; the operating system releases it if the process is killed.
        held = try_hold(folder / f"{os.getpid()}-{secrets.token_hex(6)}.lock")
        if held is None:
            raise OSError(f"{folder}: another process holds the new lock")
        return held

    def in_use(self, key: str, *, sweep: bool = True) -> bool:
        """Return whether a running process has sessions of an entry. sweep: remove stale lock files."""
        used = False
        for file in _listed(self._uses(key)):
            if not _USE.fullmatch(file.name) or file.is_symlink():
                continue
            held = try_hold(file)
            if held is None:
                used = True
            else:
                held.release(remove=sweep)
        return used

    def count_hit(self, key: str) -> None:
        """Count a use. Two simultaneous uses may be counted as one."""
        hits = self.hits(key)
        with contextlib.suppress(OSError):
            self._uses(key).mkdir(parents=True, exist_ok=True)
            write_json(self._uses(key) / HITS_FILE, {"count": hits.count + 1, "last": time.time()})

    def hits(self, key: str) -> Hits:
        try:
            content = read_json(self._uses(key) / HITS_FILE)
            if content is None:
                return Hits()
            found = read_document(Hits, content, "the record")
        except (Damaged, OSError, LookupError, TypeError, ValueError):
            return Hits()
        # An implausible record is ignored; the next use writes a valid one.
        return found if found.count >= 0 and is_time(found.last) else Hits()

    # --- creating an entry ---

    def draft(self) -> Draft:
        """Create an empty folder on the same volume for an entry that is being created."""
        # Create lock and folder while `sweep` cannot run, because it removes folders without a held lock.
        with holding(self._sweep_lock, time.monotonic() + SWEEP_WAIT_S):
            name = secrets.token_hex(8)
            held = try_hold(self.part("tmp") / f"{name}.lock")
            if held is None:
                raise OSError(f"{self.root}: another process holds the new lock")
            try:
                folder = self.root / "tmp" / name
                folder.mkdir()
            except BaseException:
                held.release(remove=True)
                raise
        return Draft(folder, held)

    def sweep(self) -> int:
        """Remove the drafts and lock files of processes that have ended. Return the number of removed drafts."""
        removed = 0
        for folder in self.listed("uses"):
            self._sweep_uses(folder.name)
        with holding(self._sweep_lock, time.monotonic() + SWEEP_WAIT_S) as alone:
            if not alone:
                return 0
            found = {file.name.removesuffix(".lock") for file in self.listed("tmp")}
            for name in found:
                if name.startswith("removed-"):
                    remove_tree(self.root / "tmp" / name)
                    continue
                held = try_hold(self.root / "tmp" / f"{name}.lock")
                if held is None:
                    continue
                remove_tree(self.root / "tmp" / name)
                held.release(remove=True)
                removed += 1
        return removed

    def _sweep_uses(self, key: str) -> None:
        with contextlib.suppress(OSError):
            # Lock order: the entry's lock, then the locks of its users.
            held = self.try_lock(key)
            if held is None:
                return  # another process is about to use the entry
            try:
                if not self.in_use(key) and not os.path.lexists(self.entry_folder(key)):
                    remove_tree(self._uses(key))
            finally:
                held.release()

    # --- all entries ---

    def all_keys(self) -> list[str]:
        return sorted(file.name for file in self.listed("entries"))

    def invalid_entries(self) -> list[InvalidEntry]:
        """Return the entries that were set aside, the newest first."""
        found = []
        for folder in self.listed("bad"):
            try:
                content = read_json(folder / REASON_FILE) or {}
            except (Damaged, OSError):
                content = {}
            text = {name: str(content.get(name, "")) for name in ("key", "fault", "reason", "label")}
            when = content.get("when", 0.0)
            known = isinstance(when, float) and is_time(when)
            found.append(InvalidEntry(folder, **text, when=when if known else 0.0))
        return sorted(found, key=lambda bad: bad.folder.name, reverse=True)

    def entry_folder(self, key: str) -> Path:
        return self.part("entries") / key

    def clear_copies(self) -> None:
        """Remove rewritten copies of models."""
        for kind in COPIES:
            for folder in self.listed(kind):
                remove_tree(folder)

    # --- details ---

    def _check(self, entry: CacheEntry, fresh: bool) -> tuple[KnownFile, ...]:
        if entry.manifest.key != entry.folder.name:
            raise Damaged(f"it is the entry of another key ({entry.manifest.key})")
        names = {record.name for record in entry.manifest.files}
        strangers = {file.name for file in _listed(entry.folder)} - names - {FILE_NAME}
        if strangers:
            raise Damaged(f"the entry contains a file that its manifest does not list: {sorted(strangers)[0]}")
        checked = []
        for record in entry.manifest.files:
            path = entry.folder / record.name
            try:
                size, found = path.lstat().st_size, None
                # Refuse a link: it could point to a file that changes after the check.
                if size == record.size and not path.is_symlink():
                    found = KnownFile.look(os.fspath(path), None if fresh else self.memo)
            except FileNotFoundError:
                raise Damaged(f"{record.name} is missing") from None
            except OSError as error:
                raise Damaged(f"{record.name} cannot be read ({error.strerror or error})") from None
            if size != record.size:
                raise Damaged(f"{record.name} has {size} bytes instead of {record.size}")
            if found is None or found.sha256 != record.sha256:
                raise Damaged(f"{record.name} has changed since it was compiled")
            checked.append(found)
        return tuple(checked)

    def _share(self, path: Path, sha256: str, size: int) -> None:
        """Replace a file by a hard link to an identical file of another entry, if hard links are supported."""
        for key in self.all_keys():
            try:
                other = self.peek(key)
            except (Damaged, NotOurs):
                continue
            if other is None:
                continue
            for record in other.manifest.files:
                if (record.sha256, record.size) != (sha256, size):
                    continue
                twin = other.folder / record.name
                with contextlib.suppress(OSError, Damaged):
                    self._check(other, fresh=False)
                    linked = path.with_name(f"{path.name}.linked")
                    # Create the link under a new name first, because `link` cannot replace a file, but `replace`
                    # can, atomically.
                    os.link(twin, linked)
                    os.replace(linked, path)
                    return

    def _lock_file(self, key: str) -> Path:
        return self.part("locks") / f"{key}.lock"

    def _uses(self, key: str) -> Path:
        return enter(self.part("uses") / key)

    @property
    def _sweep_lock(self) -> Path:
        return self.part("locks") / "sweep.lock"


class Draft:
    """A folder in which an entry is created. `close` removes the folder unless it was published as an entry."""

    def __init__(self, folder: Path, held: Held) -> None:
        self.folder = folder
        self._held: Held | None = held

    def close(self) -> None:
        """Remove the folder and release its lock. Idempotent."""
        if self._held is None:
            return
        remove_tree(self.folder)
        self._held.release(remove=True)
        self._held = None

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listed(folder: Path) -> Iterator[Path]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        yield folder / name


# --- eviction of the least recently used entries, except those in use ------------------------------------
#
# A file that several entries share counts once, and is freed with the last of them. One process evicts at a time.


def total_bytes(store: Store) -> int:
    """Return the size of all entries, including those that were set aside. Shared files count once."""
    # Identify files by device and inode, so that hard links to one file count once.
    sizes: dict[tuple[int, int], int] = {}
    # Use `listed`, which skips links, because their targets are not part of this cache.
    kept = store.listed("entries")
    for folder in kept + [bad.folder for bad in store.invalid_entries()]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    # `entry.stat()` is not used: on Windows its result lacks the inode.
                    status = os.stat(entry.path, follow_symlinks=False)
                    sizes[status.st_dev, status.st_ino] = status.st_size
        except OSError:
            continue
    return sum(sizes.values())


def shrink(store: Store, max_bytes: int, keep: str | None = None) -> list[str]:
    """Evict entries until all of them together have at most `max_bytes`. Return the evicted keys.

    keep: key of an entry that is not evicted, because it was just created and is about to be used. Raise `OSError`
    if the cache cannot be read.
    """
    held = try_hold(store.part("locks") / "evict.lock")
    if held is None:
        return []  # another process is evicting
    gone: list[str] = []
    try:
        if total_bytes(store) > max_bytes:
            for bad in store.invalid_entries():
                remove_tree(bad.folder)
        for key in sorted(store.all_keys(), key=lambda key: last_used(store, key)):
            if total_bytes(store) <= max_bytes:
                break
            if key != keep and evict(store, key):
                gone.append(key)
        return gone
    finally:
        held.release()


def evict(store: Store, key: str) -> bool:
    """Remove an entry unless a process is using, creating or verifying it. Return whether it was removed."""
    held = store.try_lock(key)
    if held is None:
        return False
    try:
        if store.in_use(key):
            return False
        store.remove(key)
        return True
    except NotOurs:
        return False
    finally:
        held.release()


def last_used(store: Store, key: str) -> float:
    """Return the time of last use in seconds since 1970. For an entry that was never used, this is its creation
    time."""
    hits = store.hits(key)
    if hits.last:
        return hits.last
    with contextlib.suppress(Damaged, NotOurs):
        entry = store.peek(key)
        if entry is not None:
            return entry.manifest.created
    return 0.0
