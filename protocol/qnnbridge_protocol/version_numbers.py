"""Numbers of a package's version, for comparisons. `qnnbridge_host.model.releases` has the order of releases."""

from __future__ import annotations

import re


def numbers_of(text: str | None) -> tuple[int, ...]:
    """Return the numbers at the start of a version, at least three: (2, 8, 0) for "2.8rc1". Empty without any."""
    found = re.match(r"\s*v?(\d+(?:\.\d+)*)", text or "")
    numbers = tuple(map(int, found[1].split("."))) if found else ()
    return numbers + (0,) * (3 - len(numbers)) if numbers else ()
