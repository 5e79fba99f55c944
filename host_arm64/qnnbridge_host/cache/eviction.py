"""Keeps the cache below its size limit: evicts the least recently used entries, never one in use.

A file that several entries share counts once, and is freed with the last of them. Any thread, any process; one at a
time.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from qnnbridge_host.cache.files import Damaged
from qnnbridge_host.cache.locks import try_hold
from qnnbridge_host.cache.store import Store

# Device and number of a file: its name does not count.
File = tuple[int, int]


def total_bytes(store: Store) -> int:
    """Of all entries, and of those that were set aside."""
    return sum(_sizes(_folders(store)).values())


def shrink(store: Store, max_bytes: int, keep: str | None = None) -> list[str]:
    """Evict until all entries together have at most `max_bytes`. Returns the evicted keys.

    keep: the entry that was just made and is about to be used. Raises `OSError`.
    """
    held = try_hold(store.root / "locks" / "evict.lock")
    if held is None:
        return []  # another process is evicting
    try:
        return _shrink(store, max_bytes, keep)
    finally:
        held.release()


def _shrink(store: Store, max_bytes: int, keep: str | None) -> list[str]:
    gone: list[str] = []
    if total_bytes(store) > max_bytes:
        _drop_invalid(store)
    for key in _oldest_first(store):
        if total_bytes(store) <= max_bytes:
            break
        if key != keep and evict(store, key):
            gone.append(key)
    return gone


def evict(store: Store, key: str) -> bool:
    """Remove an entry that is not being used, made or checked. Returns whether it was removed."""
    held = store.try_lock(key)
    if held is None:
        return False
    try:
        if store.in_use(key):
            return False
        store.remove(key)
        return True
    finally:
        held.release()


def last_used(store: Store, key: str) -> float:
    """Seconds since 1970; the time of its creation for an entry that was never used."""
    hits = store.hits(key)
    if hits.last:
        return hits.last
    with contextlib.suppress(Damaged):
        entry = store.peek(key)
        if entry is not None:
            return entry.manifest.created
    return 0.0


def _oldest_first(store: Store) -> list[str]:
    return sorted(store.all_keys(), key=lambda key: last_used(store, key))


def _drop_invalid(store: Store) -> None:
    from qnnbridge_host.cache.files import remove_tree

    for bad in store.invalid_entries():
        remove_tree(bad.folder)


def _folders(store: Store) -> list[Path]:
    return [store.entry_folder(key) for key in store.all_keys()] + [bad.folder for bad in store.invalid_entries()]


def _sizes(folders: list[Path]) -> dict[File, int]:
    """Size of each file in these folders, each file once."""
    sizes: dict[File, int] = {}
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    # Not entry.stat(): on Windows that has no number.
                    status = os.stat(entry.path, follow_symlinks=False)
                    sizes[status.st_dev, status.st_ino] = status.st_size
        except OSError:
            continue
    return sizes
