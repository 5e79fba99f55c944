"""Which releases of onnxruntime-genai run which layout of a model, as tried. Pure; any thread.

A row is a fact that was tried with the release itself; `tests/labs/test_genai_releases.py` repeats some. A release
that no row refuses is tried: what it refuses is reported when it refuses it.
"""

from __future__ import annotations

import re
from typing import Final

from qnnbridge_host.model.genai_folder import Layout
from qnnbridge_protocol.records import NamedTuple

# Older ones lack functions that the host calls.
OLDEST: Final = (0, 13, 0)
TRIED: Final = ("0.13.2", "0.15.0", "0.15.2", "0.16.0", "0.17.0", "0.17.1", "0.18.0")
# The newest release that runs every layout.
EVERY_LAYOUT: Final = "0.15.2"


class LayoutSupport(NamedTuple):
    """refused: the first and the last release, of those tried, that does not run the layout; ``None``: all do.
    reason: what is wrong with it there."""

    layout: Layout
    what: str
    refused: tuple[str, str] | None
    reason: str = ""


LAYOUTS: Final[tuple[LayoutSupport, ...]] = (
    LayoutSupport("dynamic", "one model with dynamic shapes, for the CPU", None),
    LayoutSupport(
        "window",
        "a pipeline with GroupQueryAttention and the whole KV cache (Olive, Foundry)",
        ("0.16.0", "0.16.0"),
        "it makes the KV cache as long as the prompt, and the stages have a fixed one",
    ),
    LayoutSupport(
        "sliding",
        "a pipeline with a uint8 KV cache that genai slides (AI Hub)",
        ("0.17.0", "0.18.0"),
        "it gives the first stage a KV cache of wrong dimensions",
    ),
)


def version_of(text: str | None) -> tuple[int, ...]:
    """The numbers of a version's text; empty if there are none."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(map(int, found[0].split("."))) if found else ()


def is_too_old(version: str | None) -> bool:
    numbers = version_of(version)
    return bool(numbers) and numbers < OLDEST


def refusal(layout: Layout, version: str | None) -> str | None:
    """Why this release of genai does not run the layout; ``None`` if it does, or if that is not known."""
    row = next(one for one in LAYOUTS if one.layout == layout)
    numbers = version_of(version)
    if row.refused is None or not numbers:
        return None
    first, last = map(version_of, row.refused)
    return row.reason if first <= numbers <= last else None


def releases_of(layout: Layout) -> str:
    """The tried releases that run the layout, as text."""
    return ", ".join(version for version in TRIED if refusal(layout, version) is None)
