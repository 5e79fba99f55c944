"""Models that the cache skips: remembered with the reason, so that the second start does not pay again.

A negative entry belongs to a key, so to one set of versions and options. It stays until it is cleared or expires.
A failed write costs only time.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Final, Literal

from qnnbridge_host.cache.entry import SCHEMA
from qnnbridge_host.cache.files import Damaged, JsonFolder

# refused: nodes would stay on the CPU. nothing-on-qnn: QNN takes no node of it. differs: its compiled model does
# not show the inputs and outputs of the original. crashes: two compiled models in a row killed the host or could
# not be loaded.
# slow: it is small but took long to compile, so it is worth an entry.
# unmapped: its weights cannot be mapped into the NPU's memory (`npu_memory`).
Kind = Literal["refused", "nothing-on-qnn", "differs", "crashes", "slow", "unmapped"]

FOLDER: Final = "notes"
DAY_S: Final = 24 * 3600.0
MAX_AGE_S: Final = 90 * DAY_S
# Shorter: two crashes may have been chance.
CRASHES_MAX_AGE_S: Final = 7 * DAY_S


@dataclasses.dataclass(frozen=True, slots=True)
class NegativeEntry:
    """created: seconds since 1970."""

    key: str
    kind: Kind
    reason: str
    label: str = ""
    created: float = 0.0


class NegativeEntries(JsonFolder):
    """Files that name models without a usable entry. root: of this version's cache."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / FOLDER)

    def write(self, key: str, kind: Kind, reason: str, label: str) -> None:
        entry = NegativeEntry(key, kind, reason, label, time.time())
        self._write(key, {"schema": SCHEMA, **dataclasses.asdict(entry)})

    def read(self, key: str) -> NegativeEntry | None:
        try:
            content = self._read(key)
            if content is None or content.pop("schema") != SCHEMA:
                return None
            entry = NegativeEntry(**content)
        except (Damaged, OSError, TypeError, LookupError):
            return None
        max_age_s = CRASHES_MAX_AGE_S if entry.kind == "crashes" else MAX_AGE_S
        return entry if abs(time.time() - entry.created) < max_age_s else None

    def all(self) -> list[NegativeEntry]:
        """The newest first."""
        found = [entry for key in self.keys() if (entry := self.read(key)) is not None]
        return sorted(found, key=lambda entry: -entry.created)
