"""Numbers of a package's version, for comparisons. `qnnbridge_host.model.releases` compares whole releases.

The host imports this module before HELLO, so the module does not import `re`.
"""

from __future__ import annotations


def numbers_of(text: str | None) -> tuple[int, ...]:
    """Return the numbers at the start of a version, at least three: (2, 8, 0) for "2.8rc1"; empty if the version
    has no numbers."""
    numbers: list[int] = []
    for part in (text or "").lstrip().removeprefix("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if digits:
            numbers.append(int(digits))
        # A release candidate is treated like its release: 1.24.0rc1 becomes (1, 24, 0).
        if digits != part or not part:
            break
    return (*numbers, *(0,) * (3 - len(numbers))) if numbers else ()
