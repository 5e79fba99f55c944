"""The published promises, with the number of checks and the violations of each."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter

PROMISES = {
    "deadline": "No call blocks past its deadline plus 1 s.",
    "orphan": "No host outlives its application by more than 5 s.",
    "silent cpu": "No node runs on the CPU unless the caller allows it.",
    "cause": "Every crash is reported with its cause.",
    "leak": "No leaked process, handle, thread, shared memory or temporary file.",
    "next call": "Model A's crash never fails model B's next call.",
    "result": "No torn or wrong result: a call returns the right tensor or a typed error.",
    "blame": "A model is quarantined after it has killed the host twice, and no other model is quarantined.",
    "alive": "No call hangs forever.",
}


@dataclasses.dataclass
class _Count:
    tried: int = 0
    broken: Counter[str] = dataclasses.field(default_factory=Counter)


class Ledger:
    """Counts of the checks of all promises. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {name: _Count() for name in PROMISES}

    def check(self, promise: str, held: bool, otherwise: str = "") -> None:
        """Record a check of a promise; `otherwise` describes the violation."""
        with self._lock:
            count = self._counts[promise]
            count.tried += 1
            if not held:
                count.broken[otherwise] += 1

    def tried(self, promise: str) -> int:
        return self._counts[promise].tried

    @property
    def kept(self) -> bool:
        return not any(count.broken for count in self._counts.values())

    def __str__(self) -> str:
        lines = []
        for name, text in PROMISES.items():
            count = self._counts[name]
            verdict = "BROKEN" if count.broken else "held" if count.tried else "not tried"
            lines.append(f"{verdict:9} {text} ({count.tried} checks)")
            lines += [f"            {times} x {what}" for what, times in count.broken.most_common(5)]
        return "\n".join(lines)
