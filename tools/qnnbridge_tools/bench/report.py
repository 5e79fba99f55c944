"""The report of `qnnbridge bench`: tables, a JSON document, a page with a chart."""

from __future__ import annotations

import math
import statistics
from html import escape
from typing import TYPE_CHECKING, Any

from qnnbridge_tools import output, reporting
from qnnbridge_tools.bench.measuring import DIRECT, WAYS, WAYS_IN_WORDS, Timing
from qnnbridge_tools.bench.work import (
    DIRECT_SESSION,
    EMPTY,
    MOMENTS_IN_WORDS,
    READY,
    SESSION,
    CallTimings,
    Measured,
)

if TYPE_CHECKING:
    from qnnbridge_protocol.specs import Placement

# Above this noise the difference of two timings is not significant.
NOISY = 0.1

# Print a note if the load per CPU exceeds 1 + BUSY: other programs then disturb the measurement.
BUSY = 0.5

_CROWD_HEADERS = ("threads", "calls/s", "times one thread")
_START_HEADERS = ("", "median", "from", "to")


def print_measured(measured: Measured) -> None:
    print("A call, median in microseconds (and as a multiple of ONNX Runtime in one process)")
    output.print_table(("", *WAYS), [_cells(row) for row in measured.rows])
    print()
    for way in WAYS:
        print(f"  {way:<10} {WAYS_IN_WORDS[way]}")
    print()
    print("90th and 99th percentile in microseconds, and noise (spread of the rounds)")
    output.print_table(
        ("", *WAYS), [[row.name, *(_tail(row.timings[way]) for way in WAYS)] for row in measured.rows]
    )
    print()
    name = measured.rows[0].name
    print(f"Many callers at once ({name}, plain arrays)")
    output.print_table(_CROWD_HEADERS, _crowd_rows(measured))
    print()
    print("Starting")
    output.print_table(_START_HEADERS, _start_rows(measured))
    print()
    recovery = measured.recovery_s
    print(
        f"After the host was killed, the next answer came after {output.seconds(statistics.median(recovery))} "
        f"(the slowest of {len(recovery)}: {output.seconds(max(recovery))}); the caller saw no error."
    )
    print()
    if measured.placement is not None:
        output.print_pairs("Where the model ran", reporting.placement_pairs(measured.placement))
    output.print_pairs("Sides", reporting.sides_pairs(measured.host))
    for note in notes(measured):
        print(f"Note: {output.visible(note)}")


def _crowd_rows(measured: Measured) -> list[tuple[str, ...]]:
    one = measured.crowds[min(measured.crowds)]
    return [(str(size), f"{rate:.0f}", f"{rate / one:.2f}") for size, rate in measured.crowds.items()]


def _start_rows(measured: Measured) -> list[tuple[str, ...]]:
    return [
        (MOMENTS_IN_WORDS[kind], *map(output.seconds, (statistics.median(took), min(took), max(took))))
        for kind, took in measured.starts.items()
    ]


def notes(measured: Measured) -> list[str]:
    """Return notes on circumstances that make the timings hard to compare."""
    said = []
    noisy = [f"{row.name} {way}" for row in measured.rows for way in WAYS if row.timings[way].noise > NOISY]
    if noisy:
        most = "most" if len(noisy) > len(measured.rows) * len(WAYS) / 2 else ", ".join(noisy[:6])
        said.append(f"these timings vary by more than {output.percent(NOISY)} from round to round: {most}.")
    if measured.load is not None and max(measured.load) / measured.cpus > 1 + BUSY:
        said.append(f"other programs use the machine (load {max(measured.load):.1f} on {measured.cpus} CPUs).")
    if measured.pinned:
        said.append("calls were measured with all processes on one CPU; parallel calls and starts were not.")
    else:
        said.append("processes were free to move between CPUs, so a call includes waking another CPU.")
    if measured.stats.shared_memory != "available":
        said.append(f"shared memory is {measured.stats.shared_memory}; 'bridge' and 'zero-copy' did not use it.")
    return said


