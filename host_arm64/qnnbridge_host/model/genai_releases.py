"""Which releases of onnxruntime-genai run which layout of a model, as tried. Pure; any thread.

A row is a fact that `tests/genai` repeats with the releases that it can install. A release that is not listed is
tried: what it refuses is told when it refuses it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from qnnbridge_host.model.genai_folder import Layout

# Older ones lack functions that the host calls.
OLDEST: Final = (0, 13, 0)
# Tried with every layout.
TRIED: Final = ("0.13.2", "0.16.0", "0.17.0", "0.17.1", "0.18.0")
# The release that `qnnbridge[genai]` asks for, and the newest that runs models whose KV cache genai slides.
NEWEST_TRIED: Final = "0.18.0"
NEWEST_SLIDING: Final = "0.16.0"


class LayoutSupport(NamedTuple):
    """since, until: the first and the last release that runs the layout; ``None``: no end is known."""

    layout: Layout
    what: str
    since: tuple[int, ...]
    until: tuple[int, ...] | None


LAYOUTS: Final[tuple[LayoutSupport, ...]] = (
    LayoutSupport("dynamic", "one model, dynamic shapes", OLDEST, None),
    LayoutSupport("window", "pipeline of Olive and Foundry: GroupQueryAttention, whole KV cache", OLDEST, None),
    LayoutSupport("sliding", "pipeline of AI Hub: uint8 KV cache that genai slides", OLDEST, (0, 16, 99)),
)
# Releases after the last tried one may run the layout again.
_REFUSED_UP_TO: Final = (0, 18, 99)


def version_of(text: str | None) -> tuple[int, ...]:
    """The numbers of a version's text; empty if there are none."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(map(int, found[0].split("."))) if found else ()


def is_too_old(version: str | None) -> bool:
    numbers = version_of(version)
    return bool(numbers) and numbers < OLDEST


def refused(layout: Layout, version: str | None) -> bool:
    """Whether this release of genai is known not to run the layout."""
    numbers = version_of(version)
    row = next(one for one in LAYOUTS if one.layout == layout)
    return bool(numbers) and row.until is not None and row.until < numbers <= _REFUSED_UP_TO
