"""The contents of the cache (entries, those set aside, skipped models), read without changing anything; its check
to the last byte, and what removes from it: each entry under its lock, none that is in use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from qnnbridge_host.cache.entry import EntryManifest
from qnnbridge_host.cache.files import Damaged, remove_tree
from qnnbridge_host.cache.memo import HashMemo, NegativeEntries, NegativeEntry, Verdicts
from qnnbridge_host.cache.store import COPIES, InvalidEntry, Store, evict, last_used, shrink, total_bytes
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.model_records import CacheSettings


@dataclasses.dataclass(frozen=True, slots=True)
class EntryFacts:
    """An entry. manifest: ``None`` if it cannot be read, then `problem` says why. Times: seconds since 1970."""

    key: str
    folder: Path
    manifest: EntryManifest | None
    problem: str | None
    size_bytes: int
    hits: int
    last_used: float
    in_use: bool

    @property
    def label(self) -> str:
        return self.manifest.label if self.manifest is not None else ""


@dataclasses.dataclass(frozen=True, slots=True)
class CacheFacts:
    """entries: the last used first. total_bytes: with entries set aside; a shared file counts once."""

    settings: CacheSettings
    entries: tuple[EntryFacts, ...]
    set_aside: tuple[InvalidEntry, ...]
    left_alone: tuple[NegativeEntry, ...]
    total_bytes: int

    def matching(self, text: str) -> CacheFacts:
        """What belongs to a key (or its beginning) or a model's name. Raises `OptionError` if nothing does."""
        found = dataclasses.replace(
            self,
            entries=tuple(entry for entry in self.entries if _is_meant(text, entry.key, entry.label)),
            set_aside=tuple(bad for bad in self.set_aside if _is_meant(text, bad.key, bad.label)),
            left_alone=tuple(note for note in self.left_alone if _is_meant(text, note.key, note.label)),
        )
        if found.keys:
            return found
        raise OptionError(
            f'Nothing in the cache has the key or the model name "{text}".',
            fix="List what there is with `qnnbridge cache list`; the beginning of a key is enough.",
        )

    @property
    def keys(self) -> list[str]:
        """Each once, in the order of the list."""
        keys = [entry.key for entry in self.entries]
        keys += [bad.key for bad in self.set_aside] + [note.key for note in self.left_alone]
        return list(dict.fromkeys(keys))


def gather(settings: CacheSettings) -> CacheFacts:
    store = Store(Path(settings.folder))
    entries = [_entry(store, key) for key in store.all_keys()]
    return CacheFacts(
        settings,
        tuple(sorted(entries, key=lambda entry: -entry.last_used)),
        tuple(store.invalid_entries()),
        tuple(NegativeEntries(store.root).all()),
        total_bytes(store),
    )


def together(facts: CacheFacts, texts: Sequence[str]) -> CacheFacts:
    """What any of these means (`CacheFacts.matching`). Raises `OptionError` for one that means nothing."""
    # Keys, not entries: entry, set-aside copies and note of one key go together.
    keys = {key for text in texts for key in facts.matching(text).keys}
    return dataclasses.replace(
        facts,
        entries=tuple(entry for entry in facts.entries if entry.key in keys),
        set_aside=tuple(bad for bad in facts.set_aside if bad.key in keys),
        left_alone=tuple(note for note in facts.left_alone if note.key in keys),
    )


def _entry(store: Store, key: str) -> EntryFacts:
    manifest, problem = None, None
    try:
        # Not `find`, which reads every file of the entry for its hash.
        entry = store.peek(key)
        manifest = entry.manifest if entry is not None else None
        # Evicted by another process since the keys were listed.
        problem = None if manifest is not None else "it was removed this moment"
    except Damaged as damage:
        problem = str(damage)
    return EntryFacts(
        key=key,
        folder=store.entry_folder(key),
        manifest=manifest,
        problem=problem,
        size_bytes=_size(store.entry_folder(key)),
        hits=store.hits(key).count,
        last_used=last_used(store, key),
        in_use=_in_use(store, key),
    )


def _in_use(store: Store, key: str) -> bool:
    try:
        return store.in_use(key)
    except OSError:  # locks cannot be asked in a read-only folder
        return False


def _size(folder: Path) -> int:
    size = 0
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            # The link itself counts and not what it leads to.
            # A hard link that entries share counts in each of them here, and once in `total_bytes`.
            size += file.lstat().st_size
    return size


def _is_meant(text: str, key: str, label: str) -> bool:
    # An empty text would be the beginning of every key.
    return bool(text) and (key.startswith(text) or label == text)


# --- check and removal ----------------------------------------------------------------------------------

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
        # Under its lock: an entry that is published or removed meanwhile would look damaged.
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
    # Eviction takes locks, whose folder may be missing.
    store.prepare()
    before = total_bytes(store)
    # What is of no value goes first: each byte of it leaves an entry in its place.
    leftovers = store.sweep()
    HashMemo(store.folder).forget_gone()
    set_aside = _drop_bad(facts)
    limit = time.time() - unused_s if unused_s is not None else 0.0
    old = [entry for entry in facts.entries if entry.last_used < limit]
    # One that is in use, or being compiled, stays.
    gone = [entry for entry in old if evict(store, entry.key)]
    keys = set(shrink(store, max_bytes))
    return Removed(
        entries=tuple(entry for entry in facts.entries if entry in gone or entry.key in keys),
        kept=tuple(entry for entry in old if entry not in gone),
        set_aside=set_aside,
        leftovers=leftovers,
        # Another process may have added entries meanwhile.
        freed_bytes=max(0, before - total_bytes(store)),
    )


def clear(store: Store, facts: CacheFacts, *, everything: bool) -> Removed:
    """Remove all of `facts`; with `everything` also the hashes of files, and leftovers."""
    if not store.root.is_dir():
        return Removed(())
    store.prepare()
    before = total_bytes(store)
    # `evict` removes none that is in use or being made: those are reported as kept.
    gone = [entry for entry in facts.entries if evict(store, entry.key)]
    set_aside = _drop_bad(facts)
    notes = NegativeEntries(store.root)
    left_alone = sum(notes.remove(key) for key in _note_keys(facts))
    verdicts = Verdicts(store.root)
    # Verdicts outlive their entries, and models without an entry have some: for all of them the folder is asked.
    for key in verdicts.keys() if everything else [entry.key for entry in facts.entries]:
        verdicts.remove(key)
    leftovers = store.sweep() if everything else 0
    if everything:
        # No key of the list names hashes of files or rewritten copies: they go with all or not at all.
        remove_tree(HashMemo(store.folder).folder)
        for kind in COPIES:
            remove_tree(store.root / kind)
    return Removed(
        entries=tuple(gone),
        kept=tuple(entry for entry in facts.entries if entry not in gone),
        set_aside=set_aside,
        left_alone=left_alone,
        leftovers=leftovers,
        freed_bytes=max(0, before - total_bytes(store)),
    )


def _note_keys(facts: CacheFacts) -> Iterable[str]:
    return [note.key for note in facts.left_alone]


def _drop_bad(facts: CacheFacts) -> int:
    """How many went."""
    for bad in facts.set_aside:
        remove_tree(bad.folder)
    # Looked at afterwards: Windows keeps a file that is open somewhere.
    return sum(not os.path.lexists(bad.folder) for bad in facts.set_aside)
