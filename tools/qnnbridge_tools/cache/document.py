"""The contents of the cache and the changes to it, as JSON. Times are UTC."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from qnnbridge_host.cache.negative_entries import NegativeEntry
from qnnbridge_host.cache.store import InvalidEntry
from qnnbridge_tools.cache.facts import CacheFacts, EntryFacts
from qnnbridge_tools.cache.housekeeping import Removed, Verified


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
