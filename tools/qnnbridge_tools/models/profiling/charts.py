"""Bar charts as SVG text. Everything that comes from a model is escaped. Pure functions."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import Final

from qnnbridge_tools import output

WIDTH: Final = 960
LABEL_WIDTH: Final = 340
VALUE_WIDTH: Final = 170
ROW_HEIGHT: Final = 24
BAR_HEIGHT: Final = 16
MAX_LABEL: Final = 46
"""Characters that fit in front of a bar; a longer label is cut in its middle and shown whole when pointed at."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """kind: the class that colours it. hint: shown when pointed at."""

    label: str
    value: float
    text: str
    kind: str = "qnn"
    hint: str = ""


def text(value: object) -> str:
    """Safe within HTML and SVG, on one line."""
    return html.escape(output.visible(value), quote=True)


def shortened(label: str) -> str:
    if len(label) <= MAX_LABEL:
        return label
    half = (MAX_LABEL - 3) // 2
    return f"{label[:half]}...{label[-half:]}"


def bars(title: str, rows: Sequence[Bar]) -> str:
    """One bar below the other, the longest as wide as there is room."""
    height = ROW_HEIGHT * len(rows)
    most = max((row.value for row in rows), default=0.0)
    room = WIDTH - LABEL_WIDTH - VALUE_WIDTH
    drawn = [
        _bar(row, number * ROW_HEIGHT, row.value / most * room if most else 0.0) for number, row in enumerate(rows)
    ]
    return _svg(title, height, drawn)


def stacked(title: str, parts: Sequence[Bar]) -> str:
    """One bar of all parts, each as long as its share."""
    whole = sum(part.value for part in parts)
    at = 0.0
    drawn: list[str] = []
    for part in parts:
        width = part.value / whole * WIDTH if whole else 0.0
        drawn.append(
            f"<g><title>{text(f'{part.label}: {part.text}')}</title>"
            f'<rect class="{text(part.kind)}" x="{at:.1f}" y="0" width="{width:.1f}" height="36"/></g>'
        )
        at += width
    return _svg(title, 36, drawn)


def _bar(row: Bar, top: int, width: float) -> str:
    middle = top + ROW_HEIGHT // 2 + 4
    label = text(shortened(output.visible(row.label)))
    return (
        f"<g><title>{text(row.hint or row.label)}</title>"
        f'<text class="label" x="{LABEL_WIDTH - 8}" y="{middle}">{label}</text>'
        f'<rect class="{text(row.kind)}" x="{LABEL_WIDTH}" y="{top + (ROW_HEIGHT - BAR_HEIGHT) // 2}"'
        f' width="{max(width, 1.0):.1f}" height="{BAR_HEIGHT}"/>'
        f'<text x="{LABEL_WIDTH + max(width, 1.0) + 6:.1f}" y="{middle}">{text(row.text)}</text></g>'
    )


def _svg(title: str, height: int, drawn: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{text(title)}"'
        f' viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">{"".join(drawn)}</svg>'
    )
