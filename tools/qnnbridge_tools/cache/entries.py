"""Read, check and remove the cache's contents: entries, damaged entries, notes on models not compiled again.

Reading changes nothing. Entries are removed under their lock, and never while in use. Results can be printed as
text or JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from qnnbridge_host.cache.entry import EntryManifest
from qnnbridge_host.cache.files import Damaged, remove_tree
from qnnbridge_host.cache.memo import HashMemo, NegativeEntries, NegativeEntry, OptimizerChoices, Verdicts
from qnnbridge_host.cache.store import InvalidEntry, Store, evict, last_used, shrink, total_bytes
from qnnbridge_os.files import NotOurs
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.model_records import CacheSettings
from qnnbridge_protocol.settings import FOLDER_VARIABLE, SWITCH_VARIABLE
from qnnbridge_tools import output
from qnnbridge_tools.output import size_text


@dataclasses.dataclass(frozen=True, slots=True)
class EntryFacts:
    """An entry of the cache. Times are seconds since 1970.

    Args:
        manifest: ``None`` if it cannot be read, see `problem`.
        problem: why the entry is damaged.
        in_use: a session uses the entry.
    """

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
    """Contents of the cache.

    Args:
        entries: the entries, last used first.
        set_aside: damaged entries that are no longer used.
        left_alone: notes on models for which compiling, memory mapping or splitting failed and is not retried.
        total_bytes: size including entries set aside; a shared file counts once.
    """

    settings: CacheSettings
    entries: tuple[EntryFacts, ...]
    set_aside: tuple[InvalidEntry, ...]
    left_alone: tuple[NegativeEntry, ...]
    total_bytes: int

    def matching(self, text: str) -> CacheFacts:
        """Return the contents that match a key, the beginning of a key, or a model's name.

        Raise `OptionError` if nothing matches.
        """
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
            fix="List the entries with `qnnbridge cache list`; the beginning of a key is enough.",
        )

    @property
    def keys(self) -> list[str]:
        """Keys of all entries, each once, in the order of `cache list`."""
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
    """Return the contents that match any of the texts. Raise `OptionError` for a text without a match."""
    # Select by key, because an entry, its damaged copies and a note on its model have the same key.
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
        # Do not use `find`, which reads and hashes every file of the entry.
        entry = store.peek(key)
        manifest = entry.manifest if entry is not None else None
        # Without a manifest, another process has evicted the entry since the keys were listed.
        problem = None if manifest is not None else "it has just been removed"
    except Damaged as damage:
        problem = str(damage)
    except NotOurs as error:
        problem = error.strerror
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
        return store.in_use(key, sweep=False)
    except OSError:  # Locks are not available in a read-only folder.
        return False


def _size(folder: Path) -> int:
    size = 0
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            # Count the link itself, not its target. A file that entries share by hard links counts in the size of
            # each entry, and once in `total_bytes`.
            size += file.lstat().st_size
    return size


def _is_meant(text: str, key: str, label: str) -> bool:
    # An empty string would match every key.
    return bool(text) and (key.startswith(text) or label == text)


# --- check and removal ----------------------------------------------------------------------------------

State = Literal["good", "bad", "busy"]


@dataclasses.dataclass(frozen=True, slots=True)
class Verified:
    """Result of checking an entry.

    Args:
        state: "busy" while the entry is compiled, checked or removed.
        reason: why the entry is bad.
    """

    entry: EntryFacts
    state: State
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Removed:
    """Result of a removal.

    Args:
        entries: removed entries.
        kept: entries that a process uses.
        set_aside, left_alone: number of removed records of each kind.
        leftovers: number of removed files of killed compilers.
        freed_bytes: freed disk space.
    """

    entries: tuple[EntryFacts, ...]
    kept: tuple[EntryFacts, ...] = ()
    set_aside: int = 0
    left_alone: int = 0
    leftovers: int = 0
    freed_bytes: int = 0


def verify(store: Store, entry: EntryFacts) -> Verified:
    """Read every byte of an entry and compare it with its hashes."""
    try:
        # Lock the entry: if it were published or removed meanwhile, it would look damaged.
        held = store.try_lock(entry.key)
        if held is None:
            return Verified(entry, "busy")
    except NotOurs as error:
        return Verified(entry, "bad", f"{error.filename}: {error.strerror}")
    except OSError:
        held = None  # A read-only folder allows no lock, but its entries do not change.
    try:
        # Hash every file again: without `fresh=True`, `find` trusts files that have not changed since their last
        # check.
        found = store.find(entry.key, fresh=True)
    except Damaged as damage:
        return Verified(entry, "bad", str(damage))
    finally:
        if held is not None:
            held.release()
    return Verified(entry, "good") if found is not None else Verified(entry, "bad", "it has just been removed")


def prune(store: Store, facts: CacheFacts, *, max_bytes: int, unused_s: float | None) -> Removed:
    """Remove everything that is not needed.

    Remove leftovers of killed compilers, entries set aside, hashes of missing files, entries not used for
    `unused_s` seconds, and the least recently used entries until the size limit is met.
    """
    if not is_there(store):
        return Removed(())
    # Create the folder for the locks of an eviction, which may be missing.
    store.prepare()
    before = total_bytes(store)
    # Remove unusable files first, so that fewer usable entries must be removed to meet the size limit.
    leftovers = store.sweep()
    HashMemo(store.folder).forget_gone()
    set_aside = _drop_bad(facts)
    limit = time.time() - unused_s if unused_s is not None else 0.0
    old = [entry for entry in facts.entries if entry.last_used < limit]
    # An entry stays if it is in use or being compiled.
    gone = [entry for entry in old if evict(store, entry.key)]
    keys = set(shrink(store, max_bytes))
    return Removed(
        entries=tuple(entry for entry in facts.entries if entry in gone or entry.key in keys),
        kept=tuple(entry for entry in old if entry not in gone),
        set_aside=set_aside,
        leftovers=leftovers,
        # The cache may have grown, because another process added entries during the removal.
        freed_bytes=max(0, before - total_bytes(store)),
    )


def clear(store: Store, facts: CacheFacts, *, everything: bool) -> Removed:
    """Remove everything in `facts`; with `everything` also file hashes, rewritten copies and compiler leftovers."""
    if not is_there(store):
        return Removed(())
    store.prepare()
    before = total_bytes(store)
    # `evict` removes no entry that is in use or being compiled: these are reported as kept.
    gone = [entry for entry in facts.entries if evict(store, entry.key)]
    set_aside = _drop_bad(facts)
    notes = NegativeEntries(store.root)
    left_alone = sum(notes.remove(note.key) for note in facts.left_alone)
    verdicts = Verdicts(store.root)
    # Remove the results of comparisons with the CPU too, because `evict` keeps them. With `everything`, all results
    # are removed, including those of models without an entry.
    for entry in facts.entries:
        verdicts.remove(entry.key)
    leftovers = store.sweep() if everything else 0
    if everything:
        # Clear the rest only with `everything`: file hashes and rewritten copies do not belong to single entries.
        verdicts.clear()
        OptimizerChoices(store.root).clear()
        notes.clear()
        HashMemo(store.folder).clear()
        store.clear_copies()
    return Removed(
        entries=tuple(gone),
        kept=tuple(entry for entry in facts.entries if entry not in gone),
        set_aside=set_aside,
        left_alone=left_alone,
        leftovers=leftovers,
        freed_bytes=max(0, before - total_bytes(store)),
    )


def is_there(store: Store) -> bool:
    """Return whether there is a cache. Raise `OptionError` if the folder contains something else."""
    if not os.path.lexists(store.root):
        return False
    if not store.is_usable:
        raise OptionError(
            f"{store.root} is not a folder of qnnbridge's cache: it is a link, or contains other files.",
            cause="Nothing in it is removed or changed.",
            fix=f"Set {FOLDER_VARIABLE} to another folder.",
        )
    return True


def _drop_bad(facts: CacheFacts) -> int:
    """Remove the entries set aside; return the number of removed entries."""
    for bad in facts.set_aside:
        remove_tree(bad.folder)
    # Check the folders afterwards, because Windows does not remove open files.
    return sum(not os.path.lexists(bad.folder) for bad in facts.set_aside)


# --- as text --------------------------------------------------------------------------------------------

KEY_SHOWN = 12
_NOTED = {"unmapped": ", not mapped", "gates": ", without the rewrite gates"}
_UNITS_S = (("day", 24 * 3600), ("hour", 3600), ("minute", 60))


def print_list(facts: CacheFacts) -> None:
    if facts.entries:
        headers = ["key", "model", "size", "hits", "last used", "compiled", "took", "state"]
        output.print_table(headers, [_row(entry) for entry in facts.entries])
    if facts.set_aside:
        print("\nSet aside: bad entries, no longer used (`qnnbridge cache prune` removes them)")
        output.print_table(["key", "model", "when", "fault", "reason"], [_bad_row(bad) for bad in facts.set_aside])
    unmapped = [note for note in facts.left_alone if note.kind == "unmapped"]
    whole = [note for note in facts.left_alone if note.kind == "gates"]
    left_alone = [note for note in facts.left_alone if note not in unmapped and note not in whole]
    if left_alone:
        print("\nSkipped: models that the cache does not compile again (to allow it: `qnnbridge cache clear KEY`)")
        output.print_table(["key", "model", "since", "reason"], [_note_row(note) for note in left_alone])
    if unmapped:
        print("\nNot mapped: models that are not memory-mapped (to try again: `qnnbridge cache clear MODEL`)")
        output.print_table(["key", "model", "since", "reason"], [_note_row(note) for note in unmapped])
    if whole:
        print("\nNot rewritten: models that `gates` did not improve (to try again: `qnnbridge cache clear MODEL`)")
        output.print_table(["key", "model", "since", "reason"], [_note_row(note) for note in whole])
    if facts.keys:
        print()
    print(summary(facts))


def summary(facts: CacheFacts) -> str:
    count = len(facts.entries)
    models = "No compiled model" if not count else f"{count} compiled model{'s' if count > 1 else ''}"
    size = f"{size_text(facts.total_bytes)} of at most {size_text(facts.settings.max_bytes)}"
    text = f"{models} in {output.visible(facts.settings.folder)}, {size}."
    if not facts.settings.enabled:
        text += f" {SWITCH_VARIABLE} switches the cache off."
    return "\n".join((text, *(output.visible(problem) for problem in facts.settings.problems)))


def print_show(facts: CacheFacts) -> None:
    """Print all details of the entries."""
    parts: list[tuple[str, list[tuple[str, str]]]] = [
        *((_title(entry.label, entry.key), _entry_pairs(entry)) for entry in facts.entries),
        *((_title(bad.label, bad.key) + ", set aside", _bad_pairs(bad)) for bad in facts.set_aside),
        *(
            (_title(note.label, note.key) + _NOTED.get(note.kind, ", skipped"), _note_pairs(note))
            for note in facts.left_alone
        ),
    ]
    for number, (title, pairs) in enumerate(parts):
        if number:
            print()
        output.print_pairs(title, pairs)


def print_verified(results: Sequence[Verified]) -> None:
    rows = [
        [result.entry.key[:KEY_SHOWN], result.entry.label or "-", result.state, result.reason or "-"]
        for result in results
    ]
    if rows:
        output.print_table(["key", "model", "state", "reason"], rows)
        print()
    bad = sum(result.state == "bad" for result in results)
    if bad:
        print(f"{bad} of {len(results)} are bad. They are set aside, and compiled again when a session needs them.")
    else:
        print(f"{len(results)} checked, none is bad." if results else "Nothing to check: no compiled model.")


def print_removed(removed: Removed) -> None:
    for entry in removed.entries:
        print(f"Removed {_title(entry.label, entry.key)}, {size_text(entry.size_bytes)}.")
    for entry in removed.kept:
        print(f"Kept {_title(entry.label, entry.key)}: a process uses it.")
    others = [
        (removed.set_aside, "set aside"),
        (removed.left_alone, "noted as skipped"),
        (removed.leftovers, "left by killed compilers"),
    ]
    for count, what in others:
        if count:
            print(f"Removed {count} {what}.")
    print(f"{size_text(removed.freed_bytes)} freed.")


def age_text(when: float) -> str:
    """Return the age in a suitable unit; never negative, even if the clock was changed."""
    if not when:
        return "never"
    passed_s = max(0.0, time.time() - when)
    for unit, length_s in _UNITS_S:
        count = int(passed_s / length_s)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def _row(entry: EntryFacts) -> list[str]:
    manifest = entry.manifest
    return [
        entry.key[:KEY_SHOWN],
        entry.label or "-",
        size_text(entry.size_bytes),
        str(entry.hits),
        age_text(entry.last_used),
        age_text(manifest.created) if manifest is not None else "-",
        output.seconds(manifest.compile_seconds) if manifest is not None else "-",
        f"bad: {entry.problem}" if entry.problem else "in use" if entry.in_use else "good",
    ]


def _bad_row(bad: InvalidEntry) -> list[str]:
    return [bad.key[:KEY_SHOWN] or "-", bad.label or "-", age_text(bad.when), bad.fault or "-", bad.reason or "-"]


def _note_row(note: NegativeEntry) -> list[str]:
    return [note.key[:KEY_SHOWN], note.label or "-", age_text(note.created), note.reason]


def _title(label: str, key: str) -> str:
    return f"{output.visible(label) or 'unknown model'} ({output.visible(key[:KEY_SHOWN]) or 'no key'})"


def _entry_pairs(entry: EntryFacts) -> list[tuple[str, str]]:
    pairs = [("key", entry.key), ("folder", str(entry.folder))]
    if entry.problem:
        pairs.append(("bad", entry.problem))
    if entry.manifest is not None:
        pairs += _manifest_pairs(entry.manifest)
    pairs += [
        ("hits", f"{entry.hits}, last used {age_text(entry.last_used)}"),
        ("in use", "yes, by a session of a running process" if entry.in_use else "no"),
    ]
    return pairs


def _manifest_pairs(manifest: EntryManifest) -> list[tuple[str, str]]:
    placement = manifest.info.placement
    host = manifest.parts.get("host", {})
    took = f"{age_text(manifest.created)}, in {output.seconds(manifest.compile_seconds)}"
    if manifest.salvaged:
        took += "; the compiler crashed after writing all files"
    pairs = [
        ("model", f"{manifest.source_path or 'given as bytes'}, {size_text(manifest.source_bytes)}"),
        ("compiled", took),
        ("nodes", placement.nodes_text()),
        ("for", f"{host.get('machine', '?')}, chip {placement.soc_model or 'of the device'}"),
        ("with", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
    ]
    for name, options in manifest.parts.get("providers", ()):
        text = ", ".join(f"{key}={value}" for key, value in options.items())
        pairs.append(("provider", f"{name}: {text}" if text else name))
    pairs += [("file", f"{f.name}, {size_text(f.size)}, sha256 {f.sha256[:16]}") for f in manifest.files]
    return pairs


def _bad_pairs(bad: InvalidEntry) -> list[tuple[str, str]]:
    return [
        ("key", bad.key),
        ("folder", str(bad.folder)),
        ("fault", f"{bad.fault}, {bad.reason}"),
        ("when", age_text(bad.when)),
    ]


def _note_pairs(note: NegativeEntry) -> list[tuple[str, str]]:
    return [("key", note.key), ("reason", note.reason), ("kind", note.kind), ("since", age_text(note.created))]


# --- JSON; times are UTC --------------------------------------------------------------------------------


def contents(facts: CacheFacts) -> dict[str, Any]:
    return {
        "folder": facts.settings.folder,
        "enabled": facts.settings.enabled,
        "max_bytes": facts.settings.max_bytes,
        "total_bytes": facts.total_bytes,
        "problems": facts.settings.problems,
        "entries": [_entry_document(entry) for entry in facts.entries],
        "set_aside": [_bad(bad) for bad in facts.set_aside],
        "left_alone": [_note(note) for note in facts.left_alone],
    }


def details(facts: CacheFacts) -> dict[str, Any]:
    """Return `contents` with the files of each entry, and the model, options and versions of its key."""
    entries = [
        {
            **_entry_document(entry),
            "files": [dataclasses.asdict(file) for file in entry.manifest.files] if entry.manifest else [],
            "parts": entry.manifest.parts if entry.manifest else None,
        }
        for entry in facts.entries
    ]
    return {**contents(facts), "entries": entries}


def verified(results: Sequence[Verified]) -> dict[str, Any]:
    return {
        "checked": [
            {
                "key": result.entry.key,
                "model": result.entry.label or None,
                "state": result.state,
                "reason": result.reason or None,
            }
            for result in results
        ],
        "bad": sum(result.state == "bad" for result in results),
    }


def removed(result: Removed) -> dict[str, Any]:
    return {
        "removed": [_name(entry) for entry in result.entries],
        "kept_in_use": [_name(entry) for entry in result.kept],
        "set_aside": result.set_aside,
        "left_alone": result.left_alone,
        "leftovers": result.leftovers,
        "freed_bytes": result.freed_bytes,
    }


def _name(entry: EntryFacts) -> dict[str, Any]:
    return {"key": entry.key, "model": entry.label or None, "size_bytes": entry.size_bytes}


def _entry_document(entry: EntryFacts) -> dict[str, Any]:
    manifest = entry.manifest
    return {
        **_name(entry),
        "folder": entry.folder,
        "hits": entry.hits,
        "last_used": _time(entry.last_used),
        "in_use": entry.in_use,
        "problem": entry.problem,
        "created": _time(manifest.created) if manifest else None,
        "compile_seconds": manifest.compile_seconds if manifest else None,
        "salvaged": manifest.salvaged if manifest else None,
        "source_path": manifest.source_path if manifest else None,
        "source_bytes": manifest.source_bytes if manifest else None,
        "versions": manifest.versions if manifest else {},
    }


def _bad(bad: InvalidEntry) -> dict[str, Any]:
    return {**dataclasses.asdict(bad), "when": _time(bad.when)}


def _note(note: NegativeEntry) -> dict[str, Any]:
    return {**dataclasses.asdict(note), "created": _time(note.created)}


def _time(when: float) -> str | None:
    if not when:
        return None
    return datetime.datetime.fromtimestamp(when, datetime.timezone.utc).isoformat(timespec="seconds")
