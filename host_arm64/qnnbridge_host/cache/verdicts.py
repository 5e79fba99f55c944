"""What came of comparing a compiled model with the CPU: kept by its key, so that it is paid for once.

The key holds model, options, chip and versions: with any of them changed it is another comparison, as it is when
the judge has other rules. A verdict stays when its entry is evicted, and also models without an entry have one. Any
thread, any process. A failed write costs only time.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from qnnbridge_host.cache.entry import SCHEMA
from qnnbridge_host.cache.files import Damaged, JsonFolder
from qnnbridge_protocol.model_records import NumbersReport

FOLDER: Final = "verdicts"
# Of `numerics`, counted up when they change: a verdict by others says nothing.
RULES: Final = 2
# About 1 KB each.
MAX_VERDICTS: Final = 1000
MAX_AGE_S: Final = 365 * 24 * 3600.0
# This many processes may end before their comparison does; after that no comparison is started.
MAX_ATTEMPTS: Final = 5


class Verdicts(JsonFolder):
    """Files with the results of comparisons, one for each key. root: of this version's cache."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / FOLDER)

    def read(self, key: str) -> NumbersReport | None:
        """The verdict, if there is one."""
        try:
            content = self._read(key)
            known = content is not None and content["schema"] == SCHEMA and content.get("rules") == RULES
            if content is None or not known or "report" not in content:
                return None
            report = NumbersReport.from_wire({**content["report"], "kept": True})
        except (Damaged, OSError, TypeError, ValueError, LookupError, AttributeError):
            return None
        return report if abs(time.time() - report.when) < MAX_AGE_S else None

    def write(self, key: str, report: NumbersReport) -> None:
        self._write(key, {"schema": SCHEMA, "rules": RULES, "report": report.to_wire()})
        self._tidy()

    def begin(self, key: str) -> bool:
        """Count an attempt. Whether there were not too many that came to no end."""
        try:
            content = self._read(key) or {}
            attempts = int(content.get("attempts", 0))
        except (Damaged, OSError, TypeError, ValueError):
            attempts = 0
        if attempts >= MAX_ATTEMPTS:
            return False
        self._write(key, {"schema": SCHEMA, "attempts": attempts + 1})
        return True

    def _tidy(self) -> None:
        with contextlib.suppress(OSError):
            for key in self.keys()[:-MAX_VERDICTS]:
                self.remove(key)
