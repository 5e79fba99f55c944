"""The contents of the cache and the changes to it, as text for a person and as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Sequence
from typing import Any

from qnnbridge_host.cache.entry import EntryManifest
from qnnbridge_host.cache.memo import NegativeEntry
from qnnbridge_host.cache.store import InvalidEntry
from qnnbridge_protocol.cache_settings import SWITCH_VARIABLE
from qnnbridge_tools import output
from qnnbridge_tools.cache.facts import CacheFacts, EntryFacts, Removed, Verified
from qnnbridge_tools.output import size_text

KEY_SHOWN = 12
_NOTED = {"unmapped": ", not mapped"}
_UNITS_S = (("day", 24 * 3600), ("hour", 3600), ("minute", 60))


def print_list(facts: CacheFacts) -> None:
    if facts.entries:
        headers = ["key", "model", "size", "hits", "last used", "compiled", "took", "state"]
        output.print_table(headers, [_row(entry) for entry in facts.entries])
    if facts.set_aside:
        print("\nSet aside: bad entries, no longer used (`qnnbridge cache prune` removes them)")
        output.print_table(["key", "model", "when", "fault", "reason"], [_bad_row(bad) for bad in facts.set_aside])
    unmapped = [note for note in facts.left_alone if note.kind == "unmapped"]
    left_alone = [note for note in facts.left_alone if note not in unmapped]
    if left_alone:
        print("\nLeft alone: models that the cache does not try again (`qnnbridge cache clear KEY` lets it)")
        output.print_table(["key", "model", "since", "reason"], [_note_row(note) for note in left_alone])
    if unmapped:
        print("\nNot mapped: models that are loaded in another way (`qnnbridge cache clear MODEL` forgets it)")
        output.print_table(["key", "model", "since", "reason"], [_note_row(note) for note in unmapped])
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
    """All known facts of the findings."""
    parts: list[tuple[str, list[tuple[str, str]]]] = [
        *((_title(entry.label, entry.key), _entry_pairs(entry)) for entry in facts.entries),
        *((_title(bad.label, bad.key) + ", set aside", _bad_pairs(bad)) for bad in facts.set_aside),
        *(
            (_title(note.label, note.key) + _NOTED.get(note.kind, ", left alone"), _note_pairs(note))
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
        print(f"{bad} of {len(results)} are bad. They are set aside and compiled again when a session wants them.")
    else:
        print(f"{len(results)} checked, none is bad." if results else "Nothing to check: no compiled model.")


def print_removed(removed: Removed) -> None:
    for entry in removed.entries:
        print(f"Removed {_title(entry.label, entry.key)}, {size_text(entry.size_bytes)}.")
    for entry in removed.kept:
        print(f"Kept {_title(entry.label, entry.key)}: a process uses it.")
    others = [
        (removed.set_aside, "set aside"),
        (removed.left_alone, "noted as left alone"),
        (removed.leftovers, "left by killed compilers"),
    ]
    for count, what in others:
        if count:
            print(f"Removed {count} {what}.")
    print(f"{size_text(removed.freed_bytes)} freed.")


def age_text(when: float) -> str:
    """How long ago, in the unit that fits. Not negative, whatever the clock did."""
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
        took += "; the compiler died when all was written"
    pairs = [
        ("model", f"{manifest.source_path or 'given as bytes'}, {size_text(manifest.source_bytes)}"),
        ("compiled", took),
        ("nodes", f"{placement.qnn_nodes} on QNN, {placement.cpu_nodes} on the CPU"),
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
        "entries": [_entry(entry) for entry in facts.entries],
        "set_aside": [_bad(bad) for bad in facts.set_aside],
        "left_alone": [_note(note) for note in facts.left_alone],
    }


def details(facts: CacheFacts) -> dict[str, Any]:
    """As `contents`, with all that an entry was made from."""
    entries = [
        {
            **_entry(entry),
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


def _entry(entry: EntryFacts) -> dict[str, Any]:
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