def document(measured: Measured) -> dict[str, Any]:
    return {
        "calls": [
            {
                "name": row.name,
                "bytes_in": row.bytes_in,
                "ways": {way: _timing_document(row.timings[way], row.timings[DIRECT]) for way in WAYS},
            }
            for row in measured.rows
        ],
        "calls_per_second": {str(size): rate for size, rate in measured.crowds.items()},
        "starting_s": {
            kind: {"median": statistics.median(took), "all": took} for kind, took in measured.starts.items()
        },
        "ready_to_python": _ratio(measured, READY, EMPTY),
        "session_to_direct": _ratio(measured, SESSION, DIRECT_SESSION),
        "recovery_s": {"median": statistics.median(measured.recovery_s), "all": measured.recovery_s},
        "pinned": measured.pinned,
        "load": measured.load,
        "cpus": measured.cpus,
        "shared_memory": measured.stats.shared_memory,
        "shared_calls": measured.stats.shared_calls,
        "placement": None if measured.placement is None else measured.placement.to_wire(),
        "notes": notes(measured),
        "host": reporting.host_document(measured.host),
        "application": reporting.application_document(),
    }


def _ratio(measured: Measured, one: str, other: str) -> float:
    return statistics.median(measured.starts[one]) / statistics.median(measured.starts[other])


def _timing_document(timing: Timing, direct: Timing) -> dict[str, Any]:
    return {
        "median_us": timing.median_s * 1e6,
        "p90_us": timing.p90_s * 1e6,
        "p99_us": timing.p99_s * 1e6,
        "best_us": timing.best_s * 1e6,
        "noise": timing.noise,
        "calls": timing.calls,
        "to_direct": timing.median_s / direct.median_s,
        "added_us": (timing.median_s - direct.median_s) * 1e6,
    }


def _cells(row: CallTimings) -> list[str]:
    direct = row.timings[DIRECT].median_s
    cells = [row.name]
    for way in WAYS:
        median = row.timings[way].median_s
        cells.append(_us(median) if way == DIRECT else f"{_us(median)} ({median / direct:.2f}x)")
    return cells


def _tail(timing: Timing) -> str:
    return f"{_us(timing.p90_s)}, {_us(timing.p99_s)}, {timing.noise * 100:.0f} %"


def _us(seconds: float) -> str:
    microseconds = seconds * 1e6
    return f"{microseconds:.1f}" if microseconds < 100 else f"{microseconds:.0f}"


COLOURS = dict(zip(WAYS, ("#5b6472", "#1f77b4", "#2ca02c", "#9467bd", "#d98c1f"), strict=True))
BAR_PX, GAP_PX, LEFT_PX, WIDTH_PX, LABEL_PX = 16, 22, 90, 640, 110
# Number of characters of 12 px that fit into LEFT_PX.
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


def page(measured: Measured) -> str:
    host = measured.host
    return _PAGE.format(
        sides=escape(f"Host: {host.machine}, {host.platform}, Python {host.python}, {_versions(measured)}."),
        placement="" if measured.placement is None else _placement(measured.placement),
        chart=_chart(measured.rows),
        calls=_table(
            ("", "way", "median us", "times direct", "90th percentile", "99th percentile", "noise", "calls"),
            [cells for row in measured.rows for cells in _call_rows(row)],
        ),
        crowds=_table(_CROWD_HEADERS, _crowd_rows(measured)),
        starts=_table(_START_HEADERS, _start_rows(measured)),
        recovery=output.seconds(statistics.median(measured.recovery_s)),
        kills=len(measured.recovery_s),
        notes="".join(f"<li>{escape(note)}</li>" for note in notes(measured)),
    )


def _versions(measured: Measured) -> str:
    return ", ".join(
        f"{name} {number}" for name, number in sorted(measured.host.versions.items()) if name != "python"
    )


def _placement(placement: Placement) -> str:
    pairs = (f"{name}: {value}" for name, value in reporting.placement_pairs(placement))
    return f"<p>Where the model ran: {escape('; '.join(pairs))}.</p>"


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else name[: NAME_CHARACTERS - 1] + "…"


def _call_rows(row: CallTimings) -> list[tuple[str, ...]]:
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


def _chart(rows: list[CallTimings]) -> str:
    """Return a bar chart. Its scale is logarithmic, because the sizes range from 4 KB to 32 MB."""
    medians = [timing.median_s * 1e6 for row in rows for timing in row.timings.values()]
    # Add a decade if the largest value is exactly a power of ten, so that its label fits to the right of the bar.
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
                # Draw at least one pixel, so that the tooltip can be shown.
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
    # Insert the height, which is known only after the last bar.
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
