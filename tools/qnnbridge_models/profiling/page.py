"""The result of `qnnbridge profile` as one self-contained web page: charts and tables, without scripts.

The charts are SVG. All strings from the model are escaped. All functions are pure except `write`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from qnnbridge_models.profiling import report
from qnnbridge_models.profiling.report import ProfileResult
from qnnbridge_tools import output, reporting
from qnnbridge_tools.page import page_of, text

WIDTH: Final = 960
LABEL_WIDTH: Final = 340
VALUE_WIDTH: Final = 170
ROW_HEIGHT: Final = 24
BAR_HEIGHT: Final = 16
# Maximum length of the label in front of a bar. A longer label is shortened in the middle and shown in full as a
# tooltip.
MAX_LABEL: Final = 46

SHOWN_BARS: Final = 30
_STYLE: Final = """
:root { --accelerator: #3b6fd4; --transfer: #7d9fe6; --provider: #b3c7f2; --onnxruntime: #e3b07f; --bridge: #5b9b6b;
  --move: #8f6fc4; }
svg { max-width: 100%; height: auto; font: 13px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .label { text-anchor: end; }
.qnn { fill: var(--qnn); } .accelerator { fill: var(--accelerator); } .transfer { fill: var(--transfer); }
.provider { fill: var(--provider); } .cpu { fill: var(--cpu); } .onnxruntime { fill: var(--onnxruntime); }
.bridge { fill: var(--bridge); } .move { fill: var(--move); }
.note { border-left: 4px solid var(--cpu); padding-left: .8rem; } summary { cursor: pointer; margin: .6rem 0; }
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart.

    Args:
        label: text in front of the bar.
        value: length of the bar.
        text: text after the bar.
        kind: CSS class that colours the bar.
        hint: tooltip.
    """

    label: str
    value: float
    text: str
    kind: str = "qnn"
    hint: str = ""


def shortened(label: str) -> str:
    if len(label) <= MAX_LABEL:
        return label
    half = (MAX_LABEL - 3) // 2
    return f"{label[:half]}...{label[-half:]}"


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Return a horizontal bar chart; the longest bar has the full width."""
    height = ROW_HEIGHT * len(rows)
    most = max((row.value for row in rows), default=0.0)
    room = WIDTH - LABEL_WIDTH - VALUE_WIDTH
    drawn = [
        _bar(row, number * ROW_HEIGHT, row.value / most * room if most else 0.0) for number, row in enumerate(rows)
    ]
    return _svg(title, height, drawn)


def stacked(title: str, parts: Sequence[Bar]) -> str:
    """Return a single bar divided into parts whose lengths are proportional to their values."""
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
        # Draw at least one pixel, so that the bar can show its tooltip.
        f' width="{max(width, 1.0):.1f}" height="{BAR_HEIGHT}"/>'
        f'<text x="{LABEL_WIDTH + max(width, 1.0) + 6:.1f}" y="{middle}">{text(row.text)}</text></g>'
    )


def _svg(title: str, height: int, drawn: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{text(title)}"'
        f' viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">{"".join(drawn)}</svg>'
    )


def page(result: ProfileResult) -> str:
    name = Path(result.recorded.model).name
    sections = [_head(result, name), _notes(result), _run(result), _load(result), _partitions(result)]
    sections += [_operators(result), _cpu_nodes(result)]
    return page_of(f"Profile of {name}", "\n".join(section for section in sections if section), _STYLE)


def _head(result: ProfileResult, name: str) -> str:
    compiled = ", a compiled model" if result.recorded.compiled else ""
    pairs = [
        *reporting.placement_pairs(result.recorded.placement),
        *reporting.sides_pairs(result.recorded.host)[:2],
        ("level", f"{result.recorded.level}, {report.runs_text(result)}"),
    ]
    return f"<h1>Profile of {text(name)}{compiled}</h1>" + _table([], pairs)


def _notes(result: ProfileResult) -> str:
    return "".join(f'<p class="note">{text(note)}</p>' for note in result.notes)


def _run(result: ProfileResult) -> str:
    whole = sum(one.time_s.median for one in result.components)
    rows = [
        Bar(
            one.name,
            one.time_s.median,
            f"{output.seconds(one.time_s.median)}, {output.percent(one.time_s.median / whole if whole else 0)}",
            one.key,
            f"{one.name}: {report.spread_text(one.time_s)}",
        )
        for one in result.components
    ]
    return (
        f"<h2>One run: {text(report.spread_text(result.call_s))}</h2>"
        + stacked("Components of a run", rows)
        + bars("Components of a run, one by one", rows)
    )


def _load(result: ProfileResult) -> str:
    rows: list[Bar] = []
    for phase in result.load:
        # The CSS class depends on the phase's name, which `evaluate.load_of` defines.
        kind = (
            "qnn"
            if phase.name.startswith("QNN")
            else "bridge"
            if phase.name.startswith("bridge")
            else "onnxruntime"
        )
        rows.append(Bar(phase.name, phase.time_s, output.seconds(phase.time_s), kind))
        parts = report.worth_showing(phase, result.recorded.create_s)
        rows += [Bar(part.name, part.time_s, output.seconds(part.time_s), "provider") for part in parts]
    more = f", after {output.seconds(result.recorded.ready_s)} for the host to start"
    return f"<h2>Loading: {output.seconds(result.recorded.create_s)}{more}</h2>" + bars("Loading", rows)


def _partitions(result: ProfileResult) -> str:
    if not result.partitions:
        return ""
    slowest = sorted(result.partitions, key=lambda one: -one.node_s.median)
    rows = [
        Bar(f"{one.label}: {report.operators_text(one)}", one.node_s.median, output.seconds(one.node_s.median))
        for one in slowest[:SHOWN_BARS]
    ]
    details = [
        [
            one.label,
            report.operators_text(one),
            report.optional_text(one.execute_s),
            report.optional_text(one.accelerator_s),
            output.seconds(one.node_s.first),
            report.bytes_text(one.bytes_in),
            report.bytes_text(one.bytes_out),
        ]
        for one in slowest[:SHOWN_BARS]
    ]
    facts = [
        [name, *map(report.fact_text, values)]
        for name, values in report.shown_facts(result.partitions[:SHOWN_BARS])
    ]
    table = (
        _table(["figure of QNN", *(one.label for one in result.partitions[:SHOWN_BARS])], facts) if facts else ""
    )
    return (
        f"<h2>Parts on QNN: {len(result.partitions)}</h2>"
        + bars("Parts on QNN", rows)
        + _table(["part", "operators", "QNN execute", "accelerator", "first run", "in", "out"], details)
        + _folded("Other figures of QNN for a run", table)
    )


def _operators(result: ProfileResult) -> str:
    timed = [time for time in result.operators if time.cycles.median > 0]
    if not timed:
        return ""
    rows = [
        Bar(
            time.name,
            time.cycles.median,
            f"{output.percent(time.share)}"
            + (f", {output.seconds(time.time_s)}" if time.time_s is not None else ""),
            "move" if time.is_transfer else "qnn",
            f"{time.name} {time.type} in {time.partition}: {time.cycles.median:,.0f} cycles",
        )
        for time in timed[:SHOWN_BARS]
    ]
    table = _table(
        ["operator", "type", "part", "cycles", "share"],
        [
            [one.name, one.type or "-", one.partition, f"{one.cycles.median:,.0f}", output.percent(one.share)]
            for one in result.operators
        ],
    )
    return (
        f"<h2>Operators on QNN: {len(timed)} with a measured time</h2>"
        + bars("Operators on QNN", rows)
        + _folded("All operators", table)
    )


def _cpu_nodes(result: ProfileResult) -> str:
    if not result.cpu_nodes:
        return ""
    rows = [
        Bar(
            f"{node.name or '(unnamed)'} ({node.op})", node.time_s.median, output.seconds(node.time_s.median), "cpu"
        )
        for node in result.cpu_nodes[:SHOWN_BARS]
    ]
    return f"<h2>Nodes on the CPU: {len(result.cpu_nodes)}</h2>" + bars("Nodes on the CPU", rows)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{text(header)}</th>" for header in headers)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{text(title)}</summary>{content}</details>" if content else ""
