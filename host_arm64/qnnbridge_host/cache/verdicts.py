"""What came of comparing a compiled model with the CPU: kept by its key, so that it is paid for once.

The key holds model, options, chip and versions: with any of them changed it is another comparison, as it is when
the judge has other rules. A verdict stays when its entry is evicted, and also models without an entry have one. Any
thread, any process. A failed write costs only time.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

from qnnbridge_host.cache.entry import SCHEMA
from qnnbridge_host.cache.files import Damaged, make_private, read_json, write_json
from qnnbridge_protocol.model_records import NumbersReport

FOLDER: Final = "verdicts"
# Of `numerics`, counted up when they change: a verdict by others says nothing.
RULES: Final = 2
# About 1 KB each.
MAX_VERDICTS: Final = 1000
MAX_AGE_S: Final = 365 * 24 * 3600.0
# So many processes may end before their comparison does; then nothing is begun by itself any more.
MAX_ATTEMPTS: Final = 5


class Verdicts:
    """Files with the results of comparisons, one for each key. root: of this version's cache."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER

    def read(self, key: str) -> NumbersReport | None:
        """The verdict, if there is one."""
        try:
            content = read_json(self._file(key))
            known = content is not None and content["schema"] == SCHEMA and content.get("rules") == RULES
            if content is None or not known or "report" not in content:
                return None
            report = NumbersReport.from_wire({**content["report"], "kept": True})
        except (Damaged, OSError, TypeError, ValueError, LookupError, AttributeError):
            return None
        return report if abs(time.time() - report.when) < MAX_AGE_S else None

    def write(self, key: str, report: NumbersReport) -> None:
        self._write(key, {"rules": RULES, "report": report.to_wire()})
        self._tidy()

    def begin(self, key: str) -> bool:
        """Count an attempt. Whether there were not too many that came to no end."""
        try:
            content = read_json(self._file(key)) or {}
            attempts = int(content.get("attempts", 0))
        except (Damaged, OSError, TypeError, ValueError):
            attempts = 0
        if attempts >= MAX_ATTEMPTS:
            return False
        self._write(key, {"attempts": attempts + 1})
        return True

    def remove(self, key: str) -> bool:
        """Whether there was one. Raises `OSError`."""
        try:
            os.unlink(self._file(key))
        except FileNotFoundError:
            return False
        return True

    def keys(self) -> list[str]:
        """The oldest first."""
        try:
            with os.scandir(self._folder) as files:
                dated = [(file.stat().st_mtime, file.name[:-5]) for file in files if file.name.endswith(".json")]
        except OSError:
            return []
        return [key for _, key in sorted(dated)]

    def _write(self, key: str, content: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            make_private(self._folder)
            write_json(self._file(key), {"schema": SCHEMA, **content})

    def _tidy(self) -> None:
        with contextlib.suppress(OSError):
            for key in self.keys()[:-MAX_VERDICTS]:
                self.remove(key)

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.json"
