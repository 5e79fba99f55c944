"""The result as one HTML file that needs nothing else: a chart of the calls, and the tables."""

from __future__ import annotations

import math
import statistics
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from qnnbridge_tools import output, where
from qnnbridge_tools.bench.hosts import WAYS, WAYS_IN_WORDS
from qnnbridge_tools.bench.moments import MOMENTS_IN_WORDS
from qnnbridge_tools.bench.report import notes
from qnnbridge_tools.bench.work import Measured, Row

if TYPE_CHECKING:
    from qnnbridge_protocol.specs import Placement

COLOURS = dict(zip(WAYS, ("#5b6472", "#1f77b4", "#2ca02c", "#9467bd", "#d98c1f"), strict=True))
BAR_PX, GAP_PX, LEFT_PX, WIDTH_PX, LABEL_PX = 16, 22, 90, 640, 110
NAME_CHARACTERS = 14

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>qnnbridge bench</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
td, th {{ padding: .2em .8em; border-bottom: 1px solid #ddd; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
svg text {{ font: 12px system-ui, sans-serif; fill: #222; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #16181c; color: #ddd; }} svg text {{ fill: #ddd; }}
td, th {{ border-color: #444; }} }}
</style></head><body>
<h1>What a call costs</h1>
<p>{sides}</p>{placement}
{chart}
<h2>Calls</h2>{calls}
<h2>Many callers at once</h2>{crowds}
<h2>Starting</h2>{starts}
<p>After the host was killed, the next answer came after {recovery} (median of {kills}).</p>
<ul>{notes}</ul>
</body></html>
"""


def write(measured: Measured, file: Path) -> None:
    file.write_text(page(measured), encoding="utf-8")


def page(measured: Measured) -> str:
    host = measured.host
    one = measured.crowds[min(measured.crowds)]
    return _PAGE.format(
        sides=escape(f"Host: {host.machine}, {host.platform}, Python {host.python}, {_versions(measured)}."),
        placement="" if measured.placement is None else _placement(measured.placement),
        chart=_chart(measured.rows),
        calls=_table(
            ("", "way", "median us", "times direct", "slowest of ten", "of a hundred", "noise", "calls"),
            [cells for row in measured.rows for cells in _call_rows(row)],
        ),
        crowds=_table(
            ("threads", "calls/s", "times one thread"),
            [(str(size), f"{rate:.0f}", f"{rate / one:.2f}") for size, rate in measured.crowds.items()],
        ),
        starts=_table(
            ("", "median", "from", "to"),
            [
                (
                    MOMENTS_IN_WORDS[kind],
                    *(output.seconds(seconds) for seconds in (statistics.median(took), min(took), max(took))),
                )
                for kind, took in measured.starts.items()
            ],
        ),
        recovery=output.seconds(statistics.median(measured.recovery_s)),
        kills=len(measured.recovery_s),
        notes="".join(f"<li>{escape(note)}</li>" for note in notes(measured)),
    )


def _versions(measured: Measured) -> str:
    return ", ".join(
        f"{name} {number}" for name, number in sorted(measured.host.versions.items()) if name != "python"
    )


def _placement(placement: Placement) -> str:
    told = (f"{name}: {value}" for name, value in where.placement_pairs(placement))
    return f"<p>Where the model ran: {escape('; '.join(told))}.</p>"


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else name[: NAME_CHARACTERS - 1] + "…"


def _call_rows(row: Row) -> list[tuple[str, ...]]:
    direct = row.timings[WAYS[0]].median_s
    rows = []
    for way in WAYS:
        timing = row.timings[way]
        microseconds = (f"{seconds * 1e6:.1f}" for seconds in (timing.p90_s, timing.p99_s))
        rows.append(
            (
                row.name if way == WAYS[0] else "",
                way,
                f"{timing.median_s * 1e6:.1f}",
                f"{timing.median_s / direct:.2f}",
                *microseconds,
                f"{timing.noise * 100:.0f} %",
                str(timing.calls),
            )
        )
    return rows


def _chart(rows: list[Row]) -> str:
    """Bars on a logarithmic scale: from 4 KB to 32 MB lie three powers of ten."""
    medians = [timing.median_s * 1e6 for row in rows for timing in row.timings.values()]
    low, high = math.floor(math.log10(min(medians))), math.ceil(math.log10(max(medians)) + 1e-9)
    high = max(high, low + 1)

    def x(microseconds: float) -> float:
        return LEFT_PX + (math.log10(microseconds) - low) / (high - low) * WIDTH_PX

    parts, y = [], 24
    for power in range(low, high + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="18" y2="{{bottom}}" stroke="#8884"/>')
        parts.append(f'<text x="{at:.1f}" y="12" text-anchor="middle">{_axis(power)}</text>')
    for row in rows:
        middle = y + BAR_PX * len(WAYS) / 2 + 4
        parts.append(
            f'<text x="{LEFT_PX - 8}" y="{middle:.0f}" text-anchor="end">{escape(_short(row.name))}</text>'
        )
        for way in WAYS:
            end = x(row.timings[way].median_s * 1e6)
            words = f"{way}: {row.timings[way].median_s * 1e6:.1f} us"
            parts.append(
                f'<rect x="{LEFT_PX}" y="{y}" width="{max(1.0, end - LEFT_PX):.1f}" height="{BAR_PX - 3}" '
                f'fill="{COLOURS[way]}"><title>{escape(words)}</title></rect>'
                f'<text x="{end + 5:.1f}" y="{y + 10}">{row.timings[way].median_s * 1e6:.1f}</text>'
            )
            y += BAR_PX
        y += GAP_PX
    legend = "".join(
        f'<li><span style="color:{COLOURS[way]}">&#9632;</span> {escape(way)}: {escape(WAYS_IN_WORDS[way])}</li>'
        for way in WAYS
    )
    body = "".join(parts).replace("{bottom}", str(y))
    return (
        f'<svg role="img" aria-label="Median time of a call" viewBox="0 0 {LEFT_PX + WIDTH_PX + LABEL_PX} {y}" '
        f'width="100%">{body}</svg><ul style="list-style:none;padding:0">{legend}</ul>'
    )


def _axis(power: int) -> str:
    return (
        f"{10**power:g} us" if power < 3 else f"{10 ** (power - 3):g} ms" if power < 6 else f"{10 ** (power - 6)} s"
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{lines}</table>"
