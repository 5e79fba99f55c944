"""What a sweep found, in words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]


def read(path: Path) -> list[Line]:
    """The results of a sweep, without the lines about its runs."""
    return [line for line in map(json.loads, path.read_text().splitlines()) if "case" in line]


def text_of(lines: Sequence[Line]) -> str:
    """Counts by operator."""
    counts: dict[str, Counter[str]] = {}
    for line in lines:
        ops = "+".join(node[0] for node in line["case"]["nodes"][-1:])
        counts.setdefault(ops, Counter())[line["result"]["status"]] += 1
    total = sum(counts.values(), Counter())
    return "\n".join([f"{name}: {dict(found)}" for name, found in sorted(counts.items())] + [f"all: {dict(total)}"])
