"""Checks the cache to the last byte, and removes from it: each entry under its lock, none that is in use."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable
from typing import Literal

from qnnbridge_host.cache import eviction, fixed_models
from qnnbridge_host.cache.files import Damaged, remove_tree
from qnnbridge_host.cache.memo import HashMemo
from qnnbridge_host.cache.negative_entries import NegativeEntries
from qnnbridge_host.cache.store import Store
from qnnbridge_host.cache.verdicts import Verdicts
from qnnbridge_tools.cache.facts import CacheFacts, EntryFacts

State = Literal["good", "bad", "busy"]


@dataclasses.dataclass(frozen=True, slots=True)
class Verified:
    """busy: it is being compiled, checked or removed this moment. reason: why it is bad."""

    entry: EntryFacts
    state: State
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Removed:
    """entries: those that went. kept: those that a process uses. leftovers: of killed compilers."""

    entries: tuple[EntryFacts, ...]
    kept: tuple[EntryFacts, ...] = ()
    set_aside: int = 0
    left_alone: int = 0
    leftovers: int = 0
    freed_bytes: int = 0


def verify(store: Store, entry: EntryFacts) -> Verified:
    """Read every byte of it."""
    try:
        held = store.try_lock(entry.key)
        if held is None:
            return Verified(entry, "busy")
    except OSError:
        held = None  # a read-only folder: it does not change
    try:
        # Read anew: a session trusts files that have not changed since they were checked.
        found = store.find(entry.key, fresh=True)
    except Damaged as damage:
        return Verified(entry, "bad", str(damage))
    finally:
        if held is not None:
            held.release()
    return Verified(entry, "good") if found is not None else Verified(entry, "bad", "it was removed this moment")


def prune(store: Store, facts: CacheFacts, *, max_bytes: int, unused_s: float | None) -> Removed:
    """Remove everything not needed: leftovers, entries set aside, hashes of missing files, entries not
    used for `unused_s`, and the least recently used ones until the size is kept.
    """
    if not store.root.is_dir():
        return Removed(())
    store.prepare()
    before = eviction.total_bytes(store)
    # What is of no value goes first: each byte of it leaves an entry in its place.
    leftovers = store.sweep()
    HashMemo(store.folder).forget_gone()
    set_aside = _drop_bad(facts)
    limit = time.time() - unused_s if unused_s is not None else 0.0
    old = [entry for entry in facts.entries if entry.last_used < limit]
    # One that is in use, or being compiled, stays.
    gone = [entry for entry in old if eviction.evict(store, entry.key)]
    keys = set(eviction.shrink(store, max_bytes))
    return Removed(
        entries=tuple(entry for entry in facts.entries if entry in gone or entry.key in keys),
        kept=tuple(entry for entry in old if entry not in gone),
        set_aside=set_aside,
        leftovers=leftovers,
        # Another process may have added entries meanwhile.
        freed_bytes=max(0, before - eviction.total_bytes(store)),
    )


def clear(store: Store, facts: CacheFacts, *, everything: bool) -> Removed:
    """Remove all of `facts`; with `everything` also the hashes of files, and leftovers."""
    if not store.root.is_dir():
        return Removed(())
    store.prepare()
    before = eviction.total_bytes(store)
    gone = [entry for entry in facts.entries if eviction.evict(store, entry.key)]
    set_aside = _drop_bad(facts)
    notes = NegativeEntries(store.root)
    left_alone = sum(notes.remove(key) for key in _note_keys(facts))
    verdicts = Verdicts(store.root)
    for key in verdicts.keys() if everything else [entry.key for entry in facts.entries]:
        verdicts.remove(key)
    leftovers = store.sweep() if everything else 0
    if everything:
        remove_tree(HashMemo(store.folder).folder)
        for kind in fixed_models.FOLDERS:
            remove_tree(store.root / kind)
    return Removed(
        entries=tuple(gone),
        kept=tuple(entry for entry in facts.entries if entry not in gone),
        set_aside=set_aside,
        left_alone=left_alone,
        leftovers=leftovers,
        freed_bytes=max(0, before - eviction.total_bytes(store)),
    )


def _note_keys(facts: CacheFacts) -> Iterable[str]:
    return [note.key for note in facts.left_alone]


def _drop_bad(facts: CacheFacts) -> int:
    """How many went."""
    for bad in facts.set_aside:
        remove_tree(bad.folder)
    return sum(not os.path.lexists(bad.folder) for bad in facts.set_aside)
