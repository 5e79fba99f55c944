"""Did-you-mean for names that an application mistyped. A pure function."""

from __future__ import annotations

from collections.abc import Iterable


def suggest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` with a leading blank, or nothing."""
    import difflib  # with heapq: for mistakes only

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
