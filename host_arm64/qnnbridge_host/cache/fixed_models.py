"""Rewritten copies of models, kept by what they were made from: model, sizes, rewrites and their version.

::

    v1/fixed/KEY/NAME.onnx, NAME.onnx.data, fixed.json
    v1/wrapped/KEY/model.onnx, fixed.json

A copy is made under the lock of its key, complete or absent, and read back only if its fingerprint is the one that
was written down. The copies that were used longest ago go when all of them have more than a quarter of the cache's
size. Models around bare context binaries (`qnnbridge_host.wrap`) are kept in the same way. Any thread, any process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.cache.files import Damaged, read_json, remove_tree, write_json
from qnnbridge_host.cache.key import KEY_DIGITS
from qnnbridge_host.cache.store import Store
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.errors import BridgeError

FOLDER: Final = "fixed"
# All that this module keeps: what `cache clear` removes.
FOLDERS: Final = (FOLDER, "wrapped")
RECORD: Final = "fixed.json"
SHARE_OF_CACHE: Final = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class FixedModel:
    """path: of the copy. changes: what was rewritten, a line each."""

    path: str
    changes: tuple[str, ...]


# Writes the rewritten model into a folder; its path, and what was changed.
Rewrite = Callable[[Path], FixedModel]


def fixed_key(fingerprint: str, wanted: Mapping[str, Any], version: str) -> str:
    """The key of a copy. wanted: sizes and choices, in JSON's types."""
    text = json.dumps([fingerprint, wanted, version], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:KEY_DIGITS]


def find_or_make(
    store: Store,
    key: str,
    rewrite: Rewrite,
    *,
    max_bytes: int,
    deadline: float | None,
    on_wait: Callable[[float], bool | None],
    kind: str = FOLDER,
) -> FixedModel | None:
    """The copy; ``None`` if another process makes it and the time was over before.

    kind: the folder for copies of its kind. Raises the errors of rewriting, and `OSError`.
    """
    store.prepare()
    folder = store.root / kind / key
    folder.parent.mkdir(exist_ok=True)
    held = store.lock(f"{kind}-{key}", deadline, on_wait)
    if held is None:
        return None
    try:
        found = _read(store, folder)
        if found is not None:
            return found
        remove_tree(folder)
        with store.draft() as draft:
            made = rewrite(draft.folder)
            name = os.path.basename(made.path)
            source = ModelSource.open(made.path)
            record = {"name": name, "fingerprint": source.fingerprint, "changes": list(made.changes)}
            write_json(draft.folder / RECORD, record)
            os.rename(draft.folder, folder)
            draft.close()
        _shrink(store.root / kind, int(max_bytes * SHARE_OF_CACHE), keep=key)
        return FixedModel(os.fspath(folder / name), made.changes)
    finally:
        held.release()


def _read(store: Store, folder: Path) -> FixedModel | None:
    try:
        record = read_json(folder / RECORD)
        if record is None:
            return None
        path = os.fspath(folder / str(record["name"]))
        if ModelSource.open(path, os.curdir, store.memo).fingerprint != record["fingerprint"]:
            return None
        with contextlib.suppress(OSError):
            os.utime(folder)
        return FixedModel(path, tuple(str(change) for change in record["changes"]))
    except (Damaged, OSError, BridgeError, LookupError, TypeError):
        return None


def _shrink(kept: Path, most: int, keep: str) -> None:
    with contextlib.suppress(OSError):
        folders = sorted(kept.iterdir(), key=lambda folder: folder.stat().st_mtime)
        sizes = {one: sum(file.stat().st_size for file in one.iterdir()) for one in folders}
        for folder in folders:
            if sum(sizes.values()) <= most:
                return
            if folder.name != keep:
                remove_tree(folder)
                sizes.pop(folder)
