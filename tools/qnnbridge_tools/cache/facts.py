"""The contents of the cache, read without changing anything: entries, those set aside, skipped models."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from qnnbridge_host.cache.entry import EntryManifest
from qnnbridge_host.cache.eviction import last_used, total_bytes
from qnnbridge_host.cache.files import Damaged
from qnnbridge_host.cache.negative_entries import NegativeEntries, NegativeEntry
from qnnbridge_host.cache.store import InvalidEntry, Store
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
        entry = store.peek(key)
        manifest = entry.manifest if entry is not None else None
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
            size += file.lstat().st_size
    return size


def _is_meant(text: str, key: str, label: str) -> bool:
    # An empty text would be the beginning of every key.
    return bool(text) and (key.startswith(text) or label == text)
