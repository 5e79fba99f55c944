"""A report for a person: one screen, most blocking first, one line per healthy thing, the verdict last.

Where much is wrong, the later findings are shown with less detail, until all of it fits; what is never left out is
what a finding is and how to mend it. ``--json`` shows everything.
"""

from __future__ import annotations

import dataclasses
import enum
import shutil
import textwrap
from typing import Final

from qnnbridge_tools import output
from qnnbridge_tools.doctor.findings import Finding, Healthy, Report, Severity

LEAST_WIDTH: Final = 80
MOST_WIDTH: Final = 120
LEAST_HEIGHT: Final = 40
_TAG: Final = 10
_LABEL: Final = 6
_NAMES: Final = {Severity.BLOCKED: "BLOCKED", Severity.DEGRADED: "DEGRADED", Severity.HEALTHY: "ok"}
_MORE: Final = "(less detail than there is: qnnbridge doctor --json shows all)"


class Detail(enum.IntEnum):
    """Of a finding: title and fix; one line of evidence more; everything."""

    LINE = 0
    SHORT = 1
    FULL = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Screen:
    width: int = LEAST_WIDTH
    height: int = LEAST_HEIGHT

    @classmethod
    def of_terminal(cls) -> Screen:
        size = shutil.get_terminal_size((LEAST_WIDTH, LEAST_HEIGHT))
        return cls(min(max(size.columns, LEAST_WIDTH), MOST_WIDTH), max(size.lines, LEAST_HEIGHT))

    def lines(self, text: str) -> int:
        """How many it takes: a terminal breaks what is longer than itself."""
        return sum(max(1, -(-len(line) // self.width)) for line in text.splitlines())


def report_text(report: Report, screen: Screen | None = None) -> str:
    screen = screen or Screen()
    details = [Detail.FULL] * len(report.findings)
    healthy = _healthy(report.healthy, screen)
    text = _joined(report, details, healthy, screen)
    # One line of the screen is for the prompt that follows.
    for step in _steps(len(details)):
        if screen.lines(text) < screen.height:
            break
        if step is None:
            healthy = _healthy_together(report.healthy, screen)
        else:
            index, detail = step
            details[index] = min(details[index], detail)
        text = _joined(report, details, healthy, screen)
    return text


def _steps(count: int) -> list[tuple[int, Detail] | None]:
    """What to leave out, one after another: details of later findings first. ``None``: the healthy lines."""
    later = range(count - 1, 0, -1)
    steps: list[tuple[int, Detail] | None] = [(index, Detail.SHORT) for index in later]
    steps += [(index, Detail.LINE) for index in later]
    steps.append(None)
    return [*steps, (0, Detail.SHORT), (0, Detail.LINE)] if count else steps


def _joined(report: Report, details: list[Detail], healthy: str, screen: Screen) -> str:
    pairs = zip(report.findings, details, strict=True)
    gap = "\n\n" if all(detail is Detail.FULL for detail in details) else "\n"
    parts = [gap.join(_finding(one, detail, screen) for one, detail in pairs)] if details else []
    if healthy:
        parts.append(healthy)
    if any(detail is not Detail.FULL for detail in details):
        parts.append(_MORE)
    parts.append(f"Verdict: {output.visible(report.verdict)}")
    return "\n\n".join(parts) if gap == "\n\n" else "\n".join(parts)


def _finding(one: Finding, detail: Detail, screen: Screen) -> str:
    lines = [f"{_NAMES[one.severity]:<{_TAG}}{output.visible(one.title)}  [{one.code}]"]
    shown = {
        Detail.FULL: (("seen", one.seen), ("note", one.notes), ("why", (one.why,))),
        Detail.SHORT: (("seen", one.seen[:1]),),
        Detail.LINE: (),
    }[detail]
    for label, texts in shown:
        for index, text in enumerate(texts):
            lines += _wrapped(label if index == 0 else "", output.visible(text), screen.width)
    # A fix stays on one line: it is there to be copied.
    lines.append(f"{'':<{_TAG}}{'fix':<{_LABEL}}{output.visible(one.fix)}")
    return "\n".join(lines)


def _wrapped(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"{'':<{_TAG}}{label:<{_LABEL}}",
        subsequent_indent=" " * (_TAG + _LABEL),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _healthy(lines: tuple[Healthy, ...], screen: Screen) -> str:
    texts = (f"{'ok':<{_TAG}}{output.visible(one.check)}: {output.visible(one.text)}" for one in lines)
    return "\n".join(_cut(text, screen.width) for text in texts)


def _healthy_together(lines: tuple[Healthy, ...], screen: Screen) -> str:
    names = ", ".join(output.visible(one.check) for one in lines)
    return _cut(f"{'ok':<{_TAG}}{names}", screen.width) if names else ""


def _cut(text: str, width: int) -> str:
    """The middle goes: paths say most at their ends."""
    if len(text) <= width:
        return text
    half = (width - 5) // 2
    return f"{text[: width - 5 - half]} ... {text[-half:]}"
