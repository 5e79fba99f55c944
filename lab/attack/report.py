"""Report of an attack: counts and findings."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter

# Number of findings that are shown in full.
MAX_SHOWN = 5


@dataclasses.dataclass
class Report:
    """Counts and findings of an attack. Thread-safe.

    Args:
        findings: descriptions of violations, with the values needed to repeat them.
    """

    name: str
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    findings: list[str] = dataclasses.field(default_factory=list)
    # Lines that `--rows` prints, such as a table.
    rows: list[str] = dataclasses.field(default_factory=list)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self.counts[what] += times

    def finding(self, what: str) -> None:
        with self._lock:
            self.findings.append(what)

    def expect(self, held: bool, otherwise: str) -> None:
        if not held:
            self.finding(otherwise)

    def add(self, other: Report) -> None:
        """Add the counts and findings of another report."""
        self.counts.update(other.counts)
        self.findings += other.findings

    @property
    def good(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        lines = [f"{self.name}: {counts}; {len(self.findings)} findings"]
        lines += [f"  {finding}" for finding in self.findings[:MAX_SHOWN]]
        return "\n".join(lines)
